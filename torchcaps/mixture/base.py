"""What all clustering estimators share: points as children, clusters as parents, steps
until convergence.
"""

import math
import warnings
from abc import ABC, abstractmethod
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.cluster import kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from torchcaps.numerics import positive, resolution
from torchcaps.ops import Competition, Moments, Similarity, Votes
from torchcaps.spec import SuggestsNames, check_fields

Array = NDArray[Any]


def numbers_of(array: Array) -> Tensor:
    """Return the numbers of an array, copied in C order: torch reads none that runs
    backwards through its memory, as ``X[::-1]`` does.
    """
    return torch.from_numpy(np.array(array, order="C"))


def point_votes(points: Tensor, clusters: int, *, hard: bool = False) -> Votes:
    r"""Return points as children that vote for every cluster with themselves,
    :math:`V_{ij} = x_i`.

    Args:
        points: (I, D).
        clusters: J.
        hard: all of a point goes to its most similar cluster.

    Returns:
        Votes (1, I, J, D) under the identity transform, shared by all points.
    """
    size = points.shape[-1]
    identity = torch.eye(size, dtype=points.dtype, device=points.device).expand(
        1, clusters, size, size
    )
    return Votes(points[None], identity, competition=Competition(hard=hard))


def shares_of_points(
    votes: Votes, similarity: Similarity, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    r"""Return the share of each point in each cluster, and the logarithms of the
    clusters' masses.

    .. math:: r_{ij} = \frac{w_i R_{ij}}{N_j}, \quad \log N_j = \log \sum_i w_i R_{ij}

    Found from logarithms, and so right even for a cluster that is far from all points.

    Args:
        votes: the votes of the points.
        similarity: to the clusters.
        weights: the weights of the points, (I,), or None for ones.

    Returns:
        Shares (I, J), whose columns sum to 1, and logarithms (J,): 0 and minus infinity
            for a cluster without points.
    """
    hard = votes.competition.hard
    if hard:
        log = votes.assignment(similarity)[0].log()
    else:
        log = votes.logits(similarity)[0].log_softmax(-1)
    if weights is not None:
        log = log + weights.log()[:, None]
    log_mass = log.logsumexp(0)
    return torch.where(log_mass == -torch.inf, 0.0, log.softmax(0)), log_mass


def plusplus_points(
    points: Tensor, count: int, weights: Tensor | None, random_state: Any
) -> Tensor:
    """Return the places of the points that k-means++ chooses as first centres, int64
    (J,).

    Args:
        points: (I, D).
        count: J.
        weights: the weights of the points, (I,), or None for ones.
        random_state: as scikit-learn takes it.
    """
    sample_weights = None if weights is None else weights.numpy()
    _, chosen = kmeans_plusplus(
        points.numpy(), count, sample_weight=sample_weights, random_state=random_state
    )
    return torch.from_numpy(chosen)


def cluster_moments(points: Tensor, share: Tensor, *, scatter: bool = False) -> Moments:
    """Return the moments of points (I, D) under their shares (I, J): each cluster an
    example, (J, 1, D).
    """
    clusters = share.shape[1]
    votes_of_one = point_votes(points, 1)
    votes = Votes(points.expand(clusters, *points.shape), votes_of_one.transforms)
    return votes.moments(weights=share.T, scatter=scatter)


_UNSETTLED = "did not settle in max_iter={} steps: raise max_iter or tol"


class _Run(NamedTuple):
    """The steps from one start.

    Args:
        states: the state after each step.
        objectives: the objective before each step.
        settled: whether the last step changed next to nothing.
    """

    states: list[Any]
    objectives: list[float]
    settled: bool


def distinct(points: Tensor, most: int) -> int:
    """Return how many points are further from each other than rounding, ``most`` at
    most.

    Each is the farthest from those before it (Gonzalez 1985).

    Args:
        points: (I, D), one at least.
        most: where to stop.
    """
    # In units of the largest number, whose square might not be finite.
    points = points / positive(points.abs().max())
    least = resolution(points).norm(dim=-1)
    distance = (points - points[0]).norm(dim=-1)
    for count in range(1, most):
        apart = distance.where(distance > least, 0.0)
        if not apart.any():
            return count
        farthest = points[apart.argmax()]
        distance = torch.minimum(distance, (points - farthest).norm(dim=-1))
    return most


_SAME = 1e-3
"""Two clusters are the same if their shares of every point differ by no more, of the
larger one. Steps end before they have met for good.
"""


def _same_clusters(share: Tensor) -> list[int] | None:
    """The first two clusters that take the same share of every point.

    Args:
        share: how much of each cluster is each point, (I, J).
    """
    for cluster in range(share.shape[1] - 1):
        first = share[:, cluster, None]
        others = share[:, cluster + 1 :]
        near = (others - first).abs() <= _SAME * torch.maximum(others, first)
        same = near.all(0).nonzero().flatten().tolist()
        if same:
            return [cluster, cluster + 1 + same[0]]
    return None


class Clustering(SuggestsNames, BaseEstimator, ABC):
    """The loop of all estimators here: a step is one E-step and one M-step on the votes
    of the points.

    A kind of clustering implements the abstract methods. Its state is whatever tensors
    a step updates, the clusters first, without the batch axis.

    Attributes:
        n_iter_: how many steps :meth:`fit` made.
        converged_: whether the last of them changed less than ``tol``, there are as
            many distinct points as clusters, but for rounding, every cluster is the
            most probable of some point, and no two are the same.
        history_: the clusters after each step.
        labels_: the cluster of each training point, (n_samples,).
    """

    max_iter: int
    tol: float
    random_state: Any
    n_init: int = 1

    @abstractmethod
    def _clusters(self) -> int:
        """How many clusters are asked for."""

    @abstractmethod
    def _start(self, points: Tensor, weights: Tensor | None, chance: Any) -> Any:
        """The state before the first step, drawn with a random state."""

    @abstractmethod
    def _step(
        self, points: Tensor, weights: Tensor | None, state: Any
    ) -> tuple[Any, float]:
        """The next state, and the objective of the given one."""

    @abstractmethod
    def _settled(
        self, points: Tensor, old: Any, new: Any, objectives: list[float]
    ) -> bool:
        """Whether the last step changed next to nothing."""

    @abstractmethod
    def _view(self, points: Tensor, state: Any) -> tuple[Votes, Similarity]:
        """The points as votes, and their similarity to the clusters."""

    @abstractmethod
    def _keep(self, state: Any) -> None:
        """Set the fitted attributes that hold the state."""

    @abstractmethod
    def _state(self) -> Any:
        """The state that the fitted attributes hold."""

    @abstractmethod
    def _keep_objectives(
        self, points: Tensor, weights: Tensor | None, objectives: list[float]
    ) -> None:
        """Set the fitted attributes that tell how the steps went."""

    def _export(self, state: Any) -> Any:
        """The state as numpy arrays, for the history."""
        return state._make(tensor.numpy() for tensor in state)

    def fit(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> Any:
        """Cluster the points.

        Args:
            X: (n_samples, n_features), float32 or float64; other dtypes are computed in
                float64.
            y: ignored.
            sample_weight: how much each point counts, (n_samples,), at least 0; the
                child activations of routing.

        Returns:
            The estimator itself.

        Raises:
            ValueError: if a setting is out of its range, the points or weights do not
                fit, or the points are so large that the objective is not finite.

        Warns:
            ConvergenceWarning: if the last step changed more than ``tol``; if there are
                fewer distinct points than clusters, a cluster is the most probable of
                no point, or two clusters take the same share of every point.
        """
        check_fields(self)
        clusters = self._clusters()
        points = numbers_of(self._validated(X, reset=True))
        if len(points) < clusters:
            raise ValueError(
                f"n_samples={len(points)} should be at least the number of clusters, "
                f"{clusters}"
            )
        weights = check_weights(sample_weight, points)
        chance = check_random_state(self.random_state)
        runs = [self._run(points, weights, chance) for _ in range(self.n_init)]
        # Mixtures alone have several starts, and their objective is to be high.
        run = max(runs, key=lambda run: run.objectives[-1])
        self.history_ = [self._export(state) for state in run.states]
        self.n_iter_ = len(run.objectives)
        self._keep(run.states[-1])
        self._keep_objectives(points, weights, run.objectives)
        assignment = self._assignment(points, run.states[-1])
        self.labels_ = assignment.argmax(-1).numpy()
        trouble = "" if run.settled else _UNSETTLED.format(self.max_iter)
        trouble = self._degenerate(points, weights, assignment) or trouble
        self.converged_ = not trouble
        if trouble:
            warnings.warn(
                f"{type(self).__name__} {trouble}", ConvergenceWarning, stacklevel=2
            )
        return self

    def _run(self, points: Tensor, weights: Tensor | None, chance: Any) -> "_Run":
        """Steps from one start, until they settle.

        Raises:
            ValueError: if the objective of a step is not finite.
        """
        state = self._start(points, weights, chance)
        states: list[Any] = []
        objectives: list[float] = []
        settled = False
        while len(objectives) < self.max_iter and not settled:
            old = state
            state, objective = self._step(points, weights, old)
            if not math.isfinite(objective):
                raise ValueError(
                    f"X holds numbers up to {points.abs().max():.3g}, with which the "
                    f"objective is {objective} in {points.dtype}: scale them"
                )
            objectives.append(objective)
            states.append(state)
            settled = self._settled(points, old, state, objectives)
        return _Run(states, objectives, settled)

    def _degenerate(
        self, points: Tensor, weights: Tensor | None, assignment: Tensor
    ) -> str:
        """Why clusters cannot all mean something; empty if they can."""
        clusters = assignment.shape[1]
        present = points if weights is None else points[weights > 0]
        count = distinct(self._compared(present), clusters)
        if count < clusters:
            return (
                f"was asked for {clusters} clusters of {count} distinct points: some "
                "of the clusters are the same, or empty"
            )
        share = assignment
        if weights is not None:
            share = weights[weights > 0, None] * assignment[weights > 0]
        pair = _same_clusters(share / share.sum(0))
        if pair is not None:
            return (
                f"has clusters that are the same, {pair} of {clusters}: ask for fewer"
            )
        empty = sorted({*range(clusters)} - {*share.argmax(-1).tolist()})
        if empty:
            return f"has clusters without points, {empty} of {clusters}: ask for fewer"
        return ""

    def _compared(self, points: Tensor) -> Tensor:
        """What of the points clusters can tell apart."""
        return points

    def fit_predict(
        self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None
    ) -> Array:
        """Cluster the points and return their clusters, (n_samples,)."""
        return self.fit(X, sample_weight=sample_weight).labels_

    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the assignment probabilities ``R_ij`` of points to clusters,
        (n_samples, clusters); rows sum to 1.
        """
        return self._assignment(self._points(X), self._state()).numpy()

    def predict(self, X: ArrayLike) -> Array:
        """Return the most probable cluster of each point, (n_samples,)."""
        return self._assignment(self._points(X), self._state()).argmax(-1).numpy()

    def _assignment(self, points: Tensor, state: Any) -> Tensor:
        votes, similarity = self._view(points, state)
        return votes.assignment(similarity)[0]

    def _log_partition(self, points: Tensor, state: Any) -> Tensor:
        """``log sum_j exp l_ij`` of each point, (I,)."""
        votes, similarity = self._view(points, state)
        return votes.source.log_partition(similarity, leaky=False)[0]

    def _validated(self, X: ArrayLike, reset: bool) -> Array:
        return validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])

    def _points(self, X: ArrayLike) -> Tensor:
        """Points for the fitted clusters, checked and in their dtype."""
        check_is_fitted(self)
        return numbers_of(self._validated(X, reset=False)).to(
            next(iter(self._state())).dtype
        )


def weighted_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of (I,) numbers, each times its weight."""
    return (values if weights is None else values * weights).sum()


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Return the mean of (I,) numbers under their weights."""
    return weighted_sum(values, weights) / (
        len(values) if weights is None else weights.sum()
    )


def check_weights(weights: ArrayLike | None, points: Tensor) -> Tensor | None:
    """Return the weights of the points, (I,), in their dtype.

    Raises:
        ValueError: if there is not one for each point, one is negative or not finite,
            or all are 0.
    """
    if weights is None:
        return None
    if isinstance(weights, Real):
        weights = np.full(len(points), weights)
    checked = check_array(
        weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight"
    )
    checked = numbers_of(checked).to(points.dtype)
    if checked.shape != (len(points),):
        raise ValueError(
            f"sample_weight must have shape ({len(points)},), got "
            f"{tuple(checked.shape)}"
        )
    if (checked < 0).any() or checked.sum() == 0:
        raise ValueError(
            "sample_weight must not be negative anywhere, nor zero everywhere"
        )
    return checked


def check_initial(
    name: str, value: ArrayLike, shape: tuple[int, ...], points: Tensor
) -> Tensor:
    """Return a given start, in the dtype of the points.

    Raises:
        ValueError: if it has another shape, or a number in it is not finite.
    """
    array = check_array(
        value, ensure_2d=False, allow_nd=True, dtype=np.float64, input_name=name
    )
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return numbers_of(array).to(points.dtype)
