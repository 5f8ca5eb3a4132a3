"""Squash functions and length."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchcaps import Squash, length, squash
from torchcaps.squash import SQUASHES

FORMULAS: dict[str, Callable[[float], float]] = {
    "sabour": lambda n: n**2 / (1 + n**2),
    "half": lambda n: n**2 / (0.5 + n**2),
    "tanh": math.tanh,
    "exponential": lambda n: -math.expm1(-n),
    "rational": lambda n: n / (1 + n),
    "none": lambda n: n,
}
kinds = pytest.mark.parametrize("kind", FORMULAS)
dtypes = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=["f64", "f32", "f16", "bf16"]
)
RADII = (1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0, 20.0)


def poses(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def test_all_kinds_are_tested() -> None:
    assert FORMULAS.keys() == SQUASHES.keys()


@kinds
def test_formula(kind: str) -> None:
    direction = poses(5)
    direction /= (direction**2).sum() ** 0.5
    for n in RADII:
        torch.testing.assert_close(squash(n * direction, kind), FORMULAS[kind](n) * direction, rtol=1e-12, atol=0)


@kinds
def test_length_grows_and_stays_below_one(kind: str) -> None:
    radii = torch.logspace(-4, 1, 200, dtype=torch.float64)
    lengths = length(squash(radii[:, None] * torch.tensor([0.6, -0.8], dtype=torch.float64), kind))
    assert (lengths.diff() > 0).all()
    assert (lengths > 0).all()
    assert (lengths[-1] < 1) == (kind != "none")


@kinds
def test_direction_is_kept(kind: str) -> None:
    pose = poses(7, 5)
    out = squash(pose, kind)
    cosine = (pose * out).sum(-1) / ((pose**2).sum(-1) * (out**2).sum(-1)) ** 0.5
    torch.testing.assert_close(cosine, torch.ones(7, dtype=torch.float64), rtol=1e-12, atol=0)


@kinds
@dtypes
def test_zero_in_zero_out_and_a_finite_gradient(kind: str, dtype: torch.dtype) -> None:
    pose = torch.zeros(3, 4, dtype=dtype)
    pose[1] = 1.0  # zeros beside something
    pose.requires_grad_()
    out = squash(pose, kind)
    assert out.dtype == dtype
    assert (out[::2] == 0).all()
    (gradient,) = torch.autograd.grad(out.sum(), pose)
    slope = {"sabour": 0.0, "half": 0.0}.get(kind, 1.0)  # f(n) / n at 0
    assert (gradient[::2] == slope).all()
    assert gradient.isfinite().all()
    assert (gradient[1] != 0).any()


@dtypes
def test_length_has_gradient_zero_at_zero(dtype: torch.dtype) -> None:
    pose = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    n = length(pose)
    assert n.dtype == dtype
    assert n.tolist() == [0, 5]
    (gradient,) = torch.autograd.grad(n.sum(), pose)
    torch.testing.assert_close(gradient.double(), torch.tensor([[0, 0], [0.6, 0.8]]).double(), rtol=4e-3, atol=0)


@kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"])
def test_extremes_are_finite(kind: str, dtype: torch.dtype) -> None:
    """10^4 squared is far above what float16 holds, 10^-4 squared below."""
    for scale in (1e4, 1e-4, 6e-8):
        pose = torch.full((2, 8), scale, dtype=dtype, requires_grad=True)
        out = squash(pose, kind)
        (gradient,) = torch.autograd.grad(out.float().sum() + length(pose).float().sum(), pose)
        assert out.isfinite().all()
        assert gradient.isfinite().all()
        n = pose[0].double().square().sum().sqrt()
        expected = FORMULAS[kind](n.item()) * pose[0].double() / n
        torch.testing.assert_close(out[0].double(), expected.detach(), rtol=1e-2, atol=6e-8)


@kinds
@pytest.mark.parametrize("dim", [-1, 1, (-2, -1)], ids=str)
def test_gradcheck(kind: str, dim: int | tuple[int, ...]) -> None:
    pose = poses(2, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda pose: (squash(pose, kind, dim), length(pose, dim)), (pose,))


@kinds
def test_matrix_pose_is_one_long_vector(kind: str) -> None:
    pose = poses(3, 5, 4, 2)
    assert torch.equal(squash(pose, kind, (-2, -1)), squash(pose.flatten(-2), kind).unflatten(-1, (4, 2)))
    assert torch.equal(length(pose, (-2, -1)), length(pose.flatten(-2)))


def test_axis() -> None:
    pose = poses(3, 5, 2)
    assert torch.equal(squash(pose, dim=1), squash(pose.transpose(1, 2)).transpose(1, 2))
    assert length(pose, 1).shape == (3, 2)
    torch.testing.assert_close(length(pose, 1), (pose**2).sum(1) ** 0.5)


class TestModule:
    @kinds
    def test_function(self, kind: str) -> None:
        pose = poses(3, 4, 2)
        assert torch.equal(Squash(kind, dim=(-2, -1))(pose), squash(pose, kind, (-2, -1)))

    def test_repr(self) -> None:
        assert repr(Squash("half", 1)) == "Squash(kind='half', dim=1)"


def test_unknown_kind() -> None:
    message = r"squash must be one of \['exponential', 'half'.*got 'relu'"
    with pytest.raises(ValueError, match=message):
        squash(poses(3), "relu")
    with pytest.raises(ValueError, match=message):
        Squash("relu")


@kinds
@dtypes
def test_item4_nan_comes_through_in_value_and_gradient(kind: str, dtype: torch.dtype) -> None:
    pose = torch.tensor([[1.0, torch.nan], [0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    for function in (lambda pose: squash(pose, kind), length, lambda pose: length(squash(pose, kind))):
        out = function(pose)
        (gradient,) = torch.autograd.grad(out.square().sum(), pose)
        assert out[0].isnan().any()
        assert out[1:].isfinite().all()
        assert gradient[0].isnan().any()
        assert gradient[1:].isfinite().all()
    assert not torch.autograd.grad(length(pose)[1].sum(), pose)[0][1].any()


@kinds
def test_item4_infinite_numbers_are_not_hidden(kind: str) -> None:
    pose = torch.tensor([[1.0, torch.inf], [3.0, 4.0]])
    assert length(pose).tolist() == [torch.inf, 5.0]
    out = squash(pose, kind)
    assert (out[0].isinf() if kind == "none" else out[0].isnan()).any()
    assert out[1].isfinite().all()
