"""Chunked and fused votes are never stored: no tensor comes near their size, forward or
backward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.routing.by_the_book import dynamic_routing, inner_product_kmeans_routing
from torchcaps import CapsConv2d, Capsules, ClassCaps, create_routing
from torchcaps.ops import Similarity, Votes, axes
from torchcaps.routing import (
    EMRouting,
    EuclideanKMeansRouting,
    HardKMeansRouting,
    LayerShape,
    MaxMin,
    Routed,
)

B = 25
I = 31
J = 7
P = 2
D = 32
VOTES = (
    B * I * J * D
)  # 173,600, of which the largest input is 1/12 and the logits are 1/32
BUDGET = 14_000


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any tensor an operation returned has room for (a
    view owns no more).
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def see(self, out: Any) -> Any:
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(
                    self.numbers,
                    tensor.untyped_storage().nbytes() // tensor.element_size(),
                )
        return out

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self.see(func(*args, **(kwargs or {})))

    def inside_operators(self, torch_patch: pytest.MonkeyPatch) -> None:
        """Sees what the Python side of a custom operator makes, too, where a dispatch
        mode is switched off.
        """
        makers = ["empty", "zeros", "empty_like", "zeros_like"]
        for owner, name in [(torch, name) for name in makers] + [
            (torch.Tensor, name)
            for name in ("new_empty", "new_zeros", "new_full", "contiguous")
        ]:
            make = getattr(owner, name)
            torch_patch.setattr(
                owner,
                name,
                lambda *args, make=make, **kwargs: self.see(make(*args, **kwargs)),
            )


def em(votes: Votes, weights: torch.Tensor | None = None) -> Routed:
    return EMRouting().bind(J, D)(votes, weights)


ROUTINGS: dict[str, Callable[..., Routed]] = {
    "dynamic": dynamic_routing,
    "dynamic-leaky": lambda votes, weights: dynamic_routing(votes, weights, leaky=True),
    "kmeans": inner_product_kmeans_routing,
    "euclidean": EuclideanKMeansRouting(),
    "hard": HardKMeansRouting().eval(),
    "em": em,
}


def largest(
    torch_patch: pytest.MonkeyPatch,
    routing: str,
    backend: str,
    transforms: int,
    rows: int,
    coordinates: bool,
) -> int:
    """The largest tensor of forward, a look at the assignment, and backward."""
    children = torch.randn(B, I, rows, P, requires_grad=True)
    weight = torch.randn(transforms, J, P, D // rows, requires_grad=True)
    offset = torch.randn(I, D, requires_grad=True) if coordinates else None
    activation = torch.rand(B, I, requires_grad=True)
    memory = Largest()
    memory.inside_operators(torch_patch)
    with memory:
        routed = ROUTINGS[routing](
            Votes(children, weight, offset, backend=backend), activation
        )
        if routed.pose.requires_grad:
            (
                routed.pose.square().sum()
                + routed.activation.sum()
                + routed.assignment.square().sum()
            ).backward()
            assert children.grad is not None
            assert weight.grad is not None
        else:
            assert routed.assignment.shape == (B, I, J)
    return memory.numbers


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", BUDGET)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("transforms", "rows", "coordinates"),
    [(1, 1, False), (I, 2, True)],
    ids=["shared-vectors", "full-matrices-coordinates"],
)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("backend", ["chunked", "native"])
def test_no_tensor_is_as_large_as_the_votes(
    torch_patch: pytest.MonkeyPatch,
    backend: str,
    routing: str,
    transforms: int,
    rows: int,
    coordinates: bool,
) -> None:
    bound = max(
        transforms * J * P * D // rows, B * I * (J + 1), B * I * rows * P, 2 * BUDGET
    )
    assert bound < VOTES / 5
    assert (
        largest(torch_patch, routing, backend, transforms, rows, coordinates) <= bound
    )


@dataclass(frozen=True)
class City(Similarity):
    centre: torch.Tensor = axes("BJH")
    liking: torch.Tensor = axes("IJ", "BIJ")

    def logits(self, votes: torch.Tensor) -> torch.Tensor:
        return self.liking - (votes - self.centre[:, None]).abs().sum(-1)


def own(votes: Votes, weights: torch.Tensor | None = None) -> Routed:
    """Three steps with a similarity that nobody knows."""
    liking = torch.zeros(B, I, J, requires_grad=True)
    mean = votes.moments(None, weights).mean
    for _ in range(2):
        similarity = City(mean, liking)
        mean = votes.moments(similarity, weights, scatter=True).mean
    return Routed(mean, mean.sum(-1), votes, similarity)


RULES: dict[str, Callable[..., Routed]] = {
    "own": own,
    "children": lambda votes, weights: dynamic_routing(votes.over_children(), weights),
    "max-min": lambda votes, weights: dynamic_routing(votes.under(MaxMin()), weights),
}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("routing", RULES)
@pytest.mark.parametrize(
    ("backend", "transforms", "coordinates"),
    [*product(["chunked"], [1, I], [False, True]), ("naive", I, True)],
)
def test_nor_under_a_similarity_or_rule_of_ones_own(
    torch_patch: pytest.MonkeyPatch,
    backend: str,
    routing: str,
    transforms: int,
    coordinates: bool,
) -> None:
    torch_patch.setitem(ROUTINGS, routing, RULES[routing])
    bound = max(
        transforms * J * P * D,
        B * I * (J + 1),
        B * I * P,
        2 * BUDGET,
    )
    assert bound < VOTES / 5
    most = largest(torch_patch, routing, backend, transforms, 1, coordinates)
    if backend == "naive":
        assert most >= VOTES
    else:
        assert most <= bound


FUSED = (
    "attention",
    "heinsen_2019",
    "prototypes",
    "self_attention",
    "variational_bayes",
)
EVIDENT = ("dynamic", "em", "euclidean", "kmeans")
TILED = (
    "degree_centrality",
    "fast_kernel_density",
    "kernel_density",
    "self_routing",
    "sparse_attention",
)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("children", [None, I], ids=["shared", "full"])
@pytest.mark.parametrize(
    ("routing", "backend"),
    [(name, "native") for name in FUSED]
    + [(name, "chunked") for name in FUSED + TILED],
)
def test_nor_by_a_later_algorithm(
    torch_patch: pytest.MonkeyPatch, routing: str, backend: str, children: int | None
) -> None:
    bound_routing = create_routing(routing).bind(LayerShape(children, J, (P,), (D,)))
    torch_patch.setitem(ROUTINGS, routing, bound_routing)
    bound = max(
        (children or 1) * J * (P + 1) * D, B * I * (J + 1), B * I * (P + 1), 2 * BUDGET
    )
    assert bound < VOTES / 5
    assert (
        largest(torch_patch, routing, backend, children or 1, 1, coordinates=False)
        <= bound
    )


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("children", [None, I], ids=["shared", "full"])
@pytest.mark.parametrize("backend", ["chunked", "native"])
@pytest.mark.parametrize("routing", EVIDENT)
def test_nor_with_evidence(
    torch_patch: pytest.MonkeyPatch, routing: str, backend: str, children: int | None
) -> None:
    """Eight more numbers a vote at most, one more a child; logits of all pairs only
    where they are read.
    """
    evident = create_routing(routing, evidence=True).bind(
        LayerShape(children, J, (P,), (D,))
    )
    torch_patch.setitem(ROUTINGS, routing, evident)
    bound = max(
        (children or 1) * J * (P + 1) * (D + 8),
        B * I * (J + 1),
        B * I * (P + 1),
        2 * BUDGET,
    )
    assert bound < VOTES / 5
    assert (
        largest(torch_patch, routing, backend, children or 1, 1, coordinates=False)
        <= bound
    )


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", ["chunked", "native"])
def test_second_moments_are_added_up_from_tiles(backend: str) -> None:
    children = torch.randn(B, 20 * I, P, requires_grad=True)
    transforms = torch.randn(1, J, P, 8, requires_grad=True)
    with Largest() as memory:
        Votes(children, transforms, backend=backend).gram(
            torch.rand(B, 20 * I)
        ).square().sum().backward()
    assert (
        memory.numbers
        <= max(B * 20 * I * P, B * J * 64, 2 * BUDGET)
        < B * 20 * I * J * 8 / 5
    )


@pytest.mark.parametrize("routing", ["dynamic", "kmeans", "euclidean", "em"])
@pytest.mark.parametrize("backend", ["naive", "native"])
def test_nor_in_a_layer_with_windows(
    torch_patch: pytest.MonkeyPatch, backend: str, routing: str
) -> None:
    """A convolutional layer and class capsules behind it; a child is seen from 9
    windows, and not copied for each.
    """
    conv = CapsConv2d(
        4, 8, (4, 4), (4, 4), 3, routing=create_routing(routing), backend=backend
    )
    classes = ClassCaps(
        8, 10, (4, 4), (4, 4), routing=create_routing(routing), backend=backend
    )
    children = Capsules(
        torch.randn(4, 9, 9, 4, 4, 4, requires_grad=True),
        torch.rand(4, 9, 9, 4, requires_grad=True),
    )
    memory = Largest()
    memory.inside_operators(torch_patch)
    with memory:
        parents = classes(conv(children))
        (parents.pose.square().sum() + parents.activation.sum()).backward()
    votes = 4 * 49 * 36 * 8 * 16
    copies = 4 * 49 * 36 * 16
    if backend == "naive":
        assert memory.numbers >= votes
    else:
        assert memory.numbers < copies < votes / 7


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_measure_sees_stored_votes(
    torch_patch: pytest.MonkeyPatch, routing: str
) -> None:
    assert largest(torch_patch, routing, "naive", I, 1, coordinates=False) >= VOTES


def test_the_measure_sees_inside_an_operator(torch_patch: pytest.MonkeyPatch) -> None:
    votes = Votes(torch.randn(B, 5, P), torch.randn(5, J, P, D), backend="native")
    memory = Largest()
    memory.inside_operators(torch_patch)
    with memory:
        votes.moments(scatter=True)
    assert memory.numbers == B * J * D
