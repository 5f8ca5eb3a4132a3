"""Self-attention routing (Mazzia, Salvetti & Chiaberge 2021): one pass, without
iteration.
"""

import math

import torch
from torch import Tensor, nn

from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    check_parents,
    register_routing,
)
from torchcaps.spec import settings
from torchcaps.squashing import SquashKind, length, squash


@register_routing("self_attention")
@settings
class SelfAttentionRouting(Routing):
    r"""Votes count by how well they agree with all votes for the same parent.

    .. math::
        R_{ij} = \operatorname{softmax}_j \frac{\langle V_{ij}, \sum_{i'} V_{i'j} \rangle}{\sqrt{H}}, \quad
        v_j = \operatorname{squash}\Big( \sum_i (R_{ij} + b_{ij}) V_{ij} \Big)

    The prior b is added behind the softmax, so what a parent takes of a child may be
    negative, and need not add up to 1 over the parents. The agreement is linear in the
    votes: the matrix of votes times votes that the paper writes down is not needed.
    Runs on all backends; only ``naive`` stores the votes.

    A layer that takes any number of children has one prior for each parent, shared by
    all of them.

    The code released with the paper squashes to :math:`(1 - 1 / (e^n + \epsilon)) s /
    (n + \epsilon)` with :math:`\epsilon = 10^{-20}`: that is ``"exponential"``, to
    rounding.

    Args:
        squash: a row of the table in :func:`~torchcaps.squash`.

    Source: Mazzia, Salvetti & Chiaberge 2021, "Efficient-CapsNet: Capsule Network with
    Self-Attention Routing", section 3.2; the code released with it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.SelfAttentionRouting()
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    uses_activation = False

    squash: SquashKind = "exponential"

    def __post_init__(self) -> None:
        self.register_parameter("offset", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the prior, which starts at 0: (I, J), or (1, J)."""
        self.offset = nn.Parameter(torch.zeros(shape.children or 1, shape.parents))

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; the child activations are the lengths of their poses
        already, and are not used again.
        """
        _, I, J, H = votes.shape
        check_parents(self, self.offset, votes, axis=1)
        similarity = InnerProduct(votes.total() / math.sqrt(H))
        total = votes.moments(similarity).sum + votes.total(self.offset.expand(I, J))
        pose = squash(total, self.squash)
        return Routed(pose, length(pose), votes, similarity)
