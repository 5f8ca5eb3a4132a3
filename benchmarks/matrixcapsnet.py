"""A training step of MatrixCapsNet with A = B = C = D = 32, the network that public ports run out of memory with."""

import statistics
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measure import interleaved, peak_memory, spread
from torchcaps import create_model, spread_loss, use_backend

BATCH, SIZE, CLASSES = 16, 32, 10
BACKENDS = ("naive", "chunked")


def make(backend: str) -> Callable[[], object]:
    """The network, and one step on random images, without the optimizer."""
    torch.manual_seed(0)
    network = create_model("matrixcapsnet", image_shape=(1, SIZE, SIZE), classes=CLASSES)
    images, labels = torch.rand(BATCH, 1, SIZE, SIZE), torch.arange(BATCH) % CLASSES
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def call() -> None:
        with use_backend(backend):
            spread_loss(network(images).activation, labels, 0.2).backward()

    return call


def report(runs: int, threads: int) -> None:
    """Prints the table."""
    torch.set_num_threads(threads)
    print(f"MatrixCapsNet 32-32-32-32, training step, {SIZE}x{SIZE}x1, batch {BATCH}, 3 steps, {threads} threads")
    seconds = interleaved({name: make(name) for name in BACKENDS}, runs)
    peaks = {name: peak_memory(partial(make, name), threads) for name in BACKENDS}
    for name in BACKENDS:
        print(f"  {name:8} {spread(seconds[name])}  {peaks[name] >> 20:5} MiB")
    pairs = [a / b for a, b in zip(seconds["naive"], seconds["chunked"], strict=True)]
    print(f"  naive / chunked: time {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f}), ", end="")
    print(f"memory {peaks['naive'] / peaks['chunked']:.0f}")
