"""The layers and networks that are measured, each with its inputs, its loss and its work by formula."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import torchcaps as tc
from benchmarks.work import NOTHING, Map, RoutedShape, Work, convolution, linear, routed

MNIST = (1, 28, 28)
FEW_IMAGES = (1, 2, 4, 8)
"""Small batches of DigitCaps, for which the fused backend is compared with stored votes."""
_EM: dict[str, Any] = {"routing": "em", "pose": (4, 4), "parent_dim": 4}


@dataclass(frozen=True)
class Case(ABC):
    """Something to measure.

    Args:
        name: of the layer or network.
        batch: number of images.
    """

    name: str
    batch: int

    @abstractmethod
    def build(self) -> nn.Module:
        """The layer or network, with random weights."""

    @abstractmethod
    def inputs(self, device: str) -> tuple[Tensor, ...]:
        """Random inputs; those of a layer take gradients."""

    @abstractmethod
    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        """The forward pass."""

    @abstractmethod
    def loss(self, output: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        """A number to take the gradient of."""

    @abstractmethod
    def work(self, training: bool) -> Work:
        """Operations and bytes of the forward pass, or of a training step without the optimizer."""

    @property
    def votes(self) -> int:
        """How many numbers the votes of the largest layer have if they are stored."""
        return 0


def call_of(case: Case, backend: str, training: bool, device: str = "cpu") -> Callable[[], object]:
    """The forward pass of a case, or its training step without the optimizer, as a function without arguments.

    A training step clears the gradients first, and leaves new ones.
    """
    torch.manual_seed(0)
    module, inputs = case.build().to(device), case.inputs(device)
    leaves = [tensor for tensor in (*module.parameters(), *inputs) if tensor.requires_grad]

    def call() -> object:
        for leaf in leaves:
            leaf.grad = None
        with tc.use_backend(backend), torch.set_grad_enabled(training):
            output = case.forward(module, inputs)
            if training:
                case.loss(output, inputs).backward()
        return None if training else output

    return call


def _routing(name: str, steps: int) -> tc.routing.Routing:
    """Dynamic routing as published, or EM with standardised costs, which suit any size of layer."""
    if name == "em":
        return tc.routing.EMRouting.preset("standardised", steps=steps)
    return tc.create_routing(name, steps=steps)


@dataclass(frozen=True)
class LayerCase(Case):
    """A routed layer on its own.

    Args:
        routing: ``dynamic`` or ``em``.
        steps: of routing.
        parents: J, at each position.
        pose: rows M and dimension P of the children's poses; vectors have one row.
        parent_dim: D.
    """

    routing: str = "dynamic"
    steps: int = 3
    parents: int = 10
    pose: tuple[int, int] = (1, 8)
    parent_dim: int = 16

    @property
    @abstractmethod
    def shape(self) -> RoutedShape:
        """The sizes of the routed layer."""

    @property
    @abstractmethod
    def sites(self) -> tuple[int, ...]:
        """The axes of the children of an image."""

    @property
    def in_pose(self) -> int | tuple[int, int]:
        """Shape of a child's pose, as layers take it."""
        return self.pose[1] if self.pose[0] == 1 else self.pose

    @property
    def out_pose(self) -> int | tuple[int, int]:
        """Shape of a parent's pose, as layers take it."""
        return self.parent_dim if self.pose[0] == 1 else (self.pose[0], self.parent_dim)

    def inputs(self, device: str) -> tuple[Tensor, ...]:
        """Poses and activations."""
        axes = self.pose[1:] if self.pose[0] == 1 else self.pose
        pose = torch.randn(self.batch, *self.sites, *axes) * 0.3
        activation = torch.rand(self.batch, *self.sites)
        return tuple(tensor.to(device).requires_grad_() for tensor in (pose, activation))

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tc.Capsules:
        """The parents."""
        return module(tc.Capsules(*inputs))

    def loss(self, output: tc.Capsules, inputs: tuple[Tensor, ...]) -> Tensor:
        """The sum of squared poses and of activations."""
        return output.pose.square().sum() + output.activation.sum()

    def work(self, training: bool) -> Work:
        """Operations and bytes."""
        return routed(self.shape, training)

    @property
    def votes(self) -> int:
        """How many numbers the votes have."""
        return self.shape.votes

    def _shape(self, grid: int, windows: int, children: int, transforms: int, image_wide: bool = False) -> RoutedShape:
        return RoutedShape(
            self.batch, grid, windows, children, self.parents, *self.pose, self.parent_dim, self.steps,
            self.routing == "em", image_wide, transforms,
        )  # fmt: skip


@dataclass(frozen=True)
class LinearCase(LayerCase):
    """:class:`~torchcaps.CapsLinear`.

    Args:
        children: I.
    """

    children: int = 1152

    @property
    def shape(self) -> RoutedShape:
        """The sizes of the routed layer."""
        return self._shape(self.children, 1, self.children, self.children * self.parents)

    @property
    def sites(self) -> tuple[int, ...]:
        """All children on one axis."""
        return (self.children,)

    def build(self) -> nn.Module:
        """The layer."""
        routing = _routing(self.routing, self.steps)
        return tc.CapsLinear(self.children, self.parents, self.in_pose, self.out_pose, routing=routing)


@dataclass(frozen=True)
class ConvCase(LayerCase):
    """:class:`~torchcaps.CapsConv2d`, where all parents that see a child compete for it.

    Args:
        size: height and width of the map.
        types: of children.
        kernel: of the windows.
        stride: between windows.
    """

    size: int = 14
    types: int = 32
    kernel: int = 3
    stride: int = 1

    @property
    def shape(self) -> RoutedShape:
        """The sizes of the routed layer."""
        windows = ((self.size - self.kernel) // self.stride + 1) ** 2
        children = self.kernel**2 * self.types
        return self._shape(self.size**2 * self.types, windows, children, children * self.parents, image_wide=True)

    @property
    def sites(self) -> tuple[int, ...]:
        """Position and type."""
        return (self.size, self.size, self.types)

    def build(self) -> nn.Module:
        """The layer."""
        routing = _routing(self.routing, self.steps)
        in_pose, out_pose = self.in_pose, self.out_pose
        return tc.CapsConv2d(self.types, self.parents, in_pose, out_pose, self.kernel, self.stride, routing=routing)


@dataclass(frozen=True)
class ClassCase(LayerCase):
    """:class:`~torchcaps.ClassCaps`.

    Args:
        size: height and width of the map.
        types: of children.
    """

    size: int = 4
    types: int = 32

    @property
    def shape(self) -> RoutedShape:
        """The sizes of the routed layer."""
        children = self.size**2 * self.types
        return self._shape(children, 1, children, self.types * self.parents)

    @property
    def sites(self) -> tuple[int, ...]:
        """Position and type."""
        return (self.size, self.size, self.types)

    def build(self) -> nn.Module:
        """The layer."""
        routing = _routing(self.routing, self.steps)
        return tc.ClassCaps(self.types, self.parents, self.in_pose, self.out_pose, routing=routing)


@dataclass(frozen=True)
class NetworkCase(Case):
    """A registered network on images with labels, with its usual loss.

    Args:
        image_shape: (C, H, W).
        classes: number of classes.
    """

    image_shape: tuple[int, int, int] = MNIST
    classes: int = 10

    def build(self) -> nn.Module:
        """The network."""
        return tc.create_model(self.name, image_shape=self.image_shape, classes=self.classes)

    def inputs(self, device: str) -> tuple[Tensor, ...]:
        """Images and labels."""
        images = torch.rand(self.batch, *self.image_shape)
        return images.to(device), (torch.arange(self.batch) % self.classes).to(device)

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        """The prediction."""
        return module(*inputs)

    def loss(self, output: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        """Margin loss, and the reconstruction's where there is one; spread loss for matrix capsules."""
        images, labels = inputs
        if self.name.startswith("matrixcapsnet"):
            return tc.spread_loss(output.activation, labels, 0.2)
        loss = tc.margin_loss(output.activation, labels)
        if output.reconstruction is not None:
            loss = loss + 0.0005 * tc.reconstruction_loss(output.reconstruction, images)
        return loss

    def work(self, training: bool) -> Work:
        """Operations and bytes; for the registered networks of the three papers, at any image shape."""
        return NETWORK_WORK[self.name](self, training)

    @property
    def votes(self) -> int:
        """How many numbers the votes of the largest layer have."""
        return max((layer.votes for layer in _routed_layers(self)), default=0)


@dataclass(frozen=True)
class YardstickCase(NetworkCase):
    """CapsNet's two convolutions and a linear head: the cost of the same features without capsules."""

    def build(self) -> nn.Module:
        """The network."""
        first, second = _capsnet_maps(self)
        return nn.Sequential(
            nn.Conv2d(self.image_shape[0], first.channels, 9),
            nn.ReLU(),
            nn.Conv2d(first.channels, second.channels, 9, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(math.prod(second), self.classes),
        )

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        """The logits."""
        return module(inputs[0])

    def loss(self, output: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(output, inputs[1])

    def work(self, training: bool) -> Work:
        """Operations and bytes."""
        _, second = _capsnet_maps(self)
        return _capsnet_convolutions(self, training) + linear(self.batch, math.prod(second), self.classes, training)


def _capsnet_maps(case: NetworkCase) -> tuple[Map, Map]:
    first = Map(*case.image_shape).convolved(256, 9)
    return first, first.convolved(256, 9, 2)


def _capsnet_convolutions(case: NetworkCase, training: bool) -> Work:
    first, second = _capsnet_maps(case)
    return convolution(case.batch, Map(*case.image_shape), first, 9, training, first=True) + convolution(
        case.batch, first, second, 9, training
    )


def _routed_layers(case: NetworkCase) -> list[LayerCase]:
    """The routed layers of a network with full transforms."""
    if case.name == "capsnet":
        _, second = _capsnet_maps(case)
        return [LinearCase("DigitCaps", case.batch, parents=case.classes, children=math.prod(second) // 8)]
    if case.name == "matrixcapsnet":
        size = Map(*case.image_shape).convolved(32, 5, 2).height
        between = (size - 3) // 2 + 1
        return [
            ConvCase("ConvCaps1", case.batch, size=size, stride=2, parents=32, **_EM),
            ConvCase("ConvCaps2", case.batch, size=between, parents=32, **_EM),
            ClassCase("ClassCaps", case.batch, parents=case.classes, size=between - 2, **_EM),
        ]
    return []


def _capsnet_work(case: NetworkCase, training: bool) -> Work:
    widths = (16 * case.classes, 512, 1024, math.prod(case.image_shape))
    decoder = (linear(case.batch, a, b, training) for a, b in pairwise(widths))
    layers = (layer.work(training) for layer in _routed_layers(case))
    return sum((*decoder, *layers), _capsnet_convolutions(case, training))


def _matrixcapsnet_work(case: NetworkCase, training: bool) -> Work:
    image = Map(*case.image_shape)
    first = image.convolved(32, 5, 2)
    primary = first.convolved(32 * (4 * 4 + 1), 1)
    convolutions = convolution(case.batch, image, first, 5, training, first=True) + convolution(
        case.batch, first, primary, 1, training
    )
    return sum((layer.work(training) for layer in _routed_layers(case)), convolutions)


def _sharedcapsnet_work(case: NetworkCase, training: bool) -> Work:
    before, total = Map(*case.image_shape), NOTHING
    for place, channels in enumerate((64, 64, 128, 128)):
        after = before.convolved(channels, 3)
        total += convolution(case.batch, before, after, 3, training, first=place == 0)
        before = after.pooled(2) if place == 1 else after
    children = before.height * before.width
    shape = RoutedShape(
        case.batch, children, 1, children, case.classes, 1, before.channels, 16, 3, False, False, case.classes
    )
    return total + routed(shape, training)


NETWORK_WORK: dict[str, Callable[[NetworkCase, bool], Work]] = {
    "capsnet": _capsnet_work,
    "matrixcapsnet": _matrixcapsnet_work,
    "sharedcapsnet": _sharedcapsnet_work,
}

CASES: dict[str, Case] = {
    "digitcaps": LinearCase("DigitCaps", 128),
    "convcaps1": ConvCase("ConvCaps1", 16, parents=32, size=14, stride=2, **_EM),
    "convcaps2": ConvCase("ConvCaps2", 16, parents=32, size=6, **_EM),
    "classcaps": ClassCase("ClassCaps", 16, parents=5, **_EM),
    "capsnet": NetworkCase("capsnet", 32),
    "sharedcapsnet": NetworkCase("sharedcapsnet", 32),
    "matrixcapsnet": NetworkCase("matrixcapsnet", 8),
    **{f"digitcaps{batch}": LinearCase(f"DigitCaps, batch {batch}", batch) for batch in FEW_IMAGES},
    "call": LinearCase("layer of 8 children", 1, children=8),  # next to no work: the time of a call
    "pose32": LinearCase("poses of 32", 32, children=288, pose=(1, 32), parent_dim=32),
}
"""The cases of the suite; of networks, it measures the training step only."""

BESIDE: dict[str, Case] = {"capsnet": YardstickCase("yardstick", 32)}
"""Networks that are measured in turn with a case, for comparison."""


def with_batch(case: Case, batch: int | None) -> Case:
    """The case with another batch; None keeps its own."""
    return case if batch is None else replace(case, batch=batch)
