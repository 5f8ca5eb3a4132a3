"""K-Means against scikit-learn's, and soft K-Means against it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_data import Array, data
from sklearn.cluster import KMeans as TheirKMeans
from sklearn.exceptions import ConvergenceWarning

from torchcaps import use_backend
from torchcaps.mixture import GaussianMixture, KMeans, SoftKMeans

DATA = pytest.mark.parametrize("name", ["iris", "two-components"])
UNSETTLED = pytest.mark.filterwarnings("ignore:.*(did not settle|without points)")
MET = pytest.mark.filterwarnings("ignore:.*clusters that are the same")


@DATA
@pytest.mark.parametrize("tol", [0, 1e-3], ids=["to-the-end", "stopped-early"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_agrees_with_scikit_learn(
    name: str, tol: float, weighted: bool, backend: str
) -> None:
    points, start = data(name)
    weights = (
        np.random.default_rng(1).integers(0, 4, len(points)).astype(float)
        if weighted
        else None
    )
    with use_backend(backend):
        ours = KMeans(len(start), init=start, tol=tol).fit(
            points, sample_weight=weights
        )
    theirs = TheirKMeans(
        len(start), init=start, n_init=1, tol=tol, algorithm="lloyd"
    ).fit(points, sample_weight=weights)
    assert theirs.n_iter_ > 2
    assert ours.n_iter_ == theirs.n_iter_
    np.testing.assert_allclose(
        ours.cluster_centers_, theirs.cluster_centers_, rtol=0, atol=1e-6
    )
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-9)
    assert ours.score(points) == pytest.approx(theirs.score(points), rel=1e-9)
    np.testing.assert_array_equal(
        ours.predict(points + 0.3), theirs.predict(points + 0.3)
    )


@UNSETTLED
@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 4),
    st.integers(2, 5),
    st.sampled_from([0.05, 1.0, 20.0]),
)
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
@pytest.mark.filterwarnings("ignore:.*2 distinct points")
@MET
def test_no_step_raises_the_loss(
    metric: str, seed: int, size: int, clusters: int, sharpness: float
) -> None:
    points = np.random.default_rng(seed).normal(0.3, 1, (25, size))
    arguments = {
        "metric": metric,
        "random_state": seed % 1000,
        "max_iter": 15,
        "tol": 0,
    }
    for model in (
        KMeans(clusters, **arguments),
        SoftKMeans(clusters, sharpness=sharpness, **arguments),
    ):
        losses = [*model.fit(points).losses_, model.inertia_]
        assert np.diff(losses).max() <= 1e-9 * abs(losses[0])


def inner_product_lloyd(points: Array, centres: Array, steps: int) -> Array:
    """In loops, as the article has it."""
    for _ in range(steps):
        sums = np.zeros_like(centres)
        for x in points:
            sums[np.argmax([x @ c / np.sqrt(c @ c) for c in centres])] += x
        centres = sums
    return centres


@DATA
def test_inner_product_kmeans(name: str) -> None:
    points, start = data(name)
    points, start = points - points.mean(0), start - points.mean(0)
    fitted = KMeans(len(start), metric="inner", init=start, tol=0).fit(points)
    assert fitted.n_iter_ > 2
    np.testing.assert_allclose(
        fitted.history_[1], inner_product_lloyd(points, start, 2), atol=1e-9
    )
    np.testing.assert_allclose(
        fitted.cluster_centers_,
        inner_product_lloyd(points, start, fitted.n_iter_ + 5),
        atol=1e-9,
    )
    # at the end the loss is minus the lengths of the centres
    assert fitted.inertia_ == pytest.approx(
        -np.linalg.norm(fitted.cluster_centers_, axis=1).sum(), rel=1e-9
    )


@MET
@DATA
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
def test_soft_becomes_hard(name: str, metric: str) -> None:
    points, start = data(name)
    if metric == "inner":
        points, start = points - points.mean(0), start - points.mean(0)
    arguments = {"n_clusters": len(start), "metric": metric, "init": start}
    hard = KMeans(**arguments, tol=0).fit(points)
    errors = []
    for sharpness in (0.1, 1, 10, 1e6):
        soft = SoftKMeans(
            **arguments, sharpness=sharpness, tol=1e-18, max_iter=1000
        ).fit(points)
        errors.append(
            np.abs(soft.cluster_centers_ - hard.cluster_centers_).max()
            / np.abs(hard.cluster_centers_).max()
        )
    assert all(sharper < softer for softer, sharper in pairwise(errors))
    assert errors[0] > 0.1
    assert errors[-1] < 1e-12
    assert soft.inertia_ == pytest.approx(hard.inertia_, rel=1e-6)
    np.testing.assert_array_equal(soft.labels_, hard.labels_)


@UNSETTLED
@MET
@DATA
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
def test_sharper_is_nearer_to_hard(name: str, metric: str) -> None:
    """From the same centres: each point's own cluster gains, and the losses differ by
    log(clusters) / K at most.
    """
    points, start = data(name)
    arguments = {
        "n_clusters": len(start),
        "metric": metric,
        "init": start,
        "max_iter": 1,
        "tol": 0,
    }
    hard = KMeans(**arguments).fit(points)
    hard.cluster_centers_ = start
    own = hard.predict(points)
    shares = []
    for sharpness in (0.1, 1.0, 10.0, 100.0, 1000.0):
        soft = SoftKMeans(**arguments, sharpness=sharpness).fit(points)
        soft.cluster_centers_ = start
        shares.append(soft.predict_proba(points)[np.arange(len(points)), own])
        assert (
            0
            <= hard.losses_[0] - soft.losses_[0]
            <= len(points) * np.log(len(start)) / sharpness
        )
    assert (np.diff(shares, axis=0) >= -1e-12).all()
    assert shares[0].mean() < 0.99


@DATA
def test_vague_centres_meet(name: str) -> None:
    points, start = data(name)
    with pytest.warns(ConvergenceWarning, match="clusters that are the same"):
        soft = SoftKMeans(len(start), sharpness=1e-3, init=start).fit(points)
    np.testing.assert_allclose(
        soft.cluster_centers_, np.broadcast_to(points.mean(0), start.shape), atol=1e-3
    )


@UNSETTLED
@DATA
@pytest.mark.parametrize("covariance_type", ["diag", "full"])
@pytest.mark.parametrize("sharpness", [0.3, 2.0])
def test_em_with_fixed_sigma_is_soft_kmeans(
    name: str, covariance_type: str, sharpness: float
) -> None:
    points, start = data(name)
    clusters, size = start.shape
    precision = np.full((clusters, size), 2 * sharpness)  # sigma^2 = 1 / 2K
    em = GaussianMixture(
        clusters,
        covariance_type=covariance_type,
        learn=("means",),
        weights_init=np.full(clusters, 1 / clusters),
        means_init=start,
        precisions_init=precision
        if covariance_type == "diag"
        else precision[..., None] * np.eye(size),
        max_iter=12,
        tol=0,
    ).fit(points)
    soft = SoftKMeans(
        clusters, sharpness=sharpness, init=start, max_iter=12, tol=0
    ).fit(points)
    assert len(em.history_) == 12
    for ours, theirs in zip(em.history_, soft.history_, strict=True):
        np.testing.assert_allclose(ours.means, theirs, rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        em.predict_proba(points), soft.predict_proba(points), atol=1e-9
    )
    # and their objectives differ by the constant of the Gaussian: -L = (log-likelihood
    # - log density at 0) / K
    constant = size / 2 * np.log(sharpness / np.pi) - np.log(clusters)
    expected = (em.score_samples(points) - constant).sum() / sharpness
    assert -soft.inertia_ == pytest.approx(expected, rel=1e-9)


@UNSETTLED
def test_weights_are_repetitions() -> None:
    points, start = data("iris")
    weights = np.random.default_rng(0).integers(0, 3, len(points))
    repeated = np.repeat(points, weights, axis=0)
    for model in (KMeans, SoftKMeans):
        weighted = model(3, init=start, max_iter=4, tol=0).fit(
            points, sample_weight=weights
        )
        plain = model(3, init=start, max_iter=4, tol=0).fit(repeated)
        np.testing.assert_allclose(
            weighted.cluster_centers_, plain.cluster_centers_, atol=1e-10
        )
        assert weighted.inertia_ == pytest.approx(plain.inertia_)


def test_a_centre_that_nobody_chose_stays() -> None:
    with pytest.warns(ConvergenceWarning, match="without points"):
        fitted = KMeans(2, init=[[0.0, 0.0], [50.0, 50.0]]).fit(
            [[0.0, 1.0], [1.0, 0.0]]
        )
    np.testing.assert_array_equal(fitted.cluster_centers_, [[0.5, 0.5], [50, 50]])


@UNSETTLED
@pytest.mark.parametrize("far", [112.0, 150.0])
def test_a_centre_far_from_all_points_goes_to_their_mean(far: float) -> None:
    """Its share of each point is 1e-20, or e to the power of minus thousands."""
    points = np.concatenate([np.linspace(99, 101, 20), np.linspace(102, 104, 20)])[
        :, None
    ]
    begin = [[101.5], [far]]
    models = [SoftKMeans(2, init=begin, max_iter=1)]
    for covariance_type, precisions in (
        ("diag", [[2.0], [2.0]]),
        ("full", [[[2.0]], [[2.0]]]),
    ):
        arguments = {
            "weights_init": [0.5, 0.5],
            "means_init": begin,
            "precisions_init": precisions,
            "max_iter": 1,
        }
        models.append(GaussianMixture(2, covariance_type=covariance_type, **arguments))
    distance = (points - far) ** 2 - (points - 101.5) ** 2
    share = np.exp(distance.min() - distance)
    expected = (share * points).sum() / share.sum()
    for model in models:
        for dtype in (np.float32, np.float64):
            fitted = model.fit(points.astype(dtype))
            centres = (
                fitted.cluster_centers_
                if isinstance(fitted, SoftKMeans)
                else fitted.means_
            )
            assert centres[1, 0] == pytest.approx(expected, abs=1e-3)


def test_wrong_arguments() -> None:
    points = np.zeros((5, 2))
    with pytest.raises(
        ValueError,
        match="metric must be one of 'euclidean', 'inner', got 'squashed'",
    ):
        KMeans(2, metric="squashed").fit(points)
    with pytest.raises(ValueError, match=r"sharpness must be above 0 .*, got 0"):
        SoftKMeans(2, sharpness=0).fit(points)
    with pytest.raises(ValueError, match="n_clusters must be at least 1, got 0"):
        KMeans(0).fit(points)
    with pytest.raises(
        ValueError, match=r"n_clusters must be a whole number, got 2\.0"
    ):
        KMeans(2.0).fit(points)
    with pytest.raises(
        ValueError, match=r"init must have shape \(2, 2\), got \(3, 2\)"
    ):
        KMeans(2, init=np.zeros((3, 2))).fit(points)
    with pytest.raises(ValueError, match=r"init must be 'k-means\+\+"):
        KMeans(2, init="first").fit(points)
    with pytest.raises(ValueError, match="max_iter must be at least 1, got 0"):
        KMeans(2, max_iter=0).fit(points)
    with pytest.raises(ValueError, match="tol must be finite, got nan"):
        KMeans(2, tol=float("nan")).fit(points)
    with pytest.raises(
        ValueError, match=r"sample_weight must have shape \(5,\), got \(4,\)"
    ):
        KMeans(2).fit(points, sample_weight=np.ones(4))
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        KMeans(2).fit(points, sample_weight=-np.ones(5))
    with pytest.warns(UserWarning, match="KMeans did not settle in max_iter=1 steps"):
        KMeans(2, max_iter=1, random_state=0).fit(
            np.random.default_rng(0).normal(size=(30, 2))
        )
