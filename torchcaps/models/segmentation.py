"""A class for each pixel of an image or volume: SegCaps, and a U-Net beside it."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import InitVar
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchcaps.capsules import Capsules, Prediction, from_pair
from torchcaps.layers import LocalCaps, PrimaryCaps, PrimaryCaps3d
from torchcaps.layers.local import Resolution
from torchcaps.layers.pose import AXES
from torchcaps.models.base import IN_RANGE, ImageClassifier, check_batch, layer_routing
from torchcaps.models.registry import register_model
from torchcaps.numerics import AnySizes, Size, Sizes, check_series
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.routing.batch_norm import EarlyBatchNorm2d, EarlyBatchNorm3d
from torchcaps.spec import settings

_CONV: dict[int, Any] = {2: nn.Conv2d, 3: nn.Conv3d}
_UP: dict[int, Any] = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_NORM: dict[int, Any] = {2: EarlyBatchNorm2d, 3: EarlyBatchNorm3d}
_POOL: dict[int, Any] = {2: F.max_pool2d, 3: F.max_pool3d}


def _convolved(before: int, after: int, kernel_size: int, axes: int) -> nn.Sequential:
    """A convolution of the same size, batch normalisation, ReLU."""
    convolution = _CONV[axes](
        before, after, kernel_size, padding=kernel_size // 2, bias=False
    )
    return nn.Sequential(convolution, _NORM[axes](after), nn.ReLU())


class Segmenter(ImageClassifier):
    """Base of the networks that give every pixel a class: activations (B, E, *grid) in
    place of (B, E).

    Args:
        image_shape: (C, H, W) of images or (C, D, H, W) of volumes; other extents work
            too.
        classes: number of classes E.

    Example:
        >>> network = tc.models.UNet((1, 32, 32), classes=3, channels=(4, 8))
        >>> (
        ...     isinstance(network, tc.models.Segmenter),
        ...     network(torch.rand(2, 1, 37, 41)).activation.shape,
        ... )
        (True, torch.Size([2, 3, 37, 41]))
    """

    takes = "pixels"
    any_size = True

    def __init__(self, image_shape: Sequence[int], classes: int) -> None:
        if not isinstance(image_shape, Sequence) or len(image_shape) not in (3, 4):
            raise ValueError(
                "image_shape must be (C, H, W), or (C, D, H, W) of volumes, got "
                f"{image_shape!r}"
            )
        check_series(image_shape=image_shape)
        super().__init__((image_shape[0], image_shape[-2], image_shape[-1]), classes)
        self.image_shape: Any = tuple(int(size) for size in image_shape)

    @property
    def axes(self) -> int:
        """The number of axes of the grid: 2 of an image, 3 of a volume."""
        return len(self.image_shape) - 1

    @abstractmethod
    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return activations (B, E, *grid) of images (B, C, *grid).

        Args:
            images: the batch, with values in [0, 1].
            target: the class of each pixel, (B, *grid), which says what to reconstruct;
                None: as predicted.
        """

    def activation_shape(self, inputs: Tensor) -> tuple[int, ...]:
        """Return the shape of the activations for a batch: (B, E, *grid)."""
        return len(inputs), self.classes, *inputs.shape[2:]

    def _check(self, images: Tensor) -> None:
        axes = self.axes
        C = self.image_shape[0]
        check_batch(
            self,
            "images",
            images,
            lambda shape: (
                len(shape) == axes + 2 and shape[1] == C and 0 not in shape[2:]
            ),
            f"(B, {C}, {AXES[axes]})",
            IN_RANGE,
        )


@register_model(
    "segcaps",
    "after LaLonde & Bagci 2018, made small: locally constrained routing, "
    "deconvolution, skips",
)
@settings
class SegCaps(Segmenter):
    r"""Capsules down to coarse grids and up again: the length of a pixel's class
    capsules says which class it has.

    Convolutions and one capsule for each of ``types[0]`` types make the finest grid.
    Each further number of ``types`` halves the grid
    (:class:`~torchcaps.layers.LocalCaps`, then one of the same resolution). On the way
    up capsules are deconvolved, and those of the way down on the same grid join them as
    children of other types. Poses are normalised after each layer
    (:class:`~torchcaps.layers.PoseNorm`), which the paper does not do: without it deep
    ones fade.

    With ``decoder``, convolutions of 1 x 1 reconstruct the image, at the pixels of all
    classes but the first, from the poses of the true class there.

    Args:
        image_shape: (C, H, W) of images or (C, D, H, W) of volumes; other extents work
            too.
        classes: number of classes; the first is the background of the reconstruction.
        channels: the channels of the convolutions before, one after the other.
        types: the number of types of capsules on each grid, from the finest.
        dim: the numbers of all their poses.
        class_dim: the size of the poses of the class capsules.
        class_kernel_size: side of the window of finest capsules that the class capsules
            see, odd.
        decoder: widths of the convolutions that reconstruct; none for no
            reconstruction.
        recompute: whether a training step computes capsules again instead of keeping
            them: slower, less memory.
        routing: the routing of all layers; default: one step of dynamic routing, which
            is none, with a bias: without, layers are odd functions. The paper has three
            steps; with more than one, this network learns less.

    Source: LaLonde & Bagci 2018, "Capsules for Object Segmentation" (1.4 million
    parameters, full poses without normalisation, two classes).

    Example:
        >>> network = tc.models.SegCaps(
        ...     (1, 16, 16, 16), classes=3, types=(2, 2), dim=4
        ... )  # volumes
        >>> network(torch.rand(1, 1, 9, 10, 11)).activation.shape
        torch.Size([1, 3, 9, 10, 11])
    """

    image_shape: tuple[int, ...] = (1, 64, 64)
    classes: int = 2
    channels: Sizes = (16, 16, 16)
    types: Sizes = (4, 4, 8, 16)
    dim: Size = 4
    class_dim: Size = 16
    class_kernel_size: Size = 1
    decoder: AnySizes = ()
    recompute: bool = False
    routing: InitVar[Routing | None] = layer_routing(
        "class_caps", "That of the class capsules."
    )

    def __post_init__(self, routing: Routing | None) -> None:
        routing = routing or DynamicRouting(steps=1, squash="half", bias=True)
        axes = self.axes
        # The layer would call it kernel_size.
        if self.class_kernel_size % 2 == 0:
            raise ValueError(
                f"class_kernel_size must be odd, got {self.class_kernel_size}"
            )

        def layer(before: int, after: int, resolution: Resolution) -> LocalCaps:
            return LocalCaps(
                before,
                after,
                self.dim,
                self.dim,
                3,
                resolution,
                axes,
                routing=routing,
                pose_norm="element",
            )

        primary = {2: PrimaryCaps, 3: PrimaryCaps3d}[axes]
        steps = list(pairwise(self.types))
        first, *following = zip(
            (self.image_shape[0], *self.channels), self.channels, strict=False
        )
        self.stem = nn.Sequential(
            _convolved(*first, 5, axes),
            *(_convolved(*pair, 3, axes) for pair in following),
        )
        self.primary_caps = primary(
            self.channels[-1],
            self.types[0],
            self.dim,
            1,
            1,
            squash="half",
            pose_norm="element",
        )
        self.down = nn.ModuleList(layer(fine, coarse, "half") for fine, coarse in steps)
        self.along = nn.ModuleList(layer(coarse, coarse, "same") for _, coarse in steps)
        self.up = nn.ModuleList(layer(coarse, fine, "double") for fine, coarse in steps)
        self.joined = nn.ModuleList(
            layer(2 * fine, fine, "same") for fine, _ in steps[1:]
        )
        last = self.types[0] * (2 if steps else 1)
        self.class_caps = LocalCaps(
            last,
            self.classes,
            self.dim,
            self.class_dim,
            self.class_kernel_size,
            axes=axes,
            routing=routing,
        )
        widths = [(self.classes - 1) * self.class_dim, *self.decoder]
        convolutions = [
            part for pair in pairwise(widths) for part in _convolved(*pair, 1, axes)
        ]
        last_one = _CONV[axes](widths[-1], self.image_shape[0], 1)
        self.drawing = (
            nn.Sequential(*convolutions, last_one, nn.Sigmoid())
            if self.decoder
            else None
        )

    def encode(self, images: Tensor) -> Capsules:
        """Return the class capsules of every pixel: poses (B, *grid, E, class_dim)."""
        self._check(images)
        capsules: Capsules = self.primary_caps(self.stem(images))
        fine = []
        for down, along in zip(self.down, self.along, strict=True):
            fine.append(capsules)
            capsules = self._run(along, self._run(down, capsules))
        for step in reversed(range(len(fine))):
            capsules = _joined_types(self._run(self.up[step], capsules), fine[step])
            if step:
                capsules = self._run(self.joined[step - 1], capsules)
        return self._run(self.class_caps, capsules)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the lengths of the class capsules, the capsules, and with a decoder
        the reconstruction.
        """
        capsules = self.encode(images)
        activation = capsules.activation.movedim(-1, 1).contiguous()
        return Prediction(
            activation,
            capsules,
            None if self.drawing is None else self.decode(capsules, target),
        )

    def decode(self, capsules: Capsules, target: Tensor | None = None) -> Tensor:
        """Return the image at the pixels of all classes but the first, elsewhere 0: (B,
        C, *grid).

        Args:
            capsules: the capsules of :meth:`encode`.
            target: the class of each pixel, integers (B, *grid); None for the longest
                capsule.

        Raises:
            RuntimeError: if the network has no decoder.
            TypeError: if the target is no tensor.
            ValueError: if it has another shape, or is not of integers.
        """
        if self.drawing is None:
            raise RuntimeError(
                f"this {type(self).__name__} was built without a decoder"
            )
        capsules = from_pair(capsules)
        if target is not None:
            _check_target(target, tuple(capsules.activation.shape[:-1]))
        chosen = capsules.activation.argmax(-1) if target is None else target
        mask = (
            chosen[..., None] == torch.arange(1, self.classes, device=chosen.device)
        ).to(capsules.pose.dtype)
        poses = (capsules.pose[..., 1:, :] * mask[..., None]).flatten(-2).movedim(-1, 1)
        return self.drawing(poses.contiguous()) * mask.amax(-1)[:, None]

    def _run(self, layer: nn.Module, children: Capsules) -> Capsules:
        if not (self.recompute and self.training and torch.is_grad_enabled()):
            return layer(children)

        has_run = False

        def run(pose: Tensor, activation: Tensor) -> tuple[Tensor, ...]:
            nonlocal has_run
            capsules = Capsules(pose, activation)
            if has_run:
                return tuple(_repeated(layer, capsules))
            # A compiler traces it once.
            if not torch.compiler.is_compiling():
                has_run = True
            return tuple(layer(capsules))

        return Capsules(*checkpoint(run, *children, use_reentrant=False))


def _repeated(layer: nn.Module, children: Capsules) -> Capsules:
    """The capsules of a layer whose running values have followed these children
    before, and stay.
    """
    buffers = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    capsules: Capsules = functional_call(layer, buffers, (children,))
    return capsules


def _check_target(target: Any, shape: tuple[int, ...]) -> None:
    if not isinstance(target, Tensor):
        raise TypeError(f"target must be a tensor, got {type(target).__name__}")
    whole = not (target.is_floating_point() or target.is_complex())
    if target.shape != shape or not whole or target.dtype == torch.bool:
        raise ValueError(
            f"target must be integer classes (B, *grid) = {shape}, got {target.dtype} "
            f"{tuple(target.shape)}"
        )


def _joined_types(coarse: Capsules, fine: Capsules) -> Capsules:
    """Deconvolved capsules and those of the finer grid, which may be one shorter, as
    types beside each other.
    """
    sites = (slice(None), *map(slice, fine.activation.shape[1:-1]))
    axis = fine.activation.ndim - 1
    return Capsules(
        *(
            torch.cat([coarse_part[sites], fine_part], axis)
            for coarse_part, fine_part in zip(coarse, fine, strict=True)
        )
    )


@register_model(
    "unet",
    "Ronneberger et al. 2015, made small: convolutions in place of capsules; the "
    "baseline",
)
@settings
class UNet(Segmenter):
    """Two convolutions on each grid, down by maxima and up by transposed convolutions,
    with skips; softmax.

    Args:
        image_shape: (C, H, W) of images or (C, D, H, W) of volumes; other extents work
            too.
        classes: number of classes.
        channels: on each grid, from the finest; each further one halves the grid.

    Source: Ronneberger, Fischer & Brox 2015, "U-Net"; batch normalisation and padding
    as in Çiçek et al. 2016.

    Example:
        >>> tc.models.UNet((3, 64, 64), classes=5, channels=(8, 16))(
        ...     torch.rand(1, 3, 33, 64)
        ... ).activation.shape
        torch.Size([1, 5, 33, 64])
    """

    image_shape: tuple[int, ...] = (1, 64, 64)
    classes: int = 2
    channels: Sizes = (16, 32, 64, 128)

    def __post_init__(self) -> None:
        axes = self.axes

        def twice(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(
                *_convolved(before, after, 3, axes), *_convolved(after, after, 3, axes)
            )

        steps = list(pairwise(self.channels))
        self.first = twice(self.image_shape[0], self.channels[0])
        self.down = nn.ModuleList(twice(fine, coarse) for fine, coarse in steps)
        self.up = nn.ModuleList(_UP[axes](coarse, fine, 2, 2) for fine, coarse in steps)
        self.joined = nn.ModuleList(twice(2 * fine, fine) for fine, _ in steps)
        self.scores = _CONV[axes](self.channels[0], self.classes, 1)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the probabilities of the classes of every pixel."""
        self._check(images)
        features = self.first(images)
        fine = []
        for down in self.down:
            fine.append(features)
            features = down(_POOL[self.axes](features, 2, ceil_mode=True))
        for up, joined in zip(reversed(self.up), reversed(self.joined), strict=True):
            skip = fine.pop()
            sites = (slice(None), slice(None), *map(slice, skip.shape[2:]))
            features = joined(torch.cat([up(features)[sites], skip], 1))
        return Prediction(self.scores(features).softmax(1))
