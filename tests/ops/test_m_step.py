"""The M-step of EM routing: by the kernels as by the formula."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps.numerics import Costs, Rounding
from torchcaps.ops import Gaussians, InnerProduct, Moments, Votes
from torchcaps.ops.backend import EMState, Mixture, m_step

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


def free(moments: Moments) -> Costs:
    """The costs of parents that cost nothing but what their variance does."""
    zeros = torch.zeros_like(moments.sum[0, :, 0])
    return Costs(zeros, zeros)


def of_kernels(votes: Votes, moments: Moments, floor: float) -> Gaussians:
    return votes.m_step(moments, free(moments), 1.0, floor).gaussians


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


@dataclass
class Step:
    """Two M-steps with the same moments, the second after the first, and parameters of
    costs.
    """

    moments: Moments
    beta_u: Tensor
    beta_a: Tensor
    settings: Mixture

    @classmethod
    def of(
        cls,
        size: int,
        rows: int,
        parents: int,
        dtype: torch.dtype,
        settings: Mixture,
    ) -> "Step":
        """Make one from random numbers."""
        betas = torch.randn(
            2, parents, generator=torch.Generator().manual_seed(5), dtype=torch.float64
        )
        beta_u, beta_a = (beta.to(dtype).requires_grad_() for beta in betas)
        return cls(moments(size, rows, parents, dtype), beta_u, beta_a, settings)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All tensors that gradients flow to."""
        mass, total, scatter = self.moments
        assert scatter is not None
        return mass, total, scatter, self.beta_u, self.beta_a

    def double(self) -> "Step":
        """The same numbers in float64."""
        mass, total, scatter, *betas = (
            tensor.detach().double().requires_grad_() for tensor in self.inputs
        )
        return Step(Moments(mass, total, scatter), betas[0], betas[1], self.settings)

    def parents(self, votes: Votes | None) -> EMState:
        """What the kernels make of it; without votes, the formula."""
        step = m_step if votes is None else votes.m_step
        size = self.moments.sum.shape[-1]
        costs = Costs.of(self.beta_u, self.beta_a, size, self.settings)
        rounding: Rounding | None = None
        for temperature in self.settings.temperatures:
            state = step(
                self.moments, costs, temperature, self.settings.floor, rounding
            )
            rounding = state.rounding
        return state


STANDARD = Mixture((0.7, 0.9), (1.0,), 1e-3, 2.0, 3.0, standardise=True)
SETTINGS = [
    Mixture((0.7,), (), 1e-3),
    Mixture((-0.7, 0.9), (1.0,), 1e-3, 2.0, 3.0),
    STANDARD,
    STANDARD._replace(cost_floor=0.3),
    STANDARD._replace(temperatures=(-0.7, 1e-3)),
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)]
)
@pytest.mark.parametrize(
    ("size", "rows", "parents"),
    [(1, 1, 3), (16, 3, 5), (17, 300, 5), (40, 9, 4), (7, 1, 33)],
)
@pytest.mark.usefixtures("poisoned")
def test_numbers_and_gradients(
    size: int,
    rows: int,
    parents: int,
    dtype: torch.dtype,
    tolerance: float,
    settings: Mixture,
) -> None:
    torch.manual_seed(0)
    step = Step.of(size, rows, parents, dtype, settings)
    wide = step.double()
    result = step.parents(votes(size, rows, parents, dtype))
    assert "Fitted" in type(result.logit.grad_fn).__name__  # by the kernels
    expected = wide.parents(None)
    upstream = [
        torch.randn(field.shape, dtype=torch.float64)
        for field in (*expected.gaussians, expected.logit)
    ]
    results = zip(
        (*fields_of(result), *slopes(result, upstream, step.inputs)),
        (*fields_of(expected), *slopes(expected, upstream, wide.inputs)),
        strict=True,
    )
    for actual, right in results:
        assert actual.dtype == dtype
        error = (actual.double() - right).square().mean().sqrt()
        assert error <= tolerance * right.square().mean().sqrt()


def fields_of(state: EMState) -> tuple[Tensor, ...]:
    return *state.gaussians, state.logit, *(state.rounding or ())


def slopes(
    state: EMState, upstream: list[Tensor], inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    results = *state.gaussians, state.logit
    return torch.autograd.grad(
        results,
        inputs,
        [
            weight.to(field.dtype)
            for weight, field in zip(upstream, results, strict=True)
        ],
    )


@pytest.mark.parametrize("parents", [1, 2, 6])
def test_costs_that_differ_by_rounding_alone(parents: int) -> None:
    """Parents that are all alike: what is left is bounded, and so is its gradient."""
    step = Step.of(16, 3, parents, torch.float32, STANDARD)
    with torch.no_grad():
        for tensor in step.moments:
            assert tensor is not None
            tensor[:] = tensor[:, :1]
        step.moments.mass.mul_(1 + 1e-7 * torch.arange(parents))
        step.beta_u.fill_(0.7)
    wide = step.double()
    loss, expected = (
        each.parents(source).logit[:, 0].sum()
        for each, source in ((step, votes(16, 3, parents, torch.float32)), (wide, None))
    )
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)
    for actual, right in zip(
        torch.autograd.grad(loss, step.inputs, materialize_grads=True),
        torch.autograd.grad(expected, wide.inputs, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(actual.double(), right, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("result", range(5), ids=[*Gaussians._fields, "logit"])
def test_gradients_of_one_result(result: int) -> None:
    step = Step.of(16, 3, 5, torch.float64, STANDARD)
    actual, expected = (
        torch.autograd.grad(
            fields_of(step.parents(source))[result].sin().sum(),
            step.inputs,
            materialize_grads=True,
        )
        for source in (votes(), None)
    )
    for gradient, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("settings", [SETTINGS[1], SETTINGS[3]])
def test_second_derivatives(settings: Mixture) -> None:
    torch.manual_seed(0)
    inputs = [
        tensor.double().requires_grad_()
        for tensor in (
            torch.rand(2, 3) + 0.5,
            torch.randn(2, 3, 2),
            torch.rand(2, 3, 2),
            torch.randn(3),
            torch.randn(3),
        )
    ]

    def parents(mass: Tensor, total: Tensor, scatter: Tensor, *betas: Tensor) -> Any:
        step = Step(Moments(mass, total, scatter), *betas, settings)
        state = step.parents(votes(2, 2, 3))
        return *state.gaussians, state.logit

    assert torch.autograd.gradcheck(parents, inputs)
    assert torch.autograd.gradgradcheck(parents, inputs)
    turned = [
        tensor.detach().mT.contiguous().mT.requires_grad_()
        if tensor.ndim > 1
        else tensor
        for tensor in inputs
    ]
    assert torch.autograd.gradgradcheck(parents, turned)


def test_a_temperature_is_a_number() -> None:
    """With a tensor its gradient would be lost."""
    inputs = moments(16, 3, 5, torch.float64)
    temperature: Any = torch.tensor(0.7, requires_grad=True)
    with pytest.raises(TypeError, match="must be Number, not Tensor"):
        votes().m_step(inputs, free(inputs), temperature, 0.1)


def test_costs_of_few_digits_have_those_of_the_votes() -> None:
    inputs = moments(16, 3, 5, torch.float32)
    betas = torch.linspace(-1, 1, 10).view(2, -1)
    states = [
        votes(dtype=torch.float32).m_step(
            inputs, Costs.of(*betas.to(dtype), 16, STANDARD), 0.7, 0.1
        )
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert states[1].logit.dtype == torch.float32
    torch.testing.assert_close(states[1].logit, states[0].logit, rtol=0.05, atol=0.05)


def test_a_parent_that_no_child_chose() -> None:
    inputs = moments(16, 3, 5, torch.float32)
    with torch.no_grad():
        for one in inputs:
            one[:, 1] = 0
    gaussians = of_kernels(votes(dtype=torch.float32), inputs, 0.25)
    assert (gaussians.mean[:, 1] == 0).all()
    assert (gaussians.variance[:, 1] == 0.25).all()
    grads = torch.autograd.grad(sum(one.sum() for one in gaussians), inputs)
    assert not any(grad[:, 1].any() for grad in grads)


def test_what_has_no_logarithm() -> None:
    scatter = (
        torch.tensor([0.0, 0.0, -3.0, math.nan, math.inf, 1e-40]).expand(2, 1, 6).mT
    )
    inputs = Moments(torch.ones(2, 6), torch.zeros(2, 6, 1), scatter)
    gaussians = of_kernels(votes(1, 2, 6, torch.float32), inputs, 1.0)
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
    gaussians = of_kernels(votes(16, 1, 3, torch.float32), inputs, 1e-38)
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
        of_kernels(votes(), moments(16, 3, 5, torch.float64), floor)


def test_moments_without_scatter_and_of_other_shapes() -> None:
    source = votes()
    with pytest.raises(ValueError, match="hold no scatter"):
        of_kernels(source, source.moments(), 0.1)
    mass, total, scatter = source.moments(scatter=True)
    assert scatter is not None
    with pytest.raises(
        ValueError,
        match=r"scatter must be torch.float64 \(3, 5, 16\) on cpu, got .* \(3, 5, 15\)",
    ):
        of_kernels(source, Moments(mass, total, scatter[..., 1:]), 0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_of_few_digits_are_left_to_the_formula(dtype: torch.dtype) -> None:
    inputs = Moments(
        *(tensor.detach().to(dtype) for tensor in moments(16, 3, 5, torch.float32))
    )
    for first, second in zip(
        of_kernels(votes(dtype=torch.float32), inputs, 0.1),
        fitted(inputs, 0.1),
        strict=True,
    ):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_other_similarities_and_backends_have_the_same_gaussians() -> None:
    results = []
    for backend in ("naive", "chunked", "native"):
        children = votes().children.clone().requires_grad_()
        votes_of_backend = Votes(children, votes().transforms, backend=backend)
        gaussians = of_kernels(
            votes_of_backend,
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
