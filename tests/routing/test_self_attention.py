"""Self-attention routing against loops over the equations of Mazzia et al. 2021."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from torchcaps import CapsLinear, squash
from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, Routed, SelfAttentionRouting, self_attention_routing

B, I, J, M, P, D = 2, 5, 3, 2, 3, 2
BACKENDS = ["naive", "chunked", "native"]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def textbook(V: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Poses v (B, J, H) and c (B, I, J) of votes (B, I, J, H), with the paper's matrix of all pairs of votes."""
    n, I, J, H = V.shape
    v, c = np.zeros((n, J, H)), np.zeros((n, I, J))
    for example in range(n):
        agreement = np.zeros((I, J))
        for i, other, j in itertools.product(range(I), range(I), range(J)):
            agreement[i, j] += V[example, i, j] @ V[example, other, j] / np.sqrt(H)
        c[example] = np.exp(agreement) / np.exp(agreement).sum(1, keepdims=True)
        for j in range(J):
            s = sum((c[example, i, j] + b[i, j]) * V[example, i, j] for i in range(I))
            norm = np.sqrt(s @ s)
            v[example, j] = (1 - 1 / (np.exp(norm) + 1e-20)) * s / (norm + 1e-20)
    return v, c


def differentiable(V: Tensor, b: Tensor) -> Tensor:
    """The same poses, for autograd."""
    c = torch.einsum("bijh,bkjh->bij", V, V).div(V.shape[-1] ** 0.5).softmax(2) + b
    s = (c[..., None] * V).sum(1)
    n = s.norm(dim=-1, keepdim=True)
    return (1 - (-n).exp()) * s / n


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shared", [False, True], ids=["full", "shared"])
@pytest.mark.parametrize("plus", [False, True], ids=["plain", "coordinates"])
def test_equations(backend: str, shared: bool, plus: bool) -> None:
    coordinates = normal(I, M * D, seed=7) if plus else None
    votes = Votes(normal(B, I, M, P), normal(1 if shared else I, J, P, D, seed=1), coordinates, backend=backend)
    prior = normal(I, J, seed=2) / 4
    routed = self_attention_routing(votes, prior=prior)
    v, c = textbook(votes.dense().numpy(), prior.numpy())
    torch.testing.assert_close(routed.pose, torch.from_numpy(v), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(routed.activation, torch.from_numpy(v).norm(dim=-1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(routed.assignment, torch.from_numpy(c), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients(backend: str) -> None:
    tensors = [normal(B, I, M, P), normal(I, J, P, D, seed=1), normal(I, J, seed=2) / 4]
    upstream = normal(B, J, M * D, seed=3)
    found, expected = ([tensor.clone().requires_grad_() for tensor in tensors] for _ in range(2))
    routed = self_attention_routing(Votes(found[0], found[1], backend=backend), prior=found[2])
    reference = differentiable(torch.einsum("bimp,ijpd->bijmd", expected[0], expected[1]).flatten(3), expected[2])
    torch.testing.assert_close(routed.pose, reference, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(routed.pose, found, upstream),
        torch.autograd.grad(reference, expected, upstream),
        rtol=1e-8,
        atol=1e-10,
    )


def test_the_prior_is_added_behind_the_softmax() -> None:
    """A prior of -1 / J, with votes that agree with no parent more than another, leaves nothing."""
    votes = Votes(normal(B, I, P), normal(I, 1, P, D, seed=1).expand(I, J, P, D))
    routed = self_attention_routing(votes, prior=torch.full((I, J), -1 / J, dtype=torch.float64))
    torch.testing.assert_close(routed.pose, torch.zeros(B, J, D).double())
    torch.testing.assert_close(routed.assignment, torch.full((B, I, J), 1 / J).double())


def test_the_squash_of_the_released_code_is_the_exponential_one() -> None:
    for dtype in (torch.float64, torch.float32):
        s = normal(50, 4).to(dtype) * torch.logspace(-6, 1, 50, dtype=dtype)[:, None]
        n = s.norm(dim=-1, keepdim=True)
        released = (1 - 1 / (n.exp() + 1e-20)) * (s / (n + 1e-20))
        torch.testing.assert_close(squash(s, "exponential"), released, rtol=0, atol=4 * torch.finfo(dtype).eps)


def test_parameters_follow_the_layer() -> None:
    assert SelfAttentionRouting().bind(LayerShape(I, J, (P,), (D,))).offset.shape == (I, J)
    assert SelfAttentionRouting().bind(LayerShape(None, J, (P,), (D,))).offset.shape == (1, J)
    assert not list(SelfAttentionRouting(prior=False).bind(LayerShape(I, J, (P,), (D,))).parameters())
    layer = CapsLinear(I, J, P, D, routing=SelfAttentionRouting())
    assert not layer.routing.offset.any()


def test_the_votes_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """On no backend but naive does anything form votes; with the prior neither."""

    def poisoned(*_: Tensor) -> Tensor:
        raise AssertionError("votes are formed")

    monkeypatch.setattr("torchcaps.ops.naive.dense_votes", poisoned)
    for backend in ("chunked", "native"):
        layer = CapsLinear(I, J, P, D, routing=SelfAttentionRouting(), backend=backend)
        routed: Routed = layer.route(normal(B, I, P).float())
        routed.pose.sum().backward()
        assert layer.routing.offset.grad.any()
