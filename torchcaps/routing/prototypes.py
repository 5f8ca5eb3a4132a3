"""Routing to learned prototypes (ProtoCaps: Everett, Zhong & Leontidis 2023)."""

import math

import torch
from torch import Tensor, nn

from torchcaps.numerics import Finite
from torchcaps.ops import Gaussian, Votes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    check_parents,
    register_routing,
)
from torchcaps.routing.means import moments_and_shares
from torchcaps.spec import settings


@register_routing("prototypes")
@settings
class PrototypeRouting(Routing):
    r"""One step of soft clustering, about centres that are learned in place of being
    searched for.

    .. math::
        R_{ij} = \operatorname{softmax}_j \big( -K |V_{ij} - p_j|^2 \big), \quad
        \mu_j = \frac{\sum_i a_i R_{ij} V_{ij}}{\sum_i a_i R_{ij}}, \quad
        a_j = \frac{\sum_i a_i R_{ij}}{\sum_i a_i}

    The layer's ``transforms="subspace"`` are the paper's: one transform takes all
    children to a space that they share with the prototypes of all parents,
    :math:`V_{ij} = u_i W`. Runs on all backends; only ``naive`` stores the votes. The
    activations of the parents add up to 1, in a convolution those of one window, where
    these compete: ``competition="window"``. A parent that takes nothing of the children
    has pose 0; in float32 the pose of one that takes far less than 1e-29 is nearly 0.

    There is no public code. From the paper are the shared space, the trainable
    prototypes, the soft assignment to these by similarity, and a single pass. It leaves
    open, or we had to choose: the similarity is a negative squared distance with K = 1
    / sqrt(H); poses are means, weighted by the children's activations, of which each
    parent has its share as activation; prototypes start as standard normal numbers.

    Args:
        sharpness: K; None for 1 / sqrt(H).

    Source: Everett, Zhong & Leontidis 2023, "ProtoCaps: A Fast and Non-Iterative
    Capsule Network Routing Method".

    Example:
        >>> routing = tc.routing.PrototypeRouting()
        >>> layer = tc.CapsLinear(
        ...     None, 10, 8, 16, transforms="subspace", routing=routing
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    sharpness: Finite | None = None

    def __post_init__(self) -> None:
        self.register_parameter("prototypes", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create p, (J, H): one prototype a parent."""
        self.prototypes = nn.Parameter(torch.randn(shape.parents, shape.size))

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; children are weighted by their activations."""
        check_parents(self, self.prototypes, votes)
        B, _, _, H = votes.shape
        centres = self.prototypes.to(votes.dtype).expand(B, -1, -1)
        sharpness = 1 / math.sqrt(H) if self.sharpness is None else self.sharpness
        similarity = Gaussian.spherical(centres, sharpness)
        moments, share = moments_and_shares(votes, similarity, activation)
        return Routed(mean_of(moments), share, votes, similarity)
