"""Digits side by side."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps_lab.data.examples import Examples


class Scenes(NamedTuple):
    """Images of several different digits each.

    Args:
        images: uint8 (N, C, rows H, columns W).
        present: which digits an image shows, bool (N, E).

    Example:
        >>> from torchcaps_lab.data import Digits, arrange
        >>> scenes = arrange(Digits().test, layout=(1, 2), count=4)
        >>> scenes.images.shape, scenes.present.shape
        (torch.Size([4, 1, 8, 16]), torch.Size([4, 10]))
    """

    images: Tensor
    present: Tensor

    @staticmethod
    def layouts() -> dict[str, tuple[int, int]]:
        """Return the rows and columns of digits side by side, by name."""
        return {
            "one above the other": (2, 1),
            "side by side": (1, 2),
            "three in a row": (1, 3),
            "2 x 2": (2, 2),
            "five in a row": (1, 5),
        }


def arrange(
    digits: Examples,
    layout: tuple[int, int],
    count: int,
    seed: int = 0,
) -> Scenes:
    """Place digits side by side; those of one image have different classes.

    Args:
        digits: where they come from.
        layout: rows and columns.
        count: how many images.
        seed: the seed of the choice.

    Raises:
        ValueError: if there are fewer classes than places.
    """
    (rows, columns), classes = layout, len(digits.classes)
    places = rows * columns
    if places > classes:
        raise ValueError(
            f"layout {layout} needs {places} different classes, there are {classes}"
        )
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(count, classes, generator=generator).argsort(1)
    chosen = order[:, :places]  # [N, places] labels
    rank = torch.rand(count, places, generator=generator)
    members = [
        (digits.labels == label).nonzero().squeeze(1) for label in range(classes)
    ]
    sizes = torch.tensor([len(rows_of_class) for rows_of_class in members])
    picked = (rank * sizes[chosen]).long()
    index = torch.nn.utils.rnn.pad_sequence(members, batch_first=True)[chosen, picked]
    tiles = digits.inputs[index].unflatten(1, layout)  # [N, rows, columns, C, H, W]
    images = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    return Scenes(images, F.one_hot(chosen, classes).sum(1).bool())
