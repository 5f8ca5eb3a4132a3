"""Routing as K-Means of the votes (Su Jianlin 2018): by inner product, by distance, and with hard assignments."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import normalize

from torchcaps.numerics import Finite, check_choice, negligible
from torchcaps.ops import Gaussian, InnerProduct, Moments, Similarity, Votes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import About, Routed, Routing, Steps, check_steps, register_routing
from torchcaps.routing.evidence import AgreementRouting
from torchcaps.routing.means import weights_for_means
from torchcaps.spec import settings
from torchcaps.squashing import SquashKind, length, squash

Metric = Literal["euclidean", "inner"]


def _moved(moments: Moments, new: Tensor, old: Tensor) -> Tensor:
    """The centres (B, J, H): the new ones, but the old ones of parents that no vote chose."""
    return torch.where(negligible(moments.mass)[..., None], old, new)


def inner_product_kmeans_routing(
    votes: Votes,
    weights: Tensor | None = None,
    *,
    steps: int = 3,
    sharpness: float = 1.0,
    squash_kind: str = "half",
    initial: Routed | None = None,
) -> Routed:
    r"""Soft K-Means with the similarity :math:`\langle V_{ij}, s_j / |s_j| \rangle`.

    .. math::
        R_{ij} = \operatorname{softmax}_j \Big( K \Big\langle \frac{s_j}{|s_j|}, V_{ij} \Big\rangle \Big), \quad
        s_j = \sum_i R_{ij} V_{ij}

    from uniform R; the squash comes once, after the last step. A centre is a sum and not a mean, so the more votes
    agree the longer it is; its direction alone enters the similarity, so nothing grows with the number of steps.

    Args:
        votes: of I children for J parents.
        weights: child activations, (N, G), or None.
        steps: how many times the assignment is made, the uniform first one included.
        sharpness: K; at 1 the scale of the transforms learns it.
        squash_kind: a row of the table in :func:`~torchcaps.squash`.
        initial: parents of an earlier call, to go on from their directions.

    Source: Su Jianlin 2018b, "Another new year's offering: from K-Means to Capsule" (kexue.fm/archives/5112).
    """
    check_steps(steps)
    similarity = None if initial is None else InnerProduct(sharpness * normalize(initial.pose, dim=-1))
    for step in range(steps):
        centre = votes.moments(similarity, weights).sum
        if step < steps - 1:
            similarity = InnerProduct(sharpness * normalize(centre, dim=-1))
    pose = squash(centre, squash_kind)
    return Routed(pose, length(pose), votes, similarity)


def euclidean_kmeans_routing(
    votes: Votes,
    weights: Tensor | None = None,
    *,
    steps: int = 3,
    sharpness: float = 1.0,
    initial: Routed | None = None,
) -> Routed:
    r"""Soft K-Means proper.

    .. math::
        R_{ij} = \operatorname{softmax}_j \big( -K |V_{ij} - \mu_j|^2 \big), \quad
        \mu_j = \sum_i R_{ij} V_{ij} \Big/ \sum_i R_{ij}

    from uniform R. The pose is the mean and so has the scale of the votes, however many there are; the activation is
    its length. A parent that no vote chose, and in float32 one that takes less than 1e-29 of the children, keeps its
    centre.

    Args:
        votes: of I children for J parents.
        weights: child activations, (N, G), or None.
        steps: how many times the assignment is made, the uniform first one included.
        sharpness: K; the larger, the harder the assignment.
        initial: parents of an earlier call, to go on from their means.

    Source: Su Jianlin 2018b (kexue.fm/archives/5112), the section on Euclidean distance.
    """
    check_steps(steps)
    weights = weights_for_means(votes, weights)
    mean = None if initial is None else initial.pose
    similarity = None if mean is None else Gaussian.spherical(mean, sharpness)
    for step in range(steps):
        moments = votes.moments(similarity, weights)
        mean = mean_of(moments) if mean is None else _moved(moments, mean_of(moments), mean)
        if step < steps - 1:
            similarity = Gaussian.spherical(mean, sharpness)
    assert mean is not None
    return Routed(mean, length(mean), votes, similarity)


@torch.no_grad()
def hard_kmeans_routing(
    votes: Votes,
    weights: Tensor | None = None,
    *,
    steps: int = 3,
    metric: Metric = "euclidean",
    squash_kind: str = "half",
) -> Routed:
    r"""K-Means with hard assignments: the limit :math:`K \to \infty` of the soft ones. Gives no gradients.

    A parent that no vote chose keeps its centre.

    Args:
        votes: of I children for J parents.
        weights: child activations, (N, G), or None.
        steps: how many times the assignment is made, the uniform first one included.
        metric: ``"euclidean"`` (centres are means) or ``"inner"`` (centres are sums, squashed at the end).
        squash_kind: for ``"inner"``, a row of the table in :func:`~torchcaps.squash`.

    Source: Lloyd 1982; Su Jianlin 2018b (kexue.fm/archives/5112).
    """
    check_steps(steps)
    check_choice("metric", metric, get_args(Metric))
    euclidean = metric == "euclidean"
    weights = weights_for_means(votes, weights) if euclidean else weights
    similarity: Similarity | None = None
    moments = votes.moments(similarity, weights)
    centre = mean_of(moments) if euclidean else moments.sum
    if steps > 1:
        votes = votes.restricted(hard=True)
    for _ in range(steps - 1):
        similarity = Gaussian.spherical(centre, 1.0) if euclidean else InnerProduct(normalize(centre, dim=-1))
        moments = votes.moments(similarity, weights)
        centre = _moved(moments, mean_of(moments) if euclidean else moments.sum, centre)
    pose = centre if euclidean else squash(centre, squash_kind)
    return Routed(pose, length(pose), votes, similarity)


@register_routing("kmeans")
@settings
class InnerProductKMeansRouting(AgreementRouting):
    """Module form of :func:`inner_product_kmeans_routing`.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        sharpness: K; at 1 the scale of the transforms learns it.
        squash: a row of the table in :func:`~torchcaps.squash`.
        evidence: learn where each child belongs by itself, and start from that: see
            :class:`~torchcaps.routing.AgreementRouting`.

    Example:
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=tc.routing.InnerProductKMeansRouting(steps=3))
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    about = About(
        similarity="inner product with the direction of the centre",
        update="sum of the votes, squashed at the end",
        activation="length of the pose",
        parameters="none",
        cost="(2 r - 1) V",
        memory="none",
        source="Su 2018",
        reported="two digits, one above the other, after training on single ones: above 95 % right",
    )

    resumable = True
    uses_activation = False

    steps: Steps = 3
    sharpness: Finite = 1.0
    squash: SquashKind = "half"

    def route(self, votes: Votes, activation: Tensor | None, initial: Routed | None = None) -> Routed:
        """Routes; the child activations are the lengths of their poses already, and are not used again."""
        return inner_product_kmeans_routing(
            votes, steps=self.steps, sharpness=self.sharpness, squash_kind=self.squash, initial=initial
        )


@register_routing("euclidean")
@settings
class EuclideanKMeansRouting(AgreementRouting):
    """Module form of :func:`euclidean_kmeans_routing`; children are weighted by their activations.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        sharpness: K; the larger, the harder the assignment.
        evidence: learn where each child belongs by itself, and start from that: see
            :class:`~torchcaps.routing.AgreementRouting`.

    Example:
        >>> layer = tc.CapsLinear(32, 10, 8, 16, routing=tc.routing.EuclideanKMeansRouting(steps=3, sharpness=0.5))
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 16])
    """

    about = About(
        similarity="negative squared distance",
        update="mean of the votes",
        activation="length of the pose",
        parameters="none",
        cost="r V + 3 r I J H",
        memory="none",
        source="Su 2018",
        reported="none",
    )

    resumable = True
    gaussian = True

    steps: Steps = 3
    sharpness: Finite = 1.0

    def route(self, votes: Votes, activation: Tensor | None, initial: Routed | None = None) -> Routed:
        """Routes; a mean forgets how long the votes were, so their activations weight them."""
        return euclidean_kmeans_routing(votes, activation, steps=self.steps, sharpness=self.sharpness, initial=initial)


@register_routing("hard_kmeans")
@settings
class HardKMeansRouting(Routing):
    """Module form of :func:`hard_kmeans_routing`, for evaluation and teaching: it refuses to train.

    Args:
        steps: how many times the assignment is made, the uniform first one included.
        metric: ``"euclidean"`` or ``"inner"``.
        squash: for ``"inner"``, a row of the table in :func:`~torchcaps.squash`.

    Example:
        >>> routing = tc.routing.HardKMeansRouting(steps=3).bind(10, 16).eval()  # it refuses to train
        >>> votes = tc.Votes(torch.randn(4, 32, 8), torch.randn(32, 10, 8, 16))
        >>> routing(votes).assignment.unique()
        tensor([0., 1.])
    """

    about = About(
        similarity="squared distance, or inner product",
        update="mean, or sum, of the votes that chose it",
        activation="length of the pose",
        parameters="none",
        cost="r V + 3 r I J H",
        memory="none",
        source="Lloyd 1982; Su 2018",
        reported="none: it does not train",
    )

    trainable = False
    within_window = True

    steps: Steps = 3
    metric: Metric = "euclidean"
    squash: SquashKind = "half"

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Routes.

        Raises:
            RuntimeError: in training mode.
        """
        if self.training:
            raise RuntimeError(
                "hard K-Means has no gradient and cannot train: call .eval() on the model, or train with "
                "'kmeans' or 'euclidean' and switch the routing afterwards"
            )
        weights = activation if self.metric == "euclidean" else None
        return hard_kmeans_routing(votes, weights, steps=self.steps, metric=self.metric, squash_kind=self.squash)
