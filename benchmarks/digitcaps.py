"""DigitCaps, the layer that public ports are slow at: 1152 children of 8 numbers, 10 parents of 16, 3 steps."""

import statistics
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measure import interleaved, matmul_rate, peak_memory, spread
from torchcaps import Votes
from torchcaps.routing import dynamic_routing

BATCH, CHILDREN, PARENTS, CHILD_DIM, PARENT_DIM, STEPS = 128, 1152, 10, 8, 16, 3
BACKENDS = ("naive", "chunked")
# The fastest public port measured (it detaches its routing): 1,100 ms where a matrix product ran at 200 GFLOP/s.
PORT_SECONDS, PORT_RATE = 1.1, 200e9


def operations() -> tuple[float, float]:
    """Of the forward pass and of a training step, two a multiply-add: votes once, five passes of routing over them.

    A training step counts three times the forward pass: each product has two gradients.
    """
    votes = 2 * BATCH * CHILDREN * CHILD_DIM * PARENTS * PARENT_DIM
    passes = (2 * STEPS - 1) * 2 * BATCH * CHILDREN * PARENTS * PARENT_DIM
    return votes + passes, 3 * (votes + passes)


def make(backend: str, training: bool) -> Callable[[], object]:
    """Inputs, and one call of the layer on them."""
    generator = torch.Generator().manual_seed(0)
    children = torch.randn(BATCH, CHILDREN, CHILD_DIM, generator=generator) * 0.1
    transforms = torch.randn(CHILDREN, PARENTS, CHILD_DIM, PARENT_DIM, generator=generator) * 0.1
    children.requires_grad_(training)
    transforms.requires_grad_(training)
    if training:
        children.grad, transforms.grad = torch.zeros_like(children), torch.zeros_like(transforms)

    def call() -> None:
        with torch.set_grad_enabled(training):
            pose = dynamic_routing(Votes(children, transforms, backend=backend), steps=STEPS).pose
            if training:
                pose.square().sum().backward()

    return call


def report(runs: int, threads: int) -> dict[str, float]:
    """Prints the table; returns its ratios."""
    torch.set_num_threads(threads)
    rate = matmul_rate()
    print(f"DigitCaps, batch {BATCH}, float32, {threads} threads; torch.matmul runs at {rate / 1e9:.0f} GFLOP/s here")
    ratios = {}
    for training, count in zip((False, True), operations(), strict=True):
        what = "forward + backward" if training else "forward"
        seconds = interleaved({name: make(name, training) for name in BACKENDS}, runs)
        print(f"{what}: {count / 1e9:.2f} GFLOP, {1e3 * count / rate:.1f} ms at the matmul rate")
        for name in BACKENDS:
            median = statistics.median(seconds[name])
            peak = peak_memory(partial(make, name, training), threads)
            print(f"  {name:8} {spread(seconds[name])}  {median * rate / count:6.1f} x arithmetic  {peak >> 20:5} MiB")
            ratios[f"{what} {name} MiB"] = peak / 2**20
        pairs = [a / b for a, b in zip(seconds["naive"], seconds["chunked"], strict=True)]
        ratios[f"{what} naive/chunked"] = statistics.median(pairs)
        print(f"  naive / chunked: {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})")
    scaled = PORT_SECONDS * PORT_RATE / rate
    ratios["port/chunked"] = scaled / statistics.median(seconds["chunked"])
    print(f"fastest public port, scaled to this rate: {1e3 * scaled:.0f} ms; / chunked: {ratios['port/chunked']:.1f}")
    return ratios
