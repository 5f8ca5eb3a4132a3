r"""Routing by inner products without votes, where places share their transforms: sums
change places with transforms.

A child i is of one of T types and at one of N places, and all places of a type t share
the transforms :math:`W_{tj}`. Then the transform of each vote can go to the parents:

.. math::
    l_{ij} = \langle u_i W_{tj}, \alpha_j \rangle = \langle u_i, W_{tj} \alpha_j \rangle, \qquad
    \sum_i R_{ij} u_i W_{tj} = \sum_t \Big( \sum_{i \in t} R_{ij} u_i \Big) W_{tj}

One small product a step gives the queries :math:`A_{tj} = W_{tj} \alpha_j`. A pair then
takes 4 P operations, forward, where a vote takes 2 P D + 4 D. What is added to votes and
logits folds too: a bias of the votes, their coordinates, and evidence :math:`\langle u_i,
w_{tj} \rangle + e_{tj}`, which is a term of the query.

Symbols are those of :mod:`torchcaps.ops.backend`; E counts the numbers beside a pose that
depend on the place alone, such as 1 and the coordinates.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from torchcaps.ops.competition import Competition
from torchcaps.squashing import direction, length, squash_by

ParentRule = Literal["agreement", "directions", "normalised"]


class Folded(NamedTuple):
    """The tensors of children whose transforms are shared by places; None for what is
    not there.

    Args:
        parents: their number J.
        poses: u, (B, N, T, M, P).
        places: what depends on the place alone, (E, N), without gradient; the first is
            1.
        weights: the activations a, (B, N, T).
        transforms: W, (T, J, P, D); (1, 1, P, D) if all children and parents share one.
        place_transforms: what the numbers of the places add to the votes, (T, J, E, M *
            D): for the number 1 a bias, for coordinates rows of the unit matrix.
        evidence: w, (T, J, M * P).
        place_evidence: what they add to the logits, (T, J, E): for the number 1, e.
        epsilon: poses are standardised with it, as in a layer normalisation; None takes
            them as they are.
    """

    parents: int
    poses: Tensor
    places: Tensor | None
    weights: Tensor | None
    transforms: Tensor
    place_transforms: Tensor | None = None
    evidence: Tensor | None = None
    place_evidence: Tensor | None = None
    epsilon: float | None = None

    @property
    def evident(self) -> bool:
        """Whether children have evidence, so that the first assignment is not even."""
        return self.evidence is not None or self.place_evidence is not None


class FoldedSteps(NamedTuple):
    r"""The settings of a routing by inner products whose steps are all alike.

    Args:
        steps: how many times the assignment is made, the first one included.
        rule: what a parent makes of its sum s. ``agreement``: :math:`v =
            \operatorname{squash} s`, and :math:`\alpha` is v or the sum of all v so
            far. ``directions``: :math:`v = \operatorname{squash} s`, :math:`\alpha = K s
            / |s|`. ``normalised``: :math:`v = \operatorname{LayerNorm} s`,
            :math:`\alpha = K v`.
        leaky: one more candidate with logit 0.
        accumulate: whether :math:`\alpha` is the sum of all v so far.
        constant: c of the squash n² / (c + n²); None for no squash.
        scale: K.
        epsilon: of the layer normalisation.
    """

    steps: int
    rule: ParentRule = "agreement"
    leaky: bool = False
    accumulate: bool = True
    constant: float | None = 1.0
    scale: float = 1.0
    epsilon: float = 1e-5


MOST_NUMBERS = 64
MOST_QUERIES = 2**12
"""Poses of more than the first number are compared by matrix products, if the queries
of all parents are more than the second: they leave no room in the nearest cache.
"""


def by_matrix_products(parents: int, numbers: int) -> bool:
    """Whether matrix products are faster than the kernels, for poses of so many
    numbers.
    """
    return numbers > MOST_NUMBERS and parents * numbers > MOST_QUERIES


def queries(children: Folded, alpha: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What poses are compared with, (B or 1, T, J, M * P), and what the numbers of the
    places are, (B or 1, T, J, E): of the evidence alone if alpha is None.

    Args:
        children: the children.
        alpha: what votes would be compared with, (B, J, M * D).
    """
    _, poses, _, _, transforms, place_transforms, *evident, _ = children
    evidence, place_evidence = evident
    T, _, P, D = transforms.shape
    M = poses.shape[3]
    query = place_query = None
    if alpha is not None:
        rows = alpha.unflatten(-1, (M, D))
        if _alike(transforms):
            query = (rows @ transforms[0, 0].mT).flatten(-2)[:, None]
        else:
            query = torch.einsum("bjmd,tjpd->btjmp", rows, transforms).flatten(-2)
        if place_transforms is not None:
            place_query = torch.einsum("bjh,tjeh->btje", alpha, place_transforms)
    query = _plus(query, evidence)
    if query is None:
        query = poses.new_zeros(1, T, children.parents, M * P)
    return query, _plus(place_query, place_evidence)


def _alike(transforms: Tensor) -> bool:
    """Whether all children and parents share one transform."""
    return transforms.shape[:2] == (1, 1)


def _plus(field: Tensor | None, evidence: Tensor | None) -> Tensor | None:
    """A field of the queries with the evidence, if there are any."""
    if evidence is None:
        return field
    return evidence[None] if field is None else field + evidence


def sums(children: Folded, pooled: Tensor, at_places: Tensor | None) -> Tensor:
    """The sums of the votes, (B, J, M * D), from those of the poses, (B, T, J, M * P),
    and of the numbers of the places, (B, T, J, E).
    """
    M = children.poses.shape[3]
    rows = pooled.unflatten(-1, (M, -1))
    transforms = children.transforms
    if _alike(transforms):
        total = (rows[:, 0] @ transforms[0, 0]).flatten(2)
    else:
        total = torch.einsum("btjmp,tjpd->bjmd", rows, transforms).flatten(2)
    if children.place_transforms is None or at_places is None:
        return total
    return total + torch.einsum("btje,tjeh->bjh", at_places, children.place_transforms)


def moments(
    children: Folded, alpha: Tensor | None, leaky: bool = False
) -> tuple[Tensor, Tensor]:
    """Mass (B, J) and sum (B, J, M * D) of one step; without alpha and evidence
    children are shared out evenly.

    Args:
        children: the children.
        alpha: what votes are compared with, (B, J, M * D), or None.
        leaky: one more candidate with logit 0.
    """
    if children.epsilon is not None:
        poses = children.poses
        poses = layer_norm(poses, poses.shape[-2:], eps=children.epsilon)
        children = children._replace(poses=poses, epsilon=None)
    _, poses, places, weights, *_ = children
    if alpha is None and not children.evident:
        return _even_moments(children, leaky)
    query, place_query = queries(children, alpha)
    pooled, at_places, mass = _pooled(
        poses.flatten(3), places, weights, query, place_query, leaky
    )
    return mass, sums(children, pooled, at_places)


def _even_moments(children: Folded, leaky: bool) -> tuple[Tensor, Tensor]:
    B, N, T, _, _ = children.poses.shape
    J = children.parents
    shares = children.poses.new_full((B, T, N), 1 / (J + int(leaky)))
    if children.weights is not None:
        shares = shares * children.weights.transpose(1, 2)
    pooled = torch.einsum("btn,bntmp->btmp", shares, children.poses)
    at_places = None
    if children.places is not None:
        at_places = (shares @ children.places.T)[:, :, None].expand(B, T, J, -1)
    pooled = pooled.flatten(2)[:, :, None].expand(B, T, J, -1)
    mass = shares.sum((1, 2))[:, None].expand(B, J)
    return mass, sums(children, pooled, at_places)


def route(
    children: Folded,
    settings: FoldedSteps,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """All steps: the poses v (B, J, M * D); what the last step compared the votes with,
    None if it was the first; and the lengths of the poses, (B, J).

    Args:
        children: the children.
        settings: the settings.
        bias: added to each sum, (J, M * D).
        gain: of the layer normalisation, (M * D,).
        shift: likewise.
    """
    alpha: Tensor | None = None
    pose: Tensor | None = None
    for step in range(settings.steps):
        _, total = moments(children, alpha, settings.leaky)
        if bias is not None:
            total = total + bias
        pose = _pose(settings, total, gain, shift)
        if step < settings.steps - 1:
            alpha = _next_alpha(settings, total, pose, alpha)
    assert pose is not None
    return pose, alpha, length(pose)


def _pose(
    settings: FoldedSteps, total: Tensor, gain: Tensor | None, shift: Tensor | None
) -> Tensor:
    if settings.rule == "normalised":
        return layer_norm(total, total.shape[-1:], gain, shift, settings.epsilon)
    return total if settings.constant is None else squash_by(settings.constant, total)


def _next_alpha(
    settings: FoldedSteps, total: Tensor, pose: Tensor, alpha: Tensor | None
) -> Tensor:
    if settings.rule == "directions":
        return settings.scale * direction(total)
    if settings.rule == "normalised":
        return settings.scale * pose
    return pose if alpha is None or not settings.accumulate else alpha + pose


def pooled(
    poses: Tensor,
    places: Tensor | None,
    weights: Tensor | None,
    query: Tensor,
    place_query: Tensor | None,
    *,
    leaky: bool = False,
    epsilon: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The sums of one step before they are transformed: of the poses, (B, T, J, Q), and
    of the numbers of the places, (B, T, J, E).

    Args:
        poses: (B, N, T, Q).
        places: (E, N).
        weights: (B, N, T).
        query: what poses are compared with, (B, T, J, Q).
        place_query: what the numbers of the places are, (B, T, J, E).
        leaky: one more candidate with logit 0.
        epsilon: poses are standardised with it, as in a layer normalisation; None takes
            them as they are.
    """
    if epsilon is not None:
        poses = layer_norm(poses, poses.shape[-1:], eps=epsilon)
    return _pooled(poses, places, weights, query, place_query, leaky)[:2]


def _pooled(
    poses: Tensor,
    places: Tensor | None,
    weights: Tensor | None,
    query: Tensor,
    place_query: Tensor | None,
    leaky: bool,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The sums of :func:`pooled`, and the mass (B, J)."""
    poses = poses.transpose(1, 2)
    pairs = poses @ query.mT
    if places is not None and place_query is not None:
        pairs = pairs + (place_query @ places).mT
    competition = Competition(leaky=leaky)
    shares = competition.shares(pairs.flatten(1, 2)).view_as(pairs)
    if weights is not None:
        shares = shares * weights.transpose(1, 2)[..., None]
    at_places = None if places is None else shares.mT @ places.T
    return shares.mT @ poses, at_places, shares.sum((1, 2))
