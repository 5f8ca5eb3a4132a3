"""What mixtures of distributions share: they are fitted by EM, and their objective is a
log-likelihood.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from torchcaps.mixture.base import Array, Clustering, check_initial, weighted_mean
from torchcaps.numerics import check_size


class Mixture(DensityMixin, Clustering):
    r"""A mixture :math:`p(x) = \sum_j \pi_j p_j(x)`, fitted by expectation
    maximisation.

    With :math:`q_i` any distribution over the components, Jensen's inequality bounds
    the log-likelihood from below,

    .. math::
        \sum_i \log \sum_j \pi_j p_j(x_i) \ge
        \sum_i \sum_j q_{ij} \log \frac{\pi_j p_j(x_i)}{q_{ij}},

    with equality for the posterior :math:`q_{ij} = R_{ij}`. The E-step makes the bound
    touch, the M-step raises it; so the log-likelihood never falls.
    """

    n_components: int
    weights_init: Any
    learn: tuple[str, ...]
    weights_: Array

    def _clusters(self) -> int:
        return int(self.n_components)

    def _mean_log_likelihood(
        self, points: Tensor, weights: Tensor | None, state: Any
    ) -> float:
        return weighted_mean(self._log_likelihood(points, state), weights).item()

    def _log_likelihood(self, points: Tensor, state: Any) -> Tensor:
        return self._log_partition(points, state)

    def _settled(
        self, points: Tensor, old: Any, new: Any, objectives: list[float]
    ) -> bool:
        return len(objectives) > 1 and abs(objectives[-1] - objectives[-2]) < self.tol

    def _initial_weights(self, points: Tensor) -> Tensor | None:
        if self.weights_init is None:
            return None
        start = check_initial(
            "weights_init", self.weights_init, (self.n_components,), points
        )
        if (start < 0).any() or not torch.isclose(start.sum(), start.new_ones(())):
            raise ValueError(
                f"weights_init must be at least 0 and sum to 1, got {self.weights_init}"
            )
        return start

    def _learned(self, state: Any, **estimates: Tensor) -> Any:
        """The state with those of the tensors of an M-step that are to be learned."""
        return state._replace(**{name: estimates[name] for name in self.learn})

    def _keep_objectives(
        self, points: Tensor, weights: Tensor | None, objectives: list[float]
    ) -> None:
        self.lower_bounds_ = objectives
        self.lower_bound_ = objectives[-1]

    def score_samples(self, X: ArrayLike) -> Array:
        """Return the log-likelihood of each point, (n_samples,), natural logarithm."""
        return self._log_likelihood(self._points(X), self._state()).numpy()

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean log-likelihood of the points, natural logarithm."""
        return float(self.score_samples(X).mean())

    def bic(self, X: ArrayLike) -> float:
        r"""Return the Bayesian information criterion, :math:`-2 \log L + k \log n` for
        k numbers that are learned: lower is better.
        """
        points = self.score_samples(X)
        return float(self._count() * math.log(len(points)) - 2 * points.sum())

    def aic(self, X: ArrayLike) -> float:
        r"""Return the Akaike information criterion, :math:`-2 \log L + 2 k`: lower is
        better.
        """
        return float(2 * self._count() - 2 * self.score_samples(X).sum())

    def _count(self) -> int:
        """How many numbers are learned."""
        return sum(self._parameters()[name] for name in self.learn)

    @abstractmethod
    def _parameters(self) -> dict[str, int]:
        """How many free numbers each tensor has that can be learned."""

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Draw points, (n_samples, n_features), and their components (n_samples,),
        sorted by these.
        """
        return self._sample(n_samples, self._draw)

    def _sample(
        self, n_samples: int, draw: Callable[[int, int, Any], Array]
    ) -> tuple[Array, Array]:
        check_is_fitted(self)
        check_size(n_samples=n_samples)
        chance = check_random_state(self.random_state)
        weights = self.weights_.astype(np.float64)
        counts = chance.multinomial(n_samples, weights / weights.sum())
        drawn = [
            draw(component, count, chance) for component, count in enumerate(counts)
        ]
        return np.vstack(drawn), np.repeat(np.arange(len(counts)), counts)

    @abstractmethod
    def _draw(self, component: int, count: int, chance: Any) -> Array:
        """Draw as many points of one component, (count, n_features)."""
