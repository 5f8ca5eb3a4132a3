"""Recipes: rows of networks, each trained, measured and compared with published
figures, with presets and results.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import yaml

from recipes.kit.charts import bars_across
from recipes.kit.lab import (
    PRESETS,
    Job,
    Lab,
    PresetName,
    Trained,
    accuracy_to_match,
    run_name,
)
from recipes.kit.options import TrainingOptions
from torchcaps.spec import meant
from torchcaps.whole import LARGEST_NOTE, read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parents[1]
TEST_ERROR = "test error"
RECIPES: dict[str, "Recipe[Any]"] = {}

Key = tuple[str, str]
"""A row and a measure: the place of a figure in a table."""


@dataclass(frozen=True)
class Line:
    """One line of a recipe's table, known before anything is run.

    Args:
        row: the network or variant: "3 steps, with reconstruction".
        measure: the quantity: "test error".
        published: the figure in the literature, in ``unit``; None if there is none.
        source: the source of the published figure, with remarks.
        unit: "%" or another; "" for a plain number.
        higher_is_better: False for an error; None if neither direction is better.
        elsewhere: whether it is a figure of another implementation, which no preset
            measures.

    Example:
        >>> from recipes import Line
        >>> Line(
        ...     "CapsNet, 3 steps",
        ...     "test error",
        ...     published=0.25,
        ...     source="Sabour et al. 2017, table 1",
        ... ).published
        0.25
    """

    row: str
    measure: str
    published: float | None = None
    source: str = ""
    unit: str = "%"
    higher_is_better: bool | None = False
    elsewhere: bool = False


def lines_of(
    keys: Iterable[Key],
    published: Mapping[Key, float | tuple[float | None, str]],
    source: str = "",
    **common: Any,
) -> tuple[Line, ...]:
    """Return the lines of a table.

    Args:
        keys: the row and the measure of each line, in order.
        published: the published figures of some of the lines, each alone or with its
            source.
        source: the source of the figures that come without one.
        common: arguments of all lines: ``unit``, ``higher_is_better``, ``elsewhere``.
    """
    lines = []
    for row, measure in keys:
        figure = published.get((row, measure))
        if figure is None:
            line = Line(row, measure, **common)
        elif isinstance(figure, tuple):
            line = Line(row, measure, *figure, **common)
        else:
            line = Line(row, measure, figure, source, **common)
        lines.append(line)
    return tuple(lines)


def by_line(published: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[Key, Any]:
    """Return published figures by the row and the measure of their line.

    Args:
        published: of each row, the figure and its source by the measure.
    """
    figures = {}
    for row, of_row in published.items():
        for measure, figure in of_row.items():
            figures[row, measure] = tuple(figure)
    return figures


def mean_over(seeds: Iterable[Mapping[Key, float]], key: Key) -> float:
    """Return the mean of a figure over the seeds.

    Args:
        seeds: the figures of each seed.
        key: the row and the measure.
    """
    return fmean(figures[key] for figures in seeds)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its caption.

    Args:
        figure: the figure, with a title, axes and units.
        caption: the text below the figure, in one or two sentences.

    Example:
        >>> from torchcaps_lab.report import new_figure
        >>> from recipes import Picture
        >>> Picture(new_figure(4, 3), "Errors of all rows.").caption
        'Errors of all rows.'
    """

    figure: "Figure"
    caption: str


@dataclass
class Study:
    """One run of a recipe, with one seed: what its rows share, and the results so far.

    Args:
        lab: the lab that trains the networks.
        settings: the settings of the preset.
        trained: the network of each row.
        figures: the value of each line that was measured, in the line's unit.
        facts: other facts about each row: parameters, epochs, seconds of training.
        pictures: the pictures, by a short name for the file.
        curves: the numbers behind the pictures, ready for JSON.

    Example:
        >>> from pathlib import Path
        >>> from recipes import Lab, Study
        >>> study = Study(Lab(preset="smoke", seed=0, runs=Path("runs")), None)
        >>> study.note("CapsNet", {"test error": 0.68})
        >>> study.figures
        {('CapsNet', 'test error'): 0.68}
    """

    lab: Lab
    settings: Any
    trained: dict[str, Trained] = field(default_factory=dict)
    figures: dict[Key, float] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)

    def note(self, row: str, measured: Mapping[str, float]) -> None:
        """Records figures of a row, by measure, and shows them."""
        for measure, value in measured.items():
            self.figures[row, measure] = value
        values = [f"{measure} {value:.2f}" for measure, value in measured.items()]
        self.lab.show(f"{row}: {', '.join(values)}")


Settings = TypeVar("Settings", bound=TrainingOptions)


class Recipe(Generic[Settings]):
    """A published experiment: rows of networks, all trained and measured alike, and the
    figures to compare with.

    What a recipe says stands in ``recipes/presets/NAME.yaml``; one that trains its rows
    and compares their test errors needs nothing else. If it measures more, its class
    defines the measures (:meth:`measure`), what all rows share (:meth:`begin`) and
    results of all rows together (:meth:`finish`). It is registered with
    :func:`register_recipe`.

    Attributes:
        name: the name of the recipe on the command line.
        title: a title of one line, for people.
        source: the publication of the experiment.
        rows: the rows of networks, in order, each with the options that it changes; a
            preset may name fewer, as ``rows``.
        lines: the lines of the table, in order; in the file: rows with a published test
            error and its source.
        settings: the class of the settings of a preset.
        presets: the settings for ``paper`` (the published ones, for a GPU; where none
            were published, those of a larger network or a longer training, or no such
            preset), ``quick`` (a core of a CPU, about an hour a row at most) and
            ``smoke`` (seconds, on the digits that come with scikit-learn).
        notes: for readers of the table, such as how the settings differ from the
            published ones: by default those in ``recipes/notes.md``.
        twins: for some rows, another row, measured before; training stops at its final
            validation accuracy.
        borrowed: for rows that use a network of another recipe, with the same preset:
            that recipe, and its row.
        grows: whether rows are measured one by one, each for itself: the result is
            written after each, and goes on with the rows and seeds that it does not
            have, also where their networks are gone.
        apart: whether it trains its rows in a loop of its own, which no queue can time,
            stop or resume.
        experiment: the start of the names of the runs; default: the name.
        heading: the title over the bars of the test errors; default: the title of the
            recipe.
        caption: the caption of these bars.
        captions: the captions of other pictures, by name; what depends on the results
            is filled in with :meth:`str.format`.

    Example:
        >>> from recipes import Recipe, get_recipe
        >>> recipe = get_recipe("smallnorb-em")
        >>> isinstance(recipe, Recipe), sorted(recipe.presets), len(recipe.rows) > 0
        (True, ['paper', 'quick', 'smoke'], True)
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    rows: ClassVar[Mapping[str, Any]] = {}
    lines: ClassVar[tuple[Line, ...]]
    settings: ClassVar[Callable[..., Any]] = TrainingOptions
    presets: ClassVar[Mapping[PresetName, Any]]
    notes: ClassVar[tuple[str, ...]] = ()
    twins: ClassVar[Mapping[str, str]] = {}
    borrowed: ClassVar[Mapping[str, tuple[str, str]]] = {}
    grows: ClassVar[bool] = False
    apart: ClassVar[bool] = False
    experiment: ClassVar[str] = ""
    heading: ClassVar[str] = ""
    caption: ClassVar[str] = ""
    captions: ClassVar[Mapping[str, str]] = {}

    def options(self, settings: Settings, row: str) -> dict[str, Any]:
        """Options of ``torchcaps train`` for a row: those of the preset, with what the
        row changes.
        """
        return settings.of_row(row, self.rows[row] or {})

    def job(self, settings: Settings, row: str, stop_at: float | None = None) -> Job:
        """Name of the run and options of ``torchcaps train`` for a row, as
        :meth:`Lab.train` takes them.

        ``stop_at`` is a validation accuracy, from 0 to 1, at which the training ends.

        Raises:
            ValueError: if there is no such row.
        """
        if row not in self.rows:
            raise ValueError(f"row must be one of {', '.join(self.rows)}, got {row!r}")
        options = dict(self.options(settings, row))
        if stop_at is not None:
            options["stop_at"] = stop_at
        return run_name(self.experiment or self.name, row), options

    def begin(self, study: Study) -> Any:
        """Prepares what all rows are measured with, such as test images."""

    def measure(self, study: Study, row: str, shared: Any) -> Mapping[str, float]:
        """The figures of a row, by measure, from its network, ``study.trained[row]``,
        and what :meth:`begin` prepared.
        """
        return {TEST_ERROR: study.trained[row].test_error}

    def finish(self, study: Study, shared: Any) -> None:
        """Adds results of all rows together, such as pictures: by default none."""

    def preset(self, name: PresetName) -> Settings:
        """The settings of a preset.

        Raises:
            ValueError: if the recipe has no such preset.
        """
        if name not in self.presets:
            raise ValueError(
                f"preset must be one of {', '.join(self.presets)} for {self.name}, got "
                f"{name!r}"
            )
        settings: Settings = self.presets[name]
        return settings

    def present(self, settings: Settings) -> Sequence[str]:
        """The rows of a preset."""
        return settings.rows or tuple(self.rows)

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """Trains the network of a row, or opens it if it is trained."""
        if row in self.borrowed:
            recipe, borrowed_row = self.borrowed[row]
            return get_recipe(recipe).network(study.lab, borrowed_row)
        return study.lab.train(*self.job(study.settings, row, stop_at))

    def network(self, lab: Lab, row: str) -> Trained:
        """The network of a row without a twin, for another recipe, with the settings of
        the lab's preset.
        """
        study = Study(lab, self.presets[lab.preset])
        return self.train(study, row, self._stop_at(study, row))

    def run(self, lab: Lab, settings: Settings) -> Study:
        """Trains and measures the network of each row, with the settings of one preset
        and the seed of the lab.

        Raises:
            ValueError: if the twin of a row was not measured yet.
        """
        study = Study(lab, settings)
        shared = self.begin(study)
        for row in self.present(settings):
            stop_at = self._stop_at(study, row)
            trained = study.trained[row] = self.train(study, row, stop_at)
            study.facts[row] = trained.facts
            if self.twins:
                accuracy = trained.validation_accuracy
                study.facts[row] |= {
                    "stop_at": stop_at,
                    "validation_accuracy": accuracy,
                    "reached": stop_at is None or accuracy >= stop_at,
                }
            measured = self.measure(study, row, shared)
            if measured:
                study.note(row, measured)
            if self.grows:
                study.facts[row]["figures"] = dict(measured)
        self.finish(study, shared)
        return study

    def pictures(self, studies: Sequence[Study]) -> Mapping[str, Picture]:
        """The pictures of a result, by a short name, from the study of each seed: by
        default what :meth:`finish` drew of the first or, if that is nothing, bars of
        the test errors, if they were measured: means of the seeds.
        """
        if studies[0].pictures:
            return studies[0].pictures
        errors = {}
        for key in dict.fromkeys(chain.from_iterable(seed.figures for seed in studies)):
            if key[1] == TEST_ERROR:
                seeds = [seed.figures for seed in studies if key in seed.figures]
                errors[key] = mean_over(seeds, key)
        if not errors:
            return {}
        title = self.heading or self.title
        return {"errors": error_bars(self.lines, errors, title, self.caption)}

    def _stop_at(self, study: Study, row: str) -> float | None:
        """The ``stop_at`` of the settings, or what the twin reached, whichever is less;
        None if there is neither.
        """
        limits = [getattr(study.settings, "stop_at", None)]
        if row in self.twins:
            twin = self.twins[row]
            facts = {**study.lab.facts, **study.facts}
            if twin not in facts:
                raise ValueError(
                    f"rows must have {twin!r} before {row!r}, whose training ends at "
                    "its accuracy"
                )
            limits.append(accuracy_to_match(facts[twin]["validation_accuracy"]))
        return min((limit for limit in limits if limit is not None), default=None)


def facts_of(name: str) -> dict[str, Any]:
    """What ``recipes/presets/NAME.yaml`` says, and the notes in ``recipes/notes.md``;
    empty where they say nothing.
    """
    file = FOLDER / "presets" / f"{name}.yaml"
    facts = yaml.safe_load(read_text(file, LARGEST_NOTE)) if file.is_file() else {}
    if "lines" in facts:
        rows = facts.get("rows", {})
        lines = []
        for row, figure in facts["lines"].items():
            line = Line(row, TEST_ERROR, *figure)
            lines.append(replace(line, elsewhere=row not in rows))
        facts["lines"] = tuple(lines)
    page = read_text(FOLDER / "notes.md", LARGEST_NOTE)
    _, _, section = page.partition(f"\n## {name}\n")
    notes = section.partition("\n## ")[0].split("\n- ")[1:]
    return {"notes": tuple(" ".join(note.split()) for note in notes), **facts}


AnyRecipe = TypeVar("AnyRecipe", bound=type[Recipe[Any]])

_IN_FILES = (
    "title",
    "source",
    "rows",
    "lines",
    "notes",
    "experiment",
    "heading",
    "caption",
    "captions",
)
"""The attributes of a recipe that its file may hold."""


def register_recipe(recipe: AnyRecipe) -> AnyRecipe:
    """Class decorator: completes a recipe with what its file says, and registers it
    under its name.

    Raises:
        ValueError: if the name is taken, a preset is missing or a line occurs twice.
    """
    if recipe.name in RECIPES:
        raise ValueError(f"a recipe named {recipe.name!r} exists already")
    facts = facts_of(recipe.name)
    if not hasattr(recipe, "presets"):
        recipe.presets = {
            preset: recipe.settings(**facts[preset])
            for preset in PRESETS
            if preset in facts
        }
    for attribute in _IN_FILES:
        if attribute in facts and attribute not in vars(recipe):
            setattr(recipe, attribute, facts[attribute])
    if {*recipe.presets, "paper"} != {*PRESETS}:
        raise ValueError(
            f"{recipe.name} must have the presets quick and smoke, and may have paper, "
            f"got {tuple(recipe.presets)}"
        )
    keys = [(line.row, line.measure) for line in recipe.lines]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{recipe.name} has a line twice")
    RECIPES[recipe.name] = recipe()
    return recipe


def get_recipe(name: str) -> Recipe[Any]:
    """The recipe of a name.

    Raises:
        ValueError: if there is none.
    """
    if name not in RECIPES:
        near = meant(name.replace("_", "-"), RECIPES)
        raise ValueError(
            f"there is no recipe {name!r}{near}\n  The recipes: {', '.join(RECIPES)}"
        )
    return RECIPES[name]


def error_bars(
    lines: Sequence[Line], figures: Mapping[Key, float], title: str, caption: str = ""
) -> Picture:
    """Bars of the test error, ours and the published figure beside each other, a pair
    for each row that has either.

    The rows stand from top to bottom in the order of the lines; the axis is linear and
    begins at 0, its unit is that of the lines. A row that has only one of the two
    figures shows one bar.

    Args:
        lines: the lines of the recipe; those of other measures are left out.
        figures: our figures, by (row, measure), as in :class:`Study`.
        title: the text over the bars.
        caption: the text below the bars; default: one made of the title.

    Raises:
        ValueError: if no line of the test error has a figure, or their units differ.
    """
    shown = [
        line
        for line in lines
        if line.measure == TEST_ERROR
        and ((line.row, TEST_ERROR) in figures or line.published is not None)
    ]
    units = {line.unit for line in shown}
    if len(units) != 1:
        raise ValueError(
            f"the lines of {TEST_ERROR!r} must have figures, and one unit, got units "
            f"{sorted(units)}"
        )
    ours = [figures.get((line.row, TEST_ERROR)) for line in shown]
    published = [line.published for line in shown]
    figure = bars_across([line.row for line in shown], ours, published)
    (unit,) = units
    (axes,) = figure.axes
    axes.set_xlabel(f"{TEST_ERROR}, {unit}" if unit else TEST_ERROR)
    axes.set_title(title, fontsize=11)
    return Picture(
        figure,
        caption or f"{title}: {TEST_ERROR} of each row, ours and the published figure.",
    )
