"""Checks of the classes of images."""

import torch
from torch import Tensor


def check_target(target: Tensor, activation: Tensor, name: str = "target") -> None:
    """Raise a `ValueError` unless ``target`` is a label of each row of ``activation``
    (B, J); ``name`` is that of the argument.
    """
    B, J = activation.shape
    check_labels(target, B, name)
    if B and not 0 <= int(target.min()) <= int(target.max()) < J:
        raise ValueError(
            f"{name} must lie in 0..{J - 1}, got labels from {int(target.min())} to "
            f"{int(target.max())}"
        )


def check_labels(target: Tensor, count: int, name: str = "target") -> None:
    """Raise a `ValueError` unless ``target`` is ``count`` integers."""
    integers = not (
        target.is_floating_point() or target.is_complex() or target.dtype == torch.bool
    )
    if not integers or target.shape != (count,):
        raise ValueError(
            f"{name} must be integer labels ({count},), got {target.dtype} of shape "
            f"{tuple(target.shape)}"
        )
