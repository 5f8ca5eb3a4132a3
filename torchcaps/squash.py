"""Length of a pose, and the squash functions that turn it into the probability that the thing is there."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchcaps.numerics import compute_dtype

Dims = int | tuple[int, ...]


def _squared_length(pose: Tensor, dim: Dims) -> Tensor:
    return pose.square().sum(dim, keepdim=True)


def _safe_length(squared: Tensor) -> Tensor:
    """The root, with gradient 0 at 0: sqrt alone has an infinite one there. NaN comes through."""
    none = squared == 0
    return torch.where(none, 0.0, torch.where(none, 1.0, squared).sqrt())


def length(pose: Tensor, dim: Dims = -1) -> Tensor:
    r"""Euclidean length :math:`n = \sqrt{\langle s, s \rangle}` along ``dim``, which is dropped; gradient 0 at 0.

    Computed in float32 at least and returned in the dtype of ``pose``. NaN gives NaN, in value and gradient; a pose
    whose square overflows (1.8e19 in float32) has length inf.
    """
    squared = _squared_length(pose.to(compute_dtype(pose)), dim)
    return _safe_length(squared).squeeze(dim).to(pose.dtype)


def _unit(length: Tensor, value: Tensor) -> Tensor:
    """``value / length`` for a value that is about ``length`` near 0, where the ratio is 1."""
    none = length == 0
    return torch.where(none, 1.0, value / torch.where(none, 1.0, length))


# Each gives the factor of the pose, |squash(s)| / |s|, from the squared length.
SQUASHES: dict[str, Callable[[Tensor], Tensor]] = {
    "sabour": lambda squared: _safe_length(squared) / (1 + squared),
    "half": lambda squared: _safe_length(squared) / (0.5 + squared),
    "tanh": lambda squared: _unit(n := _safe_length(squared), n.tanh()),
    "exponential": lambda squared: _unit(n := _safe_length(squared), -torch.expm1(-n)),
    "rational": lambda squared: 1 / (1 + _safe_length(squared)),
    "none": torch.ones_like,
}


def squash(pose: Tensor, kind: str = "sabour", dim: Dims = -1) -> Tensor:
    r"""Shortens a pose to a length below 1 and keeps its direction: :math:`f(n)\, s / n`.

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

    Zero in gives zero out with a finite gradient; NaN gives NaN, in value and gradient, and so does an infinite number,
    but for ``none``. A pose whose square overflows (1.8e19 in float32) is infinitely long: NaN, or 0 under ``tanh``,
    ``exponential`` and ``rational``. Computed in float32 at least and returned in the dtype of ``pose``.

    Args:
        pose: any shape.
        kind: a row of the table.
        dim: the axis, or axes for matrix capsules, that one pose spans.

    Raises:
        ValueError: if ``kind`` is not in the table.
    """
    factor = SQUASHES.get(kind)
    if factor is None:
        raise ValueError(f"squash must be one of {sorted(SQUASHES)}, got {kind!r}")
    wide = pose.to(compute_dtype(pose))
    return (wide * factor(_squared_length(wide, dim))).to(pose.dtype)


class Squash(nn.Module):
    """Module form of :func:`squash`.

    Example:
        >>> pose = torch.tensor([[3.0, 4.0]])  # 5 long
        >>> tc.length(tc.Squash("sabour")(pose))  # 25 / 26
        tensor([0.9615])
    """

    def __init__(self, kind: str = "sabour", dim: Dims = -1) -> None:
        super().__init__()
        if kind not in SQUASHES:
            raise ValueError(f"squash must be one of {sorted(SQUASHES)}, got {kind!r}")
        self.kind = kind
        self.dim = dim

    def forward(self, pose: Tensor) -> Tensor:
        """Applies the squash, shape unchanged."""
        return squash(pose, self.kind, self.dim)

    def extra_repr(self) -> str:
        """Kind and axis."""
        return f"kind={self.kind!r}, dim={self.dim}"
