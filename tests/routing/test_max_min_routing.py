"""Max-min routing against the equations of Zhao et al. 2019; and no routing at all."""

from functools import partial

import pytest
import torch
from by_the_book import B, D, I, J, P, check_equations, normal
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import (
    EuclideanKMeansRouting,
    MaxMin,
    MaxMinRouting,
    MeanRouting,
)
from torchcaps.squashing import squash


def book(V: Tensor, a: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    c = torch.ones(V.shape[:3], dtype=V.dtype)
    v = V.new_zeros(())
    for step in range(steps):
        if step > 0:
            least = b.amin(2, keepdim=True)
            most = b.amax(2, keepdim=True)
            c = (b - least) / (most - least)
        s = (c[..., None] * V).sum(1)
        n = s.norm(dim=-1, keepdim=True)
        v = n**2 / (1 + n**2) * s / n
        b = b + (V * v[:, None]).sum(-1)
    return v, v.norm(dim=-1), c


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_equations(backend: str, steps: int) -> None:
    check_equations(
        lambda votes, a: MaxMinRouting(steps)(votes),
        partial(book, steps=steps),
        (),
        backend,
    )


class TestMap:
    def test_between_the_bounds(self) -> None:
        assignment = MaxMin().shares(normal(B, I, J))
        assert (assignment.amin(-1) == 0).all()
        assert (assignment.amax(-1) == 1).all()

    def test_scale_and_shift_of_the_logits_do_not_matter(self) -> None:
        logits = normal(B, I, J)
        torch.testing.assert_close(
            MaxMin().shares(5 * logits - 3), MaxMin().shares(logits)
        )

    def test_logits_of_short_votes(self) -> None:
        logits = normal(B, I, J).float()
        torch.testing.assert_close(
            MaxMin().shares(1e-30 * logits), MaxMin().shares(logits)
        )

    def test_equal_logits_give_all_to_all_and_no_gradient(self) -> None:
        logits = torch.full((B, I, J), 2.0, requires_grad=True)
        assignment = MaxMin().shares(logits)
        torch.testing.assert_close(assignment, torch.ones(B, I, J))
        (gradient,) = torch.autograd.grad(assignment.sum(), logits)
        assert not gradient.any()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_rounding_gives_all_to_all(self, dtype: torch.dtype) -> None:
        logits = torch.full((B, I, J), 2.0, dtype=dtype)
        noise = torch.randint(-4, 5, (B, I, J)) * torch.finfo(dtype).eps
        assert (MaxMin().shares(logits + 2 * noise) == 1).all()

    def test_no_jump_between_rounding_and_the_equation(self) -> None:
        spread = torch.linspace(0, 1e-4, 2001)
        logits = torch.stack([1 + spread, torch.ones(2001)], -1)[:, None]
        least = MaxMin().shares(logits)[:, 0, 1]
        assert (least.diff() <= 0).all()
        assert least[0] == 1
        assert least[-1] == 0
        assert least.diff().abs().max() < 0.05

    def test_shares_do_not_compete(self) -> None:
        votes = Votes(
            normal(B, I, P),
            normal(I, J, P, D, seed=1),
            competition=MaxMin(),
        )
        assert (votes.assignment().sum(-1) == J).all()


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("like", ["subspace", "the same parents", "but for rounding"])
def test_parents_that_are_alike_get_the_same(backend: str, like: str) -> None:
    """Then every child is all theirs, as without routing; no rounding of logits comes
    out as numbers.
    """
    children = normal(4, 12, 8)
    transforms = normal(12, 1, 8, 6, seed=1).repeat(1, 5, 1, 1)
    if like == "subspace":
        transforms = transforms[:1]
    elif like == "but for rounding":
        transforms = transforms * (1 + 4e-16 * normal(12, 5, 8, 6, seed=2))
    votes = Votes(children, transforms, backend=backend)
    pose = MaxMinRouting(steps=4)(votes).pose
    torch.testing.assert_close(pose, squash(votes.dense().sum(1)), rtol=1e-9, atol=0)
    nearly = Votes(children * (1 + 1e-12), transforms, backend=backend)
    torch.testing.assert_close(
        MaxMinRouting(steps=4)(nearly).pose, pose, rtol=1e-9, atol=0
    )


class TestMean:
    @pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
    def test_is_the_mean(self, backend: str) -> None:
        votes = Votes(normal(B, I, P), normal(I, J, P, D, seed=1), backend=backend)
        weights = normal(B, I, seed=2).sigmoid()
        expected = torch.einsum(
            "bi,bijh->bjh", weights / weights.sum(1, keepdim=True), votes.dense()
        )
        torch.testing.assert_close(
            MeanRouting()(votes, weights).pose, expected, rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(
            MeanRouting()(votes).pose, votes.dense().mean(1), rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(
            MeanRouting()(votes).activation, votes.dense().mean(1).norm(dim=-1)
        )

    def test_is_one_step_of_k_means(self) -> None:
        votes = Votes(normal(B, I, P), normal(I, J, P, D, seed=1))
        torch.testing.assert_close(
            MeanRouting()(votes).pose, EuclideanKMeansRouting(1)(votes).pose
        )
