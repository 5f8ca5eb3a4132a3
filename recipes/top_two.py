"""Top-2 classification (Ren, Su & Lu 2019): trained on single images of clothes or of
photos, tested on two side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from itertools import product
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from recipes.convnet import convolution
from recipes.kit.base import (
    Picture,
    Recipe,
    Study,
    by_line,
    facts_of,
    lines_of,
    mean_over,
    register_recipe,
)
from recipes.kit.charts import bars_under_images
from recipes.kit.lab import data_of
from recipes.kit.measures import activations_of, all_found, percent
from recipes.kit.options import TrainingOptions
from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.models import CapsuleClassifier, register_model
from torchcaps.routing import Routing, create_routing
from torchcaps.spec import Size, settings
from torchcaps.squashing import length
from torchcaps_lab.data import Scenes, arrange

SINGLE = "single images"
PAIRS = {
    "two, side by side": "side by side",
    "two, one above the other": "one above the other",
}
"""The measures of pairs, and their layouts: in the source two stand side by side."""


DRAWN = (
    "mean of the features, two dense layers",
    "class maps",
    "pooled capsules, shared transforms, K-Means",
    "capsules at all places, dynamic, 3 steps",
    "capsules at all places, K-Means, 3 steps",
)
"""The rows in the picture."""


@register_model(
    "pooled_capsnet", "Ren, Su & Lu 2019: capsules of features pooled over all places"
)
@settings
class PooledCapsNet(CapsuleClassifier):
    """Convolutions with batch normalisation, their mean over all places, cut into
    capsules, and class capsules.

    The source has a residual network of 20 layers in place of the four convolutions.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: of the four convolutions.
        child_dim: dimension of the children's poses, a divisor of the last number of
            channels.
        pose_dim: dimension of the class capsules' poses.
        transforms: ``full``, one for each child, or ``shared`` by all of them.
        routing: any routing; default: inner-product K-Means in 3 steps.

    Source: Ren, Su & Lu 2019, arXiv 1901.10112.
    """

    any_size = True

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: tuple[Size, Size, Size, Size] = (64, 64, 128, 128)
    child_dim: Size = 8
    pose_dim: Size = 16
    transforms: Literal["full", "shared"] = "full"
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        first, second, third, fourth = self.channels
        self.features = nn.Sequential(
            convolution(self.image_shape[0], first),
            convolution(first, second, stride=2),
            convolution(second, third),
            convolution(third, fourth, stride=2),
        )
        self.decoder = None
        self.class_caps = CapsLinear(
            fourth // self.child_dim,
            self.classes,
            self.child_dim,
            self.pose_dim,
            transforms=self.transforms,
            routing=routing or create_routing("kmeans"),
        )

    def children_of(self, images: Tensor) -> Capsules:
        """The features' means, cut into capsules: poses (B, channels / dim, dim)."""
        self._check(images)
        pooled = self.features(images).mean((2, 3))  # [B, channels]
        pose = pooled.unflatten(1, (-1, self.child_dim))
        return Capsules(pose, length(pose))


@dataclass(frozen=True, kw_only=True)
class TopTwoSettings(TrainingOptions):
    """One preset.

    Attributes:
        pairs: how many images of two, of each layout.
    """

    pairs: int = 10000


class TopTwo(Recipe[TopTwoSettings]):
    """Trains on single images, tests on two in one: are the two most active classes the
    right ones?
    """

    settings: ClassVar = TopTwoSettings
    grows: ClassVar = True

    def begin(self, study: Study) -> Mapping[str, Scenes]:
        """Two test images in one, in each layout, the same for all networks."""
        test = data_of(study.settings.data).test
        return {
            name: arrange(test, Scenes.layouts()[layout], study.settings.pairs)
            for name, layout in PAIRS.items()
        }

    def measure(
        self,
        study: Study,
        row: str,
        given: Mapping[str, Scenes],
    ) -> dict[str, float]:
        """Accuracy on single images, and on two in one."""
        trained = study.trained[row]
        accuracy = {SINGLE: trained.test_accuracy}
        for name, (images, present) in given.items():
            activation = activations_of(trained.network, images)
            accuracy[name] = percent(all_found(activation, present))
        return accuracy

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Bars of the accuracy, mean of the seeds, with an example above each."""
        return {"pairs": picture_of_pairs(studies, DRAWN, self.caption)}


def picture_of_pairs(
    studies: Sequence[Study], rows: Sequence[str], caption: str
) -> Picture:
    """Bars of the accuracy on single images and on two in one, mean of the seeds, with
    an example above each.

    Args:
        studies: the studies, of a data set of images.
        rows: the rows that are drawn, as far as they were measured.
        caption: the caption of the picture.
    """
    test = data_of(studies[0].settings.data).test
    examples = {SINGLE: as_picture(test.inputs[:1])}
    for layout in PAIRS.values():
        pair = arrange(test, Scenes.layouts()[layout], 1).images
        examples[layout] = as_picture(pair)
    bars = {}
    for row in rows:
        seeds = [study.figures for study in studies if (row, SINGLE) in study.figures]
        if seeds:
            bars[row] = [mean_over(seeds, (row, name)) for name in (SINGLE, *PAIRS)]
    figure = bars_under_images(examples, bars, "all classes found, % of images")
    return Picture(figure, caption)


def as_picture(images: Tensor) -> Tensor:
    """The first of images (N, C, H, W): (H, W) if grey, else (H, W, C)."""
    first = images[0]
    return first[0] if len(first) == 1 else first.permute(1, 2, 0)


def _lines(name: str) -> Any:
    facts = facts_of(name)
    keys = product(facts["rows"], (SINGLE, *PAIRS))
    return lines_of(keys, by_line(facts["published"]), higher_is_better=True)


@register_recipe
class TopTwoFashion(TopTwo):
    """Top-2 classification of clothes."""

    name: ClassVar = "top-two-fashion"
    lines: ClassVar = _lines("top-two-fashion")


@register_recipe
class TopTwoCIFAR10(TopTwo):
    """Top-2 classification of photos."""

    name: ClassVar = "top-two-cifar10"
    lines: ClassVar = _lines("top-two-cifar10")
