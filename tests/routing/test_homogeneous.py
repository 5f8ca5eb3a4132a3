"""Homogeneous vector capsules without routing against the equations of Byerly et al.
2021.
"""

import pytest
import torch
from by_the_book import normal, routed_with
from torch import Tensor

from torchcaps import CapsLinear
from torchcaps.ops import Votes
from torchcaps.routing import HomogeneousRouting, LayerShape, Routing
from torchcaps.routing.batch_norm import BatchStandard

B = 4
I = 5
J = 3
H = 6


def bound() -> Routing:
    return HomogeneousRouting().bind(LayerShape(I, J, (H,), (H,))).double()


def votes_of(u: Tensor) -> Votes:
    """Votes of children u, whose transforms are not used."""
    return Votes(u, u.new_zeros(1, J, H, H))


@pytest.mark.parametrize("children", [I, 1], ids=["each", "shared"])
def test_equations(children: int) -> None:
    leaves = [
        tensor.requires_grad_()
        for tensor in (
            normal(B, I, H),
            normal(children, J, H, seed=1),
            normal(H, seed=2),
        )
    ]
    u, w, b = leaves
    routed = routed_with(bound(), votes_of(u), scale=w, bias=b).pose
    s = (u[:, :, None] * w).sum(1)
    centred = s - s.mean((0, 1))
    expected = (centred / (centred.square().mean((0, 1)) + 1e-3).sqrt() + b).clamp(
        min=0
    )
    torch.testing.assert_close(routed, expected, rtol=1e-10, atol=1e-12)
    upstream = normal(B, J, H, seed=3)
    results = [
        torch.autograd.grad(tensor, leaves, upstream) for tensor in (routed, expected)
    ]
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


def test_parameters() -> None:
    layer = CapsLinear(I, J, H, H, routing=HomogeneousRouting())
    assert {
        name: tuple(parameter.shape) for name, parameter in layer.named_parameters()
    } == {
        "routing.scale": (I, J, H),
        "routing.bias": (H,),
    }
    children = normal(B, I, H).float()
    torch.testing.assert_close(
        layer(children).activation, layer(children).pose.norm(dim=-1)
    )


def test_poses_of_another_shape_are_sums_of_votes() -> None:
    layer = CapsLinear(I, J, H, H + 1, routing=HomogeneousRouting()).double()
    assert layer.weight.requires_grad
    children = normal(B, I, H)
    total = torch.einsum("bip,ijpd->bjd", children, layer.weight)
    norm = BatchStandard(H + 1, epsilon=1e-3).double()
    expected = norm(total.mT).mT.relu()
    torch.testing.assert_close(layer(children).pose, expected)


def test_half_precision_outside_does_not_reach_the_sums() -> None:
    votes = votes_of(normal(B, I, H).float())
    routing = bound().float()
    with torch.autocast("cpu", torch.bfloat16):
        pose = routing(votes).pose
    torch.testing.assert_close(pose, routing(votes).pose, rtol=0, atol=0)
