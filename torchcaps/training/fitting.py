"""A training that can be killed and resumed."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger

from torchcaps.data import ImageSet
from torchcaps.training.callbacks import History, RoutingHealth, StopAt
from torchcaps.training.checkpoints import check_checkpoint, latest_checkpoint
from torchcaps.training.learner import Learner
from torchcaps.training.loaders import Loaders
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
        ValueError: if a checkpoint is damaged or from another model, the batch does not suit the processes, or there
            is no validation to stop at.
    """
    caller = caller or Caller()
    if schedule.stop_at is not None and not len(validation):
        raise ValueError("stop_at needs validation images, and there are none")
    checkpoints = folder / "checkpoints"
    resume_from = latest_checkpoint(checkpoints)
    if resume_from is not None:
        check_checkpoint(resume_from, learner)
    main = learner.task.main
    history = History(folder / "metrics.csv", caller.show, main.name)
    stop = [] if schedule.stop_at is None else [StopAt(schedule.stop_at, history, main)]
    health = RoutingHealth(validation if len(validation) else train.prepared(learner.preprocess))
    bar: list[Callback] = [RichProgressBar(leave=True)] if caller.progress_bar else []
    options = options or TrainerOptions()
    trainer = L.Trainer(
        **options.arguments(),
        max_epochs=schedule.epochs,
        callbacks=[*options.callbacks(), health, history, *stop, _keep_last(checkpoints), *bar],
        logger=TensorBoardLogger(folder, name="", version="tensorboard"),
        enable_progress_bar=caller.progress_bar,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if len(validation) else 0,
        use_distributed_sampler=False,
    )
    loaders = Loaders(train, validation, schedule, learner.speed)
    with _expected_warnings():
        trainer.fit(learner, datamodule=loaders, ckpt_path=resume_from, weights_only=True)
    return trainer, history.rows


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
        warnings.filterwarnings("ignore", ".*scheduler is using 'interval': 'epoch'.*")  # one cycle, in whole epochs
        warnings.filterwarnings("ignore", ".*Checkpoint directory .* exists.*")
        yield


def quiet_lightning() -> None:
    """Leaves Lightning's notes on hardware and tips out of what the command line prints."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
