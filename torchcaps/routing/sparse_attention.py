"""Sparse attention routing for orthogonal transforms (OrthCaps: Geng et al. 2024)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.ops import Competition, InnerProduct, Votes
from torchcaps.routing.base import Routed, Routing, register_routing
from torchcaps.spec import settings
from torchcaps.squashing import SquashKind, length, squash


@dataclass(frozen=True)
class Entmax(Competition):
    r"""Entmax with :math:`\alpha = 1.5`: a softmax that gives exactly 0 to what is far
    from the best.

    .. math:: R_{ij} = \max(0, l_{ij} / 2 - \tau_i)^2, \quad \sum_j R_{ij} = 1

    The threshold :math:`\tau` is exact: of the k largest halves, with mean m and sum of
    squared deviations d, it is :math:`m - \sqrt{(1 - d) / k}`, for the largest k whose
    members it does not exceed.

    Source: Peters, Niculae & Martins 2019, "Sparse Sequence-to-Sequence Models",
    Algorithm 2.

    Example:
        >>> entmax = tc.routing.Entmax()
        >>> entmax.shares(
        ...     torch.tensor([[[2.0, 1.0, -1.0]]])
        ... )  # what fits badly gets nothing at all
        tensor([[[0.8307, 0.1693, 0.0000]]])
    """

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """Return the assignments (B, I, J) of logits (B, I, J)."""
        half = (logits - logits.detach().amax(-1, keepdim=True)) / 2
        largest = half.sort(-1, descending=True).values
        count = torch.arange(
            1, half.shape[-1] + 1, dtype=half.dtype, device=half.device
        )
        mean = largest.cumsum(-1) / count
        deviation = largest.square().cumsum(-1) - count * mean.square()
        excess = (1 - deviation) / count
        some = excess > 0
        threshold = mean - torch.where(some, torch.where(some, excess, 1.0).sqrt(), 0.0)
        # The count is 0 for NaN alone, which stays NaN.
        last = ((threshold <= largest) & some).sum(-1, keepdim=True).clamp(min=1) - 1
        return (half - threshold.gather(-1, last)).relu().square()


@register_routing("sparse_attention")
@settings
class SparseAttentionRouting(Routing):
    r"""Votes attend to the votes for the same parent, and most pairs of child and
    parent get nothing.

    .. math::
        R_{ij} = \operatorname{entmax}_j \frac{\langle V_{ij}, \sum_{i'} V_{i'j} \rangle}{\sqrt{H}}, \quad
        v_j = \operatorname{squash} \sum_i R_{ij} V_{ij}

    One pass, with :class:`Entmax` in place of a softmax. The layer's
    ``transforms="orthogonal"`` are the paper's: products of Householder reflections,
    which keep the angles between children that are different.

    The repository that the paper names holds no code. From the paper are the orthogonal
    transforms, attention by scaled inner products, entmax, and a single pass. Left
    open, or chosen by us: alpha is 1.5; entmax is over the parents; a vote attends to
    the sum of all votes for its parent, as in
    :class:`~torchcaps.routing.SelfAttentionRouting`, so that no matrix of all pairs is
    formed; the squash is that of Sabour et al. The pruning of similar children before
    the layer is a mask of the layer's.

    Runs on ``naive``, which stores the votes, and on ``chunked``.

    Args:
        squash: a row of the table in :func:`~torchcaps.squash`.

    Source: Geng et al. 2024, "OrthCaps: An Orthogonal CapsNet with Sparse Attention
    Routing and Pruning", section 3.

    Example:
        >>> routing = tc.routing.SparseAttentionRouting()
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 8, transforms="orthogonal", routing=routing
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 8])
    """

    within_window = True
    uses_activation = False

    squash: SquashKind = "sabour"

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; the child activations are the lengths of their poses
        already, and are not used again.
        """
        similarity = InnerProduct(votes.total() / math.sqrt(votes.shape[-1]))
        votes = votes.under(Entmax())
        pose = squash(votes.moments(similarity).sum, self.squash)
        return Routed(pose, length(pose), votes, similarity)
