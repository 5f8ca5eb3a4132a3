"""Self-routing (Hahn, Pyeon & Kim 2019): each child chooses its parents by itself,
without agreement.
"""

import math

import torch
from torch import Tensor, nn

from torchcaps.numerics import compute_dtype, full_precision
from torchcaps.ops import Given, Votes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    check_parents,
    register_routing,
)
from torchcaps.routing.means import moments_and_shares


@register_routing("self_routing")
class SelfRouting(Routing):
    r"""A linear layer of each child's own decides where it goes.

    .. math::
        R_{ij} = \operatorname{softmax}_j (u_i W^{(2)}_i + b^{(2)}_i)_j, \quad
        \mu_j = \frac{\sum_i a_i R_{ij} V_{ij}}{\sum_i a_i R_{ij}}, \quad
        a_j = \frac{\sum_i a_i R_{ij}}{\sum_i a_i}

    The activations of the parents add up to 1: the loss is the negative log-likelihood.
    In a convolution those of the parents of one window do, where these compete, as in
    the paper: ``competition="window"``. Where all children are off, activations and
    poses are 0; in float32 the pose of a parent that takes far less than 1e-29 of the
    children is nearly 0.

    The parameters start at 0, where all parents are equal. Squashed poses hardly move
    them from there: give it children with learned activations, as the paper does. A
    layer that takes any number of children has one set of parameters, shared by all of
    them.

    Source: Hahn, Pyeon & Kim 2019, "Self-Routing Capsule Networks", section 3.

    Example:
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=tc.routing.SelfRouting())
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the weights :math:`W^{(2)}`, (I, J, M * P), and biases, (I, J)."""
        children = shape.children or 1
        self.weight = nn.Parameter(
            torch.zeros(children, shape.parents, math.prod(shape.in_pose))
        )
        self.bias = nn.Parameter(torch.zeros(children, shape.parents))

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; children are weighted by their activations."""
        check_parents(self, self.bias, votes, axis=1)
        dtype = compute_dtype(votes.poses, self.weight)
        children = votes.gather(votes.poses.flatten(2)).to(dtype)
        with full_precision(children):
            scores = torch.einsum("bip,ijp->bij", children, self.weight.to(dtype))
            similarity = Given(scores + self.bias)
        moments, share = moments_and_shares(votes, similarity, activation)
        return Routed(mean_of(moments), share, votes, similarity)
