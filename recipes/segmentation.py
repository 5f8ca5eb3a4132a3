"""A class for each pixel: capsules with locally constrained routing against U-Nets, on
sections of neural tissue.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, product
from typing import Any, ClassVar

from recipes.kit.base import Picture, Recipe, Study, lines_of, register_recipe
from recipes.kit.charts import Dots, dot_panels
from recipes.kit.lab import Trained
from recipes.kit.measures import half_interval
from recipes.kit.options import TrainingOptions

UNET, LARGE = "U-Net of equal size", "U-Net of ten times"
CAPSULES = {
    "model_args": {"class_kernel_size": 3},
    "loss": {"name": "LengthCrossEntropy"},
}
ROWS: dict[str, dict[str, Any]] = {
    "capsules, 1 step": CAPSULES,
    "capsules, 3 steps": {
        **CAPSULES,
        "routing": {
            "name": "DynamicRouting",
            "steps": 3,
            "squash": "half",
            "bias": True,
        },
    },
    UNET: {"model": "unet", "model_args": {"channels": [9, 18, 36, 70]}},
    LARGE: {"model": "unet", "model_args": {"channels": [28, 56, 112, 226]}},
}
IOU, DICE = "mean IoU", "mean Dice"


@register_recipe
class SegmentationRecipe(Recipe[TrainingOptions]):
    """Capsules and U-Nets on whole pictures that they were not trained on: another fold
    for each seed.
    """

    name: ClassVar = "segmentation"
    rows: ClassVar = ROWS
    lines: ClassVar = lines_of(
        product(ROWS, (IOU, DICE)),
        {},
        higher_is_better=True,
    )
    settings: ClassVar = TrainingOptions
    grows: ClassVar = True

    def train(
        self,
        study: Study,
        row: str,
        stop_at: float | None,
    ) -> Trained:
        """Trains without the fold of this seed."""
        name, options = self.job(study.settings, row, stop_at)
        data = dict(options["data"])
        if data["name"] == "Masks":
            data["fold"] = study.lab.seed % 5
        return study.lab.train(name, {**options, "data": data})

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> Mapping[str, float]:
        """Means over the classes, in percent, over the pixels of all test pictures."""
        summary = study.trained[row].summary
        return {IOU: 100 * summary["test_iou"], DICE: 100 * summary["test_dice"]}

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Means over the folds, and how far each network is above the U-Nets on the
        same folds.
        """
        figures = [study.figures for study in studies]
        measured = {row for row, _ in chain.from_iterable(figures)}
        rows = [row for row in ROWS if row in measured]
        keys = [(row, IOU) for row in rows]
        means = Dots.over(f"{IOU}, %", figures, keys, half_interval)
        above = [
            Dots.above(unet, figures, rows, IOU)
            for unet in (UNET, LARGE)
            if unet in rows
        ]
        figure = dot_panels(rows, [means, *above])
        return {"iou": Picture(figure, self.caption)}
