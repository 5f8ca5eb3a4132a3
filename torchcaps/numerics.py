"""Numerical helpers for all rooms: precision, divisors that cannot vanish, checks of
arguments.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, reduce, wraps
from numbers import Integral
from typing import Annotated, Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torchcaps.spec import Size as Size
from torchcaps.spec import Within

Choice = TypeVar("Choice", bound=str)
Arguments = ParamSpec("Arguments")

LEAST_FLOOR = torch.finfo(torch.float32).tiny ** 0.5
"""The least floor of variances, 1.1e-19: routing computes in float32 at least, and 1 /
x^2, a gradient's, is finite.
"""

_FLOOR = Within(
    LEAST_FLOOR,
    1 / LEAST_FLOOR,
    words=(
        f"above 0 and finite in float32, as its square is: from {LEAST_FLOOR:.1e} to "
        f"{1 / LEAST_FLOOR:.1e} (1e-12 is next to nothing)"
    ),
)

# Arguments as :func:`torchcaps.spec.settings` checks them.
Finite = Annotated[float, Within()]
Positive = Annotated[float, Within(0, open=True, words="above 0 and finite")]
NotNegative = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1, words="a share in [0, 1]")]
Floor = Annotated[float, _FLOOR]
FloorOrNone = Annotated[float, replace(_FLOOR, zero=True)]
ProperShare = Annotated[
    float, Within(0, math.nextafter(1, 0), words="a share in [0, 1)")
]


@dataclass(frozen=True, repr=False)
class Several(Within):
    """For ``Annotated``: ``count`` sizes; None for one or more, 0 for any number."""

    count: int | None = None

    def check(self, place: str, value: Any) -> None:
        """Raise a ValueError that names the place unless it holds so many sizes."""
        check_series(self.count, **{place: value})

    refuse = check


Sizes = Annotated[Sequence[int], Several()]
AnySizes = Annotated[Sequence[int], Several(count=0)]
TwoSizes = Annotated[Sequence[int], Several(count=2)]
ThreeSizes = Annotated[Sequence[int], Several(count=3)]
FourSizes = Annotated[Sequence[int], Several(count=4)]


def positive(mass: Tensor) -> Tensor:
    """Return the mass, at least a tiny positive number: a divisor whose inverse is
    finite, and the gradient of that too.
    """
    return mass.clamp(min=_SMALLEST_DIVISOR[mass.dtype])


def negligible(mass: Tensor) -> Tensor:
    """Whether the mass is so small that :func:`positive` replaces it."""
    return mass <= _SMALLEST_DIVISOR[mass.dtype]


def quotient(part: Tensor, divisor: Tensor) -> Tensor:
    """Return ``part / divisor``; where the divisor is negligible, 0 with a gradient of
    0.
    """
    return part / infinite_if_negligible(divisor)


def infinite_if_negligible(mass: Tensor) -> Tensor:
    """Return the mass as a divisor: infinite where it is :func:`negligible`, so that
    quotients and their gradients are 0.
    """
    return torch.threshold(mass, _SMALLEST_DIVISOR[mass.dtype], math.inf)


def infinite_if_0(size: Tensor) -> Tensor:
    """Return a size as a divisor of something that shrinks with it: infinite where it
    is 0, or so small that its inverse is not finite.

    Squares of lengths need it: those of lengths of 1e-10 are :func:`negligible` masses.
    """
    return torch.threshold(size, torch.finfo(size.dtype).tiny, math.inf)


def resolution(size: Tensor, roundings: float = 64) -> Tensor:
    """Return the least difference that means something between numbers of this size,
    without gradient: 64 units of rounding.

    Sums over thousands of terms and their inner products, which should be equal, differ
    by 2 to 20. Where a difference is divided by itself, compare it with this and not
    with 0: else rounding comes out as numbers of the size of 1.

    Args:
        size: the size of the numbers, or of the terms that they were added up from.
        roundings: how many units of rounding; 4 where nothing was added up.
    """
    return roundings * torch.finfo(size.dtype).eps * size.detach().abs()


_SMALLEST_DIVISOR = {
    dtype: torch.finfo(dtype).tiny ** 0.5
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
"""Above it 1 / x^2 is finite, which the derivative of a quotient has."""


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """Return the dtype that routing computes in: the widest of the inputs, and float32
    at least.

    If all are integers it is the default dtype, as for ``torch.sqrt``, and float32 at
    least.
    """
    for tensor in tensors:
        if tensor is not None and tensor.dtype != torch.float32:
            break
    else:  # nearly always
        return torch.float32
    dtype = reduce(
        torch.promote_types,
        {tensor.dtype for tensor in tensors if tensor is not None},
        torch.bool,
    )
    if not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    return torch.promote_types(dtype, torch.float32)


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in that dtype: ``to``, which takes a microsecond even where
    there is nothing to do.
    """
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def real_dtype(name: str, tensor: Tensor) -> torch.dtype:
    """Return the dtype of a result computed from a tensor: its own, or for integers the
    default one, as for ``torch.sqrt``.

    Raises:
        TypeError: if it is not a tensor.
        ValueError: if it is complex; names the argument.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.is_floating_point():
        return tensor.dtype
    if tensor.is_complex():
        raise ValueError(f"{name} must be real, got {tensor.dtype}")
    return torch.get_default_dtype()


def dtype_of(module: nn.Module, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype of the first parameter of a module, or another for one without
    any.

    The replicas of ``torch.nn.DataParallel`` have no parameters, but tensors in their
    place.
    """
    for part in module.modules():
        replicated = getattr(part, "_former_parameters", {})
        for parameter in (*part.parameters(recurse=False), *replicated.values()):
            return parameter.dtype
    return otherwise


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off, if it is on: sums over all children do not survive half
    precision.
    """
    kind = tensor.device.type
    # Only if autocast is on, because torch.export cannot save the switch.
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return _UNCHANGED
    return torch.autocast(device_type=kind, enabled=False)


_UNCHANGED = nullcontext()
"""One for all calls: to make one takes as long as to use it."""


def transformed() -> bool:
    """Whether this runs in forward-mode differentiation, or inside a transform of
    ``torch.func``.
    """
    return (
        forward_ad._current_level >= 0
        or torch._C._functorch.maybe_current_level() is not None
    )


def counted() -> bool:
    """Whether a ``FlopCounterMode`` of torch counts operations here."""
    if not torch._C._len_torch_dispatch_stack():
        return False
    # By name: to import its module would import Triton (seconds).
    return any(
        type(mode).__module__ == "torch.utils.flop_counter"
        for mode in _get_current_dispatch_mode_stack()
    )


def as_constants() -> AbstractContextManager[Any]:
    """Return a context in which results are constants: no gradient flows through them,
    and in forward mode no tangent.

    ``torch.no_grad`` alone lets the tangents of ``torch.func.jvp`` through.
    """
    return _differentiated(False)


def as_variables() -> AbstractContextManager[Any]:
    """Return a context in which gradients and tangents flow, even within
    :func:`as_constants`.
    """
    return _differentiated(True)


def _differentiated(mode: bool) -> AbstractContextManager[Any]:
    if torch.compiler.is_compiling() or not transformed():
        return torch.enable_grad() if mode else torch.no_grad()
    return _differentiated_in_both_modes(mode)


@contextmanager
def _differentiated_in_both_modes(mode: bool) -> Iterator[None]:
    with torch.set_grad_enabled(mode), forward_ad._set_fwd_grad_enabled(mode):
        yield


_is_tracing = torch._C._is_tracing
_is_batched = torch._C._functorch.is_batchedtensor
_is_legacy_batched = torch._C._functorch.is_legacy_batchedtensor


def any_batched(upstream: Sequence[Tensor | None]) -> bool:
    """Whether an upstream gradient is batched. The kernels cannot read a batched
    tensor, so plain operations are used.

    This happens with ``is_grads_batched`` of ``torch.autograd.grad``, ``vectorize`` of
    ``torch.autograd.functional``, and a ``vmap`` of a backward pass alone.
    """
    if torch.compiler.is_compiling():
        return False
    # A loop, because a generator takes longer.
    for gradient in upstream:
        if gradient is not None and (
            _is_legacy_batched(gradient) or _is_batched(gradient)
        ):
            return True
    return False


def can_be_read(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor can be read at once: on a CPU, outside of tracing
    and ``torch.func``.

    On a GPU it would mean waiting for all kernels launched before.
    """
    return (
        tensor.device.type == "cpu"
        and not needs_plain_ops()
        and not torch._C._len_torch_dispatch_stack()
    )


def can_be_kept() -> bool:
    """Whether a tensor that is made here may be kept for later calls: not where a graph
    is traced, in ``torch.func``, or under a mode in which tensors have no numbers.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or transformed()
    )


def kept_tensor(make: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Function decorator: keeps the tensor that a function makes, if it
    :func:`can_be_kept`, for later calls with the same arguments. They must not write
    to it.
    """

    @wraps(make)
    def made(*arguments: Arguments.args, **named: Arguments.kwargs) -> Tensor:
        if can_be_kept():
            return _kept_for_later(make, *arguments, **named)
        return make(*arguments, **named)

    return made


def _for_later(make: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
    # A later call may need gradients.
    with torch.inference_mode(False):
        return make(*arguments, **named)


# One cache of the module: torch.compile cannot trace past one in a closure.
_kept_for_later: Callable[..., Tensor] = lru_cache(maxsize=256)(_for_later)


def needs_plain_ops() -> bool:
    """Whether derivatives must come from plain operations: in forward mode, in
    ``torch.func``, and where a graph is traced.

    Elsewhere an operation may have a backward pass of its own, which is faster.
    """
    return torch.compiler.is_compiling() or _is_tracing() or transformed()


def product(sizes: Sequence[int]) -> int:
    """Return the product of the sizes of a map, as a number also where ``torch.jit.trace``
    makes tensors of sizes: a trace is for maps of one size.
    """
    count: Any = math.prod(sizes)
    return int(count) if isinstance(count, Tensor) else count


def check_size(least: int = 1, /, **sizes: Any) -> None:
    """Check that arguments are sizes: one whole number each.

    Raises:
        ValueError: if one is not a whole number, or smaller than ``least``; names the
            argument.
    """
    for name, size in sizes.items():
        if type(size) is int and size >= least:  # nearly always
            continue
        if not _is_whole(size):
            raise ValueError(f"{name} must be a whole number, got {size!r}")
        if size < least:
            raise ValueError(f"{name} must be at least {least}, got {size}")


def check_sizes(least: int = 1, /, **sizes: Any) -> None:
    """Check arguments that may be one size or several: whole numbers, or sequences of
    them.

    Raises:
        ValueError: if one is not a whole number, or smaller than ``least``; names the
            argument.
    """
    for name, size in sizes.items():
        numbers = size if _is_sequence(size) else [size]
        for number in numbers:
            if not _is_whole(number):
                raise ValueError(f"{name} must be in whole numbers, got {size!r}")
            if number < least:
                raise ValueError(f"{name} must be at least {least}, got {size!r}")


def check_series(count: int | None = None, /, **series: Any) -> None:
    """Check that arguments are sequences of ``count`` sizes; None for one or more, 0
    for any number.

    Raises:
        ValueError: if one is not; names the argument.
    """
    for name, sizes in series.items():
        if (
            not _is_sequence(sizes)
            or (count is None and not sizes)
            or (count and len(sizes) != count)
        ):
            expected = {None: "one or more", 0: "a sequence of"}.get(count, count)
            raise ValueError(f"{name} must be {expected} whole numbers, got {sizes!r}")
    check_sizes(**series)


def _is_whole(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def check_choice(argument: str, value: Choice, choices: tuple[str, ...]) -> Choice:
    """Return the value, checked.

    Raises:
        ValueError: if it is not one of the choices; names the argument.
    """
    if value not in choices:
        raise ValueError(f"{argument} must be one of {list(choices)}, got {value!r}")
    return value


def class_mask(activation: Tensor, target: Tensor) -> Tensor:
    """Return labels (B,), or a mask (B, E), as a mask (B, E) in the dtype of the
    activations (B, E).

    Raises:
        TypeError: if one is not a tensor.
        ValueError: if shapes do not fit, a label is none of 0..E - 1 (on a GPU, CUDA's
            own assertion fails instead), or a mask has numbers outside of [0, 1] (which
            is checked on a CPU only).
    """
    dtype = real_dtype("activation", activation)
    real_dtype("target", target)
    shape = tuple(activation.shape)
    if target.shape == shape:
        _check_mask(target)
        return target.to(dtype)
    if target.shape != shape[:1] or target.is_floating_point():
        raise ValueError(
            f"target must be integer labels {shape[:1]} or a mask {shape}, got "
            f"{target.dtype} of shape {tuple(target.shape)}"
        )
    try:
        return torch.zeros_like(activation, dtype=dtype).scatter(
            1, target.long()[:, None], 1.0
        )
    except RuntimeError as error:
        low = int(target.min())
        high = int(target.max())
        if 0 <= low <= high < shape[1]:
            raise
        raise ValueError(
            f"target must be labels in 0..{shape[1] - 1}, got {low} to {high}"
        ) from error


class Progress(NamedTuple):
    """How far a training has come.

    Args:
        epoch: the present one, from 0.
        epochs: the number of all.
        step: steps so far, over all epochs.
    """

    epoch: int
    epochs: int
    step: int = 0

    @property
    def share(self) -> float:
        """0 in the first epoch, 1 in the last one and after it; 0 if there is only
        one.
        """
        return min(self.epoch / max(self.epochs - 1, 1), 1.0)


class Ramp(NamedTuple):
    r"""A number that changes evenly over the epochs of a training: :math:`a + (b - a)
    \frac{t}{T - 1}`.

    It depends on nothing but the progress, so a training that is resumed goes on with
    it exactly.

    Args:
        start: a, in the first epoch.
        end: b, in the last one.
    """

    start: float
    end: float

    def at(self, progress: Progress) -> float:
        """Return the number at that point of a training."""
        if progress.share == 1:
            return self.end
        return self.start + (self.end - self.start) * progress.share


_ROUNDING = 0.01
"""The tolerance for shares that were added up in bfloat16."""


def _check_mask(mask: Tensor) -> None:
    """Check that a mask (B, E) has numbers in [0, 1], up to rounding, where they can
    be read at once.
    """
    if mask.dtype == torch.bool or not mask.numel() or not can_be_read(mask):
        return
    low, high = (float(bound) for bound in mask.detach().aminmax())
    if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
        raise ValueError(
            f"target must be a mask of numbers in [0, 1], got {low:g} to {high:g}"
        )


def strided(present: Tensor, stride: int) -> Tensor:
    """Which places of rows a convolution with this stride keeps, bool (B, L').

    Its length is computed as that of a convolution, so that an export for any length
    sees that both are equal. A slice writes the same number in another way.
    """
    rows = present[:, None].float()
    return F.conv1d(rows, rows.new_ones(1, 1, 1), stride=stride)[:, 0] > 0
