"""Results as tables, JSON and plots."""

import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import torchcaps
from torchcaps.bench.bars import Bar
from torchcaps.bench.measure import Spread
from torchcaps.bench.suite import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Environment variable that makes torch ask for huge pages for large tensors, whose first use then costs less."""

COLOURS = {"naive": "#8A8A8A", "chunked": "#E69F00", "native": "#0072B2", "triton": "#0072B2", "cnn": "#009E73"}
MIB = 2**20


def environment(device: str, threads: int, command: str) -> dict[str, Any]:
    """Hardware, versions, settings and command."""
    hardware = f"{_processor()}, {os.cpu_count()} cores"
    if device == "cuda":
        hardware = f"{torch.cuda.get_device_name()}, {hardware}"
    versions = {"python": platform.python_version(), "torch": torch.__version__, "torchcaps": torchcaps.__version__}
    if device == "cuda":
        versions |= {"cuda": str(torch.version.cuda), "triton": _version("triton")}
    return {
        "command": command,
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "device": device,
        "hardware": hardware,
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "settings": {"threads": threads, HUGE_PAGES: os.environ.get(HUGE_PAGES, "0"), "dtype": "float32, no TF32"},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE) if info.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def heading(about: dict[str, Any]) -> str:
    """The environment in two lines."""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    settings = ", ".join(f"{name} {value}" for name, value in about["settings"].items())
    return f"{about['hardware']}; {versions}\n{settings}"


def write_json(path: Path, **content: Any) -> None:
    """Writes a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with columns as wide as needed, the first aligned left, the others right."""
    lines = [list(titles), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    return "\n".join(
        "  ".join(cell.ljust(width) if place == 0 else cell.rjust(width) for place, (cell, width) in columns).rstrip()
        for columns in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
    )


def milliseconds(seconds: float) -> str:
    """As text, with two digits or, from 100 ms on, without decimals."""
    return f"{1e3 * seconds:.{max(0, 2 - len(str(int(1e3 * seconds))) + (seconds < 1e-3))}f}"


def times(spread: Spread) -> str:
    """A ratio and its range, as text."""
    low, high = ("∞" if value == float("inf") else f"{value:.3g}" for value in (spread.low, spread.high))
    return f"{spread.median:.3g} ({low}-{high})"


def suite_table(rows: list[Row]) -> str:
    """Every row: times, beside the limit, and memory."""
    titles = ("case", "batch", "pass", "backend", "median ms", "range", "limit ms", "time / limit", "extra MiB")
    return table(titles, [_cells(row) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    what = (row.case, str(row.batch), "training" if row.training else "forward", row.backend)
    if not row.seconds:
        return (*what, row.trouble, "", "", "", "")
    median, low, high = Spread.of(row.seconds)
    span = f"{milliseconds(low)}-{milliseconds(high)}"
    memory = "" if row.peak is None else f"{row.peak / MIB:.1f}"
    return (*what, milliseconds(median), span, milliseconds(row.limit), times(row.times_limit), memory)


def machine_line(rows: list[Row]) -> str:
    """The measured rates that the limits are computed from."""
    measured = [row for row in rows if row.seconds]
    rates = Spread.of([value / 1e9 for row in measured for value in row.matmul_rate])
    bandwidths = Spread.of([value / 1e9 for row in measured for value in row.bandwidth])
    return (
        f"matrix product {rates.median:.0f} GFLOP/s ({rates.low:.0f} to {rates.high:.0f}), "
        f"copy {bandwidths.median:.1f} GB/s read and written ({bandwidths.low:.1f} to {bandwidths.high:.1f})"
    )


def bar_table(found: list[Bar]) -> str:
    """The bars, and whether they are met."""
    names = {True: "met", False: "MISSED", None: ""}
    rows = []
    for bar in found:
        value = times(bar.value) if bar.value.low != bar.value.high else f"{bar.value.median:.3g}"
        bound = f"{bar.sense} {bar.bound:g}" if bar.sense else ""
        rows.append((bar.what, f"{value} {bar.unit}", bound, names[bar.met]))
    return table(("figure", "measured", "bar", ""), rows)


def suite_json(rows: list[Row], found: list[Bar], about: dict[str, Any], path: Path) -> None:
    """Writes the result file of the suite."""
    content = [{**bar._asdict(), "value": bar.value._asdict(), "met": bar.met} for bar in found]
    write_json(path, **about, rows=[row.as_dict() for row in rows], bars=content)


def figure(width: float, height: float, columns: int = 1) -> "tuple[Figure, list[Axes]]":
    """An empty figure with axes side by side.

    Raises:
        ModuleNotFoundError: without matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(made)
    axes = made.subplots(1, columns, squeeze=False)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(which="major", color="#E4E4E4", linewidth=0.8)
        axis.set_axisbelow(True)
    return made, list(axes)


def draw_suite(rows: list[Row], path: Path) -> None:
    """Draws time as a multiple of the limit, and extra memory; a group of bars for each case and pass."""
    rows = [row for row in rows if row.seconds]
    groups = list(dict.fromkeys((row.case, row.training) for row in rows if row.backend != "cnn"))
    names = list(dict.fromkeys(row.backend for row in rows))
    made, (left, right) = figure(11, 1.3 + max(0.24 * len(rows), 0.42 * len(groups)), 2)
    slots = {name: place for place, name in enumerate(names)}
    for row in rows:
        group = groups.index((row.case if row.backend != "cnn" else "capsnet", row.training))
        y = group + 0.8 * (slots[row.backend] + 0.5) / len(names) - 0.4
        look: dict[str, Any] = {"height": 0.8 / len(names), "color": COLOURS.get(row.backend, "#CC79A7")}
        found = row.times_limit
        error = [[found.median - found.low], [found.high - found.median]]
        left.barh(y, found.median, xerr=error, error_kw={"linewidth": 0.8}, **look)
        left.annotate(f" {milliseconds(Spread.of(row.seconds).median)} ms", (found.high, y), va="center", fontsize=6.5)
        if row.peak is not None:
            right.barh(y, max(row.peak / MIB, 0.1), **look)
            right.annotate(f" {row.peak / MIB:.0f}", (max(row.peak / MIB, 0.1), y), va="center", fontsize=6.5)
    labels = [f"{case}\n{'training step' if training else 'forward'}" for case, training in groups]
    for axis in (left, right):
        axis.set(xscale="log", yticks=range(len(groups)), ylim=(len(groups) - 0.4, -0.6))
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.margins(x=0.12)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    left.set_yticklabels(labels, fontsize=8)
    right.set_yticklabels([])
    left.set_xlim(left=min(0.8, *(row.times_limit.low for row in rows)))
    right.set_xlim(left=0.5)
    left.axvline(1, color="#222222", linewidth=1.2)
    left.set(title="time / physical limit", xlabel="1 = arithmetic at the matmul rate, or bytes at the copy bandwidth")
    right.set(title="extra memory", xlabel="MiB beyond weights and inputs")
    handles = [left.barh(-9, 0, color=COLOURS.get(name, "#CC79A7"), label=name) for name in names]
    made.legend(handles=handles, loc="outside lower center", ncols=len(names), frameon=False)
    save(made, path)


def save(made: "Figure", path: Path) -> None:
    """Writes a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path)


def have_matplotlib() -> bool:
    """Whether plots can be drawn."""
    return find_spec("matplotlib") is not None


def command_line() -> str:
    """The command as typed, without the path of the interpreter."""
    name = Path(sys.argv[0])
    program = f"python -m {name.parent.name}" if name.name == "__main__.py" else name.name
    return " ".join([program, *sys.argv[1:]])
