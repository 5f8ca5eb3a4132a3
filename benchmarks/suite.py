"""The suite: every layer and network, with every backend that runs on the device,
forward and training step.
"""

import argparse
import gc
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from benchmarks import report
from benchmarks.cases import BESIDE, CASES, Case, NetworkCase, call_of, with_batch
from benchmarks.measure import (
    Call,
    Spread,
    available_memory,
    full_float32,
    interleaved,
    peak_memory,
)
from benchmarks.report import Show
from torchcaps.ops import Votes

FLOAT = 4
"""Bytes of a float32 number."""

STORED = 14
"""At most this many tensors of the size of the votes are alive in a training step of
``naive``.
"""

GPU_BATCH = 128


@dataclass(frozen=True)
class Row:
    """One measured call.

    Args:
        case: the name of the layer or network.
        batch: the number of images.
        training: whether it is a training step without the optimizer, or the forward
            pass.
        backend: the backend of the routing; ``cnn`` for a network without routing.
        seconds: the seconds of each run; in each round, all rows of a case and a pass
            took turns.
        votes: the bytes that the votes of the largest layer would take.
        peak: the bytes of extra memory; None if it was not measured.
        trouble: the reason why it was not measured at all.
    """

    case: str
    batch: int
    training: bool
    backend: str
    seconds: list[float] = field(default_factory=list)
    votes: int = 0
    peak: int | None = None
    trouble: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON, with the median of the seconds."""
        row = asdict(self)
        if self.seconds:
            row["median_seconds"] = Spread.of(self.seconds).median
        return row


def backends(device: str) -> list[str]:
    """The backends that run on a device."""
    children = torch.zeros(1, 2**12, 8, device=device)
    many = Votes(children, torch.zeros(2**12, 64, 8, 8, device=device))
    return list(dict.fromkeys(["naive", "chunked", many.choose_backend().backend]))


@dataclass(frozen=True)
class Options:
    """How to measure.

    Args:
        device: the device, ``cpu`` or ``cuda``.
        runs: the number of runs of each call.
        seconds: the time for the rounds of one comparison; at least three are made.
        threads: the number of threads of torch on a CPU.
        batch: the number of images of all cases; None for their own.
        backends: the backends to measure; None for all that run on the device.
        memory: whether memory is measured, too.
    """

    device: str = "cpu"
    runs: int = 7
    seconds: float = 30.0
    threads: int = 2
    batch: int | None = None
    backends: tuple[str, ...] | None = None
    memory: bool = True

    def case(self, case: Case) -> Case:
        """The case with the batch to measure."""
        if self.batch is None and self.device == "cuda":
            return with_batch(case, GPU_BATCH)
        return with_batch(case, self.batch)

    @classmethod
    def of(cls, options: argparse.Namespace) -> "Options":
        """From the command line.

        Raises:
            ValueError: if there is no such device.
        """
        if options.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda needs a GPU that torch can use")
        return cls(
            device=options.device,
            runs=options.runs,
            seconds=options.seconds,
            threads=options.threads,
            batch=options.batch,
            backends=None if options.backends is None else tuple(options.backends),
            memory=not options.no_memory,
        )


def run(options: argparse.Namespace, show: Show) -> None:
    """Measures the cases, shows tables, and writes the results."""
    measuring = Options.of(options)
    about = report.environment(options.device, options.threads)
    show(report.heading(about))
    rows = measured(options.cases, measuring, show)
    show(f"\n{report.suite_table(rows)}")
    if options.out:
        report.write_json(options.out, **about, rows=[row.as_dict() for row in rows])


def measured(names: Iterable[str], options: Options, show: Show) -> list[Row]:
    """The rows of cases, by name."""
    full_float32()
    torch.set_num_threads(options.threads)
    rows = []
    for name in names:
        case = options.case(CASES[name])
        beside = options.case(BESIDE[name]) if name in BESIDE else None
        passes = (True,) if isinstance(case, NetworkCase) else (False, True)
        for training in passes:
            kind = "training step" if training else "forward"
            show(f"measuring {case.name}, batch {case.batch}, {kind}")
            rows += compare(case, training, options, beside)
    return rows


def compare(
    case: Case, training: bool, options: Options, beside: Case | None = None
) -> list[Row]:
    """Measures a case with every backend, and another one beside it, in turn."""
    calls: dict[str, Call] = {}
    missing = []
    for backend in options.backends or backends(options.device):
        try:
            calls[backend] = _ready(case, backend, training, options.device)
        except MemoryError as error:
            row = Row(case.name, case.batch, training, backend, trouble=str(error))
            missing.append(row)
    if beside is not None:
        calls["cnn"] = call_of(beside, "auto", training, options.device)
    seconds = interleaved(calls, options.runs, options.device, options.seconds)
    del calls
    rows = []
    for backend, values in seconds.items():
        called, called_backend = case, backend
        if backend == "cnn" and beside is not None:
            called, called_backend = beside, "auto"
        peak = None
        if options.memory:
            peak = peak_memory(
                called, called_backend, training, options.device, options.threads
            )
        row = Row(
            called.name,
            called.batch,
            training,
            backend,
            values,
            FLOAT * called.votes,
            peak,
        )
        rows.append(row)
    return [*rows, *missing]


def _ready(case: Case, backend: str, training: bool, device: str) -> Call:
    """The call of a case, after one run of it.

    Raises:
        MemoryError: if the device has too little memory for it.
    """
    if backend == "naive":
        need = FLOAT * case.votes * (STORED if training else STORED // 2)
        free = available_memory(device)
        if need > free:
            raise MemoryError(
                f"may need {need / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
            )
    call = call_of(case, backend, training, device)
    try:
        call()
    except torch.OutOfMemoryError:
        pass
    else:
        return call
    del call
    gc.collect()
    torch.cuda.empty_cache()
    raise MemoryError("out of memory")
