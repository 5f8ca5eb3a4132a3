"""Dynamic routing (Sabour, Frosst & Hinton 2017)."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from torchcaps.numerics import check_choice
from torchcaps.ops import InnerProduct, Votes
from torchcaps.routing.base import (
    GRADIENTS,
    Gradient,
    LayerShape,
    Routed,
    Steps,
    check_parents,
    check_steps,
    gradient_context,
    register_routing,
)
from torchcaps.routing.evidence import AgreementRouting
from torchcaps.routing.means import Softmax, check_softmax, under_softmax
from torchcaps.spec import settings
from torchcaps.squashing import SquashInRouting, kind_of, length, squash

Squashed = Callable[[Tensor], Tensor]
"""From poses (B, J, H) to squashed ones."""


def dynamic_routing(
    votes: Votes,
    weights: Tensor | None = None,
    *,
    steps: int = 3,
    bias: Tensor | None = None,
    accumulate: bool = True,
    orphan: bool = False,
    squash_kind: str | Squashed = "sabour",
    gradient: Gradient = "all",
    initial: Routed | None = None,
    softmax: Softmax = "parents",
) -> Routed:
    r"""Route by agreement.

    .. math::
        R_{ij} = \operatorname{softmax}_j \langle \alpha_j, V_{ij} \rangle, \quad
        v_j = \operatorname{squash}\Big(\sum_i R_{ij} V_{ij} + \text{bias}_j\Big), \quad
        \alpha_j \mathrel{+}= v_j

    from :math:`\alpha = 0`. The paper adds up logits, :math:`b_{ij} \mathrel{+}=
    \langle V_{ij}, v_j \rangle`; because the inner product is linear, adding up
    :math:`v_j` is the same and needs no (B, I, J) state.

    Args:
        votes: the votes of I children for J parents.
        weights: child activations, (N, G), or None. The paper has none: the length of a
            child's pose is its activation, and scales its votes already.
        steps: how many times the assignment is made, the uniform first one included
            (the paper's r).
        bias: added before each squash, (J, H), or None (the released code has one).
        accumulate: False keeps only the last step, :math:`\alpha_j = v_j` (Su 2018a,
            section on the accumulation).
        orphan: leaky routing: a zero logit "none of these parents" beside the parents
            (released code).
        squash_kind: a row of the table in :func:`~torchcaps.squash`; or a function of
            the poses (B, J, H), such as a :class:`~torchcaps.LearnedSquash`, with which
            the steps are made one by one.
        gradient: through ``"all"`` steps as in the released code, or through the
            ``"last"`` only, where alpha is then a constant; many ports detach the
            earlier steps.
        initial: parents of an earlier call to go on from, alpha included.
        softmax: over the ``"parents"`` of a child; or over the ``"children"`` of a
            parent, whose pose is then the squash of a weighted mean of its votes, from
            1 / I. Su 2018a tried both and found little difference.

    Raises:
        ValueError: if ``initial`` comes from another similarity than inner products; if
            there is no such softmax, or an orphan beside one over the children.

    Source: Sabour, Frosst & Hinton 2017, "Dynamic Routing Between Capsules", Procedure
    1; the code released with it.
    """
    check_steps(steps)
    check_choice("gradient", gradient, GRADIENTS)
    if softmax != "parents":
        votes = under_softmax(votes, softmax, orphan=orphan)
    if orphan:
        votes = votes.restricted(orphan=True)
    squashed: Squashed
    if isinstance(squash_kind, str):
        kind_of(squash_kind)
        squashed = partial(squash, kind=squash_kind)
    else:
        squashed = squash_kind
    pose: Tensor | None = None
    alpha = None if initial is None else _alpha_after(initial, accumulate)
    similarity: InnerProduct | None = None
    for step in range(steps):
        with gradient_context(gradient, step, steps):
            if pose is not None:
                alpha = _next_alpha(pose, alpha, accumulate)
            if alpha is not None:
                # Under "last", the last step takes the earlier ones as constants.
                alpha = alpha.detach() if gradient == "last" else alpha
                similarity = InnerProduct(alpha)
            total = votes.moments(similarity, weights).sum
            pose = squashed(total if bias is None else total + bias)
    assert pose is not None
    return Routed(pose, length(pose), votes, similarity)


def _next_alpha(pose: Tensor, alpha: Tensor | None, accumulate: bool) -> Tensor:
    """What the next step compares the votes with: the pose, or with ``accumulate`` the
    sum of all poses so far.
    """
    return pose if alpha is None or not accumulate else alpha + pose


def _alpha_after(routed: Routed, accumulate: bool) -> Tensor:
    """What the next step compares the votes with."""
    if not accumulate or routed.similarity is None:
        return routed.pose
    if not isinstance(routed.similarity, InnerProduct):
        raise ValueError(
            "initial must come from inner products, got "
            f"{type(routed.similarity).__name__}"
        )
    return _next_alpha(routed.pose, routed.similarity.alpha, accumulate)


@register_routing("dynamic")
@settings
class DynamicRouting(AgreementRouting):
    """Module form of :func:`dynamic_routing`.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        bias: learn a bias inside the loop, (J, H), starting at 0.1, as in the released
            code.
        accumulate: add the agreement up over the steps (Sabour), or keep the last (Su
            2018a).
        orphan: leaky routing.
        squash: a row of the table in :func:`~torchcaps.squash`, or ``learned``: n² / (c
            + n²), whose constant c is learned inside the routing, from 1 on
            (:class:`~torchcaps.LearnedSquash`).
        gradient: through all steps, or only the last.
        softmax: over the ``parents`` of a child, or over the ``children`` of a parent.
        evidence: learn where each child belongs by itself, and start from that: see
            :class:`~torchcaps.routing.AgreementRouting`.

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
    orphan: bool = False
    squash: SquashInRouting = "sabour"
    gradient: Gradient = "all"
    softmax: Softmax = "parents"

    def __post_init__(self) -> None:
        check_softmax(self.softmax, orphan=self.orphan)
        self.within_window = self.softmax == "children"
        self.register_parameter("offset", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the bias, if any."""
        if self.bias:
            self.offset = nn.Parameter(torch.full((shape.parents, shape.size), 0.1))

    def route(
        self,
        votes: Votes,
        activation: Tensor | None,
        initial: Routed | None = None,
    ) -> Routed:
        """Route the votes; the child activations are the lengths of their poses, and
        are not used again.
        """
        if self.offset is not None:
            check_parents(self, self.offset, votes)
        return dynamic_routing(
            votes,
            steps=self.steps,
            bias=self.offset,
            accumulate=self.accumulate,
            orphan=self.orphan,
            squash_kind=self.squashed(self.squash),
            gradient=self.gradient,
            initial=initial,
            softmax=self.softmax,
        )
