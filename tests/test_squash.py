"""Squash functions and length."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchcaps import Squash, length, squash
from torchcaps.squashing import SQUASHES, Dims, LearnedSquash, _length, _squash

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
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16],
    ids=["f64", "f32", "f16", "bf16"],
)
RADII = (1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0, 20.0)


def poses(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(dtype)


def test_all_kinds_are_tested() -> None:
    assert FORMULAS.keys() == SQUASHES.keys()


@kinds
def test_formula(kind: str) -> None:
    direction = poses(5)
    direction /= (direction**2).sum() ** 0.5
    for n in RADII:
        torch.testing.assert_close(
            squash(n * direction, kind),
            FORMULAS[kind](n) * direction,
            rtol=1e-12,
            atol=0,
        )


@kinds
def test_length_grows_and_stays_below_one(kind: str) -> None:
    radii = torch.logspace(-4, 1, 200, dtype=torch.float64)
    lengths = length(
        squash(radii[:, None] * torch.tensor([0.6, -0.8], dtype=torch.float64), kind)
    )
    assert (lengths.diff() > 0).all()
    assert (lengths > 0).all()
    assert (lengths[-1] < 1) == (kind != "none")


@kinds
def test_direction_is_kept(kind: str) -> None:
    pose = poses(7, 5)
    out = squash(pose, kind)
    cosine = (pose * out).sum(-1) / ((pose**2).sum(-1) * (out**2).sum(-1)) ** 0.5
    torch.testing.assert_close(
        cosine, torch.ones(7, dtype=torch.float64), rtol=1e-12, atol=0
    )


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
    torch.testing.assert_close(
        gradient.double(),
        torch.tensor([[0, 0], [0.6, 0.8]]).double(),
        rtol=4e-3,
        atol=0,
    )


@pytest.mark.parametrize("numbers", [1, 2])
def test_the_length_of_numbers_that_are_all_but_zero(numbers: int) -> None:
    pose = (
        torch.tensor([[1e-40], [-1e-45], [1e-20]]).repeat(1, numbers).requires_grad_()
    )
    (gradient,) = torch.autograd.grad(length(pose).sum(), pose)
    assert gradient.abs().max() < 1.01


@kinds
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["f32", "f16", "bf16"]
)
def test_extremes_are_finite(kind: str, dtype: torch.dtype) -> None:
    """10^4 squared is far above what float16 holds, 10^-4 squared below."""
    for scale in (1e4, 1e-4, 6e-8):
        pose = torch.full((2, 8), scale, dtype=dtype, requires_grad=True)
        out = squash(pose, kind)
        (gradient,) = torch.autograd.grad(
            out.float().sum() + length(pose).float().sum(), pose
        )
        assert out.isfinite().all()
        assert gradient.isfinite().all()
        n = pose[0].double().square().sum().sqrt()
        expected = FORMULAS[kind](n.item()) * pose[0].double() / n
        torch.testing.assert_close(
            out[0].double(), expected.detach(), rtol=1e-2, atol=6e-8
        )


@kinds
@pytest.mark.parametrize("dim", [-1, 1, (-2, -1)], ids=str)
def test_gradcheck(kind: str, dim: int | tuple[int, ...]) -> None:
    pose = poses(2, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda pose: (squash(pose, kind, dim), length(pose, dim)), (pose,)
    )


@kinds
def test_matrix_pose_is_one_long_vector(kind: str) -> None:
    pose = poses(3, 5, 4, 2)
    assert torch.equal(
        squash(pose, kind, (-2, -1)),
        squash(pose.flatten(-2), kind).unflatten(-1, (4, 2)),
    )
    assert torch.equal(length(pose, (-2, -1)), length(pose.flatten(-2)))


def test_axis() -> None:
    pose = poses(3, 5, 2)
    assert torch.equal(
        squash(pose, dim=1), squash(pose.transpose(1, 2)).transpose(1, 2)
    )
    assert length(pose, 1).shape == (3, 2)
    torch.testing.assert_close(length(pose, 1), (pose**2).sum(1) ** 0.5)
    for whole in (pose, pose.detach().requires_grad_()):
        torch.testing.assert_close(length(whole, ()), whole.norm())


class TestModule:
    @kinds
    def test_function(self, kind: str) -> None:
        pose = poses(3, 4, 2)
        assert torch.equal(
            Squash(kind, dim=(-2, -1))(pose), squash(pose, kind, (-2, -1))
        )

    def test_repr(self) -> None:
        assert repr(Squash("half", 1)) == "Squash(kind='half', dim=1)"


def test_unknown_kind() -> None:
    message = r"kind must be one of .*'exponential'.*got 'relu'"
    with pytest.raises(ValueError, match=message):
        squash(poses(3), "relu")
    with pytest.raises(ValueError, match=message):
        Squash("relu")


@kinds
@dtypes
def test_nan_comes_through_in_value_and_gradient(kind: str, dtype: torch.dtype) -> None:
    pose = torch.tensor(
        [[1.0, torch.nan], [0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True
    )
    for function in (
        lambda pose: squash(pose, kind),
        length,
        lambda pose: length(squash(pose, kind)),
    ):
        out = function(pose)
        (gradient,) = torch.autograd.grad(out.square().sum(), pose)
        assert out[0].isnan().any()
        assert out[1:].isfinite().all()
        assert gradient[0].isnan().any()
        assert gradient[1:].isfinite().all()
    assert not torch.autograd.grad(length(pose)[1].sum(), pose)[0][1].any()


@kinds
def test_infinite_numbers_are_not_hidden(kind: str) -> None:
    pose = torch.tensor([[1.0, torch.inf], [3.0, 4.0]])
    assert length(pose).tolist() == [torch.inf, 5.0]
    out = squash(pose, kind)
    assert (out[0].isinf() if kind == "none" else out[0].isnan()).any()
    assert out[1].isfinite().all()


class TestBackwardByHand:
    """The gradients that no graph finds, against those of the formulas."""

    CASES = pytest.mark.parametrize(
        ("shape", "dim"),
        [((4, 3, 7), -1), ((4, 7, 3), 1), ((2, 3, 3, 5), (-2, -1)), ((1, 1), -1)],
        ids=str,
    )

    @kinds
    @CASES
    @pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
    @pytest.mark.parametrize(
        ("dtype", "close"),
        [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 1e-2)],
        ids=str,
    )
    def test_is_that_of_the_formula(
        self,
        kind: str,
        shape: tuple[int, ...],
        dim: Dims,
        strided: bool,
        dtype: torch.dtype,
        close: float,
    ) -> None:
        pose = poses(*shape, dtype=dtype)
        pose[0] = 0.0
        pose = (pose.mT.contiguous().mT if strided else pose).requires_grad_()
        wide = pose.to(torch.promote_types(dtype, torch.float32))
        pairs = (
            (squash(pose, kind, dim), _squash(wide, SQUASHES[kind], dim)),
            (length(pose, dim), _length(wide, dim)[0].squeeze(dim)),
        )
        for pair, expected in pairs:
            upstream = poses(*pair.shape, dtype=dtype)
            torch.testing.assert_close(pair, expected.to(dtype), rtol=close, atol=0)
            gradient, wanted = (
                torch.autograd.grad((out * upstream).sum(), pose)[0]
                for out in (pair, expected)
            )
            torch.testing.assert_close(gradient, wanted, rtol=close, atol=close)

    @kinds
    @pytest.mark.parametrize("scale", [1e-18, 1e-4, 1e9, 1e18], ids=str)
    def test_far_from_one(self, kind: str, scale: float) -> None:
        """Right in float32 where the formula's own gradient is not any more: it has
        squares of squares.
        """
        pose = (scale * poses(3, 5)).float().requires_grad_()
        upstream = poses(3, 5).float().flip(1)  # not along the poses
        wide = pose.detach().double().requires_grad_()
        expected = _squash(wide, SQUASHES[kind], -1)
        (wanted,) = torch.autograd.grad(expected, wide, upstream.double())
        (gradient,) = torch.autograd.grad(squash(pose, kind), pose, upstream)
        torch.testing.assert_close(
            squash(pose, kind).double(), expected, rtol=1e-6, atol=0
        )
        largest = wanted.abs().max().item()
        torch.testing.assert_close(
            gradient.double(), wanted, rtol=1e-5, atol=1e-5 * largest
        )

    @kinds
    @pytest.mark.parametrize("scale", [1e-21, 1e25], ids=str)
    def test_squares_that_vanish_or_overflow(self, kind: str, scale: float) -> None:
        pose = (scale * poses(3, 5)).float().requires_grad_()
        upstream = poses(3, 5).float().flip(1)  # not along the poses
        expected = _squash(pose, SQUASHES[kind], -1)
        (wanted,) = torch.autograd.grad(expected, pose, upstream)
        (gradient,) = torch.autograd.grad(squash(pose, kind), pose, upstream)
        torch.testing.assert_close(
            squash(pose, kind), expected, rtol=1e-6, atol=0, equal_nan=True
        )
        torch.testing.assert_close(
            gradient, wanted, rtol=1e-5, atol=1e-5, equal_nan=True
        )

    @kinds
    def test_can_be_differentiated_again(self, kind: str) -> None:
        pose = poses(2, 3).requires_grad_()
        assert torch.autograd.gradgradcheck(
            lambda pose: (squash(pose, kind), length(pose)), (pose,)
        )
        zeros = torch.zeros(1, 3, dtype=torch.float64)
        for function in (
            lambda pose: squash(pose, kind).sum(),
            lambda pose: length(pose).sum(),
        ):
            assert torch.autograd.functional.hessian(function, zeros).isfinite().all()

    @pytest.mark.parametrize("kind", ["sabour", "tanh"])
    @pytest.mark.filterwarnings(
        "ignore:.*jit.script:DeprecationWarning"
    )  # torch's own, in forward mode
    def test_other_ways_to_differentiate(self, kind: str) -> None:
        """Forward mode, ``torch.func``, and the compiler have the formulas."""
        pose = poses(4, 3)
        tangent = poses(4, 3).flip(0)

        def both(pose: Tensor) -> Tensor:
            return squash(pose, kind) * length(pose)[..., None]

        jacobian = torch.autograd.functional.jacobian(both, pose)
        torch.testing.assert_close(torch.func.jacrev(both)(pose), jacobian)
        torch.testing.assert_close(torch.func.jacfwd(both)(pose), jacobian)
        torch.testing.assert_close(torch.func.vmap(both)(pose), both(pose))
        with forward_ad.dual_level():
            actual = forward_ad.unpack_dual(
                both(forward_ad.make_dual(pose, tangent))
            ).tangent
        torch.testing.assert_close(actual, (jacobian * tangent).sum((-2, -1)))
        leaf = pose.clone().requires_grad_()
        compiled = torch.compile(both, backend="eager", fullgraph=True)(leaf)
        ones = torch.ones_like(pose)
        expected = torch.autograd.grad(both(leaf), leaf, ones)
        torch.testing.assert_close(torch.autograd.grad(compiled, leaf, ones), expected)


@pytest.mark.parametrize("kind", sorted(SQUASHES))
def test_the_same_without_gradients(kind: str) -> None:
    pose = poses(3, 5, dtype=torch.float32)
    pose[1] = 0.0
    with torch.inference_mode():
        plain = squash(pose, kind), length(pose)
    for tensor, expected in zip(
        plain, (squash(pose.requires_grad_(), kind), length(pose)), strict=True
    ):
        assert torch.equal(tensor, expected)


@kinds
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_whole_numbers_are_no_less_precise(kind: str, dtype: torch.dtype) -> None:
    pose = torch.tensor([[3, 5], [0, 0]], dtype=dtype)
    for function in (length, lambda pose: squash(pose, kind)):
        actual = function(pose)
        assert actual.dtype == torch.float32
        assert torch.equal(actual, function(pose.float()))


def test_complex_poses_are_refused() -> None:
    for function in (length, squash, lambda pose: squash(pose, "none")):
        with pytest.raises(ValueError, match="pose must be real"):
            function(torch.ones(2, 3, dtype=torch.complex64))
    with pytest.raises(TypeError, match="pose must be a tensor, got list"):
        length([3.0, 4.0])


class TestLearnedConstant:
    @pytest.mark.parametrize("constant", [0.01, 0.5, 1.0, 7.0])
    def test_formula(self, constant: float) -> None:
        pose = poses(5, 4)
        expected = (
            pose
            * length(pose)[:, None]
            / (constant + pose.square().sum(-1, keepdim=True))
        )
        torch.testing.assert_close(
            LearnedSquash(constant).double()(pose), expected, rtol=1e-6, atol=0
        )

    def test_gradients(self) -> None:
        layer = LearnedSquash(0.7).double()
        pose = poses(3, 4).requires_grad_()
        for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
            assert check(lambda pose, theta: layer(pose), (pose, layer.log_constant))

    @pytest.mark.parametrize("scale", [1e-15, 1e4, 1e15], ids=str)
    def test_gradients_of_short_and_long_poses(self, scale: float) -> None:
        """Those of c were rounding noise for long ones."""
        pose = (scale * poses(3, 4)).float()
        upstream = poses(3, 4).flip(0)
        layer = LearnedSquash(0.7)
        constant = layer.constant.detach().double()
        squared = pose.double().square().sum(-1, keepdim=True)
        slope = -pose * squared.sqrt() * constant / (constant + squared).square()
        layer(pose).backward(upstream.float())
        torch.testing.assert_close(
            layer.log_constant.grad.double(),
            (upstream * slope).sum(),
            rtol=1e-5,
            atol=0,
        )

    def test_it_learns_the_constant_of_others(self) -> None:
        layer = LearnedSquash()
        pose = poses(64, 4).float()
        optimizer = torch.optim.Adam(layer.parameters(), 0.05)
        for _ in range(200):
            optimizer.zero_grad()
            (layer(pose) - squash(pose, "half")).square().sum().backward()
            optimizer.step()
        assert layer.constant.item() == pytest.approx(0.5, rel=1e-3)

    @pytest.mark.parametrize("start", [0.0, -1.0, math.inf])
    def test_bounds(self, start: float) -> None:
        with pytest.raises(ValueError, match="start must be"):
            LearnedSquash(start)
