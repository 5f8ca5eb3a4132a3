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
import math
from dataclasses import astuple, dataclass
from functools import partial
from statistics import median

import torch

import torchcaps as tc
from benchmarks import measure, report
from benchmarks.about import ABOUT, About
from benchmarks.cases import DIGITCAPS, LayerCase, call_of
from benchmarks.report import Show
from torchcaps.routing import ROUTINGS

DESCRIPTIONS, FIGURES = "routings", "figures of routings"
"""The parts of a page that the tables are written into."""


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
    forward, training = {}, {}
    for name in names:
        case = cases(name, options.batch)[layer]
        forward[f"{name}, forward"] = call_of(case, options.backend, False)
        if ROUTINGS[name].trainable:
            training[f"{name}, training"] = call_of(case, options.backend, True)
    times = measure.interleaved({**forward, **training}, options.runs)
    medians = {call: median(seconds) for call, seconds in times.items()}
    memory = {}
    if measure.HAVE_PEAK and not options.no_memory:
        memory = {name: measure.peak_growth(call) for name, call in training.items()}
    results = {}
    for name in names:
        training_step = f"{name}, training"
        results[name] = Measured(
            medians[f"{name}, forward"],
            medians.get(training_step),
            memory.get(training_step),
        )
    return results


def refused(names: list[str], backend: str) -> list[str]:
    """Those of the routings that the backend cannot do on one of the layers.

    Raises:
        ValueError: if there is no other, with what the backend says to the last one.
    """
    errors: dict[str, Exception] = {}
    for name in names:
        try:
            for case in cases(name, 1).values():
                call_of(case, backend, ROUTINGS[name].trainable)()
        except (RuntimeError, ValueError) as error:
            errors[name] = error
    if len(errors) == len(names):
        *_, last = errors.values()
        raise ValueError(
            f"--backend {backend} can do none of {', '.join(names)}: {last}"
        )
    return list(errors)


_DESCRIPTION = {
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
    undescribed = About(*["not said"] * 8)  # a routing of a plug-in
    tables = []
    for columns in (_DESCRIPTION, _COSTS):
        rows = []
        for name in names:
            about = ABOUT.get(name, undescribed)
            cells = [getattr(about, column) for column in columns.values()]
            rows.append([f"`{name}`", *cells])
        tables.append(report.markdown(["routing", *columns], rows))
    return "\n\n".join(tables)


def figures(by_layer: dict[str, dict[str, Measured]]) -> str:
    """A table in Markdown of times and memory, the fastest training step of the first
    layer first.
    """
    titles = ["routing"]
    for layer in by_layer:
        titles += [f"{layer}: forward, ms", "training step, ms", "its memory, MiB"]
    first, *_ = by_layer.values()

    def training_time(name: str) -> float:
        seconds = first[name].training
        return math.inf if seconds is None else seconds

    rows = []
    for name in sorted(first, key=training_time):
        cells = [f"`{name}`"]
        for of_layer in by_layer.values():
            forward, training, memory = astuple(of_layer[name])
            cells.append(report.milliseconds(forward))
            cells.append("" if training is None else report.milliseconds(training))
            cells.append("" if memory is None else f"{memory / report.MIB:.0f}")
        rows.append(cells)
    return report.markdown(titles, rows)


def marks_of(part: str) -> tuple[str, str]:
    """The comments in Markdown between which a page has this part."""
    return f"<!-- {part}: begin -->", f"<!-- {part}: end -->"


def put_into(page: str, part: str, text: str) -> str:
    """Return the page with the text between the two marks of the part.

    Raises:
        ValueError: if the page does not have both marks.
    """
    begin, end = marks_of(part)
    before, opened, behind = page.partition(begin)
    _, closed, after = behind.partition(end)
    if not opened or not closed:
        raise ValueError(f"the page must have the marks {begin} and {end}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def run(options: argparse.Namespace, show: Show) -> None:
    """Shows the tables, and writes them. With ``--words``, the figures of a page stay."""
    parts = {DESCRIPTIONS: words(options.only)}
    if not options.words:
        measure.full_float32()
        about = report.environment("cpu", options.threads)
        left_out: list[str] = []
        if options.backend != "auto":
            left_out = refused(options.only, options.backend)
        names = [name for name in options.only if name not in left_out]
        by_layer = {
            layer: measured(layer, names, options) for layer in cases("mean", 1)
        }
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
        below = f"{where}; {settings}. {options.note}".strip()
        parts[FIGURES] = f"{figures(by_layer)}\n\n{below}"
    show("\n\n".join(parts.values()))
    if options.into is not None:
        page = options.into.read_text()
        for part, text in parts.items():
            page = put_into(page, part, text)
        options.into.write_text(page)
