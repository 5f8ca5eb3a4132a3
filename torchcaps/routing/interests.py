"""Interests of a user: parents that start apart, and share what was chosen so far (Li
et al. 2019; Cen et al. 2020).
"""

from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.numerics import Finite, check_choice, positive
from torchcaps.ops import Given, InnerProduct, Votes
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    Steps,
    check_parents,
    check_steps,
    register_routing,
)
from torchcaps.spec import settings
from torchcaps.squashing import length, squash

Form = Literal["paper", "released"]


def interest_routing(
    votes: Votes,
    weights: Tensor | None,
    start: Tensor,
    *,
    steps: int = 3,
    sharpness: float = 1.0,
    form: Form = "paper",
    pairs: Tensor | None = None,
) -> Routed:
    r"""Routing by agreement from logits that are not alike.

    .. math::
        R_{ij} = \operatorname{softmax}_j b_{ij}, \quad v_j = \operatorname{squash}\Big(\sum_i a_i R_{ij} V_{ij}\Big),
        \quad b_{ij} \mathrel{+}= K \langle V_{ij}, v_j \rangle

    One transform serves all pairs, :math:`V_{ij} = u_i W` (``transforms="subspace"``):
    from uniform logits all parents would be equal, and stay so. ``released`` is what a
    library in use computes: votes and parents of length 1, :math:`\hat V_{ij}, \hat
    v_j`, and logits that forget those before, :math:`b_{ij} = R_{ij} + K \langle \hat
    V_{ij}, \hat v_j \rangle`.

    Args:
        votes: of I children for J parents; ``released`` takes those that are the same
            for all parents.
        weights: child activations, (N, G), or None for ones.
        start: the logits b of the first step, (I, J) or (B, I, J); the paper draws them
            from a normal distribution.
        steps: how many times the assignment is made.
        sharpness: K.
        form: ``paper`` or ``released``.
        pairs: bool (B, I, J), False where a parent is not there for a child.

    Raises:
        ValueError: if there are no steps or no such form, or votes in windows are to be
            ``released``.

    Source: Li et al. 2019, "Multi-Interest Network with Dynamic Routing for
    Recommendation at Tmall", Algorithm 1 (B2I dynamic routing); Cen et al. 2020,
    "Controllable Multi-Interest Framework", section 3.2; ``released``: the capsule
    module of TorchEasyRec.
    """
    check_steps(steps)
    check_choice("form", form, ("paper", "released"))
    logits = start.to(votes.dtype).expand(votes.shape[:3])
    released = form == "released"
    if released and votes.sites is not None:
        raise ValueError(
            "form must be 'paper' for the windows of a convolution, got 'released'"
        )
    if (
        released
    ):  # a vote of length 1 is the vote with the inverse of its length as weight
        shrink = 1 / positive(length(votes.dense()[:, :, 0]))  # [B, I]
        weights = shrink if weights is None else weights * shrink
    for step in range(steps):
        if pairs is not None:
            logits = logits.masked_fill(~pairs, torch.finfo(logits.dtype).min)
        pose = squash(votes.moments(Given(logits), weights).sum)
        if released:
            pose = pose / positive(length(pose))[..., None]
        if step < steps - 1:
            agreement = sharpness * votes.logits(InnerProduct(pose))
            logits = (
                logits.softmax(-1) + agreement * shrink[..., None]
                if released
                else logits + agreement
            )
    return Routed(pose, length(pose), votes, Given(logits))


@register_routing("interests")
@settings
class InterestRouting(Routing):
    r"""Module form of :func:`interest_routing`, from parents that are learned.

    The start is :math:`b_{ij} = \langle V_{ij}, p_j \rangle` with learned p, (J, H),
    that begin as normal numbers: in the paper b is drawn anew in each call, so that an
    answer depends on chance, and on the order of the children.

    Args:
        steps: how many times the assignment is made.
        sharpness: of the agreement, K.
        form: ``paper``, or ``released``.

    Example:
        >>> layer = tc.CapsLinear(
        ...     None,
        ...     4,
        ...     16,
        ...     16,
        ...     transforms="subspace",
        ...     routing=tc.routing.InterestRouting(),
        ... )
        >>> interests = layer(
        ...     torch.randn(2, 30, 16)
        ... )  # 30 items that each of two users chose
        >>> interests.pose.shape
        torch.Size([2, 4, 16])
    """

    masks_pairs = True

    steps: Steps = 3
    sharpness: Finite = 1.0
    form: Form = "paper"

    def __post_init__(self) -> None:
        self.register_parameter("start", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the parents to start from."""
        self.start = nn.Parameter(torch.randn(shape.parents, shape.size))

    def route(
        self, votes: Votes, activation: Tensor | None, pairs: Tensor | None = None
    ) -> Routed:
        """Route the votes; children are weighted by their activations."""
        check_parents(self, self.start, votes)
        start = votes.logits(
            InnerProduct(self.start.to(votes.dtype).expand(votes.shape[0], -1, -1))
        )
        return interest_routing(
            votes,
            activation,
            start,
            steps=self.steps,
            sharpness=self.sharpness,
            form=self.form,
            pairs=pairs,
        )


def label_aware(interests: Tensor, label: Tensor, sharpness: float = 1.0) -> Tensor:
    r"""Read a user's interests with one item: :math:`\sum_j \operatorname{softmax}_j(p
    \langle v_j, e \rangle) v_j`.

    The paper raises the inner products to the power p, which is not defined where one
    is negative; here p multiplies them, as in code that is in use. The larger it is,
    the more the best interest counts alone.

    Args:
        interests: v, (B, J, D).
        label: e, (B, D).
        sharpness: p; infinite for the best interest alone.

    Returns:
        (B, D).

    Source: Li et al. 2019, section 3.4.
    """
    fit = torch.einsum("bjd,bd->bj", interests, label)
    if sharpness == torch.inf:
        return interests[torch.arange(len(fit), device=fit.device), fit.argmax(-1)]
    return torch.einsum("bj,bjd->bd", (sharpness * fit).softmax(-1), interests)


def interests_of(lengths: Tensor, most: int) -> Tensor:
    r"""Return the number of interests of users: :math:`\max(1, \min(J, \lceil \log_2 n
    \rceil))` of n items, as a mask (B, J).

    Args:
        lengths: n, (B,).
        most: J.

    Source: Li et al. 2019, section 3.3, rounded up as in code that is in use.
    """
    count = lengths.clamp(min=1).double().log2().ceil().clamp(1, most)
    return torch.arange(most, device=lengths.device) < count[:, None]
