"""Scenes: several digits of different classes and sizes anywhere on a large canvas,
among bits of other digits.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.numerics import Share, check_series, check_size
from torchcaps.spec import check
from torchcaps_lab.data.base import DataSet
from torchcaps_lab.data.boxes import INK, ink_boxes
from torchcaps_lab.data.examples import Batch, Composition, Examples, Parts
from torchcaps_lab.data.transforms.draws import random_integers
from torchcaps_lab.kinds.images.made.base import MadeOf, Part, by_class, check_single
from torchcaps_lab.look import Fit

# Places tried for a digit: the first that covers no other digit, or the one that covers
# least
_CANDIDATES = 24
# Side of a bit of clutter, as a share of the digit's image that it is cut out of
_BIT = 0.35


class _Draws:
    """Uniform numbers in [0, 1) for each image of a batch, which depend on seed, epoch
    and index of the image.
    """

    def __init__(self, seed: int, epoch: int, indices: Tensor, most: int) -> None:
        places = indices[:, None] * most + torch.arange(most, device=indices.device)
        self.numbers = (random_integers(seed, epoch, places) % 2**24).float() / 2**24
        self.used = 0

    def __call__(self, *shape: int) -> Tensor:
        """The next numbers, (B, *shape)."""
        count = math.prod(shape)
        self.used += count
        return self.numbers[:, self.used - count : self.used].unflatten(1, shape)


class _Place(NamedTuple):
    """Where pictures (B, K) go on the canvas.

    Args:
        corner: top and left of the ink in the pictures, in their pixels, (B, K, 2).
        target: where that corner goes, in pixels of the canvas, (B, K, 2).
        scale: pixels of the canvas for one pixel of the picture, (B, K).
    """

    corner: Tensor
    target: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Scenery(Composition):
    """Puts each digit on a canvas together with other digits, all of random sizes in
    random places.

    Digits do not overlap if there is room. Clutter, square bits of any digits, lies
    between and over them. The parts of a scene are ``most`` digits, each alone on the
    canvas; absent ones are black. Digits, sizes, places and clutter of a scene depend
    only on the seed, the epoch and the index of its digit.

    Args:
        digits: source of the other digits and the clutter.
        canvas: height and width of the scenes, in pixels.
        least: how many digits a scene has at least; 0 makes scenes of clutter alone,
            too.
        most: how many at most; all numbers between are equally likely.
        smallest: least length of the longer side of a digit's ink, in pixels.
        largest: greatest length of it; logarithms of sizes are uniformly distributed.
        clutter: how many bits of digits.
        repeats: whether a scene may have several digits of a class.
        twins: share of scenes whose second digit, if they have one, is of the class of
            the first.

    Attributes:
        ink: the brightness from which on a pixel belongs to a digit.

    Raises:
        ValueError: if a number is out of range, or there are fewer classes than digits
            in a scene.

    Source: the clutter as in Mnih et al. 2014, "Recurrent Models of Visual Attention",
    section 4.1.

    Example:
        >>> from torchcaps_lab.data import Digits, Scenery
        >>> scenery = Scenery(Digits().test, canvas=(64, 64), most=3)
        >>> scenery.image_shape((1, 8, 8))
        (1, 64, 64)
    """

    digits: Examples
    canvas: tuple[int, int] = (96, 96)
    least: int = 1
    most: int = 4
    smallest: float = 20.0
    largest: float = 40.0
    clutter: int = 8
    repeats: bool = False
    twins: float = 0.0

    ink: ClassVar[float] = INK

    def __post_init__(self) -> None:
        check_single(self.digits)
        if len(self.digits):
            classes = len(self.digits.labels.unique())
        else:
            classes = len(self.digits.classes)
        if not self.least <= self.most <= classes:
            raise ValueError(
                f"least and most must be 0 <= least <= most <= {classes}, the number "
                "of classes that there are digits "
                f"of, got {self.least} and {self.most}"
            )
        _check_numbers(self)

    @property
    def several(self) -> bool:
        """Whether a scene may have several digits of a class."""
        return self.repeats or self.twins > 0

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """The same channels, on the canvas."""
        return raw[0], *self.canvas

    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        """Scenes (B, C, H, W) with masks of their classes; their parts are the digits,
        that of the batch first.
        """
        classes = len(self.digits.classes)
        each = 3 + 2 * _CANDIDATES + self.repeats
        most = classes + 1 + self.most * each + 7 * self.clutter + (self.twins > 0)
        draws = _Draws(seed, epoch, batch.indices, most)
        labels, pictures = self._chosen(batch, draws)
        present = torch.arange(self.most, device=labels.device) < self._counts(draws(1))
        parts = self._drawn(pictures, self._placed(pictures, present, draws))
        parts = parts * present[:, :, None, None, None]
        scenes = parts.amax(1)
        if self.clutter:
            scenes = torch.maximum(scenes, self._clutter(draws).to(scenes))
        mask = (F.one_hot(labels, classes).bool() & present[..., None]).any(1)
        return batch._replace(
            inputs=scenes, pictures=scenes, labels=mask, parts=Parts(labels, parts)
        )

    def _counts(self, share: Tensor) -> Tensor:
        return self.least + (share * (self.most - self.least + 1)).long()

    def _chosen(self, batch: Batch, draws: _Draws) -> tuple[Tensor, Tensor]:
        """Labels (B, K), all different unless they repeat, and digits (B, K, C, h, w);
        the first are the batch's.
        """
        order, counts = (part.to(batch.labels.device) for part in self._by_class)
        # The digit's own class first, classes without digits last.
        rank = draws(len(counts)).scatter(1, batch.labels[:, None], -1.0)
        labels = (rank + (counts == 0)).argsort(1)[:, : self.most]
        if self.repeats:
            present_labels = counts.nonzero().flatten()
            any_labels = present_labels[(draws(self.most) * len(present_labels)).long()]
            labels = torch.cat([labels[:, :1], any_labels[:, 1:]], 1)
        if self.twins and self.most > 1:
            labels[:, 1] = labels[:, 0].where(draws(1)[:, 0] < self.twins, labels[:, 1])
        first = counts.cumsum(0) - counts
        numbers = first[labels] + (draws(self.most) * counts[labels]).long()
        pictures = self._digits(order[numbers]).to(batch.inputs)
        return labels, torch.cat([batch.inputs[:, None], pictures[:, 1:]], 1)

    def _digits(self, indices: Tensor) -> Tensor:
        """Digits in [0, 1], (*indices, C, h, w)."""
        images = self.digits.inputs
        return images[indices.to(images.device)].float() / 255

    @cached_property
    def _by_class(self) -> tuple[Tensor, Tensor]:
        return by_class(self.digits)

    def _placed(self, pictures: Tensor, present: Tensor, draws: _Draws) -> _Place:
        """Sizes and places of the digits (B, K, C, h, w), chosen one after the other so
        that they overlap least.
        """
        box = ink_boxes(pictures)
        corner = box[..., [1, 0]]
        extent = (box[..., 2:] - box[..., :2]).flip(-1).clamp_min(1)
        size = self.smallest * (self.largest / self.smallest) ** draws(self.most)
        scale = size / extent.amax(-1)
        extent = extent * scale[..., None]
        canvas = torch.tensor(self.canvas, dtype=extent.dtype, device=extent.device)
        free = (canvas - 2 - extent)[:, :, None]
        # [B, K, candidates, 2]
        candidates = 1 + draws(self.most, _CANDIDATES, 2) * free
        chosen: list[Tensor] = []
        for place in range(self.most):
            mine = candidates[:, place]
            side = extent[:, place, None]
            covered = torch.zeros_like(mine[..., 0])
            for earlier, corner_of_other in enumerate(chosen):
                end_of_other = corner_of_other + extent[:, earlier]
                low = torch.maximum(mine, corner_of_other[:, None])
                high = torch.minimum(mine + side, end_of_other[:, None])
                area = (high - low).clamp_min(0).prod(-1)
                covered = covered + area * present[:, earlier, None]
            rows = torch.arange(len(mine), device=mine.device)
            chosen.append(mine[rows, covered.argmin(1)])
        return _Place(corner, torch.stack(chosen, 1), scale)

    def _clutter(self, draws: _Draws) -> Tensor:
        """Bits of digits anywhere on the canvas, (B, C, H, W); the brightest wins at
        each pixel.
        """
        digits = (draws(self.clutter) * len(self.digits)).long()
        images = self.digits.inputs
        sides = torch.tensor(images.shape[-2:], device=digits.device)
        bit = (_BIT * sides).round().clamp_min(1).long()
        corner = (draws(self.clutter, 2) * (sides - bit + 1)).long()
        rows, columns = (
            corner[..., axis, None] + torch.arange(int(bit[axis]), device=sides.device)
            for axis in (0, 1)
        )
        index = (digits[..., None, None], rows[..., None], columns[..., None, :])
        digit, row, column = (part.to(images.device) for part in index)
        cut = images[digit, :, row, column].movedim(-1, 2)
        bits = cut.to(digits.device).float() / 255  # [B, bits, C, h, w]
        size = self.smallest * (self.largest / self.smallest) ** draws(self.clutter)
        scale = size / sides.max()
        canvas = torch.tensor(self.canvas, device=sides.device)
        target = draws(self.clutter, 2) * canvas - bit * scale[..., None] / 2
        place = _Place(torch.zeros_like(target), target, scale)
        return self._drawn(bits, place).amax(1)

    def _drawn(self, pictures: Tensor, place: _Place) -> Tensor:
        """Pictures (B, K, C, h, w) drawn in their places on the canvas, (B, K, C, H,
        W), in [0, 1].
        """
        rows, columns = (
            _weights(size, pictures.shape[axis - 2], place, axis).to(pictures)
            for axis, size in enumerate(self.canvas)
        )
        drawn = rows[:, :, None] @ pictures @ columns[:, :, None].mT
        return drawn.clamp_(max=1)  # where means overlap


def _check_numbers(scenes: "Scenery | DigitScenes") -> None:
    """Raises a `ValueError` if a number is out of range, whatever the digits are."""
    check_series(2, canvas=scenes.canvas)
    check_size(most=scenes.most)
    check_size(0, least=scenes.least, clutter=scenes.clutter)
    check(Share, scenes.twins, "twins")
    if scenes.least > scenes.most:
        raise ValueError(
            f"least and most must be 0 <= least <= most, got {scenes.least} and "
            f"{scenes.most}"
        )
    room = min(scenes.canvas) - 2
    if not 1 <= scenes.smallest <= scenes.largest <= room:
        raise ValueError(
            f"smallest and largest must be 1 <= smallest <= largest <= {room} for a "
            "canvas of "
            f"{scenes.canvas[0]} x {scenes.canvas[1]}, got {scenes.smallest:g} and "
            f"{scenes.largest:g}"
        )


def _weights(size: int, before: int, place: _Place, axis: int) -> Tensor:
    """Weights of the pixels of a picture for those of the canvas, along one axis: (B,
    K, size, before).

    Triangles as wide as a pixel of the larger grid: interpolation if a picture grows, a
    mean if it shrinks.
    """
    scale = place.scale[..., None]
    pixel = torch.arange(size, device=scale.device) + 0.5
    # [B, K, size]
    source = (pixel - place.target[..., axis, None]) / scale
    source = source + place.corner[..., axis, None]
    reach = (1 / scale).clamp_min(1)
    own = torch.arange(before, device=scale.device) + 0.5
    distance = (source / reach)[..., None] - own / reach[..., None]
    return distance.abs_().neg_().add_(1).clamp_min_(0).div_(reach[..., None])


class DigitScenes(MadeOf):
    """Several digits of different classes, of several sizes, anywhere on a large
    canvas, among clutter.

    Training scenes are made anew in each epoch, one around each digit; validation and
    test scenes are always the same, made of validation and test digits only. The labels
    say which classes are there; the boxes and pixels of the digits are in the parts of
    a batch, see :class:`Scenery` and :func:`class_boxes`.

    Args:
        data: the digits.
        canvas: height and width of the scenes, in pixels.
        least: see :class:`Scenery`.
        most: likewise.
        smallest: likewise.
        largest: likewise.
        clutter: likewise.
        repeats: likewise.
        twins: likewise.

    Raises:
        ValueError: if a number is out of range, or there are fewer classes than digits
            in a scene.

    Example:
        >>> from torchcaps_lab.data import DigitScenes, Digits
        >>> scenes = DigitScenes(Digits(), canvas=(64, 64), most=3, clutter=2)
        >>> scenes.test.__getitems__([0, 1]).inputs.shape
        torch.Size([2, 1, 64, 64])
    """

    task: ClassVar[dict[str, Any]] = {"name": "several_labels"}

    resize: Fit = "keep"

    scenery: ClassVar[type[Scenery]] = Scenery
    """What puts the scenes together."""

    def __init__(
        self,
        data: DataSet,
        canvas: tuple[int, int] = (96, 96),
        least: int = 1,
        most: int = 4,
        smallest: float = 20.0,
        largest: float = 40.0,
        clutter: int = 8,
        repeats: bool = False,
        twins: float = 0.0,
    ) -> None:
        super().__init__(data)
        check_series(2, canvas=canvas)
        self.canvas = (canvas[0], canvas[1])
        self.least = least
        self.most = most
        self.smallest = smallest
        self.largest = largest
        self.clutter = clutter
        self.repeats = repeats
        self.twins = twins
        _check_numbers(self)

    def made(self, images: Examples, part: Part) -> Examples:
        """Each digit in a scene with others of the same part; to train on, with others
        in each epoch.
        """
        how = (self.smallest, self.largest, self.clutter, self.repeats, self.twins)
        scenery = self.scenery(images, self.canvas, self.least, self.most, *how)
        return replace(images, composition=scenery)
