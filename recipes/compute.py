"""Error against compute: trainings of growing length, and how far a power law through them is from published errors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from scipy.stats import linregress

from recipes.kit.base import TEST_ERROR, Picture, Recipe, Study, facts_of, lines_of, register_recipe
from recipes.kit.options import TrainingOptions
from torchcaps_lab.report.canvas import new_figure

MINUTES = "minutes of training"
CURVES: dict[str, dict[str, Any]] = facts_of("compute")["curves"]
EPOCHS = {f"{curve}, epochs: {count}": (curve, count) for curve, one in CURVES.items() for count in one["epochs"]}


class Law(NamedTuple):
    """A power law through errors over minutes, error = at_one * minutes ** exponent.

    Args:
        at_one: percent after one minute.
        exponent: below 0 where more training helps.
        deviation: standard error of the exponent; NaN for two points.
    """

    at_one: float
    exponent: float
    deviation: float

    @classmethod
    def through(cls, minutes: Sequence[float], errors: Sequence[float]) -> "Law":
        """The line of least squares through the logarithms."""
        line = linregress([math.log(one) for one in minutes], [math.log(one) for one in errors])
        return cls(math.exp(line.intercept), line.slope, line.stderr if len(minutes) > 2 else math.nan)

    def minutes_to(self, error: float) -> float:
        """When the law reaches an error; infinite where it never does."""
        return (error / self.at_one) ** (1 / self.exponent) if self.exponent < 0 else math.inf


@register_recipe
class ComputeRecipe(Recipe[TrainingOptions]):
    """Each length is a whole training with its own schedule, from the start."""

    name: ClassVar = "compute"
    rows: ClassVar = {row: {**CURVES[curve]["options"], "epochs": count} for row, (curve, count) in EPOCHS.items()}
    lines: ClassVar = lines_of([(row, measure) for row in rows for measure in (TEST_ERROR,)], {}) + lines_of(
        [(row, MINUTES) for row in rows], {}, unit="", higher_is_better=None
    )
    settings: ClassVar = TrainingOptions
    grows: ClassVar = True

    def measure(self, study: Study, row: str, given: Any) -> Mapping[str, float]:
        """The test error, and the time of the training."""
        trained = study.trained[row]
        return {TEST_ERROR: trained.test_error, MINUTES: trained.summary["training_seconds"] / 60}

    def finish(self, study: Study, given: Any) -> None:
        """The picture is of all rows that there are."""

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Each curve with its law, down to the error that was aimed at; the laws are kept with the result."""
        found = {curve: _points(studies, curve) for curve in CURVES}
        shown = {curve: points for curve, points in found.items() if len(points) > 1}
        if not shown:
            return {}
        figure = new_figure(10, 3.0 * math.ceil(len(shown) / 3))
        for place, (curve, points) in enumerate(shown.items(), 1):
            aim, law = CURVES[curve]["aim"], Law.through(*zip(*points, strict=True))
            studies[0].curves[curve] = {**law._asdict(), "aim": aim, "hours to the aim": law.minutes_to(aim) / 60}
            axes = figure.add_subplot(math.ceil(len(shown) / 3), 3, place)
            axes.loglog(*zip(*points, strict=True), "o", color="C0")
            end = min(law.minutes_to(aim), 1e6)
            axes.loglog([points[0][0], end], [law.at_one * one**law.exponent for one in (points[0][0], end)], "--")
            axes.axhline(aim, color="0.5", linewidth=1)
            axes.set_title(curve, fontsize=9)
            axes.set(xlabel="minutes of training", ylabel="test error, %")
        return {"errors": Picture(figure, self.caption)}


def _points(studies: Sequence[Study], curve: str) -> list[tuple[float, float]]:
    """Minutes and errors of the trainings of a curve, of all seeds, by their length."""
    rows = [row for row, (one, _) in EPOCHS.items() if one == curve]
    figures = [study.figures for study in studies]
    return [(one[row, MINUTES], one[row, TEST_ERROR]) for row in rows for one in figures if (row, TEST_ERROR) in one]
