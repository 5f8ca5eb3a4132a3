"""Write the tables and pictures of the studies of heads into their page and into the
README: ``python -m docs.where_routing_pays``.

Everything comes from two results in ``docs/results/recipes``, of
``smallnorb-viewpoints`` and of ``digit-heads``. Heads are compared in pairs, on the
same toys, or groups of digits, and with the same seeds: an interval is of the
difference, by drawing seeds and toys anew, both with replacement (Owen 2007, "The
pigeonhole bootstrap"). Of few seeds such intervals are too narrow: there is no verdict
below five.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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
RESULT, DIGITS = (
    RESULTS / "smallnorb-viewpoints-quick.json",
    RESULTS / "digit-heads-quick.json",
)
PAGE, README = ROOT / "where-routing-pays.md", ROOT.parent / "README.md"
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

EVIDENT = {"K-Means with evidence, batch norm": "K-Means, 3 steps, batch norm"}
"""Heads of digits that start from what each child knows, and the same that start from
equal shares.
"""

ENOUGH = 5
"""Seeds for a verdict."""

MARKS = "<!-- from the result -->", "<!-- until here -->"


class Run(NamedTuple):
    """A head, trained with one seed.

    Args:
        facts: parameters, figures by measure.
        shares: of the images of each toy, or group, that were wrong, in percent, by
            measure, (toys,).
        epochs: errors after each epoch, by measure, if they are known.
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
    found: dict[str, dict[int, Run]] = {}
    for head in heads:
        for seed, facts, curves in zip(
            result["seeds"], result["facts"], result["curves"], strict=True
        ):
            if (row := f"{prefix}{head}") in facts:
                wrong, images = curves[row]["wrong"], curves[row]["images"]
                shares = {
                    name: 100 * np.array(wrong[name]) / np.array(images[name])
                    for name in wrong
                }
                found.setdefault(head, {})[seed] = Run(
                    facts[row], shares, curves[row].get("epochs", {})
                )
    return found


def of_views(view: str) -> dict[str, dict[int, Run]]:
    """The runs of one angle."""
    return read(RESULT, f"{view}, ")


def of_digits() -> dict[str, dict[int, Run]]:
    """The runs of heads trained on single digits."""
    return read(DIGITS, heads=digit_heads.HEADS)


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
        mean, low, high = (round(one, 1) + 0.0 for one in self[:3])  # no minus zero
        bold = "" if self.verdict == "open" else "**"
        return f"{bold}{mean:+.1f}{bold} ({low:+.1f} to {high:+.1f})"

    @property
    def verdict(self) -> str:
        """Whether the head has fewer errors or more, if the interval excludes 0 and
        there are enough seeds.
        """
        if self.seeds < ENOUGH or self.low <= 0 <= self.high:
            return "open"
        return "fewer" if self.mean < 0 else "more"


def interval(differences: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """Ends of the 95 % interval of the mean of differences (seeds, toys), which are
    drawn anew along both axes.
    """
    random, (seeds, toys) = np.random.default_rng(0), differences.shape
    chosen = (
        random.integers(seeds, size=(draws, seeds)),
        random.integers(toys, size=(draws, toys)),
    )
    means = differences[chosen[0][:, :, None], chosen[1][:, None, :]].mean((1, 2))
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def slope(runs: Sequence[Run]) -> float:
    """By how many points the novel error falls in a training while the familiar one
    falls by one: least squares.
    """
    familiar, novel = (
        np.concatenate(
            [np.array(one.epochs[name]) - np.mean(one.epochs[name]) for one in runs]
        )
        for name in (FAMILIAR, NOVEL)
    )
    return float(familiar @ novel / (familiar @ familiar))


def difference(
    runs: Runs, head: str, other: str, measure: str = NOVEL, matched: str = ""
) -> Difference:
    """How many more images a head gets wrong than another, over the seeds that both
    have.

    Args:
        runs: of all heads.
        head: this one.
        other: and that.
        measure: of which images.
        matched: less what the errors of this other measure let expect: their difference
            times the :func:`slope` of both heads.
    """
    pairs = [
        (runs[head][seed], runs[other][seed])
        for seed in sorted(runs[head].keys() & runs[other].keys())
    ]

    def less(name: str) -> np.ndarray:
        return np.array([one.shares[name] - two.shares[name] for one, two in pairs])

    found = less(measure)
    if matched:
        found = found - slope([one for pair in pairs for one in pair]) * less(matched)
    return Difference(float(found.mean()), *interval(found), len(pairs))


def mean(runs: Mapping[int, Run], measure: str) -> float | None:
    """A figure of a head over its seeds; None if it has none."""
    values = [
        one.facts["figures"][measure]
        for one in runs.values()
        if measure in one.facts["figures"]
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
        errors = [f"{mean(of_seeds, one):.1f} %" for one in (FAMILIAR, NOVEL, SAME)]
        yield f"| {head} | {' | '.join([*errors, *facts_of_head(of_seeds, ENTROPY)])} |"


def facts_of_head(of_seeds: Mapping[int, Run], measure: str) -> list[str]:
    """Cells with the entropy of a head, its parameters and its seeds."""
    entropy = mean(of_seeds, measure)
    parameters = next(iter(of_seeds.values())).facts["parameters"]
    shown = "" if entropy is None else f"{entropy:.2f}"
    return [shown, f"{parameters:,}", str(len(of_seeds))]


def view_differences(runs: Runs) -> Iterator[str]:
    """A row for each head: its novel error less that without routing and less that of
    the published twin, both also at equal familiar error.
    """
    others = (UNIFORM, PUBLISHED)
    columns = [
        compared(runs, other, matched) for other in others for matched in ("", FAMILIAR)
    ]
    names = [f"less {other}" for other in others]
    titles = [f"{name}{end}" for name in names for end in ("", ", at equal error")]
    yield f"| novel error of | {' | '.join(titles)} | seeds |"
    yield "|" + "---|" * 6
    for head, of_seeds in runs.items():
        cells = [column[head].cell if head in column else "" for column in columns]
        yield f"| {head} | {' | '.join(cells)} | {len(of_seeds)} |"


def digit_table(runs: Runs) -> Iterator[str]:
    """A row for each head, a column for each test of digits."""
    yield f"| head | {' | '.join(digit_heads.TESTS)} | entropy | parameters | seeds |"
    yield "|---|" + "---|" * (len(digit_heads.TESTS) + 3)
    for head, of_seeds in runs.items():
        errors = [f"{mean(of_seeds, test):.1f} %" for test in digit_heads.TESTS]
        facts = facts_of_head(of_seeds, digit_heads.ENTROPY)
        yield f"| {head} | {' | '.join([*errors, *facts])} |"


def differences(runs: Runs, head: str, other: str) -> dict[str, Difference]:
    """A head less another in each test of digits."""
    return {test: difference(runs, head, other, test) for test in digit_heads.TESTS}


def pairs_table(runs: Runs, others: Mapping[str, str]) -> Iterator[str]:
    """Each head less another, a row for each pair, a column for each test of digits."""
    yield f"| error of | {' | '.join(digit_heads.TESTS)} |"
    yield "|---|" + "---|" * len(digit_heads.TESTS)
    for head in in_common(runs, others):
        cells = [one.cell for one in differences(runs, head, others[head]).values()]
        yield f"| {head}, less {others[head]} | {' | '.join(cells)} |"


def verdicts(runs: Runs, others: Mapping[str, str]) -> Iterator[str]:
    """The tests of digits in which a head has fewer errors than another, or more, if
    there are enough seeds; a row for each pair.
    """
    yield "| head | compared with | fewer errors | more errors |"
    yield "|---|---|---|---|"
    for head in in_common(runs, others, ENOUGH):
        tests: dict[str, list[str]] = {"fewer": [], "more": [], "open": []}
        for test, one in differences(runs, head, others[head]).items():
            tests[one.verdict].append(test)
        cells = ["; ".join(tests[verdict]) for verdict in ("fewer", "more")]
        yield f"| {head} | {others[head]} | {' | '.join(cells)} |"


def in_common(runs: Runs, others: Mapping[str, str], least: int = 1) -> list[str]:
    """The heads that have so many seeds in common with those that they are compared
    with.
    """
    return [
        head
        for head, other in others.items()
        if len(runs.get(head, {}).keys() & runs.get(other, {}).keys()) >= least
    ]


def compared(
    runs: Runs, other: str = UNIFORM, matched: str = ""
) -> dict[str, Difference]:
    """The heads that have seeds in common with another, each less that; see
    :func:`difference`.
    """
    seeds = runs.get(other, {}).keys()
    heads = [head for head in runs if head != other and seeds & runs[head].keys()]
    return {head: difference(runs, head, other, matched=matched) for head in heads}


BOLD = (
    "Figures are points of error, with 95 % intervals. Below 0, the first head is "
    "better. A bold figure has an interval that excludes 0, over at least five seeds."
)


def section() -> str:
    """The part of the page that follows from the results."""
    parts = []
    if runs := of_digits():
        parts += ["## Digits", "", "Test errors, as means over the seeds:", ""]
        parts += [*digit_table(runs), ""]
        tables = {
            "Routing compared with no routing": WITHOUT,
            "Capsules compared with a plain network": PLAIN,
            "Evidence compared with equal shares": EVIDENT,
        }
        for title, others in tables.items():
            parts += [f"### {title}", "", *verdicts(runs, others), "", BOLD, ""]
            parts += [*pairs_table(runs, others), ""]
    for view in VIEWPOINTS:
        if runs := of_views(view):
            parts += [f"## Novel {view}s", "", "Test errors, as means over the seeds:"]
            parts += ["", *table(runs), "", BOLD, "", *view_differences(runs), ""]
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
        f"| all digits found, mean of the seeds | {' | '.join(tests)} | seeds |",
        "|---|" + "---|" * (len(tests) + 1),
    ]
    for head in shown:
        right = [f"{100 - (mean(runs[head], test) or 0.0):.1f} %" for test in tests]
        lines.append(f"| {head} | {' | '.join(right)} | {len(runs[head])} |")
    return "\n".join([*lines, "", COMPARED, "", *comparisons(runs)])


COMPARED = (
    "This table compares heads in pairs. They differ if the 95 % interval of the "
    "difference excludes 0."
)


def comparisons(runs: Runs) -> Iterator[str]:
    """A row for each head in the README's table and the head it is compared with."""
    layouts = digit_heads.PAIRS.values()
    yield f"| head | compared with | {' | '.join(layouts)} |"
    yield "|---|---|" + "---|" * len(layouts)
    for others in (WITHOUT, PLAIN, EVIDENT):
        for head in in_common(runs, others, ENOUGH):
            if head in digit_heads.DRAWN:
                pairs = [
                    difference(runs, head, others[head], test)
                    for test in digit_heads.PAIRS
                ]
                found = [f"{FINDS[pair.verdict]} pairs" for pair in pairs]
                yield f"| {head} | {others[head]} | {' | '.join(found)} |"


def draw() -> Any:
    """Above, novel against familiar error, a dot for each seed; below, the differences
    with their intervals.
    """
    views = {view: runs for view in VIEWPOINTS if (runs := of_views(view))}
    figure = new_figure(5.5 * len(views) + 0.5, 8.0, "constrained")
    panels = figure.subplots(2, len(views), squeeze=False, sharex="row")
    colours = {head: f"C{place}" for place, head in enumerate(HEADS)}
    for (above, below), (view, runs) in zip(panels.T, views.items(), strict=True):
        for head, of_seeds in runs.items():
            errors = [
                [one.facts["figures"][name] for one in of_seeds.values()]
                for name in (FAMILIAR, NOVEL)
            ]
            above.plot(*errors, "o", color=colours[head], markersize=4, alpha=0.5)
            above.plot(
                *map(np.mean, errors),
                "o",
                color=colours[head],
                markersize=9,
                label=head,
            )
        if above is not panels[0, 0]:
            above.sharey(panels[0, 0])
        above.set(
            title=f"novel {view}s", xlabel="error on familiar views of other toys, %"
        )
        above.set_ylabel("error on novel views of other toys, %")
        intervals(below, compared(runs), colours)
        below.set_xlabel(f"novel error less that of {UNIFORM}, points")
        above.grid(alpha=0.3)
    handles, labels = max(
        (axes.get_legend_handles_labels() for axes in panels[0]),
        key=lambda one: len(one[0]),
    )
    figure.legend(
        handles, labels, loc="outside upper center", ncols=4, fontsize=8, frameon=False
    )
    return figure


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
        found = differences(runs, head, WITHOUT[head])
        intervals(axes, found, dict.fromkeys(found, "C0"))
        axes.set(title=head, xlabel=f"error less that of {WITHOUT[head]}, points")
    return figure


def intervals(
    axes: Any, found: Mapping[str, Difference], colours: Mapping[str, str]
) -> None:
    """Differences from top to bottom, each with its interval and the number of
    seeds.
    """
    for place, (name, one) in enumerate(found.items()):
        axes.plot([one.low, one.high], [place, place], color=colours[name], linewidth=2)
        axes.plot(one.mean, place, "o", color=colours[name])
        axes.annotate(
            str(one.seeds),
            (one.high, place),
            (4, -3),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_yticks(range(len(found)), list(found), fontsize=9)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.axvline(0, color="0.5", linewidth=1)
    axes.set_title("95 % intervals, and the number of seeds", fontsize=9)
    axes.grid(alpha=0.3)


def filled(page: str, figures: str) -> str:
    """A page with figures between its marks."""
    begin, end = map(re.escape, MARKS)
    return re.sub(
        f"{begin}.*{end}",
        lambda _: f"{MARKS[0]}{figures}{MARKS[1]}",
        page,
        flags=re.DOTALL,
    )


def pages() -> dict[Path, str]:
    """What stands between the marks of each document."""
    return {PAGE: f"\n\n{section()}\n\n", README: f"\n\n{claim()}\n\n"}


if __name__ == "__main__":
    for path, figures in pages().items():
        path.write_text(
            filled(path.read_text(encoding="utf-8"), figures), encoding="utf-8"
        )
    draw().savefig(PICTURES / "where-routing-pays.png")
    if of_digits():
        draw_digits().savefig(PICTURES / "where-routing-pays-digits.png")
