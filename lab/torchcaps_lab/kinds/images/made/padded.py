"""Data sets on larger canvases."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from torchcaps.numerics import check_size
from torchcaps_lab.data.base import TEST_SEED, DataSet
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.transforms.changes import RandomShift
from torchcaps_lab.data.transforms.draws import Draws
from torchcaps_lab.kinds.images.made.base import MadeOf, Part


class Padded(MadeOf):
    """A data set on larger, black canvases: in the middle to train on, placed at random
    to validate and test on.

    To move training images too, set ``shift`` in the option ``preprocess`` of
    ``torchcaps train`` to ``pad``. Validation and test images have fixed random places,
    the same for every seed; all (2 pad + 1)^2 places are equally likely.

    Args:
        data: the data set; which images are put aside for validation is its affair.
        pad: width of the border on each side, in pixels.

    Raises:
        ValueError: `pad` is negative.

    Example:
        >>> from torchcaps_lab.data import Digits, Padded
        >>> Padded(Digits(), pad=2).test.inputs.shape
        torch.Size([359, 1, 12, 12])
    """

    def __init__(self, data: DataSet, pad: int = 6) -> None:
        super().__init__(data)
        check_size(0, pad=pad)
        self.pad = pad

    def made(self, images: Examples, part: Part) -> Examples:
        """The images on their canvases."""
        canvas = on_canvas(images, self.pad)
        if part == "train":
            return canvas
        return placed(canvas, self.pad, draw=int(part == "validation"))

    def centred_test(self) -> Examples:
        """Read the test images, each in the middle of its canvas."""
        return on_canvas(self.data.test, self.pad)


def on_canvas(images: Examples, pad: int) -> Examples:
    """The same images with a black border of ``pad`` pixels on each side."""
    return replace(images, inputs=F.pad(images.inputs, (pad,) * 4))


def placed(images: Examples, most: int, draw: int) -> Examples:
    """The same images, each moved by up to ``most`` pixels in x and in y; each ``draw``
    gives other moves.
    """
    # Bytes: whole pixels are moved, and nothing is computed.
    draws = Draws(TEST_SEED, torch.arange(len(images)), draw)
    return replace(images, inputs=RandomShift(most).changed(images.inputs, draws))
