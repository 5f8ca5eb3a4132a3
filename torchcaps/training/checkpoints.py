"""Checkpoints that a training is resumed from."""

from pathlib import Path

import torch
from torch import nn


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in a folder, by epoch."""
    return max(folder.glob("*.ckpt"), default=None)


def check_checkpoint(path: Path, learner: nn.Module) -> None:
    """Looks whether a checkpoint can be resumed from before Lightning does, for a clear word if not.

    Raises:
        ValueError: if it is damaged or belongs to another model.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:  # torch.load raises almost anything on a damaged file
        raise ValueError(f"checkpoint {path} is damaged: {error}") from error
    expected = {name: tensor.shape for name, tensor in learner.state_dict().items()}
    found = {name: tensor.shape for name, tensor in state.items()}
    if expected != found:
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise ValueError(f"checkpoint {path} is from another model: {', '.join(different[:5])} do not fit")
