"""Routing by agreement in one call of the kernels, against the same step by step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import torchcaps as tc
from tests.random_numbers import normal
from torchcaps.ops import Moments, Votes
from torchcaps.routing import DynamicRouting, Routed
from torchcaps.routing.base import FAST

pytestmark = pytest.mark.skipif(
    bool(tc.ops.fused.why_not("native")), reason="the native kernels cannot run here"
)

SIZES = [
    (1, 40, 10, 8, 16),
    (3, 37, 5, 8, 16),
    (4, 33, 10, 8, 32),
    (20, 37, 5, 16, 16),
    (33, 20, 3, 4, 12),
    (5, 9, 2, 3, 5),
]
"""Rows, children, parents, numbers of their poses: few and many rows, and what no
kernel is made for.
"""


def tensors(
    size: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Children, transforms and a bias."""
    B, I, J, P, D = size
    drawn = normal(B, I, P), normal(I, J, P, D, seed=1), normal(J, D, seed=2) / 10
    return tuple(tensor.to(dtype).requires_grad_() for tensor in drawn)


def routing(
    *votes: Tensor,
    sites: Tensor | None = None,
    bias: Tensor | None = None,
    **options: Any,
) -> Callable[[], Routed]:
    """Votes are formed anew each time."""
    return lambda: routed(
        Votes(*votes, backend="native", sites=sites), bias=bias, **options
    )


def routed(
    votes: Votes,
    *,
    bias: Tensor | None = None,
    initial: Routed | None = None,
    **options: Any,
) -> Routed:
    """The parents, with this bias in place of the routing's own."""
    return torch.func.functional_call(
        DynamicRouting(**options), {"offset": bias}, votes, {"initial": initial}
    )


@contextmanager
def step_by_step() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(FAST, (DynamicRouting, "native"))
        yield


def in_one(parents: Routed) -> bool:
    return type(parents.pose.grad_fn).__name__ == "_AgreeBackward"


def loss_of(parents: Routed) -> Tensor:
    """Of the poses, their lengths, and the last assignment."""
    fields = (parents.pose, parents.activation, parents.assignment)
    return sum((field * normal(*field.shape).to(field.dtype)).sum() for field in fields)


def outcome(work: Callable[[], Routed], leaves: tuple[Tensor, ...]) -> list[Tensor]:
    parents = work()
    return [
        parents.pose,
        parents.activation,
        *torch.autograd.grad(loss_of(parents), leaves),
    ]


def assert_same(
    work: Callable[[], Routed], leaves: tuple[Tensor, ...], rtol: float = 1e-10
) -> None:
    assert in_one(work())
    actual = outcome(work, leaves)
    with step_by_step():
        assert not in_one(work())
        expected = outcome(work, leaves)
    for value, expected_value in zip(actual, expected, strict=True):
        assert torch.linalg.vector_norm(
            value - expected_value
        ) <= rtol * torch.linalg.vector_norm(expected_value)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": False},
        {"leaky": True},
        {"squash": "half"},
        {"bias": True},
        {"bias": True, "leaky": True},
    ],
    ids=str,
)
def test_is_the_same_step_by_step(
    size: tuple[int, ...], steps: int, options: dict[str, Any]
) -> None:
    *votes, bias = tensors(size)
    arguments = {**options, "bias": bias} if "bias" in options else options
    leaves = (*votes, bias) if "bias" in options else tuple(votes)
    assert_same(routing(*votes, steps=steps, **arguments), leaves)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_is_the_same_without_gradients(size: tuple[int, ...], steps: int) -> None:
    children, transforms, bias = tensors(size)
    work = routing(children, transforms, bias=bias, steps=steps)
    expected = work()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            actual = work()
        assert torch.equal(actual.pose, expected.pose)
        assert (actual.similarity is None) == (steps == 1)
        assert steps == 1 or torch.equal(
            actual.similarity.alpha, expected.similarity.alpha
        )


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_in_float32(size: tuple[int, ...]) -> None:
    children, transforms, bias = tensors(size, torch.float32)
    with torch.no_grad():
        children /= 10  # logits that do not amplify the last digits
    assert_same(
        routing(children, transforms, bias=bias),
        (children, transforms, bias),
        rtol=2e-6,
    )


@pytest.mark.parametrize("coordinates", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_windows_share_children(threads: int, coordinates: bool) -> None:
    children = normal(5, 12, 4).requires_grad_()
    transforms = normal(4, 3, 4, 8, seed=1).requires_grad_()
    sites = torch.tensor([[0, 1, 2, 3], [2, 3, 4, 5], [11, 7, 7, 0]], dtype=torch.int32)
    more = (normal(4, 8, seed=3).requires_grad_(),) if coordinates else ()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        work = routing(children, transforms, *more, sites=sites)
        assert_same(work, (children, transforms, *more))
        first, second = (outcome(work, (children, transforms)) for _ in range(2))
        assert all(map(torch.equal, first, second))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("frozen", range(3))
@pytest.mark.parametrize("rows", [2, 20])
def test_gradients_of_some(frozen: int, rows: int) -> None:
    leaves = tensors((rows, 37, 5, 8, 16))
    leaves[frozen].requires_grad_(False)
    children, transforms, bias = leaves
    assert_same(
        routing(children, transforms, bias=bias),
        tuple(leaf for leaf in leaves if leaf.requires_grad),
    )


def test_the_bias_alone() -> None:
    children, transforms, bias = tensors((3, 9, 4, 8, 16))
    assert_same(routing(children.detach(), transforms.detach(), bias=bias), (bias,))


@pytest.mark.parametrize(
    "squash", ["sabour", pytest.param("half", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize(
    "accumulate", [pytest.param(True, marks=pytest.mark.thorough), False]
)
def test_gradients_of_gradients(accumulate: bool, squash: str) -> None:
    leaves = tensors((2, 2, 2, 2, 3))

    def poses(children: Tensor, transforms: Tensor, bias: Tensor) -> Tensor:
        parents = routing(
            children,
            transforms,
            bias=bias,
            accumulate=accumulate,
            squash=squash,
        )()
        assert in_one(parents)
        return parents.pose

    assert torch.autograd.gradcheck(poses, leaves)
    assert torch.autograd.gradgradcheck(poses, leaves)


def test_nothing_is_read_that_nobody_wrote() -> None:
    *votes, bias = tensors((20, 9, 4, 8, 16))
    work = routing(*votes, bias=bias)
    expected = outcome(work, (*votes, bias))
    torch.use_deterministic_algorithms(True)  # which fills new memory with NaN
    try:
        actual = outcome(work, (*votes, bias))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, actual, expected))


def test_children_without_a_pose() -> None:
    children, transforms, _ = tensors((20, 9, 4, 8, 16))
    nothing = torch.zeros_like(children).requires_grad_()
    parents = routing(nothing, transforms)()
    parents.pose.sum().backward()
    assert in_one(parents)
    assert (parents.pose == 0).all()
    assert (nothing.grad == 0).all()


@pytest.mark.parametrize("rows", [3, 20])
def test_nan_comes_through(rows: int) -> None:
    children, transforms, _ = tensors((rows, 9, 4, 8, 16))
    with torch.no_grad():
        children[1, 2, 3] = torch.nan
    pose = routing(children, transforms)().pose
    assert pose[1].isnan().all()
    assert pose[[0, 2]].isfinite().all()


def test_a_checkpoint_and_a_second_backward_pass() -> None:
    leaves = tensors((3, 9, 4, 8, 16))[:2]
    expected = torch.autograd.grad(routing(*leaves)().pose.sum(), leaves)
    again = checkpoint(
        lambda *votes: routing(*votes)().pose, *leaves, use_reentrant=False
    ).sum()
    for _ in range(2):
        gradients = torch.autograd.grad(again, leaves, retain_graph=True)
        assert all(map(torch.equal, gradients, expected))


def test_children_that_were_written_to() -> None:
    children, transforms, _ = tensors((3, 9, 4, 8, 16))
    pose = routing(children, transforms)().pose
    with torch.no_grad():
        children += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pose.sum().backward()


@pytest.mark.parametrize(
    ("votes", "options"),
    [
        ({}, {"squash": "tanh"}),
        ({}, {"gradient": "last"}),
        ({"mask": torch.ones(3, 9, dtype=torch.bool)}, {}),
        ({"competition": tc.ops.Competition(hard=True)}, {}),
    ],
    ids=str,
)
def test_what_is_done_step_by_step(
    votes: dict[str, Any], options: dict[str, Any]
) -> None:
    children, transforms, _ = tensors((3, 9, 4, 8, 16))
    assert not in_one(
        routed(Votes(children, transforms, backend="native", **votes), **options)
    )


def test_a_bias_wider_than_the_votes() -> None:
    """It was rounded."""
    children, transforms, bias = tensors((3, 9, 4, 8, 16), torch.float32)
    parents = routing(children, transforms, bias=bias.double())()
    assert not in_one(parents)
    assert parents.pose.dtype == torch.float64


class Doubled(Votes):
    """Votes with moments of their own, which all steps at once would not ask for."""

    def moments(self, *arguments: Any, **options: Any) -> Moments:
        mass, total, scatter = super().moments(*arguments, **options)
        return Moments(mass, 2 * total, scatter)


def test_votes_with_moments_of_their_own() -> None:
    children, transforms, _ = tensors((3, 9, 4, 8, 16))
    own, plain = (
        routed(kind(children, transforms, backend="native"), steps=1, squash="half")
        for kind in (Doubled, Votes)
    )
    assert not in_one(own)
    assert not torch.allclose(own.pose, plain.pose)


def test_going_on_from_there() -> None:
    """What the last step compared with is handed on."""
    children, transforms, _ = tensors((3, 9, 4, 8, 16))
    votes = Votes(children, transforms, backend="native")
    complete = routed(votes, steps=4)
    halves = routed(votes, steps=2, initial=routed(votes, steps=2))
    torch.testing.assert_close(halves.pose, complete.pose)
