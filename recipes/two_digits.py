"""Trained on one digit at a time, tested on several side by side (Su Jianlin 2018)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from recipes.kit.base import (
    Key,
    Picture,
    Recipe,
    Study,
    facts_of,
    lines_of,
    register_recipe,
)
from recipes.kit.charts import bars_under_images
from recipes.kit.lab import data_of
from recipes.kit.measures import activations_of, all_found, percent
from recipes.kit.options import TrainingOptions
from torchcaps_lab.data import Scenes, arrange


def set_accuracy(activation: Tensor, present: Tensor, above: float = 0.0) -> float:
    """The share of images, in percent, whose most active classes are exactly those
    present.

    Args:
        activation: the activations of the classes, (N, E).
        present: whether each class is in the image, bool (N, E), k classes in each row.
        above: the activation that all k classes must exceed, too.
    """
    least = activation.where(present, torch.inf).amin(1)
    return percent(all_found(activation, present) & (least > above))


TWIN, MAPS = "convolutional twin, pooled", "class maps, pooled by log-mean-exp"
DYNAMIC, KMEANS = "dynamic, accumulating, 3 steps", "inner-product K-Means, 3 steps"
VARIANT = "variant of K-Means"
COMPARED = TWIN, MAPS, DYNAMIC, KMEANS
"""The networks that the source compares, and a plain one with local evidence: they are
tested on all layouts.
"""

FACTS = facts_of("two-digits")
ROWS: dict[str, dict[str, Any]] = FACTS["rows"]

SINGLE = "single digit, accuracy"
MOST_ACTIVE = "{}, the most active"
ALSO_SURE = "{}, and above 0.5"
"""Measures; the last two, for each layout: the most active classes are the digits, and
all of these are above 0.5.
"""

PAIRS = "one above the other", "side by side"
PUBLISHED: dict[Key, tuple[float | None, str]] = {}
"""The published figures with their sources."""

for _row, _figures in FACTS["published"].items():
    for _measure, _figure in _figures.items():
        PUBLISHED[_row, _measure] = tuple(_figure)

TESTED = {row: tuple(Scenes.layouts() if row in COMPARED else PAIRS) for row in ROWS}


def measures(layout: str) -> dict[str, float]:
    """The measures on a layout, with the activation that all of its digits must
    exceed.
    """
    least = {MOST_ACTIVE.format(layout): 0.0}
    if layout in PAIRS:
        least[ALSO_SURE.format(layout)] = 0.5
    return least


def _keys() -> Iterator[Key]:
    for row in ROWS:
        yield row, SINGLE
        for layout in TESTED[row]:
            for measure in measures(layout):
                yield row, measure


@dataclass(frozen=True, kw_only=True)
class TwoDigitsSettings(TrainingOptions):
    """One preset: how every network is trained, and on what it is tested.

    Attributes:
        pairs: the number of images of two digits, one above the other and side by side.
        scenes: the number of images of each other layout.
    """

    pairs: int = 10000
    scenes: int = 2000


def _mean_accuracy(
    seeds: Sequence[Mapping[Key, float]], row: str, layout: str
) -> float:
    """The set accuracy of a row on a layout, mean of the seeds."""
    return fmean(figures[row, MOST_ACTIVE.format(layout)] for figures in seeds)


@register_recipe
class TwoDigits(Recipe[TwoDigitsSettings]):
    """Trains on single digits, tests on several: does the length of a capsule show that
    a class is present?
    """

    name: ClassVar = "two-digits"
    lines: ClassVar = lines_of(_keys(), PUBLISHED, higher_is_better=True)
    settings: ClassVar = TwoDigitsSettings
    grows: ClassVar = True

    def begin(self, study: Study) -> Mapping[str, Scenes]:
        """Test digits in every layout, the same for all networks."""
        test = data_of(study.settings.data).test
        settings = study.settings
        tests = {}
        for name, layout in Scenes.layouts().items():
            count = settings.pairs if name in PAIRS else settings.scenes
            tests[name] = arrange(test, layout, count)
        return tests

    def measure(
        self,
        study: Study,
        row: str,
        tests: Mapping[str, Scenes],
    ) -> dict[str, float]:
        """Accuracy on single digits, and on every layout in the table."""
        trained = study.trained[row]
        figures = {SINGLE: trained.test_accuracy}
        for layout in TESTED[row]:
            images, present = tests[layout]
            activation = activations_of(trained.network, images)
            for name, above in measures(layout).items():
                figures[name] = set_accuracy(activation, present, above)
        return figures

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Bars of the set accuracy over the layouts, mean of the seeds, with an example
        of each above them.
        """
        bars = {}
        for row in COMPARED:
            seeds = [
                study.figures for study in studies if (row, SINGLE) in study.figures
            ]
            if seeds:
                bars[row] = [
                    _mean_accuracy(seeds, row, layout) for layout in Scenes.layouts()
                ]
        test = data_of(studies[0].settings.data).test
        examples = {
            name: arrange(test, layout, 1).images[0].amax(0)
            for name, layout in Scenes.layouts().items()
        }
        figure = bars_under_images(examples, bars, "all digits found, % of images")
        return {"layouts": Picture(figure, self.caption)}
