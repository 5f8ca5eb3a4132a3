"""``torchcaps bench gpu``: everything that needs a CUDA machine, in one call.

The tests of the Triton kernels; the suite at batch 128; MatrixCapsNet at batch 512; whole training loops. Results go to
``--out``, by default the folder in the environment variable ``OUT``, else ``runs/bench-gpu``.
"""

import argparse
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from torchcaps.bench import command, measure, report, suite
from torchcaps.bench.cases import CASES
from torchcaps.bench.options import amount, folder, positive
from torchcaps.bench.suite import Show

ROOT = Path(__file__).parent.parent.parent
TESTS = "tests/ops/test_triton_kernels.py"


def main(arguments: list[str], show: Show, program: str) -> None:
    """Runs the tests and all measurements, and writes the results; a part that fails does not stop the others.

    Args:
        arguments: of the command line.
        show: takes what is printed.
        program: its name in messages.

    Raises:
        SystemExit: with status 1 if a part failed.
    """
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument(
        "--out", type=folder, default=os.environ.get("OUT") or "runs/bench-gpu", help="folder for results"
    )
    parser.add_argument("--runs", type=positive, default=20, help="timed runs of each call")
    parser.add_argument("--seconds", type=amount, default=20.0, help="time limit for the runs of one comparison")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--large", type=positive, default=512, help="batch of the large MatrixCapsNet")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("this needs a GPU that torch can use")
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    parts = [] if options.no_tests else [("tests", lambda: run_tests(out, show))]
    parts += [
        ("suite", lambda: measured(list(CASES), options, out, show)),
        ("large", lambda: measured(["matrixcapsnet"], options, out / "large", show, options.large)),
        ("training", lambda: loops(out, show)),
    ]
    failed = [name for name, part in parts if not survives(part, show)]
    show("failed: " + ", ".join(failed) if failed else "all parts done")
    if failed:
        sys.exit(1)


def survives(part: Callable[[], object], show: Show) -> bool:
    """Whether a part ran without an error; shows the error."""
    try:
        part()
    except Exception:
        show(traceback.format_exc())
        return False
    return True


def run_tests(out: Path, show: Show) -> None:
    """Runs the tests of the Triton kernels on the GPU and writes their output to a file."""
    if not (ROOT / TESTS).is_file():
        raise FileNotFoundError(f"the tests are not installed with the package: {TESTS} is in a checkout")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", TESTS],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    (out / "tests.txt").write_text(done.stdout)
    show(f"{done.stdout[-3000:]}\ntests: {time.perf_counter() - start:.0f} s")
    if done.returncode:
        raise RuntimeError(f"the tests ended with status {done.returncode}: see {out / 'tests.txt'}")


def loops(out: Path, show: Show) -> None:
    """Measures images per second of whole training loops."""
    command.main(["training", "--device", "cuda", "--seconds", "0.5", "--out", str(out)], show)


def measured(names: list[str], options: argparse.Namespace, out: Path, show: Show, batch: int | None = None) -> None:
    """Runs the suite on the GPU for these cases; writes tables, JSON and plot to the folder."""
    measure.full_float32()
    about = report.environment("cuda", torch.get_num_threads(), report.command_line())
    show(report.heading(about))
    how = suite.Options("cuda", options.runs, options.seconds, torch.get_num_threads(), batch)
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        show(line)

    command.suite_report(names, how, about, out, note)
    (out / "suite.txt").write_text("\n".join(lines) + "\n")
