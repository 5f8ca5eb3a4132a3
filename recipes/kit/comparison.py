"""The base of most recipes: rows of networks, each trained, measured and compared with published figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from recipes.kit.base import Key, Line, Outcome, Picture, Recipe, Settings
from recipes.kit.charts import bars_across
from recipes.kit.lab import Job, Lab, Trained, run_name

TEST_ERROR = "test error"


@dataclass(kw_only=True)
class Study(Outcome):
    """One run of a comparison, with one seed: data shared by its rows, and the outcome so far.

    Args:
        lab: trains the networks.
        settings: of the preset.
        trained: the network of each row.

    Example:
        >>> from pathlib import Path
        >>> from recipes import Lab, Study
        >>> study = Study(lab=Lab(preset="smoke", seed=0, runs=Path("runs")), settings=None)
        >>> study.note("CapsNet", {"test error": 0.68})
        >>> study.figures
        {('CapsNet', 'test error'): 0.68}
    """

    lab: Lab
    settings: Any
    trained: dict[str, Trained] = field(default_factory=dict)

    def note(self, row: str, found: Mapping[str, float]) -> None:
        """Records figures of a row, by measure, and shows them."""
        self.figures |= {(row, measure): value for measure, value in found.items()}
        self.lab.show(f"{row}: " + ", ".join(f"{measure} {value:.2f}" for measure, value in found.items()))


class Comparison(Recipe[Settings]):
    """Rows of networks, all trained and measured alike.

    A subclass defines how a row is trained (:meth:`options`). If it measures more than the test error, it also defines
    the measures (:meth:`measure`), what all rows share (:meth:`begin`) and results of all rows together
    (:meth:`finish`).

    Attributes:
        rows: of networks, in order; the settings of a preset may name fewer, as ``rows``.
        twins: for some rows, an earlier row; training stops at its final validation accuracy.
        borrowed: for rows that use a network of another recipe, with the same preset: that recipe, and its row.
        experiment: start of the names of the runs; default: the name.
        heading: of the bars of the test errors; default: the title.
        caption: of these bars.

    Example:
        >>> from recipes import Comparison, get_recipe
        >>> recipe = get_recipe("smallnorb-em")
        >>> isinstance(recipe, Comparison), len(recipe.rows) > 0
        (True, True)
    """

    rows: ClassVar[Sequence[str]] = ()
    twins: ClassVar[Mapping[str, str]] = {}
    borrowed: ClassVar[Mapping[str, tuple[type["Comparison[Any]"], str]]] = {}
    experiment: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    caption: ClassVar[str] = ""

    def options(self, settings: Settings, row: str) -> dict[str, Any]:
        """Options of ``torchcaps train`` for a row.

        Raises:
            NotImplementedError: if the recipe trains in another way, see :meth:`train`.
        """
        raise NotImplementedError(f"{self.name} gives no options of torchcaps train")

    def job(self, settings: Settings, row: str, stop_at: float | None = None) -> Job:
        """Name of the run and options of ``torchcaps train`` for a row, as :meth:`Lab.train` takes them.

        ``stop_at`` is a validation accuracy, from 0 to 1, at which the training ends.

        Raises:
            ValueError: if there is no such row.
        """
        rows = self.rows or self.present(settings)
        if row not in rows:
            raise ValueError(f"row must be one of {', '.join(rows)}, got {row!r}")
        stop = {} if stop_at is None else {"stop_at": stop_at}
        return run_name(self.experiment or self.name, row), {**self.options(settings, row), **stop}

    def begin(self, study: Study) -> Any:
        """Prepares what all rows are measured with, such as test images."""

    def measure(self, study: Study, row: str, given: Any) -> Mapping[str, float]:
        """The figures of a row, by measure, from its network, ``study.trained[row]``, and what :meth:`begin` gave."""
        return {TEST_ERROR: study.trained[row].test_error}

    def finish(self, study: Study, given: Any) -> None:
        """Adds results of all rows together: by default bars of the test errors."""
        title = self.heading or self.title
        study.pictures["errors"] = error_bars(self.lines, study.figures, title, self.caption)

    def present(self, settings: Settings) -> Sequence[str]:
        """The rows of a preset."""
        return getattr(settings, "rows", ()) or self.rows

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row, or opens it if it is trained."""
        if row in self.borrowed:
            recipe, own = self.borrowed[row]
            return recipe().network(study.lab, own)
        return study.lab.train(*self.job(study.settings, row, stop_at))

    def network(self, lab: Lab, row: str) -> Trained:
        """The network of a row without a twin, for another recipe, with the settings of the lab's preset."""
        study = Study(lab=lab, settings=self.presets[lab.preset])
        return self.train(study, row, self._stop_at(study, row))

    def run(self, lab: Lab, settings: Settings) -> Outcome:
        """Trains and measures the network of each row."""
        study = Study(lab=lab, settings=settings)
        given = self.begin(study)
        for row in self.present(settings):
            stop_at = self._stop_at(study, row)
            trained = study.trained[row] = self.train(study, row, stop_at)
            study.facts[row] = trained.facts
            if self.twins:
                reached = trained.validation_accuracy
                enough = stop_at is None or reached >= stop_at
                study.facts[row] |= {"stop_at": stop_at, "validation_accuracy": reached, "reached": enough}
            if found := self.measure(study, row, given):
                study.note(row, found)
        self.finish(study, given)
        return study

    def _stop_at(self, study: Study, row: str) -> float | None:
        """The ``stop_at`` of the settings, or what the twin reached, whichever is less; None if there is neither."""
        limits = [getattr(study.settings, "stop_at", None)]
        if row in self.twins:
            limits.append(study.trained[self.twins[row]].accuracy_to_match)
        return min((one for one in limits if one is not None), default=None)


def error_bars(
    lines: Sequence[Line], figures: Mapping[Key, float], title: str, caption: str = "", measure: str = TEST_ERROR
) -> Picture:
    """Bars of one measure, ours and the published figure beside each other, a pair for each row that has either.

    The rows stand from top to bottom in the order of the lines; the axis is linear and begins at 0, its unit is that
    of the lines. A row that has only one of the two figures shows one bar.

    Args:
        lines: of the recipe; those of other measures are left out.
        figures: ours, by (row, measure), as in :class:`~recipes.kit.base.Outcome`.
        title: over the bars.
        caption: under them; default: one made of the title.
        measure: which of the lines' measures.

    Raises:
        ValueError: if no line of this measure has a figure, or their units differ.
    """
    there = [line for line in lines if (line.row, measure) in figures or line.published is not None]
    shown = [line for line in there if line.measure == measure]
    units = {line.unit for line in shown}
    if len(units) != 1:
        raise ValueError(f"the lines of {measure!r} must have figures, and one unit, got units {sorted(units)}")
    ours = [figures.get((line.row, measure)) for line in shown]
    figure = bars_across([line.row for line in shown], ours, [line.published for line in shown])
    (unit,), (axes,) = units, figure.axes
    axes.set_xlabel(f"{measure}, {unit}" if unit else measure)
    axes.set_title(title, fontsize=11)
    return Picture(figure, caption or f"{title}: {measure} of each row, ours and the published figure.")
