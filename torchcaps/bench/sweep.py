"""How time and memory grow: one factor of a routed layer varied at a time, for every backend."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.bench import report
from torchcaps.bench.cases import LinearCase, call_of
from torchcaps.bench.measure import Spread, interleaved, peak_memory
from torchcaps.bench.suite import Options, Show, backends
from torchcaps.bench.work import FLOAT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASE = {"children": 256, "parents": 16, "pose": 8, "batch": 32, "steps": 3}
FACTORS: dict[str, tuple[int, ...]] = {
    "children": (32, 64, 128, 256, 512, 1024),
    "parents": (4, 8, 16, 32, 64),
    "pose": (4, 8, 16, 32),
    "batch": (1, 4, 16, 32, 64, 128),
    "steps": (1, 2, 3, 5, 8),
}
"""Values of each factor; the others stay at :data:`BASE`. ``pose`` is the dimension of both child and parent poses."""


@dataclass(frozen=True)
class Point:
    """A training step of one layer with one backend."""

    factor: str
    value: int
    backend: str
    seconds: list[float]
    votes: int
    peak: int | None


def layer(routing: str, **sizes: int) -> LinearCase:
    """A layer of these sizes, which are named as in :data:`BASE`."""
    sizes = {**BASE, **sizes}
    return LinearCase(
        "layer",
        sizes["batch"],
        routing,
        sizes["steps"],
        sizes["parents"],
        (1, sizes["pose"]),
        sizes["pose"],
        sizes["children"],
    )


def sweep(routing: str, factors: dict[str, tuple[int, ...]], options: Options, show: Show) -> list[Point]:
    """Measures training steps over all values of all factors."""
    torch.set_num_threads(options.threads)
    points: list[Point] = []
    for factor, values in factors.items():
        show(f"measuring {routing} routing against {factor}: {', '.join(map(str, values))}")
        for value in values:
            points += _points(factor, value, layer(routing, **{factor: value}), options)
    return points


def _points(factor: str, value: int, case: LinearCase, options: Options) -> Iterator[Point]:
    names = options.backends or backends(options.device)
    calls = {name: call_of(case, name, True, options.device) for name in names}
    for name, seconds in interleaved(calls, options.runs, options.device, options.seconds).items():
        peak = peak_memory(case, name, True, options.device, options.threads) if options.memory else None
        yield Point(factor, value, name, seconds, FLOAT * case.votes, peak)


def sweep_table(points: list[Point]) -> str:
    """A table with a row for each value, and columns for each backend."""
    names = list(dict.fromkeys(point.backend for point in points))
    found = {(point.factor, point.value, point.backend): point for point in points}
    rows = []
    for factor, value in dict.fromkeys((point.factor, point.value) for point in points):
        here = [found[factor, value, name] for name in names]
        cells = [report.milliseconds(Spread.of(point.seconds).median) for point in here]
        memory = ["" if point.peak is None else f"{point.peak / report.MIB:.1f}" for point in here]
        rows.append((f"{factor} {value}", f"{here[0].votes / report.MIB:.2f}", *cells, *memory))
    titles = ("", "votes MiB", *(f"{name} ms" for name in names), *(f"{name} MiB" for name in names))
    return report.table(titles, rows)


def draw_sweep(points: list[Point], routing: str, path: Path) -> None:
    """Draws a column for each factor, time above, memory below."""
    factors = list(dict.fromkeys(point.factor for point in points))
    made, _ = report.figure(2.7 * len(factors), 5.4)
    made.clf()
    axes = made.subplots(2, len(factors), squeeze=False, sharey="row", sharex="col")
    for above, below, factor in zip(*axes, factors, strict=True):
        _draw_factor(above, below, [point for point in points if point.factor == factor])
        below.set(xlabel="pose dimension" if factor == "pose" else factor)
        for axis in (above, below):
            axis.axvline(BASE[factor], color="#CCCCCC", linewidth=1, zorder=0)
            axis.set(yscale="log")
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_major_formatter("{x:g}")
            axis.grid(which="major", color="#E4E4E4", linewidth=0.8)
            axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("training step, ms")
    axes[1, 0].set_ylabel("extra memory, MiB")
    axes[0, 0].legend(frameon=False)
    axes[1, 0].legend(frameon=False)
    base = ", ".join(f"{name} {value}" for name, value in BASE.items())
    made.suptitle(f"{routing} routing; one factor varied, the others at {base} (grey lines)", fontsize=10)
    report.save(made, path)


def _draw_factor(above: "Axes", below: "Axes", points: list[Point]) -> None:
    names = list(dict.fromkeys(point.backend for point in points))
    for name, marker in zip(names, "os^D", strict=False):
        line = [point for point in points if point.backend == name]
        look: dict[str, Any] = {"color": report.COLOURS.get(name, "#CC79A7"), "marker": marker, "markersize": 4}
        values = [point.value for point in line]
        spreads = [Spread.of([1e3 * second for second in point.seconds]) for point in line]
        above.plot(values, [spread.median for spread in spreads], label=name, **look)
        lows, highs = [spread.low for spread in spreads], [spread.high for spread in spreads]
        above.fill_between(values, lows, highs, color=look["color"], alpha=0.2, linewidth=0)
        known = {point.value: max(point.peak, 2**15) / report.MIB for point in line if point.peak is not None}
        below.plot(list(known), list(known.values()), **look)
    votes = {point.value: point.votes / report.MIB for point in points}
    below.plot(list(votes), list(votes.values()), "--", color="#222222", label="the votes")
