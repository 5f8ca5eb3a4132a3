"""Inverted dot-product attention routing (Tsai, Srivastava, Goh & Salakhutdinov
2020).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.numerics import ProperShare, check_floor, full_precision
from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    Steps,
    check_steps,
    register_routing,
)
from torchcaps.spec import settings
from torchcaps.squashing import length


def attention_routing(
    votes: Votes,
    weights: Tensor | None = None,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    steps: int = 2,
    dropout: float = 0.0,
    epsilon: float = 1e-5,
    initial: Routed | None = None,
) -> Routed:
    r"""Children attend to their parents: a softmax over the parents, and a layer
    normalisation of what they get.

    .. math::
        R_{ij} = \operatorname{softmax}_j \frac{\langle v_j, V_{ij} \rangle}{\sqrt{H}}, \quad
        v_j = \operatorname{LayerNorm} \sum_i R_{ij} V_{ij}

    from uniform R, 1 / J. Matrix poses are compared and normalised as wholes, over all
    their H numbers; a pose of one number is not normalised. There is no squash and no
    bias of a parent's own. The activation is the length of the pose, of which a layer
    normalisation leaves little: the authors' classes have a score, one linear readout
    of the pose shared by all (:class:`AttentionRouting` has it as ``readout``). Runs on
    all backends; only ``naive`` stores the votes.

    In a convolution the parents of one window compete: ``competition="window"``. The
    root of H is in the authors' code alone; that the code divides R by its sum plus
    1e-10 once more is left out.

    Args:
        votes: of I children for J parents.
        weights: child activations, (N, G), or None. The paper has none.
        gain: of the layer normalisation, (H,), or None for ones; the same in all
            parents and steps.
        bias: of the layer normalisation, (H,), or None for zeros.
        steps: how many times the assignment is made, the uniform first one included
            (the authors' num_routing).
        dropout: share of the sums that are dropped before the normalisation.
        epsilon: added to the variance in the normalisation.
        initial: parents of an earlier call to go on from: the first assignment is then
            to these.

    Source: Tsai et al. 2020, "Capsules with Inverted Dot-Product Attention Routing",
    Procedure 1.
    """
    check_steps(steps)
    check_floor(epsilon=epsilon)
    size = votes.shape[-1]
    parents = None if initial is None else initial.pose
    similarity: InnerProduct | None = None
    for _ in range(steps):
        if parents is not None:
            similarity = InnerProduct(parents / math.sqrt(size))
        total = votes.moments(similarity, weights).sum
        parents = functional.dropout(total, dropout) if dropout else total
        if size > 1:
            parents = functional.layer_norm(
                parents, (size,), _like(gain, total), _like(bias, total), epsilon
            )
    assert parents is not None
    return Routed(parents, length(parents), votes, similarity)


def _like(parameter: Tensor | None, total: Tensor) -> Tensor | None:
    return None if parameter is None else parameter.to(total.dtype)


@register_routing("attention")
@settings
class AttentionRouting(Routing):
    """Module form of :func:`attention_routing`, with one layer normalisation for all
    parents and steps.

    Concurrent routing, the authors' default, is
    :func:`torchcaps.layers.concurrent_routing` over layers whose routing has one step.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        dropout: share of the sums that are dropped in training.
        readout: learn a readout of the pose shared by all parents, <w, v_j> + b, and
            return it as activation: a class score, of any sign.

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

    def __post_init__(self) -> None:
        self.score: nn.Linear | None = None
        self.register_parameter("gain", None)
        self.register_parameter("bias", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Those of the layer normalisation, which poses of one number do not have, and
        of the readout.
        """
        if shape.size > 1:
            self.gain = nn.Parameter(torch.ones(shape.size))
            self.bias = nn.Parameter(torch.zeros(shape.size))
        if self.readout:
            self.score = nn.Linear(shape.size, 1)

    def route(
        self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
    ) -> Routed:
        """Routes; the activations of the children are not used."""
        dropout = self.dropout if self.training else 0.0
        routed = attention_routing(
            votes,
            gain=self.gain,
            bias=self.bias,
            steps=self.steps,
            dropout=dropout,
            initial=initial,
        )
        if self.score is None:
            return routed
        with full_precision(routed.pose):
            weights = {
                name: weight.to(routed.pose.dtype)
                for name, weight in self.score.named_parameters()
            }
            score = torch.func.functional_call(
                self.score, weights, (routed.pose,)
            )  # so that hooks run
            return routed._replace(activation=score.squeeze(-1))
