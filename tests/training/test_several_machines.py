"""Two machines, here two agents of torchrun on the loopback, train as one process does
with the same global batch.
"""

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

OPTIONS = [
    *(
        "train",
        "--data",
        "Digits",
        "--model",
        "capsnet_digits",
        "--epochs",
        "2",
        "--batch_size",
        "64",
        "--report",
    ),
    *(
        "false",
        "--model_args",
        "{channels: 4, types: 2, decoder_hidden: null}",
        "--trainer.accelerator",
        "cpu",
    ),
]
NODES = [
    "--trainer.num_nodes",
    "2",
    "--trainer.devices",
    "1",
    "--trainer.strategy",
    "ddp",
]

slow = pytest.mark.slow


def finish(processes: list[subprocess.Popen]) -> None:
    try:
        for process in processes:
            output, _ = process.communicate(timeout=400)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def start(*command: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def rows(run: Path) -> list[dict[str, float]]:
    with (run / "metrics.csv").open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


@slow
def test_two_nodes_train_like_one_process(tmp_path: Path) -> None:
    single = tmp_path / "one"
    two = tmp_path / "two"
    finish([start("torchcaps_lab", *OPTIONS, "--run", str(single))])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = [
        "--nnodes",
        "2",
        "--nproc_per_node",
        "1",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        port,
    ]
    train = [
        "-m",
        "--",
        "torchcaps_lab",
        *OPTIONS,
        *NODES,
        "--run",
        str(two),
    ]  # -- or torchrun takes --run for its own
    finish(
        [
            start("torch.distributed.run", *where, "--node_rank", rank, *train)
            for rank in "01"
        ]
    )
    for expected, got in zip(rows(single), rows(two), strict=True):
        assert got["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
        assert got["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-4)
    weights, expected_weights = (
        load_file(run / "model" / "model.safetensors") for run in (single, two)
    )
    for name, tensor in weights.items():
        torch.testing.assert_close(
            expected_weights[name], tensor, rtol=1e-3, atol=1e-4, msg=name
        )
