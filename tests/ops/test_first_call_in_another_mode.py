"""What votes keep for later calls has gradients whatever the mode of the first call:
results and gradients are those of votes that nobody called before.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps import CapsLinear, Votes
from torchcaps.numerics import as_constants
from torchcaps.ops import EvidentVotes, Gaussian, InnerProduct, Similarity
from torchcaps.routing import DynamicRouting

B, I, J, M, P, D = 3, 6, 4, 2, 3, 2
SHAPES = {
    "children": (B, I, M, P),
    "transforms": (I, J, P, D),
    "coordinates": (I, M * D),
    "weights": (B, I),
    "parents": (B, J, M * D),
    "evidence": (I, J, M * P),
    "prior": (I, J),
    "bias": (I, J, M * D),
}
Leaves = dict[str, Tensor]

KINDS: dict[str, Callable[[Votes, Leaves], Votes]] = {
    "plain": lambda votes, leaves: votes,
    "biased": lambda votes, leaves: votes.with_bias(leaves["bias"]),
    "evident": lambda votes, leaves: EvidentVotes(
        votes, leaves["evidence"], leaves["prior"]
    ),
    "evident among Gaussians": lambda votes, leaves: EvidentVotes(
        votes, leaves["evidence"], leaves["prior"], gaussian=True
    ),
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "constants": as_constants,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def leaves_in(dtype: torch.dtype) -> Leaves:
    """Children in float64, and all else in another dtype that they are cast from."""
    generator = torch.Generator().manual_seed(0)
    leaves = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, shape in SHAPES.items()
    }
    leaves["children"] = leaves["children"].double()
    leaves["weights"] = leaves["weights"].sigmoid()
    return {name: leaf.requires_grad_() for name, leaf in leaves.items()}


def similarities(leaves: Leaves) -> tuple[Similarity | None, ...]:
    parents = leaves["parents"]
    return (
        None,
        InnerProduct(parents),
        Gaussian(parents, parents.exp(), parents[..., 0]),
    )


def call(votes: Votes, leaves: Leaves) -> tuple[Tensor, ...]:
    """Moments and assignments under all similarities, and the gradients of their sum."""
    outputs: list[Tensor] = []
    for similarity in similarities(leaves):
        moments = votes.moments(similarity, leaves["weights"])
        outputs += [moments.mass, moments.sum, votes.assignment(similarity)]
    objective = torch.stack([output.square().sum() for output in outputs]).sum()
    if not torch.is_grad_enabled():
        return tuple(outputs)
    # Stored votes are one graph for all calls.
    gradients = torch.autograd.grad(
        *(objective, list(leaves.values())),
        retain_graph=True,
        materialize_grads=True,
        allow_unused=True,
    )
    return (*outputs, *gradients)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize(("kind", "mode"), [*product(KINDS, MODES)])
def test_a_first_call_in_another_mode_changes_nothing(
    kind: str, backend: str, dtype: torch.dtype, mode: str
) -> None:
    leaves = leaves_in(dtype)

    def votes() -> Votes:
        fields = (leaves[name] for name in ("children", "transforms", "coordinates"))
        return KINDS[kind](Votes(*fields, backend=backend), leaves)

    expected = call(votes(), leaves)
    called_before = votes()
    with MODES[mode]():
        call(called_before, leaves)
    for actual, right in zip(call(called_before, leaves), expected, strict=True):
        torch.testing.assert_close(actual, right)


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("evidence", [False, True])
def test_children_of_inference_mode_are_routed_without_gradients(
    evidence: bool, backend: str
) -> None:
    """As a head that learns does with features of a backbone in inference mode."""
    routing = DynamicRouting(evidence=evidence)
    layer = CapsLinear(5, 3, 3, 4, routing=routing, backend=backend)
    children = torch.randn(2, 5, 3)
    with torch.inference_mode():
        made = children.clone()
    with torch.no_grad():
        torch.testing.assert_close(layer(made), layer(children))
