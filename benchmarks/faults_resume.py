"""Faults of what no ``state_dict`` holds: all else that a checkpoint has to hold, and
that a network has to keep.
"""

import copy
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.faults import fault, finish, same, start
from torchcaps.models import create_model, list_models

WATCHING = {"name": "ReduceLROnPlateau", "patience": 0, "threshold": 0.5}
VARIANTS: dict[str, dict[str, Any]] = {
    "a rate that watches": {"scheduler": WATCHING},
    "and an average": {
        "scheduler": WATCHING,
        "trainer": {"average": 0.9},
        "keep": "best",
    },
    "a cycle": {
        "scheduler": {"name": "OneCycleLR", "max_lr": 0.01},
        "trainer": {"extra": {"accumulate_grad_batches": 2}},
    },
    "an early end": {"patience": 1, "trainer": {"extra": {"min_epochs": 4}}},
    "steps": {
        "scheduler": WATCHING,
        "trainer": {"average": 0.9, "extra": {"max_steps": 47}},
    },
}
"""Options of trainings whose state is more than weights and an optimizer."""

MOST_KILLS = 3


@fault(
    "SIGKILL again and again, with rates, averages and ends that act",
    "resumed to the same bits",
)
def kills_of_all(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Each kind of training is killed up to three times, at random moments, and
    resumed: the same bits as in one go.
    """
    for name, variant in VARIANTS.items():
        unbroken = folder / name / "unbroken"
        began = time.perf_counter()
        unbroken.parent.mkdir()
        finish(unbroken, **variant)
        seconds = time.perf_counter() - began
        for number in range(count):
            run = folder / name / f"killed-{number}"
            for _ in range(chance.randint(1, MOST_KILLS)):
                process = start(run, **variant)
                process.join(chance.uniform(0, seconds))
                process.kill()
                process.join()
            yield finish(run, **variant) == 0 and same(run, unbroken)


@fault(
    "another number of classes after random work on a network",
    "all that does not depend on it stays",
)
def resets(folder: Path, count: int, chance: random.Random) -> Iterator[bool]:
    """Networks with layers frozen, in evaluation mode and hooked at random get other
    numbers of classes, and back.
    """
    for name in chance.sample(list_models(), min(count, len(list_models()))):
        network = create_model(name)
        for module in network.modules():
            module.training = chance.random() < 0.5
            if chance.random() < 0.3:
                module.register_forward_hook(print)
        for weight in network.parameters():
            weight.requires_grad_(chance.random() < 0.5)
        was = network.classes
        yield all(_keeps(network, classes) for classes in (chance.randint(3, 20), was))


def _keeps(network: Any, classes: int) -> bool:
    """Gives a network that many classes; whether it and its tensors kept all that they
    could keep.
    """
    modules = [
        (module, module.training, len(module._forward_hooks))
        for module in network.modules()
    ]
    weights = {
        name: (weight, copy.deepcopy(weight))
        for name, weight in network.named_parameters()
    }
    network.reset_classifier(classes)
    after = [
        (module, module.training, len(module._forward_hooks))
        for module in network.modules()
    ]
    weights_kept = all(
        _is(weight, *weights[name]) for name, weight in network.named_parameters()
    )
    right_classes = network.config()["classes"] == classes
    return after == modules and weights_kept and right_classes


def _is(now: nn.Parameter, weight: nn.Parameter, copied: nn.Parameter) -> bool:
    if now.shape != copied.shape:
        return now is not weight
    return (
        now is weight
        and now.requires_grad == copied.requires_grad
        and torch.equal(now, copied)
    )
