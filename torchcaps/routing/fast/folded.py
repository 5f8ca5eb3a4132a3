"""All steps at once of children whose places share their transforms: in C++, without
votes (:mod:`torchcaps.ops.folded`).
"""

import math

from torch import Tensor

from torchcaps.numerics import cast, full_precision
from torchcaps.ops import InnerProduct, Votes
from torchcaps.ops.folded import FoldedSteps
from torchcaps.ops.fused import folded
from torchcaps.routing.attention import AttentionRouting
from torchcaps.routing.base import Routed, fast
from torchcaps.routing.dynamic import DynamicRouting
from torchcaps.routing.kmeans import InnerProductKMeansRouting
from torchcaps.squashing import kind_of, length


def routed(
    votes: Votes, settings: FoldedSteps, *of_parents: Tensor | None
) -> Routed | None:
    """Return the parents, with the lengths of their poses as activations; None where
    that cannot be in C++.

    Args:
        votes: the votes.
        settings: the settings; the votes' own leaky competes too.
        of_parents: bias (J, H), and gain and shift (H,) of a layer normalisation.
    """
    competition = votes.competition
    if not competition.is_softmax or not votes.shares_transforms:
        return None
    with full_precision(votes.children):
        children = votes.folded()
        if children is None or children.epsilon is not None:
            return None
        if children.transforms.shape[1] < children.parents:
            children = children._replace(transforms=cast(votes.transforms, votes.dtype))
        dtype = votes.dtype
        fields = [None if field is None else cast(field, dtype) for field in of_parents]
        if settings.leaky:
            votes = votes.restricted(leaky=True)
        elif competition.leaky:
            settings = settings._replace(leaky=True)
        result = folded.route(children, settings, *fields)
    if result is None:
        return None
    pose, alpha, lengths = result
    return Routed(pose, lengths, votes, None if alpha is None else InnerProduct(alpha))


def agreement(routing: DynamicRouting, votes: Votes) -> Routed | None:
    """Make all steps of dynamic routing; None where that cannot be in C++."""
    if routing.squash == "learned":
        return None
    constant = kind_of(routing.squash).constant
    if constant is None and routing.squash != "none":
        return None
    bias = routing.offset
    if bias is not None and bias.shape != votes.shape[2:]:
        return None
    settings = FoldedSteps(
        routing.steps, "agreement", routing.leaky, routing.accumulate, constant
    )
    return routed(votes, settings, bias)


@fast(InnerProductKMeansRouting, "native", "steps", "sharpness", "squash", "evidence")
def kmeans(
    routing: InnerProductKMeansRouting, votes: Votes, activation: Tensor | None
) -> Routed | None:
    """Make all steps of inner-product K-Means."""
    constant = None
    if routing.squash != "learned":
        constant = kind_of(routing.squash).constant
    settings = FoldedSteps(
        routing.steps, "directions", constant=constant, scale=routing.sharpness
    )
    result = routed(votes, settings)
    if result is None or constant is not None:
        return result
    pose = routing.squashed(result.pose)
    return result._replace(pose=pose, activation=length(pose))


@fast(AttentionRouting, "native", "steps", "dropout", "readout", "epsilon")
def attention(
    routing: AttentionRouting, votes: Votes, activation: Tensor | None
) -> Routed | None:
    """Make all steps of inverted dot-product attention."""
    size = votes.shape[-1]
    if size == 1 or (routing.training and routing.dropout):
        return None
    settings = FoldedSteps(
        routing.steps, "normalised", scale=1 / math.sqrt(size), epsilon=routing.epsilon
    )
    result = routed(votes, settings, None, routing.gain, routing.bias)
    if result is None:
        return None
    return result._replace(activation=routing._activation(result.pose))
