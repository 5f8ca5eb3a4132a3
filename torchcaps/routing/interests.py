"""Interests of a user: parents that start apart, and share what was chosen so far (Li
et al. 2019; Cen et al. 2020).
"""

from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.numerics import Finite, infinite_if_negligible
from torchcaps.ops import Given, InnerProduct, Votes
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    Steps,
    check_parents,
    register_routing,
)
from torchcaps.spec import settings
from torchcaps.squashing import direction, length, squash

Form = Literal["paper", "released"]


@register_routing("interests")
@settings
class InterestRouting(Routing):
    r"""Routing by agreement from logits that are not alike.

    .. math::
        b_{ij} = \langle V_{ij}, p_j \rangle, \quad R_{ij} = \operatorname{softmax}_j b_{ij}, \quad
        v_j = \operatorname{squash}\Big(\sum_i a_i R_{ij} V_{ij}\Big),
        \quad b_{ij} \mathrel{+}= K \langle V_{ij}, v_j \rangle

    One transform serves all pairs, :math:`V_{ij} = u_i W` (``transforms="subspace"``):
    from uniform logits all parents would be equal, and stay so. The parents to start
    from, p, (J, H), are learned, and begin as normal numbers: in the paper b is drawn
    anew in each call, so that an answer depends on chance, and on the order of the
    children.

    ``released`` is what a library in use computes: votes and parents of length 1,
    :math:`\hat V_{ij}, \hat v_j`, and logits that forget those before, :math:`b_{ij} =
    R_{ij} + K \langle \hat V_{ij}, \hat v_j \rangle`. It takes votes that are the same
    for all parents.

    Args:
        steps: how many times the assignment is made.
        sharpness: K, of the agreement.
        form: ``paper``, or ``released``.

    Source: Li et al. 2019, "Multi-Interest Network with Dynamic Routing for
    Recommendation at Tmall", Algorithm 1 (B2I dynamic routing); Cen et al. 2020,
    "Controllable Multi-Interest Framework", section 3.2; ``released``: the capsule
    module of TorchEasyRec.

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
        """Create p, the parents to start from.

        Raises:
            ValueError: if ``form`` is ``released`` and votes differ between parents.
        """
        if self.form == "released" and not shape.alike:
            raise ValueError(
                "form must be 'paper' where parents get different votes, got "
                "'released': use transforms='subspace' without vote_bias"
            )
        self.start = nn.Parameter(torch.randn(shape.parents, shape.size))

    def route(
        self, votes: Votes, activation: Tensor | None, pairs: Tensor | None = None
    ) -> Routed:
        """Route the votes; children are weighted by their activations.

        Args:
            votes: the votes of I children for J parents.
            activation: the child activations, (N, G), or None for ones.
            pairs: bool (B, I, J), False where a parent is not there for a child.
        """
        logits = self._first_logits(votes)
        if self.form == "released":
            return self._released(votes, activation, logits, pairs)
        for step in range(self.steps):
            logits = _masked(logits, pairs)
            pose = squash(votes.moments(Given(logits), activation).sum)
            if step < self.steps - 1:
                logits = logits + self.sharpness * votes.logits(InnerProduct(pose))
        return Routed(pose, length(pose), votes, Given(logits))

    def _first_logits(self, votes: Votes) -> Tensor:
        """The agreement of the votes with the learned parents, (B, I, J)."""
        check_parents(self, self.start, votes)
        centres = self.start.to(votes.dtype).expand(votes.shape[0], -1, -1)
        return votes.logits(InnerProduct(centres))

    def _released(
        self,
        votes: Votes,
        activation: Tensor | None,
        logits: Tensor,
        pairs: Tensor | None,
    ) -> Routed:
        # A vote of length 1 is the vote with the inverse of its length as weight.
        shrink = 1 / infinite_if_negligible(length(votes.dense()[:, :, 0]))  # [B, I]
        weights = shrink if activation is None else activation * shrink
        for step in range(self.steps):
            logits = _masked(logits, pairs)
            # The direction of the sum, not of its squash: the length of that is about
            # the square of the sum's, and 1e-10 squared would count as 0.
            pose = direction(votes.moments(Given(logits), weights).sum)
            if step < self.steps - 1:
                agreement = self.sharpness * votes.logits(InnerProduct(pose))
                logits = logits.softmax(-1) + agreement * shrink[..., None]
        return Routed(pose, length(pose), votes, Given(logits))


def _masked(logits: Tensor, pairs: Tensor | None) -> Tensor:
    """The logits (B, I, J), the least of the dtype where a child must not vote for a
    parent.
    """
    if pairs is None:
        return logits
    return logits.masked_fill(~pairs, torch.finfo(logits.dtype).min)


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
    # Integers: j < log2 n where 2^j < n, without rounding.
    powers = 1 << torch.arange(most, device=lengths.device).clamp(max=62)
    return powers < lengths.clamp(min=2)[:, None]
