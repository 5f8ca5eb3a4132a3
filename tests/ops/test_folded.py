"""Where places share their transforms, inner products need no votes: the folded forms
give what stored votes give.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps.ops import EvidentVotes, InnerProduct, Votes
from torchcaps.ops.fused import why_not
from torchcaps.routing import Routed, Routing, create_routing

BACKENDS = ["chunked", "native"]
SIZES = {  # batch, places, types, rows, child dim, parents, parent dim
    "usual": (2, 9, 3, 1, 8, 10, 16),
    "seventeen places": (3, 17, 2, 1, 8, 13, 12),
    "one place, one type, one parent": (1, 1, 1, 1, 8, 1, 16),
    "all share": (2, 12, 1, 1, 20, 7, 24),
    "matrices": (2, 5, 2, 4, 4, 5, 4),
    "long and short": (2, 6, 2, 1, 5, 40, 3),
    "more examples than a chunk": (9, 8, 2, 1, 8, 6, 8),
}
WORTH_THREE_THREADS = (5, 64, 16, 1, 8, 10, 8)


class Problem:
    """Children whose transforms are shared by places, as leaves in float64."""

    def __init__(self, name: str, *given: str) -> None:
        B, N, T, M, P, J, D = SIZES[name]
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.places = N
        self.leaves = {
            "children": normal(B, N * T, M, P) / 2,
            "transforms": normal(T, J, P, D) / 3,
        }
        if "bias" in given:
            self.leaves["bias"] = normal(T, J, M * D) / 3
        if "weights" in given:
            self.leaves["weights"] = normal(B, N * T).sigmoid()
        if "evidence" in given:
            self.leaves["evidence"] = normal(T, J, M * P)
            self.leaves["level"] = normal(T, J)
        for leaf in self.leaves.values():
            leaf.requires_grad_()
        self.coordinates = None
        if "coordinates" in given:
            self.coordinates = normal(N, 2).abs()
        self.mask = None
        if "mask" in given:
            self.mask = torch.rand(B, N * T, generator=generator) < 0.7

    def votes(self, backend: str, dtype: torch.dtype = torch.float64) -> Votes:
        """The votes on a backend, and on its device."""
        on_gpu = backend == "triton" and torch.cuda.is_available()
        device = "cuda" if on_gpu else "cpu"
        leaves = {name: leaf.to(device, dtype) for name, leaf in self.leaves.items()}
        coordinates, mask = self.coordinates, self.mask
        votes = Votes(
            leaves["children"],
            leaves["transforms"],
            None if coordinates is None else coordinates.to(device, dtype),
            backend=backend,
            mask=None if mask is None else mask.to(device),
            places=self.places,
        )
        if "bias" in leaves:
            votes = votes.with_bias(leaves["bias"])
        if "evidence" in leaves:
            votes = EvidentVotes(votes, leaves["evidence"], leaves["level"])
        return votes

    def gradients(self, results: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Of a sum of the results, for all leaves."""
        generator = torch.Generator().manual_seed(1)
        total = torch.zeros((), dtype=torch.float64)
        for result in results:
            weight = torch.randn(result.shape, generator=generator, dtype=torch.float64)
            total = total + (result.double().cpu() * weight).sum()
        leaves = list(self.leaves.values())
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
        return [
            torch.zeros_like(leaf) if grad is None else grad
            for leaf, grad in zip(leaves, grads, strict=True)
        ]


def skip_without(backend: str) -> None:
    if backend == "native" and why_not("native"):
        pytest.skip(why_not("native"))


def assert_alike(
    results: list[Tensor], expected: list[Tensor], tolerance: float
) -> None:
    for result, other in zip(results, expected, strict=True):
        size = other.abs().max().clamp(min=1e-6)
        assert (result.double().cpu() - other).abs().max() <= tolerance * size


GIVEN = [(), ("bias", "weights"), ("evidence",), ("coordinates", "mask", "evidence")]


@pytest.mark.parametrize("given", GIVEN, ids=["-".join(given) for given in GIVEN])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_moments_are_those_of_stored_votes(
    backend: str, size: str, given: tuple[str, ...]
) -> None:
    skip_without(backend)
    problem = Problem(size, *given)
    results = {}
    for name in ("naive", backend):
        votes = problem.votes(name).restricted(leaky="bias" in given)
        B, _, J, H = votes.shape
        alpha = torch.linspace(-1, 1, B * J * H, dtype=torch.float64).view(B, J, H)
        alpha.requires_grad_()
        results[name] = []
        for similarity in (None, InnerProduct(alpha.sin())):
            moments = votes.moments(similarity, problem.leaves.get("weights"))
            results[name] += [moments.mass, moments.sum]
        results[name] += problem.gradients(list(results[name]), torch.float64)
    assert_alike(results[backend], results["naive"], 1e-9)


ROUTINGS: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "dynamic, the last v alone, a bias": {"accumulate": False, "bias": True},
    "dynamic, leaky, one step": {"leaky": True, "steps": 1},
    "dynamic, tanh": {"squash": "tanh"},
    "kmeans": {"sharpness": 2.0},
    "kmeans, learned": {"squash": "learned", "steps": 2},
    "attention": {"steps": 3},
    "euclidean": {"sharpness": 0.5},
}


def routing_of(name: str, problem: Problem) -> Routing:
    _, _, J, H = problem.votes("naive").shape
    torch.manual_seed(0)
    routing = create_routing(name.split(",")[0], **ROUTINGS[name])
    return routing.bind(J, H).double()


def seen(routed: Routed) -> list[Tensor]:
    results = [routed.pose, routed.activation]
    if routed.similarity is not None:
        # alpha, or the means.
        results.append(routed.similarity.tensors[0])
    return results


@pytest.mark.parametrize("given", GIVEN, ids=["-".join(given) for given in GIVEN])
@pytest.mark.parametrize("size", ["usual", "seventeen places", "matrices"])
@pytest.mark.parametrize("name", ROUTINGS)
def test_all_steps_are_those_of_stored_votes(
    name: str, size: str, given: tuple[str, ...]
) -> None:
    skip_without("native")
    problem = Problem(size, *given)
    routing = routing_of(name, problem)
    results = {}
    for backend in ("naive", "native"):
        routed = routing(problem.votes(backend))
        results[backend] = seen(routed)
        results[backend] += problem.gradients(list(results[backend]), torch.float64)
        results[backend].append(routed.assignment)
    assert_alike(results["native"], results["naive"], 1e-8)
    with torch.no_grad():
        alone = seen(routing(problem.votes("native")))
    assert_alike(alone, results["naive"][: len(alone)], 1e-8)


@pytest.mark.parametrize("name", ["dynamic", "euclidean"])
def test_threads_share_the_work(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without("native")
    monkeypatch.setitem(SIZES, "large", WORTH_THREE_THREADS)
    problem = Problem("large")
    routing = routing_of(name, problem)
    results = {}
    before = torch.get_num_threads()
    try:
        for backend, threads in (("naive", before), ("native", 3)):
            torch.set_num_threads(threads)
            results[backend] = seen(routing(problem.votes(backend)))
            results[backend] += problem.gradients(results[backend], torch.float64)
    finally:
        torch.set_num_threads(before)
    assert_alike(results["native"], results["naive"], 1e-8)


@pytest.mark.parametrize("size", SIZES)
def test_float32_is_as_near_as_stored_votes_in_float32(size: str) -> None:
    skip_without("native")
    problem = Problem(size, "bias", "evidence")
    routing = routing_of("dynamic", problem).float()
    exact = seen(routing_of("dynamic", problem)(problem.votes("naive")))
    exact += problem.gradients(list(exact), torch.float64)
    results = seen(routing(problem.votes("native", torch.float32)))
    results += problem.gradients(list(results), torch.float32)
    assert_alike(results, exact, 3e-5)


@pytest.mark.parametrize("name", ["dynamic", "kmeans", "attention", "euclidean"])
def test_large_logits_round_no_worse(name: str) -> None:
    skip_without("native")
    problem = Problem("usual", "evidence")
    with torch.no_grad():
        problem.leaves["evidence"].mul_(100)
    routing = routing_of(name, problem)
    exact = routing(problem.votes("naive")).pose
    routed = routing.float()(problem.votes("native", torch.float32))
    assert_alike([routed.pose], [exact], 1e-4)


def test_a_parent_that_no_child_wants_has_the_mean_of_stored_votes() -> None:
    """In float64, shares below 1e-38 were 1e-38: the mean was that of all votes alike."""
    skip_without("native")
    problem = Problem("usual", "evidence")
    with torch.no_grad():
        problem.leaves["level"][:, 0] = -200
    means = [problem.votes(name).moments().mean for name in ("native", "naive")]
    assert_alike(means[:1], means[1:], 1e-8)


@pytest.mark.parametrize("name", ["dynamic", "kmeans", "euclidean"])
def test_second_derivatives(name: str) -> None:
    skip_without("native")
    given = () if name == "euclidean" else ("evidence", "bias")
    problem = Problem("usual", *given)
    routing = routing_of(name, problem)
    results = {}
    for backend in ("naive", "native"):
        pose = routing(problem.votes(backend)).pose
        first = torch.autograd.grad(
            pose.square().sum(), list(problem.leaves.values()), create_graph=True
        )
        second = problem.gradients(list(first), torch.float64)
        results[backend] = [*first, *second]
    assert_alike(results["native"], results["naive"], 1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_absent_child_is_not_read(backend: str) -> None:
    skip_without(backend)
    problem = Problem("usual", "mask", "evidence")
    routing = routing_of("dynamic", problem)
    expected = routing(problem.votes(backend)).pose
    with torch.no_grad():
        problem.leaves["children"][~problem.mask] = torch.nan
    pose = routing(problem.votes(backend)).pose
    assert pose.equal(expected)
    (grad,) = torch.autograd.grad(pose.sum(), problem.leaves["children"])
    assert grad.isfinite().all()
    assert not grad[~problem.mask].any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_in_a_child_reaches_its_example_alone(backend: str) -> None:
    skip_without(backend)
    problem = Problem("usual")
    with torch.no_grad():
        problem.leaves["children"][0, 3, 0, 2] = torch.nan
    pose = routing_of("dynamic", problem)(problem.votes(backend)).pose
    assert pose[0].isnan().all()
    assert pose[1].isfinite().all()


@pytest.mark.usefixtures("poisoned")
def test_all_memory_is_written() -> None:
    skip_without("native")
    problem = Problem("seventeen places", "evidence", "weights", "coordinates")
    for name in ("dynamic", "kmeans", "attention", "euclidean"):
        results = seen(routing_of(name, problem)(problem.votes("native")))
        results += problem.gradients(list(results), torch.float64)
        assert all(result.isfinite().all() for result in results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_of_each_child_beside_shared_transforms(backend: str) -> None:
    skip_without(backend)
    torch.manual_seed(0)
    numbers = torch.float64
    children, transforms = torch.randn(2, 12, 4), torch.randn(1, 5, 4, 6)
    bias, queries = torch.randn(12, 5, 6), torch.randn(2, 5, 6)
    votes = Votes(children.to(numbers), transforms.to(numbers), backend=backend)
    moments = votes.with_bias(bias.to(numbers)).moments(InnerProduct(queries.double()))
    each = transforms.expand(12, -1, -1, -1)
    dense = Votes(children, each).dense().to(numbers) + bias
    shares = torch.einsum("bijh,bjh->bij", dense, queries.double()).softmax(2)
    torch.testing.assert_close(
        moments.sum, torch.einsum("bij,bijh->bjh", shares, dense), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_coordinates_of_each_child_beside_transforms_of_places(backend: str) -> None:
    skip_without(backend)
    torch.manual_seed(0)
    children, transforms = torch.randn(2, 12, 4), torch.randn(3, 5, 4, 2)
    votes = Votes(children, transforms, torch.randn(12, 2), backend=backend, places=4)
    torch.testing.assert_close(votes.moments().sum, votes.dense().sum(1) / 5)


def test_places_share_the_transforms() -> None:
    children, transforms = torch.randn(2, 12, 4), torch.randn(3, 5, 4, 6)
    each = transforms.repeat(4, 1, 1, 1)
    votes = Votes(children, transforms, places=4)
    assert votes.shape == (2, 12, 5, 6)
    assert votes.dense().equal(Votes(children, each).dense())


def test_coordinates_of_places_are_added_to_the_first_numbers() -> None:
    children, transforms = torch.randn(2, 12, 4), torch.randn(3, 5, 4, 6)
    plain = Votes(children, transforms, places=4).dense()
    coordinates = torch.randn(4, 2)
    votes = Votes(children, transforms, coordinates, places=4).dense()
    added = (votes - plain).view(2, 4, 3, 5, 6)
    expected = coordinates[:, None, None].expand(2, 4, 3, 5, 2)
    torch.testing.assert_close(added[..., :2], expected)
    assert votes.view_as(added)[..., 2:].equal(plain.view_as(added)[..., 2:])


@pytest.mark.parametrize(("places", "kinds"), [(5, 3), (4, 4), (0, 3), (2.0, 6)])
def test_places_and_transforms_fit_the_children(places: Any, kinds: int) -> None:
    with pytest.raises(ValueError, match=r"places|transforms"):
        Votes(torch.randn(2, 12, 4), torch.randn(kinds, 5, 4, 6), places=places)


@pytest.mark.parametrize("backend", BACKENDS)
def test_slots_normalise_without_a_copy(backend: str) -> None:
    skip_without(backend)
    torch.manual_seed(0)
    results = {}
    features = torch.randn(3, 21, 12, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 21) < 0.8
    for name in ("naive", backend):
        torch.manual_seed(1)
        slots = tc.Slots(5, dim=10, features=12).double().eval()
        torch.nn.init.normal_(slots.routing.norm_child.weight)
        torch.nn.init.normal_(slots.routing.norm_child.bias)
        with tc.ops.use_backend(name):
            answer = slots(features, mask)
            total = answer.pose.sin().sum() + answer.activation.square().sum()
            parameters = [features, *slots.parameters()]
            results[name] = [answer.pose, answer.activation]
            # Steps add up the gradients of the features: each time anew, and in a way
            # that can be differentiated again.
            for again in (False, True, False):
                grads = torch.autograd.grad(
                    total,
                    parameters,
                    retain_graph=True,
                    create_graph=again,
                    allow_unused=True,
                )
                results[name] += [grad for grad in grads if grad is not None]
    assert_alike(results[backend], results["naive"], 1e-8)


@pytest.mark.parametrize("name", ["slots", "euclidean"])
def test_compiled_in_one_graph_with_gradients(name: str) -> None:
    skip_without("native")
    torch.manual_seed(0)
    features = torch.randn(2, 60, 8 if name == "euclidean" else 12, requires_grad=True)
    layer: Any = tc.Slots(5, dim=10, features=12).eval()
    if name == "euclidean":
        layer = tc.CapsLinear(None, 5, 8, 8, transforms="shared", routing=name)
    assert layer.votes(features).choose_backend().backend == "native"
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    poses = [module(features).pose for module in (layer, compiled)]
    torch.testing.assert_close(poses[1], poses[0], atol=1e-5, rtol=1e-4)
    grads = [torch.autograd.grad(pose.sin().sum(), features)[0] for pose in poses]
    torch.testing.assert_close(grads[1], grads[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("numbers", [4, 7, 8, 9, 16])
def test_standardised_poses_of_any_length_in_float32(numbers: int) -> None:
    """Kernels of float32 have a form of their own for some lengths."""
    torch.manual_seed(0)
    slots = tc.Slots(5, dim=8, features=numbers).eval()
    features = torch.randn(2, 21, numbers, requires_grad=True)

    def gradient() -> Tensor:
        loss = slots(features).pose.sin().sum()
        return torch.autograd.grad(loss, features)[0]

    folded = gradient()
    with tc.ops.use_backend("naive"):
        expected = gradient()
    torch.testing.assert_close(folded, expected, rtol=1e-4, atol=1e-6)
