"""Heads on the features of photos: does routing pay behind a backbone that has seen
photos before?
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.kit.base import Picture, Recipe, Study, facts_of, lines_of, register_recipe
from recipes.kit.lab import Lab, at_random, data_of, facts_of_network
from recipes.kit.measures import all_found, percent
from recipes.kit.options import TrainingOptions
from recipes.top_two import PAIRS, SINGLE, picture_of_pairs
from torchcaps import (
    CapsHead,
    MarginLoss,
    NegativeLogLikelihood,
    create_model,
    create_routing,
)
from torchcaps_lab.data import Examples, Scenes, arrange

FACTS = facts_of("photo-heads")
HEADS: dict[str, dict[str, Any]] = FACTS["heads"]
MEASURES = (SINGLE, *PAIRS)

DRAWN = (
    "mean of the features, linear layer",
    "class maps",
    "K-Means, 1 step",
    "K-Means, 3 steps",
    "K-Means, 3 steps, evidence",
)
"""The heads in the picture, as far as they were measured."""


class LinearHead(nn.Module):
    """The mean of the features, a linear layer and a softmax.

    Args:
        channels: the number of features at each place.
        classes: the number of classes.
    """

    loss = NegativeLogLikelihood()

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(channels, classes)

    def forward(self, features: Tensor) -> Tensor:
        """The probability of each class, (B, E)."""
        return self.linear(features.mean((2, 3))).softmax(1)


class MapsHead(nn.Module):
    """A linear classifier at each place, pooled by log-mean-exp, and a sigmoid.

    Args:
        channels: the number of features at each place.
        classes: the number of classes.
    """

    loss = MarginLoss()

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.evidence = nn.Conv2d(channels, classes, 1)

    def forward(self, features: Tensor) -> Tensor:
        """The activation of each class, (B, E)."""
        evidence = self.evidence(features).flatten(2)  # [B, E, H W]
        pooled = evidence.logsumexp(2) - math.log(evidence.shape[2])
        return pooled.sigmoid()


class CapsuleHead(nn.Module):
    """Class capsules that all places vote for.

    Args:
        classes: the number of classes.
        routing: the name of a routing, with its settings.
    """

    loss = MarginLoss()

    def __init__(self, classes: int, routing: Mapping[str, Any]) -> None:
        super().__init__()
        self.capsules = CapsHead(classes, routing=create_routing(**routing))

    def forward(self, features: Tensor) -> Tensor:
        """The activation of each class, (B, E)."""
        return self.capsules(features).activation


Head = LinearHead | MapsHead | CapsuleHead


def make_head(row: str, channels: int, classes: int) -> Head:
    """The head of a row, untrained."""
    options = HEADS[row]
    if "routing" in options:
        return CapsuleHead(classes, options["routing"])
    if options["kind"] == "linear":
        return LinearHead(channels, classes)
    return MapsHead(channels, classes)


@dataclass(frozen=True, kw_only=True)
class PhotoHeadsSettings(TrainingOptions):
    """One preset.

    Attributes:
        backbone: the backbone, as ``capsnet_on_backbone_cnn`` takes it.
        weights: the weights of the backbone, which do not learn.
        scale: the factor by which the photos are enlarged for the backbone.
        photos: the number of photos to train on.
        tested: the number of single photos, and of pairs of each layout, in the test.
        rate: the peak of the learning rate.
        hold_out: whether to test on validation photos, to choose settings.
    """

    backbone: str = "timm/efficientnet_lite0"
    weights: str | None = "imagenet"
    scale: int = 4
    photos: int = 5000
    tested: int = 2000
    rate: float = 0.002
    hold_out: bool = False


class Shown(NamedTuple):
    """Features of images.

    Args:
        features: the features, (N, C, H, W).
        present: the classes in each image, bool (N, E).
    """

    features: Tensor
    present: Tensor


class Photos(NamedTuple):
    """What all heads learn from, and are tested on.

    Args:
        train: single photos.
        tests: the test images of each measure.
    """

    train: Shown
    tests: Mapping[str, Shown]


@torch.no_grad()
def features_of(backbone: nn.Module, images: Tensor, scale: int) -> Tensor:
    """The features of images, uint8 (N, C, H, W), enlarged: (N, C', H', W')."""
    parts = []
    for batch in images.split(64):
        pixels = F.interpolate(
            batch.float(), scale_factor=scale, mode="bilinear", antialias=True
        )
        parts.append(backbone(pixels / 127.5 - 1))
    return torch.cat(parts)


def look_at(settings: PhotoHeadsSettings) -> Photos:
    """The features of the photos, once for all heads and seeds."""
    data = data_of(settings.data)
    unseen = data.validation if settings.hold_out else data.test
    if unseen is None:
        raise ValueError("hold_out needs data with validation images")
    torch.manual_seed(0)
    network: Any = create_model(
        "capsnet_on_backbone_cnn",
        image_shape=scaled(unseen, settings.scale),
        classes=len(unseen.classes),
        backbone=settings.backbone,
        weights=settings.weights,
        frozen=True,
    )
    backbone = network.features.eval()

    def shown(images: Tensor, present: Tensor) -> Shown:
        return Shown(features_of(backbone, images, settings.scale), present)

    def singles(examples: Examples, count: int) -> Shown:
        chosen = at_random(examples, count)
        present = F.one_hot(chosen.labels, len(chosen.classes)).bool()
        return shown(chosen.inputs, present)

    tests = {SINGLE: singles(unseen, settings.tested)}
    for name, layout in PAIRS.items():
        tests[name] = shown(*arrange(unseen, Scenes.layouts()[layout], settings.tested))
    return Photos(singles(data.train, settings.photos), tests)


def scaled(images: Examples, scale: int) -> tuple[int, int, int]:
    """The shape (C, H, W) of enlarged images."""
    channels, height, width = images.inputs.shape[1:]
    return channels, height * scale, width * scale


def fit(head: Head, train: Shown, settings: PhotoHeadsSettings) -> None:
    """Trains a head with its loss, Adam and one cycle of the learning rate."""
    labels = train.present.int().argmax(1)
    head(train.features[:64])  # draws what waits for the number of channels
    optimizer = torch.optim.Adam(head.parameters(), settings.rate)
    batches = math.ceil(len(labels) / settings.batch_size)
    epochs = settings.epochs or 1
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.rate, epochs * batches
    )
    head.train()
    for _ in range(epochs):
        for places in torch.randperm(len(labels)).split(settings.batch_size):
            optimizer.zero_grad()
            activation = head(train.features[places])
            head.loss(activation, labels[places]).backward()
            optimizer.step()
            scheduler.step()
    head.eval()


@torch.no_grad()
def accuracy(head: Head, test: Shown) -> float:
    """How many images, in percent, have their own classes as the most active ones."""
    parts = [head(features) for features in test.features.split(500)]
    return percent(all_found(torch.cat(parts), test.present))


@register_recipe
class PhotoHeads(Recipe[PhotoHeadsSettings]):
    """Trains heads on the features of single photos, tests them on single photos and
    on two in one.

    Attributes:
        photos: the features of the photos of a preset, the same for all seeds.
    """

    name: ClassVar = "photo-heads"
    rows: ClassVar = HEADS
    lines: ClassVar = lines_of(product(HEADS, MEASURES), {}, higher_is_better=True)
    settings: ClassVar = PhotoHeadsSettings
    grows: ClassVar = True
    apart: ClassVar = True
    photos: ClassVar[dict[str, Photos]] = {}

    def run(self, lab: Lab, settings: PhotoHeadsSettings) -> Study:
        """Trains and measures the head of each row."""
        study = Study(lab, settings)
        if lab.preset not in self.photos:
            self.photos[lab.preset] = look_at(settings)
        photos = self.photos[lab.preset]
        channels = photos.train.features.shape[1]
        classes = photos.train.present.shape[1]
        for row in self.present(settings):
            start = time.perf_counter()
            torch.manual_seed(lab.seed)
            head = make_head(row, channels, classes)
            fit(head, photos.train, settings)
            facts = facts_of_network(head, time.perf_counter() - start)
            figures = {
                name: accuracy(head, test) for name, test in photos.tests.items()
            }
            study.note(row, figures)
            study.facts[row] = {"figures": figures, "run": row, **facts}
        return study

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Bars of the accuracy, mean of the seeds, with an example above each."""
        return {"pairs": picture_of_pairs(studies, DRAWN, self.caption)}
