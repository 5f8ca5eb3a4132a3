"""Inverted dot-product attention routing against the equations of Tsai et al. 2020."""

from functools import partial

import pytest
import torch
from by_the_book import (
    B,
    D,
    H,
    I,
    J,
    M,
    P,
    check_equations,
    normal,
    problem,
    routed_with,
)
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import AttentionRouting, LayerShape, Routed

GAIN = normal(H, seed=3)
BIAS = normal(H, seed=4)


def route(
    votes: Votes, activation: Tensor, gain: Tensor, bias: Tensor, steps: int
) -> Routed:
    return routed_with(AttentionRouting(steps), votes, gain=gain, bias=bias)


def book(
    V: Tensor, a: Tensor, gain: Tensor, bias: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Procedure 1."""
    r = torch.full(V.shape[:3], 1 / V.shape[2], dtype=V.dtype)
    v = V.new_zeros(())
    for step in range(steps):
        if step > 0:
            r = ((V * v[:, None]).sum(-1) / H**0.5).softmax(2)
        s = (r[..., None] * V).sum(1)
        centred = s - s.mean(-1, keepdim=True)
        v = (
            gain * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            + bias
        )
    return v, v.norm(dim=-1), r


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("shared", [False, True], ids=["full", "shared"])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_equations(backend: str, steps: int, shared: bool) -> None:
    check_equations(
        partial(route, steps=steps),
        partial(book, steps=steps),
        (GAIN, BIAS),
        backend,
        shared,
    )


def test_matrix_poses_are_compared_as_wholes() -> None:
    """A matrix pose is a vector pose of all its numbers, with a transform that acts on
    each row alike.
    """
    children, transforms, _ = problem()
    rows = torch.einsum("ijpd,mn->ijmpnd", transforms, torch.eye(M).double()).reshape(
        I, J, M * P, M * D
    )
    routed = AttentionRouting()(Votes(children, transforms))
    expected = AttentionRouting()(Votes(children.flatten(2), rows))
    torch.testing.assert_close(routed.pose, expected.pose)


def test_a_pose_of_one_number_is_not_normalised() -> None:
    votes = Votes(normal(B, I, P), normal(I, J, P, 1, seed=1))
    torch.testing.assert_close(
        AttentionRouting(steps=1)(votes).pose, votes.dense().mean(1) * I / J
    )
    assert AttentionRouting().bind(LayerShape(I, J, (P,), (1,))).gain is None


def test_the_readout_is_one_linear_map_of_all_parents() -> None:
    children, transforms, activation = problem()
    routing = (
        AttentionRouting(readout=True)
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
    routed = routing(Votes(children, transforms), activation)
    torch.testing.assert_close(
        routed.activation, routing.score(routed.pose).squeeze(-1)
    )


def test_dropout_is_of_training_alone() -> None:
    children, transforms, activation = problem()
    routing = (
        AttentionRouting(dropout=0.5)
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
    votes = Votes(children, transforms)
    torch.manual_seed(0)
    assert not torch.equal(
        routing(votes, activation).pose, routing(votes, activation).pose
    )
    routing.eval()
    torch.testing.assert_close(
        routing(votes, activation).pose, AttentionRouting()(votes).pose
    )
