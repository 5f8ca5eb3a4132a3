"""Networks that classify, those of them that classify images, and those whose classes
are capsules.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules, Prediction
from torchcaps.layers import CapsLinear, ClassCaps, PoseInput, mask_capsules
from torchcaps.layers.decoder import DecoderInput, PoseInputDecoder, chosen_classes
from torchcaps.models.differences import take_differences
from torchcaps.models.network import Network
from torchcaps.models.outline import outlined
from torchcaps.numerics import can_be_read, check_series, check_size, dtype_of
from torchcaps.routing import Routed, Routing

_KEPT_FOR_ANY_CLASSES = ("reader", "task")
"""What is saved beside a network by these names holds for any classes."""


class ClassifierNetwork(Network):
    """Base of the networks that classify, whatever their inputs are.

    A subclass says what it ``takes``, and makes some ``examples`` of that. What it
    needs to know of its inputs are arguments of its own: the shape of images, the size
    of a vocabulary, the channels of a series.

    Args:
        classes: number of classes E.

    Example:
        >>> class Vectors(tc.models.ClassifierNetwork):
        ...     takes = "vectors"
        ...
        ...     def __init__(self, features=4, classes=10):
        ...         super().__init__(classes)
        ...         self.features = features
        ...         self.layer = torch.nn.Linear(features, classes)
        ...
        ...     def examples(self, batch):
        ...         return torch.ones(batch, self.features)
        ...
        ...     def forward(self, inputs, target=None):
        ...         return tc.models.Prediction(self.layer(inputs).sigmoid())
        >>> Vectors()(torch.rand(2, 4)).activation.shape
        torch.Size([2, 10])
    """

    takes: ClassVar[str]
    """The kind of its inputs, such as images or words."""

    any_size = False
    """Whether inputs may have another size than those that it was made for."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        check_size(classes=classes)
        self.classes = classes

    @property
    def num_classes(self) -> int:
        """Return the number of classes E, under timm's name."""
        return self.classes

    def reset_classifier(self, num_classes: int) -> None:
        """Change the network in place to another number of classes.

        Weights whose shape depends on the number are drawn anew, and learn, also where
        they were frozen. Everything else stays what it is: modules and other weights
        are the same objects, frozen ones stay frozen, layers in evaluation mode stay
        there, hooks stay, also those of the last layers. With the number that it has,
        nothing changes; timm's draws new weights then.

        An optimizer has to be told of the new weights. Of what :meth:`save_pretrained`
        kept, ``reader`` and ``task`` stay in ``extra``. All else may hold for the old
        classes alone, as their names, and leaves it.

        Raises:
            ValueError: if it is not a number of classes.
        """
        check_size(num_classes=num_classes)
        kind = type(self)
        before = outlined(lambda: kind.from_config(self._arguments_for(self.classes)))
        after = kind.from_config(self._arguments_for(num_classes))
        if num_classes != self.classes:
            self.extra = {
                name: value
                for name, value in self.extra.items()
                if name in _KEPT_FOR_ANY_CLASSES
            }
        take_differences(self, before, after)

    def _arguments_for(self, classes: int) -> dict[str, Any]:
        """The constructor's arguments of this network with that number of classes."""
        return {**self.config(), **dict.fromkeys(self.outside), "classes": classes}

    @abstractmethod
    def forward(self, inputs: Tensor, target: Tensor | None = None) -> Prediction:
        """Classify a batch.

        Args:
            inputs: the batch.
            target: what to reconstruct, for networks that do.

        Raises:
            TypeError: if the inputs are no tensor.
            ValueError: if they do not fit the network.
        """

    @abstractmethod
    def examples(self, batch: int) -> Tensor:
        """Return a batch of valid inputs to try the network on; always the same."""

    def other_sizes(self, batch: int) -> Sequence[Tensor]:
        """Return batches of inputs of other sizes than the network was made for.

        With ``any_size`` it must take them, else it must refuse them. There are none,
        as here, for inputs that have no size of their own.
        """
        return ()

    def misfits(self) -> Mapping[str, Tensor]:
        """Return inputs that the network must refuse with a `ValueError`, by what is
        wrong with them.
        """
        return {}

    def activation_shape(self, inputs: Tensor) -> tuple[int, ...]:
        """Return the shape of the activations for a batch: (B, E)."""
        return len(inputs), self.classes


class ImageClassifier(ClassifierNetwork):
    """Base of the networks that classify images.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes E.

    Example:
        >>> class OneLayer(tc.models.ImageClassifier):
        ...     def __init__(self, image_shape=(1, 8, 8), classes=10):
        ...         super().__init__(image_shape, classes)
        ...         self.layer = torch.nn.Linear(64, classes)
        ...
        ...     def forward(self, images, target=None):
        ...         activation = self.layer(images.flatten(1)).sigmoid()
        ...         return tc.models.Prediction(activation)
        >>> OneLayer()(torch.rand(2, 1, 8, 8)).activation.shape
        torch.Size([2, 10])
    """

    takes = "images"

    smallest: ClassVar[int] = 1
    """Pixels on a side that leave one position behind all convolutions."""

    def __init__(self, image_shape: tuple[int, int, int], classes: int) -> None:
        if not isinstance(image_shape, Sequence) or len(image_shape) != 3:
            raise ValueError(
                f"image_shape must be (channels, height, width), got {image_shape!r}"
            )
        check_series(3, image_shape=image_shape)
        super().__init__(classes)
        self.image_shape = (
            int(image_shape[0]),
            int(image_shape[1]),
            int(image_shape[2]),
        )
        check_extent("image_shape", self.image_shape, self.smallest)

    @abstractmethod
    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Classify images (B, C, H, W) with values in [0, 1].

        Args:
            images: the batch.
            target: labels (B,) or a mask (B, E): what to reconstruct; None for the most
                active class.

        Raises:
            TypeError: if the images are no tensor.
            ValueError: if they do not fit the network, or are not finite.
        """

    def examples(self, batch: int) -> Tensor:
        """Return a batch of valid inputs to try the network on; always the same."""
        return torch.rand(
            batch, *self.image_shape, generator=torch.Generator().manual_seed(0)
        )

    def other_sizes(self, batch: int) -> Sequence[Tensor]:
        """Return images that are larger, in one extent and in all."""
        channels, *extents = self.image_shape
        grown = [extent + 3 + 2 * axis for axis, extent in enumerate(extents)]
        taller = [extents[0] + 1, *extents[1:]]
        return [torch.rand(batch, channels, *size) for size in (grown, taller)]

    def misfits(self) -> Mapping[str, Tensor]:
        """Return images of other channels, without a batch, of another type, and with
        numbers that are not finite.
        """
        images = self.examples(2)
        channels, *extents = self.image_shape
        misfits = {
            "another number of channels": torch.rand(2, channels + 1, *extents),
            "images without a batch axis": images[0],
            "uint8 images": (255 * images).to(torch.uint8),
        }
        middle = (1, 0, *(extent // 2 for extent in extents))
        for value in (torch.nan, torch.inf):
            broken = images.clone()
            broken[middle] = value
            misfits[f"images that hold {value}"] = broken
        return misfits

    def _check(self, images: Tensor) -> None:
        fixed: tuple[int, ...] = self.image_shape
        shown = f"(B, {', '.join(map(str, fixed))})"
        if self.any_size:
            fixed = self.image_shape[:1]
            shown = f"(B, {fixed[0]}, H, W)"
        last = 1 + len(fixed)
        check_batch(
            self,
            "images",
            images,
            lambda shape: len(shape) == 4 and shape[1:last] == fixed,
            shown,
            IN_RANGE,
        )
        if self.any_size:
            check_extent("images", images.shape, self.smallest)


IN_RANGE = "floating point with values in [0, 1]"


def check_batch(
    network: nn.Module,
    name: str,
    batch: Tensor,
    fits: Callable[[torch.Size], bool],
    shape: str,
    numbers: str = "floating point",
) -> None:
    """Check that a batch is a tensor of finite floating-point numbers, in float64 only
    if the network is, and has the right shape.

    Args:
        network: the network that takes it.
        name: the name of the argument.
        batch: what came.
        fits: whether a shape is right.
        shape: what it must be, in words.
        numbers: what its numbers must be, in words.

    Raises:
        TypeError: if it is not a tensor.
        ValueError: if its shape or dtype is wrong, or it holds NaN or infinite values.
    """
    if not isinstance(batch, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(batch).__name__}")
    if not fits(batch.shape):
        raise ValueError(f"{name} must be {shape}, got shape {tuple(batch.shape)}")
    if not batch.is_floating_point():
        raise ValueError(f"{name} must be {numbers}, got {batch.dtype}")
    dtype = dtype_of(network, batch.dtype)
    if batch.dtype == torch.float64 and dtype != torch.float64:
        # Autocast leaves it, too.
        raise ValueError(
            f"{name} must be {dtype}, as the parameters are, got {batch.dtype}"
        )
    if can_be_read(batch) and not all_finite(batch):  # elsewhere the loss tells
        raise ValueError(f"{name} hold NaN or infinite values")


def in_precision_of(network: nn.Module, inputs: Tensor) -> Tensor:
    """Return images in the dtype of the network's parameters; numbers of words as they
    are.
    """
    if not inputs.is_floating_point():
        return inputs
    return inputs.to(dtype_of(network, inputs.dtype))


def all_finite(images: Tensor) -> bool:
    """Whether there is no NaN and no infinite number: then the sum is finite, too,
    unless it overflows.
    """
    return bool(images.detach().sum().isfinite()) or bool(images.isfinite().all())


def check_extent(
    argument: str, shape: Sequence[int], least: int, reason: str = ""
) -> None:
    """Check that images of a shape (..., H, W) are large enough.

    Args:
        argument: what the error calls them.
        shape: the shape of the images.
        least: pixels on a side.
        reason: why so large, as " for strides (1, 2)"; may be empty.

    Raises:
        ValueError: if they are too small; names the argument.
    """
    if any(extent < least for extent in shape[-2:]):
        raise ValueError(
            f"{argument} must be at least {least} x {least}{reason}, got shape "
            f"{tuple(shape)}, of {shape[-2]} x {shape[-1]} pixels"
        )


def same_padded(features: Tensor, kernel_size: int, stride: int) -> Tensor:
    """Pad as TensorFlow's ``same`` does, for extents divided by the stride, rounded up;
    an odd one goes to the end.
    """
    pads = []
    for extent in reversed(features.shape[2:]):
        missing = max(
            (math.ceil(extent / stride) - 1) * stride + kernel_size - extent, 0
        )
        pads += [missing // 2, missing - missing // 2]
    return F.pad(features, pads)


class _RoutingOf(property):
    """As a default in the body of a class it is None, as an attribute of a network the
    routing of one of its layers.
    """

    def __get__(self, network: Any, owner: type | None = None) -> Any:
        return None if network is None else super().__get__(network, owner)


def layer_routing(layer: str, doc: str) -> Any:
    """Return the default of an ``InitVar`` that is a routing, None; the attribute of
    that name is the routing of a layer.
    """
    return _RoutingOf(lambda network: network.get_submodule(layer).routing, doc=doc)


class CapsuleNetwork(ClassifierNetwork):
    """Base of the networks whose classes are capsules, whatever their inputs are. A
    subclass sets ``class_caps``.

    Example:
        >>> class Small(tc.models.CapsuleNetwork):
        ...     takes = "vectors"
        ...
        ...     def __init__(self, classes=10):
        ...         super().__init__(classes)
        ...         self.class_caps = tc.CapsLinear(4, classes, 8, 8)
        ...
        ...     def examples(self, batch):
        ...         return torch.ones(batch, 32)
        ...
        ...     def children_of(self, inputs):
        ...         pose = tc.squash(inputs.unflatten(1, (4, 8)))
        ...         return tc.Capsules(pose, tc.length(pose))
        >>> Small()(torch.rand(2, 32)).capsules.pose.shape
        torch.Size([2, 10, 8])
    """

    class_caps: CapsLinear | ClassCaps

    @property
    def routing(self) -> Routing:
        """Return the routing of the class capsules."""
        return self.class_caps.routing

    def forward_features(self, inputs: Tensor) -> Capsules:
        """Return :meth:`children_of`, under timm's name for the children of the class
        capsules.
        """
        return self.children_of(inputs)

    @abstractmethod
    def children_of(self, inputs: Tensor) -> Capsules:
        """Return the capsules that vote for the class capsules, with poses (B, *sites,
        *pose).
        """

    def encode(self, inputs: Tensor) -> Capsules:
        """Return the class capsules of inputs."""
        return self.class_caps(self.children_of(inputs))

    def route(self, inputs: Tensor) -> Routed:
        """Return the routing of the class capsules: ``route(inputs).assignment`` is (B,
        I, J).
        """
        return self.class_caps.route(self.children_of(inputs))

    def forward(self, inputs: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the class capsules; ``target`` changes nothing."""
        capsules = self.encode(inputs)
        return Prediction(capsules.activation, capsules)


class CapsuleClassifier(CapsuleNetwork, ImageClassifier):
    """Base of the networks over images whose classes are capsules. A subclass sets
    ``class_caps`` and ``decoder`` (or None).

    Example:
        >>> class Small(tc.models.CapsuleClassifier):
        ...     decoder = None
        ...
        ...     def __init__(self, image_shape=(1, 8, 8), classes=10):
        ...         super().__init__(image_shape, classes)
        ...         self.primary = tc.PrimaryCaps(
        ...             image_shape[0], types=4, dim=4, kernel_size=3
        ...         )
        ...         self.class_caps = tc.CapsLinear(
        ...             None, classes, 4, 8, transforms="shared"
        ...         )
        ...
        ...     def children_of(self, images):
        ...         return self.primary(images)
        >>> Small()(torch.rand(2, 1, 8, 8)).activation.shape
        torch.Size([2, 10])
    """

    decoder: nn.Module | None
    pose_dim: int
    decoder_input: DecoderInput
    pose_noise: float

    def _make_decoder(
        self,
        kind: Callable[[int, Sequence[int], Sequence[int]], nn.Module],
        widths: Sequence[int] | None,
    ) -> nn.Module | None:
        """A decoder that gets of a pose what ``decoder_input`` and ``pose_noise`` say.

        Args:
            kind: from ``in_features``, ``image_shape`` and the widths to a decoder.
            widths: the widths of its layers; None for no decoder.
        """
        if widths is None:
            return None
        pose_input = PoseInput(
            self.classes, self.pose_dim, self.decoder_input, self.pose_noise
        )
        decoder = kind(pose_input.out_features, self.image_shape, widths)
        if self.decoder_input == "masked" and not self.pose_noise:
            return decoder
        return PoseInputDecoder(pose_input, decoder)

    @property
    def pose_input(self) -> PoseInput | None:
        """Return what makes the input of the decoder; None without a decoder, or for one
        that gets the masked poses of all classes as they are.

        All kinds but ``masked`` have pose dimensions that mean the same in all classes.
        """
        parts = () if self.decoder is None else self.decoder.modules()
        return next((part for part in parts if isinstance(part, PoseInput)), None)

    def decode(self, capsules: Capsules, target: Tensor | None = None) -> Tensor:
        """Draw the image that the capsule of one class describes; ``target`` as in
        :func:`~torchcaps.layers.mask_capsules`.

        Raises:
            RuntimeError: if the network has no decoder.
        """
        if self.decoder is None:
            raise RuntimeError(
                f"this {type(self).__name__} was built without a decoder"
            )
        poses = mask_capsules(capsules, target)
        if isinstance(self.decoder, PoseInputDecoder):
            return self.decoder(poses, chosen_classes(capsules, target))
        return self.decoder(poses)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return class capsules and, with a decoder, the reconstruction."""
        capsules = self.encode(images)
        reconstruction = None
        if self.decoder is not None:
            reconstruction = self.decode(capsules, target)
        return Prediction(capsules.activation, capsules, reconstruction)
