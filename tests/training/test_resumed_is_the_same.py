"""A training that is interrupted again and again, and resumed, is the same training,
bit for bit.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    Callback,
    EMAWeightAveraging,
    StochasticWeightAveraging,
)
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR

from tests.runs import FEW, TINY
from torchcaps import SpreadLoss, create_model
from torchcaps.losses import ActivationLoss, MarginLoss
from torchcaps.spec import package_of
from torchcaps_lab.data import Examples
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.training.checkpoints import WholeCheckpoints, newest_checkpoint
from torchcaps_lab.training.fitting import Fitting
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import OPTIMIZERS, SCHEDULERS, Caller, Optimisation

EPOCHS = 5
TRAIN = FEW.subset(torch.arange(48))
VALIDATION = FEW.subset(torch.arange(48, 64))
NONE = FEW.subset(torch.arange(0))
ALWAYS = {"patience": 0, "threshold": 1e9, "threshold_mode": "abs"}
"""Settings of ReduceLROnPlateau with which no loss is good enough."""


class Killed(Exception):
    """Ends a training where nothing can be tidied up."""


class Kill(Callback):
    """Kills a training before a batch of an epoch, or, without an epoch, when the last
    epoch has ended.
    """

    def __init__(self, epoch: int | None, batch: int = 0) -> None:
        self.at = epoch, batch

    def on_train_batch_start(
        self, trainer: L.Trainer, module: L.LightningModule, batch: Any, number: int
    ) -> None:
        if self.at == (trainer.current_epoch, number):
            raise Killed

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.at[0] is None:
            raise Killed


class Unchanged(Callback):
    """Compares, when an epoch begins, the state of the training with the checkpoint of
    the epoch before.
    """

    PROGRESS = "epoch", "loops"
    """What says how far the training is: between two epochs Lightning counts on."""

    def __init__(self, checkpoints: Path) -> None:
        self.checkpoints = checkpoints
        self.compared = 0

    def on_train_epoch_start(
        self, trainer: L.Trainer, module: L.LightningModule
    ) -> None:
        newest = newest_checkpoint(self.checkpoints)
        if newest is None:
            return
        written = torch.load(newest, weights_only=True)
        now = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        assert written.keys() == now.keys()
        (last,) = (
            checkpoint_callback
            for checkpoint_callback in trainer.checkpoint_callbacks
            if checkpoint_callback.monitor is None
        )
        for state in (
            written,
            now,
        ):  # that of the callback that writes it knows the file only after that
            del state["callbacks"][last.state_key]
        for name in written.keys() - {*self.PROGRESS}:
            assert list(parts(written[name])) == list(parts(now[name])), name
        self.compared += 1


def parts(state: Any) -> Iterator[Any]:
    """What a state holds, tensors as numbers."""
    if isinstance(state, dict):
        for name, part in state.items():
            yield name
            yield from parts(part)
    elif isinstance(state, list | tuple):
        for part in state:
            yield from parts(part)
    else:
        yield state.tolist() if isinstance(state, Tensor) else state


class Run(NamedTuple):
    """A training to interrupt."""

    optimizer: Callable[..., Optimizer] = partial(torch.optim.Adam, lr=1e-2)
    scheduler: Callable[..., Any] | None = None
    interval: str = "epoch"
    average: float | None = None
    extra: dict[str, Any] = {}  # noqa: RUF012
    schedule: dict[str, Any] = {}  # noqa: RUF012
    loss: Callable[[], ActivationLoss] = MarginLoss
    callbacks: Callable[[], list[Callback]] = list
    validation: Examples = VALIDATION
    model: tuple[str, dict[str, Any]] = ("capsnet_digits", TINY)

    def fitting(self, folder: Path, *more: Callback) -> Fitting:
        torch.manual_seed(0)
        name, arguments = self.model
        how = Optimisation(
            loss=self.loss(),
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scheduler_interval=self.interval,
        )
        schedule = Schedule(**{"epochs": EPOCHS, "batch_size": 16, **self.schedule})
        where = TrainerOptions(
            accelerator="cpu", average=self.average, extra=self.extra
        )
        caller = Caller(callbacks=[*more, *self.callbacks()])
        learner = Learner(create_model(name, **arguments), how)
        return Fitting(learner, TRAIN, self.validation, folder, schedule, where, caller)

    def whole(self, folder: Path, *more: Callback) -> "Outcome":
        fitting = self.fitting(folder, *more)
        trainer, rows = fitting.run()
        used = fitting.take_best()
        rows = [
            {name: value for name, value in row.items() if name != "seconds"}
            for row in rows
        ]
        return Outcome(
            rows,
            list(parts(trainer.optimizers[0].state_dict())),
            used,
            fitting.learner.model.state_dict(),
        )

    def interrupted(self, folder: Path) -> "Outcome":
        for kill in (Kill(0, 1), Kill(1), Kill(2, 1), Kill(None)):
            fitting = self.fitting(folder, kill)
            with pytest.raises(Killed):
                fitting.run()
            if fitting.trainer.current_epoch < (kill.at[0] or 0):
                raise AssertionError("the training did not come so far")
        return self.whole(folder)


class Outcome(NamedTuple):
    """What a training leaves."""

    rows: list[dict[str, float]]
    optimizer: list[Any]
    used: dict[str, Any]
    weights: dict[str, Tensor]

    def check_is(self, expected: "Outcome") -> None:
        assert self.rows == expected.rows
        assert self.optimizer == expected.optimizer
        assert self.used == expected.used
        assert all(
            torch.equal(tensor, expected.weights[name])
            for name, tensor in self.weights.items()
        )

    @property
    def rates(self) -> list[float]:
        return [row["learning_rate"] for row in self.rows]


def check(run: Run, folder: Path) -> Outcome:
    """Compares a whole training with one that is interrupted four times; returns the
    whole one.
    """
    unchanged = Unchanged(folder / "whole" / "checkpoints")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unbroken = run.whole(folder / "whole", unchanged)
        assert unchanged.compared == len(unbroken.rows) - 1
        run.interrupted(folder / "interrupted").check_is(unbroken)
    return unbroken


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(average=0.9), id="averaged"),
        pytest.param(
            Run(validation=NONE), id="no validation", marks=pytest.mark.thorough
        ),
        pytest.param(Run(), id="each epoch", marks=pytest.mark.thorough),
        pytest.param(
            Run(extra={"val_check_interval": 0.4}),
            id="in mid-epoch",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            Run(extra={"check_val_every_n_epoch": 2}),
            id="every second",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            Run(extra={"check_val_every_n_epoch": None, "val_check_interval": 4}),
            id="every four steps",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_scheduler_that_watches(run: Run, tmp_path: Path) -> None:
    rates = check(
        run._replace(scheduler=partial(lr_scheduler.ReduceLROnPlateau, **ALWAYS)),
        tmp_path,
    ).rates
    assert rates[0] > rates[-1]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(Run(average=0.9), id="last", marks=pytest.mark.thorough),
        pytest.param(Run(average=0.9, schedule={"keep": "best"}), id="best"),
        pytest.param(
            Run(
                callbacks=lambda: [
                    EMAWeightAveraging(decay=0.9, update_starting_at_epoch=1)
                ]
            ),
            id="begins later",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            Run(
                callbacks=lambda: [
                    StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=2)
                ]
            ),
            id="SWA",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_averages(run: Run, tmp_path: Path) -> None:
    averaged = check(run, tmp_path)
    plain = Run().whole(tmp_path / "plain")
    assert any(
        not torch.equal(tensor, plain.weights[name])
        for name, tensor in averaged.weights.items()
    )


LATER = {"min_epochs": 4}
"""A training that may only end after more epochs than the first that would end it."""


@pytest.mark.parametrize(
    ("run", "epochs"),
    [
        pytest.param(
            Run(schedule={"patience": 1, "keep": "best"}, extra=LATER),
            4,
            id="early",
        ),
        pytest.param(
            Run(schedule={"stop_at": 0.01}, extra=LATER),
            4,
            id="at",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            Run(extra={"max_steps": 11}),
            4,
            id="in mid-epoch",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            Run(extra={"max_steps": 12}, average=0.9),
            4,
            id="after an epoch",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_ends(run: Run, epochs: int, tmp_path: Path) -> None:
    rows = check(
        run._replace(optimizer=partial(torch.optim.Adam, lr=0.1)), tmp_path
    ).rows
    assert [row["epoch"] for row in rows] == list(range(1, epochs + 1))


def test_a_checkpoint_names_no_best_epoch_whose_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The defect: it was deleted before the checkpoint that names the new one was
    written.
    """
    run = Run(
        partial(torch.optim.Adam, lr=0.03),
        schedule={"keep": "best"},
        validation=TRAIN,
    )
    best = set()
    write = WholeCheckpoints.save_checkpoint
    for number in range(1, EPOCHS):

        def killed(
            self: Any,
            content: Any,
            path: Any,
            last: str = f"{number:05d}",
            **options: Any,
        ) -> None:
            if Path(path).parent.name == "checkpoints" and last in Path(path).name:
                raise Killed
            write(self, content, path)

        monkeypatch.setattr(WholeCheckpoints, "save_checkpoint", killed)
        with pytest.raises(Killed):
            run.fitting(tmp_path).run()
        newest = torch.load(
            newest_checkpoint(tmp_path / "checkpoints"), weights_only=True
        )
        (named,) = (
            Path(state["best_model_path"])
            for key, state in newest["callbacks"].items()
            if "val_" in key
        )
        best.add(named.name)
        assert (tmp_path / "checkpoints" / "best" / named.name).is_file()
    assert len(best) > 1
    monkeypatch.setattr(WholeCheckpoints, "save_checkpoint", write)
    outcome = run.whole(tmp_path)
    assert [path.stem for path in (tmp_path / "checkpoints" / "best").iterdir()] == [
        f"epoch{outcome.used['epoch'] - 1:05d}"
    ]


@pytest.mark.thorough
def test_two_stages(tmp_path: Path) -> None:
    small = {
        "image_shape": (1, 8, 8),
        "widths": (2,),
        "blocks": 1,
        "types": 2,
        "primary_dim": 4,
        "pose_dim": 4,
    }
    check(
        Run(model=("capsnet_on_backbone", small), schedule={"frozen_epochs": 2}),
        tmp_path,
    )


@pytest.mark.parametrize(
    "run",
    [
        Run(extra={"accumulate_grad_batches": 3}),
        Run(loss=SpreadLoss),
        Run(loss=lambda: SpreadLoss(schedule="sigmoid", period=3.0)),
        Run(schedule={"sampler": "balanced"}),
        Run(extra={"reload_dataloaders_every_n_epochs": 1}),
        Run(
            model=(
                "capsnet_digits",
                {
                    **TINY,
                    "decoder_hidden": [4],
                    "decoder_input": "pose",
                    "pose_noise": 1.0,
                },
            )
        ),
    ],
    ids=[
        "accumulated",
        "margin by epoch",
        "margin by step",
        "balanced",
        "reloaded",
        "noise",
    ],
)
@pytest.mark.thorough
def test_steps(run: Run, tmp_path: Path) -> None:
    check(run, tmp_path)


def chained(optimizer: Optimizer) -> lr_scheduler.ChainedScheduler:
    parts = [
        lr_scheduler.LinearLR(optimizer, total_iters=2),
        lr_scheduler.ExponentialLR(optimizer, 0.9),
    ]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


def sequential(optimizer: Optimizer) -> lr_scheduler.SequentialLR:
    parts = [
        lr_scheduler.LinearLR(optimizer, total_iters=2),
        lr_scheduler.CosineAnnealingLR(optimizer, 4),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def shrinking(step: int) -> float:
    return 0.9**step


ACTING: dict[str, Callable[..., Any]] = {
    "SWALR": partial(SWALR, swa_lr=1e-3, anneal_epochs=3),
    "OneCycleLR": partial(lr_scheduler.OneCycleLR, max_lr=1e-2, total_steps=None),
    "CosineAnnealingWarmRestarts": partial(
        lr_scheduler.CosineAnnealingWarmRestarts, T_0=2, T_mult=2
    ),
    "CyclicLR": partial(
        lr_scheduler.CyclicLR,
        base_lr=1e-4,
        max_lr=1e-2,
        step_size_up=2,
        mode="exp_range",
        gamma=0.9,
    ),
    "ReduceLROnPlateau": partial(lr_scheduler.ReduceLROnPlateau, cooldown=1, **ALWAYS),
    "ChainedScheduler": chained,
    "CosineAnnealingLR": partial(lr_scheduler.CosineAnnealingLR, T_max=4),
    "PolynomialLR": partial(lr_scheduler.PolynomialLR, total_iters=4, power=2.0),
    "SequentialLR": sequential,
    "ExponentialLR": partial(lr_scheduler.ExponentialLR, gamma=0.9),
    "LinearLR": partial(lr_scheduler.LinearLR, total_iters=4),
    "ConstantLR": partial(lr_scheduler.ConstantLR, total_iters=2),
    "MultiStepLR": partial(lr_scheduler.MultiStepLR, milestones=[1, 3]),
    "StepLR": partial(lr_scheduler.StepLR, step_size=2),
    "MultiplicativeLR": partial(lr_scheduler.MultiplicativeLR, lr_lambda=shrinking),
    "LambdaLR": partial(lr_scheduler.LambdaLR, lr_lambda=shrinking),
}
"""Every scheduler of torch, with settings under which the rate changes in a few steps.
"""


def of_torch(classes: list[type]) -> set[str]:
    return {cls.__name__ for cls in classes if package_of(cls.__module__) == "torch"}


@pytest.mark.parametrize("interval", ["epoch", "step"])
@pytest.mark.parametrize("name", sorted(of_torch(SCHEDULERS.classes())))
@pytest.mark.thorough
def test_every_scheduler(name: str, interval: str, tmp_path: Path) -> None:
    accumulated = (
        {"accumulate_grad_batches": 2} if interval == "step" else {}
    )  # one step an epoch, of two batches
    momentum = partial(
        torch.optim.SGD, lr=1e-2, momentum=0.9
    )  # which some schedulers change, too
    rates = check(
        Run(momentum, ACTING[name], interval, extra=accumulated, average=0.9), tmp_path
    ).rates
    assert len(set(rates)) > 1


@pytest.mark.parametrize(
    "name", sorted(of_torch(OPTIMIZERS.classes()) - {"SparseAdam", "Muon"})
)
@pytest.mark.thorough
def test_every_optimizer(name: str, tmp_path: Path) -> None:
    fewer = {"max_iter": 2} if name == "LBFGS" else {}
    check(Run(optimizer=partial(OPTIMIZERS.find(name), lr=1e-2, **fewer)), tmp_path)
