"""Write the tables and pictures of the studies of heads into their page and into the
README: ``python -m docs.where_routing_pays``.

Everything comes from results in ``docs/results/recipes``, of ``smallnorb-viewpoints``
and of ``digit-heads``, whose ``paper`` preset has large networks. Heads are compared in
pairs, on the same toys, or groups of digits, and with the same seeds: an interval is of
the difference, for other seeds and other toys. There is no verdict below five seeds.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from docs.figures import filled
from recipes import digit_heads
from recipes.smallnorb_viewpoints import (
    ENTROPY,
    FAMILIAR,
    HEADS,
    NOVEL,
    SAME,
    VIEWPOINTS,
)
from torchcaps_lab.report import new_figure

ROOT = Path(__file__).parent
RESULTS = ROOT / "results/recipes"
RESULT = RESULTS / "smallnorb-viewpoints-quick.json"
DIGITS = RESULTS / "digit-heads-quick.json"
LARGE_DIGITS = RESULTS / "digit-heads-paper.json"
PAGE = ROOT / "where-routing-pays.md"
README = ROOT.parent / "README.md"
PICTURES = ROOT / "pictures"
UNIFORM, PUBLISHED = "dynamic, 1 step", "fully connected"
"""What the others are compared with on viewpoints: no routing, and the head that is
most like the published CNN's.
"""

WITHOUT = {
    "dynamic, 3 steps": UNIFORM,
    "K-Means, 3 steps": "K-Means, 1 step",
    "EM, 2 steps": "EM, 1 step",
    "K-Means, 3 steps, batch norm": "K-Means, 1 step, batch norm",
    "K-Means with evidence, batch norm": "evidence alone, batch norm",
}
"""Heads of digits that route, and the same without routing."""

PLAIN = {
    "scalar capsules, 1 step": "class maps",
    "dynamic, 3 steps": "class maps",
    "K-Means, 3 steps": "class maps",
    "EM, 2 steps": "class maps",
    "dynamic, 3 steps, batch norm": "class maps, batch norm",
    "K-Means, 3 steps, batch norm": "class maps, batch norm",
    "evidence alone, batch norm": "class maps, batch norm",
    "K-Means with evidence, batch norm": "class maps, batch norm",
}
"""Heads of digits that are capsules, and the plain network with local evidence that
does the same.
"""

LARGEST = dict.fromkeys(
    ("K-Means, 3 steps, batch norm", "K-Means with evidence, batch norm"),
    "largest values of class maps, batch norm",
)
"""The best heads of capsules, and class maps that are pooled in another way."""

EVIDENT = {"K-Means with evidence, batch norm": "K-Means, 3 steps, batch norm"}
"""Heads of digits that start from what each child knows, and the same that start from
equal shares.
"""

ENOUGH = 5
"""Seeds for a verdict."""

BEGIN = "<!-- from the result -->"


class Run(NamedTuple):
    """A head, trained with one seed.

    Args:
        facts: the parameters, and the figures by measure.
        shares: the share of the images of each toy, or group, that were wrong, in
            percent, by measure, (toys,).
        epochs: the errors after each epoch, by measure, if they were recorded.
    """

    facts: Mapping[str, Any]
    shares: Mapping[str, np.ndarray]
    epochs: Mapping[str, list[float]]


Runs = Mapping[str, Mapping[int, Run]]
"""By head and seed."""


def read(
    path: Path = RESULT, prefix: str = "", heads: Iterable[str] = HEADS
) -> dict[str, dict[int, Run]]:
    """The runs of the heads that have any, in their order; ``prefix`` is what their
    rows begin with.
    """
    if not path.is_file():
        return {}
    result = json.loads(path.read_text(encoding="utf-8"))
    seeds = list(
        zip(
            result["seeds"],
            result["facts"],
            result["curves"],
            strict=True,
        )
    )
    runs: dict[str, dict[int, Run]] = {}
    for head, (seed, facts, curves) in product(heads, seeds):
        row = f"{prefix}{head}"
        if row in facts:
            of_seeds = runs.setdefault(head, {})
            of_seeds[seed] = _run(facts[row], curves[row])
    return runs


def _run(facts: Mapping[str, Any], curves: Mapping[str, Any]) -> Run:
    """A run from what the result file has of a row and a seed."""
    shares = {}
    for name, wrong in curves["wrong"].items():
        images = np.array(curves["images"][name])
        shares[name] = 100 * np.array(wrong) / images
    return Run(facts, shares, curves.get("epochs", {}))


def of_views(view: str) -> dict[str, dict[int, Run]]:
    """The runs of one angle."""
    return read(RESULT, f"{view}, ")


def of_digits(path: Path = DIGITS) -> dict[str, dict[int, Run]]:
    """The runs of heads trained on single digits."""
    return read(path, heads=digit_heads.HEADS)


class Difference(NamedTuple):
    """A head less another, in points: the mean, the ends of its interval of 95 %, and
    the number of seeds.
    """

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def cell(self) -> str:
        """The mean and the interval, bold where there is a verdict."""
        mean, interval = str(self).split(maxsplit=1)
        bold = "" if self.verdict == "open" else "**"
        return f"{bold}{mean}{bold} {interval}"

    @property
    def of_what_is_right(self) -> "Difference":
        """The same difference, not of errors but of what is right."""
        return Difference(-self.mean, -self.high, -self.low, self.seeds)

    def __str__(self) -> str:
        rounded = [round(points, 1) for points in self[:3]]
        mean, low, high = (points + 0.0 for points in rounded)  # no minus zero
        return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"

    @property
    def verdict(self) -> str:
        """Whether the head has fewer errors or more, if the interval excludes 0 and
        there are enough seeds.
        """
        # As they are printed.
        low, high = round(self.low, 1), round(self.high, 1)
        if self.seeds < ENOUGH or low <= 0 <= high:
            return "open"
        return "fewer" if self.mean < 0 else "more"


def interval(differences: np.ndarray) -> tuple[float, float]:
    r"""Ends of the 95 % interval of the mean of differences (seeds, toys), for other
    seeds and other toys.

    Each difference is a mean, an effect of its seed, one of its toy, and a rest, all at
    random. The variance of the mean follows from the mean squares of a two-way analysis
    of variance, :math:`(M_s + M_t - M_r) / (S T)`, or the larger one of :math:`M_s` and
    :math:`M_t` where that is more; Student's t has Satterthwaite's degrees of freedom.

    Source: Satterthwaite 1946, "An approximate distribution of estimates of variance
    components".
    """
    S, T = differences.shape
    mean = differences.mean()
    of_seeds = differences.mean(1) - mean
    of_toys = differences.mean(0) - mean
    rest = differences - mean - of_seeds[:, None] - of_toys
    square_seeds = T * np.square(of_seeds).sum() / (S - 1)
    square_toys = S * np.square(of_toys).sum() / (T - 1)
    square_rest = np.square(rest).sum() / ((S - 1) * (T - 1))
    total = max(square_seeds + square_toys - square_rest, square_seeds, square_toys)
    # Rounding leaves a little where nothing varies.
    if total < 1e-12:
        return float(mean), float(mean)
    freedom = total**2 / (
        square_seeds**2 / (S - 1)
        + square_toys**2 / (T - 1)
        + square_rest**2 / ((S - 1) * (T - 1))
    )
    half = student.ppf(0.975, freedom) * math.sqrt(total / (S * T))
    return float(mean - half), float(mean + half)


def slope(runs: Sequence[Run]) -> float:
    """By how many points the novel error falls in a training while the familiar one
    falls by one: least squares.
    """
    familiar = _centred_errors(runs, FAMILIAR)
    novel = _centred_errors(runs, NOVEL)
    return float(familiar @ novel / (familiar @ familiar))


def _centred_errors(runs: Sequence[Run], measure: str) -> np.ndarray:
    """The errors after each epoch less their mean over the run, run after run."""
    centred = []
    for run in runs:
        errors = np.array(run.epochs[measure])
        centred.append(errors - np.mean(errors))
    return np.concatenate(centred)


def difference(
    runs: Runs,
    head: str,
    reference: str,
    measure: str = NOVEL,
    matched: str = "",
) -> Difference:
    """How many more images a head gets wrong than another, over the seeds that both
    have.

    Args:
        runs: the runs of all heads.
        head: the head whose errors count.
        reference: the head whose errors are subtracted.
        measure: the measure of the errors.
        matched: a measure whose errors explain a part of the difference, which is
            subtracted: their difference times the :func:`slope` of both heads.
    """
    of_head = runs[head]
    of_reference = runs[reference]
    seeds = sorted(of_head.keys() & of_reference.keys())

    def subtracted(name: str) -> np.ndarray:
        differences = [
            of_head[seed].shares[name] - of_reference[seed].shares[name]
            for seed in seeds
        ]
        return np.array(differences)

    points = subtracted(measure)
    if matched:
        pairs = [(of_head[seed], of_reference[seed]) for seed in seeds]
        points = points - slope(list(chain(*pairs))) * subtracted(matched)
    low, high = interval(points)
    return Difference(float(points.mean()), low, high, len(seeds))


def mean(runs: Mapping[int, Run], measure: str) -> float | None:
    """A figure of a head over its seeds; None if it has none."""
    values = [
        run.facts["figures"][measure]
        for run in runs.values()
        if measure in run.facts["figures"]
    ]
    return float(np.mean(values)) if values else None


def table(runs: Runs) -> Iterator[str]:
    """A row for each head, tested on viewpoints: its errors."""
    yield (
        "| head | familiar views | novel views | novel views of the same toys | entropy "
        "| parameters | seeds |"
    )
    yield "|" + "---|" * 7
    for head, of_seeds in runs.items():
        cells = [head]
        for measure in (FAMILIAR, NOVEL, SAME):
            cells.append(f"{mean(of_seeds, measure):.1f} %")
        cells += facts_of_head(of_seeds, ENTROPY)
        yield f"| {' | '.join(cells)} |"


def facts_of_head(of_seeds: Mapping[int, Run], measure: str) -> list[str]:
    """Cells with the entropy of a head, its parameters and its seeds."""
    entropy = mean(of_seeds, measure)
    first, *_ = of_seeds.values()
    parameters = first.facts["parameters"]
    return [
        "" if entropy is None else f"{entropy:.2f}",
        f"{parameters:,}",
        str(len(of_seeds)),
    ]


def view_differences(runs: Runs) -> Iterator[str]:
    """A row for each head: its novel error less that without routing and less that of
    the published twin, both also at equal familiar error.
    """
    columns = {}
    for reference in (UNIFORM, PUBLISHED):
        title = f"less {reference}"
        columns[title] = compared(runs, reference)
        columns[f"{title}, at equal error"] = compared(runs, reference, FAMILIAR)
    yield f"| novel error of | {' | '.join(columns)} | seeds |"
    yield "|" + "---|" * 6
    for head, of_seeds in runs.items():
        cells = [head]
        for column in columns.values():
            cells.append(column[head].cell if head in column else "")
        cells.append(str(len(of_seeds)))
        yield f"| {' | '.join(cells)} |"


def digit_table(runs: Runs) -> Iterator[str]:
    """A row for each head, a column for each test of digits."""
    yield f"| head | {' | '.join(digit_heads.TESTS)} | entropy | parameters | seeds |"
    yield "|---|" + "---|" * (len(digit_heads.TESTS) + 3)
    for head, of_seeds in runs.items():
        errors = [f"{mean(of_seeds, test):.1f} %" for test in digit_heads.TESTS]
        facts = facts_of_head(of_seeds, digit_heads.ENTROPY)
        yield f"| {head} | {' | '.join([*errors, *facts])} |"


def differences(runs: Runs, head: str, reference: str) -> dict[str, Difference]:
    """A head less another in each test of digits."""
    return {test: difference(runs, head, reference, test) for test in digit_heads.TESTS}


def pairs_table(runs: Runs, references: Mapping[str, str]) -> Iterator[str]:
    """Each head less another, a row for each pair, a column for each test of digits."""
    yield f"| error of | {' | '.join(digit_heads.TESTS)} |"
    yield "|---|" + "---|" * len(digit_heads.TESTS)
    for head in in_common(runs, references):
        reference = references[head]
        cells = [f"{head}, less {reference}"]
        for points in differences(runs, head, reference).values():
            cells.append(points.cell)
        yield f"| {' | '.join(cells)} |"


def verdicts(runs: Runs, references: Mapping[str, str]) -> Iterator[str]:
    """The tests of digits in which a head has fewer errors than another, or more, if
    there are enough seeds; a row for each pair.
    """
    yield "| head | compared with | fewer errors | more errors |"
    yield "|---|---|---|---|"
    for head in in_common(runs, references, ENOUGH):
        reference = references[head]
        tests: dict[str, list[str]] = {"fewer": [], "more": [], "open": []}
        for test, points in differences(runs, head, reference).items():
            tests[points.verdict].append(test)
        fewer = "; ".join(tests["fewer"])
        more = "; ".join(tests["more"])
        yield f"| {head} | {reference} | {fewer} | {more} |"


def in_common(runs: Runs, references: Mapping[str, str], least: int = 2) -> list[str]:
    """The heads that have so many seeds in common with those that they are compared
    with; an interval takes two.
    """
    heads = []
    for head, reference in references.items():
        common = runs.get(head, {}).keys() & runs.get(reference, {}).keys()
        if len(common) >= least:
            heads.append(head)
    return heads


def compared(
    runs: Runs, reference: str = UNIFORM, matched: str = ""
) -> dict[str, Difference]:
    """The heads that have seeds in common with another, each less that; see
    :func:`difference`.
    """
    references = {head: reference for head in runs if head != reference}
    return {
        head: difference(runs, head, reference, matched=matched)
        for head in in_common(runs, references)
    }


LARGE = (
    "Test errors after 30 epochs with about a million parameters. All heads have the "
    "rate of the capsules in the small networks, 0.004, which was not tuned here. The "
    "intervals are over seeds and groups of images. With two seeds they are wide."
)


def section() -> str:
    """The part of the page that follows from the results."""
    parts = []
    runs = of_digits()
    if runs:
        parts += ["## Digits", "", "Test errors, as means over the seeds:", ""]
        parts += [*digit_table(runs), ""]
        tables = {
            "Routing compared with no routing": WITHOUT,
            "Capsules compared with a plain network": PLAIN,
            "Capsules compared with the largest values of class maps": LARGEST,
            "Evidence compared with equal shares": EVIDENT,
        }
        for title, references in tables.items():
            parts += [f"### {title}", "", *verdicts(runs, references), ""]
            parts += [*pairs_table(runs, references), ""]
    runs = of_digits(LARGE_DIGITS)
    if runs:
        parts += ["### A million parameters", "", LARGE, "", *digit_table(runs), ""]
        for references in (WITHOUT, PLAIN):
            if in_common(runs, references):
                parts += [*pairs_table(runs, references), ""]
    for view in VIEWPOINTS:
        runs = of_views(view)
        if runs:
            parts += [f"## Novel {view}s", "", "Test errors, as means over the seeds:"]
            parts += [
                "",
                *table(runs),
                "",
                *view_differences(runs),
                "",
            ]
    return "\n".join(parts).strip()


FINDS = {"fewer": "more", "more": "fewer", "open": "about as many"}
"""What fewer errors mean for those who count what is right."""


def claim() -> str:
    """The part of the README that follows from the results: the pairs of digits that
    each head finds, and which finds more.
    """
    runs = of_digits()
    shown = [head for head in digit_heads.DRAWN if head in runs]
    tests = (digit_heads.SINGLE, *digit_heads.PAIRS)
    lines = [
        f"| all digits found, mean of the seeds | {' | '.join(tests)} | parameters "
        "| seeds |",
        "|---|" + "---|" * (len(tests) + 2),
    ]
    for head in shown:
        right = [f"{100 - (mean(runs[head], test) or 0.0):.1f} %" for test in tests]
        first, *_ = runs[head].values()
        parameters = f"{first.facts['parameters']:,}"
        cells = [_short(head), *right, parameters, str(len(runs[head]))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", COMPARED, "", *comparisons(runs)])


COMPARED = (
    "How many more pairs one head finds than another, in percentage points, with 95 % "
    'intervals over seeds and images. "About as many" means that the interval includes 0.'
)


def comparisons(runs: Runs) -> Iterator[str]:
    """A row for each head in the README's table and the head it is compared with."""
    layouts = digit_heads.PAIRS.values()
    yield f"| head | compared with | {' | '.join(layouts)} |"
    yield "|---|---|" + "---|" * len(layouts)
    for references in (WITHOUT, PLAIN, LARGEST, EVIDENT):
        for head in in_common(runs, references, ENOUGH):
            if head not in digit_heads.DRAWN:
                continue
            reference = references[head]
            cells = [_short(head), _short(reference)]
            for test in digit_heads.PAIRS:
                points = difference(runs, head, reference, test)
                word = FINDS[points.verdict]
                cells.append(f"{word}, {points.of_what_is_right}")
            yield f"| {' | '.join(cells)} |"


def _short(head: str) -> str:
    """The name of a head where all have batch normalisation."""
    return head.removesuffix(", batch norm")


def draw() -> Any:
    """Above, novel against familiar error, a dot for each seed; below, the differences
    with their intervals.
    """
    views = {}
    for view in VIEWPOINTS:
        runs = of_views(view)
        if runs:
            views[view] = runs
    figure = new_figure(5.5 * len(views) + 0.5, 8.0, "constrained")
    panels = figure.subplots(2, len(views), squeeze=False, sharex="row")
    colours = {head: f"C{place}" for place, head in enumerate(HEADS)}
    for (above, below), (view, runs) in zip(panels.T, views.items(), strict=True):
        for head, of_seeds in runs.items():
            _draw_errors(above, head, of_seeds, colours[head])
        if above is not panels[0, 0]:
            above.sharey(panels[0, 0])
        above.set_title(f"novel {view}s")
        above.set_xlabel("error on familiar views of other toys, %")
        above.set_ylabel("error on novel views of other toys, %")
        intervals(below, compared(runs), colours)
        below.set_xlabel(f"novel error less that of {UNIFORM}, points")
        above.grid(alpha=0.3)
    legends = [axes.get_legend_handles_labels() for axes in panels[0]]
    handles, labels = max(legends, key=lambda legend: len(legend[0]))
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=4,
        fontsize=8,
        frameon=False,
    )
    return figure


def _draw_errors(
    axes: Any,
    head: str,
    runs: Mapping[int, Run],
    colour: str,
) -> None:
    """Draws a small dot for each seed of a head, and a large one for their mean."""
    figures = [run.facts["figures"] for run in runs.values()]
    familiar = [of_seed[FAMILIAR] for of_seed in figures]
    novel = [of_seed[NOVEL] for of_seed in figures]
    axes.plot(
        familiar,
        novel,
        "o",
        color=colour,
        markersize=4,
        alpha=0.5,
    )
    axes.plot(
        np.mean(familiar),
        np.mean(novel),
        "o",
        color=colour,
        markersize=9,
        label=head,
    )


def draw_digits() -> Any:
    """What routing changes in each test of digits, with intervals."""
    runs = of_digits()
    heads = in_common(runs, WITHOUT)
    columns = 3
    rows = -(-len(heads) // columns)
    figure = new_figure(4.0 * columns + 1.5, 4.2 * rows, "constrained")
    panels = figure.subplots(
        rows, columns, squeeze=False, sharex=True, sharey=True
    ).ravel()
    for axes in panels[len(heads) :]:
        axes.set_axis_off()
    for axes, head in zip(panels, heads, strict=False):
        reference = WITHOUT[head]
        points = differences(runs, head, reference)
        intervals(axes, points, dict.fromkeys(points, "C0"))
        axes.tick_params(labelbottom=True)
        axes.set(title=head, xlabel=f"error less that of {reference}, points")
    return figure


def intervals(
    axes: Any, differences: Mapping[str, Difference], colours: Mapping[str, str]
) -> None:
    """Differences from top to bottom, each with its interval and the number of
    seeds.
    """
    for place, (name, points) in enumerate(differences.items()):
        colour = colours[name]
        ends = [points.low, points.high]
        axes.plot(ends, [place, place], color=colour, linewidth=2)
        axes.plot(points.mean, place, "o", color=colour)
        axes.annotate(
            str(points.seeds),
            (points.high, place),
            (4, -3),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_yticks(range(len(differences)), list(differences), fontsize=9)
    axes.set_ylim(len(differences) - 0.5, -0.5)
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set_title("95 % intervals, and the number of seeds", fontsize=9)
    axes.grid(alpha=0.3)


def pages() -> dict[Path, str]:
    """What stands between the marks of each document."""
    return {PAGE: section(), README: claim()}


if __name__ == "__main__":
    for path, figures in pages().items():
        page = filled(path.read_text(encoding="utf-8"), BEGIN, figures)
        path.write_text(page, encoding="utf-8")
    draw().savefig(PICTURES / "where-routing-pays.png")
    if of_digits():
        draw_digits().savefig(PICTURES / "where-routing-pays-digits.png")
