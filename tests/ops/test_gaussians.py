"""Gaussians that are fitted to the votes of each parent: by the kernels as by the
formula.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps.ops import Gaussians, InnerProduct, Moments, Votes

pytestmark = pytest.mark.skipif(
    bool(tc.ops.fused.why_not("native")), reason="no C++ kernels here"
)


def votes(
    size: int = 16, rows: int = 3, parents: int = 5, dtype: torch.dtype = torch.float64
) -> Votes:
    generator = torch.Generator().manual_seed(size)
    children = torch.randn(rows, 7, 1, 4, generator=generator, dtype=dtype)
    return Votes(
        children,
        torch.randn(7, parents, 4, size, generator=generator, dtype=dtype),
        backend="native",
    )


def fitted(moments: Moments, floor: float) -> Gaussians:
    """The formula."""
    return Gaussians.of(moments.mean, moments.variance + floor)


def moments(size: int, rows: int, parents: int, dtype: torch.dtype) -> Moments:
    generator = torch.Generator().manual_seed(rows)
    mass = torch.rand(rows, parents, generator=generator, dtype=dtype) * 9
    total = torch.randn(rows, parents, size, generator=generator, dtype=dtype)
    scatter = torch.rand(rows, parents, size, generator=generator, dtype=dtype) * 5
    scatter[:, 0] *= 1e-6  # the floor is what counts
    return Moments(*(tensor.requires_grad_() for tensor in (mass, total, scatter)))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)]
)
@pytest.mark.parametrize(
    ("size", "rows", "parents"),
    [(1, 1, 1), (16, 3, 5), (17, 300, 5), (40, 9, 2), (7, 1, 3)],
)
def test_numbers_and_gradients(
    size: int, rows: int, parents: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    inputs = moments(size, rows, parents, dtype)
    result = votes(size, rows, parents, dtype).gaussians(inputs, 1e-3)
    assert "Fitted" in type(result.mean.grad_fn).__name__  # by the kernels
    wide = Moments(*(tensor.detach().double().requires_grad_() for tensor in inputs))
    expected = fitted(wide, 1e-3)
    upstream = [torch.randn(one.shape, dtype=torch.float64) for one in expected]
    loss, reference = (
        sum(
            (gaussian * weight.to(gaussian.dtype)).sum()
            for gaussian, weight in zip(gaussians, upstream, strict=True)
        )
        for gaussians in (result, expected)
    )
    results = zip(
        (*result, *torch.autograd.grad(loss, inputs)),
        (*expected, *torch.autograd.grad(reference, wide)),
        strict=True,
    )
    for actual, right in results:
        assert actual.dtype == dtype
        error = (actual.double() - right).square().mean().sqrt()
        assert error <= tolerance * right.square().mean().sqrt()


@pytest.mark.parametrize("asked", range(4), ids=Gaussians._fields)
def test_gradients_of_one_result(asked: int) -> None:
    inputs = moments(16, 3, 5, torch.float64)
    gradients = torch.autograd.grad(
        votes().gaussians(inputs, 0.1)[asked].sin().sum(), inputs, allow_unused=True
    )
    expected = torch.autograd.grad(
        fitted(inputs, 0.1)[asked].sin().sum(), inputs, materialize_grads=True
    )
    for gradient, expected_gradient in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-14)


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    given = [
        torch.rand(2, 2).double() + 0.5,
        torch.randn(2, 2, 3).double(),
        torch.rand(2, 2, 3).double(),
    ]

    def found(*given: Tensor) -> Gaussians:
        return votes(3, 2, 2).gaussians(Moments(*given), 0.1)

    inputs = [tensor.requires_grad_() for tensor in given]
    assert torch.autograd.gradcheck(found, inputs)
    assert torch.autograd.gradgradcheck(found, inputs)


def test_a_parent_that_no_child_chose() -> None:
    inputs = moments(16, 3, 5, torch.float32)
    with torch.no_grad():
        for one in inputs:
            one[:, 1] = 0
    gaussians = votes(dtype=torch.float32).gaussians(inputs, 0.25)
    assert (gaussians.mean[:, 1] == 0).all()
    assert (gaussians.variance[:, 1] == 0.25).all()
    grads = torch.autograd.grad(sum(one.sum() for one in gaussians), inputs)
    assert not any(grad[:, 1].any() for grad in grads)


def test_what_has_no_logarithm() -> None:
    scatter = (
        torch.tensor([0.0, 0.0, -3.0, math.nan, math.inf, 1e-40]).expand(2, 1, 6).mT
    )
    inputs = Moments(torch.ones(2, 6), torch.zeros(2, 6, 1), scatter)
    gaussians = votes(1, 2, 6, torch.float32).gaussians(inputs, 1.0)
    expected = fitted(inputs, 1.0)
    torch.testing.assert_close(
        gaussians.log_determinant,
        expected.log_determinant,
        rtol=1e-6,
        atol=1e-6,
        equal_nan=True,
    )
    assert gaussians.log_determinant[0].isnan().tolist() == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("exponent", [-30, -3, -1e-3, -1e-6, 0, 1e-6, 1e-3, 3, 30])
def test_logarithms(exponent: float) -> None:
    scatter = torch.logspace(exponent, exponent + 0.3, 48).view(1, 3, 16)
    inputs = Moments(torch.ones(1, 3), torch.zeros(1, 3, 16), scatter)
    gaussians = votes(16, 1, 3, torch.float32).gaussians(inputs, 1e-38)
    torch.testing.assert_close(
        gaussians.log_determinant.double(),
        gaussians.variance.double().log().sum(-1),
        rtol=3e-7,
        atol=3e-6,
    )


@pytest.mark.parametrize("floor", [-1.0, math.nan, math.inf, "0.1", torch.tensor(0.1)])
def test_floors_that_are_none(floor: Any) -> None:
    with pytest.raises(
        ValueError, match="floor must be a finite number of at least 0, got"
    ):
        votes().gaussians(moments(16, 3, 5, torch.float64), floor)


def test_moments_without_scatter_and_of_other_shapes() -> None:
    source = votes()
    with pytest.raises(ValueError, match="hold no scatter"):
        source.gaussians(source.moments(), 0.1)
    mass, total, scatter = source.moments(scatter=True)
    assert scatter is not None
    with pytest.raises(
        ValueError,
        match=r"scatter must be torch.float64 \(3, 5, 16\) on cpu, got .* \(3, 5, 15\)",
    ):
        source.gaussians(Moments(mass, total, scatter[..., 1:]), 0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_of_few_digits_are_left_to_the_formula(dtype: torch.dtype) -> None:
    inputs = Moments(
        *(tensor.detach().to(dtype) for tensor in moments(16, 3, 5, torch.float32))
    )
    for first, second in zip(
        votes(dtype=torch.float32).gaussians(inputs, 0.1),
        fitted(inputs, 0.1),
        strict=True,
    ):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_other_similarities_and_backends_have_the_same_gaussians() -> None:
    results = []
    for backend in ("naive", "chunked", "native"):
        children = votes().children.clone().requires_grad_()
        votes_of_backend = Votes(children, votes().transforms, backend=backend)
        gaussians = votes_of_backend.gaussians(
            votes_of_backend.moments(
                InnerProduct(votes_of_backend.moments().sum), scatter=True
            ),
            0.01,
        )
        results.append(
            (
                *gaussians,
                *torch.autograd.grad(sum(field.sum() for field in gaussians), children),
            )
        )
    for others in results[1:]:
        for actual, expected in zip(others, results[0], strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
