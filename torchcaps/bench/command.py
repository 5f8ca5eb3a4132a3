"""``torchcaps bench``: its parts, the options of those that share options, and their output."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from torchcaps.bench import bars, compare, measure, report, small, suite, sweep
from torchcaps.bench.cases import CASES, LinearCase, call_of
from torchcaps.bench.options import amount, folder, new_folder, positive
from torchcaps.bench.suite import Show
from torchcaps.ops.dispatch import BACKENDS, FUSED

PARTS = ("suite", "sweep", "small", "compare")
OWN_OPTIONS = {
    "training": "images per second of whole training loops, and where the time of a step goes",
    "processes": "how much faster two processes train than one",
    "routings": "all routing algorithms: a description of each, and its time and memory on two layers",
    "faults": "behaviour with damaged and hostile files, and after interruptions",
    "folder": "time and memory of reading a folder of images larger than memory, which is generated",
    "gpu": "tests of the Triton kernels, suite and training loops on a CUDA machine",
}
"""Parts with their own options, each ``main(arguments, show, program)`` in the module of its name."""


def main(arguments: list[str], show: Show, program: str = "torchcaps bench") -> None:
    """Runs one part of the benchmarks.

    Args:
        arguments: of the command line: the name of a part, or of a case of the suite, and options.
        show: takes what is printed.
        program: its name in messages.

    Raises:
        ValueError: if the options do not fit the machine, or a package is missing.
    """
    name = arguments[0] if arguments else ""
    if name in OWN_OPTIONS:
        _part(name)(arguments[1:], show, f"{program} {name}")
        return
    if name in CASES:
        arguments = ["suite", "--cases", *arguments]
    options = _parser(program).parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a GPU that torch can use")
    out = options.out or new_folder(options.part)
    _check_backends(options.backends or (), options.device)
    if options.huge_pages is not None:
        _with_huge_pages(arguments, options.huge_pages, out, show)
        return
    measure.full_float32()
    about = report.environment(options.device, options.threads, report.command_line())
    show(report.heading(about))
    {"suite": _suite, "sweep": _sweep, "small": _small, "compare": _compare}[options.part](options, about, out, show)


def _part(name: str) -> Callable[[list[str], Show, str], None]:
    try:
        main: Callable[[list[str], Show, str], None] = import_module(f"torchcaps.bench.{name}").main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "torchcaps":
            raise
        raise ValueError(f"{name} needs the package {error.name}: pip install 'torchcaps[train]'") from error
    return main


def _check_backends(names: Iterable[str], device: str) -> None:
    """Raises a `ValueError` unless each of the backends runs a tiny layer on the device."""
    for name in names:
        try:
            call_of(LinearCase("two", 1, children=2, parents=2), name, False, device)()
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"--backends {name} on {device}: {error}") from error


def _shared_part(name: str) -> str:
    """The name of a part that shares its options; other parts and cases must come first, before the options."""
    if name in OWN_OPTIONS or name in CASES:
        raise argparse.ArgumentTypeError(f"{name} must come before the options")
    if name not in PARTS:
        parts = ", ".join((*PARTS, *OWN_OPTIONS))
        raise argparse.ArgumentTypeError(f"there is no {name!r}; parts are {parts}; cases are {', '.join(CASES)}")
    return name


def _parser(program: str) -> argparse.ArgumentParser:
    own = [f"  {program} {name} --help: {what}" for name, what in OWN_OPTIONS.items()]
    parser = argparse.ArgumentParser(
        prog=program,
        description="Measure speed and memory.",
        epilog="\n".join(["parts with options of their own:", *own]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("part", nargs="?", type=_shared_part, metavar="PART", default="suite", help="suite: layers and networks "
        "(default); sweep: growth with one factor at a time; small: up to which size storing the votes is fastest; "
        "compare: two versions of the code; or the name of a case of the suite")  # fmt: skip
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    add("--cases", nargs="+", choices=CASES, default=list(CASES), help="of suite and compare; default: all")
    add("--backends", nargs="+", choices=("auto", *BACKENDS), help="default: all that run on the device")
    add("--runs", type=positive, help="timed runs of each call; default: 7, or 3 in a sweep")
    add("--seconds", type=amount, default=30.0, help="time limit for the runs of one comparison; at least 3 are made")
    add("--threads", type=positive, default=torch.get_num_threads(), help="of torch, on a CPU")
    add("--batch", type=positive, help="of every case; default: its own, which the bars are for")
    add("--no-memory", action="store_true", help="measure times only")
    add("--routing", nargs="+", choices=("dynamic", "em"), default=["dynamic", "em"], help="of a sweep")
    add("--factors", nargs="+", choices=sweep.FACTORS, default=list(sweep.FACTORS), help="of a sweep")
    add("--against", type=Path, help="for compare: the root of a checkout of the other version")
    add("--huge-pages", choices=("0", "1", "both"), help=f"run in a process with {report.HUGE_PAGES} set to this")
    add("--out", type=folder, help="folder for results; default: a new one in runs/")
    return parser


def _with_huge_pages(arguments: list[str], setting: str, out: Path, show: Show) -> None:
    """Runs the command once, or once for each value, in a process with that environment variable."""
    rest, skip = [], False
    for argument in arguments:
        name = argument.partition("=")[0]
        if not skip and name not in ("--huge-pages", "--out"):
            rest.append(argument)
        skip = not skip and argument in ("--huge-pages", "--out")
    for value in ("0", "1") if setting == "both" else (setting,):
        place = out / f"huge-pages-{value}" if setting == "both" else out
        show(f"\n{report.HUGE_PAGES}={value}")
        command = [sys.executable, "-m", "torchcaps", "bench", *rest, "--out", str(place)]
        done = subprocess.run(command, env={**os.environ, report.HUGE_PAGES: value}, stdout=subprocess.PIPE, text=True)
        show(done.stdout.rstrip())
        if done.returncode:
            raise OSError(f"the measurement with {report.HUGE_PAGES}={value} failed with status {done.returncode}")


def _options(options: argparse.Namespace, runs: int) -> suite.Options:
    return suite.Options(
        options.device,
        runs if options.runs is None else options.runs,
        options.seconds,
        options.threads,
        options.batch,
        None if options.backends is None else tuple(options.backends),
        not options.no_memory,
    )


def _suite(options: argparse.Namespace, about: dict[str, Any], out: Path, show: Show) -> None:
    suite_report(options.cases, _options(options, 7), about, out, show)


def suite_report(
    cases: list[str], options: suite.Options, about: dict[str, Any], out: Path, show: Show
) -> list[suite.Row]:
    """Measures the cases; shows tables; writes ``suite.json`` and ``suite.png``."""
    rows = suite.run(cases, options, show)
    found = bars.bars(rows, options.device)
    show("\n" + report.suite_table(rows))
    show("\n" + report.machine_line(rows))
    if found:
        show("\n" + report.bar_table(found))
    report.suite_json(rows, found, about, out / "suite.json")
    _draw(lambda: report.draw_suite(rows, out / "suite.png"), out, show)
    return rows


def _draw(draw: Callable[[], None], out: Path, show: Show) -> None:
    if report.have_matplotlib():
        draw()
        show(f"\nresults and plot: {out}")
    else:
        show(f"\nresults: {out} (pip install matplotlib for plots)")


def _sweep(options: argparse.Namespace, about: dict[str, Any], out: Path, show: Show) -> None:
    factors = {name: sweep.FACTORS[name] for name in options.factors}
    found = {}
    for routing in options.routing:
        found[routing] = sweep.sweep(routing, factors, _options(options, 3), show)
        show(f"\n{routing} routing, training step\n{sweep.sweep_table(found[routing])}\n")
    rows = {routing: [asdict(point) for point in points] for routing, points in found.items()}
    report.write_json(out / "sweep.json", **about, base=sweep.BASE, points=rows)

    def draw() -> None:
        for routing, points in found.items():
            sweep.draw_sweep(points, routing, out / f"sweep-{routing}.png")

    _draw(draw, out, show)


def _small(options: argparse.Namespace, about: dict[str, Any], out: Path, show: Show) -> None:
    fused = FUSED[options.device]
    sizes = small.small(_options(options, 25), show)
    show("\n" + small.small_table(sizes, fused))
    report.write_json(out / "small.json", **about, sizes=[size._asdict() for size in sizes])
    _draw(lambda: small.draw_small(sizes, fused, out / "small.png"), out, show)


def _compare(options: argparse.Namespace, about: dict[str, Any], out: Path, show: Show) -> None:
    if options.against is None:
        raise ValueError("compare needs --against, the root of a checkout of the other version")
    backend = options.backends[0] if options.backends else "auto"
    chosen = replace(_options(options, 9), backends=None)
    pairs = compare.compare(options.cases, options.against, backend, chosen, show)
    show("\n" + compare.compare_table(pairs))
    rows = [{**pair._asdict(), "ratio": pair.ratio._asdict()} for pair in pairs]
    report.write_json(out / "compare.json", **about, against=options.against.name, pairs=rows)
