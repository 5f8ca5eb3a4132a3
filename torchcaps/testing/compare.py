"""Comparisons of tensors whose errors say what is off."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from torchcaps.ops import BACKENDS
from torchcaps.ops.fused import why_not
from torchcaps.ops.plan import FUSED

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Relative to the root mean square of the expected tensor."""

ROUNDING = 1e-10
"""Likewise, of the same stored votes in float64. One rounding of the children moves some
gradients of four steps by 4e-12.
"""

Subject = TypeVar("Subject")
Module = TypeVar("Module", bound=nn.Module)

LEAST_SCALE = 1e-3
"""Smallest root mean square that errors are compared with, for tensors that are 0 in
theory.
"""


def assert_same(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float
) -> None:
    """Assert that the root mean square of each difference is small, relative to that
    of the expected tensor.

    Raises:
        AssertionError: with the name of the first tensor that differs.
    """
    for name, tensor in expected.items():
        result = actual[name]
        if result.shape != tensor.shape:
            raise AssertionError(
                f"{name} has shape {tuple(result.shape)}, not {tuple(tensor.shape)}"
            )
        if not tensor.numel():
            continue
        error = (result.double() - tensor.double()).square().mean().sqrt()
        scale = tensor.double().square().mean().sqrt().clamp(min=LEAST_SCALE)
        if not error <= tolerance * scale:  # NaN included
            raise AssertionError(
                f"{name} is off by {error / scale:.2g} of its size ({tolerance:.2g} "
                "is allowed)"
            )


def assert_same_on_backends(results: Callable[[str], Mapping[str, Tensor]]) -> None:
    """Assert that what a function of the backend gives on a CPU, in float64, is what
    it gives on ``naive``.

    Backends that are not available here, or cannot do what is asked, are left out.

    Raises:
        AssertionError: with the backend, and the name of the first tensor that differs.
    """
    expected = results("naive")
    for backend in BACKENDS:
        if backend not in ("chunked", FUSED["cpu"]) or (
            backend == FUSED["cpu"] and why_not(backend)
        ):
            # The reference itself, a backend for another device, or one
            # not available here.
            continue
        try:
            result = results(backend)
        except ValueError as error:
            if f"backend {backend!r} cannot do" in str(error):
                continue
            raise
        try:
            assert_same(result, expected, TOLERANCE[torch.float64])
        except AssertionError as error:
            raise AssertionError(f"on backend {backend}, {error}") from None


def with_gradients(
    outputs: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    learned: Collection[str] | None = None,
    seed: int = 2,
) -> dict[str, Tensor]:
    """Return the outputs, and the gradients of the inputs for random ones of the
    outputs, always the same.

    Args:
        outputs: by name; an infinite one, as the log-partition of no parents is, gives no
            gradients.
        inputs: by name.
        learned: the names of the outputs that have gradients; None for all.
        seed: the seed of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    objective = torch.zeros((), dtype=torch.float64)
    for name, output in outputs.items():
        if learned is None or name in learned:
            upstream = torch.randn(
                output.shape, generator=generator, dtype=torch.float64
            )
            if not output.isinf().any():
                objective = objective + (output.double().cpu() * upstream).sum()
    gradients = torch.autograd.grad(
        objective, list(inputs.values()), materialize_grads=True, allow_unused=True
    )
    return {
        **outputs,
        **{
            f"the gradient of {name}": grad
            for name, grad in zip(inputs, gradients, strict=True)
        },
    }


def with_noise(module: Module) -> Module:
    """Add noise to the parameters of a module, always the same, and return it.

    What starts at 0, or alike for all parents, hides faults.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            )
            parameter.add_(noise.to(parameter) / 4)
    return module


def attempt(
    check: Callable[[Subject], None], subject: Subject, owner: object, name: str
) -> None:
    """Run a check.

    Raises:
        AssertionError: if it fails; says whose check, and which.
    """
    try:
        check(subject)
    except Exception as error:
        raise AssertionError(
            f"{type(owner).__name__} fails the check {name!r}: {error}"
        ) from error


def by_name(
    checks: Iterable[Callable[[Subject], None]], skip: Collection[str]
) -> dict[str, Callable[[Subject], None]]:
    """Return the checks by their names, those of the functions without the underscore.

    Raises:
        ValueError: if a name to skip is not that of a check.
    """
    checks_by_name = {check.__name__.removeprefix("_"): check for check in checks}
    for name in skip:
        if name not in checks_by_name:
            raise ValueError(
                f"skip must name checks of {list(checks_by_name)}, got {name!r}"
            )
    return {name: check for name, check in checks_by_name.items() if name not in skip}


def assert_finite(tensors: Mapping[str, Tensor]) -> None:
    """Assert that no number is NaN or infinite."""
    for name, tensor in tensors.items():
        wrong = tensor.numel() - int(tensor.isfinite().sum())
        if wrong:
            raise AssertionError(
                f"{wrong} of {tensor.numel()} numbers of {name} are NaN or infinite"
            )
