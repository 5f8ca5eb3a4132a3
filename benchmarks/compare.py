"""Two versions of the code in one run: the same case in turn, each version in its own
process.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks import measure, report
from benchmarks.cases import CASES, NetworkCase, call_of, with_batch
from benchmarks.measure import Spread
from benchmarks.report import Show
from benchmarks.suite import Options

ROOT = Path(__file__).parent.parent
LONG_ENOUGH = 0.1
"""Seconds of calls in a row."""

# The cases are always those of this version; the layers and networks are those of the
# version named first.
_START = """
import sys
sys.path[0] = sys.argv[1]
import torchcaps
sys.path[0] = sys.argv[2]
from benchmarks.compare import serve
serve(*sys.argv[3:])
"""


def serve(
    name: str, backend: str, training: str, device: str, threads: str, batch: str
) -> None:
    """The process of one version: prints the extra memory of the case, then its seconds
    for each line of the input.
    """
    torch.set_num_threads(int(threads))
    case = with_batch(CASES[name], int(batch) or None)
    arguments = backend, training == "1", device
    call_of(with_batch(case, 1), *arguments)()
    call = call_of(case, *arguments)
    measures_peak = device == "cpu" and measure.HAVE_PEAK
    _say({"peak": measure.peak_growth(call) if measures_peak else None})
    measure.timed(call, device)
    for _ in sys.stdin:
        # Calls in a row: the first ones find caches full of what the other version left
        # there.
        seconds = [measure.timed(call, device)]
        while sum(seconds) < LONG_ENOUGH:
            seconds.append(measure.timed(call, device))
        _say(median(seconds))


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


class Pair(NamedTuple):
    """One call in two versions.

    Args:
        case: the name of the case.
        training: whether it is a training step, or the forward pass.
        other: the seconds of the other version.
        this: the seconds of this version.
        other_peak: the bytes of extra memory of the other version; None where that
            cannot be measured.
        this_peak: the bytes of extra memory of this version; None as above.
    """

    case: str
    training: bool
    other: list[float]
    this: list[float]
    other_peak: int | None
    this_peak: int | None

    @property
    def ratio(self) -> Spread:
        """other / this, round by round: above 1, this version is faster."""
        return Spread.of([a / b for a, b in zip(self.other, self.this, strict=True)])


class Worker:
    """A process that runs a case on request.

    Args:
        tree: the folder that holds the version's ``torchcaps``.
        arguments: the arguments of :func:`serve`.
    """

    def __init__(self, tree: Path, arguments: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(tree), str(ROOT), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tree = tree

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()  # which ends it
        self.process.stdout.close()
        self.process.wait()

    def answer(self) -> Any:
        """The next answer of the process."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise OSError(
                f"the version in {self.tree} cannot run this case: see its message "
                "above"
            )
        return json.loads(line)

    def run(self) -> float:
        """Seconds of one run."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return float(self.answer())


def run(options: argparse.Namespace, show: Show) -> None:
    """Measures the cases in both versions.

    Raises:
        ValueError: if there is no version in the other folder.
    """
    against = options.against
    if not (against / "torchcaps" / "__init__.py").is_file():
        raise ValueError(
            "--against must be the root of a checkout with a folder torchcaps in it, "
            f"got {against}"
        )
    measuring = Options.of(options)
    about = report.environment(options.device, options.threads)
    backend = options.backends[0] if options.backends else "auto"
    pairs = []
    for name in options.cases:
        passes = (True,) if isinstance(CASES[name], NetworkCase) else (False, True)
        for training in passes:
            kind = "training step" if training else "forward"
            show(f"measuring {name}, {kind}, in both versions")
            pairs.append(paired(name, training, against.resolve(), backend, measuring))
    show("\n" + compare_table(pairs))
    if options.out:
        rows = [{**pair._asdict(), "ratio": pair.ratio._asdict()} for pair in pairs]
        report.write_json(options.out, **about, against=against.name, pairs=rows)


def paired(
    name: str, training: bool, against: Path, backend: str, options: Options
) -> Pair:
    """One call in both versions, in turn."""
    batch = options.batch or 0
    arguments = [
        name,
        backend,
        str(int(training)),
        options.device,
        str(options.threads),
        str(batch),
    ]
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(tree, arguments)) for tree in (against, ROOT)
        ]
        peaks = [worker.answer()["peak"] for worker in workers]
        seconds: list[list[float]] = [[], []]
        start = time.perf_counter()
        for done in range(options.runs):
            if done >= 3 and time.perf_counter() - start > options.seconds:
                break
            for place in (0, 1) if done % 2 else (1, 0):
                seconds[place].append(workers[place].run())
    return Pair(name, training, seconds[0], seconds[1], peaks[0], peaks[1])


def compare_table(pairs: list[Pair]) -> str:
    """One row for each call."""
    rows = []
    for pair in pairs:
        memory = [
            "" if peak is None else f"{peak / report.MIB:.1f}"
            for peak in (pair.other_peak, pair.this_peak)
        ]
        medians = [
            report.milliseconds(Spread.of(seconds).median)
            for seconds in (pair.other, pair.this)
        ]
        kind = "training" if pair.training else "forward"
        rows.append((pair.case, kind, *medians, report.times(pair.ratio), *memory))
    return report.table(
        (
            "case",
            "pass",
            "other ms",
            "this ms",
            "other / this",
            "other MiB",
            "this MiB",
        ),
        rows,
    )
