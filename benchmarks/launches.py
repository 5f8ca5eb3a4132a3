"""``python -m benchmarks launches``: how many operations a GPU would be given.

Each costs its launch, some microseconds in which a small network's GPU has nothing to
do. They are counted without a GPU: PyTorch's operations on a CPU, but for views, and
the launches of Triton's kernels, which are counted in place of being made. What a GPU's
own libraries split in two, such as a convolution that changes its layout first, counts
once.
"""

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchcaps as tc
from benchmarks import cases
from benchmarks.cases import (
    DYNAMIC,
    MATRIXCAPSNET,
    Case,
    NetworkCase,
    SlotsCase,
    class_caps,
    with_batch,
)
from torchcaps.routing import create_routing

MEMORY = ("empty", "lift_fresh", "_unsafe_view", "detach", "_local_scalar_dense")
"""Operations that take memory, look at it in another way, or read a number."""
PROCESSORS = 132
"""Of the GPU that is imagined, an H100: they decide into how many parts work is cut."""


class Launches(NamedTuple):
    """Operations of one pass.

    Args:
        case: the layer or network.
        forward: of a forward pass without gradients.
        step: of a forward and a backward pass.
    """

    case: str
    forward: int
    step: int

    def __str__(self) -> str:
        return (
            f"{self.case:24s} forward {self.forward:5d}, training step {self.step:5d}"
        )


class _Counter(TorchDispatchMode):
    """Counts the operations that a GPU would be given, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        library, name = func._schema.name.split("::")
        if library == "torchcaps":
            with self:
                return _inside(name)(*args)
        if func._can_decompose() and name != "_to_copy":
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if not (func.is_view or any(word in name for word in MEMORY)):
            self.count[name] += 1
        return func(*args, **kwargs)

    def launch(self, kernel: Any, *_: Any) -> None:
        """Counts a kernel in place of launching it."""
        self.count[str(kernel)] += 1


def _inside(name: str) -> Callable[..., Any]:
    """What an operator of torchcaps does."""
    for module in (
        "torchcaps.routing.fast.agreement",
        "torchcaps.routing.fast.em",
        "torchcaps.ops.fused.operators",
        "torchcaps.ops.fused.triton_folded",
    ):
        run: Callable[..., Any] | None = getattr(
            import_module(module), f"_{name}", None
        )
        if run is not None:
            return run
    raise ValueError(f"no module of torchcaps makes the operator {name}")


@contextmanager
def _imagined_gpu(counter: _Counter) -> Iterator[None]:
    """A place where Triton's kernels are counted, and tables are made beforehand."""
    fused = "torchcaps.ops.fused"
    with (
        mock.patch(f"{fused}.triton_launch.run", counter.launch),
        mock.patch(f"{fused}.triton_layers.run", counter.launch),
        mock.patch(f"{fused}.triton_launch.processors", return_value=PROCESSORS),
        mock.patch("torchcaps.numerics.can_be_kept", return_value=True),
        tc.use_backend("triton"),
    ):
        yield


_HEAD = partial(class_caps, 2, 7, 10, coordinates=True)
"""Over a map of 7 x 7 places."""

CASES: dict[str, Case] = {
    "DigitCaps": cases.CASES["digitcaps"],
    "ConvCaps1 32-32": cases.CASES["convcaps1"],
    "MatrixCapsNet 64-8-16": NetworkCase("matrixcapsnet", 2, MATRIXCAPSNET),
    "CapsNet": cases.CASES["capsnet"],
    "Head, dynamic": _HEAD(DYNAMIC),
    "Head, kmeans": _HEAD(partial(create_routing, "kmeans")),
    "Head, kmeans, evidence": _HEAD(partial(create_routing, "kmeans", evidence=True)),
    "Slots": SlotsCase("Slots", 2, partial(tc.Slots, 7, 64, features=64), (128, 64)),
}


def _forward_of(case: Case) -> Callable[[], Sequence[Tensor]]:
    """A forward pass: what gradients are taken of, the loss of a network or the
    capsules of a layer.
    """
    module = case.build()
    # As after the first steps of a training, in which batch normalisation takes seven
    # operations more.
    state = module.state_dict()
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            tensor.fill_(1000)
    module.load_state_dict(state)
    inputs = case.inputs("cpu")

    def forward() -> Sequence[Tensor]:
        output = case.forward(module, inputs)
        if isinstance(output, tc.Capsules):
            return output
        return [case.loss(output, inputs)]

    return forward


def launches(case: str, batch: int = 2) -> Launches:
    """The operations of one case.

    Args:
        case: one of :data:`CASES`.
        batch: of images; the count hardly depends on it.
    """
    work = _forward_of(with_batch(CASES[case], batch))
    counter = _Counter()
    with _imagined_gpu(counter):
        work()  # what is made once is made here
        counter.count.clear()
        with counter, torch.no_grad():
            work()
        forward = counter.count.total()
        counter.count.clear()
        with counter:
            results = work()
        upstream = [
            None if result.ndim == 0 else torch.ones_like(result) for result in results
        ]
        with counter:
            torch.autograd.backward(results, upstream)
    return Launches(case, forward, counter.count.total())


def run(options: argparse.Namespace, show: Callable[[str], None]) -> None:
    """Counts all cases, one a line."""
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported
    for case in CASES:
        show(str(launches(case)))
