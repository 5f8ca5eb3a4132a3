"""The process of one version in a comparison: times a case for each line that it reads."""

import json
import sys
from collections.abc import Callable
from statistics import median

import torch

from torchcaps.bench import measure
from torchcaps.bench.cases import CASES, call_of, with_batch

LONG_ENOUGH = 0.1
"""Seconds of calls in a row."""


def serve(name: str, backend: str, training: str, device: str, threads: str, batch: str) -> None:
    """Prints the extra memory of the case, then its seconds for each line of the input."""
    torch.set_num_threads(int(threads))
    case = with_batch(CASES[name], int(batch) or None)
    arguments = backend, training == "1", device
    call_of(with_batch(case, 1), *arguments)()
    call = call_of(case, *arguments)
    known = device == "cpu" and measure.HAVE_PEAK
    _say({"peak": measure.peak_growth(call) if known else None})
    measure.timed(call, device)
    for _ in sys.stdin:
        _say(_median_of_calls(call, device))


def _median_of_calls(call: Callable[[], object], device: str) -> float:
    """Seconds of a call among calls in a row: the first ones find caches full of what the other version left there."""
    seconds = [measure.timed(call, device)]
    while sum(seconds) < LONG_ENOUGH:
        seconds.append(measure.timed(call, device))
    return median(seconds)


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
