"""K-Means routing, soft and hard, against the loops of its sources."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from by_the_book import (
    D,
    H,
    I,
    J,
    M,
    P,
    check_equations,
    inner_product_kmeans_routing,
    normal,
    problem,
)
from numpy.typing import NDArray
from torch import Tensor

from torchcaps import CapsConv2d
from torchcaps.ops import Votes
from torchcaps.routing import (
    EuclideanKMeansRouting,
    HardKMeansRouting,
    InnerProductKMeansRouting,
    Routed,
    create_routing,
)

EXACT = {"rtol": 1e-12, "atol": 1e-12}
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
STEPS = pytest.mark.parametrize("steps", [1, 2, 3, 5])
METRICS = pytest.mark.parametrize("metric", ["euclidean", "inner"])


def squash(s: Tensor) -> Tensor:
    n = s.norm(dim=-1, keepdim=True)
    return n**2 / (0.5 + n**2) * s / n


def inner_book(
    V: Tensor, a: Tensor, steps: int, sharpness: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Su 2018 (kexue.fm 5112)."""
    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    s = V
    c = V
    for _ in range(steps):
        c = b.softmax(2)
        s = (c[..., None] * V).sum(1)
        b = sharpness * (V * (s / s.norm(dim=-1, keepdim=True))[:, None]).sum(-1)
    return squash(s), squash(s).norm(dim=-1), c


def euclidean_book(
    V: Tensor, a: Tensor, steps: int, sharpness: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Soft K-Means."""
    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    mean = V
    c = V
    for _ in range(steps):
        c = b.softmax(2)
        r = (c * a[..., None])[..., None]
        mean = (r * V).sum(1) / r.sum(1)
        b = -sharpness * ((V - mean[:, None]) ** 2).sum(-1)
    return mean, mean.norm(dim=-1), c


def euclidean(votes: Votes, a: Tensor | None = None, **settings: object) -> Routed:
    return EuclideanKMeansRouting(**settings)(votes, a)


def hard_kmeans(votes: Votes, a: Tensor | None = None, **settings: object) -> Routed:
    return HardKMeansRouting(**settings).eval()(votes, a)


def inner(votes: Votes, a: Tensor, **settings: float) -> Routed:
    return inner_product_kmeans_routing(votes, **settings)


def unweighted(votes: Votes, a: Tensor, **settings: float) -> Routed:
    return euclidean(votes, **settings)


def unweighted_book(
    V: Tensor, a: Tensor, **settings: float
) -> tuple[Tensor, Tensor, Tensor]:
    return euclidean_book(V, torch.ones_like(a), **settings)


@BACKENDS
@STEPS
@pytest.mark.parametrize("sharpness", [1.0, 2.5])
@pytest.mark.parametrize(
    ("route", "book"),
    [
        (inner, inner_book),
        (euclidean, euclidean_book),
        (unweighted, unweighted_book),
    ],
)
def test_equations(
    route: Callable, book: Callable, backend: str, steps: int, sharpness: float
) -> None:
    settings = {"steps": steps, "sharpness": sharpness}
    check_equations(partial(route, **settings), partial(book, **settings), (), backend)


def lloyd(
    V: NDArray[np.float64], steps: int, inner: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lloyd's algorithm from the uniform start: centres, not squashed, and the
    assignment that made them.
    """
    B, I, J, _ = V.shape
    centre = V.sum(1) / J if inner else V.mean(1)
    r = np.full((B, I, J), 1 / J)
    for _ in range(steps - 1):
        if inner:
            scores = (
                V * (centre / np.linalg.norm(centre, axis=-1, keepdims=True))[:, None]
            ).sum(-1)
        else:
            scores = -np.linalg.norm(V - centre[:, None], axis=-1)
        r = np.eye(J)[scores.argmax(-1)]
        for b, j in np.argwhere(r.any(1)):
            members = V[b, r[b, :, j] == 1, j]
            centre[b, j] = members.sum(0) if inner else members.mean(0)
    return centre, r


@BACKENDS
@STEPS
@METRICS
def test_hard_is_lloyds_algorithm(backend: str, steps: int, metric: str) -> None:
    votes = Votes(
        *(tensor.requires_grad_() for tensor in problem()[:2]), backend=backend
    )
    routed = hard_kmeans(votes, steps=steps, metric=metric)
    centre, assignment = map(
        torch.from_numpy,
        lloyd(votes.dense().detach().numpy(), steps, metric == "inner"),
    )
    expected = squash(centre) if metric == "inner" else centre
    torch.testing.assert_close(routed[:2], (expected, expected.norm(dim=-1)), **EXACT)
    torch.testing.assert_close(routed.assignment, assignment, **EXACT)
    assert not routed.pose.requires_grad


@METRICS
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_hard_is_the_limit_of_soft(metric: str, steps: int) -> None:
    generator = torch.Generator().manual_seed(0)
    children = torch.randn(3, 25, 4, generator=generator, dtype=torch.float64)
    votes = Votes(
        children, torch.randn(25, 3, 4, 6, generator=generator, dtype=torch.float64)
    )
    soft = euclidean if metric == "euclidean" else inner_product_kmeans_routing
    hard = hard_kmeans(votes, steps=steps, metric=metric)
    assert set(hard.assignment.flatten().tolist()) == {0.0, 1.0}
    assert (hard.assignment.sum(-1) == 1).all()
    assert (hard.assignment.sum(1) > 0).all(), (
        "a parent lost all children: the limit is another"
    )
    sharp = soft(votes, steps=steps, sharpness=1e6)
    torch.testing.assert_close(
        (sharp.assignment, sharp.pose), (hard.assignment, hard.pose), **EXACT
    )
    assert not torch.allclose(
        soft(votes, steps=steps, sharpness=0.1).assignment, hard.assignment, atol=0.1
    )


@BACKENDS
def test_hard_keeps_the_centre_of_a_parent_that_no_vote_chose(backend: str) -> None:
    # Parent 0 hears two children that agree, parent 1 hears +10 and -10: its mean 0 is
    # nobody's nearest.
    transforms = torch.tensor([[1.0, 10.0], [1.0, -10.0]])[..., None, None]
    children = torch.ones(1, 2, 1)
    for steps in (1, 2, 3):
        routed = hard_kmeans(Votes(children, transforms, backend=backend), steps=steps)
        assert routed.pose.flatten().tolist() == [1, 0]
    assert routed.assignment.tolist() == [[[1, 0], [1, 0]]]
    # Parent 1's votes are far from each other and from their mean (5, 0): it loses both
    # children and keeps that mean.
    children = torch.tensor([[[10.0, 1.0], [0.0, -1.0]]])
    transforms = torch.stack([torch.zeros(2, 2), torch.eye(2)]).expand(2, 2, 2, 2)
    routed = hard_kmeans(Votes(children, transforms, backend=backend), steps=3)
    assert routed.pose.tolist() == [[[0, 0], [5, 0]]]


def test_hard_ignores_children_without_activation() -> None:
    children, transforms, _ = problem()
    routed = hard_kmeans(
        Votes(children, transforms),
        torch.tensor([1.0, 1, 1, 0, 0]).double().expand(3, I),
    )
    expected = hard_kmeans(Votes(children[:, :3], transforms[:3]))
    torch.testing.assert_close(routed.pose, expected.pose, **EXACT)


def test_hard_refuses_to_train() -> None:
    routing = HardKMeansRouting().bind(J, H)
    votes = Votes(*(tensor.requires_grad_() for tensor in problem()[:2]))
    with pytest.raises(RuntimeError, match=r"cannot train.*\.eval\(\)"):
        routing(votes)
    assert routing.eval()(votes).pose.shape == (3, J, H)


def test_the_module_hands_its_settings_on() -> None:
    children, transforms, activation = problem()
    votes = Votes(children, transforms)
    routed = InnerProductKMeansRouting(4, 2.0, "tanh")(votes, activation)
    expected = inner(votes, activation, steps=4, sharpness=2.0, squash="tanh")
    assert torch.equal(routed.pose, expected.pose)


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_a_parent_that_hears_nothing_has_finite_gradients(backend: str) -> None:
    """Its centre is 0 and has no direction."""
    children = normal(2, I, M, P).requires_grad_()
    transforms = normal(I, J, P, D)
    transforms[:, 0] = 0
    transforms.requires_grad_()
    routed = inner_product_kmeans_routing(Votes(children, transforms, backend=backend))
    assert (routed.pose[:, 0] == 0).all()
    gradients = torch.autograd.grad(
        routed.pose.sum() + routed.activation.sum(), (children, transforms)
    )
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.fixture(params=["euclidean", "inner"])
def soft(request: pytest.FixtureRequest) -> Callable:
    """Soft K-Means in that metric."""
    return euclidean if request.param == "euclidean" else inner_product_kmeans_routing


class TestStraightThrough:
    """Hard in the forward pass, soft in the backward pass."""

    @BACKENDS
    @STEPS
    @METRICS
    def test_poses_and_assignments_are_those_of_hard_kmeans(
        self, backend: str, steps: int, metric: str
    ) -> None:
        votes = Votes(
            *(tensor.requires_grad_() for tensor in problem()[:2]), backend=backend
        )
        route = euclidean if metric == "euclidean" else inner_product_kmeans_routing
        routed = route(votes, steps=steps, sharpness=0.3, assignment="straight_through")
        hard = hard_kmeans(votes, steps=steps, metric=metric)
        torch.testing.assert_close(
            (*routed[:2], routed.assignment),
            (*hard[:2], hard.assignment),
            rtol=1e-12,
            atol=1e-12,
        )
        assert routed.pose.requires_grad

    @BACKENDS
    def test_gradients_of_a_step_are_those_of_the_soft_step_from_the_same_centres(
        self, backend: str
    ) -> None:
        """With the sums S of two steps: dS / dV of the hard ones is dS / dV of the soft
        ones, at hard first centres.
        """
        results = []
        for assignment in ("straight_through", "soft"):
            children, transforms = leaves = [
                tensor.requires_grad_() for tensor in problem()[:2]
            ]
            votes = Votes(children, transforms, backend=backend)
            # After the first step, which is soft in both, the centres are the same.
            routed = inner_product_kmeans_routing(
                votes, steps=2, squash="none", assignment=assignment
            )
            results.append(
                torch.autograd.grad(
                    routed.pose, leaves, normal(*routed.pose.shape, seed=8)
                )
            )
        torch.testing.assert_close(*results, **EXACT)

    @STEPS
    def test_every_step_is_hard_plus_soft_minus_soft_without_gradient(
        self, soft: Callable, steps: int
    ) -> None:
        """Written out for stored votes, with an argmax and a softmax, and
        differentiated by autograd.
        """
        is_euclidean = soft is euclidean

        def book(V: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            r = torch.full(V.shape[:3], 1 / J, dtype=V.dtype)
            centre = V.mean(1) if is_euclidean else V.sum(1) / J
            for _ in range(steps - 1):
                if is_euclidean:
                    logits = -0.3 * (V - centre[:, None]).square().sum(-1)
                else:
                    logits = 0.3 * (
                        V * (centre / centre.norm(dim=-1, keepdim=True))[:, None]
                    ).sum(-1)
                r = torch.nn.functional.one_hot(logits.argmax(-1), J).to(V.dtype)
                hard, new = (
                    torch.einsum("bij,bijh->bjh", assignment, V)
                    for assignment in (r, logits.softmax(-1))
                )
                lost = r.sum(1)[..., None] == 0
                if is_euclidean:
                    hard = hard / r.sum(1)[..., None]
                    new = new / logits.softmax(-1).sum(1)[..., None]
                centre = torch.where(lost, centre, hard).detach() + new - new.detach()
            pose = centre if is_euclidean else squash(centre)
            return pose, pose.norm(dim=-1), r

        def route(votes: Votes, a: Tensor) -> Routed:
            return soft(
                votes, steps=steps, sharpness=0.3, assignment="straight_through"
            )

        check_equations(route, book, (), "native")

    def test_without_gradients_there_is_one_pass_a_step(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls, moments = [], Votes.moments
        monkeypatch.setattr(
            Votes,
            "moments",
            lambda self, *given, **named: calls.append(1) or moments(self, *given),
        )
        votes = Votes(*problem()[:2])
        for grad, passes in ((True, 5), (False, 3)):
            calls.clear()
            with torch.set_grad_enabled(grad):
                inner_product_kmeans_routing(
                    votes, steps=3, assignment="straight_through"
                )
            assert len(calls) == passes

    def test_parents_compete_within_one_window(self) -> None:
        routing = InnerProductKMeansRouting(assignment="straight_through")
        CapsConv2d(2, 3, 4, 4, 3, routing=routing, competition="window")
        with pytest.raises(ValueError, match="competition must be 'window'"):
            CapsConv2d(2, 3, 4, 4, 3, routing=routing, competition="image")

    def test_a_parent_without_votes_keeps_a_centre_that_its_pose_does_not_tell(
        self,
    ) -> None:
        routing = InnerProductKMeansRouting(assignment="straight_through").bind(J, H)
        votes = Votes(*problem()[:2])
        with pytest.raises(ValueError, match="initial must be None"):
            routing(votes, initial=routing(votes))


class TestPlainDistance:
    """exp(-distance) and not exp(-distance²)."""

    @pytest.mark.parametrize("backend", ["naive", "chunked"])
    @STEPS
    def test_equations(self, backend: str, steps: int) -> None:
        def book(V: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            logits = torch.zeros(V.shape[:3], dtype=V.dtype)
            mean = V
            c = V
            for _ in range(steps):
                c = logits.softmax(2)
                r = (c * a[..., None])[..., None]
                mean = (r * V).sum(1) / r.sum(1)
                logits = -1.5 * (V - mean[:, None]).norm(dim=-1)
            return mean, mean.norm(dim=-1), c

        route = partial(euclidean, steps=steps, sharpness=1.5, distance="plain")
        check_equations(route, book, (), backend)

    @pytest.mark.parametrize(
        ("distance", "factor"), [("plain", 1 / 4), ("squared", 1 / 16)]
    )
    def test_votes_four_times_as_large_need_another_sharpness(
        self, distance: str, factor: float
    ) -> None:
        children, transforms, _ = problem()
        route = partial(euclidean, distance=distance)
        small, large = (Votes(children, size * transforms) for size in (1, 4))
        before = route(small, sharpness=0.8)
        after = route(large, sharpness=0.8 * factor)
        torch.testing.assert_close(after.assignment, before.assignment, **EXACT)
        torch.testing.assert_close(after.pose, 4 * before.pose, **EXACT)

    def test_the_nearest_parent_is_the_same(self) -> None:
        votes = Votes(*problem()[:2])
        plain, squared = (
            euclidean(votes, assignment="straight_through", distance=kind)
            for kind in ("plain", "squared")
        )
        torch.testing.assert_close(plain[:2], squared[:2], **EXACT)

    def test_gradients_where_a_vote_is_the_centre(self) -> None:
        children = torch.ones(1, 3, 2, dtype=torch.float64, requires_grad=True)
        votes = Votes(children, torch.eye(2, dtype=torch.float64).expand(1, 4, 2, 2))
        euclidean(votes, distance="plain").pose.sum().backward()
        torch.testing.assert_close(children.grad, torch.full_like(children, 4 / 3))


@pytest.mark.parametrize("name", ["kmeans", "euclidean"])
def test_the_gradient_of_the_last_step_is_that_of_one_step_from_its_start(
    name: str,
) -> None:
    """It takes the centres before as constants, and changes no result."""
    torch.manual_seed(0)
    children = torch.randn(2, 9, 4, dtype=torch.float64, requires_grad=True)
    votes = Votes(children, torch.randn(9, 3, 4, 5, dtype=torch.float64))
    options = {"squash": "none"} if name == "kmeans" else {}
    with torch.no_grad():
        before = create_routing(name, steps=3, **options)(votes)
    expected = create_routing(name, steps=1, **options)(votes, initial=before)
    routed = create_routing(name, steps=4, gradient="last", **options)(votes)
    every = create_routing(name, steps=4, **options)(votes)
    torch.testing.assert_close(routed.pose, every.pose)
    gradient, single, through_all = (
        torch.autograd.grad(tensor.pose.square().sum(), children, retain_graph=True)[0]
        for tensor in (routed, expected, every)
    )
    torch.testing.assert_close(gradient, single)
    assert not torch.allclose(gradient, through_all)


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
def test_a_parent_that_no_child_wants_keeps_its_direction(
    shared: bool, dtype: torch.dtype, backend: str
) -> None:
    """The centre of one child's votes points where its vote does, however short it is:
    the logits are lengths of votes.
    """
    children = torch.tensor([[[10.0, 0.0]] * 2], dtype=dtype).requires_grad_()
    transforms = torch.tensor([[[4.0, 0], [0, 1]], [[0, 0.5], [1, 0]]], dtype=dtype)
    transforms = transforms.expand(1 if shared else 2, 2, 2, 2)
    for steps in (2, 3, 4):
        votes = Votes(children, transforms, backend=backend)
        routed = InnerProductKMeansRouting(steps, squash="none")(votes)
        ratio = routed.activation[0].log().diff()
        expected = torch.tensor([5 / 40], dtype=dtype).log() - 35
        torch.testing.assert_close(ratio, expected, rtol=1e-4, atol=1e-4)
        (gradient,) = torch.autograd.grad(routed.pose.sum(), children)
        assert gradient.abs().max() < 10
