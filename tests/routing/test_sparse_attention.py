"""Sparse attention routing and orthogonal transforms against the equations of Geng et
al. 2024, and entmax's own.
"""

import numpy as np
import pytest
import torch
from by_the_book import Equations, I, J, normal
from numpy.typing import NDArray
from torch import Tensor

from torchcaps import CapsLinear
from torchcaps.layers import reflected
from torchcaps.ops import Votes
from torchcaps.routing import (
    Entmax,
    Routed,
    SparseAttentionRouting,
)


def route(votes: Votes, a: Tensor) -> Routed:
    return SparseAttentionRouting()(votes)


def entmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """By bisection for the threshold."""
    low = z.max() / 2 - 1
    high = z.max() / 2
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (
            (tau, high) if (np.maximum(0, z / 2 - tau) ** 2).sum() > 1 else (low, tau)
        )
    return np.maximum(0, z / 2 - tau) ** 2


def book(V: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With the matrix of all pairs of votes for a parent; entmax is smooth where its
    support stays.
    """
    z = torch.einsum("bijh,bkjh->bij", V, V) / V.shape[-1] ** 0.5 / 2
    support = (
        torch.from_numpy(np.apply_along_axis(entmax, 2, 2 * z.detach().numpy())) > 1e-14
    )
    count = support.sum(-1, keepdim=True)
    mean = (z * support).sum(-1, keepdim=True) / count
    deviation = ((z - mean) ** 2 * support).sum(-1, keepdim=True)
    C = (z - mean + ((1 - deviation) / count).sqrt()) ** 2 * support
    s = (C[..., None] * V).sum(1)
    n = s.norm(dim=-1, keepdim=True)
    v = n / (1 + n**2) * s
    return v, v.norm(dim=-1), C


class TestEquations(Equations):
    route = staticmethod(route)
    book = staticmethod(book)


class TestEntmax:
    @pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
    def test_is_the_solution(self, scale: float) -> None:
        logits = scale * normal(4, 6, 9) + 50
        assignment = Entmax().shares(logits)
        expected = np.apply_along_axis(entmax, 2, logits.numpy())
        torch.testing.assert_close(
            assignment, torch.from_numpy(expected), rtol=1e-9, atol=1e-11
        )
        torch.testing.assert_close(assignment.sum(-1), torch.ones(4, 6).double())
        assert (assignment == 0).any() == (scale > 0.5)

    def test_ties_and_one_parent(self) -> None:
        for logits in (
            torch.zeros(2, 3, 4),
            torch.zeros(2, 3, 1),
            torch.full((1, 1, 3), -7.0),
        ):
            logits.requires_grad_()
            assignment = Entmax().shares(logits)
            torch.testing.assert_close(
                assignment, torch.full_like(assignment, 1 / assignment.shape[-1])
            )
            (gradient,) = torch.autograd.grad(assignment.square().sum(), logits)
            assert gradient.isfinite().all()

    def test_gradient_against_differences(self) -> None:
        torch.autograd.gradcheck(Entmax().shares, normal(2, 3, 5).requires_grad_())


class TestOrthogonal:
    def test_products_of_reflections(self) -> None:
        vectors = normal(3, 2, 4, 4)
        actual = reflected(vectors)
        expected = np.eye(4)
        for v in vectors[1, 0].numpy():
            expected = expected @ (np.eye(4) - 2 * np.outer(v, v) / (v @ v))
        torch.testing.assert_close(actual[1, 0], torch.from_numpy(expected))
        torch.testing.assert_close(
            actual @ actual.mT, torch.eye(4).double().expand(3, 2, 4, 4)
        )

    def test_a_layer_keeps_lengths_and_angles(self) -> None:
        layer = CapsLinear(
            I, J, 6, 6, transforms="orthogonal", routing=SparseAttentionRouting()
        ).double()
        children = normal(2, I, 6)
        votes = layer.votes(children).dense()
        torch.testing.assert_close(
            votes.norm(dim=-1), children.norm(dim=-1)[..., None].expand(-1, -1, J)
        )
        assert layer.weight.shape == (I, J, 6, 6)
        layer(children).pose.sum().backward()
        assert layer.weight.grad.any()
        with pytest.raises(
            ValueError,
            match=(
                "orthogonal transforms keep the dimension: in_pose is 6, out_pose is 5"
            ),
        ):
            CapsLinear(I, J, 6, 5, transforms="orthogonal")
