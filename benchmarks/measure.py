"""How time, memory and the machine itself are measured."""

import ctypes
import gc
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.cases import Case, call_of, with_batch

Call = Callable[[], object]
FEWEST = 3
"""Runs that are made even beyond the time limit."""

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
HAVE_PEAK = _CLEAR.exists()
"""Whether the peak of a process's resident memory can be read and reset on this system.
"""


class Spread(NamedTuple):
    """Median and range of some values."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        """The median and range of ``values``."""
        return cls(statistics.median(values), min(values), max(values))


def timed(call: Call, device: str) -> float:
    """Seconds of one call: of the processor where one thread works, so that other work
    does not count; on a GPU between two events on its stream, after all earlier work has
    ended.
    """
    if device != "cuda":
        alone = torch.get_num_threads() == 1
        clock = time.process_time if alone else time.perf_counter
        start = clock()
        call()
        return clock() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def interleaved(
    calls: dict[str, Call], runs: int, device: str = "cpu", seconds: float = math.inf
) -> dict[str, list[float]]:
    """Seconds of each call; after a warm-up they run in turn (A B A B ...), so that a
    drift of the machine affects all.

    Args:
        calls: the calls, by name.
        runs: the number of runs of each call.
        device: the device, ``cpu`` or ``cuda``.
        seconds: the time after which no new round begins, once there are three.
    """
    for call in calls.values():
        timed(call, device)
    seconds_of_calls: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for done in range(runs):
        if done >= FEWEST and time.perf_counter() - start > seconds:
            break
        for name, call in calls.items():
            seconds_of_calls[name].append(timed(call, device))
    return seconds_of_calls


def full_float32() -> None:
    """Turns off TF32 and lower precisions in float32 matrix products and
    convolutions.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def peak_memory(
    case: Case, backend: str, training: bool, device: str, threads: int
) -> int | None:
    """Peak of the memory of one call, in bytes, beyond weights and inputs; its results
    and gradients count.

    On a GPU, the growth of the allocated memory. On a CPU, the growth of the resident
    memory of a fresh process that has run a batch of 1 before, so that everything is
    loaded; None if the system does not give it, or the process was killed.
    """
    if device == "cuda":
        return peak_on_gpu(call_of(case, backend, training, device))
    if not HAVE_PEAK:
        return None
    return in_new_process(_peak_of, case, backend, training, threads)


def in_new_process(function: Callable[..., int], *arguments: Any) -> int | None:
    """The result of a function in a fresh process; None if that was killed, for example
    out of memory.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchcaps"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            return None


def peak_on_gpu(call: Call) -> int:
    """Bytes by which one call raises the allocated memory of a GPU at its peak."""
    call()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _peak_of(case: Case, backend: str, training: bool, threads: int) -> int:
    torch.set_num_threads(threads)
    call_of(with_batch(case, 1), backend, training)()
    return peak_growth(call_of(case, backend, training))


def peak_growth(call: Call) -> int:
    """Bytes by which one call raises the peak of this process's resident memory; Linux
    only.
    """
    gc.collect()
    _release_free_memory()
    _CLEAR.write_text("5")  # the peak is the present size from here on
    before = _peak_resident()
    result = call()
    del result
    return _peak_resident() - before


def _peak_resident() -> int:
    (line,) = (
        line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")
    )
    return int(line.split()[1]) * 1024


def _release_free_memory() -> None:
    """Returns freed memory to the system, if the C library can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def available_memory(device: str) -> float:
    """Bytes that are available; infinity if the system does not say."""
    if device == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    for line in lines:
        if line.startswith("MemAvailable"):
            return 1024.0 * int(line.split()[1])
    return math.inf
