"""Callbacks of a training: its history, the health of its routing, early stopping, and
the best epoch.
"""

import csv
import math
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from torchcaps.whole import written_whole
from torchcaps_lab.data import Examples
from torchcaps_lab.evaluate.health import routing_health
from torchcaps_lab.look import counted
from torchcaps_lab.tasks import Measure


class History(Callback):
    """One row of metrics for each epoch, in a CSV file and in the checkpoint: a resumed
    training continues the file.

    The learning rate in it, which the loggers get too, is that of the last step of the
    epoch.

    Args:
        path: the path of the CSV file, written anew after each epoch.
        show: takes a line for each epoch, or None.
        measure: shown in that line beside the loss; the file has all metrics.

    Example:
        >>> from pathlib import Path
        >>> from torchcaps_lab.training.callbacks import History
        >>> History(Path("metrics.csv"), show=print, measure="accuracy").rows
        []
    """

    def __init__(
        self, path: Path, show: Callable[[str], None] | None, measure: str
    ) -> None:
        self.path = path
        self.show = show
        self.shown = {f"train_{measure}", "train_loss", f"val_{measure}", "val_loss"}
        self.rows: list[dict[str, float]] = []
        # Seconds of a stage before the first epoch count to that.
        self.before = self._started = self._rate = 0.0

    def on_train_epoch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Starts the clock."""
        self._started = time.perf_counter()

    @property
    def has_begun(self) -> bool:
        """Whether an epoch has begun in this process."""
        return self._started > 0

    def on_before_optimizer_step(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Keeps the learning rate of the step: at the end of the epoch the scheduler
        has set the next one already.
        """
        self._rate = optimizer.param_groups[0]["lr"]

    def on_train_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Adds the row of this epoch; runs before the checkpoint is written."""
        epoch = trainer.current_epoch + 1  # epochs are shown from one
        for logger in trainer.loggers:
            logger.log_metrics(
                {"learning_rate": self._rate}, step=trainer.global_step - 1
            )  # that of the others
        every = trainer.check_val_every_n_epoch
        stale = (
            every is not None and epoch % every
        )  # Lightning keeps the values of the last validation
        metrics = {
            name: float(value)
            for name, value in sorted(trainer.callback_metrics.items())
            if not (stale and name.startswith("val_"))
        }
        took = time.perf_counter() - self._started
        self.rows.append(
            {
                "epoch": epoch,
                "seconds": took + self.before,
                "learning_rate": self._rate,
                **metrics,
            }
        )
        self.before = 0.0
        if trainer.is_global_zero:
            self._write()
            if self.show is not None:
                shown = ", ".join(
                    f"{name} {metrics[name]:.4f}"
                    for name in metrics
                    if name in self.shown
                )
                left = took * ((trainer.max_epochs or epoch) - epoch)
                self.show(
                    f"epoch {epoch}/{trainer.max_epochs}: {shown}; {duration(left)} "
                    "left"
                )

    def _write(self) -> None:
        columns = list(dict.fromkeys(chain.from_iterable(self.rows)))
        with written_whole(self.path) as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)

    def state_dict(self) -> dict[str, Any]:
        """The rows so far."""
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from these rows."""
        self.rows = list(map(dict, state_dict["rows"]))


def duration(seconds: float) -> str:
    """A time for people.

    Example:
        >>> from torchcaps_lab.training.callbacks import duration
        >>> duration(8.4), duration(95), duration(7500)
        ('8 s', '1 min 35 s', '2 h 5 min')
    """
    minutes, seconds_over = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds_over} s" if minutes else f"{seconds_over} s"


class StopEarly(Callback):
    """Ends the training once the task's measure of the validation images has reached a
    value, or has not improved for some epochs.

    Must come after :class:`History` in the list of callbacks.

    Args:
        stop_at: the value, in the measure's range, for networks that are compared at
            equal accuracy; None for none.
        patience: the number of epochs without improvement; None for any.
        history: the history of the metrics, with those before a resume: a training that
            had come to its end then ends at once.
        measure: the measure of the task.

    Raises:
        ValueError: if the value is out of range.

    Example:
        >>> from pathlib import Path
        >>> from torchcaps_lab.tasks import Classification
        >>> from torchcaps_lab.training.callbacks import History, StopEarly
        >>> history = History(Path("metrics.csv"), print, "accuracy")
        >>> StopEarly(0.99, 10, history, Classification().main).why()
        ''
    """

    def __init__(
        self,
        stop_at: float | None,
        patience: int | None,
        history: History,
        measure: Measure,
    ) -> None:
        if stop_at is not None:
            measure.check_aim(stop_at)
        self.stop_at = stop_at
        self.patience = patience
        self.history = history
        self.measure = measure

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Checks whether the epoch before an interruption was the last."""
        self.on_train_epoch_end(trainer, pl_module)

    def on_train_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Ends the training if an epoch was its last, though ``min_epochs`` may want
        more of them.
        """
        if self.why():
            trainer.should_stop = True

    def why(self) -> str:
        """Return why the training ends here; empty if it does not."""
        name = f"val_{self.measure.name}"
        sign = 1 if self.measure.higher_is_better else -1
        best, of_best = -math.inf, 0
        # An epoch may have no validation.
        for row in (row for row in self.history.rows if name in row):
            value, epoch = row[name], int(row["epoch"])
            if self.stop_at is not None and self.measure.reached(value, self.stop_at):
                return f"{name} has reached stop_at {self.stop_at:g}"
            if sign * value > best:
                best, of_best = sign * value, epoch
            waited = epoch - of_best
            if self.patience is not None and waited >= self.patience:
                return f"{name} has not improved for {counted(waited, 'epochs')}"
        return ""


class Limits(Callback):
    """Hides the limits of a training from Lightning until it has begun. Must come first
    in the list of callbacks.

    Lightning looks at them while it reads a checkpoint, too: it takes ``max_steps`` for
    a sign that the epoch of the checkpoint has not ended, and ends it again; and a
    training that had all its epochs before it was interrupted would not come to
    ``on_train_end``, where averaged weights take the place of the last ones.
    """

    def __init__(self) -> None:
        self._epochs: int | None = None
        self._steps = -1

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Takes the limits away; the state of the training is read after this."""
        loop = trainer.fit_loop
        self._epochs = loop.max_epochs
        self._steps = loop.epoch_loop.max_steps
        loop.max_epochs = -1
        loop.epoch_loop.max_steps = -1

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Gives them back."""
        trainer.fit_loop.max_epochs = self._epochs
        trainer.fit_loop.epoch_loop.max_steps = self._steps


ONE_AN_EPOCH: dict[str, Any] = {
    "filename": "epoch{epoch:05d}",
    "auto_insert_metric_name": False,
    "save_top_k": 1,
    "save_on_train_epoch_end": True,
    "enable_version_counter": False,
}
"""Arguments of a checkpoint that is written at the end of each epoch and replaces the
one before.
"""


class KeepBest(ModelCheckpoint):
    """Keeps the epoch that was best in the task's measure on the validation images.

    It keeps whole checkpoints, because averaged weights are saved in whole checkpoints
    only. The file of an earlier best epoch stays until the last checkpoint, which a
    training is resumed from, names the new one.

    Args:
        folder: for the file.
        measure: the measure of the task.
    """

    def __init__(self, folder: Path, measure: Measure) -> None:
        super().__init__(
            folder,
            monitor=f"val_{measure.name}",
            mode="max" if measure.higher_is_better else "min",
            **ONE_AN_EPOCH,
        )
        self._outdated: list[str] = []

    def on_train_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Keeps the epoch if it is the best, once there was a validation."""
        if self.monitor in trainer.callback_metrics:
            super().on_train_epoch_end(trainer, pl_module)

    def _remove_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
        """Leaves it there for now."""
        self._outdated.append(filepath)

    def on_train_epoch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Deletes the file of an earlier best epoch: the checkpoint of the epoch before
        is written.
        """
        while self._outdated:
            super()._remove_checkpoint(trainer, self._outdated.pop())

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Does the same after the last epoch."""
        self.on_train_epoch_start(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from there; the folder may have moved."""
        scores = {
            name: self._here(state_dict[name])
            for name in ("best_model_path", "kth_best_model_path")
        }
        models = {
            self._here(path): score
            for path, score in state_dict["best_k_models"].items()
        }
        super().load_state_dict(
            {**state_dict, **scores, "best_k_models": models, "dirpath": self.dirpath}
        )

    def _here(self, path: str) -> str:
        return str(Path(str(self.dirpath)) / Path(path).name) if path else path

    @property
    def epoch(self) -> int:
        """The best one, from 0."""
        return int(Path(self.best_model_path).stem.removeprefix("epoch"))


class RoutingHealth(Callback):
    """Logs :func:`routing_health` of the first 64 images at the end of each epoch.

    Must come before :class:`~torchcaps_lab.training.History` in the list of callbacks:
    that writes what was logged. All processes observe the same images; the mean over
    the processes is logged.

    Args:
        images: the validation images, or the training images if there are none.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> from torchcaps_lab.training.callbacks import RoutingHealth
        >>> health = RoutingHealth(Digits().validation)  # a callback of the trainer
    """

    def __init__(self, images: Examples) -> None:
        self.images = images.__getitems__(list(range(min(64, len(images))))).inputs

    def on_train_epoch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule
    ) -> None:
        """Observes and logs."""
        model = getattr(pl_module, "model", pl_module)
        precision = trainer.precision_plugin
        images = precision.convert_input(self.images.to(pl_module.device))
        with precision.forward_context():
            health = routing_health(model, images)
        for name, value in health.items():
            pl_module.log(
                name, value, on_step=False, on_epoch=True, batch_size=1, sync_dist=True
            )
