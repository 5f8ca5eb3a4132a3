"""Options of ``torchcaps train`` for recipes, as in its YAML files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal


def option(kind: str | type, **arguments: Any) -> dict[str, Any]:
    """An object as an option: its class, or the name of that, and its arguments."""
    path = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return {"class_path": path, "init_args": arguments}


def adam(rate: float, **arguments: Any) -> dict[str, Any]:
    """The option ``optimizer``: Adam with this learning rate."""
    return option("torch.optim.Adam", lr=rate, **arguments)


def falling(factor: float) -> dict[str, Any]:
    """The option ``scheduler``: the learning rate falls by this factor in every epoch, or in every step."""
    return option("torch.optim.lr_scheduler.ExponentialLR", gamma=factor)


def pace(
    epochs: int, rate: float, batch_size: int = 128, decay: float | None = None, each: str = "epoch"
) -> dict[str, Any]:
    """Options of :class:`TrainingOptions`: Adam with a rate that falls by the factor ``decay`` each epoch or step."""
    scheduler = None if decay is None else falling(decay)
    options = {"epochs": epochs, "optimizer": adam(rate), "batch_size": batch_size, "scheduler": scheduler}
    return {**options, "scheduler_interval": each}


def one_cycle(rate: float) -> dict[str, Any]:
    """The option ``scheduler``: the learning rate rises to this and falls to zero over the whole training."""
    return option("torch.optim.lr_scheduler.OneCycleLR", max_lr=rate)


def cycle(epochs: int, rate: float, batch_size: int, average: float) -> dict[str, Any]:
    """Options of :class:`TrainingOptions`: AdamW with weight decay 0.1 in one cycle, and an average of the weights."""
    optimizer = option("torch.optim.AdamW", lr=rate, weight_decay=0.1)
    options = {"epochs": epochs, "optimizer": optimizer, "batch_size": batch_size, "scheduler": one_cycle(rate)}
    return {**options, "trainer": {"average": average}}


FAST: dict[str, Any] = {"trainer": {"precision": "bf16-mixed"}, "speed": {"channels_last": True}}
"""Options that make the quick presets fast on a CPU."""

SPREAD, MARGIN, ENTROPY = option("SpreadLoss"), option("MarginLoss"), option("NegativeLogLikelihood")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that presets of most recipes set, by their names in ``torchcaps train``; a row may change some.

    Attributes:
        epochs: of training.
        optimizer: with its learning rate.
        batch_size: of training.
        scheduler: of the learning rate; None keeps it.
        scheduler_interval: whether the scheduler steps each epoch or each step.
        preprocess: of the images.
        trainer: options of the trainer.
        speed: options that make the steps faster.
        data: the data set; empty if the recipe sets it otherwise.
        model: the network, by its name.
        model_args: arguments of the network, over those of its name.
        loss: of the class activations.
        routing: of the capsules; None for the network's own.
        rows: the networks that the preset has; all if empty.
    """

    epochs: int
    optimizer: Mapping[str, Any]
    batch_size: int = 128
    scheduler: Mapping[str, Any] | None = None
    scheduler_interval: Literal["epoch", "step"] = "epoch"
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    speed: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] | None = None
    routing: Mapping[str, Any] | None = None
    rows: tuple[str, ...] = ()

    def options(self, **more: Any) -> dict[str, Any]:
        """The options by name, with those of a row; options that are None are left out."""
        names = (one.name for one in fields(TrainingOptions) if one.name != "rows")
        values = {**{name: getattr(self, name) for name in names}, **more}
        return {name: plain(value) for name, value in values.items() if value is not None}


def plain(value: Any) -> Any:
    """A value as in YAML: lists for tuples, dictionaries for mappings."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value
