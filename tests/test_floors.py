"""What keeps variances and divisors from 0 does so in float32, which routing computes
in.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps.layers import PoseNorm
from torchcaps.mixture import GaussianMixture
from torchcaps.mixture.steps import (
    Costs,
    activation_step,
    em_step,
    mixture_step,
    weighted_step,
)
from torchcaps.numerics import LEAST_FLOOR, Floor
from torchcaps.ops import Votes
from torchcaps.routing import (
    AttentionRouting,
    DegreeCentralityRouting,
    EMRouting,
    Heinsen2019Routing,
    Routed,
)
from torchcaps.routing.batch_norm import BatchStandard
from torchcaps.spec import check

I, J, H = 6, 3, 4


def votes(children: Tensor | None = None) -> Votes:
    generator = torch.Generator().manual_seed(0)
    children = (
        torch.randn(2, I, H, generator=generator) if children is None else children
    )
    return Votes(children, torch.randn(children.shape[1], J, H, H, generator=generator))


def em(votes: Votes, floor: float) -> Routed:
    return EMRouting(variance_floor=floor).bind(J, H)(votes)


def heinsen(votes: Votes, floor: float) -> Routed:
    parameters = {name: torch.ones(1, J) for name in ("benefit", "cost")}
    parameters["bias"] = torch.zeros(1, J, H)
    routing = Heinsen2019Routing(epsilon=floor)
    return torch.func.functional_call(routing, parameters, (votes, None))


COSTS = Costs(torch.zeros(J), torch.zeros(J), 1.0)
NEEDED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "heinsen_2019": ("epsilon", lambda floor: heinsen(votes(), floor)),
    "attention": (
        "epsilon",
        lambda floor: AttentionRouting(epsilon=floor),
    ),
    "degree_centrality": (
        "epsilon",
        lambda floor: DegreeCentralityRouting(epsilon=floor),
    ),
    "BatchStandard": ("epsilon", lambda floor: BatchStandard(3, epsilon=floor)),
    "PoseNorm": ("eps", lambda floor: PoseNorm(3, 4, eps=floor)),
}
OR_NONE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "GaussianMixture": (
        "reg_covar",
        lambda floor: GaussianMixture(2, reg_covar=floor).fit(
            torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).numpy()
        ),
    ),
    "mixture_step": ("floor", lambda floor: mixture_step(votes(), floor=floor)),
    "activation_step": (
        "floor",
        lambda floor: activation_step(votes(), None, COSTS, floor=floor),
    ),
    "weighted_step": (
        "floor",
        lambda floor: weighted_step(votes(), None, None, COSTS, floor=floor),
    ),
    "em_step": (
        "floor",
        lambda floor: em_step(votes(), None, None, COSTS, floor=floor),
    ),
}


@pytest.mark.parametrize("case", [*NEEDED, *OR_NONE])
@pytest.mark.parametrize("floor", [1e-300, 1e-40, 1e-20, 1e20])
def test_a_floor_that_float32_cannot_hold_is_told_by_name(
    case: str, floor: float
) -> None:
    name, make = (NEEDED | OR_NONE)[case]
    with pytest.raises(
        ValueError,
        match=(
            rf"^{name} must be above 0 and finite in float32.* from 1.1e-19 to "
            r"9.2e\+18"
        ),
    ):
        make(floor)


@pytest.mark.parametrize("case", NEEDED)
@pytest.mark.parametrize("floor", [0.0, -1e-3, math.nan, math.inf])
def test_a_floor_is_needed(case: str, floor: float) -> None:
    name, make = NEEDED[case]
    with pytest.raises(ValueError, match=rf"^{name} must be above 0 and finite"):
        make(floor)


@pytest.mark.parametrize("case", [*NEEDED, *OR_NONE])
@pytest.mark.filterwarnings("ignore:.*did not settle")
# A floor of 1 is as large as the spread of the points: clusters may meet.
@pytest.mark.filterwarnings("ignore:.*clusters (without points|that)")
def test_floors_that_float32_holds(case: str) -> None:
    _, make = (NEEDED | OR_NONE)[case]
    for floor in (1e-12, LEAST_FLOOR, 1):
        make(floor)


def test_least_floor() -> None:
    """The least has all that derivatives take of it in float32; half of it has not."""
    for floor in (LEAST_FLOOR, 1 / LEAST_FLOOR):
        check(Floor, floor, "floor")
        number = torch.tensor(floor, dtype=torch.float32)
        for power in (1, 2, -1, -2):
            assert 0 < number.pow(power) < math.inf
    assert torch.tensor(LEAST_FLOOR / 2).pow(-2).isinf()


@pytest.mark.parametrize("routing", [em, heinsen], ids=["em", "heinsen_2019"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64]
)
def test_one_child_under_the_least_floor(
    routing: Callable[[Votes, float], Routed], dtype: torch.dtype
) -> None:
    """Its parents have variance 0 but for the floor."""
    children = (
        torch.randn(2, 1, H, generator=torch.Generator().manual_seed(1))
        .to(dtype)
        .requires_grad_()
    )
    routed = routing(votes(children), LEAST_FLOOR)
    (routed.pose.float().square().sum() + routed.activation.float().sum()).backward()
    for result in (routed.pose, routed.activation, routed.assignment, children.grad):
        assert result is not None
        assert result.isfinite().all()
