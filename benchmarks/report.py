"""Results as tables and JSON."""

import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import torchcaps
from benchmarks.measure import Spread

if TYPE_CHECKING:
    from benchmarks.suite import Row

Show = Callable[[str], None]
"""Takes lines of text."""

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Environment variable that makes torch ask for huge pages for large tensors, whose
first use then costs less.
"""

MIB = 2**20


def environment(device: str, threads: int) -> dict[str, Any]:
    """Hardware, versions, settings and command."""
    hardware = f"{_processor()}, {os.cpu_count()} cores"
    if device == "cuda":
        hardware = f"{torch.cuda.get_device_name()}, {hardware}"
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchcaps": torchcaps.__version__,
    }
    if device == "cuda":
        versions |= {"cuda": str(torch.version.cuda), "triton": _version("triton")}
    return {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "device": device,
        "hardware": hardware,
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
        "settings": {
            "threads": threads,
            HUGE_PAGES: os.environ.get(HUGE_PAGES, "0"),
            "dtype": "float32, no TF32",
        },
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        pattern = r"^model name\s*:\s*(.+)$"
        model = re.search(pattern, info.read_text(), re.MULTILINE)
        if model is not None:
            return model[1].strip()
    return platform.processor() or platform.machine()


def heading(about: dict[str, Any]) -> str:
    """The environment in two lines."""
    versions = ", ".join(
        f"{name} {version}" for name, version in about["versions"].items()
    )
    settings = ", ".join(f"{name} {value}" for name, value in about["settings"].items())
    return f"{about['hardware']}; {versions}\n{settings}"


def write_json(path: Path, **content: Any) -> None:
    """Writes a result file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with columns as wide as needed, the first aligned left, the others
    right.
    """
    columns = zip(titles, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    alignments = [f">{width}" for width in widths]
    alignments[0] = f"<{widths[0]}"
    lines = []
    for row in (titles, *rows):
        cells = map(format, row, alignments)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def milliseconds(seconds: float) -> str:
    """As text, with two digits or, from 100 ms on, without decimals."""
    value = 1e3 * seconds
    if value < 1:
        decimals = 2
    else:
        decimals = max(0, 2 - len(str(int(value))))
    return f"{value:.{decimals}f}"


def times(spread: Spread) -> str:
    """A ratio and its range, as text."""
    return f"{spread.median:.3g} ({spread.low:.3g}-{spread.high:.3g})"


def suite_table(rows: "list[Row]") -> str:
    """Every row: times and memory."""
    titles = ("case", "batch", "pass", "backend", "median ms", "range", "extra MiB")
    return table(titles, [_cells(row) for row in rows])


def _cells(row: "Row") -> tuple[str, ...]:
    case = (
        row.case,
        str(row.batch),
        "training" if row.training else "forward",
        row.backend,
    )
    if not row.seconds:
        return (*case, row.trouble, "", "")
    median, low, high = Spread.of(row.seconds)
    span = f"{milliseconds(low)}-{milliseconds(high)}"
    memory = "" if row.peak is None else f"{row.peak / MIB:.1f}"
    return (*case, milliseconds(median), span, memory)


def markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    cells = [f"| {' | '.join(row)} |" for row in (titles, *rows)]
    return "\n".join([cells[0], "|---" * len(titles) + "|", *cells[1:]])
