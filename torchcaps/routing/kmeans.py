"""Routing as K-Means of the votes (Su Jianlin 2018): by inner product, by distance, and
with hard assignments.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from torchcaps.numerics import Finite, as_constants, negligible
from torchcaps.ops import Distance, Gaussian, InnerProduct, Moments, Similarity, Votes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import (
    Gradient,
    Routed,
    Routing,
    Steps,
    gradient_context,
    of_settings,
    register_routing,
)
from torchcaps.routing.evidence import AgreementRouting
from torchcaps.routing.means import Softmax, check_softmax, weights_for_means
from torchcaps.spec import settings
from torchcaps.squashing import SquashInRouting, SquashKind, direction, length, squash

Metric = Literal["euclidean", "inner"]
Assignment = Literal["soft", "straight_through"]
Measure = Literal["squared", "plain"]


CentreOf = Callable[[Moments], Tensor]
"""From the moments of the votes to the centres, (B, J, H): their means or sums."""


def sum_of(moments: Moments) -> Tensor:
    """Return the sums of the votes, (B, J, H)."""
    return moments.sum


def new_centres(moments: Moments, centre_of: CentreOf, old: Tensor | None) -> Tensor:
    """Return the centres, (B, J, H), but the old ones, if there are any, of parents
    that no vote chose.
    """
    centre = centre_of(moments)
    if old is None:
        return centre
    return torch.where(negligible(moments.mass)[..., None], old, centre)


def _straight_through(
    votes: Votes,
    similarity: Similarity,
    weights: Tensor | None,
    centre_of: CentreOf,
    old: Tensor,
) -> Tensor:
    r"""The centres of hard assignments with the gradients of those of soft ones, (B, J,
    H).

    .. math:: c_j = c_j^{\text{hard}} + \big(c_j^{\text{soft}} - \operatorname{sg}(c_j^{\text{soft}})\big)

    Both come from one similarity; sg stops the gradient, so the term in brackets is 0
    and has the gradient of :math:`c_j^{\text{soft}}`.

    Args:
        votes: the votes of I children for J parents.
        similarity: the similarity of this step.
        weights: child activations, (N, G), or None.
        centre_of: the centres of moments.
        old: the centres of the step before, (B, J, H).

    Source: the straight-through estimator: Bengio, Leonard & Courville 2013,
    "Estimating or propagating gradients through stochastic neurons for conditional
    computation", section 4.
    """
    with as_constants():
        of_hard = votes.restricted(hard=True).moments(similarity, weights)
        hard = new_centres(of_hard, centre_of, old)
    if not torch.is_grad_enabled():
        return hard
    soft = new_centres(votes.moments(similarity, weights), centre_of, old)
    return hard + (soft - soft.detach())


def _as_assigned(
    votes: Votes, similarity: Similarity | None, assignment: Assignment
) -> Votes:
    """The votes under the competition of the last step; the first step is soft."""
    if assignment == "soft" or similarity is None:
        return votes
    return votes.restricted(hard=True)


@register_routing("kmeans")
@settings
class InnerProductKMeansRouting(AgreementRouting):
    r"""Soft K-Means with the similarity :math:`\langle V_{ij}, s_j / |s_j| \rangle`.

    .. math::
        R_{ij} = \operatorname{softmax}_j \Big( K \Big\langle \frac{s_j}{|s_j|}, V_{ij} \Big\rangle \Big), \quad
        s_j = \sum_i R_{ij} V_{ij}

    from uniform R; the squash comes once, after the last step. A centre is a sum and
    not a mean, so the more votes agree the longer it is; its direction alone enters the
    similarity, so nothing grows with the number of steps.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        sharpness: K; at 1 the scale of the transforms learns it.
        squash: a row of the table in :func:`~torchcaps.squash`, or ``learned``: n² / (c
            + n²), whose constant c is learned inside the routing, from 0.5 on
            (:class:`~torchcaps.LearnedSquash`).
        assignment: ``soft``; or ``straight_through``, which gives the whole child to
            its most similar parent, in all steps but the first one, with the gradients
            of the soft centres. The poses are those of :class:`HardKMeansRouting`. Each
            of these steps takes two passes over the votes.
        softmax: over the ``parents`` of a child; or over the ``children`` of a parent,
            whose centre is then a weighted mean of its votes, from 1 / I. Su 2018a
            tried both and found little difference.
        gradient: through ``all`` steps; or only through the ``last``, which takes the
            centres before it as a fixed point, so that memory does not grow with the
            steps.
        evidence: learn where each child belongs by itself, and start from that: see
            :class:`~torchcaps.routing.AgreementRouting`.

    Source: Su Jianlin 2018b, "Another new year's offering: from K-Means to Capsule"
    (kexue.fm/archives/5112).

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 16, routing=tc.routing.InnerProductKMeansRouting(steps=3)
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    uses_activation = False
    squash_start = 0.5

    steps: Steps = 3
    sharpness: Finite = 1.0
    squash: SquashInRouting = "half"
    assignment: Assignment = "soft"
    softmax: Softmax = "parents"
    gradient: Gradient = "all"

    hard = of_settings(lambda routing: routing.assignment == "straight_through")
    resumable = of_settings(lambda routing: not routing.hard)
    exact_gradients = of_settings(
        lambda routing: not routing.hard and routing.gradient == "all"
    )
    within_window = of_settings(
        lambda routing: routing.hard or routing.softmax == "children"
    )

    def __post_init__(self) -> None:
        check_softmax(self.softmax, straight_through=self.hard)

    def route(
        self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
    ) -> Routed:
        """Route the votes; the child activations are the lengths of their poses, and
        are not used again. With ``initial``, it goes on from the directions of those
        parents.
        """
        if self.softmax == "children":
            votes = votes.over_children()
        centre: Tensor | None = None
        similarity = None if initial is None else self._along(initial.pose)
        for step in range(self.steps):
            with gradient_context(self.gradient, step, self.steps):
                if centre is None or similarity is None or self.assignment == "soft":
                    centre = votes.moments(similarity).sum
                else:
                    centre = _straight_through(votes, similarity, None, sum_of, centre)
                if step < self.steps - 1:
                    similarity = self._along(centre)
        assert centre is not None
        pose = self.squashed(centre)
        assigned = _as_assigned(votes, similarity, self.assignment)
        return Routed(pose, length(pose), assigned, similarity)

    def _along(self, centre: Tensor) -> InnerProduct:
        """The similarity to the directions of these centres."""
        return InnerProduct(self.sharpness * direction(centre))


@register_routing("euclidean")
@settings
class EuclideanKMeansRouting(AgreementRouting):
    r"""Soft K-Means proper.

    .. math::
        R_{ij} = \operatorname{softmax}_j \big( -K |V_{ij} - \mu_j|^2 \big), \quad
        \mu_j = \sum_i a_i R_{ij} V_{ij} \Big/ \sum_i a_i R_{ij}

    from uniform R. The pose is the mean and so has the scale of the votes, however many
    there are; the activation is its length. A parent that no vote chose, and in float32
    one that takes less than 1e-29 of the children, keeps its centre.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        sharpness: K; the larger, the harder the assignment.
        assignment: ``soft``; or ``straight_through``, hard in the forward pass and soft
            in the backward pass: the whole child goes to its nearest parent, in all
            steps but the first one, with the gradients of the soft means. The poses are
            those of :class:`HardKMeansRouting`. Each of these steps takes two passes
            over the votes.
        distance: ``squared``; or ``plain``, which compares by :math:`-K |V_{ij} -
            \mu_j|`, the exp(-distance) of many overviews, so that twice as large votes
            need half the K and not a quarter. It has no fused kernel.
        gradient: through ``all`` steps; or only through the ``last``, which takes the
            centres before it as a fixed point, so that memory does not grow with the
            steps.
        evidence: whether to learn where each child belongs by itself, and start from
            that: see :class:`~torchcaps.routing.AgreementRouting`.

    Source: Su Jianlin 2018b (kexue.fm/archives/5112), the section on Euclidean
    distance.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32,
        ...     10,
        ...     8,
        ...     16,
        ...     routing=tc.routing.EuclideanKMeansRouting(steps=3, sharpness=0.5),
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    resumable = True
    gaussian = True

    steps: Steps = 3
    sharpness: Finite = 1.0
    assignment: Assignment = "soft"
    distance: Measure = "squared"
    gradient: Gradient = "all"

    hard = of_settings(lambda routing: routing.assignment == "straight_through")
    within_window = of_settings(lambda routing: routing.hard)
    exact_gradients = of_settings(
        lambda routing: not routing.hard and routing.gradient == "all"
    )

    def route(
        self, votes: Votes, activation: Tensor | None, initial: Routed | None = None
    ) -> Routed:
        """Route the votes; a mean forgets how long the votes were, so their activations
        weight them. With ``initial``, it goes on from the means of those parents.
        """
        weights = weights_for_means(votes, activation)
        mean = None if initial is None else initial.pose
        similarity = None if mean is None else self._near(mean)
        for step in range(self.steps):
            with gradient_context(self.gradient, step, self.steps):
                if mean is None or similarity is None or self.assignment == "soft":
                    mean = new_centres(
                        votes.moments(similarity, weights), mean_of, mean
                    )
                else:
                    mean = _straight_through(votes, similarity, weights, mean_of, mean)
                if step < self.steps - 1:
                    similarity = self._near(mean)
        assert mean is not None
        assigned = _as_assigned(votes, similarity, self.assignment)
        return Routed(mean, length(mean), assigned, similarity)

    def _near(self, mean: Tensor) -> Similarity:
        """The similarity to these means."""
        if self.distance == "squared":
            return Gaussian.spherical(mean, self.sharpness)
        return Distance(mean, self.sharpness)


@register_routing("hard_kmeans")
@settings
class HardKMeansRouting(Routing):
    r"""K-Means with hard assignments: the limit :math:`K \to \infty` of the soft ones.
    It has no gradients, and refuses to train: it is for evaluation and teaching.

    A parent that no vote chose keeps its centre.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        metric: ``"euclidean"`` (centres are means, weighted by the activations of the
            children) or ``"inner"`` (centres are sums, squashed at the end).
        squash: for ``"inner"``, a row of the table in :func:`~torchcaps.squash`.

    Source: Lloyd 1982; Su Jianlin 2018b (kexue.fm/archives/5112).

    Example:
        >>> routing = (
        ...     tc.routing.HardKMeansRouting(steps=3).bind(10, 16).eval()
        ... )  # it refuses to train
        >>> votes = tc.Votes(torch.randn(4, 32, 8), torch.randn(32, 10, 8, 16))
        >>> routing(votes).assignment.unique()
        tensor([0., 1.])
    """

    trainable = False
    hard = True
    within_window = True

    steps: Steps = 3
    metric: Metric = "euclidean"
    squash: SquashKind = "half"

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes.

        Raises:
            RuntimeError: in training mode.
        """
        if self.training:
            raise RuntimeError(
                "hard K-Means has no gradient and cannot train: call .eval() on the "
                "model, or train with "
                "'kmeans' or 'euclidean' and switch the routing afterwards"
            )
        with as_constants():
            return self._clustered(votes, activation)

    def _clustered(self, votes: Votes, activation: Tensor | None) -> Routed:
        weights = None
        centre_of = sum_of
        if self.metric == "euclidean":
            weights = weights_for_means(votes, activation)
            centre_of = mean_of
        similarity: Similarity | None = None
        centre = centre_of(votes.moments(similarity, weights))
        if self.steps > 1:
            votes = votes.restricted(hard=True)
        for _ in range(self.steps - 1):
            if self.metric == "euclidean":
                similarity = Gaussian.spherical(centre, 1.0)
            else:
                similarity = InnerProduct(direction(centre))
            centre = new_centres(votes.moments(similarity, weights), centre_of, centre)
        if self.metric == "inner":
            centre = squash(centre, self.squash)
        return Routed(centre, length(centre), votes, similarity)
