"""The sharpness of the E-step, against the equations written out."""

import math
from typing import Any

import pytest
import torch
from by_the_book import normal
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import EMRouting, create_routing, em_routing

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
LAMBDAS = (0.05, 0.1, 0.15)
SHARPNESSES: dict[str, Any] = {
    "one number": 1 / 16,
    "one an E-step": [0.1, 0.7],
    "one a parent": torch.tensor([0.05, 0.3, 1.0, 2.0], dtype=torch.float64),
}


def textbook(V: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor, sharpness: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Procedure 1 with the likelihood in the E-step to the power of the sharpness: pose, activation and last R."""
    R = torch.full(V.shape[:3], 1 / V.shape[2], dtype=V.dtype)
    mean = variance = active = torch.empty(0)
    for step, temperature in enumerate(LAMBDAS):
        if step:
            s = sharpness[step - 1] if isinstance(sharpness, list) else sharpness
            likelihood = torch.exp(-((V - mean[:, None]) ** 2) / (2 * variance[:, None])) / variance[:, None].sqrt()
            p = active[:, None] * likelihood.prod(-1) ** s
            R = p / p.sum(2, keepdim=True)
        r = R * a[..., None]
        N = r.sum(1)
        mean = (r[..., None] * V).sum(1) / N[..., None]
        variance = (r[..., None] * (V - mean[:, None]) ** 2).sum(1) / N[..., None] + 5e-4
        cost = ((beta_u[:, None] + variance.sqrt().log()) * N[..., None]).sum(-1)
        active = torch.sigmoid(temperature * (beta_a - cost))
    return mean, active, R


@BACKENDS
@pytest.mark.parametrize("kind", SHARPNESSES)
def test_textbook(kind: str, backend: str) -> None:
    tensors = [normal(2, 11, 3, 2), normal(11, 4, 2, 3, seed=1), normal(2, 11, seed=2).sigmoid(), *normal(2, 4, seed=3)]
    for tensor in tensors:
        tensor.requires_grad_()
    children, transforms, a, beta_u, beta_a = tensors
    votes = Votes(children, transforms, backend=backend)
    routed = em_routing(votes, a, beta_u, beta_a, LAMBDAS, sharpness=SHARPNESSES[kind])
    V = torch.einsum("bimp,ijpd->bijmd", children, transforms).flatten(-2)
    expected = textbook(V, a, beta_u, beta_a, SHARPNESSES[kind])
    found = (routed.pose, routed.activation, routed.assignment)
    for actual, right in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-9, atol=1e-9)
    upstream = [normal(*one.shape, seed=5) for one in expected]
    wanted = torch.autograd.grad(expected, tensors, upstream)
    for actual, right in zip(torch.autograd.grad(found, tensors, upstream), wanted, strict=True):
        torch.testing.assert_close(actual, right, rtol=1e-7, atol=1e-7 * float(right.abs().max()))


def entropy(routing: EMRouting, votes: Votes) -> float:
    R = routing(votes).assignment
    return -torch.xlogy(R, R).sum(-1).mean().item()


def test_no_scale_of_the_votes_makes_assignments_softer_but_the_sharpness_does() -> None:
    children, transforms = normal(2, 30, 4, 4), normal(30, 5, 4, 4, seed=1)
    routing = EMRouting.preset("standardised", variance_floor=1e-12).bind(5, 16).double()
    soft = EMRouting.preset("standardised", variance_floor=1e-12, sharpness="mean").bind(5, 16).double()
    hard = entropy(routing, Votes(children, transforms))
    scaled = entropy(routing, Votes(children, 100 * transforms))  # the cost of activations changes a little
    assert scaled == pytest.approx(hard, rel=0.01)
    assert hard < 0.5 < 1.3 < entropy(soft, Votes(children, transforms)) < 1.61  # log 5


class TestModule:
    def test_default_is_the_paper(self) -> None:
        assert EMRouting().bind(4, 9).sharpnesses() == [1.0, 1.0]

    def test_mean_is_one_by_the_size_of_the_pose(self) -> None:
        assert EMRouting(sharpness="mean").bind(4, 16).sharpnesses() == [1 / 16, 1 / 16]

    def test_one_an_e_step(self) -> None:
        assert EMRouting(sharpness=(0.1, 0.5)).bind(4, 16).sharpnesses() == [0.1, 0.5]

    @pytest.mark.parametrize(("kind", "shape"), [("layer", ()), ("parent", (4,))])
    def test_learned(self, kind: Any, shape: tuple[int, ...]) -> None:
        routing = EMRouting.preset("standardised", sharpness="mean", learn_sharpness=kind).bind(4, 16)
        assert routing.log_sharpness is not None
        assert routing.log_sharpness.shape == shape
        routed = routing(Votes(normal(2, 9, 4, 4).float(), normal(9, 4, 4, 4, seed=1).float()))
        routed.pose.square().sum().backward()
        assert routing.log_sharpness.grad is not None
        assert (routing.log_sharpness.grad != 0).all()
        with torch.no_grad():
            routing.log_sharpness.fill_(-100.0)
        assert all((torch.as_tensor(one) > 0).all() for one in routing.sharpnesses())

    @pytest.mark.parametrize("sharpness", ["mean", 0.25, [0.1, 0.5]])
    def test_config(self, sharpness: Any) -> None:
        config = EMRouting(sharpness=sharpness, learn_sharpness="layer").config()
        again = create_routing("em", **config)
        assert (again.config()["sharpness"], again.config()["learn_sharpness"]) == (sharpness, "layer")

    @pytest.mark.parametrize("sharpness", [[0.1], [0.1, -0.1], ["1", "2"], [0.1, math.nan]])
    def test_wrong(self, sharpness: Any) -> None:
        with pytest.raises(ValueError, match=r"^sharpness must be"):
            EMRouting(sharpness=sharpness)
