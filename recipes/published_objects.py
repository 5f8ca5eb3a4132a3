"""Slots on data that published figures are measured on: tetrominoes and sprites, drawn
from their published descriptions (Locatello et al. 2020).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from recipes.kit.base import Line, Recipe, Study, facts_of, register_recipe
from recipes.kit.lab import data_of, first_of
from recipes.kit.options import TrainingOptions
from recipes.object_discovery import PIXELS, best_clustering, clusters_of
from torchcaps.models import ImageClassifier, Prediction

SLOTS = "slots"
GRID = "a grid of equal rectangles, which looks at nothing"
UNTRAINED = (PIXELS, GRID)

MEASURES = {
    "fg_ari": "FG-ARI",
    "ari": "ARI with the ground",
    "mbo": "mean best overlap",
    "fg_ari_assigned": "FG-ARI, assigned pixels",
}
"""The names of the figures of the task."""

_FITTED = 200
"""Validation images that K-Means is set on."""


class FixedGrid(ImageClassifier):
    """Cuts every image into the same rectangles, one for each slot: a control for
    measures that a blind answer can win.

    Args:
        image_shape: (C, H, W).
        slots: their number.
    """

    def __init__(self, image_shape: tuple[int, int, int], slots: int) -> None:
        super().__init__(image_shape, slots)
        _, height, width = image_shape
        columns = math.ceil(math.sqrt(slots))
        rows = math.ceil(slots / columns)
        down = torch.arange(height) * rows // height
        across = torch.arange(width) * columns // width
        cell = (down[:, None] * columns + across).clamp_max(slots - 1)
        self.masks = torch.nn.functional.one_hot(cell, slots).movedim(-1, 0).float()

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The rectangles as masks, each drawn in its mean colour."""
        pixels = self.masks.flatten(1)
        colours = images.flatten(2) @ pixels.mT / pixels.sum(1)
        drawn = torch.einsum("bcj,jhw->bchw", colours, self.masks)
        masks = self.masks.expand(len(images), -1, -1, -1)
        return Prediction(masks.flatten(2).amax(2), None, drawn, masks=masks)


class PublishedObjects(Recipe[TrainingOptions]):
    """Trains slots to draw images, and measures which objects they found, as published
    figures do; beside them answers that learn nothing.
    """

    settings: ClassVar = TrainingOptions
    grows: ClassVar = True

    def __init_subclass__(cls) -> None:
        facts = facts_of(cls.name)
        cls.rows = {**facts["rows"], **dict.fromkeys(UNTRAINED)}
        cls.borrowed = dict.fromkeys(UNTRAINED, (cls.name, SLOTS))
        common: dict[str, Any] = {"unit": "points", "higher_is_better": True}
        lines = []
        for row, (key, measure) in product(cls.rows, MEASURES.items()):
            # K-Means and the grid have no colours to assign pixels by.
            if row in UNTRAINED and key.endswith("assigned"):
                continue
            figure = facts["published"].get(row, ()) if key == "fg_ari" else ()
            lines.append(Line(row, measure, *figure, **common))
        for row, figure in facts["elsewhere"].items():
            line = Line(row, MEASURES["fg_ari"], *figure, **common)
            lines.append(replace(line, elsewhere=True))
        cls.lines = tuple(lines)

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> Mapping[str, float]:
        """What the slots of test images say of their objects."""
        trained = study.trained[row]
        task = trained.classifier.task
        network = trained.network
        test = data_of(self.options(study.settings, SLOTS)["data"]).test
        slots = len(test.classes)
        if row == PIXELS:
            validation = first_of(trained.data.validation, _FITTED)
            clustering = best_clustering(task, network, row, validation)
            study.facts[row]["K-Means"] = clustering._asdict()
            network = clusters_of(network, row, slots, clustering)
        if row == GRID:
            network = FixedGrid(network.image_shape, slots)
        figures = task.examine(network, test).figures
        return {
            measure: 100 * figures[key]
            for key, measure in MEASURES.items()
            if key in figures
        }


@register_recipe
class OnTetrominoes(PublishedObjects):
    """Three tetrominoes on black."""

    name: ClassVar = "tetrominoes"


@register_recipe
class OnMultiDSprites(PublishedObjects):
    """Two to five coloured sprites on a coloured ground."""

    name: ClassVar = "multi-dsprites"
