"""Error against compute: trainings of growing length, and how far a power law through
them is from published errors.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

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
from torchcaps_lab.report import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MINUTES = "minutes of training"
CURVES: dict[str, dict[str, Any]] = facts_of("compute")["curves"]
_FAR = 1e4
"""Epochs that a picture shows at most."""

EPOCHS: dict[str, tuple[str, int]] = {}
"""The curve and the epochs of each row."""

for _curve in CURVES:
    for _count in CURVES[_curve]["epochs"]:
        EPOCHS[f"{_curve}, epochs: {_count}"] = _curve, _count

PUBLISHED = {
    (row, TEST_ERROR): tuple(CURVES[curve]["published"])
    for row, (curve, _) in EPOCHS.items()
}


class Law(NamedTuple):
    """A power law, error = at_one * epochs ** exponent.

    Args:
        at_one: the error after one epoch, in percent.
        exponent: the exponent, below 0 where more training helps.
        deviation: the standard error of the exponent; NaN for two points.
    """

    at_one: float
    exponent: float
    deviation: float

    @classmethod
    def through(cls, epochs: Sequence[float], errors: Sequence[float]) -> "Law":
        """The line of least squares through the logarithms."""
        line = linregress(list(map(math.log, epochs)), list(map(math.log, errors)))
        deviation = line.stderr if len(epochs) > 2 else math.nan
        return cls(math.exp(line.intercept), line.slope, deviation)

    def error_after(self, epochs: float) -> float:
        """The error after some epochs, in percent."""
        return self.at_one * epochs**self.exponent

    def epochs_to(self, error: float) -> float:
        """After how many the law reaches an error; infinite where it never does."""
        if self.exponent >= 0:
            return math.inf
        return (error / self.at_one) ** (1 / self.exponent)


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
        *lines_of(
            [(row, MINUTES) for row in rows],
            {},
            unit="",
            higher_is_better=None,
        ),
    )
    settings: ClassVar = TrainingOptions
    grows: ClassVar = True

    def measure(
        self,
        study: Study,
        row: str,
        shared: Any,
    ) -> Mapping[str, float]:
        """The test error, and the time of the training."""
        trained = study.trained[row]
        if CURVES[EPOCHS[row][0]].get("followed"):
            study.curves[row] = {"epochs": trained.by_epoch(*FOLLOWED)}
        return {
            TEST_ERROR: trained.test_error,
            MINUTES: trained.summary["training_seconds"] / 60,
        }

    def pictures(self, studies: Sequence[Study]) -> dict[str, Picture]:
        """Each curve with its law, down to the error that was aimed at, and what the
        routing of followed rows did; the laws are kept with the result.
        """
        pictures = {}
        shown_rows = {
            row: of_row["epochs"]
            for row in self.rows
            if (of_row := studies[0].curves.get(row)) is not None
        }
        if shown_rows:
            figure = _of_routing(shown_rows)
            pictures["routing"] = Picture(figure, self.captions["routing"])
        shown = {}
        for curve in CURVES:
            points = _points(studies, curve)
            if len({point.epochs for point in points}) > 1:
                shown[curve] = points
        if not shown:
            return pictures
        rows = math.ceil(len(shown) / 3)
        figure = new_figure(10, 3.0 * rows)
        for place, (curve, points) in enumerate(shown.items(), 1):
            epochs = [point.epochs for point in points]
            law = Law.through(epochs, [point.error for point in points])
            aim = CURVES[curve]["aim"]
            minutes_an_epoch = min(point.minutes / point.epochs for point in points)
            studies[0].curves[curve] = {
                **law._asdict(),
                "aim": aim,
                "epochs": law.epochs_to(aim),
                "hours": law.epochs_to(aim) * minutes_an_epoch / 60,
            }
            axes = figure.add_subplot(rows, 3, place)
            axes.set_title(curve, fontsize=8)
            _draw(axes, points, law, aim)
        return {"errors": Picture(figure, self.caption), **pictures}


FOLLOWED = {
    "assignment_entropy_class_caps": "entropy of the assignment",
    "dead_capsules_primary_caps": "share of dead primary capsules",
    "train_loss": "training loss",
}
"""Columns of the metrics of a run, with the names of their axes."""


def _of_routing(rows: Mapping[str, Mapping[str, Sequence[float]]]) -> "Figure":
    """One panel for each of what was followed, one line for each row."""
    figure = new_figure(10, 3.2)
    panels = figure.subplots(1, len(FOLLOWED))
    for axes, (name, label) in zip(panels, FOLLOWED.items(), strict=True):
        for row, of_row in rows.items():
            epochs = range(1, len(of_row[name]) + 1)
            axes.plot(epochs, of_row[name], label=EPOCHS[row][0])
        axes.set(xlabel="epoch", ylabel=label)
        axes.set_ylim(bottom=0)
    panels[0].legend(fontsize=7)
    return figure


class _Point(NamedTuple):
    epochs: int
    error: float
    minutes: float


def _points(studies: Sequence[Study], curve: str) -> list[_Point]:
    """The trainings of a curve, of all seeds, by their length."""
    points = []
    for row, (curve_of_row, epochs) in EPOCHS.items():
        for study in studies:
            error = study.figures.get((row, TEST_ERROR))
            if curve_of_row == curve and error is not None:
                points.append(_Point(epochs, error, study.figures[row, MINUTES]))
    return points


def _draw(
    axes: "Axes",
    points: Sequence[_Point],
    law: Law,
    aim: float,
) -> None:
    """Draws the trainings, the law through them, and the error that was aimed at."""
    epochs = [point.epochs for point in points]
    axes.loglog(epochs, [point.error for point in points], "o")
    ends = [epochs[0], min(law.epochs_to(aim), _FAR)]
    axes.loglog(
        ends,
        list(map(law.error_after, ends)),
        "--",
        color="C0",
    )
    axes.axhline(aim, color="0.5", linewidth=1)
    plain_ticks(axes.xaxis)
    plain_ticks(axes.yaxis)
    axes.set(xlabel="epochs of a whole training", ylabel="test error, %")
