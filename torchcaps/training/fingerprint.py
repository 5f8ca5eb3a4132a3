"""The options and data of a training, kept in its checkpoints, so that it is not resumed with others by mistake."""

import warnings
from collections.abc import Mapping
from typing import Any

import yaml
from lightning.pytorch.callbacks import Callback

from torchcaps.data import ImageSet
from torchcaps.data.base import mixed_digest

_ENDS = ("epochs", "stop_at", "stop", "patience")
_PLACES = ("run", "import", "report", "speed.resident", "data.root", "data.data_dir")
_WHERE = ("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy", "shard_optimizer")
FREE = (*_ENDS, *_PLACES, *_WHERE)
"""Options that may change when a training is resumed: when it ends, where files are, and where it runs."""

_OPEN = ("model_args", "extra", "dict_kwargs")
"""Options that hold arbitrary names; a missing name is a difference, too."""


class Fingerprint(Callback):
    """Keeps the options and digests of the data in every checkpoint.

    Args:
        options: of the training, by name, as in a file of options.
        train: the training images.
        validation: the validation images.
    """

    def __init__(self, options: Mapping[str, Any], train: ImageSet, validation: ImageSet) -> None:
        self.started = {
            "options": dict(options),
            "classes": list(train.classes),
            "images": {"train": len(train), "validation": len(validation)},
            "data": mixed_digest(train.digest(), validation.digest()),
        }

    def state_dict(self) -> dict[str, Any]:
        """The content kept in the checkpoint."""
        return self.started

    def check(self, checkpoint: Mapping[str, Any], allow_changes: bool) -> None:
        """Compares with the options and data of a checkpoint.

        Raises:
            ValueError: if something differs; with ``allow_changes`` this is a warning.
        """
        was = checkpoint.get("callbacks", {}).get(self.state_key)
        if not was:
            warnings.warn(
                "the checkpoint is from a version that did not note options and images: nothing is compared",
                stacklevel=2,
            )
            return
        found = "; ".join(differences(was, self.started))
        if found and not allow_changes:
            raise ValueError(
                f"the run was trained with something else: {found}. Restore it, or add --allow_changes to go on with "
                "the new ones"
            )
        if found:
            warnings.warn(f"the run continues with changes: {found}", stacklevel=2)


def recorded_options(config: str, seed: int, batch_size: int, preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a training by name: those of its configuration, or the few that are known without one."""
    known = {"seed": seed, "batch_size": batch_size, "preprocess": dict(preprocess)}
    return {**known, **(yaml.safe_load(config) or {})} if config else known


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences between two trainings, except in :data:`FREE` options: "seed was 0, is 1"."""
    found = _compared(was["options"], now["options"], "")
    for name in ("classes", "images"):
        if was[name] != now[name]:
            found.append(f"{name} were {_said(was[name])}, are {_said(now[name])}")
    if was["data"] != now["data"] and was["classes"] == now["classes"] and was["images"] == now["images"]:
        found.append("the images or their labels are others")
    return found


def _compared(was: Any, now: Any, place: str) -> list[str]:
    if _name(place) in FREE or was == now:
        return []
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        if place and _class(was) != _class(now):
            return [f"{place} was {_class(was)}, is {_class(now)}"]
        free = place.rpartition(".")[2] in _OPEN
        names = [*was, *(name for name in now if name not in was)] if free else [name for name in was if name in now]
        return [
            row
            for name in names
            if name != "class_path"
            for row in _compared(was.get(name), now.get(name), f"{place}.{name}".lstrip("."))
        ]
    return [f"{_name(place)} was {_said(was)}, is {_said(now)}"]


def _name(place: str) -> str:
    """The option as written on the command line."""
    return place.replace(".init_args", "")


def _class(options: Mapping[str, Any]) -> str:
    """The name of a class, without its module, which may have changed."""
    return str(options.get("class_path", "")).rpartition(".")[2]


def _said(value: Any) -> str:
    if isinstance(value, Mapping) and "class_path" in value:
        return _class(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{one} {name}" for name, one in value.items()) or "nothing"
    if isinstance(value, list):
        return ", ".join(map(str, value[:8])) + (", ..." if len(value) > 8 else "")
    return str(value)
