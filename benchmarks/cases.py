"""The layers and networks that are measured, each with its inputs and its loss."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import torchcaps as tc
from torchcaps.routing import EMRouting, Routing, create_routing

FEW_IMAGES = (1, 2, 4, 8)
"""Small batches of DigitCaps, for which the fused backend is compared with stored
votes.
"""
DYNAMIC = partial(create_routing, "dynamic", steps=3)
EM = partial(EMRouting.preset, "standardised", steps=3)
"""With standardised costs, which suit any size of layer."""
MNIST: dict[str, Any] = {"image_shape": (1, 28, 28), "classes": 10}
MATRIXCAPSNET = {
    "image_shape": (1, 32, 32),
    "classes": 5,
    "channels": 64,
    "types": (8, 16, 16),
}
"""Arguments of the small MatrixCapsNet for smallNORB that is measured on GPUs."""


@dataclass(frozen=True)
class Case(ABC):
    """Something to measure.

    Args:
        name: the name of the layer or network.
        batch: the number of images.
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

    @property
    def votes(self) -> int:
        """How many numbers the votes of the largest layer have if they are stored,
        counted in a pass of one image.
        """
        single = with_batch(self, 1)
        sizes = [0]
        module = single.build()

        def note_size(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            sizes.append(math.prod(inputs[0].shape))

        for routing in module.modules():
            if isinstance(routing, Routing):
                routing.register_forward_pre_hook(note_size)
        with torch.no_grad():
            single.forward(module, single.inputs("cpu"))
        return self.batch * max(sizes)


def call_of(
    case: Case,
    backend: str | None,
    training: bool,
    device: str = "cpu",
    **compiling: Any,
) -> Callable[[], object]:
    """The forward pass of a case, or its training step without the optimizer, as a
    function without arguments; compiled with these options of `torch.compile`, if any.

    A training step clears the gradients first, and leaves new ones.
    """
    torch.manual_seed(0)
    module = case.build().to(device)
    inputs = case.inputs(device)
    leaves = [
        tensor for tensor in (*module.parameters(), *inputs) if tensor.requires_grad
    ]

    def run() -> Any:
        output = case.forward(module, inputs)
        return case.loss(output, inputs) if training else output

    if compiling:
        torch.compiler.reset()  # of the limit of compilations
        run = torch.compile(run, **compiling)

    def call() -> object:
        for leaf in leaves:
            leaf.grad = None
        with tc.use_backend(backend), torch.set_grad_enabled(training):
            result = run()
            if training:
                result.backward()
        return None if training else result

    return call


@dataclass(frozen=True)
class LayerCase(Case):
    """A routed layer on its own.

    Args:
        layer: the function that makes the layer, given its ``routing``.
        sites: the axes of the children of an image.
        pose: the axes of a child's pose.
        routing: the function that makes the routing.
    """

    layer: Callable[..., nn.Module]
    sites: tuple[int, ...]
    pose: tuple[int, ...]
    routing: Callable[[], Routing] = DYNAMIC

    def build(self) -> nn.Module:
        """The layer, in evaluation mode if its routing cannot train."""
        routing = self.routing()
        return self.layer(routing=routing).train(routing.trainable)

    def inputs(self, device: str) -> tuple[Tensor, ...]:
        """Poses and activations."""
        pose = torch.randn(self.batch, *self.sites, *self.pose) * 0.3
        activation = torch.rand(self.batch, *self.sites)
        return tuple(
            tensor.to(device).requires_grad_() for tensor in (pose, activation)
        )

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tc.Capsules:
        """The parents."""
        return module(tc.Capsules(*inputs))

    def loss(self, output: tc.Capsules, inputs: tuple[Tensor, ...]) -> Tensor:
        """The sum of squared poses and of activations."""
        return output.pose.square().sum() + output.activation.sum()


@dataclass(frozen=True)
class SlotsCase(Case):
    """A layer that finds slots in features.

    Args:
        layer: the function that makes the layer.
        features: how many there are, and the numbers of each.
    """

    layer: Callable[[], nn.Module]
    features: tuple[int, int]

    def build(self) -> nn.Module:
        """The layer."""
        return self.layer()

    def inputs(self, device: str) -> tuple[Tensor, ...]:
        """The features."""
        shape = self.batch, *self.features
        return (torch.randn(*shape, device=device, requires_grad=True),)

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        """The slots: capsules, or their poses alone."""
        return module(*inputs)

    def loss(self, output: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        """The mean of squared poses."""
        pose: Tensor = output.pose if isinstance(output, tc.Capsules) else output
        return pose.square().mean()


@dataclass(frozen=True)
class NetworkCase(Case):
    """A registered network on images with labels, with its usual loss.

    Args:
        arguments: those of the network, with ``image_shape`` and ``classes``; default:
            those of MNIST.
    """

    arguments: Mapping[str, Any] = field(default_factory=MNIST.copy)

    def build(self) -> nn.Module:
        """The network."""
        return tc.create_model(self.name, **self.arguments)

    def inputs(self, device: str) -> tuple[Tensor, ...]:
        """Images and labels."""
        images = torch.rand(self.batch, *self.arguments["image_shape"])
        labels = torch.arange(self.batch) % self.arguments["classes"]
        return images.to(device), labels.to(device)

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        """The prediction."""
        return module(*inputs)

    def loss(self, output: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        """Margin loss, and the reconstruction's where there is one; spread loss for
        matrix capsules.
        """
        images, labels = inputs
        if self.name.startswith("matrixcapsnet"):
            return tc.spread_loss(output.activation, labels, 0.2)
        loss = tc.margin_loss(output.activation, labels)
        if output.reconstruction is not None:
            loss = loss + 0.0005 * tc.reconstruction_loss(output.reconstruction, images)
        return loss


@dataclass(frozen=True)
class YardstickCase(NetworkCase):
    """CapsNet's two convolutions and a linear head: the cost of the same features
    without capsules.
    """

    def build(self) -> nn.Module:
        """The network."""
        features = (
            nn.Conv2d(1, 256, 9),
            nn.ReLU(),
            nn.Conv2d(256, 256, 9, 2),
            nn.ReLU(),
            nn.Flatten(),
        )
        return nn.Sequential(*features, nn.Linear(256 * 6 * 6, 10))

    def forward(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        """The logits."""
        return module(inputs[0])

    def loss(self, output: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Cross-entropy."""
        return nn.functional.cross_entropy(output, inputs[1])


DIGITCAPS = partial(tc.CapsLinear, 1152, 10, 8, 16)
_MATRIX = (4, 4)


def class_caps(
    batch: int,
    side: int,
    classes: int,
    routing: Callable[[], Routing] = DYNAMIC,
    coordinates: bool = False,
) -> LayerCase:
    """Class capsules over a square map with 32 types, whose places share transforms."""
    return LayerCase(
        f"ClassCaps, {classes} classes, batch {batch}",
        batch,
        partial(tc.ClassCaps, 32, classes, 8, 16, coordinates=coordinates),
        (side, side, 32),
        (8,),
        routing,
    )


EVIDENT = partial(create_routing, "dynamic", steps=3, evidence=True)

CASES: dict[str, Case] = {
    "digitcaps": LayerCase("DigitCaps", 128, DIGITCAPS, (1152,), (8,)),
    "convcaps1": LayerCase(
        "ConvCaps1",
        16,
        partial(tc.CapsConv2d, 32, 32, _MATRIX, _MATRIX, 3, 2),
        (14, 14, 32),
        _MATRIX,
        EM,
    ),
    "convcaps2": LayerCase(
        "ConvCaps2",
        16,
        partial(tc.CapsConv2d, 32, 32, _MATRIX, _MATRIX, 3),
        (6, 6, 32),
        _MATRIX,
        EM,
    ),
    "classcaps": LayerCase(
        "ClassCaps",
        16,
        partial(tc.ClassCaps, 32, 5, _MATRIX, _MATRIX),
        (4, 4, 32),
        _MATRIX,
        EM,
    ),
    "classes10": class_caps(32, 7, 10),
    "classes10batch128": class_caps(128, 6, 10),
    "classes10batch1": class_caps(1, 7, 10),
    "classes10evident": class_caps(32, 7, 10, EVIDENT),
    "classes100": class_caps(8, 14, 100),
    "classes1000": class_caps(8, 7, 1000),
    "capsnet": NetworkCase("capsnet", 32),
    "sharedcapsnet": NetworkCase("sharedcapsnet", 32),
    "matrixcapsnet": NetworkCase("matrixcapsnet", 8),
    **{
        f"digitcaps{few}": LayerCase(
            f"DigitCaps, batch {few}", few, DIGITCAPS, (1152,), (8,)
        )
        for few in FEW_IMAGES
    },
    # next to no work: the time of a call
    "call": LayerCase(
        "layer of 8 children", 1, partial(tc.CapsLinear, 8, 10, 8, 16), (8,), (8,)
    ),
    "pose32": LayerCase(
        "poses of 32", 32, partial(tc.CapsLinear, 288, 10, 32, 32), (288,), (32,)
    ),
}
"""The cases of the suite; of networks, it measures the training step only."""

BESIDE: dict[str, Case] = {"capsnet": YardstickCase("yardstick", 32)}
"""Networks that are measured in turn with a case, for comparison."""


def with_batch(case: Case, batch: int | None) -> Case:
    """The case with another batch; None keeps its own."""
    return case if batch is None else replace(case, batch=batch)
