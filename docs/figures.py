"""Write the figures of results into the pages: ``python -m docs.figures``.

A template in ``docs/templates`` has an expression in the place of each figure, as
``{{ mean("affine", "CapsNet", "affine test accuracy") | to(1) }}``. It makes the page of
its name, or what stands between the marks of that page. Where the page has several
pairs of marks, the end mark divides the template.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from recipes.kit.measures import half_interval
from recipes.kit.results import write_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results"
BEGIN, END = "<!-- from the results -->", "<!-- until here -->"


class Seeds(NamedTuple):
    """The figures of one row and one measure of a recipe, by seeds."""

    ours: list[float]
    published: float | None

    @property
    def mean(self) -> float:
        """Return the mean over the seeds."""
        return mean(self.ours)


class Difference(NamedTuple):
    """How much more a row has than its control.

    Args:
        mean: the mean of the differences of the seeds.
        half: half of the 95 % interval of that mean, by Student's t.
    """

    mean: float
    half: float

    @property
    def word(self) -> str:
        """Whether the row is better or worse: as good, unless the interval excludes 0."""
        if abs(self.mean) <= self.half:
            return "about as good"
        return "better" if self.mean > 0 else "worse"

    def __str__(self) -> str:
        ends = self.mean - self.half, self.mean + self.half
        low, high = (to(end, 2, "+") for end in ends)
        return f"{self.word}, {to(self.mean, 2, '+')} ({low} to {high})"


def compared(ours: Sequence[float], control: Sequence[float]) -> Difference:
    """Compare what is better the larger it is, of the same seeds in the same order.

    Raises:
        ValueError: if the numbers of seeds differ, or there is only one.
    """
    if len(ours) < 2:
        raise ValueError(f"an interval takes at least two seeds, got {len(ours)}")
    pairs = zip(ours, control, strict=True)
    differences = [first - second for first, second in pairs]
    return Difference(mean(differences), half_interval(differences))


@cache
def result(recipe: str) -> Any:
    """The result of a recipe: that of the quick preset, unless the name ends with
    ``-paper``.
    """
    name = recipe if recipe.endswith("-paper") else f"{recipe}-quick"
    return run(f"recipes/{name}")


@cache
def run(name: str) -> Any:
    """The result in a file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def seeds(recipe: str, row: str, measure: str) -> Seeds:
    """The figures of a row. A seed that was not run is left out.

    Raises:
        LookupError: if the result has no such row or measure.
    """
    for line in result(recipe)["rows"]:
        if (line["row"], line["measure"]) == (row, measure):
            ours = [value for value in line["ours"] if value is not None]
            return Seeds(ours, line["published"])
    raise LookupError(f"{recipe} must have {measure!r} of {row!r}")


def differences(recipe: str, row: str, other: str, measure: str) -> list[float]:
    """What a row has more than another one, by seeds."""
    pairs = zip(
        seeds(recipe, row, measure).ours,
        seeds(recipe, other, measure).ours,
        strict=True,
    )
    return [first - second for first, second in pairs]


def runs(pattern: str, name: str, scale: float = 1) -> list[float]:
    """A figure of the results in all files of a pattern."""
    files = sorted(RESULTS.glob(f"{pattern}.json"))
    return [scale * run(file.stem)[name] for file in files]


def card(network: str) -> dict[str, str]:
    """The rows of the card of a network in the package, by their names."""
    path = ROOT / f"torchcaps/pretrained/{network}/card.md"
    lines = path.read_text(encoding="utf-8").splitlines()
    cells = [line.strip("| ").split(" | ", 1) for line in lines]
    return {row[0]: row[1] for row in cells if len(row) == 2}


def bench(case: str, backend: str) -> Any:
    """A training step on two cores of a CPU, of the committed benchmark.

    Raises:
        LookupError: if it was not timed.
    """
    for row in run("bench-cpu")["rows"]:
        if row["training"] and (row["case"], row["backend"]) == (case, backend):
            return row
    raise LookupError(f"bench-cpu must have {case!r} with {backend!r}")


def to(value: float, decimals: int, sign: str = "") -> str:
    """A number with so many decimals, and commas between thousands."""
    return f"{value:{sign},.{decimals}f}"


def spread(values: Sequence[float], decimals: int) -> str:
    """The mean and the range of numbers, or the number that all are."""
    if min(values) == max(values):
        return to(values[0], decimals)
    low, high = to(min(values), decimals), to(max(values), decimals)
    return f"{to(mean(values), decimals)} ({low} to {high})"


def environment() -> Environment:
    """What templates may use."""
    made = Environment(
        loader=FileSystemLoader(ROOT / "docs/templates"),
        undefined=StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    made.filters.update(to=to, spread=spread, mean_of=mean)
    made.globals.update(
        facts=lambda recipe, row: result(recipe)["facts"][0][row],
        seeds=lambda *place: seeds(*place).ours,
        mean=lambda *place: seeds(*place).mean,
        low=lambda *place: min(seeds(*place).ours),
        high=lambda *place: max(seeds(*place).ours),
        published=lambda *place: seeds(*place).published,
        means=lambda recipe, rows, measure: [
            seeds(recipe, row, measure).mean for row in rows
        ],
        accuracies=lambda recipe, row: [
            100 - error for error in seeds(recipe, row, "test error").ours
        ],
        differences=differences,
        compared=compared,
        runs=runs,
        bench=bench,
        card=card,
    )
    return made


def filled(page: str, begin: str, text: str) -> str:
    """A page with another text between a mark and the end mark behind it."""
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(END)
    return f"{before}{begin}\n\n{text.strip()}\n\n{END}{after}"


def pages() -> dict[Path, str]:
    """The text of each page that a template makes, wholly or in part."""
    made = environment()
    texts = {}
    for name in made.list_templates():
        page = ROOT / name.removesuffix(".jinja").replace("__", "/")
        figures = made.get_template(name).render()
        text = page.read_text(encoding="utf-8")
        texts[page] = filled_in_turn(text, figures) if BEGIN in text else figures
    return texts


def filled_in_turn(page: str, texts: str) -> str:
    """A page with a text between each pair of marks, as the end mark divides them.

    Raises:
        ValueError: if the numbers of texts and of pairs differ.
    """
    # The part before a begin mark has the end mark of the pair before it.
    first, *others = page.split(BEGIN)
    parts = zip(others, texts.split(END), strict=True)
    return first + "".join(
        filled(f"{BEGIN}{other}", BEGIN, text) for other, text in parts
    )


def main() -> None:
    """Write the table of the recipes, with their notes, and the pages."""
    write_table(RESULTS / "recipes")
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
