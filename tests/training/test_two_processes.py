"""Two processes that add up gradients, or share out what the optimizer keeps, train
like one that does not.
"""

import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_several_machines import finish

from torchcaps import create_model
from torchcaps_lab.data import Digits
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import Optimisation

Rows = list[dict[str, float]]


def trained(
    folder: Path, batch: int, epochs: int, shard: bool = False, **trainer: Any
) -> tuple[Rows, Learner, int]:
    """Metrics of each epoch, what was trained, and how many numbers this process's
    optimizer keeps.
    """
    torch.manual_seed(0)
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=(8,))
    optimizer = partial(torch.optim.Adam, lr=1e-3)
    learner = Learner(network, Optimisation(optimizer=optimizer, shard_optimizer=shard))
    images = Digits().train.subset(torch.arange(64))
    options = TrainerOptions("cpu", precision="64-true", **trainer)
    ended, rows = Fitting(
        learner,
        images,
        images,
        folder,
        Schedule(epochs=epochs, batch_size=batch),
        options,
    ).run()
    state = getattr(ended.optimizers[0], "optim", ended.optimizers[0]).state
    kept_bytes = sum(
        value.numel()
        for tensor in state.values()
        for value in tensor.values()
        if value.ndim
    )
    return rows, learner, kept_bytes


def both(folder: Path) -> None:
    """What each of the two processes does."""
    results = {}
    many: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    extra = {"accumulate_grad_batches": 2}
    rows, _, _ = trained(folder / "added", 8, 2, extra=extra, **many)
    results["added"] = rows
    trained(folder / "shared", 16, 1, shard=True, **many)
    results["shared"], _, results["kept"] = trained(
        folder / "shared", 16, 2, shard=True, **many
    )  # resumed
    (folder / f"{os.environ['LOCAL_RANK']}.json").write_text(json.dumps(results))


@pytest.mark.slow
def test_two_processes_train_like_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "NODE_RANK": "0",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    root = Path(__file__).parents[2]
    path = os.pathsep.join(
        [str(root), str(root / "lab"), os.environ.get("PYTHONPATH", "")]
    )
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(tmp_path)],
            env={
                **os.environ,
                **where,
                "PYTHONPATH": path,
                "OMP_NUM_THREADS": "1",
                "LOCAL_RANK": rank,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    finish(processes)
    expected, _, kept_bytes = trained(tmp_path / "one", 16, 2)
    first, second = (
        json.loads((tmp_path / f"{rank}.json").read_text()) for rank in "01"
    )
    for rows in (first["added"], first["shared"]):
        for row, expected_row in zip(rows, expected, strict=True):
            for name in ("train_loss", "val_loss"):
                assert row[name] == pytest.approx(expected_row[name], rel=1e-6), name
    assert first["kept"] + second["kept"] == kept_bytes
    assert min(first["kept"], second["kept"]) > 0


def test_resuming_may_share_out_anew() -> None:
    from torchcaps_lab.training.checkpoints import FREE

    assert "shard_optimizer" in FREE


if __name__ == "__main__":
    both(Path(sys.argv[1]))
