"""A class for each pixel: capsules with locally constrained routing against U-Nets, on sections of neural tissue."""

from collections.abc import Mapping
from typing import Any, ClassVar

from recipes.kit.base import Picture, Recipe, Study, lines_of, register_recipe
from recipes.kit.charts import Dots, dot_panels
from recipes.kit.lab import Trained
from recipes.kit.options import TrainingOptions

CAPSULES, UNET = ("capsules, 3 steps", "capsules, 1 step"), "U-Net of equal size"
RATE = {"optimizer": {"lr": 0.005}, "scheduler": {"max_lr": 0.005}}
ROWS: dict[str, dict[str, Any]] = {
    CAPSULES[0]: {},
    CAPSULES[1]: {"routing": {"name": "DynamicRouting", "steps": 1, "squash": "half", "bias": True}},
    UNET: {"model": "unet", "model_args": {"channels": [9, 18, 36, 70]}, **RATE},
    "U-Net of ten times": {"model": "unet", "model_args": {"channels": [28, 56, 112, 226]}, **RATE},
}
IOU, DICE, DIFFERENCE = "mean IoU", "mean Dice", "mean IoU above that of the U-Net of equal size"


@register_recipe
class SegmentationRecipe(Recipe[TrainingOptions]):
    """Capsules and U-Nets on whole pictures that they were not trained on: another fold for each seed."""

    name: ClassVar = "segmentation"
    rows: ClassVar = ROWS
    lines: ClassVar = (
        *lines_of([(row, measure) for row in ROWS for measure in (IOU, DICE)], {}, higher_is_better=True),
        *lines_of([(row, DIFFERENCE) for row in CAPSULES], {}, higher_is_better=True, unit="points"),
    )
    settings: ClassVar = TrainingOptions

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains without the fold of this seed."""
        name, options = self.job(study.settings, row, stop_at)
        data = dict(options["data"])
        if data["name"] == "Masks":
            data["fold"] = study.lab.seed % 5
        return study.lab.train(name, {**options, "data": data})

    def measure(self, study: Study, row: str, given: Any) -> Mapping[str, float]:
        """Means over the classes, in percent, over the pixels of all test pictures."""
        summary = study.trained[row].summary
        return {IOU: 100 * summary["test_iou"], DICE: 100 * summary["test_dice"]}

    def finish(self, study: Study, given: Any) -> None:
        """The differences, and bars."""
        for row in CAPSULES:
            if row in study.trained and UNET in study.trained:
                study.note(row, {DIFFERENCE: study.figures[row, IOU] - study.figures[UNET, IOU]})
        rows = list(study.trained)
        panels = [
            Dots(f"{one[5:]}, %", [study.figures[row, one] for row in rows], [0.0] * len(rows)) for one in (IOU, DICE)
        ]
        study.pictures["iou"] = Picture(dot_panels(rows, panels), self.caption)
