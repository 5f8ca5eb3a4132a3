"""Dynamic routing against the loop of the paper."""

import pytest
import textbook
import torch
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import DynamicRouting, dynamic_routing
from torchcaps.squashing import squash

EXACT = {"rtol": 1e-12, "atol": 1e-12}
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, Tensor]:
    """Children (B, I, P), transforms (I, J, P, D), bias (J, D); tiles smaller than the votes."""
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 7, 4), (7, 5, 4, 6), (5, 6)
    children, transforms, bias = (torch.randn(s, generator=generator, dtype=torch.float64) / 1.5 for s in shapes)
    return children.requires_grad_(), transforms.requires_grad_(), bias.requires_grad_()


@BACKENDS
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("accumulate", [True, False], ids=["accumulate", "last-logit"])
@pytest.mark.parametrize("orphan", [False, True], ids=["parents", "orphan"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("gradient", ["all", "last"])
def test_textbook(
    tensors: tuple[Tensor, Tensor, Tensor],
    backend: str,
    steps: int,
    accumulate: bool,
    orphan: bool,
    with_bias: bool,
    gradient: str,
) -> None:
    children, transforms, bias = tensors
    routed = dynamic_routing(
        Votes(children, transforms, backend=backend),
        steps=steps,
        bias=bias if with_bias else None,
        accumulate=accumulate,
        orphan=orphan,
        gradient=gradient,
    )
    expected, history = textbook.dynamic(
        torch.einsum("bip,ijpd->bijd", children, transforms),
        steps,
        bias if with_bias else 0.0,
        accumulate,
        orphan,
        last_only=gradient == "last",
    )
    torch.testing.assert_close(routed.pose, expected, **EXACT)
    torch.testing.assert_close(routed.activation, (expected**2).sum(-1) ** 0.5, **EXACT)
    torch.testing.assert_close(routed.assignment, history[-1], **EXACT)

    inputs = tensors if with_bias else tensors[:2]
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = torch.autograd.grad(routed.pose, inputs, upstream)
    for actual, wanted in zip(gradients, torch.autograd.grad(expected, inputs, upstream), strict=True):
        torch.testing.assert_close(actual, wanted, **EXACT)


@BACKENDS
def test_last_gradient_is_another_one(tensors: tuple[Tensor, Tensor, Tensor], backend: str) -> None:
    children, transforms, _ = tensors
    grads = []
    for gradient in ("all", "last"):
        routed = dynamic_routing(Votes(children, transforms, backend=backend), gradient=gradient)
        grads.append(torch.autograd.grad(routed.pose.square().sum(), transforms)[0])
    assert not torch.allclose(*grads, rtol=1e-3)


def test_last_gradient_in_half_precision() -> None:
    """The cast to float32 happens where the graph is not recorded unless someone takes care."""
    children = torch.randn(2, 7, 4, dtype=torch.bfloat16, requires_grad=True)
    transforms = torch.randn(7, 5, 4, 6, dtype=torch.bfloat16, requires_grad=True)
    for backend in ("naive", "chunked"):
        routed = dynamic_routing(Votes(children, transforms, backend=backend), gradient="last")
        gradients = torch.autograd.grad(routed.pose.sum(), (children, transforms))
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


@BACKENDS
def test_weights_scale_the_votes_that_are_summed(tensors: tuple[Tensor, Tensor, Tensor], backend: str) -> None:
    children, transforms, _ = tensors
    weights = torch.rand(3, 7, dtype=torch.float64)
    routed = dynamic_routing(Votes(children, transforms, backend=backend), weights, steps=2)
    V = torch.einsum("bip,ijpd->bijd", children, transforms)
    v = textbook.squash((weights[..., None, None] * V / 5).sum(1), 1.0)
    c = (V * v[:, None]).sum(-1).softmax(-1)
    s = (weights[..., None, None] * c[..., None] * V).sum(1)
    torch.testing.assert_close(routed.pose, textbook.squash(s, 1.0), **EXACT)


def test_squash_kind(tensors: tuple[Tensor, Tensor, Tensor]) -> None:
    children, transforms, _ = tensors
    routed = dynamic_routing(Votes(children, transforms), steps=1, squash_kind="tanh")
    mean = torch.einsum("bip,ijpd->bjd", children, transforms) / 5
    torch.testing.assert_close(routed.pose, squash(mean, "tanh"), **EXACT)


class TestModule:
    def test_bias_starts_at_a_tenth_for_each_number_of_each_parent(self) -> None:
        bound = DynamicRouting(bias=True).bind(3, 4)
        assert torch.equal(bound.offset, torch.full((3, 4), 0.1))

    def test_settings_reach_the_function(self, tensors: tuple[Tensor, Tensor, Tensor]) -> None:
        children, transforms, bias = tensors
        votes = Votes(children, transforms)
        module = DynamicRouting(4, bias=True, accumulate=False, orphan=True, squash="half").bind(5, 6)
        module.offset.data = bias.data
        arguments = {"steps": 4, "bias": bias, "accumulate": False, "orphan": True, "squash_kind": "half"}
        expected = dynamic_routing(votes, **arguments)
        routed = module(votes, torch.rand(3, 7))
        assert torch.equal(routed.pose, expected.pose)
        with torch.no_grad():
            for change in ({"steps": 2}, {"accumulate": True}, {"orphan": False}, {"squash_kind": "tanh"}):
                assert not torch.allclose(dynamic_routing(votes, **(arguments | change)).pose, expected.pose)
