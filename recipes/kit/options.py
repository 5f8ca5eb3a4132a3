"""Options of ``torchcaps train`` for recipes, as in its YAML files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torchcaps.spec import plain


def option(kind: str | type, **arguments: Any) -> dict[str, Any]:
    """An object as an option: its class, or the name of that, and its arguments."""
    return {"name": kind if isinstance(kind, str) else kind.__name__, **arguments}


MARGIN = option("MarginLoss")
ENTROPY = option("NegativeLogLikelihood")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that presets of most recipes set, by their names in ``torchcaps
    train``; a row may change some.

    Attributes:
        epochs: the number of training epochs.
        optimizer: the optimizer with its learning rate.
        batch_size: the number of training images in a batch.
        scheduler: the schedule of the learning rate; None keeps it constant.
        scheduler_interval: whether the scheduler steps each epoch or each step.
        preprocess: the preprocessing of the images.
        trainer: options of the trainer.
        speed: options that make the steps faster.
        data: the data set; empty if the recipe sets it otherwise.
        model: the name of the network.
        model_args: arguments of the network, over those of its name.
        task: what the network is for; None for what the data say.
        loss: the loss of the class activations.
        routing: the routing of the capsules; None for that of the network.
        rows: the rows that the preset trains; all if empty.
        networks: the options that this preset changes in some rows.
    """

    epochs: int | None = None
    optimizer: Mapping[str, Any] | None = None
    batch_size: int = 128
    scheduler: Mapping[str, Any] | None = None
    scheduler_interval: Literal["epoch", "step"] = "epoch"
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    speed: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    model_args: Mapping[str, Any] = field(default_factory=dict)
    task: Mapping[str, Any] | None = None
    loss: Mapping[str, Any] | None = None
    routing: Mapping[str, Any] | None = None
    rows: tuple[str, ...] = ()
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def options(self, **changes: Any) -> dict[str, Any]:
        """The options by name, with those of a row; options that are None are left
        out.
        """
        values = {**self._values(), **changes}
        return {
            name: plain(value) for name, value in values.items() if value is not None
        }

    def of_row(self, row: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The options with those that a row changes in every preset, and in this
        one.
        """
        in_every_preset = changed(self._values(), changes)
        return self.options(**changed(in_every_preset, self.networks.get(row, {})))

    def _values(self) -> dict[str, Any]:
        """The options of ``torchcaps train`` by name: all fields but those of rows."""
        names = [option.name for option in fields(TrainingOptions)]
        return {
            name: getattr(self, name)
            for name in names
            if name not in ("rows", "networks")
        }


def changed(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options with others over them: of an option without a name, the arguments;
    another model begins without any.
    """
    merged = dict(options)
    if "model" in changes:
        merged |= {"model_args": {}, "routing": None}
    for name, value in changes.items():
        adds_arguments = (
            isinstance(value, Mapping)
            and "name" not in value
            and isinstance(merged.get(name), Mapping)
        )
        merged[name] = {**merged[name], **value} if adds_arguments else value
    return merged


def different(first: Mapping[str, Any], second: Mapping[str, Any]) -> set[str]:
    """The names of options that are not the same; one that is left out is None."""
    return {name for name in {*first, *second} if first.get(name) != second.get(name)}
