"""Random numbers of training images, and the base of their random changes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.spec import check_fields

_GOLDEN = -0x61C8864680B583EB  # hexadecimal 9E3779B97F4A7C15 as a signed number
_POSITIVE = 0x7FFFFFFFFFFFFFFF


class Draws(NamedTuple):
    """Random numbers of a batch, which depend on seed, epoch and index of each image.

    Args:
        seed: any 64-bit integer.
        indices: the places of the images in their data set, int64 (B,).
        epoch: from 0.
    """

    seed: int
    indices: Tensor
    epoch: int

    def integers(self, stream: int | None) -> Tensor:
        """One integer in [0, 2^63) for each image, (B,).

        Streams are independent of each other. None is the stream of the seed itself.
        """
        seed = self.seed
        if stream is not None:
            seed = int(mix(mix(torch.tensor(seed)) + stream))
        return random_integers(seed, self.epoch, self.indices)

    def shares(self, stream: int) -> Tensor:
        """One number in [0, 1) for each image, float32 (B,), which holds 24 bits."""
        return (self.integers(stream) >> 39).to(torch.float32) * 2**-24


@dataclass(frozen=True)
class RandomChange(ABC):
    """Base of random changes of images, each of which depends only on the seed, the
    epoch and the index of the image.

    So a resumed run and a distributed one see the same images. Changes with equal seeds
    are independent of each other.

    Args:
        seed: any 64-bit integer; other seeds change images in other ways.

    Raises:
        ValueError: a setting is out of range.
    """

    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, images: Tensor, indices: Tensor, epoch: int) -> Tensor:
        """Change the images, float (B, C, H, W), whose places in their data set are
        `indices`, int64 (B,).
        """
        check_images(images)
        if indices.shape != images.shape[:1]:
            raise ValueError(
                f"indices must be ({len(images)},), one per image, got "
                f"{tuple(indices.shape)}"
            )
        places = indices.to(images.device, torch.int64)
        draws = Draws(self.seed, places, epoch)
        return self.changed(images, draws).to(images.dtype)

    @abstractmethod
    def changed(self, images: Tensor, draws: Draws) -> Tensor:
        """Return the changed images.

        Args:
            images: the images, float (B, C, H, W).
            draws: the random numbers of these images.
        """


def check_images(images: Tensor) -> None:
    """Raise a `ValueError` unless images are float (B, C, H, W)."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ValueError(
            f"images must be float (B, C, H, W), got {images.dtype} "
            f"{tuple(images.shape)}"
        )


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
