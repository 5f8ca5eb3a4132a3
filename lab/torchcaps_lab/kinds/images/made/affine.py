"""Random affine transforms of images."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.numerics import check_choice
from torchcaps_lab.data.base import TEST_SEED


class Affine(NamedTuple):
    r"""An affine transform for each of N images, around the centre of the canvas, x to
    the right and y downwards.

    .. math:: p \mapsto R_{rotation} S_{shear} \operatorname{diag}(scale) p + shift

    Args:
        rotation: in degrees, counter-clockwise, (N,).
        shear: pixels that a point leans to the right for each pixel that it is above
            the middle, (N,).
        scale: in x and in y, (N, 2).
        shift: in x and in y, in pixels, (N, 2).

    Example:
        >>> from torchcaps_lab.data import Affine, apply_affine
        >>> affine = Affine(
        ...     torch.tensor([30.0]),
        ...     torch.zeros(1),
        ...     torch.ones(1, 2),
        ...     torch.zeros(1, 2),
        ... )
        >>> apply_affine(torch.full((1, 1, 9, 9), 255, dtype=torch.uint8), affine).shape
        torch.Size([1, 1, 9, 9])
    """

    rotation: Tensor
    shear: Tensor
    scale: Tensor
    shift: Tensor

    @classmethod
    def of_factor(cls, name: str, value: float, count: int) -> "Affine":
        """Return transforms that change one factor and leave the others.

        Args:
            name: the factor, which is one of the fields.
            value: its value. A scale is the same in x and in y; a shift is as large in
                x and in y, each to a random side.
            count: the number of transforms.

        Raises:
            ValueError: there is no such factor.
        """
        check_choice("name", name, cls._fields)
        zero = torch.zeros(count)
        still = cls(
            zero,
            zero,
            torch.ones(count, 2),
            torch.zeros(count, 2),
        )
        if name == "scale":
            return still._replace(scale=still.scale * value)
        if name == "shift":
            generator = torch.Generator().manual_seed(TEST_SEED)
            sides = torch.randint(2, (count, 2), generator=generator) * 2 - 1
            return still._replace(shift=sides * value)
        return still._replace(**{name: zero + value})

    @property
    def matrix(self) -> Tensor:
        """Return the linear part, (N, 2, 2)."""
        angle = self.rotation.deg2rad()
        cosine = angle.cos()
        sine = angle.sin()
        ones = torch.ones_like(cosine)
        zero = torch.zeros_like(cosine)
        rotation = torch.stack([cosine, sine, -sine, cosine], -1).unflatten(-1, (2, 2))
        shear = torch.stack([ones, -self.shear, zero, ones], -1).unflatten(-1, (2, 2))
        return rotation @ shear @ torch.diag_embed(self.scale)


def apply_affine(images: Tensor, affine: Affine) -> Tensor:
    """Transform images with bilinear interpolation; pixels from outside are black.

    Args:
        images: uint8 (N, C, H, W), H = W.
        affine: one transform for each.

    Returns:
        The same shape and type.

    Raises:
        ValueError: the images are not square.
    """
    size = _side(images)
    back = torch.linalg.inv(affine.matrix)
    # Coordinates of grid_sample go from -1 to 1, over the whole canvas.
    offset = -(back @ affine.shift[:, :, None]) * 2 / size
    grid = F.affine_grid(
        torch.cat([back, offset], -1), list(images.shape), align_corners=False
    )
    moved = F.grid_sample(
        images.float(), grid, "bilinear", "zeros", align_corners=False
    )
    return moved.round().clamp(0, 255).to(torch.uint8)


def shift_limits(images: Tensor, matrix: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """How far transformed digits can be shifted before ink leaves the canvas.

    Args:
        images: uint8 (N, C, H, W), H = W; what is not black is ink.
        matrix: the linear part of their transforms, (N, 2, 2).
        most: largest limit, in pixels.

    Returns:
        The least and the largest shift in x and in y, each (N, 2). They are equal, and
        leave equal margins on both sides, where a digit is too large for its canvas.

    Raises:
        ValueError: the images are not square.
    """
    size = _side(images)
    ink = images.amax(1).flatten(1) > 0  # [N, pixels]
    place = torch.arange(size) - (size - 1) / 2
    grid = torch.meshgrid(place, place, indexing="xy")
    pixels = torch.stack(grid).flatten(1)  # x and y, [2, pixels]
    # Interpolation spreads a pixel over less than one pixel in x and in y, before the
    # transform; the first pixel outside the canvas must get nothing of it.
    room = (size + 1) / 2 - matrix.abs().sum(2)
    low = []
    high = []
    for axis in (0, 1):
        moved = matrix[:, axis] @ pixels
        low.append(-room[:, axis] - moved.where(ink, torch.inf).amin(1))
        high.append(room[:, axis] - moved.where(ink, -torch.inf).amax(1))
    least = torch.stack(low, 1).clamp_min(-most)
    largest = torch.stack(high, 1).clamp_max(most)
    middle = (least + largest) / 2
    fits = least <= largest
    return least.where(fits, middle), largest.where(fits, middle)


@dataclass(frozen=True)
class AffineRanges:
    """Ranges of random affine transforms, which are uniformly distributed; the defaults
    are those of affNIST.

    Attributes:
        rotation: up to this many degrees to either side.
        shear: up to this to either side.
        scale: between these, in x and in y independently.
        shift: up to this many pixels in x and in y, as far as the digit stays on its
            canvas.

    Example:
        >>> from torchcaps_lab.data import AffineRanges, apply_affine
        >>> images = torch.zeros(4, 1, 40, 40, dtype=torch.uint8)
        >>> images[:, :, 15:25, 18:22] = 255
        >>> apply_affine(images, AffineRanges(rotation=20.0).draw(images)).shape
        torch.Size([4, 1, 40, 40])
    """

    rotation: float = 20.0
    shear: float = 0.2
    scale: tuple[float, float] = (0.8, 1.2)
    shift: float = 8.0

    def draw(self, images: Tensor, seed: int = TEST_SEED) -> Affine:
        """Draw a random transform for each of the images, uint8 (N, C, H, W)."""
        rotation, shear, *shares = torch.rand(
            6, len(images), generator=torch.Generator().manual_seed(seed)
        )
        share = torch.stack(shares, 1)
        low, high = self.scale
        affine = Affine(
            (2 * rotation - 1) * self.rotation,
            (2 * shear - 1) * self.shear,
            low + share[:, :2] * (high - low),
            share,
        )
        least, largest = shift_limits(images, affine.matrix, self.shift)
        return affine._replace(shift=least + share[:, 2:] * (largest - least))


def _side(images: Tensor) -> int:
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise ValueError(
            f"images must be (N, C, H, W) and square, got shape {tuple(images.shape)}"
        )
    return images.shape[2]
