"""The page of the viewpoint study: ``python -m docs.where_routing_pays`` writes its tables and its picture anew.

Everything comes from ``docs/results/recipes/smallnorb-viewpoints-quick.json``. Heads are compared in pairs, on the same
toys and with the same seeds: an interval is of the difference, by drawing seeds and toys anew, both with replacement
(Owen 2007, "The pigeonhole bootstrap"). Of few seeds such intervals are too narrow: there is no verdict below five.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recipes.smallnorb_viewpoints import ENTROPY, FAMILIAR, HEADS, NOVEL, SAME, VIEWPOINTS
from torchcaps_lab.report import new_figure

ROOT = Path(__file__).parent
RESULT = ROOT / "results/recipes/smallnorb-viewpoints-quick.json"
PAGE, README = ROOT / "where-routing-pays.md", ROOT.parent / "README.md"
PICTURE = ROOT / "pictures/where-routing-pays.png"
UNIFORM = "dynamic, 1 step"
"""No routing: what the others are compared with."""

ENOUGH = 5
"""Seeds for a verdict."""

CLAIMED = ("dynamic, 3 steps", "variational Bayes")
"""Of these the README speaks."""

MARKS = "<!-- from the result -->", "<!-- until here -->"


class Run(NamedTuple):
    """A head, trained with one seed.

    Args:
        facts: parameters, figures by measure.
        shares: of the images of each toy that were wrong, in percent, by measure, (toys,).
        epochs: errors after each epoch, by measure.
    """

    facts: Mapping[str, Any]
    shares: Mapping[str, np.ndarray]
    epochs: Mapping[str, list[float]]


Runs = Mapping[str, Mapping[int, Run]]
"""By head and seed."""


def read(view: str, path: Path = RESULT) -> dict[str, dict[int, Run]]:
    """The runs of one angle, of the heads that have any, in their order."""
    result = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, dict[int, Run]] = {}
    for head in HEADS:
        for seed, facts, curves in zip(result["seeds"], result["facts"], result["curves"], strict=True):
            if (row := f"{view}, {head}") in facts:
                wrong, images = curves[row]["wrong"], curves[row]["images"]
                shares = {name: 100 * np.array(wrong[name]) / np.array(images[name]) for name in wrong}
                found.setdefault(head, {})[seed] = Run(facts[row], shares, curves[row]["epochs"])
    return found


class Difference(NamedTuple):
    """A head less another, in points: the mean, the ends of its interval of 95 %, and the number of seeds."""

    mean: float
    low: float
    high: float
    seeds: int

    @property
    def told(self) -> str:
        """In figures."""
        mean, low, high = (round(one, 1) + 0.0 for one in self[:3])  # no minus zero
        return f"{mean:+.1f} points [{low:+.1f}, {high:+.1f}]"

    @property
    def verdict(self) -> str:
        """Which of them is better, as far as the interval says so."""
        return "fewer" if self.high < 0 else "more" if self.low > 0 else "open"


def interval(differences: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """Ends of the 95 % interval of the mean of differences (seeds, toys), which are drawn anew along both axes."""
    random, (seeds, toys) = np.random.default_rng(0), differences.shape
    chosen = random.integers(seeds, size=(draws, seeds)), random.integers(toys, size=(draws, toys))
    means = differences[chosen[0][:, :, None], chosen[1][:, None, :]].mean((1, 2))
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def slope(runs: Sequence[Run]) -> float:
    """By how many points the novel error falls in a training while the familiar one falls by one: least squares."""
    familiar, novel = (
        np.concatenate([np.array(one.epochs[name]) - np.mean(one.epochs[name]) for one in runs])
        for name in (FAMILIAR, NOVEL)
    )
    return float(familiar @ novel / (familiar @ familiar))


def difference(runs: Runs, head: str, other: str, matched: bool = False) -> Difference:
    """How many more novel views a head gets wrong than another, over the seeds that both have.

    Args:
        runs: of all heads.
        head: this one.
        other: and that.
        matched: less what their familiar errors let expect: the difference of these times the :func:`slope` of both.
    """
    pairs = [(runs[head][seed], runs[other][seed]) for seed in sorted(runs[head].keys() & runs[other].keys())]
    novel, familiar = (
        np.array([one.shares[name] - two.shares[name] for one, two in pairs]) for name in (NOVEL, FAMILIAR)
    )
    if matched:
        novel = novel - slope([one for pair in pairs for one in pair]) * familiar
    return Difference(float(novel.mean()), *interval(novel), len(pairs))


def mean(runs: Mapping[int, Run], measure: str) -> float | None:
    """A figure of a head over its seeds; None if it has none."""
    values = [one.facts["figures"][measure] for one in runs.values() if measure in one.facts["figures"]]
    return float(np.mean(values)) if values else None


def table(runs: Runs) -> Iterator[str]:
    """A row for each head."""
    found, matched = compared(runs, 1), compared(runs, 1, matched=True)
    yield (
        "| head | parameters | seeds | entropy | familiar views | novel views | of the same toys "
        f"| novel, less {UNIFORM} | at equal familiar error |"
    )
    yield "|" + "---|" * 9
    for head, of_seeds in runs.items():
        entropy, *errors = (mean(of_seeds, one) for one in (ENTROPY, FAMILIAR, NOVEL, SAME))
        cells = [head, f"{next(iter(of_seeds.values())).facts['parameters']:,}", str(len(of_seeds))]
        cells += ["" if entropy is None else f"{entropy:.2f}", *(f"{one:.1f} %" for one in errors)]
        if head in found:
            cells += [found[head].told, matched[head].told]
        yield f"| {' | '.join(cells + [''] * (9 - len(cells)))} |"


WORDS = {
    "fewer": "fewer errors than without routing, and the interval leaves out 0",
    "more": "more errors than without routing, and the interval leaves out 0",
    "open": "not told from no routing: the interval holds 0",
}


def compared(runs: Runs, least: int = ENOUGH, matched: bool = False) -> dict[str, Difference]:
    """The heads that have so many seeds in common with one step, each less that; see :func:`difference`."""
    known = runs.get(UNIFORM, {}).keys()
    heads = [head for head in runs if head != UNIFORM and len(known & runs[head].keys()) >= least]
    return {head: difference(runs, head, UNIFORM, matched) for head in heads}


def sentences(view: str, runs: Runs) -> Iterator[str]:
    """What the intervals say, where there are seeds enough."""
    found = compared(runs)
    for verdict, words in WORDS.items():
        if told := [f"{head} ({one.told}, {one.seeds} seeds)" for head, one in found.items() if one.verdict == verdict]:
            yield f"- Novel {view}s, {words}: {'; '.join(told)}."


def section() -> str:
    """All that the page says in figures."""
    parts = []
    for view in VIEWPOINTS:
        if runs := read(view):
            parts += [f"### Novel {view}s", "", *table(runs), "", *sentences(view, runs), ""]
    return "\n".join(parts).strip()


def claim(view: str = VIEWPOINTS[0]) -> str:
    """For those who do not open the page: what routing changes, and how sure that is."""
    found = compared(read(view))
    sure = {"fewer": "fewer", "more": "more", "open": "no sure difference"}
    told = [f"{head} {found[head].told}: {sure[found[head].verdict]}" for head in CLAIMED if head in found]
    return (
        f"errors on novel {view}s less those of the same network without routing, {ENOUGH} seeds or more: "
        f"{'; '.join(told)}"
    )


def draw() -> Any:
    """Above, novel against familiar error, a dot for each seed; below, the differences with their intervals."""
    views = [view for view in VIEWPOINTS if read(view)]
    figure = new_figure(5.5 * len(views) + 0.5, 8.0, "constrained")
    panels = figure.subplots(2, len(views), squeeze=False, sharex="row")
    colours = {head: f"C{place}" for place, head in enumerate(HEADS)}
    for (above, below), view in zip(panels.T, views, strict=True):
        runs = read(view)
        for head, of_seeds in runs.items():
            errors = [[one.facts["figures"][name] for one in of_seeds.values()] for name in (FAMILIAR, NOVEL)]
            above.plot(*errors, "o", color=colours[head], markersize=4, alpha=0.5)
            above.plot(*map(np.mean, errors), "o", color=colours[head], markersize=9, label=head)
        if above is not panels[0, 0]:
            above.sharey(panels[0, 0])
        above.set(title=f"novel {view}s", xlabel="error on familiar views of other toys, %")
        above.set_ylabel("error on novel views of other toys, %")
        others = compared(runs, 1)
        for place, (head, one) in enumerate(others.items()):
            below.plot([one.low, one.high], [place, place], color=colours[head], linewidth=2)
            below.plot(one.mean, place, "o", color=colours[head])
            below.annotate(str(one.seeds), (one.high, place), (4, -3), textcoords="offset points", fontsize=8)
        below.set_yticks(range(len(others)), list(others), fontsize=9)
        below.invert_yaxis()
        below.axvline(0, color="0.5", linewidth=1)
        below.set_title("95 % intervals, and the number of seeds", fontsize=9)
        below.set_xlabel(f"novel error less that of {UNIFORM}, points")
        for axes in (above, below):
            axes.grid(alpha=0.3)
    handles, labels = max((axes.get_legend_handles_labels() for axes in panels[0]), key=lambda one: len(one[0]))
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    return figure


def filled(page: str, figures: str) -> str:
    """A page with figures between its marks."""
    begin, end = map(re.escape, MARKS)
    return re.sub(f"{begin}.*{end}", lambda _: f"{MARKS[0]}{figures}{MARKS[1]}", page, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """What stands between the marks of each document."""
    return {PAGE: f"\n\n{section()}\n\n", README: claim()}


if __name__ == "__main__":
    for path, figures in pages().items():
        path.write_text(filled(path.read_text(encoding="utf-8"), figures), encoding="utf-8")
    draw().savefig(PICTURE)
