"""Schedulers of the learning rate that must know how long the training is."""

import shutil
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ExponentialLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)

from tests.runs import FEW, learner, rows
from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.options import Optimisation

EPOCHS, STEPS = 3, 10
TRAIN = [
    "train",
    "--data",
    "Digits",
    "--model",
    "capsnet_digits",
    "--epochs",
    str(EPOCHS),
    "--report",
    "false",
]
SMALL = [
    "--model_args",
    "{channels: 8, types: 2, decoder_hidden: [16], stem: [4]}",
    "--trainer.accelerator",
    "cpu",
]
LIMITED = ["--trainer.extra", f"{{limit_train_batches: {STEPS}}}"]
CYCLE = ["--scheduler", "OneCycleLR", "--scheduler.max_lr", "0.01"]


def trained(run: Path, *options: str) -> list[float]:
    """The learning rate of the last step of each epoch."""
    assert main([*TRAIN, *SMALL, *LIMITED, *CYCLE, *options, "--run", str(run)]) == 0
    return rates_of(run)


def rates_of(run: Path) -> list[float]:
    return [row["learning_rate"] for row in rows(run)]


def cycle(total: int, epochs: int = EPOCHS) -> list[float]:
    """The learning rate of the last step of each epoch."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=total)
    rates = [scheduler.get_last_lr()[0]]
    for _ in range(STEPS * epochs - 1):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    return rates[STEPS - 1 :: STEPS]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cycle of three epochs."""
    folder = tmp_path_factory.mktemp("cycle") / "run"
    trained(folder)
    return folder


@pytest.mark.thorough
def test_one_cycle_spans_all_steps_of_the_training(run: Path) -> None:
    rates = rates_of(run)
    assert rates == pytest.approx(cycle(EPOCHS * STEPS), rel=1e-12)
    assert rates[-1] < 1e-4


@pytest.mark.thorough
def test_a_number_of_steps_that_was_given_holds(tmp_path: Path) -> None:
    rates = trained(
        tmp_path / "run",
        "--scheduler.total_steps",
        "1000",
        "--scheduler_interval",
        "step",
    )
    assert rates == pytest.approx(cycle(1000), rel=1e-12)


@pytest.mark.thorough
def test_one_cycle_follows_a_training_that_becomes_longer(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    assert main(["train", "--resume", str(tmp_path / "run"), "--epochs", "5"]) == 0
    rates = rates_of(tmp_path / "run")
    assert rates[:3] == pytest.approx(cycle(30), rel=1e-12)
    assert rates[3:] == pytest.approx(cycle(50, 5)[3:], rel=1e-12)
    assert rates[-1] < 1e-4


def test_the_learning_rate_of_an_epoch_is_the_one_it_was_trained_with(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    halving = [
        "--optimizer.lr",
        "0.008",
        "--scheduler",
        "ExponentialLR",
        "--scheduler.gamma",
        "0.5",
    ]
    assert main([*TRAIN, *SMALL, *LIMITED, *halving, "--run", str(run)]) == 0
    assert rates_of(run) == [0.008, 0.004, 0.002]
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    drawn = events.Scalars("learning_rate")
    beside = events.Scalars("train_loss")
    assert [point.value for point in drawn] == pytest.approx([0.008, 0.004, 0.002])
    assert [point.step for point in drawn] == [point.step for point in beside]


@pytest.mark.parametrize("last", [2, 5])
@pytest.mark.parametrize(
    ("milestones", "place"),
    [((), 0), ((3,), 1), ((9,), 0), ((3, 6), 2), ((3, 10), 1), ((3, 5, 12), 2)],
    ids=str,
)
def test_schedulers_in_a_row_are_refused_where_torch_would_end_them(
    milestones: tuple[int, ...], place: int, last: int
) -> None:
    """Chained without milestones; else one after the other, of which one ends."""

    def made(optimizer: torch.optim.Optimizer) -> LRScheduler:
        parts: list[LRScheduler] = [
            ExponentialLR(optimizer, 0.9) for _ in range(max(1, len(milestones)))
        ]
        parts.insert(place, OneCycleLR(optimizer, 0.1, total_steps=last))
        return (
            SequentialLR(optimizer, parts, [*milestones])
            if milestones
            else ChainedScheduler(parts, optimizer)
        )

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    how = Optimisation(
        optimizer=torch.optim.SGD, scheduler=made, scheduler_interval="step"
    )
    steps = last + (0, *milestones)[place]
    scheduler = how.scheduled(optimizer, steps, 1)["scheduler"]
    optimizer.step()
    for _ in range(steps):
        scheduler.step()
    with pytest.raises(ValueError, match="Tried to step"):
        scheduler.step()
    with pytest.raises(
        ValueError,
        match=(
            rf"{type(scheduler).__name__} ends after {steps} steps, and the "
            r"training has"
        ),
    ):
        how.scheduled(optimizer, steps + 1, 1)


def test_a_part_that_takes_its_share_of_the_steps_is_no_end() -> None:
    def made(optimizer: torch.optim.Optimizer) -> LRScheduler:
        parts = [
            OneCycleLR(optimizer, 0.1, total_steps=2),
            ExponentialLR(optimizer, 0.9),
        ]
        return SequentialLR(optimizer, parts, [3])

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    how = Optimisation(
        optimizer=torch.optim.SGD, scheduler=made, scheduler_interval="step"
    )
    scheduler = how.scheduled(optimizer, 20, 1)["scheduler"]
    optimizer.step()
    for _ in range(20):
        scheduler.step()


@pytest.mark.parametrize(
    "extra",
    [
        {"limit_train_batches": 30, "max_steps": 7},
        {"accumulate_grad_batches": 2, "limit_train_batches": 5},
        {"accumulate_grad_batches": 4, "limit_train_batches": 0.9},
        *(
            pytest.param(extra, marks=pytest.mark.thorough)
            for extra in (
                {},
                {"limit_train_batches": 3},
                {"limit_train_batches": 0.5},
                {"accumulate_grad_batches": 4},
                {"accumulate_grad_batches": 2, "limit_train_batches": 0.9},
                {"accumulate_grad_batches": 5, "limit_train_batches": 3},
                {"accumulate_grad_batches": 20, "limit_train_batches": 0.9},
            )
        ),
    ],
    ids=str,
)
def test_the_steps_of_a_training_are_known_before_it_begins(
    extra: dict[str, float], tmp_path: Path
) -> None:
    digits = Digits()
    options = TrainerOptions(accelerator="cpu", extra=extra)
    schedule = Schedule(epochs=2, batch_size=200)
    fitting = Fitting(
        learner(channels=2, types=1),
        digits.train,
        digits.validation,
        tmp_path,
        schedule,
        options,
    )
    fitting.run()
    assert fitting.steps == fitting.trainer.global_step
    assert fitting.steps == fitting.trainer.estimated_stepping_batches
    group = fitting.trainer.accumulate_grad_batches
    assert (
        fitting.trainer.num_training_batches % group == 0
    )  # no step of fewer batches than the others


def test_a_training_that_ends_before_its_first_step_is_an_error(tmp_path: Path) -> None:
    options = TrainerOptions(accelerator="cpu", extra={"max_time": "00:00:00:00"})
    with pytest.raises(
        ValueError, match=r"nothing was trained: trainer.extra max_time 00:00:00:00"
    ):
        Fitting(
            learner(), FEW, FEW, tmp_path, Schedule(epochs=1, batch_size=64), options
        ).run()
