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


def fitting(folder: Path, **trainer: Any) -> Fitting:
    """A training of a tiny network, which has not begun."""
    network = create_model("capsnet_digits", channels=4, types=2, decoder_hidden=None)
    images = Digits().train.subset(torch.arange(64))
    optimisation = Optimisation(optimizer=partial(torch.optim.Adam, lr=1e-3))
    learner = Learner(network, optimisation)
    options = TrainerOptions("cpu", **trainer)
    return Fitting(learner, images, images, folder, Schedule(), options)


@pytest.mark.parametrize("strategy", ["ddp_fork", "ddp_spawn", "ddp_notebook"])
def test_processes_that_would_take_the_network_with_them_are_refused(
    tmp_path: Path, strategy: str
) -> None:
    with pytest.raises(ValueError, match=f"strategy must be .* ddp, got {strategy}"):
        fitting(tmp_path, devices=2, strategy=strategy)


def test_batch_normalisation_over_processes_needs_gpus(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sync_batchnorm needs GPUs"):
        fitting(tmp_path, sync_batchnorm=True)


def test_slurm_neither_restarts_a_training_nor_starts_it_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: a checkpoint of another program in the current folder was taken."""
    slurm = {"NTASKS": "1", "JOB_NAME": "photos", "NTASKS_PER_NODE": "1"}
    ranks = {"PROCID": "0", "LOCALID": "0", "NODEID": "0", "JOB_ID": "7"}
    for name, value in (slurm | ranks).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hpc_ckpt_1.ckpt").touch()
    trainer = fitting(tmp_path / "run").trainer
    assert not trainer._accelerator_connector.cluster_environment.auto_requeue
    assert trainer._checkpoint_connector._hpc_resume_path is None


@pytest.mark.slow
def test_a_script_trains_in_two_processes(tmp_path: Path) -> None:
    """The defect: the second process found the folder of the run taken, and the first
    was killed.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import torchcaps as tc\n"
        "trainer = {'accelerator': 'cpu', 'devices': 2, 'strategy': 'ddp'}\n"
        "network = {'channels': 4, 'types': 2, 'decoder_hidden': None}\n"
        "options = dict(model='capsnet_digits', model_args=network, report=False)\n"
        "trained = tc.train('Digits', epochs=1, trainer=trainer, **options)\n"
        "print('ended', trained.run)\n"
    )
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "lab")])
    environment = {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("ended runs/digits") == 1


if __name__ == "__main__":
    both(Path(sys.argv[1]))
