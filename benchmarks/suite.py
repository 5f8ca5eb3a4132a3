"""The suite: every layer and network, with every backend that runs on the device, forward and training step."""

import argparse
import gc
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from benchmarks import report
from benchmarks.cases import BESIDE, CASES, Case, NetworkCase, call_of, with_batch
from benchmarks.measure import Call, Machine, Spread, available_memory, full_float32, interleaved, peak_memory
from benchmarks.work import FLOAT, Work
from torchcaps.ops.fused import why_not
from torchcaps.ops.plan import FUSED

Show = Callable[[str], None]

STORED = 14
"""At most this many tensors of the size of the votes are alive in a training step of ``naive``."""

GPU_BATCH = 128


@dataclass(frozen=True)
class Row:
    """One measured call, with the yardsticks of the machine from the same rounds.

    Args:
        case: name of the layer or network.
        batch: number of images.
        training: a training step without the optimizer, or the forward pass.
        backend: of the routing; ``cnn`` for a network without routing.
        seconds: of each run.
        matmul_rate: operations a second of a matrix product, in each round.
        bandwidth: bytes a second of a copy, in each round.
        work: operations and bytes by formula.
        votes: bytes that the votes of the largest layer would take.
        peak: bytes of extra memory; None if it was not measured.
        trouble: why it was not measured at all.
    """

    case: str
    batch: int
    training: bool
    backend: str
    seconds: list[float] = field(default_factory=list)
    matmul_rate: list[float] = field(default_factory=list)
    bandwidth: list[float] = field(default_factory=list)
    work: Work = field(default_factory=lambda: Work(0.0, 0.0, 0.0))
    votes: int = 0
    peak: int | None = None
    trouble: str = ""

    @property
    def limit(self) -> float:
        """Seconds of the physical limit, at the median rates."""
        return self.work.seconds(Spread.of(self.matmul_rate).median, Spread.of(self.bandwidth).median)

    @property
    def times_limit(self) -> Spread:
        """Time as a multiple of the physical limit, round by round."""
        rounds = zip(self.seconds, self.matmul_rate, self.bandwidth, strict=True)
        return Spread.of([seconds / self.work.seconds(rate, bandwidth) for seconds, rate, bandwidth in rounds])

    def as_dict(self) -> dict[str, Any]:
        """The row for JSON, with derived values."""
        row = asdict(self)
        if self.seconds:
            row["median_seconds"] = Spread.of(self.seconds).median
            row["limit_seconds"] = self.limit
            row["times_limit"] = self.times_limit._asdict()
        return row


def backends(device: str) -> list[str]:
    """The backends that run on a device."""
    fused = FUSED[device]
    return ["naive", "chunked", *([] if why_not(fused) else [fused])]


@dataclass(frozen=True)
class Options:
    """How to measure.

    Args:
        device: ``cpu`` or ``cuda``.
        runs: of each call.
        seconds: for the rounds of one comparison; at least three are made.
        threads: of torch on a CPU.
        batch: of all cases; None for their own.
        backends: None for all that run on the device.
        memory: whether memory is measured, too.
        matrix: size of the matrices that give the matmul rate; None for the device's own.
        copied: how many numbers the copy that gives the bandwidth has; None for the device's own.
    """

    device: str = "cpu"
    runs: int = 7
    seconds: float = 30.0
    threads: int = 2
    batch: int | None = None
    backends: tuple[str, ...] | None = None
    memory: bool = True
    matrix: int | None = None
    copied: int | None = None

    @property
    def machine(self) -> Machine:
        """The yardsticks of the device."""
        return Machine(self.device, self.matrix, self.copied)

    def case(self, case: Case) -> Case:
        """The case with the batch to measure."""
        own = GPU_BATCH if self.device == "cuda" else None
        return with_batch(case, own if self.batch is None else self.batch)

    @classmethod
    def of(cls, given: argparse.Namespace) -> "Options":
        """From the command line.

        Raises:
            ValueError: if there is no such device.
        """
        if given.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda needs a GPU that torch can use")
        chosen = None if given.backends is None else tuple(given.backends)
        return cls(given.device, given.runs, given.seconds, given.threads, given.batch, chosen, not given.no_memory)


def run(given: argparse.Namespace, show: Show) -> None:
    """Measures the cases, shows tables, and writes the results."""
    options = Options.of(given)
    about = report.environment(given.device, given.threads)
    show(report.heading(about))
    rows = measured(given.cases, options, show)
    show(f"\n{report.suite_table(rows)}\n\n{report.machine_line(rows)}")
    if given.out:
        report.write_json(given.out, **about, rows=[row.as_dict() for row in rows])


def measured(names: Iterable[str], options: Options, show: Show) -> list[Row]:
    """The rows of cases, by name."""
    full_float32()
    torch.set_num_threads(options.threads)
    rows, machine = [], options.machine
    for name in names:
        case = options.case(CASES[name])
        beside = options.case(BESIDE[name]) if name in BESIDE else None
        for training in (True,) if isinstance(case, NetworkCase) else (False, True):
            show(f"measuring {case.name}, batch {case.batch}, {'training step' if training else 'forward'}")
            rows += compare(case, training, options, machine, beside)
    return rows


def compare(case: Case, training: bool, options: Options, machine: Machine, beside: Case | None = None) -> list[Row]:
    """Measures a case with every backend, in turn with the yardsticks of the machine."""
    calls: dict[str, Call] = dict(machine.calls)
    troubles: dict[str, str] = {}
    for backend in options.backends or backends(options.device):
        try:
            calls[backend] = _ready(case, backend, training, options.device)
        except MemoryError as error:
            troubles[backend] = str(error)
    if beside is not None:
        calls["cnn"] = call_of(beside, "auto", training, options.device)
    seconds = interleaved(calls, options.runs, options.device, options.seconds)
    del calls
    rates = [machine.rate(value) for value in seconds.pop("matmul")]
    bandwidths = [machine.bandwidth(value) for value in seconds.pop("copy")]
    rows = []
    for backend, values in seconds.items():
        what, called = (beside, "auto") if backend == "cnn" and beside is not None else (case, backend)
        work, votes = what.work(training), FLOAT * what.votes
        peak = peak_memory(what, called, training, options.device, options.threads) if options.memory else None
        rows.append(Row(what.name, what.batch, training, backend, values, rates, bandwidths, work, votes, peak))
    missing = [Row(case.name, case.batch, training, backend, trouble=why) for backend, why in troubles.items()]
    return [*rows, *missing]


def _ready(case: Case, backend: str, training: bool, device: str) -> Call:
    """The call of a case, after one run of it.

    Raises:
        MemoryError: if the device has too little memory for it.
    """
    if backend == "naive":
        need = FLOAT * case.votes * (STORED if training else STORED // 2)
        if need > (has := available_memory(device)):
            raise MemoryError(f"may need {need / 2**30:.1f} GiB, {has / 2**30:.1f} GiB are free")
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
