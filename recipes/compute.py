"""Error against compute: trainings of growing length, and how far a power law through
them is from published errors.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from scipy.stats import linregress

from recipes.kit.base import (
    TEST_ERROR,
    Picture,
    Recipe,
    Study,
    facts_of,
    lines_of,
    register_recipe,
)
from recipes.kit.charts import plain_ticks
from recipes.kit.options import TrainingOptions
from torchcaps_lab.report.canvas import new_figure

MINUTES = "minutes of training"
CURVES: dict[str, dict[str, Any]] = facts_of("compute")["curves"]
_FAR = 1e4
"""Epochs that a picture shows at most."""

EPOCHS = {
    f"{curve}, epochs: {count}": (curve, count)
    for curve, one in CURVES.items()
    for count in one["epochs"]
}
PUBLISHED = {
    (row, TEST_ERROR): tuple(CURVES[curve]["published"])
    for row, (curve, _) in EPOCHS.items()
}


class Law(NamedTuple):
    """A power law, error = at_one * epochs ** exponent.

    Args:
        at_one: percent after one epoch.
        exponent: below 0 where more training helps.
        deviation: standard error of the exponent; NaN for two points.
    """

    at_one: float
    exponent: float
    deviation: float

    @classmethod
    def through(cls, epochs: Sequence[float], errors: Sequence[float]) -> "Law":
        """The line of least squares through the logarithms."""
        line = linregress(
            [math.log(one) for one in epochs], [math.log(one) for one in errors]
        )
        return cls(
            math.exp(line.intercept),
            line.slope,
            line.stderr if len(epochs) > 2 else math.nan,
        )

    def epochs_to(self, error: float) -> float:
        """After how many the law reaches an error; infinite where it never does."""
        return (
            (error / self.at_one) ** (1 / self.exponent)
            if self.exponent < 0
            else math.inf
        )


@register_recipe
class ComputeRecipe(Recipe[TrainingOptions]):
    """Each length is a whole training with its own schedule, from the start."""

    name: ClassVar = "compute"
    rows: ClassVar = {
        row: {**CURVES[curve]["options"], "epochs": count}
        for row, (curve, count) in EPOCHS.items()
    }
    lines: ClassVar = (
        *lines_of([(row, TEST_ERROR) for row in rows], PUBLISHED),
        *lines_of([(row, MINUTES) for row in rows], {}, unit="", higher_is_better=None),
    )
    settings: ClassVar = TrainingOptions
    grows: ClassVar = True

    def measure(self, study: Study, row: str, given: Any) -> Mapping[str, float]:
        """The test error, and the time of the training."""
        trained = study.trained[row]
        return {
            TEST_ERROR: trained.test_error,
            MINUTES: trained.summary["training_seconds"] / 60,
        }

    def finish(self, study: Study, given: Any) -> None:
        """The picture is of all rows that there are."""

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Each curve with its law, down to the error that was aimed at; the laws are
        kept with the result.
        """
        found = {curve: _points(studies, curve) for curve in CURVES}
        shown = {
            curve: points
            for curve, points in found.items()
            if len({one.epochs for one in points}) > 1
        }
        rows = math.ceil(len(shown) / 3)
        figure = new_figure(10, 3.0 * rows)
        for place, (curve, points) in enumerate(shown.items(), 1):
            epochs, errors = (
                [one.epochs for one in points],
                [one.error for one in points],
            )
            aim, law = CURVES[curve]["aim"], Law.through(epochs, errors)
            hours = (
                law.epochs_to(aim)
                * min(one.minutes / one.epochs for one in points)
                / 60
            )
            studies[0].curves[curve] = {
                **law._asdict(),
                "aim": aim,
                "epochs": law.epochs_to(aim),
                "hours": hours,
            }
            axes = figure.add_subplot(rows, 3, place)
            axes.loglog(epochs, errors, "o")
            reached = [epochs[0], min(law.epochs_to(aim), _FAR)]
            axes.loglog(
                reached,
                [law.at_one * one**law.exponent for one in reached],
                "--",
                color="C0",
            )
            axes.axhline(aim, color="0.5", linewidth=1)
            for axis in (axes.xaxis, axes.yaxis):
                plain_ticks(axis)
            axes.set_title(curve, fontsize=8)
            axes.set(xlabel="epochs of a whole training", ylabel="test error, %")
        return {"errors": Picture(figure, self.caption)} if shown else {}


class _Point(NamedTuple):
    epochs: int
    error: float
    minutes: float


def _points(studies: Sequence[Study], curve: str) -> list[_Point]:
    """The trainings of a curve, of all seeds, by their length."""
    rows = {row: count for row, (one, count) in EPOCHS.items() if one == curve}
    figures = [study.figures for study in studies]
    there = [(row, one) for row in rows for one in figures if (row, TEST_ERROR) in one]
    return [
        _Point(rows[row], one[row, TEST_ERROR], one[row, MINUTES]) for row, one in there
    ]
