"""The Lightning module."""

import math
import sys
import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import lightning as L
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from torchcaps.losses import ReconstructionLoss
from torchcaps.models import ClassifierNetwork
from torchcaps.numerics import Progress
from torchcaps_lab.data import Batch, Preprocess, mixed_seed
from torchcaps_lab.tasks import Classification, Criteria, Forward, Task
from torchcaps_lab.tasks.base import Losses
from torchcaps_lab.training.checkpoints import check_optimizer
from torchcaps_lab.training.diverged import (
    TrainingDiverged,
    first_not_finite,
    not_finite,
)
from torchcaps_lab.training.options import Optimisation
from torchcaps_lab.training.ramp import Ramps
from torchcaps_lab.training.speed import Speed, predict

LOOK_EVERY = 50
"""Steps between two checks of the loss, if each check waits for the device or for other
processes.
"""

NEVER = sys.maxsize
"""Epochs after which Lightning makes the step of a scheduler that watches the loss: it
would come after the checkpoint of the epoch, and be lost with an interruption. The
learner makes it before.
"""

REMEDY = (
    "The last checkpoint is from before. Lower the learning rate, or clip the "
    "gradients (--trainer.gradient_clip_val 1)"
)


def with_gradients(
    task: Task, network: ClassifierNetwork, criteria: Criteria, batch: Batch
) -> Any:
    """The loss of a batch, for a step without a trainer; the network has its gradients,
    and no others.

    Its type is what it is: torch's types want a number of a closure, its optimizers
    take a tensor.
    """
    loss = torch.stack(
        list(task.loss(network, network, batch, criteria)[1].values())
    ).sum()
    network.zero_grad()
    loss.backward()
    return loss


class Mean(Metric):
    """The mean of a number over all images of an epoch in all processes."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, values: Tensor, count: int) -> None:
        """Adds the numbers (B,) of some images, or their mean, a scalar, over ``count``
        images.
        """
        # On its own device, in its own dtype: measures of counts come from the CPU.
        added = values.detach().sum().to(self.total)
        self.total = torch.add(self.total, added, alpha=1 if values.ndim else count)
        self.count += len(values) if values.ndim else count

    def compute(self) -> Tensor:
        """The mean so far."""
        return self.total / self.count


class Learner(L.LightningModule):
    """Trains a network, capsules or not, for a task, and logs the loss and the measures
    of each epoch.

    How an image is augmented depends only on ``seed``, the epoch and the index of the
    image, so that a resumed training and one on several processes see the same images
    as an uninterrupted one on one process. Random numbers that the network draws, as
    for dropout, depend only on ``seed``, the epoch, the batch within it and the
    process.

    Args:
        model: the network.
        optimisation: the losses, the optimizer and the scheduler.
        task: what the network is for; default: classification.
        preprocess: how the training images are prepared; validation images are prepared
            by their Examples.
        seed: the seed of these random numbers.
        speed: how the steps are made faster.

    Example:
        >>> from torchcaps_lab.training.learner import Learner
        >>> from torchcaps_lab.training.options import Optimisation
        >>> learner = Learner(
        ...     tc.create_model("capsnet_digits"),
        ...     Optimisation(optimizer=torch.optim.Adam),
        ... )
        >>> type(learner.configure_optimizers()).__name__
        'Adam'
    """

    def __init__(
        self,
        model: ClassifierNetwork,
        optimisation: Optimisation,
        task: Task | None = None,
        preprocess: Preprocess | None = None,
        seed: int = 0,
        speed: Speed | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.speed = speed or Speed()
        self.speed.lay_out(self.model)
        self.ramps = Ramps(self.model, optimisation.ramp)
        if optimisation.ramp and self.speed.compiles:
            raise ValueError(
                "ramp cannot be combined with speed.compile: each new value would be "
                "compiled anew"
            )
        self.run = self.speed.step()
        self.task = task or Classification()
        self.optimisation = optimisation
        self.loss = optimisation.loss
        self.reconstruction = ReconstructionLoss(optimisation.reconstruction)
        self.preprocess = preprocess or Preprocess()
        self.seed = seed
        self._seed_of_epoch = seed
        self._first_bad = torch.tensor(-1)
        self._validated = False
        self._settings: list[dict[str, Any]] = []
        # Whether a checkpoint's settings of optimizer and scheduler give way.
        self.replaces_settings = False
        self.means = nn.ModuleDict()

    @property
    def criteria(self) -> Criteria:
        """The losses that were chosen."""
        return Criteria(self.loss, self.reconstruction)

    @property
    def compiled(self) -> bool:
        """Return whether the network of a training step is compiled."""
        return self.run is not predict

    def configure_optimizers(self) -> Any:
        """The optimizer and, if there is one, the scheduler."""
        optimizer = self._optimizer()
        # As they are before a scheduler changes them.
        self._settings = [
            {name: value for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        if self.optimisation.scheduler is None:
            return optimizer
        trainer = self.trainer
        scheduler = self._scheduled(optimizer)
        if isinstance(
            scheduler["scheduler"], torch.optim.lr_scheduler.ReduceLROnPlateau
        ):
            stage = "val" if trainer.limit_val_batches else "train"
            scheduler |= {
                "interval": "epoch",
                "frequency": NEVER,
                "monitor": f"{stage}_loss",
            }
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _scheduled(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The scheduler of the optimizer at its first step."""
        trainer = self.trainer
        return self.optimisation.scheduled(
            optimizer, trainer.estimated_stepping_batches, trainer.max_epochs or 1
        )

    def _replace_settings(self) -> None:
        """Gives an optimizer from a checkpoint the settings of these options, and a
        scheduler that has made as many steps; a `ReduceLROnPlateau` begins anew.
        """
        optimizer = self.trainer.optimizers[0]
        for group, settings in zip(optimizer.param_groups, self._settings, strict=True):
            weights = group["params"]
            group.clear()
            group.update(settings, params=weights)
        for config in self.trainer.lr_scheduler_configs:
            scheduler = self._scheduled(optimizer)["scheduler"]
            config.scheduler = scheduler
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                continue
            done = self.current_epoch
            if config.interval == "step":
                done = self.global_step
            with warnings.catch_warnings():
                # The optimizer made these steps before it was saved.
                warnings.filterwarnings("ignore", ".*lr_scheduler.step")
                for _ in range(done):
                    scheduler.step()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Drops the length of a one-cycle schedule from a checkpoint: the training may
        have become longer.
        """
        for state in checkpoint.get("lr_schedulers", []):
            # Those of OneCycleLR, which computes them from its options.
            if "_schedule_phases" in state:
                del state["total_steps"], state["_schedule_phases"]

    def _optimizer(self) -> torch.optim.Optimizer:
        """The optimizer; with ``shard_optimizer``, its state is divided among the
        processes.
        """

        def make(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            optimizer = self.optimisation.optimizer(weights)
            self.speed.fuse(optimizer)
            return optimizer

        if self.optimisation.shard_optimizer and self.trainer.world_size > 1:
            from torch.distributed.optim import ZeroRedundancyOptimizer

            return ZeroRedundancyOptimizer(
                self.model.parameters(), optimizer_class=cast(Any, make)
            )
        return make(self.model.parameters())

    def on_train_start(self) -> None:
        """Checks the optimizer's state from a checkpoint, sets its memory layout, and
        the settings that changed since.
        """
        for optimizer in self.trainer.optimizers:
            # Or its shard here.
            here = getattr(optimizer, "optim", optimizer)
            check_optimizer(here)
            self.speed.settle(here)
        if self.replaces_settings:
            self._replace_settings()

    def on_train_epoch_start(self) -> None:
        """Sets the seed of the epoch and the settings that change, and starts to watch
        its losses.
        """
        progress = Progress(
            self.current_epoch, self.trainer.max_epochs or 1, self.global_step
        )
        self.ramps.set(progress)
        self.task.advance(progress)
        self._seed_of_epoch = mixed_seed(
            self.seed, self.current_epoch, self.global_rank
        )
        self._first_bad = torch.tensor(-1, device=self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step: the loss of the task.

        Raises:
            TrainingDiverged: if the loss is not finite.
        """
        self._draw_anew(batch_idx)
        self.loss.advance(
            self.current_epoch, self.trainer.max_epochs or 1, self.global_step
        )
        seen = self.seen(batch, self.current_epoch)
        loss = self._step(partial(self.run, self.model), seen, "train", batch_idx)
        self._first_bad = torch.where(
            (self._first_bad < 0) & ~loss.detach().isfinite(),
            batch_idx,
            self._first_bad.to(loss.device),
        )
        if batch_idx % self._look_every == 0:
            self._check_loss(seen)
        return loss

    def step_without_effect(self, batch: Batch) -> None:
        """Makes the step of a batch up to the gradients, as a rehearsal: afterwards
        gradients, running statistics and random numbers are as before.
        """
        buffers = [(buffer, buffer.clone()) for buffer in self.buffers()]
        gradients = [(weight, weight.grad) for weight in self.model.parameters()]
        devices = [] if self.device.type == "cpu" else [self.device]
        with torch.random.fork_rng(devices, device_type=self.device.type):
            seen = self.seen(batch, self.current_epoch)
            _, parts = self._losses(partial(self.run, self.model), seen)
            torch.stack(list(parts.values())).sum().backward()
        for buffer, before in buffers:
            buffer.copy_(before)
        for weight, gradient in gradients:
            weight.grad = gradient

    def seen(self, batch: Batch, epoch: int) -> Batch:
        """A batch with its images as the network sees them in an epoch of training."""
        return batch.prepared(
            lambda images: self.preprocess.train(
                images, batch.indices, epoch, self.seed
            )
        )

    def _draw_anew(self, batch_idx: int) -> None:
        """Seeds the random numbers that the network draws for this batch.

        Not with `torch.manual_seed`, which takes 0.1 ms and more for devices that are
        not in use.
        """
        seed = self._seed_of_epoch + batch_idx
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)

    @property
    def _look_every(self) -> int:
        """Steps between two checks of the loss: each one waits for the device, and for
        all processes.
        """
        if self.device.type == "cpu" and self.trainer.world_size == 1:
            return 1
        return LOOK_EVERY

    def _check_loss(self, batch: Batch | None) -> None:
        """Raises a :class:`TrainingDiverged`, in all processes, if the loss was not
        finite in a step of this epoch.
        """
        step = int(self._first_bad)
        if not self.trainer.strategy.reduce_boolean_decision(step >= 0, all=False):
            return
        where = ""
        if batch is not None:
            fault = first_not_finite(self.model, self.task, batch, self.criteria)
            where = f": {fault}"
        when = f"step {step + 1}" if step >= 0 else "another process"
        raise TrainingDiverged(
            f"the loss is not finite since epoch {self.current_epoch + 1}, "
            f"{when}{where}. {REMEDY}"
        )

    def on_train_epoch_end(self) -> None:
        """Checks losses and weights before they are saved, and lets schedulers that
        watch the loss make their step.

        All that an epoch changes has to be changed now: the checkpoints are written
        next.

        Raises:
            TrainingDiverged: if they are not finite.
        """
        self._check_loss(None)
        epoch = self.current_epoch + 1
        if bad := not_finite(self.model.state_dict()):
            raise TrainingDiverged(
                f"weights are not finite after epoch {epoch}: {', '.join(bad[:3])}. "
                f"{REMEDY}"
            )
        # Finite weights may be too large already: the next step would fail, and every
        # one after resuming here.
        loss = float(self.trainer.callback_metrics.get("val_loss", 0.0))
        if not math.isfinite(loss):
            raise TrainingDiverged(
                f"the validation loss is {loss} after epoch {epoch}. {REMEDY}"
            )
        self._step_watching()

    def _step_watching(self) -> None:
        """Lets the scheduler that watches the loss make its step, unless that loss is
        of an epoch before.
        """
        for config in self.trainer.lr_scheduler_configs:
            watched = config.monitor or ""
            if config.reduce_on_plateau and (
                self._validated or watched.startswith("train_")
            ):
                cast(Any, config.scheduler).step(self.trainer.callback_metrics[watched])
        self._validated = False

    def on_validation_epoch_end(self) -> None:
        """Notes that there was a validation in this epoch."""
        self._validated = True

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Loss and measures on the validation images."""
        self._step(self.model, batch, "val", batch_idx)

    def _losses(self, forward: Forward, batch: Batch) -> Losses:
        """The prediction for a batch, and the parts of its loss."""
        batch = batch._replace(inputs=self.speed.arrange(batch.inputs))
        return self.task.loss(self.model, forward, batch, self.criteria)

    def _step(
        self,
        forward: Forward,
        batch: Batch,
        stage: str,
        batch_idx: int,
    ) -> Tensor:
        prediction, parts = self._losses(forward, batch)
        first, *following = parts.values()
        loss = sum(following, first)
        figures = {**(parts if following else {}), "loss": loss}
        for name, values in {**figures, **self.task.measure(prediction, batch)}.items():
            mean = self._mean(f"{stage}_{name}")
            mean.update(values, len(batch.indices))
            # Enough for Lightning to read it at the end of the epoch; each log takes
            # 0.5 ms.
            if batch_idx == 0:
                place = f"means.{stage}_{name}"
                bar = name not in figures
                self.log(
                    f"{stage}_{name}",
                    mean,
                    on_step=False,
                    on_epoch=True,
                    prog_bar=bar,
                    metric_attribute=place,
                )
        return loss

    def _mean(self, name: str) -> Mean:
        """The mean of an epoch, by name."""
        if name not in self.means:
            self.means[name] = Mean().to(self.device)
        return cast(Mean, self.means[name])
