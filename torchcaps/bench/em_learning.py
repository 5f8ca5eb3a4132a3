"""``torchcaps bench em_learning``: which settings let matrix capsules learn.

Trains networks of the size of the quick preset of ``smallnorb-em`` for a few hundred steps on smallNORB, with one toy
of each class held out, and prints a table: training accuracy over the last steps, accuracy on the held-out toys, the
median and the largest norm of the gradient, the mean mass of the parents in the first routed layer, the entropies of
the assignments in the three routed layers (1 is uniform), the standard deviations of the poses before training, and CPU
seconds. Each seed holds out another toy.
"""

import argparse
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor

from torchcaps import SpreadLoss, create_model
from torchcaps.bench.options import positive
from torchcaps.bench.suite import Show
from torchcaps.data import ImageSet, Preprocess, SmallNORB
from torchcaps.layers import preserve_deviation
from torchcaps.report import examine, layer_entropy, observe_layers
from torchcaps.routing import EMRouting
from torchcaps.training import train_loader

NETWORK = {"channels": 32, "types": (4, 8, 8)}
PREPROCESS = Preprocess(crop=24, brightness=0.247, contrast=(0.2, 1.8), standardise=True)
LEARNING_RATE, BATCH = 2e-3, 32


@dataclass(frozen=True)
class Variant:
    """One row of the table.

    Args:
        name: what differs.
        routing: arguments of EM routing.
        network: arguments of the network.
        preserve: whether the initial scale of the transforms preserves the standard deviation of the poses.
    """

    name: str
    routing: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    preserve: bool = False


MEAN, ELEMENT, TYPE = {"sharpness": "mean"}, {"pose_norm": "element"}, {"pose_norm": "type"}
VARIANTS = (
    Variant("published, 1 step", {"steps": 1}),
    Variant("published, 3 steps"),
    Variant("3 steps, gradient through the last", {"gradient": "last"}),
    Variant("3 steps, floor 0.2", {"variance_floor": 0.2}),
    Variant("3 steps, sharpness 1/H", MEAN),
    Variant("3 steps, poses normalised by element", {}, ELEMENT),
    *(Variant(f"{s} steps, sharpness 1/H, by element", {**MEAN, "steps": s}, ELEMENT) for s in (1, 2, 3, 5)),
    Variant("3 steps, sharpness 1/H, by type", MEAN, TYPE),
    Variant("3 steps, sharpness 1/4, by element", {"sharpness": 0.25}, ELEMENT),
    Variant("3 steps, sharpness 1/16 then 1/4, by element", {"sharpness": [1 / 16, 1 / 4]}, ELEMENT),
    Variant("3 steps, sharpness learned from 1/H, by element", {**MEAN, "learn_sharpness": "layer"}, ELEMENT),
    Variant("3 steps, types do not compete", {}, {"competition": "position"}),
    Variant("3 steps, sharpness 1/H, by element, types do not compete", MEAN, {**ELEMENT, "competition": "position"}),
    Variant("3 steps, sharpness 1/H, by element, relative floor 0.01", {**MEAN, "relative_floor": 0.01}, ELEMENT),
    Variant("3 steps, sharpness 1/H, by element, scaled coordinates", MEAN, {**ELEMENT, "coordinates": "scaled"}),
    Variant("3 steps, sharpness 1/H, by element, residual", MEAN, {**ELEMENT, "residual": True}),
    Variant("3 steps, sharpness 1/H, transforms that preserve the deviation", MEAN, preserve=True),
)
HEAD = (
    "| | training accuracy | held-out toys | gradient, median | largest | mass | entropies | deviations at the start "
    "| seconds |"
)


@dataclass(frozen=True)
class Row:
    """The results of one training."""

    training: float
    held_out: float
    gradient: float
    largest: float
    mass: float
    entropies: tuple[float, ...]
    deviations: tuple[float, ...]
    seconds: float


def batches(images: ImageSet, preprocess: Preprocess, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Prepared images and labels, epoch after epoch without end."""
    loader = itertools.chain.from_iterable(itertools.repeat(train_loader(images, size, seed)))
    for step, batch in enumerate(loader):
        yield preprocess.train(batch.images, batch.indices, step, seed).images, batch.labels


def run(variant: Variant, count: int, seed: int) -> Row:
    """Trains a variant for ``count`` steps."""
    data = SmallNORB(size=32, validation=0.2, held_out="toys", seed=seed)
    torch.manual_seed(seed)
    network = create_model(
        "matrixcapsnet",
        image_shape=PREPROCESS.image_shape(data.image_shape),
        routing=EMRouting.preset("standardised", **{"schedule": "constant", **variant.routing}),
        **{**NETWORK, "pose_norm": None, **variant.network},
    )
    stream = batches(data.train, PREPROCESS, BATCH, seed)
    first, _ = next(stream)
    if variant.preserve:
        preserve_deviation(network, first)
    deviations = tuple(float(layer.capsules.pose.std()) for layer in _observed(network, first).values())
    start = time.process_time()
    right, norms = _trained(network, itertools.islice(stream, count))
    seconds = time.process_time() - start
    held_out = 1 - examine(network, data.validation.prepared(PREPROCESS)).error
    last = right[-max(1, count // 5) :]
    with torch.no_grad():
        routed = [layer for layer in _observed(network.eval(), first).values() if layer.routed]
        mass = float(routed[0].routed[0].assignment.sum(1).mean())
        entropies = tuple(float(layer_entropy(layer).mean()) for layer in routed)
    return Row(100 * mean(last), 100 * held_out, median(norms), max(norms), mass, entropies, deviations, seconds)


@torch.no_grad()
def _observed(network: Any, images: Tensor) -> Any:
    return observe_layers(network, images)


def _trained(network: Any, stream: Iterator[tuple[Tensor, Tensor]]) -> tuple[list[float], list[float]]:
    """Trains; returns the accuracy and the norm of the gradient of each step."""
    optimizer, loss = torch.optim.Adam(network.parameters(), LEARNING_RATE), SpreadLoss(schedule="constant", end=0.5)
    right, norms = [], []
    for images, labels in stream:
        activation = network(images).activation
        optimizer.zero_grad()
        loss(activation, labels).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(network.parameters(), float("inf"))))
        optimizer.step()
        right.append((activation.argmax(-1) == labels).float().mean().item())
    return right, norms


def line(variant: Variant, rows: list[Row]) -> str:
    """A row of the table: means over the seeds, with the ranges of the accuracies."""

    def spread(values: list[float]) -> str:
        return f"{mean(values):.0f} ({min(values):.0f}-{max(values):.0f})"

    def each_layer(layers: list[tuple[float, ...]], digits: str) -> str:
        return " ".join(f"{mean(values):{digits}}" for values in zip(*layers, strict=True))

    cells = [
        variant.name,
        spread([row.training for row in rows]),
        spread([row.held_out for row in rows]),
        f"{median(row.gradient for row in rows):.2g}",
        f"{max(row.largest for row in rows):.2g}",
        f"{mean(row.mass for row in rows):.2g}",
        each_layer([row.entropies for row in rows], ".2f"),
        each_layer([row.deviations for row in rows], ".2g"),
        f"{mean(row.seconds for row in rows):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str], show: Show, program: str) -> None:
    """Trains each network with each seed and shows the table; see :func:`torchcaps.bench.command.main`."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--steps", type=positive, default=600, help="of training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[""], help="variants whose names contain one of these")
    options = parser.parse_args(arguments)
    show(f"{HEAD}\n{'|---' * HEAD.count(' | ')}|---|")
    for variant in VARIANTS:
        if any(part in variant.name for part in options.only):
            show(line(variant, [run(variant, options.steps, seed) for seed in options.seeds]))
