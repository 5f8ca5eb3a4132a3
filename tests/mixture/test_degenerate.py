"""Results that are no clusters are not called converged."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans as TheirKMeans
from sklearn.exceptions import ConvergenceWarning

from torchcaps.mixture import BinomialMixture, GaussianMixture, KMeans, SoftKMeans

THREE = np.array([[1.0, 5.0], [4.0, 1.0], [9.0, 2.0]])
ESTIMATORS = [
    KMeans(5),
    KMeans(5, metric="inner"),
    SoftKMeans(5),
    SoftKMeans(5, metric="squashed"),
    GaussianMixture(5),
    GaussianMixture(5, covariance_type="diag"),
    BinomialMixture(5),
]


def nearly(points: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(0).integers(-2, 3, points.shape)
    return (points * (1 + noise * np.finfo(points.dtype).eps)).astype(points.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("change", [lambda points: points, nearly])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_more_clusters_than_distinct_points(
    estimator: KMeans, change: object, dtype: type
) -> None:
    assert callable(change)
    points = change(np.repeat(THREE, 4, 0).astype(dtype))
    model = clone(estimator).set_params(random_state=0)
    with pytest.warns(ConvergenceWarning, match="5 clusters of 3 distinct"):
        model.fit(points)
    assert not model.converged_


def test_scikit_learn_warns_too() -> None:
    with pytest.warns(ConvergenceWarning, match="distinct clusters"):
        TheirKMeans(5, random_state=0).fit(np.repeat(THREE, 4, 0))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_as_many_clusters_as_distinct_points(estimator: KMeans) -> None:
    name = "n_clusters" if "n_clusters" in estimator.get_params() else "n_components"
    model = clone(estimator).set_params(random_state=0, max_iter=2000, **{name: 3})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(np.repeat([[10.0, 50.0], [40.0, 10.0], [90.0, 60.0]], 4, 0))
    assert model.converged_


@pytest.mark.parametrize(
    "estimator",
    [
        SoftKMeans(3, sharpness=0.01),
        SoftKMeans(3, metric="inner", sharpness=0.01),
        GaussianMixture(
            3,
            covariance_type="diag",
            learn=("means",),
            precisions_init=np.full((3, 2), 0.01),
        ),
        BinomialMixture(3),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_clusters_that_met(estimator: KMeans) -> None:
    points = np.random.default_rng(0).integers(4, 7, (40, 2)).astype(float)
    model = clone(estimator).set_params(random_state=0, max_iter=2000)
    with pytest.warns(ConvergenceWarning, match=r"the same, \[0, 1\] of 3"):
        model.fit(points)
    assert not model.converged_


def test_points_of_no_weight_do_not_count() -> None:
    points = np.concatenate([np.repeat(THREE, 4, 0), [[30.0, 30.0]]])
    weights = np.append(np.ones(12), 0)
    with pytest.warns(ConvergenceWarning, match="4 clusters of 3 distinct"):
        KMeans(4, random_state=0).fit(points, sample_weight=weights)


def test_a_centre_that_no_point_chooses() -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    start = np.array([[0.0, 0.0], [1.0, 1.0], [500.0, 500.0]])
    with pytest.warns(ConvergenceWarning, match=r"without points, \[2\] of 3"):
        model = KMeans(3, init=start).fit(points)
    assert not model.converged_


@pytest.mark.parametrize("size", [1e180, 1e200, 1e300])
@pytest.mark.parametrize(
    "estimator", [KMeans(2), SoftKMeans(2), GaussianMixture(2)], ids=str
)
def test_points_too_large_for_their_squares(estimator: KMeans, size: float) -> None:
    points = np.random.default_rng(0).normal(size=(20, 2))
    points[:3] *= size
    with (
        pytest.raises(ValueError, match="X holds numbers up to"),
        np.errstate(all="ignore"),
    ):
        estimator.fit(points)


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_components_without_points_start_among_them(kind: str) -> None:
    points = [[100.0], [100.0], [101.0], [101.0]]
    with pytest.warns(ConvergenceWarning):
        means = GaussianMixture(3, covariance_type=kind, random_state=0).fit(points)
    assert means.means_.min() >= 99


def test_one_weight_for_all_points() -> None:
    points = np.random.default_rng(0).normal(size=(9, 2))
    alike = [
        KMeans(2, random_state=0).fit(points, sample_weight=weight).cluster_centers_
        for weight in (None, 2.0)
    ]
    np.testing.assert_allclose(*alike)
