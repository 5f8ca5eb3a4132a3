"""How time, memory and the machine itself are measured here."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch


def interleaved(calls: dict[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Seconds of each call, run in turn (A B A B ...) after a warm-up each: a drift of the machine meets all."""
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(seconds: list[float]) -> str:
    """Median and range, in milliseconds."""
    low, middle, high = (1e3 * value for value in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{middle:8.1f} ms  ({low:.1f} to {high:.1f})"


def matmul_rate(size: int = 2048, runs: int = 9) -> float:
    """Operations a second of a float32 matrix product with two operations a multiply-add, median."""
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    seconds = interleaved({"matmul": lambda: torch.matmul(left, right, out=out)}, runs)["matmul"]
    return 2 * size**3 / statistics.median(seconds)


def _peak_resident() -> int:
    """Bytes; Linux keeps them in a file."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _peak_in_child(make: Callable[[], Callable[[], object]], threads: int, queue: multiprocessing.Queue) -> None:
    torch.set_num_threads(threads)
    warm = torch.randn(256, 256, requires_grad=True)
    (warm @ warm).sum().backward()  # the libraries' own buffers
    call = make()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is the present size from here on
    before = _peak_resident()
    call()
    queue.put(_peak_resident() - before)


def peak_memory(make: Callable[[], Callable[[], object]], threads: int) -> int:
    """Bytes by which one call raises the peak of resident memory, in a process of its own.

    Args:
        make: sets up inputs (and gradients' places) and gives the call; must be importable.
        threads: of the process.
    """
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_peak_in_child, args=(make, threads, queue))
    process.start()
    peak = queue.get()
    process.join()
    return peak
