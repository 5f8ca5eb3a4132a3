"""One unrolled step of each routing is one step of its estimator."""

from typing import Any

import numpy as np
import pytest
import torch
from mixture_data import Array, data

from tests.routing.by_the_book import dynamic_routing, inner_product_kmeans_routing
from torchcaps.mixture import GaussianMixture, KMeans, SoftKMeans, point_votes
from torchcaps.mixture.kmeans import METRICS
from torchcaps.ops import Competition, Gaussian, Moments, Similarity, Votes
from torchcaps.routing import (
    EMRouting,
    EuclideanKMeansRouting,
    HardKMeansRouting,
)
from torchcaps.squashing import squash

pytestmark = pytest.mark.filterwarnings("ignore:.*(did not settle|are the same)")
STEPS = pytest.mark.parametrize("steps", [1, 2, 5])
DATA = pytest.mark.parametrize("name", ["iris", "two-components"])
EXACT = {"rtol": 1e-9, "atol": 1e-9}


class Started(Votes):
    """Points as votes, and in place of the uniform first assignment the one that a
    start makes.
    """

    def __init__(self, votes: Votes, start: Similarity, hard: bool) -> None:
        super().__init__(
            votes.children, votes.transforms, competition=Competition(hard=hard)
        )
        self.start = start

    def moments(
        self,
        similarity: Similarity | None = None,
        weights: torch.Tensor | None = None,
        *,
        scatter: bool = False,
    ) -> Moments:
        return super().moments(
            self.start if similarity is None else similarity, weights, scatter=scatter
        )


def started(
    points: Array, clusters: int, start: Similarity, hard: bool = False
) -> Started:
    return Started(point_votes(torch.tensor(points), clusters), start, hard)


def problem(
    name: str, centred: bool = False
) -> tuple[Array, Array, torch.Tensor, torch.Tensor]:
    """Points, the centres to start from, also as a tensor, and weights of the
    points.
    """
    points, centres = data(name)
    if centred:
        points, centres = points - points.mean(0), centres - points.mean(0)
    weights = torch.rand(
        len(points), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return points, centres, torch.tensor(centres)[None], weights


def estimated(model: Any, points: Array, weights: torch.Tensor | None) -> np.ndarray:
    return model.fit(
        points, sample_weight=None if weights is None else weights.numpy()
    ).cluster_centers_


@STEPS
@DATA
@pytest.mark.parametrize("sharpness", [0.2, 3.0])
def test_euclidean(name: str, steps: int, sharpness: float) -> None:
    points, centres, start, weights = problem(name)
    votes = started(
        points, len(centres), METRICS["euclidean"].similarity(start, sharpness)
    )
    routing = EuclideanKMeansRouting(steps, sharpness)
    routed = routing(votes, weights[None])
    model = SoftKMeans(
        len(centres), sharpness=sharpness, init=centres, max_iter=steps, tol=0
    )
    np.testing.assert_allclose(
        routed.pose[0], estimated(model, points, weights), **EXACT
    )


@STEPS
@DATA
@pytest.mark.parametrize("sharpness", [0.2, 3.0])
def test_inner_product(name: str, steps: int, sharpness: float) -> None:
    points, centres, start, _ = problem(name, centred=True)
    votes = started(points, len(centres), METRICS["inner"].similarity(start, sharpness))
    routed = inner_product_kmeans_routing(
        votes, steps=steps, sharpness=sharpness, squash="none"
    )
    model = SoftKMeans(
        len(centres),
        sharpness=sharpness,
        metric="inner",
        init=centres,
        max_iter=steps,
        tol=0,
    )
    np.testing.assert_allclose(routed.pose[0], estimated(model, points, None), **EXACT)


@STEPS
@DATA
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
def test_hard(name: str, steps: int, metric: str) -> None:
    points, centres, start, weights = problem(name, centred=True)
    votes = started(
        points, len(centres), METRICS[metric].similarity(start, 1.0), hard=True
    )
    if metric == "inner":  # its centres are sums of all votes alike
        weights = torch.ones_like(weights)
    routing = HardKMeansRouting(steps, metric, squash="none").eval()
    routed = routing(votes, weights[None])
    model = KMeans(len(centres), metric=metric, init=centres, max_iter=steps, tol=0)
    np.testing.assert_allclose(
        routed.pose[0], estimated(model, points, weights), **EXACT
    )


@STEPS
@DATA
@pytest.mark.parametrize("accumulate", [False, True], ids=["last", "accumulated"])
def test_dynamic(name: str, steps: int, accumulate: bool) -> None:
    """Su's variant keeps to the estimator for ever; the paper's leaves it once two
    poses are added up.
    """
    points, centres, start, _ = problem(name, centred=True)
    votes = started(points, len(centres), METRICS["squashed"].similarity(start, 1.0))
    routed = dynamic_routing(votes, steps=steps, accumulate=accumulate)
    model = SoftKMeans(
        len(centres), metric="squashed", init=centres, max_iter=steps, tol=0
    )
    pose = squash(torch.tensor(estimated(model, points, None)))
    same = torch.allclose(routed.pose[0], pose, **EXACT)
    assert same == (steps <= 2 or not accumulate)


@DATA
@pytest.mark.parametrize("weighted", [False, True])
def test_em(name: str, weighted: bool) -> None:
    """Poses are the means; the variances, seen in the next step's similarity, the
    covariances.
    """
    points, centres, start, weights = problem(name)
    components, size = centres.shape
    pi = np.arange(1.0, components + 1) / np.arange(1.0, components + 1).sum()
    similarity = Gaussian(
        start, torch.ones_like(start) / 2, torch.tensor(pi).log()[None]
    )
    votes = started(points, components, similarity)
    given = weights[None] if weighted else None
    routings = [
        EMRouting(steps, "constant").bind(components, size).double() for steps in (1, 2)
    ]
    routed = routings[0](votes, given)
    model = GaussianMixture(
        components,
        covariance_type="diag",
        weights_init=pi,
        means_init=centres,
        precisions_init=np.full((components, size), 0.5),
        reg_covar=5e-4,
        max_iter=1,
        tol=0,
    ).fit(points, sample_weight=weights if weighted else None)
    np.testing.assert_allclose(routed.pose[0], model.means_, **EXACT)
    after = routings[1](votes, given).similarity
    assert isinstance(after, Gaussian)
    np.testing.assert_allclose(1 / after.precision[0], model.covariances_, **EXACT)
