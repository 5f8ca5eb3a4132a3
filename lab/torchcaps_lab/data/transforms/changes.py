"""Random changes of training images that the papers make: shifts, crops, flips,
brightness and contrast.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.numerics import NotNegative, Size
from torchcaps.spec import Within
from torchcaps_lab.data.transforms.draws import Draws, RandomChange
from torchcaps_lab.data.transforms.steps import margins, windows

Pixels = Annotated[int, Within(0)]
"""How far images are shifted."""

# One stream of random numbers for each class below; RandomShift has the unnumbered one.
_CROP = 1
_BRIGHTNESS = 2
_CONTRAST = 3
_FLIP = 4


@dataclass(frozen=True)
class RandomShift(RandomChange):
    """Shift each image by up to `pixels` in x and in y; what moves in is zero.

    Each of the (2 pixels + 1)^2 shifts is equally likely.

    Source: S. Sabour, N. Frosst, G. Hinton, "Dynamic routing between capsules", NeurIPS
    2017, section 5 (up to 2 pixels).

    Args:
        pixels: the largest shift, 0 for none.

    Raises:
        ValueError: `pixels` is negative.

    Example:
        >>> from torchcaps_lab.data import RandomShift
        >>> shift = RandomShift(2)
        >>> images, indices = torch.rand(4, 1, 28, 28), torch.arange(4)
        >>> torch.equal(
        ...     shift(images, indices, epoch=3), shift(images, indices, epoch=3)
        ... )  # epoch and place decide
        True
    """

    pixels: Pixels

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        side = 2 * self.pixels + 1
        choice = draws.integers(None) % (side * side)
        padded = F.pad(images, (self.pixels,) * 4)
        return windows(padded, images.shape[2:], choice // side, choice % side)


@dataclass(frozen=True)
class RandomCrop(RandomChange):
    """Cut size x size pixels out of each image; each place is equally likely.

    Source: S. Sabour, N. Frosst, G. Hinton, "Dynamic routing between capsules", NeurIPS
    2017, section 7 (smallNORB: 32 x 32 of 48 x 48; CIFAR-10: 24 x 24 of 32 x 32). They
    test on `centre_crop`.

    Args:
        size: height and width of the crop.

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

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        integers = draws.integers(_CROP)
        vertical, horizontal = margins(images, self.size)
        choice = integers % ((vertical + 1) * (horizontal + 1))
        top, left = choice // (horizontal + 1), choice % (horizontal + 1)
        return windows(images, (self.size, self.size), top, left)


@dataclass(frozen=True)
class RandomFlip(RandomChange):
    """Mirror each image, left to right, with the probability 1/2.

    Example:
        >>> from torchcaps_lab.data import RandomFlip
        >>> RandomFlip()(
        ...     torch.rand(4, 3, 32, 32), indices=torch.arange(4), epoch=0
        ... ).shape
        torch.Size([4, 3, 32, 32])
    """

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        flipped = draws.integers(_FLIP) % 2 == 1
        return torch.where(flipped[:, None, None, None], images.flip(3), images)


@dataclass(frozen=True)
class RandomBrightness(RandomChange):
    """Add a number to all pixels of an image, uniformly distributed in [−delta, delta].

    Nothing is clipped, so `standardise` takes the change back: it matters only without
    it.

    Source: G. Hinton, S. Sabour, N. Frosst, "Matrix capsules with EM routing", ICLR
    2018, experiments ("random brightness"; 63 / 255 in their released code).

    Args:
        delta: the largest change, where the pixels span [0, 1].

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

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        share = draws.shares(_BRIGHTNESS)[:, None, None, None]
        return images + (2 * share - 1) * self.delta


@dataclass(frozen=True)
class RandomContrast(RandomChange):
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

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high < float("inf"):
            raise ValueError(
                "contrast must be two factors, 0 <= low <= high, got "
                f"{(self.low, self.high)}"
            )

    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images."""
        share = draws.shares(_CONTRAST)[:, None, None, None]
        mean = images.mean(dim=(2, 3), keepdim=True)
        return (images - mean) * (self.low + share * (self.high - self.low)) + mean
