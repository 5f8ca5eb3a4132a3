"""Options with each other, and what is kept between calls, for ``python -m benchmarks
faults``.
"""

import random
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchcaps as tc
from benchmarks.faults import fault
from torchcaps.models import create_model, list_models
from torchcaps.testing import check_routing

MODES: tuple[Callable[[], Any], ...] = (torch.no_grad, torch.inference_mode)
OTHER_CHECKS = [
    check.__name__.removeprefix("_") for check in tc.testing.routings.CHECKS
]


@fault(
    "options of routings, two with each other",
    "results and gradients of stored votes of which nothing is kept, or refused by name",
)
def options_together(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Tries the options of routings in rows in which any two values meet."""
    for name in chance.sample(tc.list_routings(), min(count, len(tc.list_routings()))):
        try:
            check_routing(name, skip=OTHER_CHECKS)
        except AssertionError:
            traceback.print_exc()
            yield False
        else:
            yield True


@fault(
    "votes that were first asked without gradients",
    "the gradients of votes that nobody asked before",
)
def changes_of_mode(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Reads assignments in another mode before the call that is differentiated."""
    for _ in range(count):
        backend = chance.choice(("naive", "chunked"))
        children, transforms, weight = (
            torch.randn(shape, dtype=torch.float64, requires_grad=True)
            for shape in ((2, 5, 3), (5, 4, 3, 2), (5, 4, 3))
        )
        leaves = children, transforms, weight
        gradients = []
        for mode in (None, chance.choice(MODES)):
            plain = tc.Votes(children, transforms, backend=backend)
            prior = torch.zeros(5, 4, dtype=torch.float64)
            votes = tc.ops.EvidentVotes(plain, weight, prior)
            if mode is not None:
                with mode():
                    votes.assignment()
            total = votes.moments().sum.square().sum()
            gradients.append(
                torch.autograd.grad(
                    total, leaves, materialize_grads=True, allow_unused=True
                )
            )
        yield all(
            torch.allclose(expected, actual)
            for expected, actual in zip(*gradients, strict=True)
        )


@fault("hooks on every module with parameters", "each runs")
def hooks(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Hooks all modules of a network that have parameters of their own."""
    for name in chance.sample(list_models(), min(count, len(list_models()))):
        network = create_model(name).eval()
        owners = {
            place: module
            for place, module in network.named_modules()
            if list(module.parameters(recurse=False))
            and not isinstance(module, nn.ParameterList)
        }
        ran: set[str] = set()
        for place, module in owners.items():
            module.register_forward_hook(
                lambda *_, place=place, ran=ran: ran.add(place)
            )
        with torch.no_grad():
            network(network.examples(2))
        yield ran == owners.keys()
