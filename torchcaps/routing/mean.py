"""No routing (Paik et al. 2019): the control that every routing has to beat."""

from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import Routed, Routing, register_routing
from torchcaps.squashing import length


@register_routing("mean")
class MeanRouting(Routing):
    r"""Every parent takes the mean of its votes, :math:`\mu_j = \sum_i a_i R_{ij} V_{ij}
    / \sum_i a_i R_{ij}`, with R shared evenly by the parents of a child.

    R is 1 / J. Only in a convolution whose parents compete over the whole image is it
    larger for children that fewer windows see. The pose has the scale of the votes; the
    activation is its length. Children without activations count alike.

    Source: Paik, Kwak & Kim 2019, "Capsule Networks Need an Improved Routing
    Algorithm".

    Example:
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=tc.routing.MeanRouting())
        >>> routed = layer.route(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32)))
        >>> routed.assignment.allclose(torch.full((4, 32, 10), 0.1))
        True
    """

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Take the means."""
        pose = mean_of(votes.moments(weights=activation))
        return Routed(pose, length(pose), votes, similarity=None)
