"""Criteria, samples, starts and distances, as scikit-learn has them."""

from typing import Any

import numpy as np
import pytest
from mixture_data import two_components
from sklearn.cluster import KMeans as TheirKMeans
from sklearn.mixture import GaussianMixture as TheirMixture

from torchcaps.mixture import BinomialMixture, GaussianMixture, KMeans, SoftKMeans

KINDS = ["diag", "full"]


def both(kind: str, seed: int = 0, **options: Any) -> tuple[Any, Any]:
    """Ours, and scikit-learn's with the same numbers."""
    points = two_components(80)
    ours = GaussianMixture(3, covariance_type=kind, random_state=seed, **options)
    ours.fit(points)
    theirs = TheirMixture(3, covariance_type=kind, random_state=seed, max_iter=1)
    with np.testing.suppress_warnings() as quiet:
        quiet.filter(Warning)
        theirs.fit(points)
    theirs.weights_ = ours.weights_
    theirs.means_ = ours.means_
    theirs.covariances_ = ours.covariances_
    if kind == "diag":
        theirs.precisions_cholesky_ = ours.covariances_**-0.5
    else:
        factors = np.linalg.cholesky(ours.covariances_)
        theirs.precisions_cholesky_ = np.linalg.inv(factors).transpose(0, 2, 1)
    return ours, theirs


@pytest.mark.parametrize("kind", KINDS)
def test_criteria(kind: str) -> None:
    ours, theirs = both(kind)
    points = two_components(50)
    np.testing.assert_allclose(ours.bic(points), theirs.bic(points), rtol=1e-9)
    np.testing.assert_allclose(ours.aic(points), theirs.aic(points), rtol=1e-9)


def test_what_is_not_learned_is_not_counted() -> None:
    points = two_components(50)
    mixture = GaussianMixture(2, learn=("means",), random_state=0, max_iter=500)
    mixture.fit(points)
    likelihood = mixture.score_samples(points).sum()
    assert mixture.aic(points) == pytest.approx(
        2 * 2 * points.shape[1] - 2 * likelihood
    )


@pytest.mark.parametrize("kind", KINDS)
def test_samples(kind: str) -> None:
    ours, theirs = both(kind, seed=3)
    for actual, expected in zip(ours.sample(50), theirs.sample(50), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_samples_of_coins() -> None:
    flips = np.array([[9, 1], [8, 2], [9, 1], [2, 8], [1, 9], [2, 8]])
    mixture = BinomialMixture(2, random_state=0).fit(flips)
    drawn, coins = mixture.sample(4000, throws=10)
    assert drawn.shape == (4000, 2)
    assert (drawn.sum(1) == 10).all()
    for coin in range(2):
        heads = drawn[coins == coin, 0].mean() / 10
        assert heads == pytest.approx(mixture.probabilities_[coin, 0], abs=0.02)
    assert mixture.aic(flips) == pytest.approx(
        2 * 3 - 2 * mixture.score_samples(flips).sum()
    )


@pytest.mark.parametrize("n_samples", [0, -1])
def test_no_samples_are_refused(n_samples: int) -> None:
    with pytest.raises(ValueError, match="n_samples"):
        both("diag")[0].sample(n_samples)


def test_the_best_start_is_kept() -> None:
    points = np.random.default_rng(0).normal(size=(60, 2))
    options: dict[str, Any] = {"tol": 1e-4, "max_iter": 1000, "random_state": 0}
    best = GaussianMixture(5, n_init=4, **options).fit(points)
    chance = np.random.RandomState(0)
    options["random_state"] = chance
    single = [GaussianMixture(5, **options).fit(points) for _ in range(4)]
    bounds = [mixture.lower_bound_ for mixture in single]
    assert max(bounds) > bounds[0]
    assert best.lower_bound_ == max(bounds)
    with pytest.raises(ValueError, match="n_init"):
        GaussianMixture(n_init=0).fit(points)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_to_centres(dtype: type) -> None:
    points = two_components(40).astype(dtype)
    start = points[:3]
    ours = KMeans(3, init=start).fit(points)
    theirs = TheirKMeans(3, init=start, n_init=1, tol=ours.tol).fit(points)
    assert ours.transform(points).dtype == dtype
    np.testing.assert_allclose(
        ours.transform(points), theirs.transform(points), rtol=1e-4, atol=1e-4
    )
    np.testing.assert_array_equal(ours.fit_transform(points), ours.transform(points))
    names = theirs.get_feature_names_out()
    np.testing.assert_array_equal(ours.get_feature_names_out(), names)


def test_distances_do_not_depend_on_where_the_origin_is() -> None:
    points = two_components(40)
    far = points + 1e6
    near, moved = (
        KMeans(3, init=data[:3]).fit(data).transform(data) for data in (points, far)
    )
    np.testing.assert_allclose(moved, near, rtol=0, atol=1e-8)


@pytest.mark.filterwarnings("ignore:.*clusters that are the same")
@pytest.mark.parametrize("estimator", [KMeans, SoftKMeans])
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
def test_the_nearest_centre_is_the_cluster(estimator: Any, metric: str) -> None:
    points = two_components(40)
    model = estimator(3, metric=metric, random_state=0, max_iter=3000).fit(points)
    nearest = model.transform(points).argmin(1)
    np.testing.assert_array_equal(nearest, model.predict(points))
    if estimator is KMeans:
        distance = model.transform(points).min(1)
        power = 2 if metric == "euclidean" else 1
        assert (distance**power).sum() == pytest.approx(model.inertia_)
