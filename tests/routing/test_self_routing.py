"""Self-routing against the equations of Hahn et al. 2019."""

import pytest
import torch
from by_the_book import B, D, I, J, M, P, normal, routed_with
from torch import Tensor

from torchcaps import CapsConv2d, CapsLinear, Capsules, negative_log_likelihood
from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, SelfRouting


def book(
    u: Tensor, a: Tensor, W1: Tensor, W2: Tensor, b2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Pose (B, J, M * D), activation (B, J) and r (B, I, J)."""
    r = (torch.einsum("bip,ijp->bij", u.flatten(2), W2.expand(I, -1, -1)) + b2).softmax(
        2
    )
    used = a[..., None] * r
    votes = torch.einsum("bimp,ijpd->bijmd", u, W1).flatten(3)
    pose = (used[..., None] * votes).sum(1) / used.sum(1)[..., None]
    return pose, used.sum(1) / a.sum(1, keepdim=True), r


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("children", [I, 1], ids=["each", "shared"])
def test_equations(backend: str, children: int) -> None:
    u = normal(B, I, M, P)
    a = normal(B, I, seed=1).sigmoid()
    W1 = normal(I, J, P, D, seed=2)
    W2 = normal(children, J, M * P, seed=3)
    b2 = normal(children, J, seed=4)
    votes = Votes(u, W1, backend=backend)
    routed = routed_with(SelfRouting(), votes, a, weight=W2, bias=b2)
    actual = routed.pose, routed.activation, routed.assignment
    torch.testing.assert_close(actual, book(u, a, W1, W2, b2), rtol=1e-12, atol=1e-12)


def test_starts_uniform() -> None:
    layer = CapsLinear(I, J, (M, P), (M, D), routing=SelfRouting()).double()
    routed = layer.route(normal(B, I, M, P))
    torch.testing.assert_close(
        routed.assignment, torch.full((B, I, J), 1 / J, dtype=torch.float64)
    )
    torch.testing.assert_close(
        routed.activation, torch.full((B, J), 1 / J, dtype=torch.float64)
    )


def test_activations_add_up_to_one_and_fit_the_likelihood() -> None:
    bound = (
        SelfRouting()
        .bind(
            LayerShape(
                I,
                J,
                (M, P),
                (M, D),
            )
        )
        .double()
    )
    with torch.no_grad():
        bound.weight.copy_(normal(I, J, M * P))
    for weights in (None, normal(B, I).sigmoid()):
        routed = bound(Votes(normal(B, I, M, P), normal(I, J, P, D)), weights)
        torch.testing.assert_close(routed.activation.sum(-1), torch.ones(B).double())
    negative_log_likelihood(routed.activation, torch.tensor([0, 2, 1])).backward()
    assert bound.weight.grad.any()
    assert bound.bias.grad.any()


def test_in_a_convolution_each_place_of_the_window_has_its_own() -> None:
    """The parents at one position are those of a dense layer over its window."""
    torch.manual_seed(0)
    conv = CapsConv2d(
        2, J, (M, P), (M, D), 2, routing=SelfRouting(), competition="window"
    ).double()
    with torch.no_grad():
        conv.routing.weight.copy_(normal(8, J, M * P))
    children = Capsules(normal(B, 3, 3, 2, M, P), normal(B, 3, 3, 2, seed=1).sigmoid())
    parents = conv(children)
    patch = Capsules(
        children.pose[:, 1:, :2].flatten(1, 3),
        children.activation[:, 1:, :2].flatten(1),
    )
    votes = Votes(patch.pose, conv.weight.flatten(0, 1))
    routed = conv.routing(votes, patch.activation)
    torch.testing.assert_close(
        parents.pose[:, 1, 0].flatten(2), routed.pose, rtol=1e-10, atol=1e-12
    )
    torch.testing.assert_close(
        parents.activation[:, 1, 0], routed.activation, rtol=1e-10, atol=1e-12
    )
