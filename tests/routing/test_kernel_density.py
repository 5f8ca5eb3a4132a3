"""Routing by weighted kernel densities against the equations of Zhao et al. 2019 and
Zhang et al. 2018.
"""

from functools import partial

import numpy as np
import pytest
import torch
from by_the_book import B, H, I, J, check_equations, normal, problem
from numpy.typing import NDArray
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import (
    FastKernelDensityRouting,
    KernelDensityRouting,
    Routed,
)

backends = pytest.mark.parametrize("backend", ["naive", "chunked"])
methods = pytest.mark.parametrize("method", ["shift", "em"])


def squashed(s: NDArray[np.float64]) -> NDArray[np.float64]:
    n2 = (s**2).sum(-1, keepdims=True)
    return np.sqrt(n2) / (0.5 + n2) * s


def route(votes: Votes, a: Tensor, steps: int) -> Routed:
    return KernelDensityRouting(steps)(votes)


def book(V: Tensor, a: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Zhao et al., Algorithm 1."""

    def short(s: Tensor) -> Tensor:
        n2 = (s**2).sum(-1, keepdim=True)
        return n2.sqrt() / (0.5 + n2) * s

    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    v = V.new_zeros(())
    for _ in range(steps):
        c = b.softmax(2)
        v = short((c[..., None] * V).sum(1) / c.sum(1)[..., None])
        b = b + 1 - ((short(V) - v[:, None]) ** 2).sum(-1)
    return v, v.norm(dim=-1), c


@backends
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_equations(backend: str, steps: int) -> None:
    check_equations(
        partial(route, steps=steps), partial(book, steps=steps), (), backend
    )


def steps_until_settled(V: NDArray[np.float64], settled: float) -> int:
    """Of a batch (B, I, J, H), as in the released code."""
    b = np.zeros(V.shape[:3])
    before = 0.0
    for step in range(1, 100):
        c = np.exp(b) / np.exp(b).sum(2, keepdims=True)
        c = c / c.sum(1, keepdims=True)
        d = 1 - ((squashed(V) - squashed((c[..., None] * V).sum(1))[:, None]) ** 2).sum(
            -1
        )
        b = b + d
        density = np.log((c * d).sum() / len(V))
        if abs(density - before) < settled:
            return step
        before = density
    raise AssertionError("never")


@backends
@pytest.mark.parametrize("settled", [0.3, 0.05, 0.01, 0.003])
def test_stops_when_settled(backend: str, settled: float) -> None:
    children, transforms, _ = problem()
    votes = Votes(children, 0.3 * transforms, backend=backend)
    steps = steps_until_settled(votes.dense().numpy(), settled)
    routed = KernelDensityRouting(100, settled)(votes)
    expected = KernelDensityRouting(steps)(votes)
    torch.testing.assert_close(routed[:2], expected[:2], rtol=0, atol=0)
    torch.testing.assert_close(routed.assignment, expected.assignment, rtol=0, atol=0)
    torch.testing.assert_close(
        KernelDensityRouting(2, settled=1e-9)(votes).pose,
        KernelDensityRouting(2)(votes).pose,
    )


def test_an_empty_batch_settles() -> None:
    children, transforms, _ = problem()
    routed = KernelDensityRouting(settled=0.05)(Votes(children[:0], transforms))
    assert len(routed.pose) == 0


def test_several_numbers_of_steps_are_seen() -> None:
    children, transforms, _ = problem()
    stored = Votes(children, 0.3 * transforms).dense().numpy()
    assert (
        len(
            {
                steps_until_settled(stored, settled)
                for settled in (0.3, 0.05, 0.01, 0.003)
            }
        )
        > 2
    )


def test_children_that_are_not_there_do_not_settle_anything() -> None:
    children, transforms, _ = problem()
    mask = torch.tensor([True, False, True, True, False]).expand(B, I)
    routing = KernelDensityRouting(steps=50, settled=0.01)
    routed = routing(Votes(children, 0.3 * transforms, mask=mask))
    present = mask[0]
    expected = routing(Votes(children[:, present], 0.3 * transforms[present]))
    torch.testing.assert_close(routed.pose, expected.pose, rtol=1e-10, atol=1e-12)


def fast_book(
    V: Tensor, a: Tensor, method: str, width: float, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Zhang et al., three steps."""
    r = torch.full(V.shape[:3], 1 / V.shape[2], dtype=V.dtype)
    k = v = V.new_zeros(())
    for step in range(3):
        if step > 0:
            share = (a[..., None] * r).sum(1, keepdim=True)
            r = (
                r + rate * k
                if method == "shift"
                else share / share.sum(-1, keepdim=True) * k
            )
            r = r / r.sum(2, keepdim=True).clamp(min=1e-100)
        used = a[..., None] * r
        v = (used[..., None] * V).sum(1) / used.sum(1)[..., None]
        k = (1 - ((V - v[:, None]) ** 2).mean(-1) / width**2).clamp(min=0)
    return v, (used * k).sum(1) / used.sum(1), r


@methods
@backends
@pytest.mark.parametrize("width", [1.8, 2.5, 3.0])
def test_fast_equations(backend: str, method: str, width: float) -> None:
    def route(votes: Votes, a: Tensor) -> Routed:
        return FastKernelDensityRouting(3, method, width, rate=0.5)(votes, a)

    check_equations(
        route, partial(fast_book, method=method, width=width, rate=0.5), (), backend
    )


def test_a_vote_that_no_kernel_reaches_goes_nowhere() -> None:
    children, transforms, a = problem()
    children[:, 0] *= 1e3
    routing = FastKernelDensityRouting(method="em", width=1.5)
    routed = routing(Votes(children, transforms), a)
    assert not routed.assignment[:, 0].any()
    assert routed.pose.isfinite().all()


@backends
@pytest.mark.parametrize(
    ("sizes", "scale"), [((5, 9, 4), 4.0), ((9, 16, 6), 4.0), ((16, 10, 6), 4.0)]
)
def test_what_no_kernel_reaches_has_no_gradient(
    sizes: tuple[int, int, int], scale: float, backend: str
) -> None:
    I, J, H = sizes
    children = (scale * normal(8, I, H)).requires_grad_()
    transforms = normal(I, J, H, H, seed=1) / H**0.5
    a = normal(8, I, seed=2).sigmoid().requires_grad_()
    upstream = normal(8, J, H, seed=3), normal(8, J, seed=4)

    routing = FastKernelDensityRouting(steps=5, method="em")

    def objective(children: Tensor, a: Tensor) -> Tensor:
        votes = Votes(children, transforms.to(children), backend=backend)
        routed = routing(votes, a)
        return sum(
            (seen * up.to(seen)).sum()
            for seen, up in zip(routed[:2], upstream, strict=True)
        )

    routed = routing(Votes(children, transforms), a)
    assert (routed.assignment.sum(2) == 0).any()
    single = [tensor.detach().float().requires_grad_() for tensor in (children, a)]
    assert all(
        grad.isfinite().all()
        for grad in torch.autograd.grad(objective(*single), single)
    )
    grads = torch.autograd.grad(objective(children, a), (children, a))
    with torch.no_grad():
        way = (normal(8, I, H, seed=5), normal(8, I, seed=6))
        small = 1e-7
        high, low = (
            objective(children + h * way[0], a + h * way[1]) for h in (small, -small)
        )
    expected = sum((grad * step).sum() for grad, step in zip(grads, way, strict=True))
    torch.testing.assert_close(
        (high - low) / (2 * small), expected, rtol=1e-5, atol=1e-6
    )


def test_the_density_grows() -> None:
    """Each step of mean shift, and of EM, climbs."""
    votes = Votes(normal(B, I, H), normal(I, J, H, H, seed=1))
    for method in ("shift", "em"):
        heights = []
        for steps in (1, 3, 6):
            routed = FastKernelDensityRouting(steps, method, width=8.0)(votes)
            distance = (votes.dense() - routed.pose[:, None]).square().mean(-1)
            heights.append(float((routed.assignment * (1 - distance / 64)).sum()))
        assert heights == sorted(heights)
