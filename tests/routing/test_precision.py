"""How far routing in float32 and float16 is from float64, on every backend."""

from typing import Any

import pytest
import torch
from by_the_book import normal
from torch import Tensor

import torchcaps as tc
from torchcaps.routing import EMRouting

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])


def outputs_and_gradients(layer: Any, dtype: torch.dtype, scale: float) -> list[Tensor]:
    layer = layer.to(dtype)
    pose = (scale * normal(3, 20, 2, 3)).to(dtype).requires_grad_()
    activation = normal(3, 20, seed=1).sigmoid().to(dtype).requires_grad_()
    parents = layer(tc.Capsules(pose, activation))
    upstream = normal(*parents.pose.shape, seed=2).to(dtype)
    along = normal(*parents.activation.shape, seed=3).to(dtype)
    loss = (parents.pose * upstream).sum() + (parents.activation * along).sum()
    gradients = torch.autograd.grad(loss, [pose, activation, layer.weight])
    return [parents.pose, parents.activation, *gradients]


@BACKENDS
@pytest.mark.parametrize("scale", [0.03, 1.0, 5.0])
@pytest.mark.parametrize("options", [{}, {"sharpness": "mean"}, {"steps": 2}])
def test_a_floor_of_costs_keeps_gradients_right(
    backend: str, scale: float, options: dict[str, Any]
) -> None:
    """Costs that differ by a thousandth of their size keep four digits."""
    torch.manual_seed(0)
    routing = EMRouting.preset("standardised", cost_floor=0.001, **options)
    layer = tc.CapsLinear(20, 8, (2, 3), (2, 3), routing=routing, backend=backend)
    exact = outputs_and_gradients(layer, torch.float64, scale)
    rounded = outputs_and_gradients(layer, torch.float32, scale)
    for actual, expected in zip(rounded, exact, strict=True):
        error = (actual.double() - expected).norm() / expected.norm()
        assert error < 2e-4


@BACKENDS
@pytest.mark.parametrize("mass", [1e-17, 1e-21])
def test_a_parent_of_next_to_no_mass(backend: str, mass: float) -> None:
    """Down to 1.1e-19 in float32 it has the mean of its votes, as in float64; below
    pose 0, and no gradient that is not finite.
    """
    children = normal(1, 6, 1, 4)
    transforms = normal(6, 3, 4, 4, seed=1)
    weights = torch.full((1, 6), mass, dtype=torch.float64)
    routing = EMRouting(steps=1).bind(3, 4)
    exact = routing.double()(tc.Votes(children, transforms, backend="naive"), weights)
    leaf = children.float().requires_grad_()
    votes = tc.Votes(leaf, transforms.float(), backend=backend)
    rounded = routing.float()(votes, weights.float())
    expected = exact.pose if mass > 1e-19 else torch.zeros_like(exact.pose)
    torch.testing.assert_close(rounded.pose.double(), expected, rtol=1e-4, atol=1e-6)
    (gradient,) = torch.autograd.grad(rounded.pose.sum(), leaf)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["heinsen_2019", "spectral", "em", "dynamic"])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 100.0])
def test_float16_keeps_three_digits(name: str, scale: float) -> None:
    """Routing computes in float32: inputs, outputs and weights alone are rounded."""
    torch.manual_seed(0)
    layer = tc.CapsLinear(20, 5, 8, 8, routing=tc.create_routing(name)).half()
    children = (scale * normal(3, 20, 8)).half()
    activation = normal(3, 20, seed=1).sigmoid().half()
    rounded = layer(tc.Capsules(children, activation))
    exact = layer.double()(tc.Capsules(children.double(), activation.double()))
    for actual, expected in zip(rounded, exact, strict=True):
        assert actual.dtype == torch.float16
        error = (actual.double() - expected).norm() / expected.norm()
        assert error < 2e-3
