"""Means and shares of votes that do not depend on the scale of the child
activations.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from torchcaps.numerics import quotient
from torchcaps.ops import Moments, Similarity, Votes


def weights_for_means(votes: Votes, weights: Tensor | None) -> Tensor:
    """Return child activations times one large number, (N, G): a parent's mass is
    negligible below 1e-29, not below 1e-19.

    A parent far from all votes may take 1e-25 of each child. Its mean is still that of
    the votes, but in float32 ``Moments.mean`` divides by no less than 1e-19, so that no
    derivative overflows: the mean would go to the origin. With a still larger number,
    sums of large poses would overflow, and so would gradients of shares that nearly
    underflow.

    Args:
        votes: the votes of I children for J parents.
        weights: child activations, (N, G), or None for ones.
    """
    dtype = votes.dtype
    # A power of two, 2^31 in float32, so that no digit changes.
    large = 2.0 ** (-math.log2(torch.finfo(dtype).tiny) // 4)
    weights = votes.present(weights)
    if weights is None:
        return votes.children.new_full(votes.children.shape[:2], large, dtype=dtype)
    return weights.to(dtype) * large


Softmax = Literal["parents", "children"]
"""Over what the softmax of an assignment is: which of them compete."""


def check_softmax(softmax: Softmax, **settings: bool) -> None:
    """Check what is chosen beside a softmax over the children of a parent.

    Args:
        softmax: over what it is.
        settings: settings that only make sense where parents compete, and whether they
            are chosen.

    Raises:
        ValueError: if one of them is chosen beside ``"children"``.
    """
    chosen = [name for name, value in settings.items() if value]
    if softmax == "children" and chosen:
        raise ValueError(
            f"softmax must be over 'parents' with {chosen[0]}, where these compete "
            "for a child"
        )


def moments_and_shares(
    votes: Votes,
    similarity: Similarity | None,
    weights: Tensor | None,
    *,
    scatter: bool = False,
) -> tuple[Moments, Tensor]:
    r"""Return the moments of the votes, up to one factor of mass and sum, and what each
    parent takes of the children, (B, J).

    .. math:: \frac{\sum_i a_i R_{ij}}{\sum_i a_i}

    Where all children are off that is 0, with a gradient of 0: in a stack of layers,
    the large numbers that other gradients are there would multiply, and overflow.

    Args:
        votes: the votes of I children for J parents.
        similarity: the similarity of votes and parents.
        weights: child activations, (N, G), or None for ones.
        scatter: whether to compute the second moment, too.
    """
    weights = weights_for_means(votes, weights)
    moments = votes.moments(similarity, weights, scatter=scatter)
    return moments, quotient(moments.mass, votes.gather(weights).sum(1, keepdim=True))
