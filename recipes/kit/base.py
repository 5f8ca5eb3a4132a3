"""Recipes: named experiments with published figures, presets and results."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from recipes.kit.lab import PRESETS, Lab, PresetName

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOTES = Path(__file__).parents[1] / "notes.md"
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
        source: of the published figure, with remarks.
        unit: "%" or another; "" for a plain number.
        higher_is_better: False for an error; None if neither direction is better.
        elsewhere: whether it is a figure of another implementation, which no preset measures.

    Example:
        >>> from recipes import Line
        >>> Line("CapsNet, 3 steps", "test error", published=0.25, source="Sabour et al. 2017, table 1").published
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
    keys: Iterable[Key], published: Mapping[Key, float | tuple[float | None, str]], source: str = "", **kind: Any
) -> tuple[Line, ...]:
    """The lines of a table.

    Args:
        keys: of the lines, in order.
        published: the figures of some of them, alone or with their sources.
        source: of figures without one.
        kind: arguments of all lines: ``unit``, ``higher_is_better``, ``elsewhere``.
    """
    found = {key: one if isinstance(one, tuple) else (one, source) for key, one in published.items()}
    return tuple(Line(*key, *found.get(key, ()), **kind) for key in keys)


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure with its caption.

    Args:
        figure: with a title, axes and units.
        caption: what it shows, in one or two sentences.

    Example:
        >>> from torchcaps_lab.report import new_figure
        >>> from recipes import Picture
        >>> Picture(new_figure(4, 3), "Errors of all rows.").caption
        'Errors of all rows.'
    """

    figure: "Figure"
    caption: str


@dataclass
class Outcome:
    """The results of a recipe with one seed.

    Args:
        figures: the value of each line that was measured, in the line's unit.
        facts: other facts about each row: parameters, epochs, seconds of training.
        pictures: by a short name for the file.
        curves: numbers behind the pictures, ready for JSON.

    Example:
        >>> from recipes import Outcome
        >>> Outcome(figures={("CapsNet, 3 steps", "test error"): 0.68}).figures
        {('CapsNet, 3 steps', 'test error'): 0.68}
    """

    figures: dict[Key, float] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)


Settings = TypeVar("Settings")


class Recipe(ABC, Generic[Settings]):
    """A named, complete experiment: data, networks, losses, schedules, evaluation, and the figures to compare with.

    A subclass sets the class attributes and :meth:`run`, and is registered with :func:`register_recipe`.

    Attributes:
        name: on the command line.
        title: one line, for people.
        source: where the experiment was published.
        lines: of its table, in order.
        presets: its settings, a frozen dataclass, for ``paper`` (the published ones, for a GPU), ``quick`` (two cores
            of a CPU, at most an hour) and ``smoke`` (seconds, on the digits that come with scikit-learn); most stand in
            ``recipes/presets/NAME.yaml``.
        notes: for readers of the table, such as how the settings differ from the published ones; those of the recipes
            here stand in ``recipes/notes.md``.

    Example:
        >>> from recipes import Recipe, get_recipe
        >>> recipe = get_recipe("two-digits")
        >>> isinstance(recipe, Recipe), sorted(recipe.presets)
        (True, ['paper', 'quick', 'smoke'])
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    lines: ClassVar[tuple[Line, ...]]
    presets: ClassVar[Mapping[PresetName, Any]]
    notes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, lab: Lab, settings: Settings) -> Outcome:
        """Runs the experiment with the settings of one preset and one seed, that of the lab."""

    def pictures(self, outcomes: Sequence[Outcome]) -> Mapping[str, Picture]:
        """The pictures of a result, by a short name, from the outcome of each seed: by default those of the first."""
        return outcomes[0].pictures


def notes_of(name: str) -> tuple[str, ...]:
    """The notes on a recipe in ``recipes/notes.md``; none if it has no section there."""
    _, _, section = NOTES.read_text(encoding="utf-8").partition(f"\n## {name}\n")
    return tuple(" ".join(note.split()) for note in section.partition("\n## ")[0].split("\n- ")[1:])


AnyRecipe = TypeVar("AnyRecipe", bound=type[Recipe[Any]])


def register_recipe(recipe: AnyRecipe) -> AnyRecipe:
    """Class decorator: registers a recipe under its name.

    Raises:
        ValueError: if the name is taken, a preset is missing or a line occurs twice.
    """
    if recipe.name in RECIPES:
        raise ValueError(f"a recipe named {recipe.name!r} exists already")
    if set(recipe.presets) != set(PRESETS):
        raise ValueError(f"{recipe.name} must have the presets {PRESETS}, got {tuple(recipe.presets)}")
    keys = [(line.row, line.measure) for line in recipe.lines]
    if len(set(keys)) < len(keys):
        raise ValueError(f"{recipe.name} has a line twice")
    recipe.notes = recipe.notes or notes_of(recipe.name)
    RECIPES[recipe.name] = recipe()
    return recipe


def get_recipe(name: str) -> Recipe[Any]:
    """The recipe of a name.

    Raises:
        ValueError: if there is none.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe must be one of {', '.join(RECIPES)}, got {name!r}")
    return RECIPES[name]
