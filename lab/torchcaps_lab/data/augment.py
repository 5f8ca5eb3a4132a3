"""Random changes of the training images."""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.spec import Within, check_fields

_GOLDEN = -0x61C8864680B583EB  # hexadecimal 9E3779B97F4A7C15 as a signed number
_POSITIVE = 0x7FFFFFFFFFFFFFFF


@dataclass(frozen=True)
class RandomShift:
    """Shift each image by up to `pixels` in x and in y; what moves in is zero.

    Each of the (2 pixels + 1)^2 shifts is equally likely. Which one an image gets
    depends only on the seed, the epoch and the image's index, so a resumed run and a
    distributed one see the same images.

    Source: S. Sabour, N. Frosst, G. Hinton, "Dynamic routing between capsules", NeurIPS
    2017, section 5 (up to 2 pixels).

    Args:
        pixels: the largest shift, 0 for none.
        seed: any 64-bit integer; other seeds give other shifts.

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

    pixels: Annotated[int, Within(0)]
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(
        self,
        images: Tensor,
        indices: Tensor,
        epoch: int,
    ) -> Tensor:
        """Shift the images (B, C, H, W), whose places in their data set are `indices`,
        int64 (B,).
        """
        if images.ndim != 4 or indices.shape != images.shape[:1]:
            raise ValueError(
                "images must be (B, C, H, W) and indices (B,), got "
                f"{tuple(images.shape)} and {tuple(indices.shape)}"
            )
        side = 2 * self.pixels + 1
        places = indices.to(images.device, torch.int64)
        choice = random_integers(self.seed, epoch, places) % (side * side)
        padded = F.pad(images, (self.pixels,) * 4)
        windows = padded.unfold(2, images.shape[2], 1).unfold(
            3, images.shape[3], 1
        )  # (B, C, side, side, H, W)
        rows = torch.arange(len(images), device=images.device)
        return windows[rows, :, choice // side, choice % side]


def mixed_seed(*numbers: int) -> int:
    """Combines numbers into one seed in [0, 2^63): the same in every process, on every
    machine, in every version.

    Args:
        numbers: any 64-bit integers; their order counts.
    """
    state = torch.tensor(0)
    for number in numbers:
        state = mix(state + number + _GOLDEN)
    return int(state) & _POSITIVE


def random_integers(seed: int, epoch: int, indices: Tensor) -> Tensor:
    """One integer in [0, 2^63) for each index: the outputs of SplitMix64 at the places
    `indices`.

    Source: G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
    generators", OOPSLA 2014.
    """
    start = int(mix(mix(torch.tensor(seed)) + epoch))
    return mix(start + (indices + 1) * _GOLDEN) & _POSITIVE


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's scrambling of int64 numbers: a permutation of them in which every
    bit depends on every other.
    """
    # The products wrap around, as they should. The factors are BF58476D1CE4E5B9 and
    # 94D049BB133111EB.
    bits = (bits ^ _shift_right(bits, 30)) * -0x40A7B892E31B1A47
    bits = (bits ^ _shift_right(bits, 27)) * -0x6B2FB644ECCEEE15
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, count: int) -> Tensor:
    # >> copies the sign bit of an int64 into the bits that come in; here they are zero.
    return (bits >> count) & ((1 << (64 - count)) - 1)
