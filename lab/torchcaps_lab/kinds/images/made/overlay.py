"""Pairs of digits, one on top of the other."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps_lab.data.base import DataSet
from torchcaps_lab.data.boxes import ink_boxes
from torchcaps_lab.data.examples import Batch, Composition, Examples, Parts
from torchcaps_lab.data.transforms.draws import random_integers
from torchcaps_lab.data.transforms.steps import windows
from torchcaps_lab.kinds.images.made.base import MadeOf, Part, by_class, check_single


class Overlaid(NamedTuple):
    """Digits of two different classes, one on top of the other.

    Args:
        images: the images of both, (B, C, H, W) in [0, 1]: the sum, clipped.
        parts: each alone, (B, 2, C, H, W).
        labels: the labels of each, int64 (B, 2).

    Example:
        >>> from torchcaps_lab.data import Digits, Overlay, fixed_pairs
        >>> overlaid = fixed_pairs(
        ...     Overlay(Digits().test, size=12, shift=2), count=4, seed=0
        ... )
        >>> overlaid.images.shape, overlaid.parts.shape, overlaid.labels.shape
        (torch.Size([4, 1, 12, 12]), torch.Size([4, 2, 1, 12, 12]), torch.Size([4, 2]))
    """

    images: Tensor
    parts: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Overlay(Composition):
    """Lay each digit on another of a different class, both moved at random.

    As a composition of the digits that it lies on, it makes other pairs in each epoch.

    Source: Sabour, Frosst & Hinton 2017, section 6.1: shifts up to 4 pixels on 36 x 36,
    so that the bounding boxes of the two overlap by 80 % on average.

    Args:
        digits: where the other digits come from.
        size: height and width of the images, at least that of the digits.
        shift: how far each digit is moved from the centre in x and in y at most, in
            pixels.

    Raises:
        ValueError: if a digit could be moved off the image.

    Example:
        >>> from torchcaps_lab.data import Digits, Overlay
        >>> overlay = Overlay(Digits().test, size=12, shift=2)
        >>> overlay.image_shape((1, 8, 8))
        (1, 12, 12)
    """

    digits: Examples
    size: int = 36
    shift: int = 4

    def __post_init__(self) -> None:
        check_single(self.digits)
        height, width = self.digits.raw_image_shape[1:]
        if not 0 <= self.shift <= (self.size - max(height, width)) // 2:
            raise ValueError(
                f"shift must be from 0 to {(self.size - max(height, width)) // 2} for "
                f"digits of {height} x {width} on "
                f"{self.size} x {self.size}, got {self.shift}"
            )

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """The same channels, of the full size."""
        return raw[0], self.size, self.size

    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        """Pairs (B, C, H, W) with masks of their two classes; their parts are the
        digits, that of the set first.
        """
        side = 2 * self.shift + 1
        drawn = random_integers(seed, epoch, batch.indices)
        # Down and right of the digit, down and right of the other one.
        moves = []
        for _ in range(4):
            moves.append(drawn % side)
            drawn = drawn // side
        pairs = torch.stack(moves).unflatten(0, (2, 2))
        draws = pairs.permute(1, 2, 0).flatten(1)  # [2, 2 B]
        share = (drawn % 2**24).double() / 2**24
        images, parts, labels = self._pairs(
            batch.inputs, batch.labels, share.cpu(), draws.cpu()
        )
        mask = F.one_hot(labels, len(self.digits.classes)).sum(1).bool()
        return batch._replace(
            inputs=images, pictures=images, labels=mask, parts=Parts(labels, parts)
        )

    def draw(
        self,
        images: Tensor,
        labels: Tensor,
        generator: torch.Generator,
    ) -> Overlaid:
        """Overlays digits (B, C, h, w) in [0, 1]; the generator, on the CPU, draws the
        other digits and the shifts.
        """
        share = torch.rand(len(labels), generator=generator)
        size = (2, 2 * len(labels))
        draws = torch.randint(2 * self.shift + 1, size, generator=generator)
        return self._pairs(images, labels, share, draws)

    def _pairs(
        self,
        images: Tensor,
        labels: Tensor,
        share: Tensor,
        draws: Tensor,
    ) -> Overlaid:
        """Overlays digits; ``share`` in [0, 1), (B,), chooses the others, ``draws``,
        int64 (2, 2 B), the shifts.
        """
        chosen = self._digits_of_other_classes(labels.cpu(), share)
        chosen = chosen.to(self.digits.inputs.device)
        second_images = self.digits.inputs[chosen].to(images) / 255
        second_labels = self.digits.labels[chosen].to(labels)
        both = torch.stack([images, second_images], 1)  # [B, 2, C, h, w]
        moved = self._moved(both.flatten(0, 1), draws.to(images.device))
        parts = moved.unflatten(0, both.shape[:2])
        pairs = torch.stack([labels, second_labels], 1)
        return Overlaid(parts.sum(1).clamp(max=1), parts, pairs)

    def _digits_of_other_classes(self, labels: Tensor, share: Tensor) -> Tensor:
        """A digit of another class for each label, all equally likely: int64 (B,)."""
        order, counts = self._by_class
        first = counts.cumsum(0) - counts
        rank = (share * (len(order) - counts[labels])).long()
        # Skips the digit's own class.
        rank = torch.where(rank >= first[labels], rank + counts[labels], rank)
        return order[rank.clamp(max=len(order) - 1)]

    @cached_property
    def _by_class(self) -> tuple[Tensor, Tensor]:
        return by_class(self.digits)

    def _moved(self, digits: Tensor, draws: Tensor) -> Tensor:
        """Digits (N, C, h, w), shifted, on images of the full size, (N, C, H, W)."""
        height, width = digits.shape[2:]
        reach = self.size - height, self.size - width
        padded = F.pad(digits, (reach[1], reach[1], reach[0], reach[0]))
        down, right = (
            extent - extent // 2 - self.shift + draw
            for extent, draw in zip(reach, draws, strict=True)
        )
        return windows(padded, (self.size, self.size), down, right)


class Pairs(MadeOf):
    """Pairs of overlaid digits of different classes, both to be recognised.

    Training pairs are made anew in each epoch; validation and test pairs are always the
    same, made of validation and test digits only.

    Args:
        data: the digits.
        size: see :class:`Overlay`.
        shift: likewise.

    Raises:
        ValueError: if a digit could be moved off the image.

    Example:
        >>> from torchcaps_lab.data import Digits, Pairs
        >>> pairs = Pairs(Digits(), size=12, shift=2)
        >>> batch = pairs.test.__getitems__([0, 1])
        >>> batch.inputs.shape, batch.labels.sum(1)  # two digits in each
        (torch.Size([2, 1, 12, 12]), tensor([2, 2]))
    """

    task: ClassVar[Mapping[str, Any]] = {"name": "several_labels", "count": 2}

    def __init__(self, data: DataSet, size: int = 36, shift: int = 4) -> None:
        super().__init__(data)
        self.size = size
        self.shift = shift

    def made(self, images: Examples, part: Part) -> Examples:
        """The digits, each with another one of the same part; to train on, with others
        in each epoch.
        """
        return replace(images, composition=Overlay(images, self.size, self.shift))


def fixed_pairs(overlay: Overlay, count: int, seed: int) -> Overlaid:
    """Return a fixed set of ``count`` pairs: the digits in their order, repeatedly,
    each with a random other one.
    """
    indices = torch.arange(count) % len(overlay.digits)
    images = overlay.digits.inputs[indices].float() / 255
    return overlay.draw(
        images, overlay.digits.labels[indices], torch.Generator().manual_seed(seed)
    )


def bounding_box_overlap(parts: Tensor) -> Tensor:
    """Return the overlap of the bounding boxes of two digits, intersection over the
    smaller box, (B,).

    Args:
        parts: each digit alone, (B, 2, C, H, W).
    """
    low, high = ink_boxes((parts > 0).float()).split(2, -1)  # [B, 2, 2]
    common = (high.amin(1) - low.amax(1)).clamp(min=0).prod(-1)
    return common / (high - low).prod(-1).amin(1).clamp(min=1)
