"""Layers whose output is the solution of an equation, found by a few unrolled
iterations: routing in miniature.
"""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from torchcaps.numerics import Finite, can_be_read
from torchcaps.routing.base import MOST_STEPS
from torchcaps.spec import SuggestsNames, Within, check, settings

StepsOrNone = Annotated[int, Within(0, MOST_STEPS)]


def implicit_activation(
    x: Tensor, function: Callable[[Tensor], Tensor] = torch.cos, steps: int = 3
) -> Tensor:
    r"""Return the y that solves :math:`y + f(y) = x`, by iteration.

    .. math:: y_0 = x, \quad y_{n+1} = x - f(y_n)

    With f = cos and three steps: :math:`y = x - \cos(x - \cos(x - \cos x))`. The
    inverse of :math:`y + \cos y` has no formula, and needs none. Where :math:`|f'| < 1`
    the error shrinks by a factor of about :math:`|f'(y)|` in each step, and the
    gradient converges to that of the solution, :math:`\partial y / \partial x = 1 / (1
    + f'(y))`; for cos that is everywhere but at :math:`y = \pi / 2 + k \pi`.

    Args:
        x: any shape.
        function: f, element by element.
        steps: how often f is applied, from 0 to 10,000.

    Raises:
        ValueError: if ``steps`` is out of this range.

    Source: Su 2018, "A feast of capsules" (kexue.fm/archives/4819), the first warm-up.
    """
    check(StepsOrNone, steps, "steps")
    y = x
    for _ in range(steps):
        y = x - function(y)
    return y


@settings
class ImplicitActivation(SuggestsNames, nn.Module):
    """Module form of :func:`implicit_activation`.

    Example:
        >>> activation = tc.layers.ImplicitActivation(torch.cos, steps=20)
        >>> y = activation(torch.tensor([1.0]))
        >>> torch.allclose(y + y.cos(), torch.tensor([1.0]), atol=1e-4)
        True
    """

    function: Callable[[Tensor], Tensor] = torch.cos
    steps: StepsOrNone = 3

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation, shape unchanged."""
        return implicit_activation(x, self.function, self.steps)

    def extra_repr(self) -> str:
        """Return the number of steps."""
        return f"steps={self.steps}"


def self_weighted_pooling(
    sequence: Tensor, mask: Tensor | None = None, steps: int = 3, sharpness: float = 1.0
) -> Tensor:
    r"""Encode a sequence as the average that weights each member by its agreement with
    that average.

    .. math::
        x^{(0)} = \frac1n \sum_i x_i, \quad
        x^{(t+1)} = \sum_i \operatorname{softmax}_i \big( K \langle x^{(t)}, x_i \rangle \big) \, x_i

    For K > 0 no step raises the energy :math:`\frac12 |x|^2 - \frac1K \log \sum_i \exp
    (K \langle x, x_i \rangle)`, so it converges. Here the softmax is over the members:
    one parent, and the children compete. In routing it is over the parents.

    Args:
        sequence: (B, n, D).
        mask: bool (B, n), True for members; the other places are ignored, even if NaN.
            None if all are members.
        steps: how often the weights are updated, from 0, which gives the mean, to
            10,000.
        sharpness: K.

    Returns:
        (B, D).

    Raises:
        ValueError: if shapes do not fit, a sequence has no member, or ``steps`` is out
            of its range.

    Source: Su 2018, "A feast of capsules" (kexue.fm/archives/4819), the second warm-up;
    the same step as the retrieval of Ramsauer et al. 2021, "Hopfield Networks is All
    You Need".
    """
    check(StepsOrNone, steps, "steps")
    if sequence.ndim != 3 or not sequence.shape[1] or not sequence.is_floating_point():
        raise ValueError(
            f"sequence must be (B, n > 0, D) of floats, got {sequence.dtype} "
            f"{tuple(sequence.shape)}"
        )
    logits = sequence.new_zeros(sequence.shape[:2])
    if mask is not None:
        if mask.shape != logits.shape or mask.dtype != torch.bool:
            raise ValueError(
                f"mask must be bool (B, n) = {tuple(logits.shape)}, got {mask.dtype} "
                f"{tuple(mask.shape)}"
            )
        if can_be_read(mask) and not mask.any(-1).all():
            raise ValueError("mask leaves a sequence without members")
        logits = logits.masked_fill(~mask, -torch.inf)
        sequence = torch.where(mask[..., None], sequence, 0.0)
    start = logits
    pooled = torch.einsum("bn,bnd->bd", start.softmax(-1), sequence)
    for _ in range(steps):
        logits = start + sharpness * torch.einsum("bd,bnd->bn", pooled, sequence)
        pooled = torch.einsum("bn,bnd->bd", logits.softmax(-1), sequence)
    return pooled


@settings
class SelfWeightedPooling(SuggestsNames, nn.Module):
    """Module form of :func:`self_weighted_pooling`.

    Example:
        >>> pool = tc.layers.SelfWeightedPooling(steps=3)
        >>> pool(torch.randn(2, 20, 64)).shape  # one vector for each sequence
        torch.Size([2, 64])
    """

    steps: StepsOrNone = 3
    sharpness: Finite = 1.0

    def forward(self, sequence: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool sequences (B, n, D) to (B, D)."""
        return self_weighted_pooling(sequence, mask, self.steps, self.sharpness)

    def extra_repr(self) -> str:
        """Return steps and sharpness."""
        return f"steps={self.steps}, sharpness={self.sharpness}"
