"""The problem of the two coins: a mixture of binomials."""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_non_negative
from torch import Tensor
from torch.nn.functional import one_hot

from torchcaps.mixture.base import (
    Array,
    check_initial,
    cluster_moments,
    numbers_of,
    plusplus_points,
    point_votes,
    shares_of_points,
)
from torchcaps.mixture.density import Mixture
from torchcaps.numerics import NotNegative, Size, check_size
from torchcaps.ops import InnerProduct, Similarity, Votes
from torchcaps.spec import check_fields

Learned = Literal["probabilities", "weights"]


class Coins(NamedTuple):
    """The state of a binomial mixture.

    Args:
        probabilities: the probabilities of the sides, theta, (J, D), rows sum to 1.
        weights: pi, (J,).
    """

    probabilities: Tensor
    weights: Tensor


def _shares(counts: Tensor) -> Tensor:
    """Rows divided by their sums; a row of zeros becomes even."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts / total, 1 / counts.shape[-1])


def _log(probabilities: Tensor) -> Tensor:
    """The logarithm, clamped to be finite at 0, so that 0 * log 0 is 0 and not NaN."""
    return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


@dataclass(eq=False, repr=False)
class BinomialMixture(Mixture):
    r"""Fit a mixture of binomials by EM, as for coins of unknown identity.

    A point holds how often each side came up, (heads, tails). With more columns it is a
    mixture of multinomials (dice).

    .. math::
        \log p(x_i) = \log \sum_j \pi_j \prod_d \theta_{jd}^{x_{id}} + \text{const}, \quad
        R_{ij} = \operatorname{softmax}_j \Big( \log \pi_j + \sum_d x_{id} \log \theta_{jd} \Big), \quad
        \theta_{jd} = \frac{\sum_i R_{ij} x_{id}}{\sum_i \sum_{d'} R_{ij} x_{id'}}, \quad
        \pi_j = \frac1n \sum_i R_{ij}

    The similarity is an inner product with :math:`(\log \theta_j, \log \pi_j)` once a 1
    is put behind each point, so the estimator runs on the primitive of
    :mod:`torchcaps.ops`.

    Args:
        n_components: how many coins.
        learn: what an M-step re-estimates, of ``"probabilities"`` and ``"weights"``.
        weights_init: start of pi, (n_components,); even where None.
        probabilities_init: start of theta, (n_components, n_features); from k-means++
            where None.
        max_iter: the largest number of steps.
        tol: settled when the mean log-likelihood of a point changes by less.
        n_init: how many starts; the one of the highest log-likelihood is kept.
        random_state: the random state of the start, and of :meth:`sample`.

    Attributes:
        probabilities_: theta, (n_components, n_features).
        weights_: pi, (n_components,).
        lower_bounds_: mean log-likelihood before each step; lower_bound_ is the last.
        history_: :class:`Coins` after each step.
        labels_: (n_samples,).
        n_iter_: steps made.
        converged_: whether they settled, and every component has points of its own.

    Source: Do & Batzoglou 2008, "What is the expectation maximization algorithm?"

    Example:
        >>> from torchcaps.mixture import BinomialMixture
        >>> heads = [[9], [8], [9], [2], [1], [2]]  # of ten throws each
        >>> flips = [[number, 10 - number] for [number] in heads]
        >>> BinomialMixture(2, random_state=0).fit(flips).predict(flips)
        array([1, 1, 1, 0, 0, 0])
    """

    n_components: Size = 2
    _: KW_ONLY
    learn: tuple[Learned, ...] = get_args(Learned)
    weights_init: Any = None
    probabilities_init: Any = None
    max_iter: Size = 100
    tol: NotNegative = 1e-5
    random_state: Any = None
    n_init: Size = 1

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        return tags

    def fit_complete(self, X: ArrayLike, assignment: ArrayLike) -> "BinomialMixture":
        r"""Fit by maximum likelihood with complete data, when the coin of each round is
        known.

        .. math::
            \theta_{jd} = \frac{\sum_{i: z_i = j} x_{id}}{\sum_{i: z_i = j} \sum_{d'} x_{id'}}, \quad
            \pi_j = \frac1n |\{i : z_i = j\}|

        Args:
            X: (n_samples, n_features).
            assignment: the coin of each point, integers from 0 to n_components - 1,
                (n_samples,).

        Returns:
            The estimator itself, with ``n_iter_`` 1.

        Raises:
            ValueError: if the assignment does not fit, or a coin was never tossed.
        """
        check_fields(self)
        clusters = self._clusters()
        points = numbers_of(self._validated(X, reset=True))
        labels = np.asarray(assignment)
        if (
            labels.shape != (len(points),)
            or not np.isin(labels, np.arange(clusters)).all()
        ):
            raise ValueError(
                f"assignment must be {len(points)} integers from 0 to {clusters - 1}, "
                f"got {assignment!r}"
            )
        share = one_hot(torch.tensor(labels.astype(np.int64)), clusters).to(
            points.dtype
        )
        if (share.sum(0) == 0).any():
            raise ValueError(
                f"assignment leaves out component {int(share.sum(0).argmin())}"
            )
        state = Coins(_shares(share.T @ points), share.mean(0))
        self.history_ = [self._export(state)]
        self.n_iter_ = 1
        self.converged_ = True
        likelihood = self._mean_log_likelihood(points, None, state)
        self._keep(state)
        self._keep_objectives(points, None, [likelihood])
        self.labels_ = labels.astype(np.int64)
        return self

    def _validated(self, X: ArrayLike, reset: bool) -> Array:
        points = super()._validated(X, reset)
        check_non_negative(points, "BinomialMixture")
        return points

    def _compared(self, points: Tensor) -> Tensor:
        return _shares(points)

    def _start(self, points: Tensor, weights: Tensor | None, chance: Any) -> Coins:
        shape = (self.n_components, points.shape[1])
        even = points.new_full((self.n_components,), 1 / self.n_components)
        start_weights = self._initial_weights(points)
        if self.probabilities_init is None:
            chosen = plusplus_points(
                self._compared(points), self.n_components, weights, chance
            )
            probabilities = _shares(points[chosen] + 1)
        else:
            probabilities = check_initial(
                "probabilities_init", self.probabilities_init, shape, points
            )
            if (probabilities < 0).any() or not torch.allclose(
                probabilities.sum(-1), torch.ones_like(even)
            ):
                raise ValueError(
                    "probabilities_init must have rows >= 0 of sum 1, got "
                    f"{self.probabilities_init}"
                )
        return Coins(probabilities, even if start_weights is None else start_weights)

    def _view(self, points: Tensor, state: Coins) -> tuple[Votes, Similarity]:
        ones = points.new_ones(len(points), 1)
        alpha = torch.cat(
            [_log(state.probabilities), _log(state.weights)[:, None]], dim=-1
        )
        return point_votes(torch.cat([points, ones], dim=-1), len(alpha)), InnerProduct(
            alpha[None]
        )

    def _step(
        self, points: Tensor, weights: Tensor | None, state: Coins
    ) -> tuple[Coins, float]:
        votes, similarity = self._view(points, state)
        share, log_mass = shares_of_points(votes, similarity, weights)
        probabilities = _shares(cluster_moments(points, share).sum[:, 0])
        new = self._learned(
            state, probabilities=probabilities, weights=log_mass.softmax(0)
        )
        return new, self._mean_log_likelihood(points, weights, state)

    def _log_likelihood(self, points: Tensor, state: Coins) -> Tensor:
        """With the number of orders in which the sides can come up."""
        orders = torch.lgamma(points.sum(-1) + 1) - torch.lgamma(points + 1).sum(-1)
        return self._log_partition(points, state) + orders

    def sample(self, n_samples: int = 1, throws: int = 1) -> tuple[Array, Array]:
        """Draw points, of so many throws each, (n_samples, n_features), and their
        components (n_samples,), sorted by these.
        """
        check_size(throws=throws)
        return self._sample(n_samples, partial(self._draw, throws=throws))

    def _draw(self, component: int, count: int, chance: Any, throws: int = 1) -> Array:
        sides = self.probabilities_[component].astype(np.float64)
        return np.asarray(chance.multinomial(throws, sides / sides.sum(), count))

    def _parameters(self) -> dict[str, int]:
        components, sides = self.probabilities_.shape
        return {"weights": components - 1, "probabilities": components * (sides - 1)}

    def _keep(self, state: Coins) -> None:
        self.probabilities_ = state.probabilities.numpy()
        self.weights_ = state.weights.numpy()

    def _state(self) -> Coins:
        return Coins(numbers_of(self.probabilities_), numbers_of(self.weights_))
