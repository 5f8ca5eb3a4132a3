"""Trained on one digit at a time, tested on several side by side (Su Jianlin 2018)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from recipes.kit.base import Picture, Recipe, Study, facts_of, lines_of, register_recipe
from recipes.kit.charts import bars_under_images
from recipes.kit.lab import data_of
from recipes.kit.measures import activations_of, all_found, percent
from recipes.kit.options import TrainingOptions
from torchcaps_lab.data.made import LAYOUTS, Scenes, arrange


def set_accuracy(activation: Tensor, present: Tensor, above: float = 0.0) -> float:
    """The share of images, in percent, whose most active classes are exactly those
    present.

    Args:
        activation: (N, E).
        present: bool (N, E), k classes in each row.
        above: all of the k must also be more active than this.
    """
    return percent(
        all_found(activation, present)
        & (activation.where(present, torch.inf).amin(1) > above)
    )


TWIN, MAPS = "convolutional twin, pooled", "class maps, pooled by log-mean-exp"
DYNAMIC, KMEANS = "dynamic, accumulating, 3 steps", "inner-product K-Means, 3 steps"
VARIANT = "variant of K-Means"
COMPARED = TWIN, MAPS, DYNAMIC, KMEANS
"""The networks that the source compares, and a plain one with local evidence: they are
tested on all layouts.
"""

FACTS = facts_of("two-digits")
ROWS: dict[str, dict[str, Any]] = FACTS["rows"]

SINGLE, MOST_ACTIVE, ALSO_SURE = (
    "single digit, accuracy",
    "{}, the most active",
    "{}, and above 0.5",
)
"""Measures; the last two, for each layout: the most active classes are the digits, and
all of these are above 0.5.
"""

PAIRS = "one above the other", "side by side"
PUBLISHED = {
    (row, one): tuple(figure)
    for row, own in FACTS["published"].items()
    for one, figure in own.items()
}
TESTED = {row: tuple(LAYOUTS if row in COMPARED else PAIRS) for row in ROWS}


def measures(layout: str) -> dict[str, float]:
    """The measures on a layout, with the activation that all of its digits must
    exceed.
    """
    also_sure = {ALSO_SURE.format(layout): 0.5} if layout in PAIRS else {}
    return {MOST_ACTIVE.format(layout): 0.0, **also_sure}


@dataclass(frozen=True, kw_only=True)
class TwoDigitsSettings(TrainingOptions):
    """One preset: how every network is trained, and on what it is tested.

    Attributes:
        pairs: how many images of two digits; ``scenes`` of each other layout.
    """

    pairs: int = 10000
    scenes: int = 2000


@register_recipe
class TwoDigits(Recipe[TwoDigitsSettings]):
    """Trains on single digits, tests on several: does the length of a capsule show that
    a class is present?
    """

    name: ClassVar = "two-digits"
    lines: ClassVar = lines_of(
        (
            (row, what)
            for row in ROWS
            for what in (SINGLE, *chain.from_iterable(map(measures, TESTED[row])))
        ),
        PUBLISHED,
        higher_is_better=True,
    )
    settings: ClassVar = TwoDigitsSettings
    grows: ClassVar = True

    def begin(self, study: Study) -> Mapping[str, Scenes]:
        """Test digits in every layout, the same for all networks."""
        test, settings = data_of(study.settings.data).test, study.settings
        count = {
            name: settings.pairs if name in PAIRS else settings.scenes
            for name in LAYOUTS
        }
        return {
            name: arrange(test, layout, count[name]) for name, layout in LAYOUTS.items()
        }

    def measure(
        self, study: Study, row: str, given: Mapping[str, Scenes]
    ) -> dict[str, float]:
        """Accuracy on single digits, and on every layout in the table."""
        network, found = (
            study.trained[row].network,
            {SINGLE: study.trained[row].test_accuracy},
        )
        for layout in TESTED[row]:
            images, present = given[layout]
            activation = activations_of(network, images)
            found |= {
                name: set_accuracy(activation, present, above)
                for name, above in measures(layout).items()
            }
        return found

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Bars of the set accuracy over the layouts, mean of the seeds, with an example
        of each above them.
        """
        measured = {
            row: [study.figures for study in studies if (row, SINGLE) in study.figures]
            for row in COMPARED
        }
        bars = {
            row: [
                fmean(figures[row, MOST_ACTIVE.format(layout)] for figures in seeds)
                for layout in LAYOUTS
            ]
            for row, seeds in measured.items()
            if seeds
        }
        test = data_of(studies[0].settings.data).test
        examples = {
            name: arrange(test, layout, 1).images[0].amax(0)
            for name, layout in LAYOUTS.items()
        }
        return {
            "layouts": Picture(
                bars_under_images(examples, bars, "all digits found, % of images"),
                self.caption,
            )
        }
