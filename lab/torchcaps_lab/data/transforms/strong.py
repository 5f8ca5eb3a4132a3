"""Stronger random changes of training images, most by kornia, on the device of the
images.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any

import torch
from torch import Tensor

from torchcaps.numerics import Share, Size, resolution
from torchcaps.optional_imports import needing
from torchcaps.spec import Within
from torchcaps_lab.data.transforms.draws import Draws, RandomChange

# Streams of random numbers; those of a RandAugment follow each other, two for each
# operation.
_ROTATE = 10
_ZOOM = 12
_ERASE = 20
_AUGMENT = 100

Degrees = Annotated[float, Within(0, 180)]
"""The largest angle of a rotation."""

Stretch = Annotated[float, Within(0, 0.9)]
"""The largest change of width and height."""


def _kornia() -> ModuleType:
    """kornia, which takes seconds to import.

    Raises:
        ModuleNotFoundError: if it is not installed; it names the extra.
    """
    with needing("rotate, zoom and randaugment", "torchcaps-lab[augment]"):
        import kornia
    return kornia


@dataclass(frozen=True)
class RandomRotation(RandomChange):
    """Turn each image around its centre by an angle uniformly distributed in [-degrees,
    degrees]; corners become black.

    Args:
        degrees: the largest angle, at most 180.

    Raises:
        ValueError: `degrees` is out of range.

    Example:
        >>> from torchcaps_lab.data import RandomRotation
        >>> RandomRotation(15.0)(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    degrees: Degrees

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        angle = (2 * draws.shares(_ROTATE) - 1) * self.degrees
        return _kornia().geometry.transform.rotate(images, angle.to(images.dtype))


@dataclass(frozen=True)
class RandomZoom(RandomChange):
    """Stretch each image around its centre, in width and in height by factors uniformly
    distributed in [1-z, 1+z].

    Args:
        most: z, the largest change of a factor; borders that come in are black.

    Raises:
        ValueError: `most` is outside [0, 0.9].

    Example:
        >>> from torchcaps_lab.data import RandomZoom
        >>> RandomZoom(0.2)(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    most: Stretch

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        shares = torch.stack([draws.shares(_ZOOM + axis) for axis in range(2)], 1)
        factors = 1 + (2 * shares - 1) * self.most
        return _kornia().geometry.transform.scale(images, factors.to(images.dtype))


@dataclass(frozen=True)
class RandomErasing(RandomChange):
    """Black out a rectangle of each image, with a probability.

    Its area is uniformly distributed between 2 % and 33 % of the image, the logarithm
    of its aspect ratio between those of 0.3 and 1 / 0.3, and its place over the image;
    sides that do not fit are cut.

    Source: Z. Zhong, L. Zheng, G. Kang, S. Li, Y. Yang, "Random erasing data
    augmentation", AAAI 2020.

    Args:
        probability: that an image loses a rectangle.

    Raises:
        ValueError: `probability` is outside [0, 1].

    Example:
        >>> from torchcaps_lab.data import RandomErasing
        >>> RandomErasing(0.5)(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    probability: Share

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        chosen, area, ratio, left, top = (
            draws.shares(_ERASE + number) for number in range(5)
        )
        H, W = images.shape[2:]
        area = (0.02 + area * 0.31) * H * W
        ratio = ((2 * ratio - 1) * math.log(1 / 0.3)).exp()  # height over width
        height = (area * ratio).sqrt().round().clamp(1, H)
        width = (area / ratio).sqrt().round().clamp(1, W)
        left = (left * (W - width + 1)).floor()
        top = (top * (H - height + 1)).floor()
        rows = _within(top, height, H)[:, None, :, None]
        columns = _within(left, width, W)[:, None, None]
        erased = (chosen < self.probability)[:, None, None, None]
        return images.masked_fill(rows & columns & erased, 0)


def _within(first: Tensor, count: Tensor, size: int) -> Tensor:
    """Which of so many places lie among the ``count`` from the first one on, both (B,):
    (B, size).
    """
    places = torch.arange(size, device=first.device)
    return (places >= first[:, None]) & (places < (first + count)[:, None])


@dataclass(frozen=True)
class RandAugment(RandomChange):
    """Change each image by ``count`` random operations from a list, one after the
    other, all of one magnitude.

    kornia has a RandAugment of its own, which means something else: one choice of
    operations for the whole batch, drawn from the global generator, without replacement
    and from another list. So an image would depend on the batch that it is in; here it
    depends on the seed, the epoch and its index. The operations themselves are
    kornia's.

    The list is that of the paper without equalising: identity, autocontrast,
    brightness, contrast, sharpness, colour (of three channels), posterise, solarise,
    rotate, shear and translate in x and y. Operations with two directions take either
    with the probability 1/2.

    Source: E. Cubuk, B. Zoph, J. Shlens, Q. Le, "RandAugment", NeurIPS 2020.

    Args:
        count: N, how many operations an image goes through.
        magnitude: M, 0 to 30.

    Raises:
        ValueError: `count` is less than 1, or `magnitude` out of range.

    Example:
        >>> from torchcaps_lab.data import RandAugment
        >>> RandAugment(count=2)(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    count: Size
    magnitude: Annotated[float, Within(0, 30)] = 9.0

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        names = [
            name for name in OPERATIONS if name != "colour" or images.shape[1] == 3
        ]
        kornia = _kornia()
        for step in range(self.count):
            stream = _AUGMENT + 2 * step
            chosen = draws.integers(stream) % len(names)
            sign = 1.0 - 2.0 * (draws.shares(stream + 1) < 0.5).to(images.dtype)
            changed = images.clone()
            for number, name in enumerate(names):
                rows = (chosen == number).nonzero().squeeze(1)
                if len(rows):
                    strength = sign[rows] * self.magnitude / 30
                    changed[rows] = OPERATIONS[name](
                        kornia, images[rows], strength
                    ).clamp(0, 1)
            images = changed
        return images


Operation = Callable[[Any, Tensor, Tensor], Tensor]
"""Changes images (B, C, H, W) by strengths (B,) in [-1, 1], with kornia."""


def _stretched(kornia: Any, images: Tensor, strength: Tensor) -> Tensor:
    """Each channel to [0, 1]; one of a single value has no contrast to stretch, and
    kornia makes it black.
    """
    most = images.amax((2, 3), keepdim=True)
    flat = most - images.amin((2, 3), keepdim=True) <= resolution(most)
    return torch.where(flat, images, kornia.enhance.normalize_min_max(images))


def _contrasted(kornia: Any, images: Tensor, strength: Tensor) -> Tensor:
    """Around the mean of each image; kornia before 0.9 takes that of the batch, unless
    there are three channels.
    """
    grey = kornia.color.rgb_to_grayscale(images) if images.shape[1] == 3 else images
    return torch.lerp(
        grey.mean((1, 2, 3), keepdim=True),
        images,
        (1 + 0.9 * strength)[:, None, None, None],
    )


def _rotated(kornia: Any, images: Tensor, strength: Tensor) -> Tensor:
    return kornia.geometry.transform.rotate(images, 30 * strength)


def _sheared(axis: int) -> Operation:
    def change(kornia: Any, images: Tensor, strength: Tensor) -> Tensor:
        return kornia.geometry.transform.shear(images, _along(axis, 0.3 * strength))

    return change


def _translated(axis: int) -> Operation:
    def change(kornia: Any, images: Tensor, strength: Tensor) -> Tensor:
        pixels = 0.45 * images.shape[3 - axis] * strength
        return kornia.geometry.transform.translate(images, _along(axis, pixels))

    return change


def _along(axis: int, values: Tensor) -> Tensor:
    """(B, 2) with the values in x (axis 0) or y (axis 1), and zero in the other."""
    return torch.stack([values, torch.zeros_like(values)][:: 1 - 2 * axis], 1)


OPERATIONS: dict[str, Operation] = {
    "identity": lambda kornia, images, strength: images,
    "autocontrast": _stretched,
    "brightness": lambda kornia, images, strength: (
        images * (1 + 0.9 * strength)[:, None, None, None]
    ),
    "contrast": _contrasted,
    "sharpness": lambda kornia, images, strength: kornia.enhance.sharpness(
        images, 1 + 0.9 * strength
    ),
    "colour": lambda kornia, images, strength: (
        kornia.enhance.adjust_saturation_with_gray_subtraction(
            images, 1 + 0.9 * strength
        )
    ),
    "posterise": lambda kornia, images, strength: kornia.enhance.posterize(
        images, (8 - 4 * strength.abs()).round().long()
    ),
    "solarise": lambda kornia, images, strength: kornia.enhance.solarize(
        images, 1 - strength.abs()
    ),
    "rotate": _rotated,
    "shear in x": _sheared(0),
    "shear in y": _sheared(1),
    "translate in x": _translated(0),
    "translate in y": _translated(1),
}
