"""Degree-centrality routing against the equations of Venkataraman et al. 2020."""

import numpy as np
import torch
from by_the_book import Array, D, Equations, I, J, M, P, normal, problem
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import Routed, degree_centrality_routing


def route(votes: Votes, a: Tensor) -> Routed:
    return degree_centrality_routing(votes)


def book(V: Array, a: Array) -> tuple[Array, Array, Array]:
    """For one example (I, J, H), with the matrix of all pairs of votes for a parent."""
    I, J, H = V.shape
    v, c = np.zeros((J, H)), np.zeros((I, J))
    for j in range(J):
        affinity = np.array([[V[i, j] @ V[k, j] / max((V[i, j] ** 2).sum(), 1e-8) for k in range(I)] for i in range(I)])
        degree = affinity.sum(1)
        c[:, j] = np.exp(degree - degree.max()) / np.exp(degree - degree.max()).sum()
        s = sum(c[i, j] * V[i, j] for i in range(I))
        n = np.sqrt(s @ s)
        v[j] = n**2 / (1 + n**2) * s / n
    return v, np.sqrt((v**2).sum(-1)), c


def differentiable(V: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    affinity = torch.einsum("bijh,bkjh->bikj", V, V) / (V**2).sum(-1)[:, :, None]
    s = (affinity.sum(2).softmax(1)[..., None] * V).sum(1)
    n = s.norm(dim=-1, keepdim=True)
    v = n / (1 + n**2) * s
    return v, v.norm(dim=-1)


class TestEquations(Equations):
    route, book = staticmethod(route), staticmethod(book)
    differentiable = staticmethod(differentiable)


def test_the_softmax_is_over_the_children() -> None:
    children, transforms, _ = problem()
    routed = degree_centrality_routing(Votes(children, transforms))
    torch.testing.assert_close(routed.assignment.sum(1), torch.ones(len(children), J).double())


def test_degrees_of_thousands() -> None:
    """One short vote among long ones has a degree that exp cannot hold."""
    children, transforms = normal(2, I, M, P), normal(I, J, P, D, seed=1)
    children[:, 0] *= 1e-4
    children[:, 1] = 0
    children.requires_grad_()
    routed = degree_centrality_routing(Votes(children, transforms))
    assert routed.pose.isfinite().all()
    (gradient,) = torch.autograd.grad(routed.pose.sum(), children)
    assert gradient.isfinite().all()
