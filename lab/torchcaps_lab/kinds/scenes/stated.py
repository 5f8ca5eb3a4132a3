"""Sizes that annotations state for their pictures, compared with the pictures: a resize
and a turn are followed.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.spec import is_finite
from torchcaps_lab.data.transforms.steps import nearest
from torchcaps_lab.look import number_in

_MIRRORED = {5: (0, 0), 6: (1, 0), 7: (1, 1), 8: (0, 1)}
"""How a picture with this EXIF orientation is turned upright: rows become columns, and
then it is mirrored across, or down, where there is a 1. Only these orientations swap the
sides, so that a stated size shows which of both frames is meant.
"""


class Frame(NamedTuple):
    """The frame that an annotation was made in, and that of the upright picture.

    Args:
        stated: width and height in the annotation.
        shown: width and height of the upright picture.
        turn: the EXIF orientation of the picture, if the annotation was made without
            it; else 1.
    """

    stated: tuple[int, int]
    shown: tuple[int, int]
    turn: int = 1

    def boxes(self, boxes: Tensor) -> Tensor:
        """Bring boxes (K, 4), left, top, right and bottom in pixels, from the stated
        frame to that of the picture.
        """
        if self.stated == self.shown and self.turn == 1:
            return boxes
        corners = boxes.view(-1, 2, 2) / torch.tensor(self.stated, dtype=boxes.dtype)
        if self.turn in _MIRRORED:
            mirrored = torch.tensor(_MIRRORED[self.turn], dtype=torch.bool)
            corners = corners.flip(-1)
            corners = torch.where(mirrored, 1 - corners, corners)
        corners = corners * torch.tensor(self.shown, dtype=boxes.dtype)
        return torch.cat([corners.amin(1), corners.amax(1)], 1)

    def mask(self, mask: Tensor) -> Tensor:
        """Bring a mask, uint8 (H, W), from the stated frame to that of the picture: the
        nearest pixel of each.
        """
        if self.turn in _MIRRORED:
            across, down = _MIRRORED[self.turn]
            mask = mask.mT.flip([-1] * across + [-2] * down)
        if (*mask.shape,) == self.shown[::-1]:
            return mask
        return nearest(mask, *self.shown[::-1])


def frame_of(
    stated: tuple[int, int] | None,
    shown: tuple[int, int],
    turn: int,
    source: Path,
    picture: Path,
) -> Frame:
    """Return the frame of annotations.

    The same shape in another size is a picture that was resized after it was annotated,
    or before. Swapped sides of a picture that its EXIF data turn are those of the
    picture before the turn.

    Args:
        stated: width and height in the annotation; None if it states none.
        shown: width and height of the upright picture.
        turn: the EXIF orientation of the picture.
        source: the file of the annotation, for messages.
        picture: likewise.

    Raises:
        ValueError: the stated size has another shape; names the files and both sizes.
    """
    if stated is None or stated == shown:
        return Frame(shown, shown)
    if turn in _MIRRORED and _same_shape(stated, shown[::-1]):
        return Frame(stated, shown, turn)
    if _same_shape(stated, shown):
        return Frame(stated, shown)
    raise ValueError(
        f"{source} states {stated[1]} x {stated[0]} pixels (height x width), its "
        f"picture {picture} has {shown[1]} x "
        f"{shown[0]}: neither a resize nor a turn leads from one to the other"
    )


def stated_size(width: Any, height: Any) -> tuple[int, int] | None:
    """Return a stated width and height as numbers; None where both are missing or 0, as
    some tools write.

    Args:
        width: a number, or the text of one.
        height: likewise.

    Raises:
        ValueError: one of them is no whole number of at least 1.
    """
    sides = [_side(width), _side(height)]
    if sides in ([None, None], [0, 0]):
        return None
    if all(is_finite(side) and side >= 1 and side == int(side) for side in sides):
        wide, high = map(int, sides)
        return wide, high
    raise ValueError(
        f"width and height must be whole numbers, 1 or more, got {width!r:.40} and "
        f"{height!r:.40}"
    )


def _side(stated: Any) -> Any:
    """A stated side as a number; as it came if it is none."""
    if isinstance(stated, str):
        with suppress(ValueError):
            return number_in(stated.strip())
    return stated


def _same_shape(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether one is the other, resized, with sides rounded in any way."""
    return any(
        abs(wide * by_high - high * by_wide) < max(by_wide, by_high)
        for (wide, high), (by_wide, by_high) in ((first, second), (second, first))
    )
