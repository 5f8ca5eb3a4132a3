"""``python -m benchmarks PART ...``, from the root of a checkout."""

import argparse
import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.cases import CASES, LayerCase, call_of
from torchcaps import CapsLinear
from torchcaps.ops import BACKENDS
from torchcaps.routing import ROUTINGS
from torchcaps_lab.cli.output import until_unread


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


OPTIONS: dict[str, dict[str, Any]] = {
    "--runs": {
        "type": positive,
        "default": 5,
        "help": "timed rounds, in which all take turns; default: 5",
    },
    "--threads": {
        "type": positive,
        "default": torch.get_num_threads(),
        "help": "of torch, on a CPU",
    },
    "--device": {
        "choices": ("cpu", "cuda"),
        "default": "cpu",
        "help": "default: %(default)s",
    },
    "--no-memory": {"action": "store_true", "help": "measure times only"},
    "--cases": {
        "nargs": "+",
        "choices": CASES,
        "default": list(CASES),
        "help": "default: all",
    },
    "--backends": {
        "nargs": "+",
        "choices": ("auto", *BACKENDS),
        "help": "default: all that run on the device",
    },
    "--seconds": {
        "type": amount,
        "default": 30.0,
        "help": "time limit for the rounds of one comparison; at least 3 are made",
    },
    "--batch": {"type": positive, "help": "of every case; default: its own"},
    "--against": {
        "type": Path,
        "help": "the root of a checkout of another version, measured in turn",
    },
    "--out": {"type": Path, "help": "a JSON file for the results"},
    "--no-compile": {"action": "store_true", "help": "leave out torch.compile"},
    "--quick": {"action": "store_true", "help": "try only a few of each"},
    "--seed": {"type": int, "default": 0, "help": "of the damage and its moments"},
    "--only": {
        "nargs": "+",
        "choices": sorted(ROUTINGS),
        "default": sorted(ROUTINGS),
        "help": "default: all",
    },
    "--backend": {
        "choices": ("auto", *BACKENDS),
        "default": "auto",
        "help": "default: auto",
    },
    "--words": {
        "action": "store_true",
        "help": "measure nothing, and leave the figures of the page",
    },
    "--note": {
        "default": "",
        "help": "a sentence about the machine, put below the figures",
    },
    "--into": {
        "type": Path,
        "help": "a page to write the tables into, between its marks",
    },
}
"""All options, as argparse takes them."""


class Part(NamedTuple):
    """A part of the command, with ``run(options, show)`` in the module of its name.

    Args:
        description: what it measures.
        options: the names of its options.
        changes: how some of them differ from :data:`OPTIONS`.
    """

    description: str
    options: tuple[str, ...] = ()
    changes: Mapping[str, Mapping[str, Any]] = {}


_TIMED = ("--runs", "--threads")
_SUITE = (
    *_TIMED,
    "--no-memory",
    "--device",
    "--cases",
    "--backends",
    "--seconds",
    "--batch",
    "--out",
)
PARTS = {
    "suite": Part("layers and networks with every backend (the default)", _SUITE),
    "compare": Part(
        "two versions of the code, in turn",
        (*_SUITE, "--against"),
        {"--against": {"required": True}},
    ),
    "routings": Part(
        "all routing algorithms: a description of each, and its time and memory on two "
        "layers",
        (
            *_TIMED,
            "--no-memory",
            "--only",
            "--batch",
            "--backend",
            "--words",
            "--note",
            "--into",
        ),
        {"--batch": {"default": 16, "help": "images; default: 16"}},
    ),
    "slots": Part(
        "slot attention beside the textbook's, compiled or not, and PyPI's",
        (*_TIMED, "--device", "--no-compile", "--out"),
    ),
    "first-minutes": Part(
        "how long a newcomer waits: help, errors, predictions, the first epoch",
        (*_TIMED, "--against", "--out"),
    ),
    "launches": Part("how many operations a GPU would be given, counted without one"),
    "gpu": Part(
        "values, times and memory on a GPU, beside the aims for one",
        ("--device", "--out"),
        {"--device": {"default": "cuda"}},
    ),
    "options": Part(
        "the declared options that no network, recipe, preset, example or benchmark sets"
    ),
    "faults": Part(
        "behaviour with damaged and hostile files, and after interruptions",
        ("--quick", "--seed"),
    ),
}


def main(
    arguments: Sequence[str] | None = None, show: Callable[[str], None] = print
) -> int:
    """Runs one part, and returns the exit status: 1 after an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", allow_abbrev=False)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, (description, options, changes) in PARTS.items():
        part = parts.add_parser(
            name, help=description, description=description, allow_abbrev=False
        )
        for option in options:
            part.add_argument(option, **{**OPTIONS[option], **changes.get(option, {})})
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
