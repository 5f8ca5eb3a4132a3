"""Self-routing against loops over the equations of Hahn et al. 2019."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from torchcaps import CapsConv2d, CapsLinear, Capsules, negative_log_likelihood
from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, SelfRouting, self_routing

B, I, J, M, P, D = 2, 5, 3, 2, 3, 2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def textbook(u: np.ndarray, a: np.ndarray, W1: np.ndarray, W2: np.ndarray, b2: np.ndarray) -> tuple[np.ndarray, ...]:
    """Pose (B, J, M * D), activation (B, J) and r (B, I, J)."""
    pose, activation, r = np.zeros((B, J, M * D)), np.zeros((B, J)), np.zeros((B, I, J))
    for b, i in itertools.product(range(B), range(I)):
        logits = np.array([W2[i % len(W2), j] @ u[b, i].ravel() + b2[i % len(b2), j] for j in range(J)])
        r[b, i] = np.exp(logits) / np.exp(logits).sum()
    for b, j in itertools.product(range(B), range(J)):
        mass = sum(a[b, i] * r[b, i, j] for i in range(I))
        activation[b, j] = mass / a[b].sum()
        pose[b, j] = sum(a[b, i] * r[b, i, j] * (u[b, i] @ W1[i, j]).ravel() for i in range(I)) / mass
    return pose, activation, r


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("children", [I, 1], ids=["each", "shared"])
def test_equations(backend: str, children: int) -> None:
    u, a = normal(B, I, M, P), normal(B, I, seed=1).sigmoid()
    W1, W2, b2 = normal(I, J, P, D, seed=2), normal(children, J, M * P, seed=3), normal(children, J, seed=4)
    routed = self_routing(Votes(u, W1, backend=backend), a, W2, b2)
    expected = textbook(*(tensor.numpy() for tensor in (u, a, W1, W2, b2)))
    for found, one in zip((routed.pose, routed.activation, routed.assignment), expected, strict=True):
        torch.testing.assert_close(found, torch.from_numpy(one), rtol=1e-12, atol=1e-12)


def test_starts_uniform() -> None:
    layer = CapsLinear(I, J, (M, P), (M, D), routing=SelfRouting()).double()
    routed = layer.route(normal(B, I, M, P))
    torch.testing.assert_close(routed.assignment, torch.full((B, I, J), 1 / J, dtype=torch.float64))
    torch.testing.assert_close(routed.activation, torch.full((B, J), 1 / J, dtype=torch.float64))


def test_parameters_follow_the_layer() -> None:
    bound = SelfRouting().bind(LayerShape(I, J, (M, P), (M, D)))
    assert bound.weight.shape == (I, J, M * P)
    assert bound.bias.shape == (I, J)
    assert SelfRouting().bind(LayerShape(None, J, (M, P), (M, D))).weight.shape == (1, J, M * P)
    with pytest.raises(RuntimeError, match="no parameters yet"):
        SelfRouting()(Votes(normal(B, I, P), normal(I, J, P, D)))


def test_activations_add_up_to_one_and_fit_the_likelihood() -> None:
    bound = SelfRouting().bind(LayerShape(I, J, (M, P), (M, D))).double()
    with torch.no_grad():
        bound.weight.copy_(normal(I, J, M * P))
    for weights in (None, normal(B, I).sigmoid()):
        routed = bound(Votes(normal(B, I, M, P), normal(I, J, P, D)), weights)
        torch.testing.assert_close(routed.activation.sum(-1), torch.ones(B).double())
    negative_log_likelihood(routed.activation, torch.tensor([0, 2])).backward()
    assert bound.weight.grad.any()
    assert bound.bias.grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_children_that_are_all_off_give_no_nan(dtype: torch.dtype) -> None:
    bound = SelfRouting().bind(LayerShape(I, J, (M, P), (M, D))).to(dtype)
    activation = torch.zeros(B, I, dtype=dtype, requires_grad=True)
    routed = bound(Votes(normal(B, I, M, P).to(dtype), normal(I, J, P, D).to(dtype)), activation)
    assert not routed.activation.any()
    assert not routed.pose.any()
    (routed.pose.sum() + routed.activation.sum()).backward()
    assert activation.grad.isfinite().all()
    assert bound.weight.grad.isfinite().all()


def test_in_a_convolution_each_place_of_the_window_has_its_own() -> None:
    """The parents at one position are those of a dense layer over its window."""
    torch.manual_seed(0)
    conv = CapsConv2d(2, J, (M, P), (M, D), 2, routing=SelfRouting(), competition="window").double()
    with torch.no_grad():
        conv.routing.weight.copy_(normal(8, J, M * P))
    children = Capsules(normal(B, 3, 3, 2, M, P), normal(B, 3, 3, 2, seed=1).sigmoid())
    parents = conv(children)
    patch = Capsules(children.pose[:, 1:, :2].flatten(1, 3), children.activation[:, 1:, :2].flatten(1))
    votes = Votes(patch.pose, conv.weight.flatten(0, 1))
    routed = self_routing(votes, patch.activation, conv.routing.weight, conv.routing.bias)
    torch.testing.assert_close(parents.pose[:, 1, 0].flatten(2), routed.pose, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(parents.activation[:, 1, 0], routed.activation, rtol=1e-10, atol=1e-12)
