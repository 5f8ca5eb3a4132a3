"""K-Means and soft K-Means as estimators: a point goes to the nearest centre, a centre
to the mean of its points.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from torch import Tensor

from torchcaps.mixture.base import (
    Array,
    Clustering,
    check_initial,
    check_weights,
    cluster_moments,
    numbers_of,
    plusplus_points,
    point_votes,
    shares_of_points,
    weighted_sum,
)
from torchcaps.numerics import NotNegative, Positive, Size
from torchcaps.ops import Gaussian, InnerProduct, Similarity, Votes
from torchcaps.squashing import direction, squash


class Metric(NamedTuple):
    """What "near" means, and the centre that is nearest to its points in that sense.

    Args:
        similarity: the similarity of points to centres (B, J, D), times the sharpness
            K.
        mean: whether the centre is the mean of the points of a cluster; or else it is
            their sum.
    """

    similarity: Callable[[Tensor, float], Similarity]
    mean: bool


METRICS = {
    "euclidean": Metric(Gaussian.spherical, mean=True),
    "inner": Metric(
        lambda centres, K: InnerProduct(K * direction(centres)), mean=False
    ),
    "squashed": Metric(
        lambda centres, K: InnerProduct(K * squash(centres)), mean=False
    ),
}


class Centres(NamedTuple):
    """The state of K-Means.

    Args:
        centres: (J, D).
    """

    centres: Tensor


@dataclass(eq=False, repr=False)
class CentreClustering(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, Clustering
):
    """What hard and soft K-Means share."""

    _hard: ClassVar[bool]

    n_clusters: Size = 8
    _: KW_ONLY
    metric: str = "euclidean"
    init: Any = "k-means++"
    max_iter: Size = 300
    tol: NotNegative = 1e-4
    random_state: Any = None

    @property
    def _sharpness(self) -> float:
        return 1.0

    def _clusters(self) -> int:
        return int(self.n_clusters)

    def _start(self, points: Tensor, weights: Tensor | None, chance: Any) -> Centres:
        if not isinstance(self.init, str):
            return Centres(
                check_initial(
                    "init", self.init, (self.n_clusters, points.shape[1]), points
                )
            )
        if self.init != "k-means++":
            raise ValueError(
                f"init must be 'k-means++' or an array of centres, got {self.init!r}"
            )
        compared = self._compared(points)
        return Centres(
            points[plusplus_points(compared, self.n_clusters, weights, chance)]
        )

    def _compared(self, points: Tensor) -> Tensor:
        return points if self.metric == "euclidean" else direction(points)

    def _view(self, points: Tensor, state: Centres) -> tuple[Votes, Similarity]:
        similarity = METRICS[self.metric].similarity(
            state.centres[None], self._sharpness
        )
        return point_votes(points, len(state.centres), hard=self._hard), similarity

    def _step(
        self, points: Tensor, weights: Tensor | None, state: Centres
    ) -> tuple[Centres, float]:
        votes, similarity = self._view(points, state)
        if METRICS[self.metric].mean:
            share, log_mass = shares_of_points(votes, similarity, weights)
            centres = cluster_moments(points, share).mean[:, 0]
            chosen = log_mass > -torch.inf
        else:
            moments = votes.moments(
                similarity, None if weights is None else weights[None]
            )
            centres = moments.sum[0]
            chosen = moments.mass[0] > 0
        return Centres(
            torch.where(chosen[:, None], centres, state.centres)
        ), self._loss(points, weights, state)

    @abstractmethod
    def _loss(self, points: Tensor, weights: Tensor | None, state: Centres) -> float:
        """The objective L of these points."""

    def _settled(
        self, points: Tensor, old: Centres, new: Centres, objectives: list[float]
    ) -> bool:
        """Shifts of means are measured by the spread of the points, shifts of sums by
        the length of the sums.
        """
        euclidean = self.metric == "euclidean"
        if euclidean:
            scale = points.var(0, correction=0).mean()
        else:
            scale = new.centres.square().mean()
        return bool((new.centres - old.centres).square().sum() <= self.tol * scale)

    def _keep(self, state: Centres) -> None:
        self.cluster_centers_ = state.centres.numpy()

    def _keep_objectives(
        self, points: Tensor, weights: Tensor | None, objectives: list[float]
    ) -> None:
        self.inertia_ = self._loss(points, weights, self._state())
        self.losses_ = objectives

    def _state(self) -> Centres:
        return Centres(numbers_of(self.cluster_centers_))

    def _export(self, state: Centres) -> Array:
        return state.centres.numpy()

    def transform(self, X: ArrayLike) -> Array:
        """Return how far each point is from each centre, (n_samples, n_clusters): the
        Euclidean distance, or the d(x, c) of other metrics.
        """
        points = self._points(X)
        state = self._state()
        if self.metric == "euclidean":
            # By matrix products, distances far from the origin would be rounding.
            mode = "donot_use_mm_for_euclid_dist"
            return torch.cdist(points, state.centres, compute_mode=mode).numpy()
        votes, similarity = self._view(points, state)
        return (-votes.logits(similarity)[0] / self._sharpness).numpy()

    @property
    def _n_features_out(self) -> int:
        return len(self.cluster_centers_)

    def score(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> float:
        """Return minus the loss of these points: higher is better."""
        points = self._points(X)
        return -self._loss(points, check_weights(sample_weight, points), self._state())


@dataclass(eq=False, repr=False)
class KMeans(CentreClustering):
    r"""Cluster by Lloyd's algorithm: every point goes to its nearest centre, and every
    centre to the mean of its points.

    .. math:: L = \sum_i w_i \min_j d(x_i, c_j)

    ============= ============================================ =========================================
    metric        :math:`d(x, c)`                              new centre
    ============= ============================================ =========================================
    ``euclidean`` :math:`|x - c|^2`                            the mean of the points that chose it
    ``inner``     :math:`-\langle x, c / |c| \rangle`          their sum: the more agree, the longer it is
    ============= ============================================ =========================================

    No step raises L. A centre that no point chose stays where it is (scikit-learn moves
    it to a far point).

    Args:
        n_clusters: how many.
        metric: a row of the table.
        init: ``"k-means++"``, or the centres to start from, (n_clusters, n_features).
        max_iter: the largest number of steps.
        tol: settled when the squared shift of all centres is at most this times the
            mean variance of the features (``inner``: times the mean square of the
            centres' numbers). At 0, when nothing moves.
        random_state: the random state of ``"k-means++"``.

    Attributes:
        cluster_centers_: (n_clusters, n_features).
        inertia_: L of the training points.
        losses_: L before each step.
        history_: the centres after each step.
        labels_: (n_samples,).
        n_iter_: steps made.
        converged_: whether they settled, and every cluster has points of its own.

    Source: Lloyd 1982; Arthur & Vassilvitskii 2007 for the start; Su 2018
    (kexue.fm/archives/5112) for ``inner``.

    Example:
        >>> from torchcaps.mixture import KMeans
        >>> kmeans = KMeans(2, random_state=0).fit([[0.0], [1.0], [10.0], [11.0]])
        >>> sorted(kmeans.cluster_centers_.ravel().tolist())
        [0.5, 10.5]
    """

    _hard = True

    _: KW_ONLY
    metric: Literal["euclidean", "inner"] = "euclidean"

    def _loss(self, points: Tensor, weights: Tensor | None, state: Centres) -> float:
        centres = state.centres[self._assignment(points, state).argmax(-1)]
        if self.metric == "euclidean":
            distance = (points - centres).square().sum(-1)
        else:
            distance = -(points * direction(centres)).sum(-1)
        return weighted_sum(distance, weights).item()


@dataclass(eq=False, repr=False)
class SoftKMeans(CentreClustering):
    r"""Cluster by K-Means with a smooth minimum, so that it has gradients, as routing
    does.

    .. math::
        L = -\frac1K \sum_i w_i \log \sum_j e^{-K d(x_i, c_j)}, \quad
        R_{ij} = \operatorname{softmax}_j \big( -K d(x_i, c_j) \big), \quad
        0 = \sum_i w_i R_{ij} \frac{\partial d(x_i, c_j)}{\partial c_j}

    ============= =================================================== ======================== ==================
    metric        :math:`d(x, c)`                                     solution: the new centre routing
    ============= =================================================== ======================== ==================
    ``euclidean`` :math:`|x - c|^2`                                   mean under R             Euclidean K-Means
    ``inner``     :math:`-\langle x, c / |c| \rangle`                 sum under R              K-Means (Su)
    ``squashed``  :math:`-\langle x, \operatorname{squash}(c)\rangle` sum under R (no          dynamic (Sabour)
                                                                      solution of the
                                                                      equation above)
    ============= =================================================== ======================== ==================

    With the first two metrics no step raises L. As :math:`K \to \infty` it becomes
    :class:`KMeans`; as :math:`K \to 0` all centres meet, which is warned of. Euclidean soft K-Means is EM
    for Gaussians of fixed variance :math:`1 / 2K` and equal weights.

    Args:
        n_clusters: how many.
        sharpness: K, more than 0, in units of 1 / d.
        metric: a row of the table.
        init: ``"k-means++"``, or the centres to start from, (n_clusters, n_features).
        max_iter: the largest number of steps.
        tol: settled when the squared shift of all centres is at most this times the
            mean variance of the features (other metrics: times the mean square of the
            centres' numbers).
        random_state: the random state of ``"k-means++"``.

    Attributes:
        cluster_centers_: (n_clusters, n_features).
        inertia_: L of the training points.
        losses_: L before each step.
        history_: the centres after each step.
        labels_: the most probable clusters, (n_samples,).
        n_iter_: steps made.
        converged_: whether they settled, and every cluster has points of its own.

    Source: Su 2018, from K-Means to capsules (kexue.fm/archives/5112).

    Example:
        >>> from torchcaps.mixture import SoftKMeans
        >>> points = [[0.0], [1.0], [10.0], [11.0]]
        >>> SoftKMeans(2, sharpness=0.1, random_state=0).fit(
        ...     points
        ... ).cluster_centers_.shape
        (2, 1)
    """

    _hard = False

    _: KW_ONLY
    sharpness: Positive = 1.0
    metric: Literal["euclidean", "inner", "squashed"] = "euclidean"
    tol: NotNegative = 1e-8

    @property
    def _sharpness(self) -> float:
        return float(self.sharpness)

    def _loss(self, points: Tensor, weights: Tensor | None, state: Centres) -> float:
        return (
            -weighted_sum(self._log_partition(points, state), weights).item()
            / self._sharpness
        )
