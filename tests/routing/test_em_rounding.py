"""Standardised costs of EM routing: of parents that are nearly equal, rounding becomes
no signal.
"""

from typing import Any

import pytest
import torch
from by_the_book import normal
from torch import Tensor

from torchcaps.models import create_model, load_pretrained
from torchcaps.ops import Votes
from torchcaps.routing import EMRouting
from torchcaps.routing.em_costs import standardised

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tiles: a tile for each child would take seconds."""
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 10_000)


def activations(
    backend: str, dtype: torch.dtype, apart: float, **arguments: Any
) -> tuple[Tensor, Tensor]:
    """Those of ten parents whose transforms differ by a share, and the children that
    they depend on.

    The numbers that go in are those of float32, whatever the dtype.
    """
    transforms = (
        0.3
        * (normal(300, 1, 4, 4, seed=1) + apart * normal(300, 10, 4, 4, seed=2)).float()
    )
    children = normal(2, 300, 4, 4).float().to(dtype).requires_grad_()
    weights = normal(2, 300, seed=3).sigmoid().float().to(dtype)
    routing = EMRouting(
        **{
            "standardise": True,
            "inverse_temperature": 1.0,
            "schedule": "linear",
            **arguments,
        }
    )
    routed = routing.bind(10, 16).to(dtype)(
        Votes(children, transforms.to(dtype), backend=backend), weights
    )
    return routed.activation, children


@BACKENDS
@pytest.mark.parametrize("steps", [1, 2, 3, 6])
@pytest.mark.parametrize("sharpness", ["mean", 1.0])
@pytest.mark.parametrize(
    ("apart", "tolerance"), [(1.0, 1e-5), (1e-2, 1e-4), (1e-4, 1e-4), (1e-6, 1e-3)]
)
def test_float32_is_near_float64(
    apart: float, tolerance: float, sharpness: Any, steps: int, backend: str
) -> None:
    """However little the parents differ."""
    activation, expected = (
        activations(backend, dtype, apart, sharpness=sharpness, steps=steps)[0]
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(activation.double(), expected, rtol=0, atol=tolerance)


@BACKENDS
def test_the_gradient_is_that_of_the_costs_and_not_of_their_rounding(
    backend: str,
) -> None:
    norms = []
    for apart in (1.0, 1e-4):
        activation, children = activations(backend, torch.float32, apart)
        norms.append(torch.autograd.grad(activation[:, 0].sum(), children)[0].norm())
    assert norms[1] < 10 * norms[0]


def by_hand(cost: Tensor, floor: float = 0.0) -> Tensor:
    size = floor * cost.abs().mean(-1, keepdim=True)
    centred = cost - cost.mean(-1, keepdim=True)
    return (
        centred
        / (centred.square().mean(-1, keepdim=True) + size.square() + 1e-8).sqrt()
    )


@pytest.mark.parametrize("spread", [1.0, 0.03])
def test_costs_that_differ_are_standardised_as_ever(spread: float) -> None:
    """To the last bit: what networks were trained with stays."""
    cost = -2000 * (1 + spread * normal(6, 8))
    assert torch.equal(standardised(cost, cost.abs())[0], by_hand(cost))
    torch.testing.assert_close(
        standardised(cost, cost.abs(), 0.3)[0], by_hand(cost, 0.3), rtol=1e-12, atol=0
    )


def test_rounding_is_at_most_its_share() -> None:
    """The bound holds for any deviation, it is continuous in it, and the order of the
    parents stays.
    """
    unit = by_hand(normal(1, 8))
    deviation = []
    for spread in torch.logspace(-9, 0, 91, dtype=torch.float64):
        cost = 2000 * (1 + spread * unit)
        standard, rounding = standardised(cost, cost.abs())
        deviation.append(float(standard.std(correction=0)))
        assert float(rounding.logit) <= 5.001e-5
        assert (standard.argsort() == unit.argsort()).all()
    assert deviation == sorted(deviation)
    assert deviation[-1] == pytest.approx(1)


def test_equal_costs_give_zeros_with_finite_gradients() -> None:
    cost = torch.full((2, 5), -1234.5, requires_grad=True)
    standard, _ = standardised(cost, cost.detach().abs())
    standard[:, 0].sum().backward()
    assert standard.eq(0).all()
    assert cost.grad is not None
    assert cost.grad.isfinite().all()


def test_a_floor_of_costs_brings_activations_together() -> None:
    results = [
        activations("naive", torch.float64, 1.0, steps=1, cost_floor=floor)[0]
        for floor in (0.0, 0.1, 1.0)
    ]
    spread = [float(tensor.detach().std()) for tensor in results]
    assert spread == sorted(spread, reverse=True)
    with pytest.raises(ValueError, match="cost_floor must be"):
        EMRouting(cost_floor=-0.1)


def test_networks_keep_it_and_those_saved_without_have_none(tmp_path: Any) -> None:
    routing = EMRouting.preset("soft", cost_floor=0.3)
    network = create_model(
        "matrixcapsnet",
        image_shape=(1, 17, 17),
        channels=4,
        types=(2, 2, 2),
        routing=routing,
    )
    network.save_pretrained(tmp_path)
    assert load_pretrained(tmp_path).class_caps.routing.cost_floor == 0.3
    assert (
        create_model(
            "matrixcapsnet_small", pretrained="mnist"
        ).class_caps.routing.cost_floor
        == 0.0
    )
