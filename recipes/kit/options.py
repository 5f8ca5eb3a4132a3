"""Options of ``torchcaps train`` for recipes, as in its YAML files."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal


def option(kind: str | type, **arguments: Any) -> dict[str, Any]:
    """An object as an option: its class, or the name of that, and its arguments."""
    return {"name": kind if isinstance(kind, str) else kind.__name__, **arguments}


MARGIN, ENTROPY = option("MarginLoss"), option("NegativeLogLikelihood")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options that presets of most recipes set, by their names in ``torchcaps
    train``; a row may change some.

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
        networks: for some rows, what this preset changes in them.
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
    loss: Mapping[str, Any] | None = None
    routing: Mapping[str, Any] | None = None
    rows: tuple[str, ...] = ()
    networks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def options(self, **more: Any) -> dict[str, Any]:
        """The options by name, with those of a row; options that are None are left
        out.
        """
        names = (
            one.name
            for one in fields(TrainingOptions)
            if one.name not in ("rows", "networks")
        )
        values = {**{name: getattr(self, name) for name in names}, **more}
        return {
            name: plain(value) for name, value in values.items() if value is not None
        }

    def of_row(self, row: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The options with those that a row changes in every preset, and in this
        one.
        """
        found: dict[str, Any] = {
            one.name: getattr(self, one.name) for one in fields(TrainingOptions)
        }
        for more in (changes, self.networks.get(row, {})):
            found = changed(found, more)
        return self.options(
            **{
                name: value
                for name, value in found.items()
                if name not in ("rows", "networks")
            }
        )


def changed(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Options with others over them: of an option without a name, the arguments;
    another model begins without any.
    """
    found = {
        **options,
        **({"model_args": {}, "routing": None} if "model" in changes else {}),
    }
    for name, value in changes.items():
        merges = (
            isinstance(value, Mapping)
            and "name" not in value
            and isinstance(found.get(name), Mapping)
        )
        found[name] = {**found[name], **value} if merges else value
    return found


def plain(value: Any) -> Any:
    """A value as in YAML: lists for tuples, dictionaries for mappings."""
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value
