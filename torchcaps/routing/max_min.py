"""Routing by agreement with a max-min normalisation in place of the softmax (Zhao et
al. 2019).
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torchcaps.numerics import infinite_if_0, resolution
from torchcaps.ops import Competition, Votes
from torchcaps.routing.base import Routed, Routing, Steps, register_routing
from torchcaps.routing.dynamic import route_by_agreement
from torchcaps.spec import settings
from torchcaps.squashing import SquashKind, squash


@dataclass(frozen=True)
class MaxMin(Competition):
    r"""Each child's logits, scaled linearly to the range from 0 to 1.

    .. math:: R_{ij} = \frac{b_{ij} - \min_j b_{ij}}{\max_j b_{ij} - \min_j b_{ij}}

    and :math:`R_{ij} = 1` for all parents where the logits are all equal, which is to
    say: where they differ by less than :func:`~torchcaps.numerics.resolution` of the
    largest logit of the children at hand. From there to twice that difference the
    assignments go over to the equation evenly. Parents do not compete: the shares of a
    child need not add up to 1.

    Example:
        >>> tc.routing.MaxMin().shares(torch.tensor([[[3.0, 1.0, -1.0]]]))
        tensor([[[1.0000, 0.5000, 0.0000]]])
    """

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """Return the assignments (B, I, J) of logits (B, I, J)."""
        if not logits.numel():  # There is no largest one.
            return logits
        least = logits.amin(-1, keepdim=True)
        most = logits.amax(-1, keepdim=True)
        spread = most - least
        # Of all children at hand: the logit of one may be 0 by cancellation.
        least_spread = resolution(logits.abs().amax((-2, -1), keepdim=True))
        # From 0 at the resolution to 1 at twice that, so that nothing jumps. Logits
        # shrink with the cube of the votes.
        weight = (spread / infinite_if_0(least_spread) - 1).clamp(0, 1)
        depth = weight * (most - logits) / torch.where(weight == 0, 1.0, spread)
        return 1 - depth


@register_routing("max_min")
@settings
class MaxMinRouting(Routing):
    """Dynamic routing under :class:`MaxMin`; the first assignment is 1 for all.

    Args:
        steps: how many times the assignment is made, the first one included.
        squash: a row of the table in :func:`~torchcaps.squash`.

    Source: Zhao, Kleinhans, Sandhu, Patel & Unnikrishnan 2019, "Capsule Networks with
    Max-Min Normalization".

    Example:
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=tc.routing.MaxMinRouting())
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    within_window = True
    uses_activation = False

    steps: Steps = 3
    squash: SquashKind = "sabour"

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; the child activations are the lengths of their poses
        already, and are not used again.
        """
        votes = votes.under(MaxMin())
        squashed = partial(squash, kind=self.squash)
        return route_by_agreement(votes, steps=self.steps, squashed=squashed)
