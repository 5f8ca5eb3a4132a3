"""K-Means routing, soft and hard, against textbook loops."""

import numpy as np
import pytest
import textbook
import torch
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import (
    EuclideanKMeansRouting,
    HardKMeansRouting,
    InnerProductKMeansRouting,
    euclidean_kmeans_routing,
    hard_kmeans_routing,
    inner_product_kmeans_routing,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
STEPS = pytest.mark.parametrize("steps", [1, 2, 3, 5])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 100)


@pytest.fixture
def tensors() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    children = torch.randn(3, 9, 4, generator=generator, dtype=torch.float64)
    transforms = torch.randn(9, 5, 4, 6, generator=generator, dtype=torch.float64) / 2
    return children.requires_grad_(), transforms.requires_grad_()


def stored(children: Tensor, transforms: Tensor) -> Tensor:
    return torch.einsum("bip,ijpd->bijd", children, transforms)


def same(routed: object, expected: Tensor, history: list[Tensor], inputs: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(routed.pose, expected, **EXACT)
    torch.testing.assert_close(routed.activation, (expected**2).sum(-1) ** 0.5, **EXACT)
    torch.testing.assert_close(routed.assignment, history[-1], **EXACT)
    upstream = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = torch.autograd.grad(expected, inputs, upstream)
    for actual, gradient in zip(torch.autograd.grad(routed.pose, inputs, upstream), wanted, strict=True):
        torch.testing.assert_close(actual, gradient, **EXACT)


@BACKENDS
@STEPS
@pytest.mark.parametrize("sharpness", [1.0, 2.5])
def test_inner_product_textbook(tensors: tuple[Tensor, Tensor], backend: str, steps: int, sharpness: float) -> None:
    votes = Votes(*tensors, backend=backend)
    routed = inner_product_kmeans_routing(votes, steps=steps, sharpness=sharpness)
    same(routed, *textbook.inner_product_kmeans(stored(*tensors), steps, sharpness), tensors)


@BACKENDS
@STEPS
@pytest.mark.parametrize("sharpness", [1.0, 2.5])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_euclidean_textbook(
    tensors: tuple[Tensor, Tensor], backend: str, steps: int, sharpness: float, weighted: bool
) -> None:
    weights = torch.rand(3, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()
    given = weights if weighted else None
    routed = euclidean_kmeans_routing(Votes(*tensors, backend=backend), given, steps=steps, sharpness=sharpness)
    expected, history = textbook.euclidean_kmeans(stored(*tensors), steps, sharpness, given)
    same(routed, expected, history, (*tensors, weights) if weighted else tensors)


@BACKENDS
@STEPS
@pytest.mark.parametrize("metric", ["euclidean", "inner"])
def test_hard_textbook(tensors: tuple[Tensor, Tensor], backend: str, steps: int, metric: str) -> None:
    routed = hard_kmeans_routing(Votes(*tensors, backend=backend), steps=steps, metric=metric)
    centre, assignment = textbook.hard_kmeans(stored(*tensors).detach().numpy(), steps, inner=metric == "inner")
    expected = torch.from_numpy(centre)
    expected = textbook.squash(expected, 0.5) if metric == "inner" else expected
    torch.testing.assert_close(routed.pose, expected, **EXACT)
    torch.testing.assert_close(routed.activation, (expected**2).sum(-1) ** 0.5, **EXACT)
    np.testing.assert_allclose(routed.assignment.detach(), assignment)
    assert not routed.pose.requires_grad


@pytest.mark.parametrize("metric", ["euclidean", "inner"])
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_hard_is_the_limit_of_soft(metric: str, steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    children = torch.randn(3, 25, 4, generator=generator, dtype=torch.float64)
    votes = Votes(children, torch.randn(25, 3, 4, 6, generator=generator, dtype=torch.float64))
    soft = euclidean_kmeans_routing if metric == "euclidean" else inner_product_kmeans_routing
    hard = hard_kmeans_routing(votes, steps=steps, metric=metric)
    assert set(hard.assignment.flatten().tolist()) == {0.0, 1.0}
    assert (hard.assignment.sum(-1) == 1).all()
    assert (hard.assignment.sum(1) > 0).all(), "a parent lost all children: the limit is another"
    sharp = soft(votes, steps=steps, sharpness=1e6)
    torch.testing.assert_close(sharp.assignment, hard.assignment, **EXACT)
    torch.testing.assert_close(sharp.pose, hard.pose, **EXACT)
    assert not torch.allclose(soft(votes, steps=steps, sharpness=0.1).assignment, hard.assignment, atol=0.1)


@BACKENDS
def test_hard_keeps_the_centre_of_a_parent_that_no_vote_chose(backend: str) -> None:
    # Parent 0 hears two children that agree, parent 1 hears +10 and -10: its mean 0 is nobody's nearest.
    transforms = torch.tensor([[1.0, 10.0], [1.0, -10.0]])[..., None, None]
    children = torch.ones(1, 2, 1)
    for steps in (1, 2, 3):
        routed = hard_kmeans_routing(Votes(children, transforms, backend=backend), steps=steps)
        assert routed.pose.flatten().tolist() == [1, 0]
    assert routed.assignment.tolist() == [[[1, 0], [1, 0]]]
    # Parent 1's votes are far from each other and from their mean (5, 0): it loses both children and keeps that mean.
    children = torch.tensor([[[10.0, 1.0], [0.0, -1.0]]])
    transforms = torch.stack([torch.zeros(2, 2), torch.eye(2)]).expand(2, 2, 2, 2)
    routed = hard_kmeans_routing(Votes(children, transforms, backend=backend), steps=3)
    assert routed.pose.tolist() == [[[0, 0], [5, 0]]]


def test_hard_ignores_children_without_activation(tensors: tuple[Tensor, Tensor]) -> None:
    children, transforms = tensors
    weights = torch.ones(3, 9, dtype=torch.float64)
    weights[:, 6:] = 0
    routed = hard_kmeans_routing(Votes(children, transforms), weights)
    expected = hard_kmeans_routing(Votes(children[:, :6], transforms[:6]))
    torch.testing.assert_close(routed.pose, expected.pose, **EXACT)


def test_hard_refuses_to_train(tensors: tuple[Tensor, Tensor]) -> None:
    routing = HardKMeansRouting().bind(5, 6)
    with pytest.raises(RuntimeError, match=r"cannot train.*\.eval\(\)"):
        routing(Votes(*tensors))
    assert routing.eval()(Votes(*tensors)).pose.shape == (3, 5, 6)


def test_modules_hand_their_settings_on(tensors: tuple[Tensor, Tensor]) -> None:
    votes, activation = Votes(*tensors), torch.rand(3, 9, dtype=torch.float64)
    for module, expected in (
        (
            InnerProductKMeansRouting(4, 2.0, "tanh"),
            inner_product_kmeans_routing(votes, steps=4, sharpness=2.0, squash_kind="tanh"),
        ),
        (EuclideanKMeansRouting(4, 2.0), euclidean_kmeans_routing(votes, activation, steps=4, sharpness=2.0)),
        (HardKMeansRouting(2).eval(), hard_kmeans_routing(votes, activation, steps=2)),
        (
            HardKMeansRouting(2, "inner", "none").eval(),
            hard_kmeans_routing(votes, steps=2, metric="inner", squash_kind="none"),
        ),
    ):
        assert torch.equal(module(votes, activation).pose, expected.pose)


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_a_parent_that_hears_nothing_has_finite_gradients(backend: str) -> None:
    """Its centre is 0 and has no direction."""
    children = torch.randn(2, 5, 3, requires_grad=True)
    transforms = torch.randn(5, 4, 3, 2)
    transforms[:, 0] = 0
    transforms.requires_grad_()
    routed = inner_product_kmeans_routing(Votes(children, transforms, backend=backend))
    assert (routed.pose[:, 0] == 0).all()
    gradients = torch.autograd.grad(routed.pose.sum() + routed.activation.sum(), (children, transforms))
    assert all(gradient.isfinite().all() for gradient in gradients)
