"""Comparisons of tensors whose errors say what is off."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torchcaps.ops import BACKENDS
from torchcaps.ops.fused import why_not
from torchcaps.ops.plan import FUSED

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


def assert_same_on_backends(results: Callable[[str], Mapping[str, Tensor]]) -> None:
    """Asserts that what a function of the backend gives on a CPU, in float64, is what it gives on ``naive``.

    Backends that are not available here, or cannot do what is asked, are left out.

    Raises:
        AssertionError: with the backend, and the name of the first tensor that differs.
    """
    expected = results("naive")
    for backend in BACKENDS:
        if backend not in ("chunked", FUSED["cpu"]) or (backend == FUSED["cpu"] and why_not(backend)):
            continue  # the reference, for another device, or not available here
        try:
            found = results(backend)
        except ValueError as error:
            if f"backend {backend!r} cannot do" in str(error):
                continue
            raise
        try:
            assert_same(found, expected, TOLERANCE[torch.float64])
        except AssertionError as error:
            raise AssertionError(f"on backend {backend}, {error}") from None


def assert_finite(tensors: Mapping[str, Tensor]) -> None:
    """Asserts that no number is NaN or infinite."""
    for name, tensor in tensors.items():
        wrong = tensor.numel() - int(tensor.isfinite().sum())
        if wrong:
            raise AssertionError(f"{wrong} of {tensor.numel()} numbers of {name} are NaN or infinite")
