"""The Lightning module, and a training that can be killed and resumed."""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torchmetrics.classification import MulticlassAccuracy

from torchcaps.data import Batch, ImageSet, Preprocess, View
from torchcaps.losses import ActivationLoss, ReconstructionLoss
from torchcaps.models import ImageClassifier, Prediction
from torchcaps.training.callbacks import History, RoutingHealth, StopAt, TrainingDiverged
from torchcaps.training.checkpoints import check_checkpoint, latest_checkpoint
from torchcaps.training.loaders import Loaders
from torchcaps.training.options import OptimizerFactory, SchedulerFactory, TrainerOptions
from torchcaps.training.speed import Speed

LOG_EVERY = 50
"""Steps between two looks at the loss: each one waits for the device."""


class Classification(L.LightningModule):
    """Trains an image classifier, capsules or not, and logs loss and accuracy of each epoch.

    Everything random depends on ``seed``, the epoch and the place of an image in its set alone, so that a resumed
    training and one on several processes go the way of an unbroken one on one process.

    Args:
        model: the network.
        loss: of the class activations (B, E) and the labels (B,).
        reconstruction: of the reconstructions and the images before they were standardised; used where the network
            has a decoder.
        optimizer: from the parameters.
        scheduler: from the optimizer, or None.
        scheduler_interval: whether the scheduler steps each epoch or each step.
        preprocess: how the training images are prepared; validation images come prepared, by their ImageSet.
        seed: of that, and of the random numbers that the network itself draws, such as dropout.
        speed: how the steps are made faster.
    """

    def __init__(
        self,
        model: ImageClassifier,
        loss: ActivationLoss,
        reconstruction: ReconstructionLoss,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None = None,
        scheduler_interval: Literal["epoch", "step"] = "epoch",
        preprocess: Preprocess | None = None,
        seed: int = 0,
        speed: Speed | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.speed = speed or Speed()
        self.speed.lay_out(model)
        self.run = self.speed.step()
        self.loss = loss
        self.reconstruction = reconstruction
        self.optimizer_factory = optimizer
        self.scheduler_factory = scheduler
        self.scheduler_interval = scheduler_interval
        self.preprocess = preprocess or Preprocess()
        self.seed = seed
        # Validating the arguments would wait for the device in every step.
        self.train_accuracy = MulticlassAccuracy(model.classes, average="micro", validate_args=False)
        self.val_accuracy = MulticlassAccuracy(model.classes, average="micro", validate_args=False)

    def configure_optimizers(self) -> Any:
        """The optimizer and, if there is one, the scheduler."""
        optimizer = self.optimizer_factory(self.model.parameters())
        if self.scheduler_factory is None:
            return optimizer
        scheduler = {"scheduler": self.scheduler_factory(optimizer), "interval": self.scheduler_interval}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_epoch_start(self) -> None:
        """Ties the random numbers to the epoch."""
        torch.manual_seed(hash((self.seed, self.current_epoch, self.global_rank)) % 2**63)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step: loss of the class activations and, with a decoder, of the reconstruction of the true class.

        Raises:
            TrainingDiverged: if the loss is not finite.
        """
        self.loss.advance(self.current_epoch, self.trainer.max_epochs or 1, self.global_step)
        view = self.preprocess.train(batch.images, batch.indices, self.current_epoch, self.seed)
        loss, activation = self._step(partial(self.run, self.model), view, batch.labels, "train")
        self.train_accuracy(activation, batch.labels)
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True, prog_bar=True)
        if batch_idx % LOG_EVERY == 0 and not loss.isfinite():
            raise TrainingDiverged(
                f"the loss is {loss.item()} in epoch {self.current_epoch}, step {batch_idx}: "
                "lower the learning rate, or clip the gradients (--trainer.gradient_clip_val 1)"
            )
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and accuracy on the validation images."""
        _, activation = self._step(self.model, View(batch.images, batch.pictures), batch.labels, "val")
        self.val_accuracy(activation, batch.labels)
        self.log("val_accuracy", self.val_accuracy, on_epoch=True, prog_bar=True)

    def _step(
        self, network: Callable[[Tensor, Tensor], Prediction], view: View, labels: Tensor, stage: str
    ) -> tuple[Tensor, Tensor]:
        prediction = network(self.speed.arrange(view.images), labels)
        loss = self.loss(prediction.activation, labels)
        parts = {}
        if prediction.reconstruction is not None:
            parts[f"{stage}_class_loss"] = loss
            parts[f"{stage}_reconstruction_loss"] = self.reconstruction(prediction.reconstruction, view.pictures)
            loss = loss + parts[f"{stage}_reconstruction_loss"]
        parts[f"{stage}_loss"] = loss
        self.log_dict(parts, on_step=False, on_epoch=True, batch_size=len(labels), sync_dist=True)
        return loss, prediction.activation


def fit(
    task: Classification,
    train: ImageSet,
    validation: ImageSet,
    folder: Path,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    options: TrainerOptions | None = None,
    stop_at: float | None = None,
    progress_bar: bool = False,
    show: Callable[[str], None] | None = None,
) -> tuple[L.Trainer, list[dict[str, float]]]:
    """Trains, or goes on where the newest checkpoint in the folder left off.

    Writes ``metrics.csv``, ``checkpoints/`` (the end of the last epoch) and ``tensorboard/`` into the folder.

    Args:
        task: what to train.
        train: the training images.
        validation: the validation images, may be empty.
        folder: of the run.
        epochs: how many.
        batch_size: over all processes together.
        seed: of the order of the images.
        options: where and how.
        stop_at: end after the first epoch with this validation accuracy, from 0 to 1; None goes on to the last.
        progress_bar: whether to show one.
        show: takes a line of text for each epoch; None for silence.

    Returns:
        The trainer, and the metrics of each epoch.

    Raises:
        TrainingDiverged: if the loss is not finite.
        ValueError: if a checkpoint is damaged or from another model, the batch does not suit the processes, or there
            is no validation to stop at.
    """
    if stop_at is not None and not len(validation):
        raise ValueError("stop_at needs validation images, and there are none")
    checkpoints = folder / "checkpoints"
    resume_from = latest_checkpoint(checkpoints)
    if resume_from is not None:
        check_checkpoint(resume_from, task)
    history = History(folder / "metrics.csv", show)
    stop = [] if stop_at is None else [StopAt(stop_at, history)]
    health = RoutingHealth(validation if len(validation) else train.prepared(task.preprocess))
    keep_last = ModelCheckpoint(
        checkpoints,
        "epoch{epoch:05d}",
        auto_insert_metric_name=False,
        save_top_k=1,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    bar = [RichProgressBar(leave=True)] if progress_bar else []
    options = options or TrainerOptions()
    average = [] if options.average is None else [EMAWeightAveraging(decay=options.average)]
    trainer = L.Trainer(
        **options.arguments(),
        max_epochs=epochs,
        callbacks=[*average, health, history, *stop, keep_last, *bar],
        logger=TensorBoardLogger(folder, name="", version="tensorboard"),
        enable_progress_bar=progress_bar,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=1.0 if len(validation) else 0,
        use_distributed_sampler=False,
    )
    with warnings.catch_warnings():
        # In-memory images need no workers; epochs of a few steps are fine.
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.*")  # between Lightning and torch
        warnings.filterwarnings("ignore", ".*number of training batches.*")
        warnings.filterwarnings("ignore", ".*Checkpoint directory .* exists.*")
        loaders = Loaders(train, validation, batch_size, seed, task.speed)
        trainer.fit(task, datamodule=loaders, ckpt_path=resume_from, weights_only=True)
    return trainer, history.rows


def quiet_lightning() -> None:
    """Leaves Lightning's notes on hardware and tips out of what the command line prints."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
