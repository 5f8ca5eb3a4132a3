"""Data sets that published figures of slots are measured on, drawn here from their
published descriptions (Kabra et al. 2019, "Multi-Object Datasets").
"""

from typing import Annotated

import torch
from torch import Tensor

from torchcaps.numerics import Size
from torchcaps.spec import Within, settings
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.kinds.objects.sets import (
    DrawnObjects,
    ObjectSet,
    SlotCount,
    SomeObjects,
    slot_names,
)

_BLOCK = 5
"""Pixels along the side of one of the four blocks of a tetromino."""

_BOARD = 35
_TETROMINOES = 3

_ONE_SIDED = ("##/##", "###/.#.", ".##/##.", "##./.##", "###/#..", "###/..#")
"""The tetrominoes O, T, S, Z, L and J."""

_SIX_COLOURS = 255 * torch.tensor(
    [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]],
    dtype=torch.uint8,
)

_SPRITES = ("square", "ellipse", "heart")
_SIDE = 64


@register_dataset("tetrominoes")
@settings
class Tetrominoes(DrawnObjects):
    """Three tetrominoes that do not overlap, on a black ground, 35x35 pixels.

    A tetromino has one of 17 shapes (all fixed ones but the two of I) and one of six
    colours, and its four blocks have a side of 5 pixels. It lies anywhere in the
    picture. Training images are always the same, and so are the test images, whatever
    the seed.

    Args:
        slots: the number of slots that networks get.
        count: the number of training images, those for validation among them.
        tests: the number of test images. Published figures are of 320.

    Source: Kabra et al. 2019, "Multi-Object Datasets", which says neither which 17 of
    the 19 fixed tetrominoes there are nor how they are placed.

    Example:
        >>> from torchcaps_lab.data import Tetrominoes
        >>> images = Tetrominoes(count=20, tests=10).train
        >>> images.inputs.shape, images.labels.unique()
        (torch.Size([18, 3, 35, 35]), tensor([0, 1, 2, 3], dtype=torch.uint8))
    """

    slots: Annotated[SlotCount, Within(_TETROMINOES + 1)] = 4
    count: Size = 60_000
    tests: Size = 320

    def _drawn(self, count: int, seed: int) -> ObjectSet:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.zeros(count, _BOARD, _BOARD, dtype=torch.uint8)
        unplaced = torch.arange(count)
        # Rejection sampling: pictures whose tetrominoes overlap are drawn again.
        while len(unplaced):
            drawn, overlap = _boards(len(unplaced), generator)
            labels[unplaced[~overlap]] = drawn[~overlap]
            unplaced = unplaced[overlap]
        colours = torch.randint(
            len(_SIX_COLOURS), (count, _TETROMINOES), generator=generator
        )
        images = painted(labels, torch.zeros(count, 3).byte(), _SIX_COLOURS[colours])
        return ObjectSet(images, labels, slot_names(self.slots))


def _boards(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the tetromino of each pixel, uint8 (N, H, W), 0 for none, and whether any
    two of a picture overlap, bool (N,).
    """
    shapes = fixed_tetrominoes()
    labels = torch.zeros(count, _BOARD, _BOARD, dtype=torch.uint8)
    overlap = torch.zeros(count, dtype=torch.bool)
    for number in range(1, _TETROMINOES + 1):
        kinds = torch.randint(len(shapes), (count,), generator=generator)
        chances = torch.rand(2, count, generator=generator)
        for kind, shape in enumerate(shapes):
            mine = torch.nonzero(kinds == kind)[:, 0]
            rows, columns = shape.shape
            # Corners from 0 to the last that keeps the shape inside the picture.
            top = (chances[0, mine] * (_BOARD - rows + 1)).long()
            left = (chances[1, mine] * (_BOARD - columns + 1)).long()
            down, across = torch.nonzero(shape, as_tuple=True)
            # One index for each covered pixel of each picture, (n, 4 * 25).
            place = (mine[:, None], top[:, None] + down, left[:, None] + across)
            overlap[mine] |= (labels[place] > 0).any(1)
            labels[place] = number
    return labels, overlap


def fixed_tetrominoes() -> list[Tensor]:
    """Make the 17 shapes: each turned by quarters, without repetition; bool (H, W)."""
    shapes: list[Tensor] = []
    for rows in _ONE_SIDED:
        blocks = torch.tensor(
            [[block == "#" for block in row] for row in rows.split("/")]
        )
        for quarter in range(4):
            turned = blocks.rot90(quarter)
            if not any(turned.equal(shape) for shape in shapes):
                shapes.append(turned)
    return [
        shape.repeat_interleave(_BLOCK, 0).repeat_interleave(_BLOCK, 1)
        for shape in shapes
    ]


@register_dataset("multi_dsprites")
@settings
class MultiDSprites(SomeObjects):
    """Two to five sprites that overlap, coloured on a coloured ground, 64x64 pixels.

    A sprite is a square, an ellipse or a heart of any orientation, of one of six sizes,
    and of any colour, as in dSprites. Later ones cover earlier ones. Training images
    are always the same, and so are the test images, whatever the seed.

    Args:
        least: the least number of sprites of an image.
        most: the largest number of sprites of an image.
        slots: the number of slots that networks get. Default: ``most`` + 1.
        count: the number of training images, those for validation among them.
        tests: the number of test images. Published figures are of 320.

    Raises:
        ValueError: if ``least`` is more than ``most``, or that is more than there are
            slots for.

    Source: Kabra et al. 2019, "Multi-Object Datasets"; Matthey et al. 2017, "dSprites".

    Example:
        >>> from torchcaps_lab.data import MultiDSprites
        >>> data = MultiDSprites(count=20, tests=10)
        >>> data.train.inputs.shape, len(data.classes)
        (torch.Size([18, 3, 64, 64]), 6)
    """

    least: Size = 2
    most: Annotated[int, Within(1, 253)] = 5
    slots: SlotCount | None = None
    count: Size = 20_000
    tests: Size = 320

    def _drawn(self, count: int, seed: int) -> ObjectSet:
        generator = torch.Generator().manual_seed(seed)
        colours = torch.randint(
            256, (count, self.most + 1, 3), dtype=torch.uint8, generator=generator
        )
        number = torch.randint(
            self.least, self.most + 1, (count, 1, 1), generator=generator
        )
        labels = torch.zeros(count, _SIDE, _SIDE, dtype=torch.uint8)
        for sprite in range(self.most):
            inside = _sprites(count, generator) & (sprite < number)
            labels = torch.where(inside, sprite + 1, labels).to(torch.uint8)
        images = painted(labels, colours[:, 0], colours[:, 1:])
        return ObjectSet(images, labels, self.slot_names)


def _sprites(count: int, generator: torch.Generator) -> Tensor:
    """Draw the pixels of one sprite in each image, bool (N, H, W)."""
    kind = torch.randint(len(_SPRITES), (count, 1, 1), generator=generator)
    scale = 0.5 + 0.1 * torch.randint(6, (count, 1, 1), generator=generator)
    angle = 2 * torch.pi * torch.rand(count, 1, 1, generator=generator)
    # Centres keep a quarter of the largest sprite inside the picture.
    centre = 0.1 + 0.8 * torch.rand(2, count, 1, 1, generator=generator)
    places = (torch.arange(_SIDE) + 0.5) / _SIDE
    down, across = places[:, None] - centre[0], places - centre[1]
    # Coordinates of the sprite: turned, and in units of 11 pixels at full size.
    unit = scale * 11 / _SIDE
    x = (angle.cos() * across + angle.sin() * down) / unit
    y = (angle.cos() * down - angle.sin() * across) / unit
    square = torch.maximum(x.abs(), y.abs()) < 0.8
    ellipse = (x / 0.65).square() + y.square() < 1
    # The curve (x^2 + y^2 - 1)^3 = x^2 y^3, in image coordinates upside down.
    wide, high = 1.15 * x, 0.1 - 1.15 * y
    heart = (wide.square() + high.square() - 1) ** 3 < wide.square() * high**3
    return torch.where(kind == 0, square, torch.where(kind == 1, ellipse, heart))


def painted(labels: Tensor, ground: Tensor, colours: Tensor) -> Tensor:
    """Paint objects in their colours.

    Args:
        labels: the object of each pixel, uint8 (N, H, W); 0 is the ground.
        ground: the colour of the ground, uint8 (N, 3).
        colours: those of objects 1, 2, ..., uint8 (N, K, 3).

    Returns:
        Images, uint8 (N, 3, H, W).
    """
    palette = torch.cat([ground[:, None], colours], 1)
    pixels = labels.flatten(1).long()[..., None].expand(-1, -1, 3)
    return palette.gather(1, pixels).mT.unflatten(2, labels.shape[1:]).contiguous()
