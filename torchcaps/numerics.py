"""What all rooms need of numbers: precision, divisors that cannot vanish, sizes that are sizes."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import torch
from torch import Tensor


def positive(mass: Tensor) -> Tensor:
    """The mass, or next to nothing where there is less: a divisor whose inverse is finite, and its gradient too."""
    return mass.clamp(min=torch.finfo(mass.dtype).tiny ** 0.5)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """The dtype that routing computes in: the widest of the inputs, and float32 at least."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Switches autocast off, if it is on: sums that run over all children do not survive half precision."""
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # an exported program with the switch is not to be saved
        return nullcontext()
    return torch.autocast(device_type=kind, enabled=False)


def check_sizes(least: int = 1, **sizes: Any) -> None:
    """Sees that arguments are sizes: whole numbers, or sequences of them; None is left alone.

    Raises:
        ValueError: if one is no whole number, or smaller than ``least``; names the argument.
    """
    for name, size in sizes.items():
        numbers = size if isinstance(size, Sequence) and not isinstance(size, str) else [size]
        for number in numbers if size is not None else ():
            if not isinstance(number, Integral) or isinstance(number, bool):
                raise ValueError(f"{name} must be in whole numbers, got {size!r}")
            if number < least:
                raise ValueError(f"{name} must be at least {least}, got {size!r}")


def check_finite(**numbers: float | None) -> None:
    """Sees that arguments are finite numbers; None is left alone.

    Raises:
        ValueError: if one is infinite or NaN; names the argument.
    """
    for name, number in numbers.items():
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{name} must be finite, got {number}")
