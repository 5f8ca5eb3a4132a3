"""The options and data of a training, kept in its checkpoints, so that it is not
resumed with others by mistake.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.callbacks import Callback

from torchcaps_lab.data import Examples
from torchcaps_lab.data.base import mixed_digest

_ENDS = ("epochs", "stop_at", "stop", "patience")
_PLACES = ("run", "import", "report", "speed.resident", "data.root", "data.data_dir")
_WHERE = (
    "trainer.accelerator",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "shard_optimizer",
)
FREE = (*_ENDS, *_PLACES, *_WHERE)
"""Options that may change when a training is resumed: when it ends, where files are,
and where it runs.
"""

_OPEN = ("model_args", "extra")
"""Options that hold arbitrary names; a missing name is a difference, too."""


class Fingerprint(Callback):
    """Keeps the options and digests of the data in every checkpoint.

    Args:
        options: all options of the training, by name, as in a file of options.
        train: the training images.
        validation: the validation images.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        train: Examples,
        validation: Examples,
    ) -> None:
        self.examples = train.what
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
                Or if the checkpoint was not written by a training of this package.
        """
        was = checkpoint.get("callbacks", {}).get(self.state_key)
        if not was:
            raise ValueError(
                "the checkpoint must hold the options and the digests of the images of "
                "its training, and does not: torchcaps train did not write it"
            )
        changes = "; ".join(differences(was, self.started, self.examples))
        if changes and not allow_changes:
            raise ValueError(
                f"the run was trained with something else: {changes}. Restore it, or "
                "add --allow_changes to go on with "
                "the new ones"
            )
        if changes:
            warnings.warn(f"the run continues with changes: {changes}", stacklevel=2)


def differences(
    was: Mapping[str, Any], now: Mapping[str, Any], examples: str = "images"
) -> list[str]:
    """The differences between two trainings, except in :data:`FREE` options: "seed was
    0, is 1".

    Args:
        was: the earlier one, as :class:`Fingerprint` keeps it.
        now: the later one.
        examples: the name of what they train on.
    """
    changes = _compared(was["options"], now["options"], "")
    for name, things in (("classes", "classes"), ("images", examples)):
        if was[name] != now[name]:
            changes.append(f"{things} were {_said(was[name])}, are {_said(now[name])}")
    if (
        was["data"] != now["data"]
        and was["classes"] == now["classes"]
        and was["images"] == now["images"]
    ):
        changes.append(f"the {examples} or their labels are others")
    return changes


def network_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences between the networks that two sets of options describe, besides
    its name.

    Args:
        was: the options in the folder of the run.
        now: the options, complete.
    """
    return [
        row
        for name in ("model_args", "routing")
        for row in _compared(was.get(name), now.get(name), name)
    ]


def _compared(was: Any, now: Any, place: str) -> list[str]:
    if place in FREE or was == now:
        return []
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        if was.get("name") != now.get("name"):
            return [f"{place} was {was.get('name')}, is {now.get('name')}"]
        free = place.rpartition(".")[2] in _OPEN
        if free:
            names = [*was, *(name for name in now if name not in was)]
        else:
            names = [name for name in was if name in now]
        inner = f"{place}." if place else ""
        rows = []
        for name in names:
            rows += _compared(was.get(name), now.get(name), inner + name)
        return rows
    return [f"{place} was {_said(was)}, is {_said(now)}"]


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(
            value.get("name")
            or ", ".join(f"{count} {name}" for name, count in value.items())
            or "nothing"
        )
    if isinstance(value, list):
        return ", ".join(map(str, value[:8])) + (", ..." if len(value) > 8 else "")
    return str(value)
