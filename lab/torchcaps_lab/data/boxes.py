"""Boxes around the ink of pictures."""

import torch
from torch import Tensor

from torchcaps_lab.data.examples import Parts

INK = 0.25
"""Pixels that are at least this bright belong to a digit."""


def ink_boxes(pictures: Tensor) -> Tensor:
    """The smallest boxes around all bright pixels: left, top, right, bottom; pixel k
    covers [k, k + 1].

    Args:
        pictures: (..., C, H, W).

    Returns:
        float32 (..., 4), zeros if nothing is bright.
    """
    brightest = pictures.amax(-3)
    sides = []
    # Over the rows, which leaves the columns; then the other way round.
    for axis in (-2, -1):
        seen = brightest.amax(axis) >= INK
        low = seen.int().argmax(-1)
        high = seen.shape[-1] - seen.flip(-1).int().argmax(-1)
        sides.append((low * seen.any(-1), high * seen.any(-1)))
    (left, right), (top, bottom) = sides
    return torch.stack([left, top, right, bottom], -1).float()


def class_boxes(parts: Parts, classes: int) -> Tensor:
    """Return the box of each class in a scene without repeats, float32 (B, E, 4), see
    :func:`ink_boxes`; zeros if absent.
    """
    boxes = ink_boxes(parts.pictures)
    return boxes.new_zeros(len(boxes), classes, 4).scatter(
        1, parts.labels[..., None].expand(-1, -1, 4), boxes
    )
