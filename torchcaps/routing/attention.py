"""Inverted dot-product attention routing (Tsai, Srivastava, Goh & Salakhutdinov
2020).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.numerics import Floor, ProperShare, full_precision
from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing.base import LayerShape, Routed, Routing, Steps, register_routing
from torchcaps.routing.slot_parts import applied
from torchcaps.spec import settings
from torchcaps.squashing import length


@register_routing("attention")
@settings
class AttentionRouting(Routing):
    r"""Children attend to their parents: a softmax over the parents, and a layer
    normalisation of what they get.

    .. math::
        R_{ij} = \operatorname{softmax}_j \frac{\langle v_j, V_{ij} \rangle}{\sqrt{H}}, \quad
        v_j = \operatorname{LayerNorm} \sum_i R_{ij} V_{ij}

    from uniform R, 1 / J. Matrix poses are compared and normalised as wholes, over all
    their H numbers; a pose of one number is not normalised. All parents and steps share
    one layer normalisation. There is no squash and no bias of a parent's own. The
    activation is the length of the pose, of which a layer normalisation leaves little:
    the authors' classes have a score instead, see ``readout``. Runs on all backends;
    only ``naive`` stores the votes.

    In a convolution the parents of one window compete: ``competition="window"``. The
    root of H is in the authors' code alone; that the code divides R by its sum plus
    1e-10 once more is left out. Concurrent routing, the authors' default, is
    :func:`torchcaps.layers.concurrent_routing` over layers whose routing has one step.

    Args:
        steps: how many times the assignment is made, the uniform first one included
            (the authors' num_routing).
        dropout: share of the sums that are dropped before the normalisation, in
            training.
        readout: whether to learn a readout of the pose shared by all parents, <w, v_j>
            + b, and return it as activation: a class score, of any sign.
        epsilon: the number that is added to the variance in the normalisation.

    Source: Tsai et al. 2020, "Capsules with Inverted Dot-Product Attention Routing",
    Procedure 1.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.AttentionRouting(steps=2)
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    resumable = True
    uses_activation = False

    steps: Steps = 2
    dropout: ProperShare = 0.0
    readout: bool = False
    epsilon: Floor = 1e-5

    def __post_init__(self) -> None:
        self.score: nn.Linear | None = None
        self.register_parameter("gain", None)
        self.register_parameter("bias", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create those of the layer normalisation, which poses of one number do not
        have, and of the readout.
        """
        self.gain = self.bias = None
        if shape.size > 1:
            self.gain = nn.Parameter(torch.ones(shape.size))
            self.bias = nn.Parameter(torch.zeros(shape.size))
        if self.readout:
            self.score = nn.Linear(shape.size, 1)

    def route(
        self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
    ) -> Routed:
        """Route the votes; the activations of the children are not used. With
        ``initial``, the first assignment is to those parents.
        """
        size = votes.shape[-1]
        parents = None if initial is None else initial.pose
        similarity: InnerProduct | None = None
        for _ in range(self.steps):
            if parents is not None:
                similarity = InnerProduct(parents / math.sqrt(size))
            parents = self._normalised(votes.moments(similarity).sum)
        assert parents is not None
        return Routed(parents, self._activation(parents), votes, similarity)

    def _normalised(self, total: Tensor) -> Tensor:
        """The sums (B, J, H) after dropout and the layer normalisation."""
        if self.training and self.dropout:
            # Chance goes by the layout in memory, which differs between backends.
            total = functional.dropout(total.contiguous(), self.dropout)
        size = total.shape[-1]
        if size == 1:
            return total
        gain = _like(self.gain, total)
        bias = _like(self.bias, total)
        return functional.layer_norm(total, (size,), gain, bias, self.epsilon)

    def _activation(self, pose: Tensor) -> Tensor:
        """The lengths of the poses, or what is read from them, (B, J)."""
        if self.score is None:
            return length(pose)
        with full_precision(pose):
            return applied(self.score, pose).squeeze(-1)


def _like(parameter: Tensor | None, total: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(total.dtype)
