"""The slot mixture as the EM that it is without its networks."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

from tests.random_numbers import normal
from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, SlotMixtureRouting

B = 2
I = 40
J = 3
H = 6


def votes_of(children: Tensor) -> Votes:
    transforms = children.new_zeros(1, 1, H, H)
    return Votes(children, transforms.expand(-1, J, -1, -1))


def bound(**settings: Any) -> SlotMixtureRouting:
    torch.manual_seed(1)
    layer: Any = SlotMixtureRouting(**settings).bind(LayerShape(None, J, (H,), (H,)))
    return layer.double()


def em_step(
    x: Tensor, weights: Tensor, mean: Tensor, variance: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of EM for a mixture, written out, with likelihoods to the power of
    H^-1/2.
    """
    density = Normal(mean[:, None], variance[:, None].sqrt())
    likelihood = density.log_prob(x[:, :, None]).sum(-1) / math.sqrt(H)
    assigned = (share[:, None].log() + likelihood).softmax(-1) * weights[..., None]
    mass = assigned.sum(1)[..., None]
    mean = torch.einsum("bij,bih->bjh", assigned, x) / mass
    square = (x[:, :, None] - mean[:, None]).square()
    variance = torch.einsum("bij,bijh->bjh", assigned, square) / mass
    return mean, variance, mass.squeeze(-1) / weights.sum(1, keepdim=True)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_without_networks_it_is_em(steps: int) -> None:
    routing = bound(gru=False, hidden=0, readout=False, steps=steps)
    children = normal(B, I, H)
    weights = normal(B, I, seed=1).sigmoid()
    x = torch.nn.functional.layer_norm(children, (H,)) @ routing.to_value.weight.T
    mean = routing.first(B, J, torch.float64)
    variance = torch.ones_like(mean)
    share = torch.full_like(mean[..., 0], 1 / J)
    for _ in range(steps):
        mean, variance, share = em_step(x, weights, mean, variance, share)
        variance = variance + routing.variance_floor
    routed = routing(votes_of(children), weights)
    torch.testing.assert_close(routed.pose, mean)
    torch.testing.assert_close(routed.activation, share)


def test_the_variance_is_about_the_updated_mean() -> None:
    """So a readout sees how far the update moved a slot from what it collected."""
    routing = bound(steps=1, hidden=0)
    children = normal(B, I, H)
    routed = routing(votes_of(children))
    x = torch.nn.functional.layer_norm(children, (H,)) @ routing.to_value.weight.T
    assigned = routed.assignment
    first = routing.first(B, J, torch.float64)
    mass = assigned.sum(1)[..., None]
    mean = routing.update(torch.einsum("bij,bih->bjh", assigned, x) / mass, first)
    square = (x[:, :, None] - mean[:, None]).square()
    variance = torch.einsum("bij,bijh->bjh", assigned, square) / mass
    deviation = (variance + routing.variance_floor).log() / 2
    expected = routing.to_pose(torch.cat([mean, deviation], -1))
    torch.testing.assert_close(routed.pose, expected)


@pytest.mark.usefixtures("kernels")
def test_a_fused_backend_is_taken() -> None:
    routing: Any = SlotMixtureRouting().bind(LayerShape(None, J, (H,), (H,)))
    routed = routing(votes_of(torch.randn(B, 40960, H)))
    assert routed.votes.choose_backend(routed.similarity).backend == "native"


@pytest.mark.parametrize("options", [{}, {"gru": False, "hidden": 0, "readout": False}])
def test_a_small_floor_has_the_gradient_of_small_steps(options: dict[str, Any]) -> None:
    """Central differences reach it as h² does; a step of 0.1 is far too long."""
    routing = bound(variance_floor=1e-4, **options)
    children = normal(B, I, H, seed=4).requires_grad_()
    along = normal(B, I, H, seed=5)
    upstream = normal(B, J, H, seed=6)

    def weighted(children: Tensor) -> Tensor:
        return (routing(votes_of(children[:, :, None])).pose * upstream).sum()

    (gradient,) = torch.autograd.grad(weighted(children), children)
    slope = (gradient * along).sum().item()
    with torch.no_grad():
        errors = [
            abs(
                (weighted(children + h * along) - weighted(children - h * along))
                / 2
                / h
                - slope
            ).item()
            for h in (1e-3, 1e-5)
        ]
    assert errors[1] < 1e-7 * abs(slope)
    assert errors[1] < 0.01 * errors[0]
