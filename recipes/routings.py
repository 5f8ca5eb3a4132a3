"""Which routing should I take? One small network with every routing: same data, budget,
schedule and loss.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import interleaved
from recipes.kit.base import (
    TEST_ERROR,
    Line,
    Picture,
    Recipe,
    Study,
    facts_of,
    register_recipe,
)
from recipes.kit.charts import Dots, dot_panels
from recipes.kit.lab import Trained, data_of
from recipes.kit.options import TrainingOptions, option
from torchcaps.capsules import Capsules
from torchcaps.losses import length_cross_entropy
from torchcaps.models import CapsuleClassifier
from torchcaps.routing import create_routing
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab.data import AffineRanges, Examples, apply_affine
from torchcaps_lab.report import examine, fit_temperature
from torchcaps_lab.report.calibration import calibration_error

SHARPNESS = 10.0
"""Factor of the activations in the softmax of the loss."""

BINS = 15
"""Bins of confidence in the expected calibration error."""

SETTINGS: dict[str, dict[str, Any]] = {
    "attention": {"readout": True},
    "heinsen_2022": {"normalise": False},
}
"""Arguments of the routings whose defaults make all class capsules equally long."""

IN_PLACE_OF = {"hard_kmeans": "euclidean"}
"""A routing that cannot train is tested in the network that was trained with this one.
"""

ROWS = tuple(
    sorted(
        name
        for name, kind in ROUTINGS.items()
        if kind.__module__.startswith("torchcaps.")
    )
)

AFFINE = "error under affine transforms"
CALIBRATION, SCALED = "expected calibration error", "the same, temperature fitted"
ENTROPY, STEP, KEPT = "entropy of the assignment", "training step", "kept for backward"
TRAINING = "training"

_KINDS: dict[str, tuple[str, bool | None]] = facts_of("routings")["measures"]
"""The measures, with their units and whether higher is better."""

_OF_TRAINING = (STEP, KEPT, TRAINING)


def _lines() -> Iterator[Line]:
    for row in ROWS:
        for measure, (unit, better) in _KINDS.items():
            if row not in IN_PLACE_OF or measure not in _OF_TRAINING:
                yield Line(row, measure, unit=unit, higher_is_better=better)


def kept_for_backward(layer: torch.nn.Module, children: Any) -> int:
    """Bytes that a layer keeps for the backward pass, besides its parameters; each
    storage counts once.
    """
    parameters = {one.untyped_storage().data_ptr() for one in layer.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        alive = layer(
            children
        )  # until all is counted, so that no address is used twice
    total = sum(size for place, size in kept.items() if place not in parameters)
    del alive
    return total


def kept_an_image(network: CapsuleClassifier, images: Tensor) -> float:
    """Bytes that the class capsules keep for each additional image: for all images less
    those for half of them.
    """
    children, half = network.children_of(images), len(images) // 2
    fewer = Capsules(
        children.pose[:half].contiguous(), children.activation[:half].contiguous()
    )
    more = kept_for_backward(network.class_caps, children) - kept_for_backward(
        network.class_caps, fewer
    )
    return more / (len(images) - half)


class Tested(NamedTuple):
    """The test of all networks: images, and the same images under random transforms."""

    test: Examples
    moved: Examples


@dataclass(frozen=True, kw_only=True)
class RoutingsSettings(TrainingOptions):
    """One preset: how every network is trained.

    Attributes:
        rounds: how often the training step of each network is timed.
    """

    rounds: int = 20


@register_recipe
class RoutingsSideBySide(Recipe[RoutingsSettings]):
    """Trains one network with every routing, and measures accuracy, calibration and
    cost.
    """

    name: ClassVar = "routings"
    rows: ClassVar = dict.fromkeys(ROWS)
    lines: ClassVar = tuple(_lines())
    settings: ClassVar = RoutingsSettings

    def options(self, settings: RoutingsSettings, row: str) -> dict[str, Any]:
        """The network with the routing of the row."""
        own = IN_PLACE_OF.get(row, row)
        kind = ROUTINGS[own]
        routing = option(
            f"{kind.__module__}.{kind.__qualname__}", **SETTINGS.get(own, {})
        )
        return settings.options(routing=routing)

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row; a routing that cannot train is put into the
        trained network of another.
        """
        if row not in IN_PLACE_OF:
            return super().train(study, row, stop_at)
        trained = super().train(study, IN_PLACE_OF[row], stop_at)
        capsules = trained.network.class_caps
        assert isinstance(capsules, torch.nn.Module)
        capsules.routing = create_routing(row).eval()
        return trained

    def begin(self, study: Study) -> Tested:
        """The test images, and their transforms, which are the same for all networks
        and seeds.
        """
        test = data_of(study.settings.data).test
        return Tested(
            test,
            replace(
                test, inputs=apply_affine(test.inputs, AffineRanges().draw(test.inputs))
            ),
        )

    def measure(self, study: Study, row: str, given: Tested) -> dict[str, float]:
        """Accuracy and calibration on the test images."""
        trained = study.trained[row]
        network, prepared = trained.network, trained.classifier.prepared
        batch = 4 * study.settings.batch_size
        clean, moved = (examine(network, prepared(images), batch) for images in given)
        validation = examine(network, prepared(trained.data.validation), batch)
        said = (SHARPNESS * clean.activation.double()).softmax(1)
        fitted = fit_temperature(
            (SHARPNESS * validation.activation.double()).softmax(1), validation.labels
        )
        found = {
            TEST_ERROR: 100 * clean.error,
            AFFINE: 100 * moved.error,
            CALIBRATION: 100 * calibration_error(said, clean.labels, BINS),
            SCALED: None
            if fitted is None
            else 100 * calibration_error(fitted(said), clean.labels, BINS),
            ENTROPY: clean.entropy,
            TRAINING: None
            if row in IN_PLACE_OF
            else trained.summary["training_seconds"],
        }
        return {name: value for name, value in found.items() if value is not None}

    def finish(self, study: Study, given: Tested) -> None:
        """Times the training steps of all networks, in turn, and measures the memory
        that their layers keep.
        """
        settings, device = study.settings, study.lab.device
        networks = {
            row: one.network
            for row, one in study.trained.items()
            if row not in IN_PLACE_OF
        }
        some = data_of(settings.data).train.__getitems__(
            list(range(settings.batch_size))
        )
        images, labels = some.inputs.to(device), some.labels.to(device)
        steps: dict[str, Callable[[], object]] = {
            row: _step(network.train(), images, labels)
            for row, network in networks.items()
        }
        for row, seconds in interleaved(steps, settings.rounds, device.type).items():
            network = networks[row]
            assert isinstance(network, CapsuleClassifier)
            study.note(
                row,
                {
                    STEP: 1000 * min(seconds),
                    KEPT: kept_an_image(network, images) / 1024,
                },
            )

    def pictures(self, outcomes: Sequence[Study]) -> dict[str, Picture]:
        """All measures of all routings over all seeds, the best under affine transforms
        first.
        """
        seeds = (
            f"mean and deviation of {len(outcomes)} seeds"
            if len(outcomes) > 1
            else "one seed"
        )
        return {
            "answer": answer(
                [outcome.figures for outcome in outcomes],
                self.caption.format(seeds=seeds),
            )
        }


def _step(
    network: torch.nn.Module, images: Tensor, labels: Tensor
) -> Callable[[], None]:
    """Forward and backward of one batch."""

    def step() -> None:
        network.zero_grad()
        length_cross_entropy(network(images).activation, labels, SHARPNESS).backward()

    return step


def answer(figures: Sequence[Mapping[tuple[str, str], float]], caption: str) -> Picture:
    """A panel for each measure, with a dot for each routing, the mean over the seeds,
    and a line, the deviation.
    """
    found = {
        row: [one[row, AFFINE] for one in figures if (row, AFFINE) in one]
        for row in ROWS
    }
    rows = sorted(
        (row for row, values in found.items() if values),
        key=lambda row: mean(found[row]),
    )
    panels = []
    for measure in (AFFINE, TEST_ERROR, CALIBRATION, ENTROPY, STEP, KEPT):
        label, keys = (
            ", ".join(filter(None, (measure, _KINDS[measure][0]))),
            [(row, measure) for row in rows],
        )
        panels.append(Dots.over(label, figures, keys)._replace(log=measure != ENTROPY))
    return Picture(dot_panels(rows, panels), caption)
