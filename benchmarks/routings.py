"""``python -m benchmarks routings``: all routing algorithms in one table, with
descriptions and costs.

The descriptions come from the routings themselves. Times of the forward pass and of a
training step, and the memory of the latter, are measured on two layers, with all
routings in turn in each round: the class capsules of CapsNet, and a convolution over
matrix capsules in which the parents of a window compete. Each routing has its default
settings. With ``--backend chunked`` all of them run in plain PyTorch, so that
algorithms are compared, not kernels.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

import torchcaps as tc
from benchmarks import measure, report
from benchmarks.about import ABOUT, About
from benchmarks.cases import DIGITCAPS, LayerCase, call_of
from benchmarks.report import Show
from torchcaps.routing import ROUTINGS

BEGIN, END = "<!-- routings: begin -->", "<!-- routings: end -->"


CONVOLUTION = partial(tc.CapsConv2d, 16, 16, (4, 4), (4, 4), 3, competition="window")


def cases(name: str, batch: int) -> dict[str, LayerCase]:
    """The two layers with a routing."""
    routing = partial(tc.create_routing, name)
    return {
        "DigitCaps": LayerCase(name, batch, DIGITCAPS, (1152,), (8,), routing),
        "convolution": LayerCase(name, batch, CONVOLUTION, (8, 8, 16), (4, 4), routing),
    }


@dataclass(frozen=True)
class Measured:
    """One routing on one layer: median seconds, and bytes of a training step; None if
    it was not measured.
    """

    forward: float
    training: float | None
    memory: int | None


def measured(
    layer: str, names: list[str], options: argparse.Namespace
) -> dict[str, Measured]:
    """Measures the routings of these names on a layer, in turn."""
    torch.set_num_threads(options.threads)
    trained = [name for name in names if ROUTINGS[name].trainable]
    calls = {
        (name, False): call_of(
            cases(name, options.batch)[layer], options.backend, False
        )
        for name in names
    }
    calls |= {
        (name, True): call_of(cases(name, options.batch)[layer], options.backend, True)
        for name in trained
    }
    times = measure.interleaved(
        {str(key): call for key, call in calls.items()}, options.runs
    )
    found = {key: median(times[str(key)]) for key in calls}
    wanted = trained if measure.HAVE_PEAK and not options.no_memory else []
    memory = {name: measure.peak_growth(calls[name, True]) for name in wanted}
    return {
        name: Measured(found[name, False], found.get((name, True)), memory.get(name))
        for name in names
    }


def refused(names: list[str], backend: str) -> list[str]:
    """Those of the routings that the backend cannot do on one of the layers.

    Raises:
        ValueError: if there is no other, with what the backend says to the last one.
    """
    found: list[str] = []
    why: Exception | None = None
    for name in names:
        try:
            for case in cases(name, 1).values():
                call_of(case, backend, ROUTINGS[name].trainable)()
        except (RuntimeError, ValueError) as error:
            found.append(name)
            why = error
    if len(found) == len(names):
        raise ValueError(
            f"--backend {backend} can do none of {', '.join(names)}: {why}"
        )
    return found


_WHAT = {
    "similarity": "similarity",
    "parents": "update",
    "activation": "activation",
    "source": "source",
    "reported by its authors": "reported",
}
_COSTS = {
    "parameters of its own": "parameters",
    "multiply-adds": "cost",
    "kept for backward": "memory",
}
"""Titles of the columns, and the fields of :class:`~benchmarks.about.About` in
them.
"""


def words(names: list[str]) -> str:
    """Two tables in Markdown: a description of each routing, and its parameters and
    costs.
    """
    unknown = About(*["not said"] * 8)  # a routing of a plug-in
    about = {name: ABOUT.get(name, unknown) for name in names}
    return "\n\n".join(
        report.markdown(
            ["routing", *columns],
            [
                [f"`{name}`", *(getattr(one, c) for c in columns.values())]
                for name, one in about.items()
            ],
        )
        for columns in (_WHAT, _COSTS)
    )


def figures(found: dict[str, dict[str, Measured]]) -> str:
    """A table in Markdown of times and memory, the fastest training step of the first
    layer first.
    """
    titles = ["routing"]
    for layer in found:
        titles += [f"{layer}: forward, ms", "training step, ms", "its memory, MiB"]
    first = next(iter(found.values()))
    order = sorted(
        first,
        key=lambda name: (first[name].training is None, first[name].training or 0.0),
    )
    rows = []
    for name in order:
        cells = [f"`{name}`"]
        for one in (of_layer[name] for of_layer in found.values()):
            training = "" if one.training is None else report.milliseconds(one.training)
            memory = "" if one.memory is None else f"{one.memory / report.MIB:.0f}"
            cells += [report.milliseconds(one.forward), training, memory]
        rows.append(cells)
    return report.markdown(titles, rows)


def put_into(page: Path, text: str) -> None:
    """Replaces the text between the two marks of a page.

    Raises:
        ValueError: if the page does not have both marks.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} must have the marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def run(options: argparse.Namespace, show: Show) -> None:
    """Shows the tables, and writes them."""
    parts = [words(options.only)]
    if not options.words:
        measure.full_float32()
        about = report.environment("cpu", options.threads)
        left_out = (
            refused(options.only, options.backend) if options.backend != "auto" else []
        )
        names = [name for name in options.only if name not in left_out]
        found = {layer: measured(layer, names, options) for layer in cases("mean", 1)}
        where = (
            f"{about['hardware']}, {options.threads} threads, torch "
            f"{about['versions']['torch']}"
        )
        settings = (
            f"batches of {options.batch}, medians of {options.runs} rounds in "
            "which all took turns"
        )
        if options.backend != "auto":
            settings += f"; backend {options.backend}"
        if left_out:
            settings += f", which cannot do {', '.join(left_out)}"
        parts += [figures(found), f"{where}; {settings}. {options.note}".strip()]
    text = "\n\n".join(parts)
    show(text)
    if options.into is not None:
        put_into(options.into, text)
