"""Gaussian mixtures against scikit-learn's and against the densities of scipy."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mixture_data import Array, data, two_components
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture as TheirGaussianMixture

from torchcaps import use_backend
from torchcaps.mixture import GaussianMixture

DATA = pytest.mark.parametrize("name", ["iris", "two-components"])
TYPES = pytest.mark.parametrize("covariance_type", ["diag", "full"])
UNSETTLED = pytest.mark.filterwarnings("ignore:.*(did not settle|without points)")


def start(points: Array, centres: Array, covariance_type: str) -> dict[str, Array]:
    """Uneven weights, centres, and the precisions of all points together times 1, 2,
    ...
    """
    components = len(centres)
    weights = np.arange(1, components + 1) / np.arange(1, components + 1).sum()
    scales = np.arange(1.0, components + 1)
    if covariance_type == "diag":
        precisions = scales[:, None] / points.var(0)
    else:
        precisions = scales[:, None, None] * np.linalg.inv(np.cov(points.T))
    return {
        "weights_init": weights,
        "means_init": centres,
        "precisions_init": precisions,
    }


@DATA
@TYPES
@pytest.mark.parametrize(
    ("tol", "reg_covar"), [(1e-3, 1e-6), (1e-9, 0.0)], ids=["defaults", "to-the-end"]
)
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_agrees_with_scikit_learn(
    name: str, covariance_type: str, tol: float, reg_covar: float, backend: str
) -> None:
    points, centres = data(name)
    arguments = {
        "covariance_type": covariance_type,
        "tol": tol,
        "reg_covar": reg_covar,
        "max_iter": 500,
        **start(points, centres, covariance_type),
    }
    with use_backend(backend):
        ours = GaussianMixture(len(centres), **arguments).fit(points)
    theirs = TheirGaussianMixture(len(centres), **arguments).fit(points)
    assert theirs.converged_
    assert theirs.n_iter_ > 3
    assert ours.n_iter_ == theirs.n_iter_
    for attribute in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(
            getattr(ours, attribute), getattr(theirs, attribute), rtol=0, atol=1e-6
        )
    np.testing.assert_allclose(
        ours.lower_bounds_, theirs.lower_bounds_, rtol=0, atol=1e-6
    )
    assert ours.lower_bound_ == pytest.approx(theirs.lower_bound_, abs=1e-6)
    elsewhere = points + 0.5
    np.testing.assert_allclose(
        ours.predict_proba(elsewhere), theirs.predict_proba(elsewhere), atol=1e-6
    )
    np.testing.assert_allclose(
        ours.score_samples(elsewhere),
        theirs.score_samples(elsewhere),
        rtol=1e-6,
        atol=1e-6,
    )
    np.testing.assert_array_equal(ours.labels_, theirs.predict(points))
    assert ours.score(points) == pytest.approx(theirs.score(points), abs=1e-6)


@UNSETTLED
@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
)
@TYPES
def test_log_likelihood_never_falls(
    covariance_type: str, seed: int, size: int, components: int, weighted: bool
) -> None:
    random = np.random.default_rng(seed)
    points = random.normal(size=(120, size)) * random.uniform(
        0.1, 10, size
    ) + random.normal(0, 5, size)
    weights = random.uniform(0, 3, 120) if weighted else None
    precision = np.tile(1 / points.var(0), (components, 1))
    model = GaussianMixture(
        components,
        covariance_type=covariance_type,
        means_init=points[:components],
        weights_init=np.full(components, 1 / components),
        precisions_init=precision
        if covariance_type == "diag"
        else precision[:, None] * np.eye(size),
        reg_covar=0,
        max_iter=12,
        tol=0,
    )
    try:
        model.fit(points, sample_weight=weights)
    # One in a thousand: a component shrank to a point, and the likelihood to infinity
    except ValueError as error:
        assume("singular" not in str(error))
        raise
    assert len(model.lower_bounds_) == 12
    bounds = np.array(model.lower_bounds_)
    assert np.diff(bounds).min() >= -1e-10 * np.abs(bounds).max()


@TYPES
def test_the_bound_touches_and_stays_below(covariance_type: str) -> None:
    """Jensen: the bound under any assignment q is at most the log-likelihood, and equal
    under the posterior.
    """
    points, centres = data("two-components")
    model = GaussianMixture(
        2, covariance_type=covariance_type, means_init=centres, random_state=0
    ).fit(points)
    covariances = [
        np.diag(c) if covariance_type == "diag" else c for c in model.covariances_
    ]
    joint = np.stack(
        [
            np.log(weight) + multivariate_normal.logpdf(points, mean, covariance)
            for weight, mean, covariance in zip(
                model.weights_, model.means_, covariances, strict=True
            )
        ],
        axis=1,
    )

    def bound(q: Array) -> float:
        return float((q * (joint - np.log(q))).sum(1).mean())

    assert bound(model.predict_proba(points).clip(1e-300)) == pytest.approx(
        model.score(points), rel=1e-9
    )
    assert np.logaddexp.reduce(joint, 1) == pytest.approx(
        model.score_samples(points), rel=1e-9
    )
    for seed in range(3):
        q = np.random.default_rng(seed).dirichlet((1, 1), len(points))
        assert bound(q) < model.score(points)


@TYPES
def test_finds_the_components_that_made_the_points(covariance_type: str) -> None:
    model = GaussianMixture(2, covariance_type=covariance_type, random_state=0).fit(
        two_components(4000)
    )
    order = model.weights_.argsort()[::-1]
    np.testing.assert_allclose(model.weights_[order], [0.6, 0.4], atol=0.03)
    np.testing.assert_allclose(model.means_[order], [(0, 4), (-2, 0)], atol=0.15)
    expected = np.array([(3, 0.5), (1, 2)])
    if covariance_type == "full":
        expected = expected[..., None] * np.eye(2)
    np.testing.assert_allclose(model.covariances_[order], expected, atol=0.25)


@UNSETTLED
@TYPES
def test_weights_are_repetitions(covariance_type: str) -> None:
    points, centres = data("iris")
    weights = np.random.default_rng(0).integers(0, 3, len(points))
    arguments = {
        "covariance_type": covariance_type,
        "max_iter": 3,
        **start(points, centres, covariance_type),
    }
    weighted = GaussianMixture(3, **arguments).fit(points, sample_weight=weights)
    repeated = GaussianMixture(3, **arguments).fit(np.repeat(points, weights, axis=0))
    for attribute in ("weights_", "means_", "covariances_", "lower_bound_"):
        np.testing.assert_allclose(
            getattr(weighted, attribute), getattr(repeated, attribute), atol=1e-9
        )


@UNSETTLED
@TYPES
def test_learns_only_what_it_is_told(covariance_type: str) -> None:
    points, centres = data("two-components")
    arguments = start(points, centres, covariance_type)
    initial = {
        "weights": arguments["weights_init"],
        "means": arguments["means_init"],
        "covariances": 1 / arguments["precisions_init"]
        if covariance_type == "diag"
        else np.linalg.inv(arguments["precisions_init"]),
    }
    for name in initial:
        model = GaussianMixture(
            2, covariance_type=covariance_type, learn=(name,), max_iter=2, **arguments
        ).fit(points)
        for other, value in initial.items():
            changed = not np.allclose(getattr(model, f"{other}_"), value)
            assert changed == (other == name)


@TYPES
def test_far_points_keep_their_digits(covariance_type: str) -> None:
    points, centres = data("iris")
    arguments = start(points, centres, covariance_type)
    near = GaussianMixture(3, covariance_type=covariance_type, **arguments).fit(points)
    far = GaussianMixture(
        3, covariance_type=covariance_type, **{**arguments, "means_init": centres + 1e6}
    ).fit(points + 1e6)
    np.testing.assert_allclose(far.covariances_, near.covariances_, atol=1e-5)
    np.testing.assert_allclose(far.lower_bounds_, near.lower_bounds_, atol=1e-5)


@UNSETTLED
@TYPES
def test_a_component_without_points_stays(covariance_type: str) -> None:
    points, centres = data("two-components")
    arguments = {**start(points, centres, covariance_type), "weights_init": [1, 0]}
    fitted = GaussianMixture(
        2, covariance_type=covariance_type, max_iter=2, **arguments
    ).fit(points)
    np.testing.assert_array_equal(fitted.weights_, [1, 0])
    np.testing.assert_allclose(fitted.means_[1], centres[1])
    covariance = (
        fitted.covariances_[1]
        if covariance_type == "full"
        else np.diag(fitted.covariances_[1])
    )
    precision = arguments["precisions_init"][1]
    np.testing.assert_allclose(
        covariance,
        np.linalg.inv(precision if precision.ndim == 2 else np.diag(precision)),
    )


def test_wrong_arguments() -> None:
    points = two_components(20)
    with pytest.raises(
        ValueError,
        match="covariance_type must be one of 'diag', 'full', got 'tied'",
    ):
        GaussianMixture(2, covariance_type="tied").fit(points)
    with pytest.raises(ValueError, match=r"reg_covar must be above 0 and .*, got -1"):
        GaussianMixture(2, reg_covar=-1).fit(points)
    with pytest.raises(ValueError, match="learn must be a list, got 'means'"):
        GaussianMixture(2, learn="means").fit(points)
    with pytest.raises(
        ValueError, match=r"means_init must have shape \(2, 2\), got \(2, 3\)"
    ):
        GaussianMixture(2, means_init=np.zeros((2, 3))).fit(points)
    for precisions in (np.diag([1.0, -1.0]), np.zeros((2, 2)), [[1, 0.9], [-0.9, 1]]):
        with pytest.raises(ValueError, match="precisions_init must be symmetric and"):
            GaussianMixture(1, precisions_init=[precisions]).fit(points)
    with pytest.raises(ValueError, match="precisions_init must be above 0, got 0"):
        GaussianMixture(
            1, covariance_type="diag", precisions_init=np.zeros((1, 2))
        ).fit(points)
    for covariance_type in ("diag", "full"):
        with pytest.raises(
            ValueError, match=r"covariance of component 0 is singular.*reg_covar"
        ):
            GaussianMixture(1, covariance_type=covariance_type, reg_covar=0).fit(
                np.ones((5, 2))
            )
