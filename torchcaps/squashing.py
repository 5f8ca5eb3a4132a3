"""The length of a pose, and the squash functions that make it a probability that the
entity is present.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.numerics import (
    Positive,
    compute_dtype,
    needs_plain_ops,
    quotient,
    real_dtype,
)
from torchcaps.spec import SuggestsNames, settings

Dims = int | tuple[int, ...]
SquashKind = Literal["sabour", "half", "tanh", "exponential", "rational", "none"]
SquashInRouting = Literal[SquashKind, "learned"]


def _wide(pose: Tensor) -> Tensor:
    """The pose in the dtype to compute in.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if it is complex.
    """
    if isinstance(pose, Tensor) and pose.dtype in _WIDE:
        return pose
    real_dtype("pose", pose)
    return pose.to(compute_dtype(pose))


_WIDE = (torch.float32, torch.float64)


def _length(pose: Tensor, dim: Dims) -> tuple[Tensor, Tensor]:
    """The length and its square as formulas, which autograd differentiates to any
    order. The gradient is 0 at 0, where that of ``sqrt`` is infinite.
    """
    squared = pose.square().sum(dim, keepdim=True)
    zero = squared == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squared).sqrt()), squared


def _norm(pose: Tensor, dim: Dims) -> Tensor:
    """The length, for where autograd does not differentiate it."""
    axes = (dim,) if isinstance(dim, int) else dim
    last = dim == -1 or all(axis % pose.ndim >= pose.ndim - len(axes) for axis in axes)
    # The norm of one number does not square it; along axes other than the last it takes
    # a hundred times longer.
    if last and pose.shape[-1:] != (1,):
        return torch.linalg.vector_norm(pose, dim=dim, keepdim=True)
    return pose.square().sum(dim, keepdim=True).sqrt_()


def length(pose: Tensor, dim: Dims = -1) -> Tensor:
    r"""Return the Euclidean length :math:`n = \sqrt{\langle s, s \rangle}` along
    ``dim``, which is dropped; gradient 0 at 0.

    Computed in float32 at least and returned in the dtype of ``pose``, for integers in
    the default one. NaN gives NaN, in value and gradient; a pose whose square overflows
    (1.8e19 in float32) has length inf. The square loses digits below a length of 1e-20
    in float32, and is 0 below 1e-23.

    Args:
        pose: any shape.
        dim: the axis, or axes for matrix capsules, that one pose spans; ``()`` for all,
            as in ``torch.sum``.

    Raises:
        TypeError: if the pose is not a tensor.
        ValueError: if it is complex.
    """
    wide = _wide(pose)
    # No axes are all of them in sums and norms, and none in squeeze.
    if not isinstance(dim, int) and not dim:
        dim = tuple(range(wide.ndim))
    if needs_plain_ops():
        lengths = _length(wide, dim)[0]
    elif wide.requires_grad and torch.is_grad_enabled():
        lengths = _Length.apply(wide, dim)
    else:
        lengths = _norm(wide, dim)
    lengths = lengths.squeeze(dim)
    return lengths if wide is pose else lengths.to(real_dtype("pose", pose))


class _Length(torch.autograd.Function):
    """:func:`_length` with its gradient :math:`s / n`."""

    @staticmethod
    def forward(ctx: Any, pose: Tensor, dim: Dims) -> Tensor:
        lengths = _norm(pose, dim)
        ctx.dim = dim
        ctx.save_for_backward(pose, lengths)
        return lengths

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        pose, lengths = ctx.saved_tensors
        # It may be differentiated again.
        if torch.is_grad_enabled():
            lengths, _ = _length(pose, ctx.dim)
            return *torch.autograd.grad(
                lengths, pose, upstream, create_graph=True
            ), None
        return pose * (upstream / torch.threshold(lengths, 0.0, math.inf)), None


def direction(pose: Tensor) -> Tensor:
    """Return the pose (..., D), float32 at least, with length 1; 0 if it is so short
    that its square vanishes, which in float32 is 1e-19.

    ``torch.nn.functional.normalize`` shortens poses of less than 1e-12 in any dtype,
    and the sum of votes that no parent wants is shorter.
    """
    return quotient(pose, length(pose)[..., None])


def _ratio(n: Tensor, value: Tensor) -> Tensor:
    """``value / n``, and its limit 1 at n = 0, for a value that goes to 0 as n does."""
    zero = n == 0
    return torch.where(zero, 1.0, value / torch.where(zero, 1.0, n))


class Kind(NamedTuple):
    """A squash with lengths f(n), as the factor f(n) / n that it multiplies a pose of
    length n by.
    """

    factor: Callable[[Tensor, Tensor], Tensor]
    """f(n) / n, from n and n²."""
    slope: Callable[[Tensor, Tensor], Tensor]
    """Its derivative, from n and the factor; any number at 0."""
    constant: float | None = None
    """c, where f(n) is n² / (c + n²)."""


def _rational_in_squares(constant: float) -> Kind:
    """n² / (c + n²)."""

    def slope(n: Tensor, factor: Tensor) -> Tensor:
        part = factor / n  # 1 / (c + n²)
        return torch.addcmul(-part, part, part, value=2 * constant)

    return Kind(lambda n, squared: n / (constant + squared), slope, constant)


SQUASHES: dict[str, Kind] = {
    "sabour": _rational_in_squares(1.0),
    "half": _rational_in_squares(0.5),
    "tanh": Kind(
        lambda n, _: _ratio(n, n.tanh()),
        lambda n, factor: (1 - n.tanh().square() - factor) / n,
    ),
    "exponential": Kind(
        lambda n, _: _ratio(n, -torch.expm1(-n)),
        lambda n, factor: ((-n).exp() - factor) / n,
    ),
    "rational": Kind(lambda n, _: 1 / (1 + n), lambda n, factor: -factor.square()),
    "none": Kind(lambda n, _: torch.ones_like(n), lambda n, _: torch.zeros_like(n)),
}


def kind_of(name: str, argument: str = "squash") -> Kind:
    """Return the row of :data:`SQUASHES` with that name.

    Raises:
        ValueError: if there is none; names the argument.
    """
    kind = SQUASHES.get(name)
    if kind is None:
        raise ValueError(f"{argument} must be one of {sorted(SQUASHES)}, got {name!r}")
    return kind


def _squash(pose: Tensor, kind: Kind, dim: Dims) -> Tensor:
    """The squash as a formula, which autograd differentiates to any order."""
    return pose * kind.factor(*_length(pose, dim))


class _Squash(torch.autograd.Function):
    r""":func:`_squash` with its gradient :math:`g\, u + g' \langle s, u \rangle s / n`,
    g the factor, u from above.
    """

    @staticmethod
    def forward(ctx: Any, pose: Tensor, kind: Kind, dim: Dims) -> Tensor:
        squared = pose.square().sum(dim, keepdim=True)
        n = squared.sqrt()
        factor = kind.factor(n, squared)
        ctx.kind = kind
        ctx.dim = dim
        ctx.save_for_backward(pose, n, factor)
        return pose * factor

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        pose, n, factor = ctx.saved_tensors
        # It may be differentiated again.
        if torch.is_grad_enabled():
            gradients = torch.autograd.grad(
                _squash(pose, ctx.kind, ctx.dim), pose, upstream, create_graph=True
            )
            return *gradients, None, None
        along = (pose * upstream).sum(ctx.dim, keepdim=True)
        n = torch.threshold(n, 0.0, math.inf)  # what is divided by it is 0 there
        along = along.mul_(ctx.kind.slope(n, factor)).div_(n)
        return torch.addcmul(upstream * factor, pose, along), None, None


def squash(pose: Tensor, kind: str = "sabour", dim: Dims = -1) -> Tensor:
    r"""Shorten a pose s of length n to a length below 1 and keep its direction:
    :math:`f(n)\, s / n`.

    =============== ================== ======================================
    kind            f(n)               source
    =============== ================== ======================================
    ``sabour``      n² / (1 + n²)      Sabour et al. 2017, equation 1
    ``half``        n² / (0.5 + n²)    Su 2018, for inner-product K-Means
    ``tanh``        tanh n             Su 2018
    ``exponential`` 1 - exp(-n)        Su 2018; Mazzia et al. 2021
    ``rational``    n / (1 + n)        Su 2018
    ``none``        n
    =============== ================== ======================================

    Zero gives zero, with a finite gradient; NaN gives NaN, in value and gradient, and
    so does an infinite number (not under ``none``). A pose whose square overflows
    (1.8e19 in float32) counts as infinitely long and gives NaN, or 0 under ``tanh``,
    ``exponential`` and ``rational``. Computed in float32 at least and returned in the
    dtype of ``pose``, for integers in the default one.

    Args:
        pose: any shape.
        kind: a row of the table.
        dim: the axis, or axes for matrix capsules, that one pose spans.

    Raises:
        TypeError: if the pose is not a tensor.
        ValueError: if ``kind`` is not in the table, or the pose is complex.
    """
    row = kind_of(kind, "kind")
    wide = _wide(pose)
    if kind == "none":
        squashed = wide
    elif needs_plain_ops():
        squashed = _squash(wide, row, dim)
    elif wide.requires_grad and torch.is_grad_enabled():
        squashed = _Squash.apply(wide, row, dim)
    else:
        squared = wide.square().sum(dim, keepdim=True)
        squashed = wide * row.factor(squared.sqrt(), squared)
    return squashed if wide is pose else squashed.to(real_dtype("pose", pose))


def squash_by(constant: float, pose: Tensor) -> Tensor:
    """Return the squash n² / (c + n²) along the last axis, as a formula.

    Args:
        constant: c.
        pose: any shape.
    """
    return _squash(pose, _rational_in_squares(constant), -1)


@settings
class Squash(SuggestsNames, nn.Module):
    """Module form of :func:`squash`.

    Raises:
        ValueError: if there is no such kind.

    Example:
        >>> pose = torch.tensor([[3.0, 4.0]])  # 5 long
        >>> tc.length(tc.Squash("sabour")(pose))  # 25 / 26
        tensor([0.9615])
    """

    kind: SquashKind = "sabour"
    dim: Dims = -1

    def forward(self, pose: Tensor) -> Tensor:
        """Apply the squash; the shape is unchanged."""
        return squash(pose, self.kind, self.dim)

    def extra_repr(self) -> str:
        """Return kind and axis."""
        return f"kind={self.kind!r}, dim={self.dim}"


@settings
class LearnedSquash(SuggestsNames, nn.Module):
    r"""Squash with a learned constant: :math:`f(n) = n^2 / (c + n^2)`, with :math:`c =
    e^\theta`.

    It is the squash of Sabour et al. 2017 for a pose :math:`\sqrt c` times shorter:
    behind a layer whose own scale is free, such as :class:`~torchcaps.CapsLinear`, c
    adds nothing that the transforms could not learn, only another rate.

    Args:
        start: c before training.
        dim: the axis, or axes for matrix capsules, that one pose spans.

    Raises:
        ValueError: if ``start`` is not above 0.

    Source: Su 2018, "A Feast of Capsules", where c is 1 or 0.5, and the comments of its
    readers.

    Example:
        >>> squash = tc.LearnedSquash(start=0.5)
        >>> torch.allclose(
        ...     squash(torch.ones(2, 8)), tc.squash(torch.ones(2, 8), "half")
        ... )
        True
    """

    start: Positive = 1.0
    dim: Dims = -1

    def __post_init__(self) -> None:
        self.log_constant = nn.Parameter(torch.tensor(math.log(self.start)))

    @property
    def constant(self) -> Tensor:
        """Return c."""
        return self.log_constant.exp()

    def forward(self, pose: Tensor) -> Tensor:
        """Apply the squash; the shape is unchanged."""
        constant = self.constant
        fixed = constant.detach()
        scaled = _wide(pose) * fixed.rsqrt()
        # 1 with a gradient: through the length of a long pose, that of c would be a
        # small difference of large numbers.
        squared = scaled.square().sum(self.dim, keepdim=True)
        unit = (1 + squared) / (constant / fixed + squared)
        return (squash(scaled, dim=self.dim) * unit).to(real_dtype("pose", pose))

    def extra_repr(self) -> str:
        """Return the current constant, and the axis."""
        return f"constant={self.constant.item():.4g}, dim={self.dim}"
