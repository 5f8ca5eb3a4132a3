"""Dynamic routing (Sabour, Frosst & Hinton 2017)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing.base import (
    Gradient,
    LayerShape,
    Routed,
    Steps,
    check_parents,
    gradient_context,
    of_settings,
    register_routing,
)
from torchcaps.routing.evidence import AgreementRouting
from torchcaps.routing.means import Softmax, check_softmax
from torchcaps.spec import settings
from torchcaps.squashing import SquashInRouting, length


def route_by_agreement(
    votes: Votes,
    *,
    steps: int,
    squashed: Callable[[Tensor], Tensor],
    bias: Tensor | None = None,
    accumulate: bool = True,
    gradient: Gradient = "all",
    alpha: Tensor | None = None,
) -> Routed:
    r"""Make the steps of :class:`DynamicRouting`, under the competition of the votes.

    Args:
        votes: the votes of I children for J parents.
        steps: how many times the assignment is made.
        squashed: the squash of the parents, (B, J, H).
        bias: added before each squash, (J, H), or None.
        accumulate: whether :math:`\alpha` adds up the parents, or keeps the last.
        gradient: through all steps, or only the last.
        alpha: what the first step compares the votes with, (B, J, H); None for uniform
            assignments.
    """
    if alpha is not None and gradient == "last":
        alpha = alpha.detach()
    for step in range(steps):
        with gradient_context(gradient, step, steps):
            similarity = None if alpha is None else InnerProduct(alpha)
            total = votes.moments(similarity).sum
            pose = squashed(total if bias is None else total + bias)
            if step < steps - 1:
                alpha = pose if alpha is None or not accumulate else alpha + pose
    return Routed(pose, length(pose), votes, similarity)


@register_routing("dynamic")
@settings
class DynamicRouting(AgreementRouting):
    r"""Route by agreement.

    .. math::
        R_{ij} = \operatorname{softmax}_j \langle \alpha_j, V_{ij} \rangle, \quad
        v_j = \operatorname{squash}\Big(\sum_i R_{ij} V_{ij} + \text{bias}_j\Big), \quad
        \alpha_j \mathrel{+}= v_j

    from :math:`\alpha = 0`. The paper adds up logits, :math:`b_{ij} \mathrel{+}=
    \langle V_{ij}, v_j \rangle`; because the inner product is linear, adding up
    :math:`v_j` is the same and needs no (B, I, J) state. The length of a child's pose
    is its activation, and scales its votes already.

    Args:
        steps: how many times the assignment is made, the uniform first one included
            (the paper's r).
        bias: learn a bias inside the loop, (J, H), starting at 0.1, as in the released
            code.
        accumulate: add the agreement up over the steps (Sabour), or keep the last,
            :math:`\alpha_j = v_j` (Su 2018a, section on the accumulation).
        leaky: leaky routing: a zero logit "none of these parents" beside the parents
            (released code).
        squash: a row of the table in :func:`~torchcaps.squash`, or ``learned``: n² / (c
            + n²), whose constant c is learned inside the routing, from 1 on
            (:class:`~torchcaps.LearnedSquash`).
        gradient: through ``all`` steps as in the released code, or through the ``last``
            only, where alpha is then a constant; many ports detach the earlier steps.
        softmax: over the ``parents`` of a child; or over the ``children`` of a parent,
            whose pose is then the squash of a weighted mean of its votes, from 1 / I.
            Su 2018a tried both and found little difference.
        evidence: learn where each child belongs by itself, and start from that: see
            :class:`~torchcaps.routing.AgreementRouting`.

    Source: Sabour, Frosst & Hinton 2017, "Dynamic Routing Between Capsules", Procedure
    1; the code released with it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.DynamicRouting(steps=3)
        ... )
        >>> routed = layer.route(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32)))
        >>> routed.pose.shape, routed.assignment.shape
        (torch.Size([4, 10, 16]), torch.Size([4, 32, 10]))
    """

    resumable = True
    uses_activation = False

    steps: Steps = 3
    bias: bool = False
    accumulate: bool = True
    leaky: bool = False
    squash: SquashInRouting = "sabour"
    gradient: Gradient = "all"
    softmax: Softmax = "parents"

    exact_gradients = of_settings(lambda routing: routing.gradient == "all")
    within_window = of_settings(lambda routing: routing.softmax == "children")

    def __post_init__(self) -> None:
        check_softmax(self.softmax, leaky=self.leaky)
        self.register_parameter("offset", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the bias, if any."""
        if self.bias:
            self.offset = nn.Parameter(torch.full((shape.parents, shape.size), 0.1))

    def route(
        self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
    ) -> Routed:
        """Route the votes; the child activations are the lengths of their poses, and
        are not used again. With ``initial``, it goes on from those parents, alpha
        included.

        Raises:
            ValueError: if ``initial`` comes from another similarity than inner
                products.
        """
        if self.offset is not None:
            check_parents(self, self.offset, votes)
        if self.softmax == "children":
            votes = votes.over_children()
        if self.leaky:
            votes = votes.restricted(leaky=True)
        return route_by_agreement(
            votes,
            steps=self.steps,
            squashed=self.squashed,
            bias=self.offset,
            accumulate=self.accumulate,
            gradient=self.gradient,
            alpha=None if initial is None else self._alpha_after(initial),
        )

    def _alpha_after(self, routed: Routed) -> Tensor:
        """The alpha of the step that follows after these parents."""
        before = routed.similarity
        if before is None or not self.accumulate:
            return routed.pose
        if not isinstance(before, InnerProduct):
            raise ValueError(
                f"initial must come from inner products, got {type(before).__name__}"
            )
        return before.alpha + routed.pose
