"""Degree-centrality routing against the equations of Venkataraman et al. 2020."""

import torch
from by_the_book import D, Equations, I, J, M, P, normal, problem
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import DegreeCentralityRouting, Routed


def route(votes: Votes, a: Tensor) -> Routed:
    return DegreeCentralityRouting()(votes)


def book(V: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With the matrix of all pairs of votes for a parent."""
    affinity = torch.einsum("bijh,bkjh->bikj", V, V) / (V**2).sum(-1)[:, :, None]
    c = affinity.sum(2).softmax(1)
    s = (c[..., None] * V).sum(1)
    n = s.norm(dim=-1, keepdim=True)
    v = n / (1 + n**2) * s
    return v, v.norm(dim=-1), c


class TestEquations(Equations):
    route = staticmethod(route)
    book = staticmethod(book)


def test_the_softmax_is_over_the_children() -> None:
    children, transforms, _ = problem()
    routed = DegreeCentralityRouting()(Votes(children, transforms))
    torch.testing.assert_close(
        routed.assignment.sum(1), torch.ones(len(children), J).double()
    )


def test_degrees_of_thousands() -> None:
    """One short vote among long ones has a degree that exp cannot hold."""
    children = normal(2, I, M, P)
    transforms = normal(I, J, P, D, seed=1)
    children[:, 0] *= 1e-4
    children[:, 1] = 0
    children.requires_grad_()
    routed = DegreeCentralityRouting()(Votes(children, transforms))
    assert routed.pose.isfinite().all()
    (gradient,) = torch.autograd.grad(routed.pose.sum(), children)
    assert gradient.isfinite().all()
    # That of a child without a pose was 1e7, which drowned all others.
    assert gradient.abs().max() < 100
