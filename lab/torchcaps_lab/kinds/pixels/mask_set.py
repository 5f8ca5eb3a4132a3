"""Images with a class for each pixel, and the squares that a network learns from."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchcaps_lab.data.examples import Batch, Composition, Examples
from torchcaps_lab.data.transforms.draws import random_integers

NO_CLASS = 255
"""The label of pixels that count for nothing, and of the margins of smaller pictures.
"""


@dataclass(frozen=True)
class Cuts(Composition):
    """Random squares of images and, in the same places, of their labels; mirrored and
    turned by quarters.

    Args:
        size: side of a square, in pixels.
        count: the number of squares from each image.

    Example:
        >>> from torchcaps_lab.data import Cuts
        >>> Cuts(size=32, count=4).image_shape((1, 64, 96))
        (1, 32, 32)
    """

    size: int
    count: int = 1

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """The same channels, the side of a square."""
        return raw[0], self.size, self.size

    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        """``count`` squares of each image, one after the other."""
        indices = batch.indices
        numbers = torch.arange(self.count, device=indices.device)
        places = (indices[:, None] * self.count + numbers).flatten()
        draws = random_integers(seed, epoch, places.cpu()).tolist()
        images, labels = (
            torch.stack(
                [
                    self._cut(part[place // self.count], draw)
                    for place, draw in enumerate(draws)
                ]
            )
            for part in (batch.inputs, batch.labels)
        )
        indices = indices.repeat_interleave(self.count)
        return batch._replace(
            inputs=images, labels=labels, indices=indices, pictures=images
        )

    def _cut(self, part: Tensor, draw: int) -> Tensor:
        for axis in (-2, -1):
            draw, start = divmod(draw, part.shape[axis] - self.size + 1)
            part = part.narrow(axis, start, self.size)
        part = part.flip(-1) if draw & 1 else part
        part = part.flip(-2) if draw & 2 else part
        return part.mT if draw & 4 else part


@dataclass(frozen=True, eq=False)
class MaskSet(Examples):
    """Images whose labels are masks: uint8 (N, H, W), the class of each pixel, 255 for
    none.

    Batches have them as int64 (B, H, W).

    Example:
        >>> from torchcaps_lab.data import MaskSet
        >>> masks = torch.zeros(2, 8, 8, dtype=torch.uint8)
        >>> MaskSet(masks[:, None], masks, classes=("sky", "ground"))[0].labels.shape
        torch.Size([1, 8, 8])
    """

    def _check_labels(self) -> None:
        size = (len(self.inputs), *self.inputs.shape[2:])
        labels = self.labels
        if labels.dtype != torch.uint8 or labels.shape != size:
            raise ValueError(
                f"labels must be uint8 {size}, one a pixel, got {labels.dtype} "
                f"{tuple(labels.shape)}"
            )
        if bool(((labels >= len(self.classes)) & (labels != NO_CLASS)).any()):
            raise ValueError(
                f"labels must be in 0..{len(self.classes) - 1}, or {NO_CLASS} for none"
            )
        if (
            isinstance(self.composition, Cuts)
            and len(self)
            and self.composition.size > min(size[1:])
        ):
            raise ValueError(
                f"cut must be at most {min(size[1:])} for images of {size[1]} x "
                f"{size[2]}"
            )

    def labelled(self, labels: Tensor) -> Tensor:
        """The labels of pixels that are of a class."""
        return labels[labels != NO_CLASS]

    def counts(self) -> dict[str, int]:
        """How many pictures have pixels of each class, by its name."""
        counts = dict.fromkeys(self.classes, 0)
        for mask in self.labels:
            for label in mask.unique().tolist():
                if label != NO_CLASS:
                    counts[self.classes[label]] += 1
        return counts

    def _used_labels(self) -> list[int]:
        return [label for label in self.labels.unique().tolist() if label != NO_CLASS]

    def _relabelled(self, places: Tensor, classes: tuple[str, ...]) -> Examples:
        table = torch.full(
            (NO_CLASS + 1,), NO_CLASS, dtype=torch.uint8, device=places.device
        )
        table[: len(places)] = places.to(torch.uint8)
        return replace(self, labels=table[self.labels.long()], classes=classes)

    def _fetch(self, indices: list[int]) -> Batch:
        batch = super()._fetch(indices)
        return batch._replace(labels=batch.labels.long())
