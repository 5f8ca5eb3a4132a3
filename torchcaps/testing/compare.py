"""Comparisons of tensors whose errors say what is off."""

from collections.abc import Mapping

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Relative to the root mean square of the expected tensor."""

LEAST_SCALE = 1e-3
"""Smallest root mean square that errors are compared with, for tensors that are 0 in theory."""


def assert_same(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    """Asserts that the root mean square of each difference is small, relative to that of the expected tensor.

    Raises:
        AssertionError: with the name of the first tensor that differs.
    """
    for name, tensor in expected.items():
        other = actual[name]
        if other.shape != tensor.shape:
            raise AssertionError(f"{name} has shape {tuple(other.shape)}, not {tuple(tensor.shape)}")
        if not tensor.numel():
            continue
        error = (other.double() - tensor.double()).square().mean().sqrt()
        scale = tensor.double().square().mean().sqrt().clamp(min=LEAST_SCALE)
        if not error <= tolerance * scale:  # NaN included
            raise AssertionError(f"{name} is off by {error / scale:.2g} of its size ({tolerance:.2g} is allowed)")


def assert_finite(tensors: Mapping[str, Tensor]) -> None:
    """Asserts that no number is NaN or infinite."""
    for name, tensor in tensors.items():
        wrong = tensor.numel() - int(tensor.isfinite().sum())
        if wrong:
            raise AssertionError(f"{wrong} of {tensor.numel()} numbers of {name} are NaN or infinite")
