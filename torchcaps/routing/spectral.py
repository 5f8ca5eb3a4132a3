"""Spectral routing (Bahadori 2018): a parent is the direction in which its votes vary
most.
"""

from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.numerics import (
    Finite,
    as_constants,
    compute_dtype,
    infinite_if_0,
    transformed,
)
from torchcaps.ops import PARENTS, Votes
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    check_parents,
    register_routing,
)
from torchcaps.spec import settings


@register_routing("spectral")
@settings
class SpectralRouting(Routing):
    r"""The votes for a parent agree as far as they lie on one line through 0.

    .. math::
        Y_j = (a_i V_{ij})_i = \sum_k s_k \, p_k u_k^T, \quad
        \text{pose}_j = \pm u_1, \quad
        a_j = \sigma \Big( \eta \Big( \frac{s_1^2}{\sum_k s_k^2} - b_j \Big) \Big)

    with the singular values :math:`s_1 \ge s_2 \ge \dots` of the I x H matrix of the
    weighted votes. One pass; nothing competes, and the assignment is uniform. The
    singular vector is found from :math:`Y^T Y`, H x H, which is added up from tiles of
    votes: only ``naive`` stores them. Where the two largest eigenvalues are equal, the
    eigenvector has no gradient, and 0 is given. In forward mode and ``torch.func``,
    derivatives are right up to the eighth.

    How well rounding leaves the direction depends on how much longer the first axis is
    than the second: the pose is off by about :math:`\epsilon \sum_k s_k^2 / (s_1^2 -
    s_2^2)`. In float32 that is 1e-5 where the difference is a hundredth of the sum, and
    a tenth where it is a millionth: then one example alone, in a batch, and on another
    backend have different poses. The activation is right to a few :math:`\epsilon`.

    The paper leaves open the sign, here that of the inner product with the weighted sum
    of the votes, and what becomes of a parent without votes: here its pose is 0, and so
    is its ratio.

    Args:
        sharpness: :math:`\eta` of the activation; the authors raise it linearly while
            training goes on.
        bias: where the bias b of each parent starts.

    Source: Bahadori 2018, "Spectral Capsule Networks", section 2.

    Example:
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=tc.routing.SpectralRouting())
        >>> layer(
        ...     tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))
        ... ).activation.shape
        torch.Size([4, 10])
    """

    sharpness: Finite = 1.0
    bias: Finite = 0.1

    def __post_init__(self) -> None:
        self.register_parameter("threshold", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create b, (J,), the bias of each parent."""
        self.threshold = nn.Parameter(torch.full((shape.parents,), float(self.bias)))

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; children are weighted by their activations."""
        if self.threshold is not None:
            check_parents(self, self.threshold, votes)
        bias = self.bias if self.threshold is None else self.threshold
        present = votes.present(activation)
        if present is not None:
            present = present.to(compute_dtype(present)).square()
        gram = votes.gram(present)
        largest, direction = _top_pair(gram) if transformed() else _TopPair.apply(gram)
        total = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        with as_constants():
            # Whatever the competition, as in the Gram matrix.
            weighted_sum = votes.under(PARENTS).moments(weights=activation).sum
            side = (weighted_sum * direction).sum(-1, keepdim=True)
            sign = torch.where(side < 0, -1.0, 1.0) * (total > 0)[..., None]
        ratio = largest / infinite_if_0(total)
        logit = self.sharpness * (ratio - bias)
        return Routed(direction * sign, logit.sigmoid(), votes, None, logit)


class _TopPair(torch.autograd.Function):
    r"""The largest eigenvalue (...) and its eigenvector (..., H) of positive
    semidefinite matrices (..., H, H).

    .. math:: d \lambda = u^T \, dA \, u, \quad du = (\lambda - A)^+ \, dA \, u

    Where another eigenvalue is as large, and for a matrix that is all but zero, du is
    0.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalue and eigenvector."""
        value, top, simple = _eigenpair(matrix)
        ctx.save_for_backward(matrix, value, top, simple)
        return value, top

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor, grad_top: Tensor) -> Tensor:
        """Compute the gradient in operations that can be differentiated again."""
        matrix, value, top, simple = ctx.saved_tensors
        moved = (
            _turn(matrix, value, top, simple, grad_top) + grad_value[..., None] * top
        )
        grad = moved[..., None] * top[..., None, :]
        return (grad + grad.mT) / 2


def _eigenpair(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The largest eigenvalue, its eigenvector, and whether it is simple: no other
    eigenvalue is as large.

    NaN for a matrix that is not finite, where eigh would raise an error for the whole
    batch.
    """
    finite = matrix.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    values, vectors = torch.linalg.eigh(torch.where(finite, matrix, 0.0))
    values = torch.where(finite.squeeze(-1), values, torch.nan)
    vectors = torch.where(finite, vectors, torch.nan)
    gap = values[..., -1:] - values[..., :-1]
    limits = torch.finfo(values.dtype)
    # So that 1 / gap is finite.
    apart = gap > (values[..., -1:] * limits.eps * values.shape[-1]).clamp(
        min=4 * limits.tiny
    )
    value = values[..., -1].contiguous()
    return (
        value,
        vectors[..., -1].contiguous(),
        apart.all(-1) & (value > 4 * limits.tiny),
    )


def _turn(
    matrix: Tensor, value: Tensor, top: Tensor, simple: Tensor, push: Tensor
) -> Tensor:
    """``(lambda - A)^+ b``: how far a push b turns the top eigenvector."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    line = top[..., None] * top[..., None, :]
    system = torch.where(
        simple[..., None, None], value[..., None, None] * (eye + line) - matrix, eye
    )
    sideways = torch.where(
        simple[..., None], push - (push * top).sum(-1, keepdim=True) * top, 0.0
    )
    # linalg.solve is wrong in forward mode inside forward mode.
    factors, pivots, _ = torch.linalg.lu_factor_ex(system)
    return torch.linalg.lu_solve(factors, pivots, sideways[..., None]).squeeze(-1)


def _top_pair(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The same as a formula: Rayleigh quotient iteration from the solution, where its
    steps change nothing.

    A step cubes the error of a vector, so two of them have the derivatives by the
    matrix right up to the eighth.
    """
    _, top, simple = _eigenpair(matrix.detach())
    for _ in range(2):
        image = (matrix @ top[..., None]).squeeze(-1)
        top = top + _turn(matrix, (top * image).sum(-1), top, simple, image)
        top = top / top.norm(dim=-1, keepdim=True)
    return (top * (matrix @ top[..., None]).squeeze(-1)).sum(-1), top
