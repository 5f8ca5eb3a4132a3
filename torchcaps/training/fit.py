"""A training that can be killed and resumed."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning as L
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

from torchcaps.data import ImageSet
from torchcaps.tasks import Criteria
from torchcaps.training.callbacks import History, RoutingHealth, StopAt
from torchcaps.training.checkpoints import SealedCheckpoints, checkpoint_to_resume, newest_checkpoint, read_checkpoint
from torchcaps.training.fingerprint import Fingerprint, recorded_options
from torchcaps.training.folder import is_first_process
from torchcaps.training.learner import Learner
from torchcaps.training.loaders import Loaders, train_loader
from torchcaps.training.options import Caller, Schedule, TrainerOptions


def fit(
    learner: Learner,
    train: ImageSet,
    validation: ImageSet,
    folder: Path,
    schedule: Schedule,
    options: TrainerOptions | None = None,
    caller: Caller | None = None,
) -> tuple[L.Trainer, list[dict[str, float]]]:
    """Trains, or goes on where the newest checkpoint in the folder left off.

    Writes ``metrics.csv``, ``checkpoints/`` (the end of the last epoch) and ``tensorboard/`` into the folder.

    Args:
        learner: the network, its task and how it is optimised.
        train: the training images.
        validation: the validation images, may be empty.
        folder: of the run.
        schedule: how many epochs, of which batches; its seed is that of the order of the images.
        options: where and how.
        caller: who wants to see a progress bar, or a line of text for each epoch.

    Returns:
        The trainer, and the metrics of each epoch.

    Raises:
        TrainingDiverged: if the loss is not finite.
        ValueError: if a checkpoint is damaged, from another model or other images or options, if the network does not
            take the images, the batch does not suit the processes, the machine does not have what the options ask
            for, or there is no validation to stop at.
    """
    return Fitting(learner, train, validation, folder, schedule, options, caller).run()


class Fitting:
    """A training that was checked as far as can be without writing anything; :func:`fit` has the arguments.

    Raises:
        ValueError: likewise, but for what checkpoints tell.
    """

    def __init__(
        self,
        learner: Learner,
        train: ImageSet,
        validation: ImageSet,
        folder: Path,
        schedule: Schedule,
        options: TrainerOptions | None = None,
        caller: Caller | None = None,
    ) -> None:
        self.learner, self.caller = learner, caller or Caller()
        self.checkpoints = folder / "checkpoints"
        main = learner.task.main
        if schedule.stop_at is not None and not len(validation):
            raise ValueError("stop_at needs validation images, and there are none")
        preprocess = learner.preprocess.config()
        known = recorded_options(self.caller.config, schedule.seed, schedule.batch_size, preprocess)
        self.fingerprint = Fingerprint(known, train, validation)
        self.history = History(folder / "metrics.csv", self.caller.show, main.name)
        stop = [] if schedule.stop_at is None else [StopAt(schedule.stop_at, self.history, main)]
        health = RoutingHealth(validation if len(validation) else train.prepared(learner.preprocess))
        watching = [health, self.history, self.fingerprint, *stop, _keep_last(self.checkpoints)]
        self.trainer = self._trainer(options or TrainerOptions(), schedule, watching, folder, bool(len(validation)))
        self.loaders = Loaders(train, validation, schedule, learner.speed)
        train_loader(train, schedule.batch_size, schedule.seed, 0, self.trainer.world_size)  # if they can be shared out
        rehearse(learner, train)

    def _trainer(
        self, options: TrainerOptions, schedule: Schedule, watching: list[Callback], folder: Path, validate: bool
    ) -> L.Trainer:
        bar: list[Callback] = [RichProgressBar(leave=True)] if self.caller.progress_bar else []
        try:
            return L.Trainer(
                **options.arguments(),
                max_epochs=schedule.epochs,
                callbacks=[*options.callbacks(), *watching, *bar],
                logger=TensorBoardLogger(folder, name="", version="tensorboard"),
                plugins=[SealedCheckpoints()],
                enable_progress_bar=self.caller.progress_bar,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                limit_val_batches=1.0 if validate else 0,
                use_distributed_sampler=False,
            )
        except (MisconfigurationException, ValueError, TypeError, RuntimeError, ImportError) as error:
            asked = ", ".join(f"{name} {getattr(options, name)}" for name in ("accelerator", "devices", "precision"))
            raise ValueError(
                f"this machine cannot train as asked ({asked}): {error}; --trainer.accelerator auto takes what is there"
            ) from error

    def run(self) -> tuple[L.Trainer, list[dict[str, float]]]:
        """Trains from the start, or from the newest checkpoint that is whole; see :func:`fit`."""
        newest = checkpoint_to_resume(self.checkpoints) if is_first_process() else newest_checkpoint(self.checkpoints)
        if newest is not None:
            self.fingerprint.check(read_checkpoint(newest, self.learner), self.caller.allow_changes)
        with _expected_warnings():
            self.trainer.fit(self.learner, datamodule=self.loaders, ckpt_path=newest, weights_only=True)
        return self.trainer, self.history.rows


def rehearse(learner: Learner, images: ImageSet) -> None:
    """Makes one step with two images and changes nothing: whether network, task, loss and optimizer fit each other.

    Raises:
        ValueError: if they do not.
    """
    batch = images.prepared(learner.preprocess).__getitems__(list(range(min(2, len(images)))))
    criteria = Criteria(learner.loss, learner.reconstruction)
    learner.eval()  # running statistics stay as they are
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            learner.task.loss(learner.model, learner.model, batch, criteria)
        how = learner.optimisation
        optimizer = how.optimizer(learner.model.parameters())
        if how.scheduler is not None and not how.spans_all_steps:
            how.scheduler(optimizer)
    except (RuntimeError, TypeError, IndexError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"network, task, losses and optimizer do not fit the images or each other: {error}") from error
    finally:
        learner.train()


def _keep_last(folder: Path) -> ModelCheckpoint:
    return ModelCheckpoint(
        folder,
        "epoch{epoch:05d}",
        auto_insert_metric_name=False,
        save_top_k=1,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )


@contextmanager
def _expected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        # In-memory images need no workers; epochs of a few steps are fine.
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")  # between Lightning and torch
        warnings.filterwarnings("ignore", ".*number of training batches.*")
        warnings.filterwarnings("ignore", ".*Checkpoint directory .* exists.*")
        yield


def quiet_lightning() -> None:
    """Leaves Lightning's notes on hardware and tips out of what the command line prints."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
