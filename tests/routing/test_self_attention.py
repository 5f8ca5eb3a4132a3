"""Self-attention routing against the equations of Mazzia et al. 2021."""

import pytest
import torch
from by_the_book import B, D, I, J, KernelEquations, P, normal, routed_with
from torch import Tensor

from torchcaps import CapsLinear, squash
from torchcaps.ops import Votes
from torchcaps.routing import Routed, SelfAttentionRouting


def route(votes: Votes, a: Tensor, prior: Tensor) -> Routed:
    return routed_with(SelfAttentionRouting(), votes, offset=prior)


def book(V: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With the paper's matrix of all pairs of votes."""
    c = torch.einsum("bijh,bkjh->bij", V, V).div(V.shape[-1] ** 0.5).softmax(2)
    s = ((c + b)[..., None] * V).sum(1)
    n = s.norm(dim=-1, keepdim=True)
    v = (1 - (-n).exp()) * s / n
    return v, v.norm(dim=-1), c


class TestEquations(KernelEquations):
    route = staticmethod(route)
    book = staticmethod(book)
    parameters = (normal(I, J, seed=3) / 4,)


def test_the_prior_is_added_behind_the_softmax() -> None:
    """A prior of -1 / J, with votes that agree with no parent more than another, leaves
    nothing.
    """
    votes = Votes(normal(B, I, P), normal(I, 1, P, D, seed=1).expand(I, J, P, D))
    routed = routed_with(
        SelfAttentionRouting(),
        votes,
        offset=torch.full((I, J), -1 / J, dtype=torch.float64),
    )
    torch.testing.assert_close(routed.pose, torch.zeros(B, J, D).double())
    torch.testing.assert_close(routed.assignment, torch.full((B, I, J), 1 / J).double())


def test_the_squash_of_the_released_code_is_the_exponential_one() -> None:
    for dtype in (torch.float64, torch.float32):
        s = normal(50, 4).to(dtype) * torch.logspace(-6, 1, 50, dtype=dtype)[:, None]
        n = s.norm(dim=-1, keepdim=True)
        released = (1 - 1 / (n.exp() + 1e-20)) * (s / (n + 1e-20))
        torch.testing.assert_close(
            squash(s, "exponential"), released, rtol=0, atol=4 * torch.finfo(dtype).eps
        )


def test_the_prior_starts_at_0() -> None:
    assert not CapsLinear(
        I, J, P, D, routing=SelfAttentionRouting()
    ).routing.offset.any()


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
