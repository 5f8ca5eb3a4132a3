"""Two versions of the code in one run: the same case in turn, each version in its own process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.bench import report
from torchcaps.bench.measure import Spread
from torchcaps.bench.suite import Options, Show

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

# The cases are always those of this version; the layers and networks are those of the version on the path.
_START = """
import importlib.util, sys
import torchcaps
from pathlib import Path
folder = Path(sys.argv[1])
spec = importlib.util.spec_from_file_location(
    "torchcaps.bench", folder / "__init__.py", submodule_search_locations=[str(folder)]
)
module = importlib.util.module_from_spec(spec)
sys.modules["torchcaps.bench"] = torchcaps.bench = module
spec.loader.exec_module(module)
from torchcaps.bench import worker
worker.serve(*sys.argv[2:])
"""


class Pair(NamedTuple):
    """One call in two versions.

    Args:
        case: name.
        training: a training step, or the forward pass.
        other: seconds of the other version.
        this: seconds of this version.
        other_peak: bytes of its extra memory; None where it is not known.
        this_peak: bytes.
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
        tree: folder that holds the version's ``torchcaps``.
        arguments: of :func:`torchcaps.bench.worker.serve`.
    """

    def __init__(self, tree: Path, arguments: Sequence[str]) -> None:
        paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, str(HERE), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
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
            raise OSError(f"the version in {self.tree} cannot run this case: see its message above")
        return json.loads(line)

    def run(self) -> float:
        """Seconds of one run."""
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return float(self.answer())


def compare(names: Sequence[str], against: Path, backend: str, options: Options, show: Show) -> list[Pair]:
    """Measures the named cases in both versions.

    Args:
        names: of :data:`~torchcaps.bench.cases.CASES`.
        against: folder of the other version, which holds ``torchcaps``.
        backend: ``auto``: each version chooses its own.
        options: how to measure.
        show: takes a line about the progress.

    Raises:
        ValueError: if there is no version in that folder.
    """
    from torchcaps.bench.cases import CASES, NetworkCase

    if not (against / "torchcaps" / "__init__.py").is_file():
        raise ValueError(f"--against must be the root of a checkout with a folder torchcaps in it, got {against}")
    pairs = []
    for name in names:
        for training in (True,) if isinstance(CASES[name], NetworkCase) else (False, True):
            show(f"measuring {name}, {'training step' if training else 'forward'}, in both versions")
            pairs.append(_pair(name, training, against.resolve(), backend, options))
    return pairs


def _pair(name: str, training: bool, against: Path, backend: str, options: Options) -> Pair:
    batch = options.batch or 0
    arguments = [name, backend, str(int(training)), options.device, str(options.threads), str(batch)]
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(tree, arguments)) for tree in (against, ROOT)]
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
        memory = ["" if peak is None else f"{peak / report.MIB:.1f}" for peak in (pair.other_peak, pair.this_peak)]
        middle = [report.milliseconds(Spread.of(values).median) for values in (pair.other, pair.this)]
        what = "training" if pair.training else "forward"
        rows.append((pair.case, what, *middle, report.times(pair.ratio), *memory))
    return report.table(("case", "pass", "other ms", "this ms", "other / this", "other MiB", "this MiB"), rows)
