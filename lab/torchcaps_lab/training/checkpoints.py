"""Checkpoints that a training is resumed from: written whole, checked before use, and
compared with the options and data of the training.
"""

import shutil
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback
from packaging.version import Version
from torch import Tensor, nn

from torchcaps.whole import opened, owned, resolved, sweep, written_whole
from torchcaps_lab.data import Examples
from torchcaps_lab.data.base import mixed_digest
from torchcaps_lab.training.diverged import not_finite

_ENDS = ("epochs", "stop_at", "patience")
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

_OPTIMISER = ("optimizer", "lr", "scheduler", "scheduler_interval")
"""Options whose objects a checkpoint holds with their settings."""

_OPEN = ("model_args", "extra")
"""Options that hold arbitrary names; a missing name is a difference, too."""


class WholeCheckpoints(TorchCheckpointIO):
    """Writes Lightning's checkpoints whole or not at all, and only into their folder.

    Args:
        folder: the folder of the checkpoints. Lightning takes paths to delete from the
            checkpoint that it resumed from, so no other is written or deleted in.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def _owned(self, path: Any) -> Path:
        path = Path(path)
        root = resolved(self.folder)
        if (
            not path.is_absolute()
            or ".." in path.parts
            or not path.is_relative_to(root)
        ):
            raise ValueError(
                f"checkpoint {path} is not in {root}: nothing is written or deleted "
                "there"
            )
        return owned(root, *path.relative_to(root).parts)

    def remove_checkpoint(self, path: Any) -> None:
        """Deletes a checkpoint, no folder; one that is gone already is no error.

        Raises:
            ValueError: if it is not in the folder of the checkpoints.
        """
        self._owned(path).unlink(missing_ok=True)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Writes the file whole, or not at all.

        Raises:
            OSError: if it cannot be written.
            ValueError: if it is not in the folder of the checkpoints.
        """
        path = self._owned(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as part:
            try:
                torch.save(checkpoint, part)
            except RuntimeError as error:  # torch raises this on a full disk
                free = shutil.disk_usage(path.parent).free >> 20
                message = (
                    f"checkpoint {path} cannot be written, with {free} MiB free "
                    "on its disk"
                )
                raise OSError(f"{message}: {str(error).splitlines()[0]}") from error


def is_whole(path: Path) -> bool:
    """Whether a checkpoint, which is a zip archive, holds what its checksums say."""
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except Exception:  # zipfile raises almost anything on a damaged file
        return False


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest undamaged checkpoint in a folder, or None; changes nothing."""
    return next(filter(is_whole, reversed(_checkpoints(folder))), None)


def _checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in a folder, the newest last; folders are none."""
    return sorted(path for path in folder.glob("*.ckpt") if not path.is_dir())


def checkpoint_to_resume(folder: Path) -> Path | None:
    """The newest undamaged checkpoint in a folder; deletes all others and left-overs of
    interruptions.

    Returns:
        Its path; None if there is no checkpoint at all. A warning names newer ones that
        are damaged.

    Raises:
        ValueError: if all checkpoints are damaged, or one is a link that leads out of
            the folder.
    """
    folder = owned(folder)
    sweep(folder)
    paths = _checkpoints(folder)
    newest = newest_checkpoint(folder)
    if newest is None and paths:
        raise ValueError(
            f"checkpoint {paths[-1]} is damaged, and there is no other: start anew in "
            "another folder"
        )
    for path in paths:
        if newest is not None and path > newest:
            warnings.warn(
                f"checkpoint {path} is damaged: the one before it is used, "
                f"{newest.name}",
                stacklevel=2,
            )
        if path != newest:
            path.unlink()
    return newest


def read_checkpoint(path: Path) -> Mapping[str, Any]:
    """Reads a checkpoint.

    Raises:
        ValueError: if it is damaged.
    """
    try:
        with opened(path) as file:
            checkpoint: Mapping[str, Any] = torch.load(
                file, map_location="cpu", weights_only=True
            )
        epoch = checkpoint["epoch"]
        Version(checkpoint["pytorch-lightning_version"])
        bad = not_finite(checkpoint["state_dict"])
    except Exception as error:  # torch.load raises almost anything on a damaged file
        raise ValueError(f"checkpoint {path} is damaged: {error}") from error
    if type(epoch) is not int or epoch < 0:
        raise ValueError(
            f"checkpoint {path} is damaged: its epoch must be a whole number, got "
            f"{epoch!r:.80}"
        )
    if bad:
        raise ValueError(
            f"checkpoint {path} is damaged: {', '.join(bad[:5])} holds numbers that "
            "are not finite"
        )
    return checkpoint


def check_network(
    path: Path, checkpoint: Mapping[str, Any], learner: nn.Module, changes: str = ""
) -> None:
    """Checks, before Lightning does, whether a checkpoint is of this network, for a
    clearer error.

    Args:
        path: the checkpoint, for the message.
        checkpoint: its content.
        learner: what holds the network.
        changes: what changed since the training, which the network may follow.

    Raises:
        ValueError: if it belongs to another model.
    """
    actual = {name: tensor.shape for name, tensor in checkpoint["state_dict"].items()}
    expected = {name: tensor.shape for name, tensor in learner.state_dict().items()}
    if expected != actual:
        different = sorted(
            name
            for name in expected.keys() | actual.keys()
            if expected.get(name) != actual.get(name)
        )
        reason = "is from another model"
        if changes:
            reason = f"does not fit the network that the changes ask for, {changes}"
        raise ValueError(f"checkpoint {path} {reason}: see {', '.join(different[:5])}")


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Checks the options and the state that an optimizer took from a checkpoint. A fused
    step reads as many numbers as the weight has, whatever there is.

    Raises:
        TypeError: if they are not those of such an optimizer.
    """
    for group in optimizer.param_groups:
        # Loading adds this to the defaults of optimizers that have no such option.
        expected = {"differentiable": group.get("differentiable")}
        for name, default in {**optimizer.defaults, **expected}.items():
            if not _is_like(group.get(name), default):
                raise TypeError(f"{name} of the optimizer is {group.get(name)!r:.80}")
        for weight in group["params"] if group.get("fused") else ():
            for name, value in optimizer.state.get(weight, {}).items():
                shape = torch.Size() if name == "step" else weight.shape
                if isinstance(value, Tensor) and value.shape != shape:
                    raise TypeError(
                        f"{name} of the optimizer has the shape {tuple(value.shape)}, "
                        f"that of a weight of the shape {tuple(weight.shape)}"
                    )


def _is_like(value: Any, default: Any) -> bool:
    """Whether an option of an optimizer has the kind of its default."""
    if isinstance(default, tuple | list):
        return (
            isinstance(value, tuple | list)
            and len(value) == len(default)
            and all(map(_is_like, value, default))
        )
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int | float | Tensor):
        one_number = isinstance(value, Tensor) and value.numel() == 1
        return one_number or type(value) in (int, float)
    return default is None or isinstance(value, type(default))


class Fingerprint(Callback):
    """Keeps the options and digests of the data in every checkpoint.

    Args:
        options: all options of the training, by name, as in a file of options.
        train: the training images.
        validation: the validation images.
    """

    def __init__(
        self, options: Mapping[str, Any], train: Examples, validation: Examples
    ) -> None:
        self.examples = train.what
        self.started: dict[str, Any] = {
            "options": dict(options),
            "classes": list(train.classes),
            "images": {"train": len(train), "validation": len(validation)},
            "data": mixed_digest(train.digest(), validation.digest()),
        }

    def state_dict(self) -> dict[str, Any]:
        """The content kept in the checkpoint."""
        return self.started

    def check(self, checkpoint: Mapping[str, Any], allow_changes: bool) -> str:
        """Compares with the options and data of a checkpoint.

        Returns:
            What differs; empty if nothing does.

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
                "go on with the new ones by allow_changes (--allow_changes)"
            )
        if changes:
            warnings.warn(f"the run continues with changes: {changes}", stacklevel=2)
        return changes

    def optimises_otherwise(self, checkpoint: Mapping[str, Any]) -> bool:
        """Whether optimizer or schedule are others than those of a checkpoint that was
        checked.
        """
        was = checkpoint["callbacks"][self.state_key]["options"]
        now = self.started["options"]
        return any(_compared(was.get(name), now.get(name), name) for name in _OPTIMISER)


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
            changes.append(
                f"{things} were {_in_short(was[name])}, are {_in_short(now[name])}"
            )
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
    return [f"{place} was {_in_short(was)}, is {_in_short(now)}"]


def _in_short(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(
            value.get("name")
            or ", ".join(f"{count} {name}" for name, count in value.items())
            or "nothing"
        )
    if isinstance(value, list):
        return ", ".join(map(str, value[:8])) + (", ..." if len(value) > 8 else "")
    return str(value)
