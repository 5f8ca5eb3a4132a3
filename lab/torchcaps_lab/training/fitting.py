"""A training that can be killed and resumed."""

import copy
import logging
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies.launchers.multiprocessing import (
    _MultiProcessingLauncher,
)
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from torchcaps.numerics import Progress
from torchcaps.whole import owned
from torchcaps_lab.data import Examples
from torchcaps_lab.look import counted
from torchcaps_lab.options.declarations import Schedule, TrainerOptions
from torchcaps_lab.run_folder import is_first_process
from torchcaps_lab.training.callbacks import (
    ONE_AN_EPOCH,
    History,
    KeepBest,
    Limits,
    RoutingHealth,
    StopEarly,
    duration,
)
from torchcaps_lab.training.checkpoints import (
    Fingerprint,
    WholeCheckpoints,
    check_network,
    checkpoint_to_resume,
    newest_checkpoint,
    read_checkpoint,
)
from torchcaps_lab.training.graphs import Graphs
from torchcaps_lab.training.head import check_backbone, train_head
from torchcaps_lab.training.learner import Learner, with_gradients
from torchcaps_lab.training.loaders import Loaders, train_loader
from torchcaps_lab.training.options import Caller, averaging
from torchcaps_lab.training.progress import ProgressLine

_LOGS = "tensorboard"


class Fitting:
    """A training, checked as far as possible without writing anything.

    :meth:`run` writes ``metrics.csv``, ``checkpoints/`` (the end of the last epoch) and
    ``tensorboard/`` into the folder.

    Args:
        learner: the network, its task and how it is optimised.
        train: the training images.
        validation: the validation images, may be empty.
        folder: the folder of the run.
        schedule: epochs and batches; its seed determines the order of the images.
        options: where and how to train.
        caller: what to show.

    Raises:
        ValueError: if the network does not take the images, the batch does not suit the
            processes, the machine does not have what the options ask for, or validation
            images are missing; or if ``checkpoints``, ``tensorboard``, ``metrics.csv``
            or something in them is a link that leads out of the folder.
    """

    def __init__(
        self,
        learner: Learner,
        train: Examples,
        validation: Examples,
        folder: Path,
        schedule: Schedule,
        options: TrainerOptions,
        caller: Caller | None = None,
    ) -> None:
        self.learner = learner
        self.caller = caller or Caller()
        self.options = options
        self.checkpoints, _, metrics = (
            owned(folder, name) for name in ("checkpoints", _LOGS, "metrics.csv")
        )
        learner.optimisation.weigh(train)
        if schedule.frozen_epochs:
            check_backbone(learner.model)
        main = learner.task.main
        asked = {
            "stop_at": schedule.stop_at,
            "patience": schedule.patience,
            "keep": schedule.keep == "best" or None,
        }
        if not len(validation) and (
            needing := [name for name, value in asked.items() if value is not None]
        ):
            raise ValueError(
                f"{needing[0]} needs validation {train.what}, and there are none"
            )
        compared = {
            "seed": schedule.seed,
            "batch_size": schedule.batch_size,
            "preprocess": learner.preprocess.config(),
            **self.caller.options,
        }
        self.fingerprint = Fingerprint(compared, train, validation)
        self.history = History(metrics, self.caller.show, main.name)
        self.progress = ProgressLine(
            self.caller.show if self.caller.header else None, self.caller.progress_bar
        )
        self.stop = StopEarly(schedule.stop_at, schedule.patience, self.history, main)
        self.best = None
        if schedule.keep == "best":
            self.best = KeepBest(self.checkpoints / "best", main)
        health = RoutingHealth(
            validation if len(validation) else train.prepared(learner.preprocess)
        )
        last = ModelCheckpoint(self.checkpoints, **ONE_AN_EPOCH)
        checkpoints = [last] if self.best is None else [self.best, last]
        # The last one saves the state of all others.
        watching = [
            *self.caller.callbacks,
            Graphs(self.caller.show),
            self.progress,
            health,
            self.history,
            self.fingerprint,
            self.stop,
            *checkpoints,
        ]
        self.trainer = self._trainer(schedule, watching, folder, bool(len(validation)))
        self.loaders = Loaders(train, validation, schedule, learner.speed)
        batches = len(
            train_loader(
                train, schedule.batch_size, schedule.seed, 0, self.trainer.world_size
            )
        )
        groups = whole_groups(
            batches,
            self.trainer.accumulate_grad_batches,
            self.trainer.limit_train_batches,
        )
        self.trainer.accumulate_grad_batches = groups.accumulate
        self.trainer.limit_train_batches = groups.limit
        # Steps of a whole epoch, and of the training if nothing ends it early;
        # Lightning computes the same later.
        self.epoch_steps = groups.batches // groups.accumulate
        self.steps = self.epoch_steps * (self.trainer.max_epochs or 1)
        if self.trainer.max_steps != -1:
            self.steps = min(self.steps, self.trainer.max_steps)
        if not self.steps:
            raise ValueError(
                f"a training must have a step, got none of {batches} "
                f"batch{'es' * (batches != 1)} an epoch: "
                f"{_extra(self.options)} ends it before the first"
            )

    def _trainer(
        self,
        schedule: Schedule,
        watching: list[Callback],
        folder: Path,
        validate: bool,
    ) -> L.Trainer:
        options = self.options
        plugins: list[Any] = [WholeCheckpoints(self.checkpoints)]
        if SLURMEnvironment.detect():
            # Lightning's own restart writes and reads checkpoints beside the run's.
            plugins.append(SLURMEnvironment(auto_requeue=False))
        try:
            trainer = L.Trainer(
                **options.arguments(),
                max_epochs=schedule.epochs,
                callbacks=[Limits(), *averaging(options), *watching],
                logger=TensorBoardLogger(folder, name="", version=_LOGS),
                plugins=plugins,
                # Where Lightning looks for checkpoints of Slurm; none is there.
                default_root_dir=folder,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                # Its tensors do not count writes to them: kernels could cache nothing
                inference_mode=False,
                limit_val_batches=1.0 if validate else 0,
                use_distributed_sampler=False,
            )
        except (
            MisconfigurationException,
            ValueError,
            TypeError,
            RuntimeError,
            ImportError,
        ) as error:
            asked = ", ".join(
                f"{name} {getattr(options, name)}"
                for name in ("accelerator", "devices", "precision")
            )
            more = f", {_extra(options)}" if options.extra else ""
            advice = ""
            if options.accelerator not in ("auto", "cpu"):
                advice = "; --trainer.accelerator auto uses the available hardware"
            raise ValueError(
                f"this machine cannot train as asked ({asked}{more}): {error}{advice}"
            ) from error
        if isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
            raise ValueError(
                f"strategy must be one that starts the command anew, such as ddp, got "
                f"{options.strategy} with devices {options.devices}: the network that "
                "forked and spawned processes train is lost with them. In a notebook, "
                "train on one device"
            )
        if options.sync_batchnorm and trainer.strategy.root_device.type == "cpu":
            raise ValueError(
                "sync_batchnorm needs GPUs: PyTorch has no batch normalisation over "
                "processes on a CPU"
            )
        return trainer

    def notes(self) -> list[str]:
        """What people should know before they wait for the training."""
        steps = self.steps
        each = self.epoch_steps
        if not each or steps % each == 0:
            return []
        return [
            f"max_steps {steps} ends the training in the middle of epoch "
            f"{steps // each + 1}, of {each} steps"
        ]

    def run(self) -> tuple[L.Trainer, list[dict[str, float]]]:
        """Trains from the start, or from the newest checkpoint that is whole.

        Returns:
            The trainer, and the metrics of each epoch.

        Raises:
            TrainingDiverged: if the loss is not finite.
            ValueError: if a checkpoint is damaged, or from another model or other
                images or options.
        """
        if is_first_process():
            newest = checkpoint_to_resume(self.checkpoints)
        else:
            newest = newest_checkpoint(self.checkpoints)
        changes = ""
        with self._resuming(newest):
            if newest is not None:
                changes = self._check_resumed(newest)
        if newest is None and self.loaders.schedule.frozen_epochs:
            self._train_head()
        resuming = self._resuming(newest, changes)
        with expected_warnings(self.learner.model), _interruptible(), resuming:
            self.trainer.fit(
                self.learner,
                datamodule=self.loaders,
                ckpt_path=newest,
                weights_only=True,
            )
        if not self.trainer.global_step:
            raise ValueError(
                "the training ended before its first step, nothing was trained: "
                f"{_extra(self.options)}"
            )
        if is_first_process():
            # Lightning does not delete the one it resumed from.
            checkpoint_to_resume(self.checkpoints)
            if self.caller.show is not None and (reason := self.stop.why()):
                self.caller.show(f"training ended: {reason}")
        return self.trainer, self.history.rows

    def _check_resumed(self, newest: Path) -> str:
        """What changed since a checkpoint. Raises a `ValueError` unless it is of this
        training and not beyond its end.
        """
        checkpoint = read_checkpoint(newest)
        # Other data may change the network, too: they are the reason to name.
        changes = self.fingerprint.check(checkpoint, self.caller.allow_changes)
        self.learner.replaces_settings = self.fingerprint.optimises_otherwise(
            checkpoint
        )
        check_network(newest, checkpoint, self.learner, changes)
        done = checkpoint["epoch"] + 1
        wanted = self.trainer.max_epochs or 0
        if done > wanted:
            raise ValueError(
                f"epochs must be {done} or more, as many as are done already, got "
                f"{wanted}"
            )
        return changes

    @contextmanager
    def _resuming(self, newest: Path | None, changes: str = "") -> Iterator[None]:
        """Names the checkpoint, and what changed since, in errors of any type that its
        content leads to, which nobody can list: Lightning takes it as it is.
        """
        try:
            yield
        except (ValueError, OSError, FloatingPointError):
            raise
        except Exception as error:
            if newest is None or self.history.has_begun:
                raise
            changed = f" after the changes ({changes})" if changes else ""
            raise ValueError(
                f"checkpoint {newest} cannot be resumed from{changed}: {error!r:.400}"
            ) from error

    def _train_head(self) -> None:
        """The first stage, if there is one; its seconds count to the first epoch."""
        begun = time.perf_counter()
        main = self.learner.task.main
        if is_first_process():
            progress = {"on_step": self.progress.on_feature_step}
        else:
            progress = {}
        train_head(
            self.learner,
            self.loaders,
            self.trainer.strategy.root_device,
            self.trainer.gradient_clip_val,
            **progress,
        )
        self.history.before = time.perf_counter() - begun
        if self.caller.show is not None and is_first_process():
            images = self.loaders.validation
            accuracy = ""
            if len(images):
                figures = self.learner.task.examine(self.learner.model, images).figures
                accuracy = (
                    f", {main.name} of the validation {images.what} "
                    f"{main.text(figures[main.name])}"
                )
            epochs = self.loaders.schedule.frozen_epochs
            self.caller.show(
                f"{counted(epochs, 'epochs')} on the features of the backbone, as it is{accuracy}; "
                f"{duration(self.history.before)}"
            )

    def take_best(self) -> dict[str, Any]:
        """Takes the weights and settings of the epoch that the schedule wants kept, and
        says which epoch that is.
        """
        rows = self.history.rows
        epoch, reason = len(rows), "the last"
        if self.best is not None and not self.best.best_model_path:
            reason = "the last: no epoch ended with a validation"
        elif self.best is not None:
            path = Path(self.best.best_model_path)
            best = read_checkpoint(path)
            check_network(path, best, self.learner)
            self.learner.load_state_dict(best["state_dict"])
            main = self.learner.task.main
            value = rows[self.best.epoch][f"val_{main.name}"]
            examples = self.loaders.validation.what
            epoch = self.best.epoch + 1
            reason = (
                f"the best {main.name} on validation {examples}, {main.text(value)}"
            )
        progress = Progress(max(epoch, 1) - 1, self.trainer.max_epochs or 1)
        self.learner.ramps.set(progress)
        return {"epoch": epoch, "by": reason}


class Groups(NamedTuple):
    """The batches of an epoch that fill whole steps of the optimizer.

    Args:
        batches: how many batches an epoch has.
        accumulate: the batches of a step, whose gradients are added up.
        limit: Lightning's ``limit_train_batches``.
    """

    batches: int
    accumulate: int
    limit: int | float


def whole_groups(batches: int, accumulate: int, limit: int | float) -> Groups:
    """Leave out the batches of an epoch that do not fill a step of the optimizer.

    Example:
        >>> from torchcaps_lab.training.fitting import whole_groups
        >>> whole_groups(batches=10, accumulate=4, limit=1.0)
        Groups(batches=8, accumulate=4, limit=1.0)
    """
    accumulate = min(accumulate, batches)
    batches -= batches % accumulate
    limited = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    if 0 < limited < batches:
        # A limit may be smaller than a step, which Lightning refuses: shrink the step.
        accumulate = min(accumulate, limited)
        limit = limited = limited - limited % accumulate
    return Groups(limited, accumulate, limit)


def rehearse(learner: Learner, images: Examples, steps: int, epochs: int) -> None:
    """Makes one step with two images on a copy, to see whether network, task, loss,
    optimizer and scheduler fit.

    Args:
        learner: the network, its task and how it is optimised.
        images: the images to train on.
        steps: of the training, which the scheduler must not end before.
        epochs: the number of epochs of the training.

    Raises:
        ValueError: if they do not fit.
    """
    batch = images.prepared(learner.preprocess).__getitems__(
        list(range(min(2, len(images))))
    )
    how = learner.optimisation
    try:
        # In training, batch normalisation of two images may fail.
        network = copy.deepcopy(learner.model).eval()
        criteria = copy.deepcopy(learner.criteria)
    # Weights that are computed from others cannot be copied: no rehearsal.
    except RuntimeError:
        return
    loss = partial(with_gradients, learner.task, network, criteria, batch)
    try:
        with torch.random.fork_rng(devices=[]):
            optimizer = how.optimizer(network.parameters())
            if how.scheduler is None:
                scheduler = None
            else:
                scheduler = how.scheduled(optimizer, steps, epochs)["scheduler"]
            if any(group.get("capturable") for group in optimizer.param_groups):
                loss()  # no step, which such an optimizer can only make on a GPU
            else:
                optimizer.step(loss)
                if scheduler is not None:
                    _rehearse_scheduler(scheduler)
    except (
        RuntimeError,
        TypeError,
        IndexError,
        AttributeError,
        ZeroDivisionError,
    ) as error:
        raise ValueError(
            "network, task, losses and optimizer do not fit the images or each "
            f"other: {error}"
        ) from error


def _rehearse_scheduler(scheduler: Any) -> None:
    """Makes its first step, in which some divide by their arguments; a `ValueError`
    names it.
    """
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        watched = [1.0]
    else:
        watched = []
    try:
        scheduler.step(*watched)
    # Schedulers of the user may raise anything.
    except Exception as error:
        raise ValueError(
            f"scheduler {type(scheduler).__name__} cannot make a step: {error}"
        ) from error


def _extra(options: TrainerOptions) -> str:
    """Name, in messages, the arguments that go to the Trainer as they are."""
    return "trainer.extra " + ", ".join(
        f"{name} {value}" for name, value in options.extra.items()
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C raises ``KeyboardInterrupt``, as everywhere else: Lightning exits with 1
    and leaves Ctrl-C disabled. After SIGTERM the status is 143, as if nobody had
    listened: Lightning exits with 0, which would be that of a whole training.
    """
    listening = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SIGTERMException as stop:
        raise SystemExit(128 + signal.SIGTERM) from stop
    except SystemExit as stop:
        if not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        # None: a handler that was not set from Python.
        if listening is not None:
            signal.signal(signal.SIGINT, listening)
        raise KeyboardInterrupt from stop


@contextmanager
def expected_warnings(network: nn.Module) -> Iterator[None]:
    """Silences what Lightning warns of in trainings that are as they should be."""
    expected = [
        "does not have many workers",  # in-memory images need none
        "isinstance.treespec, LeafSpec",  # between Lightning and torch
        "number of training batches",  # epochs of a few steps are fine
        "scheduler is using 'interval': 'epoch'",  # one cycle, in whole epochs
        "Checkpoint directory .* exists",
        "The dirpath has changed",  # kept checkpoints are found in the new place
    ]
    # Parts in evaluation mode are frozen on purpose, the whole network hardly is.
    if network.training:
        expected.append("in eval mode at the start of training")
    with warnings.catch_warnings():
        for message in expected:
            warnings.filterwarnings("ignore", f".*{message}")
        yield


def quiet_lightning() -> None:
    """Silences Lightning's notes on hardware and its tips."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
