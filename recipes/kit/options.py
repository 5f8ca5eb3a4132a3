"""Options of ``torchcaps train`` for recipes, as in its YAML files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

PRESETS = Path(__file__).parents[1] / "presets"
Settings = TypeVar("Settings")


def option(kind: str | type, **arguments: Any) -> dict[str, Any]:
    """An object as an option: its class, or the name of that, and its arguments."""
    return {"name": kind if isinstance(kind, str) else kind.__name__, **arguments}


def presets_of(name: str, kind: Callable[..., Settings]) -> dict[Any, Settings]:
    """The settings in ``recipes/presets/NAME.yaml``, by preset; what has a ``name`` there is an option."""
    presets = yaml.safe_load((PRESETS / f"{name}.yaml").read_text(encoding="utf-8"))
    return {preset: kind(**_options(values)) for preset, values in presets.items()}


def _options(value: Any) -> Any:
    if isinstance(value, Mapping):
        values = {key: _options(one) for key, one in value.items()}
        return option(values.pop("name"), **values) if "name" in values else values
    return [_options(one) for one in value] if isinstance(value, list) else value


def adam(rate: float, **arguments: Any) -> dict[str, Any]:
    """The option ``optimizer``: Adam with this learning rate."""
    return option("torch.optim.Adam", lr=rate, **arguments)


def pace(
    epochs: int, rate: float, batch_size: int = 128, decay: float | None = None, each: str = "epoch"
) -> dict[str, Any]:
    """Options of :class:`TrainingOptions`: Adam with a rate that falls by the factor ``decay`` each epoch or step."""
    scheduler = None if decay is None else option("torch.optim.lr_scheduler.ExponentialLR", gamma=decay)
    options = {"epochs": epochs, "optimizer": adam(rate), "batch_size": batch_size, "scheduler": scheduler}
    return {**options, "scheduler_interval": each}


MARGIN, ENTROPY = option("MarginLoss"), option("NegativeLogLikelihood")


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
