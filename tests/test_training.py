import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.runs import CPU, FEW, rows
from torchcaps.losses import MarginLoss
from torchcaps.models import create_model
from torchcaps_lab.cli import main
from torchcaps_lab.data import Preprocess
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training.checkpoints import check_network
from torchcaps_lab.training.diverged import TrainingDiverged
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.loaders import train_loader
from torchcaps_lab.training.options import Optimisation

SETTINGS = """
data:
  name: Digits
  validation: 0.05
model: capsnet_digits
model_args: {channels: 16, types: 2, decoder_hidden: [16]}
preprocess: {shift: 1, crop: 7, flip: true, brightness: 0.2, contrast: [0.5, 1.5], standardise: true}
epochs: 3
batch_size: 32
report: false
trainer: {accelerator: cpu, deterministic: true}
"""


def train_process(config: Path, run: Path, *options: str) -> subprocess.Popen:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    target = (
        ["--resume", str(run)]
        if "--resume" in options
        else ["--config", str(config), "--run", str(run)]
    )
    rest = [option for option in options if option != "--resume"]
    command = [sys.executable, "-m", "torchcaps_lab", "train", *target, *rest]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_listening,
    )


def _listening() -> None:
    """A shell's job in the background ignores Ctrl-C, and so would what is started from
    there.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen) -> str:
    with process:
        try:
            output, _ = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 0, output
    return output


def wait_for_rows(run: Path, count: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 120
    while not (run / "metrics.csv").is_file() or len(rows(run)) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "config.yaml").write_text(SETTINGS)
    return folder


@pytest.fixture(scope="module")
def unbroken(folder: Path) -> Path:
    run = folder / "unbroken"
    try:
        assert (
            main(["train", "--config", str(folder / "config.yaml"), "--run", str(run)])
            == 0
        )
    finally:
        torch.use_deterministic_algorithms(False)  # as the options have it
    assert len(rows(run)) == 3
    return run


class TestInterruption:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        "sign", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"]
    )
    def test_resumed_training_ends_like_an_unbroken_one(self, folder, unbroken, sign):
        run = folder / f"broken-{sign}"
        with train_process(folder / "config.yaml", run) as process:
            try:
                wait_for_rows(run, 1, process)
                process.send_signal(sign)
                output, _ = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode != 0
        assert not (run / "summary.json").exists()
        if sign == signal.SIGINT:
            assert f"--resume {run}" in output
            assert process.returncode == 128 + signal.SIGINT
        assert 1 <= len(rows(run)) < 3
        finish(train_process(folder / "config.yaml", run, "--resume"))
        assert rows(run) == rows(unbroken)
        resumed, expected = (
            load_file(r / "model" / "model.safetensors") for r in (run, unbroken)
        )
        assert all(torch.equal(resumed[name], expected[name]) for name in expected)

    @pytest.mark.slow
    def test_resuming_a_finished_run_changes_nothing(self, folder, unbroken):
        before = rows(unbroken)
        finish(train_process(folder / "config.yaml", unbroken, "--resume"))
        assert rows(unbroken) == before


@pytest.mark.thorough  # two processes, each of which imports and trains
def test_two_processes_train_like_one(folder, unbroken):
    run = folder / "two"
    output = finish(
        train_process(
            folder / "config.yaml",
            run,
            "--trainer.devices",
            "2",
            "--trainer.strategy",
            "ddp",
        )
    )
    assert "sync_dist" not in output
    single = rows(unbroken)
    two = rows(run)
    assert len(two) == 3
    for expected, got in zip(single, two, strict=True):
        for name in (
            "train_loss",
            "val_loss",
            "assignment_entropy_class_caps",
            "dead_capsules_class_caps",
        ):
            assert got[name] == pytest.approx(expected[name], rel=1e-4), name
        assert got["train_accuracy"] == pytest.approx(
            expected["train_accuracy"], abs=2 / 1280
        )


def task(preprocess: Preprocess | None = None, seed: int = 0, **model_args) -> Learner:
    model = create_model(
        "capsnet_digits", channels=8, types=2, decoder_hidden=(8,), **model_args
    )
    optimizer = partial(torch.optim.Adam, lr=1e-3)
    return Learner(
        model, Optimisation(optimizer=optimizer), preprocess=preprocess, seed=seed
    )


class TestFit:
    def test_learns(self, tmp_path):
        torch.manual_seed(0)
        _, metrics = Fitting(
            task(), FEW, FEW, tmp_path, Schedule(epochs=8, batch_size=16), CPU
        ).run()
        assert metrics[-1]["train_loss"] < metrics[0]["train_loss"]
        assert metrics[-1]["val_loss"] < metrics[0]["val_loss"]
        assert [row["epoch"] for row in metrics] == list(range(1, 9))

    @pytest.mark.parametrize(
        ("batch_size", "group", "like", "sampler"),
        [(8, 3, 24, "shuffled"), (8, 3, 24, "balanced"), (16, 5, 64, "shuffled")],
        ids=["some are left over", "balanced", "fewer than a group"],
    )
    def test_gradients_of_a_group_of_batches_are_those_of_a_larger_one(
        self, tmp_path, batch_size, group, like, sampler
    ):
        def trained(size: int, **extra: int) -> tuple[int, dict[str, torch.Tensor]]:
            torch.manual_seed(0)
            learner = task()
            learner.optimisation.scheduler = partial(
                torch.optim.lr_scheduler.OneCycleLR, max_lr=0.01, total_steps=None
            )
            options = TrainerOptions("cpu", precision="64-true", extra=extra)
            schedule = Schedule(epochs=2, batch_size=size, sampler=sampler)
            trainer, _ = Fitting(
                learner, FEW, FEW, tmp_path / str(size), schedule, options
            ).run()
            return trainer.global_step, learner.model.state_dict()

        steps, weights = trained(batch_size, accumulate_grad_batches=group)
        expected_steps, expected = trained(like)
        assert steps == expected_steps
        for name, weight in weights.items():
            torch.testing.assert_close(
                weight, expected[name], msg=name, rtol=1e-6, atol=1e-9
            )

    def test_a_frozen_part_is_no_surprise(self, tmp_path):
        schedule = Schedule(epochs=1, batch_size=64)
        learner = task()
        learner.model.conv.eval()
        Fitting(learner, FEW, FEW, tmp_path / "part", schedule, CPU).run()
        learner.model.eval()
        with pytest.warns(UserWarning, match="in eval mode at the start of training"):
            Fitting(learner, FEW, FEW, tmp_path / "whole", schedule, CPU).run()

    def test_works_without_validation_images(self, tmp_path):
        _, metrics = Fitting(
            task(),
            FEW,
            FEW.subset(torch.arange(0)),
            tmp_path,
            Schedule(epochs=1, batch_size=16),
            CPU,
        ).run()
        assert "val_loss" not in metrics[0]

    def test_half_precision_stays_finite(self, tmp_path):
        options = TrainerOptions(accelerator="cpu", precision="bf16-mixed")
        _, metrics = Fitting(
            task(), FEW, FEW, tmp_path, Schedule(epochs=2, batch_size=16), options
        ).run()
        assert all(torch.tensor(list(row.values())).isfinite().all() for row in metrics)

    def test_keeps_one_checkpoint_that_loads_without_code(self, tmp_path):
        Fitting(
            task(), FEW, FEW, tmp_path, Schedule(epochs=3, batch_size=16), CPU
        ).run()
        (checkpoint,) = (tmp_path / "checkpoints").iterdir()
        assert torch.load(checkpoint, weights_only=True)["epoch"] == 2

    def test_says_when_the_loss_is_no_number(self, tmp_path):
        sick = task()
        sick.loss = MarginLoss()
        sick.loss.present = torch.nan
        with pytest.raises(
            TrainingDiverged,
            match="not finite since epoch 1, step 1: class_loss is nan",
        ):
            Fitting(
                sick, FEW, FEW, tmp_path, Schedule(epochs=1, batch_size=16), CPU
            ).run()

    def test_names_the_change_that_made_another_model(self, tmp_path):
        network = torch.nn.Linear(2, 3)
        checkpoint = {"state_dict": network.state_dict()}
        other = torch.nn.Linear(2, 4)
        with pytest.raises(ValueError, match="the texts are others"):
            check_network(tmp_path, checkpoint, other, "the texts are others")
        check_network(tmp_path, checkpoint, network)

    def test_refuses_a_checkpoint_of_another_model(self, tmp_path):
        Fitting(
            task(), FEW, FEW, tmp_path, Schedule(epochs=1, batch_size=16), CPU
        ).run()
        with pytest.raises(ValueError, match=r"from another model: .*class_caps"):
            Fitting(
                task(pose_dim=4),
                FEW,
                FEW,
                tmp_path,
                Schedule(epochs=2, batch_size=16),
                CPU,
            ).run()

    def test_refuses_a_damaged_checkpoint(self, tmp_path):
        Fitting(
            task(), FEW, FEW, tmp_path, Schedule(epochs=1, batch_size=16), CPU
        ).run()
        (checkpoint,) = (tmp_path / "checkpoints").iterdir()
        checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
        with pytest.raises(ValueError, match=f"{checkpoint.name} is damaged"):
            Fitting(
                task(), FEW, FEW, tmp_path, Schedule(epochs=2, batch_size=16), CPU
            ).run()


def test_training_and_validation_images_are_prepared_and_pixels_are_reconstructed(
    tmp_path,
):
    preprocess = Preprocess(crop=6, brightness=0.5, contrast=(0.5, 2), standardise=True)
    spied = task(preprocess, seed=5, image_shape=(1, 6, 6))
    seen: list[torch.Tensor] = []
    targets: list[torch.Tensor] = []
    spied.model.register_forward_pre_hook(
        lambda _, arguments: seen.append(arguments[0])
    )
    spied.reconstruction.register_forward_pre_hook(
        lambda _, arguments: targets.append(arguments[1])
    )
    Fitting(
        spied,
        FEW,
        FEW.prepared(preprocess),
        tmp_path,
        Schedule(epochs=2, batch_size=16, seed=5),
        CPU,
    ).run()
    expected = []
    for epoch in range(2):
        loader = train_loader(FEW, 16, seed=5)
        loader.sampler.set_epoch(epoch)
        expected += [
            preprocess.train(batch.inputs, batch.indices, epoch, seed=5)
            for batch in loader
        ]
        expected += [
            preprocess.evaluate(part) for part in (FEW.inputs.float() / 255).split(16)
        ]
    for images, target, view in zip(seen, targets, expected, strict=True):
        assert torch.equal(images, view.images)
        assert torch.equal(target, view.pictures)
    assert min(float(images.min()) for images in seen) < 0
    assert all(
        0 <= float(target.min()) <= float(target.max()) <= 1 for target in targets
    )


class TestTrainLoader:
    def test_every_seed_and_epoch_has_an_order_of_its_own(self):
        orders = set()
        for seed in range(3):
            sampler = train_loader(FEW, 16, seed).sampler
            for epoch in range(3):
                sampler.set_epoch(epoch)
                orders.add(tuple(sampler))
        assert len(orders) == 9

    @pytest.mark.parametrize("processes", [1, 2, 3])
    def test_processes_share_out_the_same_batches(self, processes):
        def batches(rank, processes):
            loader = train_loader(FEW, 12, seed=3, rank=rank, processes=processes)
            loader.sampler.set_epoch(5)
            return [set(batch.indices.tolist()) for batch in loader]

        shards = zip(
            *(batches(rank, processes) for rank in range(processes)), strict=True
        )
        together = [set().union(*parts) for parts in shards]
        assert together == batches(0, 1)
        assert all(len(batch) == 12 for batch in together)

    @pytest.mark.parametrize(
        ("group", "batches"), [(1, 10), (4, 8), (10, 10), (11, 10)]
    )
    @pytest.mark.parametrize("processes", [1, 2])
    def test_groups_are_whole(self, processes, group, batches):
        for rank in range(processes):
            loader = train_loader(
                FEW, 6, seed=0, rank=rank, processes=processes, group=group
            )
            assert (
                [len(batch.labels) for batch in loader]
                == [6 // processes] * batches
                == [6 // processes] * len(loader)
            )

    def test_fewer_images_than_a_batch_make_one_batch(self):
        assert [len(batch.labels) for batch in train_loader(FEW, 1000, seed=0)] == [64]

    def test_a_batch_is_shared_out_evenly(self):
        for size, each in ((8, 2), (2, 1), (1000, 21)):
            loader = train_loader(FEW, size, seed=0, processes=3)
            assert {len(batch.labels) for batch in loader} == {each}

    def test_errors(self):
        with pytest.raises(
            ValueError, match="1 training images cannot be shared out to 2"
        ):
            train_loader(FEW.subset(torch.arange(1)), 2, seed=0, processes=2)
