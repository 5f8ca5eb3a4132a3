"""Where and how a training runs, and what it optimises with."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


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
        average: keep an exponentially moving average of the weights (and of running statistics), with this share of the
            old one in each step, such as 0.999; it is what is validated, tested and saved. None keeps none.
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
    average: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"average must be a share between 0 and 1, got {self.average}")

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for the Trainer. A CPU counts as one device unless told otherwise."""
        named = {name: value for name, value in vars(self).items() if name not in ("average", "extra")}
        if self.devices == "auto" and self.accelerator == "cpu":
            named["devices"] = 1
        return {**named, **self.extra}
