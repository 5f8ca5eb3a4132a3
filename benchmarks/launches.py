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
from importlib import import_module
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torchcaps as tc
from torchcaps.routing import EMRouting, create_routing

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


Work = Callable[[], Sequence[Tensor]]
"""A forward pass: what gradients are taken of, one number or tensors that are given
gradients.
"""


def _digitcaps(batch: int) -> Work:
    layer = tc.CapsLinear(1152, 10, 8, 16)
    children = torch.randn(batch, 1152, 8, requires_grad=True)
    return lambda: _tensors(layer(children))


def _convcaps(batch: int) -> Work:
    routing = EMRouting.preset("standardised", steps=3)
    layer = tc.CapsConv2d(32, 32, (4, 4), (4, 4), 3, 2, routing=routing)
    pose = torch.randn(batch, 14, 14, 32, 4, 4, requires_grad=True)
    activation = torch.rand(batch, 14, 14, 32, requires_grad=True)
    return lambda: _tensors(layer(tc.Capsules(pose, activation)))


def _tensors(capsules: tc.Capsules) -> Sequence[Tensor]:
    return capsules.pose, capsules.activation


def _matrixcapsnet(batch: int) -> Work:
    network = tc.create_model(
        "matrixcapsnet",
        image_shape=(1, 32, 32),
        classes=5,
        channels=64,
        types=(8, 16, 16),
    )
    # As after the first steps of a training, in which batch normalisation takes seven
    # operations more.
    state = network.state_dict()
    for name, tensor in state.items():
        if name.endswith("num_batches_tracked"):
            tensor.fill_(1000)
    network.load_state_dict(state)
    images = torch.rand(batch, 1, 32, 32)
    labels = torch.arange(batch) % 5
    return lambda: [tc.spread_loss(network(images).activation, labels, 0.5)]


def _capsnet(batch: int) -> Work:
    network = tc.create_model("capsnet", image_shape=(1, 28, 28), classes=10)
    images = torch.rand(batch, 1, 28, 28)
    labels = torch.arange(batch) % 10

    def loss() -> Sequence[Tensor]:
        output = network(images, labels)
        margin = tc.margin_loss(output.activation, labels)
        return [margin + 0.0005 * tc.reconstruction_loss(output.reconstruction, images)]

    return loss


def _head(routing: str, **settings: Any) -> Callable[[int], Work]:
    """Class capsules over a map of 7 x 7 places with 32 types of capsules."""

    def work(batch: int) -> Work:
        layer = tc.ClassCaps(32, 10, 8, 16, routing=create_routing(routing, **settings))
        pose = torch.randn(batch, 7, 7, 32, 8, requires_grad=True)
        activation = torch.rand(batch, 7, 7, 32)
        return lambda: _tensors(layer(tc.Capsules(pose, activation)))

    return work


def _slots(batch: int) -> Work:
    layer = tc.Slots(7, 64, features=64)
    features = torch.randn(batch, 128, 64, requires_grad=True)
    return lambda: _tensors(layer(features))


CASES = {
    "DigitCaps": _digitcaps,
    "ConvCaps1 32-32": _convcaps,
    "MatrixCapsNet 64-8-16": _matrixcapsnet,
    "CapsNet": _capsnet,
    "Head, dynamic": _head("dynamic"),
    "Head, kmeans": _head("kmeans"),
    "Head, kmeans, evidence": _head("kmeans", evidence=True),
    "Slots": _slots,
}


def launches(case: str, batch: int = 2) -> Launches:
    """The operations of one case.

    Args:
        case: one of :data:`CASES`.
        batch: of images; the count hardly depends on it.
    """
    work = CASES[case](batch)
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
