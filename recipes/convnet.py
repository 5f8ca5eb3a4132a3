"""One backbone under every head of the viewpoint study: six convolutions, as in the
code of Hahn et al. 2019.
"""

import math
from collections.abc import Sequence
from dataclasses import InitVar
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear, PrimaryCaps
from torchcaps.models import (
    CapsuleClassifier,
    ImageClassifier,
    Prediction,
    register_model,
)
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.spec import Size, settings

HAHN = "Hahn et al. 2019, its network of six convolutions"


def convolution(before: int, width: int, stride: int = 1) -> nn.Sequential:
    """A 3x3 convolution with batch normalisation and ReLU."""
    weights = nn.Conv2d(
        before,
        width,
        3,
        stride,
        padding=1,
        bias=False,
    )
    return nn.Sequential(weights, nn.BatchNorm2d(width), nn.ReLU())


def backbone(
    image_shape: tuple[int, int, int], widths: Sequence[int]
) -> tuple[nn.Sequential, tuple[int, int]]:
    """Convolutions, of which every second halves the grid, and the size of the last
    grid.
    """
    channels, *extents = image_shape
    layers = nn.Sequential()
    for number, (before, width) in enumerate(pairwise((channels, *widths))):
        stride = 1 + number % 2
        layers.append(convolution(before, width, stride))
    shrink = 2 ** (len(widths) // 2)
    height, width = (math.ceil(extent / shrink) for extent in extents)
    return layers, (height, width)


@register_model(
    "convnet_capsules",
    f"{HAHN}, primary capsules, and class capsules under any routing",
)
@settings
class ConvNetCapsules(CapsuleClassifier):
    """Six convolutions, primary capsules of a seventh, class capsules; each child has
    transforms of its own.

    Args:
        image_shape: the shape (C, H, W) of the images.
        classes: the number of classes.
        widths: the channels of the convolutions, of which every second halves the grid.
        types: the number of primary capsules at each position.
        dim: the dimension of all poses.
        activation: the activation of the primary capsules: the ``length`` of squashed
            poses; or ``learned`` beside poses that are not squashed, as in the code of
            Hahn et al.
        routing: the routing of the class capsules; default: dynamic routing in 3 steps.
    """

    image_shape: tuple[int, int, int] = (1, 32, 32)
    classes: int = 5
    widths: tuple[Size, ...] = (16, 32, 32, 64, 64, 128)
    types: Size = 32
    dim: Size = 16
    activation: Literal["length", "learned"] = "length"
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        self.features, grid = backbone(self.image_shape, self.widths)
        squash = "sabour" if self.activation == "length" else "none"
        self.primary_caps = PrimaryCaps(
            self.widths[-1],
            self.types,
            self.dim,
            3,
            1,
            1,
            squash=squash,
            batch_norm=True,
            activation=self.activation,
        )
        children = math.prod(self.primary_caps.sites(*grid))
        self.class_caps = CapsLinear(
            children,
            self.classes,
            self.dim,
            self.dim,
            routing=routing or DynamicRouting(),
        )
        self.decoder = None

    def children_of(self, images: Tensor) -> Capsules:
        """The primary capsules, poses (B, H', W', types, dim)."""
        self._check(images)
        return self.primary_caps(self.features(images))


@register_model(
    "convnet_pooled", f"{HAHN}, average pooling and a linear layer", hidden=None
)
@register_model(
    "convnet_linear", f"{HAHN}, a seventh, and a linear layer of all its positions"
)
@settings
class ConvNet(ImageClassifier):
    """The same convolutions, then average pooling, or a seventh without it; a linear
    layer, a softmax.

    Args:
        image_shape: the shape (C, H, W) of the images.
        classes: the number of classes.
        widths: the channels of the convolutions, as in :class:`ConvNetCapsules`.
        hidden: the channels of the seventh convolution; None for average pooling.
    """

    image_shape: tuple[int, int, int] = (1, 32, 32)
    classes: int = 5
    widths: tuple[Size, ...] = (16, 32, 32, 64, 64, 128)
    hidden: Size | None = 512

    def __post_init__(self) -> None:
        self.features, grid = backbone(self.image_shape, self.widths)
        if self.hidden:
            self.features.append(convolution(self.widths[-1], self.hidden))
            self.pool: nn.Module = nn.Identity()
            features = self.hidden * math.prod(grid)
        else:
            self.pool = nn.AdaptiveAvgPool2d(1)
            features = self.widths[-1]
        self.head = nn.Linear(features, self.classes)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each class."""
        self._check(images)
        features = self.pool(self.features(images)).flatten(1)
        return Prediction(self.head(features).softmax(-1), None, None)
