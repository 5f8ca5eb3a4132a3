"""A floor under the standardised costs of EM routing: how large, for 1, 2 and 3 steps,
on toys that are held out.
"""

from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

from recipes.kit.base import (
    TEST_ERROR,
    Picture,
    Recipe,
    Study,
    lines_of,
    register_recipe,
)
from recipes.kit.options import TrainingOptions
from torchcaps_lab.report import new_figure

HELD_OUT = "error on held-out toys"
STEPS = {1: "1 step", 2: "2 steps", 3: "3 steps"}
FLOORS = (0.0, 0.1, 0.3, 1.0)

ROWS = {
    f"{STEPS[steps]}, floor {floor:g}": {
        "routing": {"steps": steps, "cost_floor": floor}
    }
    for steps, floor in product(STEPS, FLOORS)
}


@register_recipe
class EMFloor(Recipe[TrainingOptions]):
    """The floor is chosen on toys of the training half that no network saw; the test
    half is reported beside.
    """

    name: ClassVar = "em-floor"
    grows: ClassVar = True
    rows: ClassVar = ROWS
    lines: ClassVar = lines_of(product(ROWS, (HELD_OUT, TEST_ERROR)), {})

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> dict[str, float]:
        """The errors on both."""
        trained = study.trained[row]
        return {
            HELD_OUT: 100 * (1 - trained.validation_accuracy),
            TEST_ERROR: trained.test_error,
        }

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Both errors over the floor: a point for each seed, a line for their means."""
        figure = new_figure(9.0, 3.4, "constrained")
        panels = figure.subplots(1, 2)
        for axes, measure in zip(panels, (HELD_OUT, TEST_ERROR), strict=True):
            for number, steps in enumerate(STEPS.values()):
                errors = errors_over_floors(studies, steps, measure)
                color = f"C{number}"
                for floor, seeds in errors.items():
                    axes.plot([floor] * len(seeds), seeds, "o", color=color, alpha=0.3)
                means = [fmean(seeds) for seeds in errors.values()]
                axes.plot(list(errors), means, "-o", color=color, label=steps)
            axes.set(xlabel="floor c", ylabel=f"{measure}, %")
            axes.set_ylim(0, 1.05 * axes.dataLim.y1)
            axes.grid(alpha=0.3)
        panels[0].legend(frameon=False, loc="lower right")
        return {"floors": Picture(figure, self.caption)}


def errors_over_floors(
    studies: Sequence[Study], steps: str, measure: str
) -> dict[float, list[float]]:
    """The errors of all seeds, by the floor, for floors that every seed has."""
    errors = {}
    for floor in FLOORS:
        key = f"{steps}, floor {floor:g}", measure
        seeds = [study.figures[key] for study in studies if key in study.figures]
        if len(seeds) == len(studies):
            errors[floor] = seeds
    return errors
