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
from torchcaps.routing import ROUTINGS, create_routing
from torchcaps_lab.data import AffineRanges, Examples, apply_affine
from torchcaps_lab.evaluate import examine, fit_temperature

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
ENTROPY = "entropy of the assignment"
STEP = "training step"
KEPT = "kept for backward"
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
    sizes: dict[int, int] = {}

    def note_size(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note_size, lambda tensor: tensor):
        # alive until all is counted, so that no address is used twice
        output = layer(children)
    for parameter in layer.parameters():
        sizes.pop(parameter.untyped_storage().data_ptr(), None)
    del output
    return sum(sizes.values())


def kept_an_image(network: CapsuleClassifier, images: Tensor) -> float:
    """Bytes that the class capsules keep for each additional image: for all images less
    those for half of them.
    """
    layer = network.class_caps
    children = network.children_of(images)
    half = len(images) // 2
    of_half = Capsules(
        children.pose[:half].contiguous(), children.activation[:half].contiguous()
    )
    added = kept_for_backward(layer, children) - kept_for_backward(layer, of_half)
    return added / (len(images) - half)


class Tested(NamedTuple):
    """The test of all networks: images, and the same images under random transforms."""

    test: Examples
    moved: Examples


@dataclass(frozen=True, kw_only=True)
class RoutingsSettings(TrainingOptions):
    """One preset: how every network is trained.

    Attributes:
        rounds: the number of times that the training step of each network is timed.
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
        trained_routing = IN_PLACE_OF.get(row, row)
        kind = ROUTINGS[trained_routing]
        arguments = SETTINGS.get(trained_routing, {})
        path = f"{kind.__module__}.{kind.__qualname__}"
        return settings.options(routing=option(path, **arguments))

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
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
        moved = apply_affine(test.inputs, AffineRanges().draw(test.inputs))
        return Tested(test, replace(test, inputs=moved))

    def measure(
        self,
        study: Study,
        row: str,
        tested: Tested,
    ) -> dict[str, float]:
        """Accuracy and calibration on the test images."""
        trained = study.trained[row]
        network = trained.network
        prepared = trained.classifier.prepared
        batch = 4 * study.settings.batch_size
        clean = examine(network, prepared(tested.test), batch)
        moved = examine(network, prepared(tested.moved), batch)
        validation = examine(network, prepared(trained.data.validation), batch)
        sure = replace(clean, activation=_probabilities(clean.activation))
        figures = {
            TEST_ERROR: 100 * clean.error,
            AFFINE: 100 * moved.error,
            CALIBRATION: 100 * sure.calibration_error(BINS),
        }
        scaled = fit_temperature(
            _probabilities(validation.activation), validation.labels
        )
        if scaled is not None:
            rescaled = replace(sure, activation=scaled(sure.activation))
            figures[SCALED] = 100 * rescaled.calibration_error(BINS)
        if clean.entropy is not None:
            figures[ENTROPY] = clean.entropy
        if row not in IN_PLACE_OF:
            figures[TRAINING] = trained.summary["training_seconds"]
        return figures

    def finish(self, study: Study, tested: Tested) -> None:
        """Times the training steps of all networks, in turn, and measures the memory
        that their layers keep.
        """
        settings = study.settings
        device = study.lab.device
        networks = {
            row: trained.network
            for row, trained in study.trained.items()
            if row not in IN_PLACE_OF
        }
        places = list(range(settings.batch_size))
        batch = data_of(settings.data).train.__getitems__(places)
        images = batch.inputs.to(device)
        labels = batch.labels.to(device)
        steps: dict[str, Callable[[], object]] = {
            row: _step(network.train(), images, labels)
            for row, network in networks.items()
        }
        for row, seconds in interleaved(steps, settings.rounds, device.type).items():
            network = networks[row]
            assert isinstance(network, CapsuleClassifier)
            kibibytes = kept_an_image(network, images) / 1024
            study.note(row, {STEP: 1000 * min(seconds), KEPT: kibibytes})

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """All measures of all routings over all seeds, the best under affine transforms
        first.
        """
        seeds = "one seed"
        if len(studies) > 1:
            seeds = f"mean and deviation of {len(studies)} seeds"
        figures = [study.figures for study in studies]
        return {"answer": answer(figures, self.caption.format(seeds=seeds))}


def _probabilities(activation: Tensor) -> Tensor:
    """The probabilities of the classes, as the loss takes them from activations."""
    return (SHARPNESS * activation.double()).softmax(1)


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
    errors = {}
    for row in ROWS:
        key = row, AFFINE
        of_seeds = [of_seed[key] for of_seed in figures if key in of_seed]
        if of_seeds:
            errors[row] = mean(of_seeds)
    rows = sorted(errors, key=errors.__getitem__)
    panels = []
    for measure in (AFFINE, TEST_ERROR, CALIBRATION, ENTROPY, STEP, KEPT):
        unit, _ = _KINDS[measure]
        label = f"{measure}, {unit}" if unit else measure
        dots = Dots.over(label, figures, [(row, measure) for row in rows])
        panels.append(dots._replace(log=measure != ENTROPY))
    return Picture(dot_panels(rows, panels), caption)
