"""Gaussian mixtures, diagonal and full, as estimators."""

import math
import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from torchcaps.mixture.base import (
    Array,
    check_initial,
    cluster_moments,
    numbers_of,
    point_votes,
    shares_of_points,
)
from torchcaps.mixture.density import Mixture
from torchcaps.mixture.kmeans import KMeans
from torchcaps.numerics import FloorOrNone, NotNegative, Size, resolution
from torchcaps.ops import Gaussian, Similarity, Votes

Learned = Literal["weights", "means", "covariances"]


class Gaussians(NamedTuple):
    """The state of a Gaussian mixture.

    Args:
        means: mu, (J, D).
        covariances: sigma^2, (J, D), or Sigma, (J, D, D).
        weights: pi, (J,).
    """

    means: Tensor
    covariances: Tensor
    weights: Tensor


def _log_weight(state: Gaussians, log_determinant: Tensor) -> Tensor:
    """Everything in ``log pi_j p_j(x)`` but the distance, (1, J)."""
    size = state.means.shape[-1]
    return (state.weights.log() - (log_determinant + size * math.log(2 * math.pi)) / 2)[
        None
    ]


def _check_definite(definite: Tensor) -> None:
    """Raise a ValueError that names the first component of (J,) whose covariance is
    singular.
    """
    if not definite.all():
        component = int((~definite).nonzero()[0])
        raise ValueError(
            f"the covariance of component {component} is singular: too few points "
            "support it; raise reg_covar, or ask for fewer n_components"
        )


class Diagonal:
    """Variances: the Gaussian similarity of :mod:`torchcaps.ops`, and its moments, as
    they are.
    """

    def shape(self, components: int, size: int) -> tuple[int, ...]:
        """Return (J, D)."""
        return components, size

    def inverse(self, precisions: Tensor) -> Tensor:
        """Return covariances from precisions, entry by entry.

        Raises:
            ValueError: if one is not above 0; names ``precisions_init``.
        """
        if not (precisions > 0).all():
            raise ValueError(
                f"precisions_init must be above 0, got {precisions.min().item():g}"
            )
        return precisions.reciprocal()

    def view(self, points: Tensor, state: Gaussians) -> tuple[Votes, Gaussian]:
        """Return votes and similarity whose logits are ``log pi_j p_j(x_i)``: points as
        they are, precisions ``1 / sigma^2``.
        """
        variances = state.covariances
        _check_definite((variances > 0).all(-1))
        log_weight = _log_weight(state, variances.log().sum(-1))
        similarity = Gaussian(
            state.means[None], variances.reciprocal()[None], log_weight
        )
        return point_votes(points, len(variances)), similarity

    def m_step(
        self, points: Tensor, share: Tensor, floor: float
    ) -> tuple[Tensor, Tensor]:
        """Return means (J, D) and variances of the points (I, D) under their shares (I,
        J), whose columns sum to 1, from sum and scatter of the votes.
        """
        moments = cluster_moments(points, share, scatter=True)
        mean = moments.mean[:, 0]
        variance = moments.variance[:, 0]
        differ = variance > resolution(mean, roundings=4).square()
        return mean, variance.where(differ, 0.0) + floor


class Full:
    """Covariance matrices. The E-step is that of :mod:`torchcaps.ops`, the M-step is
    not.

    E-step: with :math:`\\Sigma_j = L_j L_j^T`, a shared transform :math:`W_j =
    L_j^{-T}` whitens the points for component j, whose Gaussian is then the unit
    sphere. M-step: a covariance needs the sums of all products :math:`x_d x_{d'}`, D^2
    numbers, and the primitive's scatter holds only the D squares, which is all that
    routing asks for. So these sums are taken here, under the assignment that the
    primitive gives.
    """

    def shape(self, components: int, size: int) -> tuple[int, ...]:
        """Return (J, D, D)."""
        return components, size, size

    def inverse(self, precisions: Tensor) -> Tensor:
        """Return covariances from precisions, matrix by matrix.

        Raises:
            ValueError: if one is not positive definite; names ``precisions_init``.
        """
        _, failed = torch.linalg.cholesky_ex(precisions)
        if failed.any() or not torch.allclose(precisions, precisions.mT):
            raise ValueError(
                "precisions_init must be symmetric and positive definite, got "
                f"{precisions.tolist()}"
            )
        return torch.linalg.inv(precisions)

    def view(self, points: Tensor, state: Gaussians) -> tuple[Votes, Gaussian]:
        """Return votes and similarity whose logits are ``log pi_j p_j(x_i)``: points
        whitened by each component, precisions 1.
        """
        factors, failed = torch.linalg.cholesky_ex(state.covariances)
        pivots = factors.diagonal(dim1=-2, dim2=-1).square()
        variances = state.covariances.diagonal(dim1=-2, dim2=-1)
        resolved = (pivots > resolution(variances, roundings=4)).all(-1)
        _check_definite((failed == 0) & resolved)
        size = points.shape[-1]
        identity = torch.eye(size, dtype=points.dtype).expand_as(factors)
        whiten = torch.linalg.solve_triangular(
            factors, identity, upper=False
        ).mT  # [J, D, D]
        # Products with far numbers would lose the digits that count. One far point, or a
        # component that it has to itself, must not move the middle.
        middle = state.means[state.weights.argmax()]
        means = torch.einsum("jd,jde->je", state.means - middle, whiten)
        log_determinant = 2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        votes = Votes((points - middle)[None], whiten[None])
        return votes, Gaussian(
            means[None],
            torch.ones_like(means)[None],
            _log_weight(state, log_determinant),
        )

    def m_step(
        self, points: Tensor, share: Tensor, floor: float
    ) -> tuple[Tensor, Tensor]:
        """Return means (J, D) and covariances of the points (I, D) under their shares
        (I, J), whose columns sum to 1.
        """
        means = share.T @ points
        centred = points - means[:, None]  # [J, I, D]
        covariances = torch.einsum("ij,jid,jie->jde", share, centred, centred)
        variances = covariances.diagonal(dim1=-2, dim2=-1)
        differ = variances > resolution(means, roundings=4).square()
        covariances = covariances * (differ[:, None] & differ[:, :, None])
        return means, covariances + floor * torch.eye(points.shape[-1]).to(points)


COVARIANCES: dict[str, Diagonal | Full] = {"diag": Diagonal(), "full": Full()}


@dataclass(eq=False, repr=False)
class GaussianMixture(Mixture):
    r"""Fit a mixture of Gaussians by EM.

    .. math::
        R_{ij} = \operatorname{softmax}_j \log \big( \pi_j \mathcal N(x_i; \mu_j, \Sigma_j) \big), \quad
        N_j = \sum_i R_{ij}, \quad
        \mu_j = \frac1{N_j} \sum_i R_{ij} x_i, \quad
        \Sigma_j = \frac1{N_j} \sum_i R_{ij} (x_i - \mu_j)(x_i - \mu_j)^T, \quad \pi_j = \frac{N_j}{n}

    ``diag`` keeps the diagonals of the covariances, as EM routing does, and runs on the
    primitive of :mod:`torchcaps.ops` altogether. ``full`` takes its E-step from there,
    with a whitening transform for each component, but not its M-step: see
    :class:`Full`. A component that has lost all points keeps its mean and covariance;
    its weight is 0.

    Args:
        n_components: how many.
        covariance_type: ``"diag"`` or ``"full"``.
        learn: what an M-step re-estimates, of ``"weights"``, ``"means"`` and
            ``"covariances"``. With the means alone, equal weights and precisions 2K it
            is Euclidean :class:`~torchcaps.mixture.SoftKMeans`.
        weights_init: start of pi, (n_components,).
        means_init: start of mu, (n_components, n_features).
        precisions_init: start of the inverse covariances, (n_components, n_features) or
            with one more n_features. Whatever is None comes from one M-step under the
            clusters of :class:`~torchcaps.mixture.KMeans`.
        reg_covar: added to the variances, at least 0. At 0 the log-likelihood never
            falls; a component that has shrunk to a point then is an error.
        max_iter: the largest number of steps.
        tol: settled when the mean log-likelihood of a point changes by less.
        n_init: how many starts; the one of the highest log-likelihood is kept.
        random_state: the random state of K-Means, and of :meth:`sample`.

    Attributes:
        means_: (n_components, n_features).
        covariances_: (n_components, n_features), or with one more n_features.
        weights_: (n_components,).
        lower_bounds_: mean log-likelihood before each step; lower_bound_ is the last.
        history_: :class:`Gaussians` after each step.
        labels_: (n_samples,).
        n_iter_: steps made.
        converged_: whether they settled, and every component has points of its own.

    Source: Dempster, Laird & Rubin 1977; parameters and attributes as in
    ``sklearn.mixture.GaussianMixture``.

    Example:
        >>> from torchcaps.mixture import GaussianMixture
        >>> points = torch.cat([torch.randn(50, 2) - 4, torch.randn(50, 2) + 4]).numpy()
        >>> mixture = GaussianMixture(2, random_state=0).fit(points)
        >>> mixture.means_.shape, mixture.predict_proba(points).shape
        ((2, 2), (100, 2))
    """

    n_components: Size = 1
    _: KW_ONLY
    covariance_type: Literal["diag", "full"] = "full"
    learn: tuple[Learned, ...] = get_args(Learned)
    weights_init: Any = None
    means_init: Any = None
    precisions_init: Any = None
    reg_covar: FloorOrNone = 1e-6
    max_iter: Size = 100
    tol: NotNegative = 1e-3
    random_state: Any = None
    n_init: Size = 1

    @property
    def _covariance(self) -> Diagonal | Full:
        return COVARIANCES[self.covariance_type]

    def _start(self, points: Tensor, weights: Tensor | None, chance: Any) -> Gaussians:
        start = {
            "means": self._checked_initial(
                "means_init", (self.n_components, points.shape[1]), points
            ),
            "covariances": self._initial_covariances(points),
            "weights": self._initial_weights(points),
        }
        chosen = {name: tensor for name, tensor in start.items() if tensor is not None}
        if len(chosen) == len(start):
            return Gaussians(**chosen)
        return self._from_kmeans(points, weights, chance)._replace(**chosen)

    def _checked_initial(
        self, name: str, shape: tuple[int, ...], points: Tensor
    ) -> Tensor | None:
        value = getattr(self, name)
        return None if value is None else check_initial(name, value, shape, points)

    def _initial_covariances(self, points: Tensor) -> Tensor | None:
        shape = self._covariance.shape(self.n_components, points.shape[1])
        precisions = self._checked_initial("precisions_init", shape, points)
        return None if precisions is None else self._covariance.inverse(precisions)

    def _from_kmeans(
        self, points: Tensor, weights: Tensor | None, chance: Any
    ) -> Gaussians:
        kmeans = KMeans(self.n_components, random_state=chance)
        with warnings.catch_warnings():
            # The mixture says itself where it has too few points.
            warnings.simplefilter("ignore", ConvergenceWarning)
            kmeans.fit(
                points.numpy(),
                sample_weight=None if weights is None else weights.numpy(),
            )
        votes = point_votes(points, self.n_components, hard=True)
        centres = numbers_of(kmeans.cluster_centers_)
        similarity = Gaussian.spherical(centres[None], 1.0)
        share, log_mass = shares_of_points(votes, similarity, weights)
        means, covariances = self._covariance.m_step(points, share, self.reg_covar)
        empty = log_mass == -torch.inf  # a cluster without points
        means = torch.where(empty[:, None], centres.to(means.dtype), means)
        return Gaussians(means, covariances, log_mass.softmax(0))

    def _view(self, points: Tensor, state: Gaussians) -> tuple[Votes, Similarity]:
        return self._covariance.view(points, state)

    def _step(
        self, points: Tensor, weights: Tensor | None, state: Gaussians
    ) -> tuple[Gaussians, float]:
        votes, similarity = self._view(points, state)
        share, log_mass = shares_of_points(votes, similarity, weights)
        means, covariances = self._covariance.m_step(points, share, self.reg_covar)
        empty = log_mass == -torch.inf  # a component without points
        new = self._learned(
            state,
            means=torch.where(empty[:, None], state.means, means),
            covariances=torch.where(
                empty.view(-1, *[1] * (covariances.ndim - 1)),
                state.covariances,
                covariances,
            ),
            weights=log_mass.softmax(0),
        )
        return new, self._mean_log_likelihood(points, weights, state)

    def _parameters(self) -> dict[str, int]:
        components, size = self.means_.shape
        covariances = {"diag": size, "full": size * (size + 1) // 2}
        return {
            "weights": components - 1,
            "means": components * size,
            "covariances": components * covariances[self.covariance_type],
        }

    def _draw(self, component: int, count: int, chance: Any) -> Array:
        mean = self.means_[component]
        covariance = self.covariances_[component]
        if self.covariance_type == "full":
            return np.asarray(chance.multivariate_normal(mean, covariance, count))
        noise = chance.standard_normal(size=(count, len(mean)))
        return np.asarray(mean + noise * np.sqrt(covariance))

    def _keep(self, state: Gaussians) -> None:
        arrays = (tensor.numpy() for tensor in state)
        self.means_, self.covariances_, self.weights_ = arrays

    def _state(self) -> Gaussians:
        arrays = self.means_, self.covariances_, self.weights_
        return Gaussians(*map(numbers_of, arrays))
