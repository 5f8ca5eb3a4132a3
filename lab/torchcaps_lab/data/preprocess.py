"""Changes of images that the papers make before a network sees them: sizes, crops,
flips, brightness, contrast, scale.

Each works on a whole batch (B, C, H, W) on its device. The random ones depend only on
the seed, the epoch and the image's index, and are independent of each other even if
their seeds are equal.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.numerics import NotNegative, Size, check_size
from torchcaps.spec import check_fields
from torchcaps_lab.data.augment import mix, random_integers

# One stream of random numbers for each class below; RandomShift has the unnumbered one.
_CROP = 1
_BRIGHTNESS = 2
_CONTRAST = 3
_FLIP = 4

MOST_PIXELS = 2**14
"""Most pixels on a side of an image; larger ones would fill the memory."""


def standardise(images: Tensor) -> Tensor:
    """Give each image the mean zero and the variance one.

        (x − mean(x)) / max(std(x), 1 / sqrt(n)), over the n = C H W values of one image

    The lower bound avoids a division by zero for an image of one value, and keeps
    images of little contrast below the variance one. This is
    `per_image_standardization` of TensorFlow, which the code of G. Hinton, S. Sabour,
    N. Frosst, "Matrix capsules with EM routing", ICLR 2018, applies to the crops.

    Args:
        images: float (B, C, H, W).

    Returns:
        The same shape and type.

    Raises:
        ValueError: `images` has another shape or type.
    """
    _check_images(images)
    count = math.prod(images.shape[1:])
    centred = images - images.mean(dim=(1, 2, 3), keepdim=True)
    variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
    # Bounded before the root, whose gradient at zero is infinite.
    return centred / variance.clamp_min(1 / count).sqrt()


def normalise(
    images: Tensor, mean: Sequence[float], deviation: Sequence[float]
) -> Tensor:
    """Shift and scale each channel by its own numbers.

        (x − mean) / deviation

    Args:
        images: float (B, C, H, W).
        mean: the mean of each of the C channels, over all training images.
        deviation: the deviation of each channel, likewise.

    Returns:
        The same shape and type.

    Raises:
        ValueError: `mean` and `deviation` are not for C channels; `images` has another
            shape or type.
    """
    _check_images(images)
    if not len(mean) == len(deviation) == images.shape[1]:
        raise ValueError(
            f"mean and deviation must be for {images.shape[1]} channels, got "
            f"{tuple(mean)} and {tuple(deviation)}"
        )
    shift, scale = (
        images.new_tensor(numbers)[:, None, None] for numbers in (mean, deviation)
    )
    return (images - shift) / scale


def rescale(images: Tensor, size: int) -> Tensor:
    """The images at size x size pixels, by bilinear interpolation between the nearest
    four, without smoothing first.

    This is TensorFlow's `tf.image.resize`, as in the code released with V. Mazzia, F.
    Salvetti, M. Chiaberge, "Efficient-CapsNet", 2021: where an image shrinks, some of
    its pixels count for nothing.

    Args:
        images: float (B, C, H, W).
        size: height and width of the result.

    Raises:
        ValueError: `size` is less than 1; `images` has another shape or type.
    """
    _check_images(images)
    check_size(size=size)
    return F.interpolate(
        images, (size, size), mode="bilinear", align_corners=False, antialias=False
    )


def centre_crop(images: Tensor, size: int) -> Tensor:
    """The size x size pixels in the middle; an odd margin has its larger half below and
    on the right.

    Args:
        images: float (B, C, H, W).
        size: height and width of the crop, at most H and W.

    Returns:
        (B, C, size, size), a view of `images`.

    Raises:
        ValueError: `size` is out of range; `images` has another shape or type.
    """
    _check_images(images)
    top, left = (margin // 2 for margin in _margins(images, size))
    return images[:, :, top : top + size, left : left + size]


def thirteen_crops(images: Tensor, size: int) -> Tensor:
    """The middle of each image and the twelve crops 1, 2 and 3 pixels off it in both x
    and y.

    A network's class scores averaged over them are the "multiple crops" of G. Hinton,
    S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR 2018 (smallNORB: 1.4 %
    error instead of 1.8 %); the offsets are those that their released code asks
    TensorFlow for (whose `extract_glimpse` then halves them). Standardise the crops,
    not the images.

    Args:
        images: float (B, C, H, W).
        size: height and width of the crops, at most H − 6 and W − 6.

    Returns:
        (B, 13, C, size, size): first the middle, then the offsets (x, y) = (d, d), (d,
        −d), (−d, d), (−d, −d) for d = 1, then for d = 2 and d = 3.

    Raises:
        ValueError: `size` is out of range; `images` has another shape or type.
    """
    _check_images(images)
    vertical, horizontal = _margins(images, size)
    if min(vertical, horizontal) < 6:
        raise ValueError(
            "size must leave a margin of 3 pixels on every side, at most "
            f"{min(images.shape[2:]) - 6} for images of "
            f"{images.shape[2]} x {images.shape[3]}, got {size}"
        )
    top = vertical // 2
    left = horizontal // 2
    offsets = [(0, 0)]
    for distance, right, down in product((1, 2, 3), (1, -1), (1, -1)):
        offsets.append((right * distance, down * distance))
    crops = [
        images[:, :, top + y : top + y + size, left + x : left + x + size]
        for x, y in offsets
    ]
    return torch.stack(crops, dim=1)


@dataclass(frozen=True)
class RandomCrop:
    """Cut size x size pixels out of each image; each place is equally likely.

    Source: S. Sabour, N. Frosst, G. Hinton, "Dynamic routing between capsules", NeurIPS
    2017, section 7 (smallNORB: 32 x 32 of 48 x 48; CIFAR-10: 24 x 24 of 32 x 32). They
    test on `centre_crop`.

    Args:
        size: height and width of the crop.
        seed: any 64-bit integer; other seeds give other crops.

    Raises:
        ValueError: `size` is less than 1. Calling raises it for one larger than the
            images.

    Example:
        >>> from torchcaps_lab.data import RandomCrop
        >>> RandomCrop(24)(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 24, 24])
    """

    size: Size
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(
        self,
        images: Tensor,
        indices: Tensor,
        epoch: int,
    ) -> Tensor:
        """Crop the images, float (B, C, H, W), whose places in their data set are
        `indices`, int64 (B,).
        """
        integers = _draw(self.seed, _CROP, images, indices, epoch)
        vertical, horizontal = _margins(images, self.size)
        choice = integers % ((vertical + 1) * (horizontal + 1))
        windows = images.unfold(2, self.size, 1).unfold(
            3, self.size, 1
        )  # (B, C, top, left, size, size)
        rows = torch.arange(len(images), device=images.device)
        return windows[rows, :, choice // (horizontal + 1), choice % (horizontal + 1)]


@dataclass(frozen=True)
class RandomFlip:
    """Mirror each image, left to right, with the probability 1/2.

    Args:
        seed: any 64-bit integer; other seeds flip others.

    Example:
        >>> from torchcaps_lab.data import RandomFlip
        >>> RandomFlip()(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    seed: int = 0

    def __call__(
        self,
        images: Tensor,
        indices: Tensor,
        epoch: int,
    ) -> Tensor:
        """Flip the images, float (B, C, H, W), whose places in their data set are
        `indices`, int64 (B,).
        """
        flipped = _draw(self.seed, _FLIP, images, indices, epoch) % 2 == 1
        return torch.where(flipped[:, None, None, None], images.flip(3), images)


@dataclass(frozen=True)
class RandomBrightness:
    """Add a number to all pixels of an image, uniformly distributed in [−delta, delta].

    Nothing is clipped, so `standardise` takes the change back: it matters only without
    it.

    Source: G. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR
    2018, experiments ("random brightness"; 63 / 255 in their released code).

    Args:
        delta: the largest change, where the pixels span [0, 1].
        seed: any 64-bit integer; other seeds give other changes.

    Raises:
        ValueError: `delta` is negative.

    Example:
        >>> from torchcaps_lab.data import RandomBrightness
        >>> RandomBrightness()(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    delta: NotNegative = 63 / 255
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(
        self,
        images: Tensor,
        indices: Tensor,
        epoch: int,
    ) -> Tensor:
        """Change the images, float (B, C, H, W), whose places in their data set are
        `indices`, int64 (B,).
        """
        share = _to_share(_draw(self.seed, _BRIGHTNESS, images, indices, epoch), images)
        return images + (2 * share - 1) * self.delta


@dataclass(frozen=True)
class RandomContrast:
    """Scale each image around the mean of each of its channels, by a factor uniformly
    distributed in [low, high].

        (x − mean) factor + mean

    Nothing is clipped, so `standardise` takes the change back where an image has one
    channel and its contrast stays above the bound there.

    Source: G. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR
    2018, experiments ("random contrast"; 0.2 to 1.8 in their released code).

    Args:
        low: the smallest factor, 0 or more.
        high: the largest factor.
        seed: any 64-bit integer; other seeds give other factors.

    Raises:
        ValueError: `low` is negative or larger than `high`.

    Example:
        >>> from torchcaps_lab.data import RandomContrast
        >>> RandomContrast()(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    low: float = 0.2
    high: float = 1.8
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < float("inf"):
            raise ValueError(
                f"low and high must be 0 <= low <= high, got {self.low} and {self.high}"
            )

    def __call__(
        self,
        images: Tensor,
        indices: Tensor,
        epoch: int,
    ) -> Tensor:
        """Change the images, float (B, C, H, W), whose places in their data set are
        `indices`, int64 (B,).
        """
        share = _to_share(_draw(self.seed, _CONTRAST, images, indices, epoch), images)
        mean = images.mean(dim=(2, 3), keepdim=True)
        return (images - mean) * (self.low + share * (self.high - self.low)) + mean


def _draw(
    seed: int,
    stream: int,
    images: Tensor,
    indices: Tensor,
    epoch: int,
) -> Tensor:
    """One integer in [0, 2^63) for each image, on its device."""
    _check_images(images)
    if indices.shape != images.shape[:1]:
        raise ValueError(
            f"indices must be ({len(images)},), one per image, got "
            f"{tuple(indices.shape)}"
        )
    own_seed = int(mix(mix(torch.tensor(seed)) + stream))
    return random_integers(own_seed, epoch, indices.to(images.device, torch.int64))


def _to_share(integers: Tensor, images: Tensor) -> Tensor:
    """The integers in [0, 2^63) as numbers in [0, 1), (B, 1, 1, 1) of the images'
    type.
    """
    # A float32 holds 24 bits; with these, wider types get the same numbers.
    return ((integers >> 39).to(torch.float32) * 2**-24).to(images.dtype)[
        :, None, None, None
    ]


def _margins(images: Tensor, size: int) -> tuple[int, int]:
    """How many more pixels than a crop the images have in height and in width."""
    height, width = images.shape[2:]
    if not 1 <= size <= min(height, width):
        raise ValueError(
            f"size must be 1 to {min(height, width)} for images of {height} x "
            f"{width}, got {size}"
        )
    return height - size, width - size


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"images must be float (B, C, H, W), got {images.dtype} "
            f"{tuple(images.shape)}"
        )
