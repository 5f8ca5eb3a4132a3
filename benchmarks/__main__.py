"""``python -m benchmarks PART ...``, from the root of a checkout."""

import argparse
import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.cases import CASES, LayerCase, call_of
from torchcaps import CapsLinear
from torchcaps.ops import BACKENDS
from torchcaps_lab.cli.output import until_unread

PARTS = {
    "suite": "layers and networks with every backend (the default)",
    "compare": "two versions of the code, in turn",
    "routings": (
        "all routing algorithms: a description of each, and its time and memory "
        "on two layers"
    ),
    "slots": "slot attention beside the textbook's, compiled or not, and PyPI's",
    "first-minutes": "how long a newcomer waits: help, errors, predictions, the first epoch",
    "launches": "how many operations a GPU would be given, counted without one",
    "gpu": "values, times and memory on a GPU, beside the aims for one",
    "options": "the declared options that no network, recipe, preset, example or benchmark sets",
    "faults": "behaviour with damaged and hostile files, and after interruptions",
}
"""The parts, each with ``add_options(parser)`` and ``run(options, show)`` in the module
of its name.
"""


def positive(text: str) -> int:
    """A whole number, 1 or more."""
    if int(text) < 1:
        raise ArgumentTypeError(f"must be 1 or more, got {text}")
    return int(text)


def amount(text: str) -> float:
    """A finite number, 0 or more."""
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentTypeError(f"must be a finite number, 0 or more, got {text}")
    return value


def main(
    arguments: Sequence[str] | None = None, show: Callable[[str], None] = print
) -> int:
    """Runs one part, and returns the exit status: 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", allow_abbrev=False)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, description in PARTS.items():
        add_options(
            name,
            parts.add_parser(
                name, help=description, description=description, allow_abbrev=False
            ),
        )
    words = list(sys.argv[1:] if arguments is None else arguments)
    named = words[:1] and words[0] in (*PARTS, "-h", "--help")

    def measure() -> int:
        return _run(parser.parse_args(words if named else ["suite", *words]), show)

    return until_unread(measure)


def _run(options: argparse.Namespace, show: Callable[[str], None]) -> int:
    try:
        if getattr(options, "backends", None):
            check_backends(options.backends, options.device)
        import_module(f"benchmarks.{options.part.replace('-', '_')}").run(options, show)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"python -m benchmarks {options.part}: error: {error}", file=sys.stderr)
        return 1
    return 0


def add_options(part: str, parser: argparse.ArgumentParser) -> None:
    """The options of a part."""
    add = parser.add_argument
    if part == "launches":
        return
    if part == "gpu":
        add("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
        add("--out", type=Path, help="a JSON file for the results")
        return
    if part == "faults":
        add("--quick", action="store_true", help="try only a few of each")
        add("--seed", type=int, default=0, help="of the damage and its moments")
        return
    add(
        "--runs",
        type=positive,
        default=5,
        help="timed rounds, in which all take turns; default: 5",
    )
    add(
        "--threads",
        type=positive,
        default=torch.get_num_threads(),
        help="of torch, on a CPU",
    )
    if part == "slots":
        add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
        add("--no-compile", action="store_true", help="leave out torch.compile")
        add("--out", type=Path, help="a JSON file for the results")
        return
    if part == "first-minutes":
        add(
            "--against",
            type=Path,
            help="the root of a checkout of another version, measured in turn",
        )
        add("--out", type=Path, help="a JSON file for the results")
        return
    add("--no-memory", action="store_true", help="measure times only")
    if part == "routings":
        from benchmarks.routings import ROUTINGS

        add(
            "--only",
            nargs="+",
            choices=sorted(ROUTINGS),
            default=sorted(ROUTINGS),
            help="default: all",
        )
        add("--batch", type=positive, default=16, help="images")
        add(
            "--backend",
            choices=("auto", *BACKENDS),
            default="auto",
            help="default: auto",
        )
        add(
            "--words",
            action="store_true",
            help="measure nothing, and leave the figures of the page",
        )
        add(
            "--note",
            default="",
            help="a sentence about the machine, put below the figures",
        )
        add(
            "--into",
            type=Path,
            help="a page to write the tables into, between its marks",
        )
        return
    add("--device", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    add("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    add(
        "--backends",
        nargs="+",
        choices=("auto", *BACKENDS),
        help="default: all that run on the device",
    )
    add(
        "--seconds",
        type=amount,
        default=30.0,
        help="time limit for the rounds of one comparison; at least 3 are made",
    )
    add("--batch", type=positive, help="of every case; default: its own")
    if part == "compare":
        add(
            "--against",
            type=Path,
            required=True,
            help="the root of a checkout of the other version",
        )
    add("--out", type=Path, help="a JSON file for the results")


def check_backends(names: Sequence[str], device: str) -> None:
    """Raises a `ValueError` unless each of the backends runs a tiny layer on the
    device.
    """
    for name in names:
        try:
            call_of(
                LayerCase("two", 1, partial(CapsLinear, 2, 2, 8, 16), (2,), (8,)),
                name,
                False,
                device,
            )()
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"--backends {name} on {device}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
