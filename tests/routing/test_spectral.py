"""Spectral routing against the singular value decomposition that Bahadori 2018
takes.
"""

from collections.abc import Callable

import pytest
import torch
from by_the_book import D, H, I, J, KernelEquations, M, P, normal, problem, routed_with
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from torchcaps import CapsConv1d, Capsules
from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, Routed, SpectralRouting

BIAS = normal(J, seed=3)


def route(votes: Votes, a: Tensor, bias: Tensor) -> Routed:
    return routed_with(SpectralRouting(sharpness=3.0), votes, a, threshold=bias)


def book(V: Tensor, a: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    Y = (a[..., None, None] * V).transpose(1, 2)  # [B, J, I, H]
    _, s, right = torch.linalg.svd(Y, full_matrices=False)
    top = right[..., 0, :]
    sign = torch.where((top * Y.sum(2)).sum(-1, keepdim=True) >= 0, 1.0, -1.0)
    activation = (3 * (s[..., 0] ** 2 / (s**2).sum(-1) - bias)).sigmoid()
    return top * sign, activation, torch.full(V.shape[:3], 1 / J, dtype=V.dtype)


class TestEquations(KernelEquations):
    route = staticmethod(route)
    book = staticmethod(book)
    parameters = (BIAS,)


def test_votes_on_one_line_agree_fully() -> None:
    line = normal(H)
    children = (line * torch.linspace(-1, 2, I, dtype=torch.float64)[:, None])[None]
    votes = Votes(children, torch.eye(H).double().expand(I, 2, H, H))
    routed = SpectralRouting(bias=1.0)(votes)
    torch.testing.assert_close(routed.activation, torch.full((1, 2), 0.5).double())
    torch.testing.assert_close(routed.pose, (line / line.norm()).expand(1, 2, H))


def test_nothing_competes_in_a_convolution() -> None:
    """A child that few windows see counts no more there than others."""
    torch.manual_seed(0)
    image, window = (
        CapsConv1d(2, 3, P, H, 3, routing="spectral", competition=competition)
        for competition in ("image", "window")
    )
    window.load_state_dict(image.state_dict())
    children = Capsules(torch.randn(20, 5, 2, P), torch.rand(20, 5, 2))
    torch.testing.assert_close(image(children).pose, window(children).pose)


def test_equal_singular_values_have_a_finite_gradient() -> None:
    children = torch.eye(H).double()[None].requires_grad_()
    votes = Votes(children, torch.eye(H).double().expand(H, 1, H, H))
    routed = SpectralRouting()(votes)
    (gradient,) = torch.autograd.grad(
        routed.pose.sum() + routed.activation.sum(), children
    )
    assert gradient.isfinite().all()


TRANSFORMS = normal(H + 2, 2, P, H, seed=1)


def objective(children: Tensor) -> Tensor:
    """A number; where there are fewer children than numbers of a vote, some singular
    values are 0.
    """
    routed = SpectralRouting()(Votes(children, TRANSFORMS[: children.shape[1]]))
    return routed.pose.pow(3).sum() + routed.activation.sin().sum()


def dual(children: Tensor, direction: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(
            objective(forward_ad.make_dual(children, direction))
        ).tangent


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, of the way that it loads formulas
@pytest.mark.parametrize("I", [H - 2, H + 2])
class TestTransforms:
    def test_first_derivatives(self, I: int) -> None:
        children = normal(2, I, P).requires_grad_()
        direction = normal(2, I, P, seed=5)
        (expected,) = torch.autograd.grad(objective(children), children)
        children = children.detach()
        both = torch.stack([direction, children])
        torch.testing.assert_close(vmap(grad(objective))(both)[1], expected)
        along = (expected * direction).sum()
        torch.testing.assert_close(jvp(objective, (children,), (direction,))[1], along)
        torch.testing.assert_close(dual(children, direction), along)

    @pytest.mark.parametrize(
        "second",
        [hessian, lambda f: jacrev(jacfwd(f)), lambda f: jacfwd(jacfwd(f))],
        ids=["hessian", "rf", "ff"],
    )
    def test_second_derivatives(
        self, I: int, second: Callable[..., Callable[..., Tensor]]
    ) -> None:
        children = normal(1, I, P)
        expected = torch.autograd.functional.hessian(objective, children)
        torch.testing.assert_close(second(objective)(children), expected)

    def test_third_derivatives(self, I: int) -> None:
        children = normal(1, I, P)
        direction = normal(1, I, P, seed=5)

        def along(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda children: jvp(function, (children,), (direction,))[1]

        def again(value: Tensor) -> Tensor:
            (gradient,) = torch.autograd.grad(value, inputs, create_graph=True)
            return (gradient * direction).sum()

        inputs = children.clone().requires_grad_()
        actual = along(along(along(objective)))(children)
        torch.testing.assert_close(actual, again(again(again(objective(inputs)))))


def test_no_votes() -> None:
    children = torch.zeros(2, I, M, P, requires_grad=True)
    routed = SpectralRouting(bias=0.5).bind(
        LayerShape(
            I,
            J,
            (M, P),
            (M, D),
        )
    )(Votes(children, torch.rand(I, J, P, D)))
    assert not routed.pose.any()
    torch.testing.assert_close(routed.activation, torch.full((2, J), -0.5).sigmoid())
    (gradient,) = torch.autograd.grad(
        routed.pose.sum() + routed.activation.sum(), children
    )
    assert gradient.isfinite().all()


@pytest.mark.parametrize("size", [1e-17, 1e-19, 1e-20, 1e-22])
def test_votes_whose_squares_underflow_have_finite_gradients(size: float) -> None:
    children = (size * normal(4, I, P).float()).requires_grad_()
    routed = SpectralRouting()(Votes(children, normal(I, J, P, H, seed=1).float()))
    (gradient,) = torch.autograd.grad(
        routed.pose.sum() + routed.activation.sum(), children
    )
    assert gradient.isfinite().all()
    assert gradient.any() or size < 1e-18


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
def test_second_moments(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 40)
    children, transforms, a = problem()
    votes = Votes(children, transforms, normal(I, H, seed=4), backend=backend)
    stored = votes.dense()
    torch.testing.assert_close(
        votes.gram(a), torch.einsum("bi,bijh,bijk->bjhk", a, stored, stored)
    )
    mask = torch.tensor([True, False, True, True, False]).expand(len(a), I)
    masked = Votes(
        children, transforms, normal(I, H, seed=4), backend=backend, mask=mask
    )
    torch.testing.assert_close(
        masked.gram(),
        torch.einsum("bijh,bijk->bjhk", stored[:, mask[0]], stored[:, mask[0]]),
    )


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-5])
def test_the_rounding_of_a_pose_grows_as_the_gap_shrinks(gap: float) -> None:
    """By no more than the docstring says; the activation does not depend on it."""
    basis = torch.linalg.qr(normal(20, H, H))[0]
    lengths = torch.tensor([1 + gap, 1.0] + [0.3] * (H - 2), dtype=torch.float64)
    children = lengths.sqrt()[:, None] * basis.mT
    transforms = torch.eye(H).double().expand(H, 1, H, H)
    exact = SpectralRouting()(Votes(children, transforms))
    rounded = SpectralRouting()(Votes(children.float(), transforms.float()))
    bound = 8 * torch.finfo(torch.float32).eps * lengths.sum() / gap
    error = (rounded.pose - exact.pose).norm(dim=-1)
    opposite = (rounded.pose + exact.pose).norm(dim=-1)
    assert torch.minimum(error, opposite).max() < bound
    torch.testing.assert_close(
        rounded.activation.double(), exact.activation, atol=1e-6, rtol=0
    )


def test_the_length_of_votes_does_not_matter() -> None:
    children, transforms, a = (field.float() for field in problem())
    routed = route(Votes(children, transforms), a, BIAS.float())
    short = route(Votes(1e-12 * children, transforms), a, BIAS.float())
    torch.testing.assert_close(short.activation, routed.activation)
    torch.testing.assert_close(short.pose, routed.pose)
