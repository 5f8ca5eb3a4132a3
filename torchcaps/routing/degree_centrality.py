"""Degree-centrality routing (Venkataraman, Balasubramanian & Sarma 2020): votes count
by how much they look alike.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.numerics import Floor
from torchcaps.ops import Given, Similarity, Votes, axes
from torchcaps.routing.base import Routed, Routing, register_routing
from torchcaps.spec import settings
from torchcaps.squashing import SquashKind, length, squash


@dataclass(frozen=True, eq=False)
class Degree(Similarity):
    r"""The degree of each vote among those for its parent, :math:`\langle V_{ij}, S_j
    \rangle / |V_{ij}|^2`; 0 without gradient for a vote that is too short.

    Args:
        total: :math:`S_j`, the sum of all votes for a parent, (B, J, H).
        epsilon: the squared length up to which a vote is too short.
    """

    total: Tensor = axes("BJH")
    epsilon: float = 1e-8

    def logits(self, votes: Tensor) -> Tensor:
        """Return the logits (B, I, J) of votes (B, I, J, H)."""
        squared = votes.square().sum(-1)
        # Divided by epsilon, a vote of 0 would have a gradient of 1 / epsilon.
        squared = torch.threshold(squared, self.epsilon, math.inf)
        return torch.einsum("bijh,bjh->bij", votes, self.total) / squared


@register_routing("degree_centrality")
@settings
class DegreeCentralityRouting(Routing):
    r"""The votes for a parent are a graph, and each counts by its degree in it.

    .. math::
        d_{ij} = \sum_{i'} \frac{\langle V_{ij}, V_{i'j} \rangle}{|V_{ij}|^2}, \quad
        R_{ij} = \operatorname{softmax}_i d_{ij}, \quad
        v_j = \operatorname{squash} \sum_i R_{ij} V_{ij}

    One pass. The softmax is over the CHILDREN: parents do not compete, and the shares
    of a child need not add up to 1. An edge is divided by the squared length of just
    the vote where it starts, as in the authors' code, and is a cosine only between
    votes of one length. The sum over i' moves into the inner product, so there is no
    matrix of all pairs of votes; the shares are formed, (B, I, J). Runs on ``naive``,
    which stores the votes, and on ``chunked``.

    Args:
        squash: a row of the table in :func:`~torchcaps.squash`.
        epsilon: the squared length up to which a vote has degree 0.

    Source: Venkataraman, Balasubramanian & Sarma 2020, "Building Deep Equivariant
    Capsule Networks", section 3; the code released with it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.DegreeCentralityRouting()
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    within_window = True
    uses_activation = False

    squash: SquashKind = "sabour"
    epsilon: Floor = 1e-8

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; the activations of the children are not used."""
        similarity = Given(votes.logits(Degree(votes.total(), self.epsilon)))
        votes = votes.over_children()
        pose = squash(votes.moments(similarity).sum, self.squash)
        return Routed(pose, length(pose), votes, similarity)
