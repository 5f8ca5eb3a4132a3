"""Sizes, crops and scales of images, (B, C, H, W), which are the same at every time."""

import math
from collections.abc import Sequence
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.numerics import check_size
from torchcaps_lab.data.transforms.draws import check_images

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
    check_images(images)
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
    check_images(images)
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
    check_images(images)
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
    check_images(images)
    top, left = (margin // 2 for margin in margins(images, size))
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
    check_images(images)
    vertical, horizontal = margins(images, size)
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


def windows(images: Tensor, size: Sequence[int], top: Tensor, left: Tensor) -> Tensor:
    """Cut a window out of each image, at a place of its own.

    Args:
        images: (B, C, H, W).
        size: height and width of the windows.
        top: the first row of each, int64 (B,).
        left: the first column of each, likewise.
    """
    height, width = size
    places = images.unfold(2, height, 1).unfold(3, width, 1)  # [B, C, top, left, h, w]
    return places[torch.arange(len(images), device=images.device), :, top, left]


def nearest(values: Tensor, height: int, width: int) -> Tensor:
    """Whole numbers of pixels (H, W), such as classes, at another size: the nearest one
    of each pixel.
    """
    large = values[None, None].double()
    return F.interpolate(large, (height, width), mode="nearest-exact")[0, 0].to(values)


def margins(images: Tensor, size: int) -> tuple[int, int]:
    """How many more pixels than a crop the images have in height and in width."""
    height, width = images.shape[2:]
    if not 1 <= size <= min(height, width):
        raise ValueError(
            f"size must be 1 to {min(height, width)} for images of {height} x "
            f"{width}, got {size}"
        )
    return height - size, width - size
