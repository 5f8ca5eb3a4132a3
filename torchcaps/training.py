"""Training: the Lightning module, what it logs, and a run that can be killed and resumed."""

import csv
import logging
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler
from torchmetrics.classification import MulticlassAccuracy

from torchcaps.data import Batch, ImageSet, Preprocess, View
from torchcaps.losses import ActivationLoss, ReconstructionLoss
from torchcaps.models import ImageClassifier, Prediction
from torchcaps.monitor import RoutingHealth

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]

LOG_EVERY = 50
"""Steps between two looks at the loss: each one waits for the device."""


SHOWN = ("train_accuracy", "train_loss", "val_accuracy", "val_loss")
"""The metrics that are printed after each epoch; the file has them all."""


CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]

Step = Callable[[ImageClassifier, Tensor, Tensor], Prediction]


def _predict(model: ImageClassifier, images: Tensor, target: Tensor) -> Prediction:
    return model(images, target)


@dataclass(frozen=True)
class Speed:
    """What makes a training faster beside the trainer's ``precision``. What may change a result is off by default.

    Attributes:
        channels_last: keep images and the weights of convolutions with the channels innermost in memory. The numbers
            are the same up to rounding, which depends on the kernels that are chosen.
        compile: compile the training step's network with ``torch.compile`` in this mode; ``reduce-overhead`` replays
            CUDA graphs. The same up to rounding. None does not compile.
        resident: data sets of up to so many GiB are copied to the device once, where it is not the CPU, instead of
            batch by batch. Nothing else changes.
    """

    channels_last: bool = False
    compile: CompileMode | None = None
    resident: float = 4.0

    def lay_out(self, model: nn.Module) -> None:
        """Puts the weights of the model's convolutions in the order of ``channels_last``, in place."""
        for module in model.modules():
            if self.channels_last and isinstance(module, nn.Conv2d):
                module.weight.data = self.arrange(module.weight.data)

    def arrange(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W), or weights of a convolution, in the order of ``channels_last``."""
        return images.contiguous(memory_format=torch.channels_last) if self.channels_last else images

    def step(self) -> Step:
        """What runs a model in a training step: compiled if it shall be."""
        if self.compile is None:
            return _predict
        # torch.compile counts by code object: with the same one, the ninth network of a process would not be compiled.
        own = FunctionType(_predict.__code__.replace(), globals())
        return torch.compile(own, mode=self.compile)

    def near(self, images: ImageSet, device: torch.device) -> ImageSet:
        """The images on the device, unless they are too large."""
        small = images.images.nbytes <= self.resident * 2**30
        return images.to(device) if small else images


class TrainingDiverged(FloatingPointError):
    """The loss is not a number any more; the last checkpoint is from before."""


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


class History(Callback):
    """One row of metrics an epoch, in a CSV file and in the checkpoint: a resumed training continues the file.

    Args:
        path: of the CSV file, written anew after each epoch.
        show: prints a line for each epoch, or None.
    """

    def __init__(self, path: Path, show: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.show = show
        self.rows: list[dict[str, float]] = []
        self._started = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Adds the row of this epoch; runs before the checkpoint is written."""
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        metrics = {name: float(value) for name, value in sorted(trainer.callback_metrics.items())}
        seconds = time.perf_counter() - self._started
        self.rows.append({"epoch": trainer.current_epoch, "seconds": seconds, "learning_rate": rate, **metrics})
        if not torch.tensor(metrics["train_loss"]).isfinite():
            raise TrainingDiverged(f"the mean loss of epoch {trainer.current_epoch} is {metrics['train_loss']}")
        if trainer.is_global_zero:
            self._write()
            if self.show is not None:
                shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in metrics if name in SHOWN)
                self.show(f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}: {shown}")

    def _write(self) -> None:
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        whole = self.path.with_suffix(".tmp")
        with whole.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        whole.replace(self.path)  # in one step: whoever reads along, or a kill, never meets half a file

    def state_dict(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from these rows."""
        self.rows = list(state_dict["rows"])


@dataclass
class TrainerOptions:
    """Where and how the training runs; see the documentation of Lightning's Trainer.

    Attributes:
        accelerator: "auto", "cpu", "gpu", ...
        devices: how many devices; on a CPU, how many processes.
        num_nodes: how many machines.
        strategy: "auto", "ddp", ...
        precision: "32-true", "bf16-mixed", "16-mixed", "64-true", ...
        deterministic: use deterministic algorithms only.
        gradient_clip_val: clip the gradients to this norm; None does not clip.
        sync_batchnorm: batch normalisation over all processes.
        extra: any other argument of the Trainer.
    """

    accelerator: str = "auto"
    devices: int | str | list[int] = "auto"
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    deterministic: bool = False
    gradient_clip_val: float | None = None
    sync_batchnorm: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the Trainer. A CPU counts as one device unless told otherwise."""
        named = {name: value for name, value in vars(self).items() if name != "extra"}
        if self.devices == "auto" and self.accelerator == "cpu":
            named["devices"] = 1
        return {**named, **self.extra}


def _same(batch: Any) -> Any:
    """Batches come whole from :meth:`ImageSet.__getitems__`."""
    return batch


def train_loader(images: ImageSet, batch_size: int, seed: int, rank: int = 0, processes: int = 1) -> DataLoader:
    """Shuffled batches of one process: its shard of batches that are the same for any number of processes.

    Batches are full: the few images that are left over in an epoch come up in others.

    Args:
        images: the training images.
        batch_size: over all processes together; made smaller if there are fewer images.
        seed: of the order, together with the epoch.
        rank: of this process.
        processes: how many there are.

    Raises:
        ValueError: if the batch cannot be shared out evenly, or there is not one image for each process.
    """
    if batch_size < 1 or batch_size % processes:
        raise ValueError(f"batch_size must be a multiple of the {processes} processes, got {batch_size}")
    if len(images) < processes:
        raise ValueError(f"{len(images)} training images cannot be shared out to {processes} processes")
    share = min(batch_size, len(images) // processes * processes) // processes
    sampler: DistributedSampler[Batch] = DistributedSampler(images, processes, rank, seed=seed, drop_last=True)
    return DataLoader(images, share, sampler=sampler, drop_last=True, collate_fn=_same)


def evaluation_loader(images: ImageSet, batch_size: int) -> DataLoader:
    """All images in order, in every process: exact figures, and no image counted twice."""
    return DataLoader(images, batch_size, collate_fn=_same)


class _Loaders(L.LightningDataModule):
    """Makes the loaders once the processes are known."""

    def __init__(self, train: ImageSet, validation: ImageSet, batch_size: int, seed: int, speed: Speed) -> None:
        super().__init__()
        self.sets = train, validation
        self.batch_size = batch_size
        self.seed = seed
        self.speed = speed

    def train_dataloader(self) -> DataLoader:
        assert self.trainer is not None
        rank, processes = self.trainer.global_rank, self.trainer.world_size
        return train_loader(self._near(self.sets[0]), self.batch_size, self.seed, rank, processes)

    def val_dataloader(self) -> DataLoader:
        return evaluation_loader(self._near(self.sets[1]), self.batch_size)

    def _near(self, images: ImageSet) -> ImageSet:
        assert self.trainer is not None
        return self.speed.near(images, self.trainer.strategy.root_device)


class StopAt(Callback):
    """Ends the training after the first epoch whose validation accuracy reaches a value.

    For networks that shall be compared at equal accuracy. Stands behind :class:`History` in the list of callbacks.

    Args:
        accuracy: from 0 to 1.
        history: of the metrics; a training that is resumed after such an epoch ends at once.

    Raises:
        ValueError: if the accuracy is not in (0, 1].
    """

    def __init__(self, accuracy: float, history: History) -> None:
        if not 0 < accuracy <= 1:
            raise ValueError(f"stop_at must be an accuracy in (0, 1], got {accuracy}")
        self.accuracy = accuracy
        self.history = history

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Looks whether the epoch before an interruption was the last."""
        self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Ends the training if the last epoch was good enough."""
        if self.history.rows and self.history.rows[-1].get("val_accuracy", 0.0) >= self.accuracy:
            trainer.should_stop = True


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in a folder, by epoch."""
    return max(folder.glob("*.ckpt"), default=None)


def _load_checkpoint(path: Path, task: Classification) -> None:
    """Looks whether a checkpoint can be resumed from before Lightning does, for a clear word if not.

    Raises:
        ValueError: if it is damaged or belongs to another model.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:  # torch.load raises almost anything on a damaged file
        raise ValueError(f"checkpoint {path} is damaged: {error}") from error
    expected = {name: tensor.shape for name, tensor in task.state_dict().items()}
    found = {name: tensor.shape for name, tensor in state.items()}
    if expected != found:
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise ValueError(f"checkpoint {path} is from another model: {', '.join(different[:5])} do not fit")


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
        _load_checkpoint(resume_from, task)
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
    trainer = L.Trainer(
        **(options or TrainerOptions()).arguments(),
        max_epochs=epochs,
        callbacks=[health, history, *stop, keep_last, *bar],
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
        loaders = _Loaders(train, validation, batch_size, seed, task.speed)
        trainer.fit(task, datamodule=loaders, ckpt_path=resume_from, weights_only=True)
    return trainer, history.rows


def quiet_lightning() -> None:
    """Leaves Lightning's notes on hardware and tips out of what the command line prints."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
