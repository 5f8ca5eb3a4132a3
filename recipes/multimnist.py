"""Two digits on top of each other, to be recognised and separated (Sabour et al. 2017,
section 6).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.kit.base import (
    Line,
    Picture,
    Recipe,
    Study,
    facts_of,
    lines_of,
    register_recipe,
)
from recipes.kit.charts import Cell, image_grid, two_colours
from recipes.kit.lab import data_of
from recipes.kit.options import TrainingOptions, option
from torchcaps.models import CapsuleClassifier, ImageClassifier
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.data import Overlay, bounding_box_overlap, fixed_pairs
from torchcaps_lab.tasks import SeveralLabels


@dataclass(frozen=True, kw_only=True)
class MultiMNISTSettings(TrainingOptions):
    """One preset.

    Attributes:
        size: the height and width of the images, in pixels.
        shift: the largest shift of a digit, in pixels.
        test_pairs: the number of pairs of test digits.
    """

    size: int = 36
    shift: int = 4
    test_pairs: int = 10000


CAPSULES, CNN = "CapsNet, 3 steps", "convolutional network"
ERROR = "exact-pair test error"
PAIRS, OVERLAP = "test pairs", "overlap of the bounding boxes"
SABOUR = "Sabour et al. 2017, section 6"
PUBLISHED = {
    (CAPSULES, ERROR): (5.2, f"{SABOUR}, recalled"),
    (CNN, ERROR): (8.1, f"{SABOUR}, recalled: another network, of 24.6 M parameters"),
}
ROWS = facts_of("multimnist")["rows"]


@register_recipe
class MultiMNIST(Recipe[MultiMNISTSettings]):
    """Trains on pairs of overlapping digits, and separates them."""

    name: ClassVar = "multimnist"
    lines: ClassVar = (
        *lines_of([(row, ERROR) for row in ROWS], PUBLISHED),
        Line(PAIRS, OVERLAP, 80, SABOUR, higher_is_better=None),
    )
    settings: ClassVar = MultiMNISTSettings
    grows: ClassVar = True

    def options(self, settings: MultiMNISTSettings, row: str) -> dict[str, Any]:
        """On pairs of digits, which are made anew in each epoch."""
        pairs = option(
            "torchcaps_lab.data.Pairs",
            data=settings.data,
            size=settings.size,
            shift=settings.shift,
        )
        return {**super().options(settings, row), "data": pairs}

    def begin(self, study: Study) -> Any:
        """The test pairs, and how much they overlap."""
        settings = study.settings
        test = Overlay(data_of(settings.data).test, settings.size, settings.shift)
        # the same for every seed of a training
        pairs = fixed_pairs(test, settings.test_pairs, seed=0)
        overlap = bounding_box_overlap(pairs.parts).mean()
        study.note(PAIRS, {OVERLAP: 100 * float(overlap)})
        return pairs

    def measure(
        self,
        study: Study,
        row: str,
        pairs: Any,
    ) -> dict[str, float]:
        """The share of pairs in which a digit was missed."""
        return {ERROR: pair_error(study.trained[row].network, pairs)}

    def finish(self, study: Study, pairs: Any) -> None:
        """The reconstructions of the capsules, if they were trained now."""
        if CAPSULES not in study.trained:
            return
        network = study.trained[CAPSULES].network
        if isinstance(network, CapsuleClassifier) and network.decoder is not None:
            few = type(pairs)(*(part[:200] for part in pairs))
            study.pictures["reconstructions"] = _picture(network, few, self.caption)


def pair_error(network: ImageClassifier, pairs: Any, batch_size: int = 256) -> float:
    """The share of pairs, in percent, in which not both digits are recognised: one of
    two is an error.
    """
    present = F.one_hot(pairs.labels, network.classes).sum(1).bool()
    activations = Classifier(network).activations(pairs.images, batch_size)
    predicted = SeveralLabels(count=2).predicted_classes(activations)
    return 100 * (1 - (predicted == present).all(1).double().mean().item())


@torch.no_grad()
def _picture(
    network: CapsuleClassifier,
    pairs: Any,
    caption: str,
    count: int = 7,
) -> Picture:
    """Pairs, separated in two colours, and what the capsules of wrong and of absent
    digits draw (figure 5).
    """
    device = next(network.parameters()).device
    capsules = network.encode(pairs.images.to(device))
    activation = capsules.activation.cpu()
    predicted = activation.topk(2, dim=1).indices
    right = (predicted.sort(1).values == pairs.labels.sort(1).values).all(1)
    recognised = right.nonzero().squeeze(1)[: count - 2]
    missed = (~right).nonzero().squeeze(1)[:2]
    places = torch.cat([recognised, missed])[:count].tolist()
    least_active = activation.scatter(1, pairs.labels, torch.inf).argmin(1)
    claims = {
        "true": pairs.labels,
        "predicted": predicted,
        "true and absent": torch.stack([pairs.labels[:, 0], least_active], 1),
    }
    rows = {
        "input": [Cell(pairs.images[place, 0]) for place in places],
        "its digits": [
            Cell(two_colours(pairs.parts[place, :, 0]), _digits(pairs.labels[place]))
            for place in places
        ],
    }
    for name, labels in claims.items():
        layers = [
            network.decode(capsules, digit.to(device))[:, 0].cpu()
            for digit in labels.unbind(1)
        ]
        drawn = torch.stack(layers, 1)
        rows[f"capsules:\n{name}"] = [
            Cell(two_colours(drawn[place]), _digits(labels[place])) for place in places
        ]
    return Picture(image_grid(rows, 1.25), caption)


def _digits(labels: Tensor) -> str:
    return " and ".join(str(int(label)) for label in labels)
