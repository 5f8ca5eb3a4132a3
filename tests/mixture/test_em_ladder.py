"""The four steps from a Gaussian mixture to EM routing, each against its equations in
loops.
"""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from mixture_data import data
from torch import Tensor

from tests.random_numbers import normal
from torchcaps.mixture import GaussianMixture, point_votes
from torchcaps.mixture.steps import (
    Costs,
    Parents,
    activation_step,
    em_step,
    mixture_similarity,
    mixture_step,
    weighted_step,
)
from torchcaps.ops import Votes
from torchcaps.routing import EMRouting

FLOOR = 5e-4
EXACT = {"rtol": 1e-10, "atol": 1e-12}
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])


def votes(backend: str | None = None) -> Votes:
    return Votes(normal(2, 9, 4), normal(9, 3, 4, 5, seed=1), backend=backend)


COSTS = Costs(normal(3, seed=2) / 4, normal(3, seed=3), 0.7)
ACTIVATION = normal(2, 9, seed=4).sigmoid()
BEFORE = Parents(
    normal(2, 3, 5, seed=5),
    normal(2, 3, 5, seed=6).exp(),
    normal(2, 3, seed=7).log_softmax(-1),
)


def by_the_book(
    V: Tensor,
    before: Parents | None,
    weights: Tensor | None,
    costs: Costs | None,
    counted: bool,
) -> Parents:
    """The notes' equations for one example and one number at a time. ``counted``: the
    cost is times the mass.
    """
    B, I, J, H = V.shape
    mean = np.zeros((B, J, H))
    variance = np.zeros((B, J, H))
    prior = np.zeros((B, J))
    for b in range(B):
        R = np.full((I, J), 1 / J)
        if before is not None:
            for i in range(I):
                p = []
                for j in range(J):
                    mu = before.mean[b, j].numpy()
                    var = before.variance[b, j].numpy()
                    density = np.exp(
                        -((V[b, i, j].numpy() - mu) ** 2) / (2 * var)
                    ) / np.sqrt(2 * math.pi * var)
                    p.append(math.exp(before.log_prior[b, j]) * density.prod())
                R[i] = np.array(p) / sum(p)
        for j in range(J):
            w = np.ones(I) if weights is None else weights[b].numpy()
            r = w * R[:, j] / (w * R[:, j]).sum()
            for h in range(H):
                v = V[b, :, j, h].numpy()
                mean[b, j, h] = (r * v).sum()
                variance[b, j, h] = (r * (v - mean[b, j, h]) ** 2).sum() + FLOOR
            if costs is None:
                prior[b, j] = R[:, j].sum() / I
            else:
                count = (w * R[:, j]).sum() if counted else r.sum()
                cost = sum(
                    (float(costs.beta_u[j]) + math.log(math.sqrt(variance[b, j, h])))
                    * count
                    for h in range(H)
                )
                prior[b, j] = 1 / (
                    1
                    + math.exp(
                        -costs.inverse_temperature * (float(costs.beta_a[j]) - cost)
                    )
                )
    return Parents(
        torch.tensor(mean), torch.tensor(variance), torch.tensor(prior).log()
    )


LADDER = {
    "mixture": (mixture_step, None, None, False),
    "activation": (partial(activation_step, costs=COSTS), None, COSTS, False),
    "weighted": (
        partial(weighted_step, weights=ACTIVATION, costs=COSTS),
        ACTIVATION,
        COSTS,
        False,
    ),
    "em": (partial(em_step, weights=ACTIVATION, costs=COSTS), ACTIVATION, COSTS, True),
}


@BACKENDS
@pytest.mark.parametrize("before", [None, BEFORE], ids=["first", "later"])
@pytest.mark.parametrize("name", LADDER)
def test_by_the_book(name: str, before: Parents | None, backend: str) -> None:
    step, weights, costs, counted = LADDER[name]
    expected = by_the_book(votes().dense(), before, weights, costs, counted)
    for actual, wanted in zip(step(votes(backend), before), expected, strict=True):
        torch.testing.assert_close(actual, wanted, **EXACT)


def test_each_step_changes_something() -> None:
    """Or else the tests above compare one thing four times."""
    results = [step(votes(), BEFORE) for step, *_ in LADDER.values()]
    for earlier, later in pairwise(results):
        assert not torch.allclose(earlier.log_prior, later.log_prior, atol=1e-3)
    torch.testing.assert_close(
        results[0].mean, results[1].mean, **EXACT
    )  # the second alters the prior alone
    assert not torch.allclose(
        results[1].mean, results[2].mean, atol=1e-3
    )  # the third the centres too
    torch.testing.assert_close(
        results[2].mean, results[3].mean, **EXACT
    )  # the fourth the prior alone


def test_the_cost_is_the_mean_negative_log_density() -> None:
    r"""But for the floor: :math:`-\sum_i r_{ij} \log N(V_{ij}) = \sum_h \log
    \sigma_{jh} + (1 + \log 2 \pi) / 2`.
    """
    unit = torch.full((3,), (1 + math.log(2 * math.pi)) / 2, dtype=torch.float64)
    costs = Costs(unit, torch.zeros(3, dtype=torch.float64), 1.0)
    parents = weighted_step(votes(), BEFORE, ACTIVATION, costs, floor=0.0)
    share = votes().assignment(mixture_similarity(BEFORE)) * ACTIVATION[..., None]
    share = share / share.sum(1, keepdim=True)
    gaussian = torch.distributions.Normal(
        parents.mean[:, None], parents.variance[:, None].sqrt()
    )
    cost = -(share * gaussian.log_prob(votes().dense()).sum(-1)).sum(1)
    torch.testing.assert_close(
        parents.log_prior, torch.nn.functional.logsigmoid(-cost), **EXACT
    )


@BACKENDS
@pytest.mark.parametrize(
    "lambdas", [(0.1,), (0.05, 0.1, 0.2), (0.3, 0.3, 0.3, 0.3, 0.3)], ids=len
)
def test_the_last_is_em_routing(lambdas: tuple[float, ...], backend: str) -> None:
    routed = torch.func.functional_call(
        EMRouting(len(lambdas), lambda step, _: lambdas[step], 1.0),
        {"unit_cost": COSTS.beta_u, "activation_cost": COSTS.beta_a},
        (votes(backend), ACTIVATION),
    )
    parents = None
    for inverse_temperature in lambdas:
        costs = COSTS._replace(inverse_temperature=inverse_temperature)
        parents = em_step(votes(backend), parents, ACTIVATION, costs)
    torch.testing.assert_close(parents.mean, routed.pose, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        parents.log_prior.exp(), routed.activation, rtol=1e-12, atol=1e-12
    )


@pytest.mark.filterwarnings("ignore:.*did not settle")
@pytest.mark.parametrize("name", ["iris", "two-components"])
def test_the_first_is_the_estimator(name: str) -> None:
    """On points that vote for themselves it is a step of the diagonal Gaussian
    mixture.
    """
    points, centres = data(name)
    components, size = centres.shape
    weights = np.arange(1.0, components + 1) / np.arange(1.0, components + 1).sum()
    model = GaussianMixture(
        components,
        covariance_type="diag",
        means_init=centres,
        weights_init=weights,
        precisions_init=np.ones((components, size)),
        reg_covar=FLOOR,
        max_iter=6,
        tol=0,
    ).fit(points)
    start = torch.tensor(centres)[None]
    parents = Parents(start, torch.ones_like(start), torch.tensor(weights).log()[None])
    for expected in model.history_:
        parents = mixture_step(
            point_votes(torch.tensor(points), components), parents, floor=FLOOR
        )
        np.testing.assert_allclose(parents.mean[0], expected.means, atol=1e-10)
        np.testing.assert_allclose(
            parents.variance[0], expected.covariances, atol=1e-10
        )
        np.testing.assert_allclose(
            parents.log_prior[0].exp(), expected.weights, atol=1e-10
        )
