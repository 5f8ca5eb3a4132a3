"""scikit-learn's own checks of an estimator."""

import pickle

import numpy as np
import pytest
from mixture_data import two_components
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchcaps.mixture import BinomialMixture, GaussianMixture, KMeans, SoftKMeans

ESTIMATORS = [
    KMeans(),
    KMeans(metric="inner"),
    SoftKMeans(),
    SoftKMeans(metric="inner"),
    GaussianMixture(),
    GaussianMixture(covariance_type="diag"),
    BinomialMixture(),
]


MEANS = [estimator for estimator in ESTIMATORS if "inner" not in str(estimator)]


def expected_failures(estimator: object) -> dict[str, str]:
    if isinstance(estimator, GaussianMixture):
        return {}
    reason = (
        "the random start draws from weighted points where the other draws from "
        "repeated ones (as scikit-learn's)"
    )
    return {"check_sample_weight_equivalence_on_dense_data": reason}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failures)
def test_scikit_learn_check(estimator: object, check: object) -> None:
    check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_float32_stays(estimator: KMeans) -> None:
    points = np.abs(two_components(60)).astype(np.float32)
    model = clone(estimator).set_params(random_state=0, tol=1e-3, max_iter=500)
    model.set_params(
        **{"n_clusters" if "n_clusters" in model.get_params() else "n_components": 2}
    )
    model.fit(points)
    assert model.predict_proba(points).dtype == np.float32
    assert (
        model.predict_proba(points.astype(np.float64)).dtype == np.float32
    )  # what it was fitted in
    np.testing.assert_allclose(model.predict_proba(points).sum(1), 1, rtol=1e-5)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(points), model.labels_)
    assert np.isfinite(model.score(points))
    assert clone(model).fit(points).score(points) == model.score(points)


def fitted(estimator: KMeans, points: np.ndarray, **options: np.ndarray) -> KMeans:
    name = "n_clusters" if hasattr(estimator, "n_clusters") else "n_components"
    model = clone(estimator).set_params(random_state=0, max_iter=500, **{name: 2})
    return model.fit(points, **options)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_arrays_may_run_backwards_through_their_memory(estimator: KMeans) -> None:
    points, weights = np.abs(two_components(60)), np.linspace(1, 2, 60)
    backwards = np.array(points[::-1]), np.array(weights[::-1])
    model = fitted(estimator, points, sample_weight=weights)
    same = fitted(estimator, backwards[0][::-1], sample_weight=backwards[1][::-1])
    np.testing.assert_array_equal(model.labels_, same.labels_)
    np.testing.assert_array_equal(
        model.predict(points)[::-1], same.predict(points[::-1])
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_a_far_point_has_no_effect_on_the_answers_for_others(estimator: KMeans) -> None:
    points = np.abs(two_components(60))
    model = fitted(estimator, points)
    with_a_far_one = np.vstack([points, np.full_like(points[:1], 1e20)])
    np.testing.assert_allclose(
        model.predict_proba(with_a_far_one)[:-1], model.predict_proba(points)
    )


@pytest.mark.filterwarnings("ignore:.*did not settle")
@pytest.mark.parametrize("estimator", MEANS, ids=str)
@pytest.mark.parametrize("scale", [1e-35, 1e-13, 1e13])
def test_weights_are_relative(estimator: KMeans, scale: float) -> None:
    points = np.abs(two_components(60)).astype(np.float32)
    weights = np.random.default_rng(0).uniform(1, 3, 60)
    model = clone(estimator).set_params(random_state=0, tol=0, max_iter=5)
    model.set_params(
        **{"n_clusters" if "n_clusters" in model.get_params() else "n_components": 2}
    )
    expected, actual = (
        clone(model).fit(points, sample_weight=weights * factor)
        for factor in (1, scale)
    )
    np.testing.assert_allclose(
        actual.predict_proba(points), expected.predict_proba(points), atol=1e-3
    )
    if "n_components" in model.get_params():
        np.testing.assert_allclose(actual.weights_, expected.weights_, rtol=1e-3)
        assert actual.weights_.sum() == pytest.approx(1, abs=1e-6)
    else:
        np.testing.assert_allclose(
            actual.cluster_centers_, expected.cluster_centers_, rtol=1e-3
        )


def test_weights_that_vanish_in_float32() -> None:
    with pytest.raises(
        ValueError,
        match="sample_weight must not be negative anywhere, nor zero everywhere",
    ):
        KMeans(2).fit(
            two_components(60).astype(np.float32), sample_weight=np.full(60, 1e-60)
        )
