"""Data sets and images made from others: on larger canvases, transformed, overlaid, side by side, turned."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data.augment import RandomShift, random_integers
from torchcaps.data.base import TEST_SEED, Batch, Composition, ImageData, ImageSet, Parts, stratified_split
from torchcaps.data.digits import Digits
from torchcaps.data.manifest import Changes, Manifest
from torchcaps.numerics import check_choice, check_size

Viewpoints = Literal["azimuth", "elevation"]
TestViewpoints = Literal["familiar", "novel"]


class _MadeOf(ImageData):
    """A data set of images made from another one, with the same files and splits."""

    def __init__(self, data: ImageData) -> None:
        if not isinstance(data, ImageData):
            raise TypeError(f"data must be a data set, such as Digits(), got {data!r}")
        if data.gives != "images":
            raise ValueError(f"data must give images, {type(data).__name__} gives {data.gives}")
        super().__init__(data.validation_share, data.seed)
        self.data = data

    def manifest(self) -> Manifest | None:
        """Which files the images are made of, split by split."""
        return self.data.manifest()

    def follow(self, manifest: Manifest | None) -> Changes:
        """Takes over the split of a manifest."""
        return self.data.follow(manifest)

    def test_on_all(self) -> None:
        """Makes every file of that data set a test image."""
        self.data.test_on_all()

    def notes(self) -> tuple[str, ...]:
        """The notes of the data set that this one is made of."""
        return self.data.notes()


class Padded(_MadeOf):
    """A data set on larger, black canvases: in the middle to train on, placed at random to validate and test on.

    To move training images too, set ``shift`` in the option ``preprocess`` of ``torchcaps train`` to ``pad``.
    Validation and test images have fixed random places, the same for every seed; all (2 pad + 1)^2 places are equally
    likely.

    Args:
        data: the data set; which images are put aside for validation is its affair.
        pad: width of the border on each side, in pixels.

    Raises:
        ValueError: `pad` is negative.

    Example:
        >>> from torchcaps.data import Digits, Padded
        >>> Padded(Digits(), pad=2).test.images.shape
        torch.Size([359, 1, 12, 12])
    """

    def __init__(self, data: ImageData, pad: int = 6) -> None:
        super().__init__(data)
        check_size(0, pad=pad)
        self.pad = pad

    def load_train(self) -> ImageSet:
        """Read the images to train on, without those for validation."""
        return on_canvas(self.data.train, self.pad)

    def load_validation(self) -> ImageSet:
        """Read the validation images, placed at random."""
        return placed(on_canvas(self.data.validation, self.pad), self.pad, draw=1)

    def load_test(self) -> ImageSet:
        """Read the test images, placed at random."""
        return placed(self.centred_test(), self.pad, draw=0)

    def centred_test(self) -> ImageSet:
        """Read the test images, each in the middle of its canvas."""
        return on_canvas(self.data.test, self.pad)


class Few(_MadeOf):
    """A data set of which few images are trained on, and few validated on; the test images are all of them.

    They are drawn at random, the same share of each class, and the same ones for every seed of a training. The task
    is that of the data set.

    Args:
        data: the data set; which images are put aside for validation is its affair.
        train: about how many images to train on; all if there are fewer.
        validation: about how many to validate on, likewise.

    Raises:
        ValueError: `train` is less than 1, or `validation` less than 0.

    Example:
        >>> from torchcaps.data import Digits, Few
        >>> data = Few(Digits(), train=100, validation=50)
        >>> len(data.train), len(data.test)
        (100, 359)
    """

    def __init__(self, data: ImageData, train: int = 1000, validation: int = 1000) -> None:
        super().__init__(data)
        check_size(train=train)
        check_size(0, validation=validation)
        self.few_train, self.few_validation = train, validation
        vars(self)["task"] = data.task  # elsewhere it belongs to a class
        self.resize = data.resize

    def load_train(self) -> ImageSet:
        """Read the images to train on."""
        return _some(self.data.train, self.few_train)

    def load_validation(self) -> ImageSet:
        """Read the images to validate on."""
        return _some(self.data.validation, self.few_validation)

    def load_test(self) -> ImageSet:
        """Read the test images."""
        return self.data.test


def _some(images: ImageSet, count: int) -> ImageSet:
    """About ``count`` images at random, the same share of each class, in their order."""
    if count >= len(images):
        return images
    return images.subset(stratified_split(images.labels, count / len(images), TEST_SEED)[1])


def on_canvas(images: ImageSet, pad: int) -> ImageSet:
    """The same images with a black border of ``pad`` pixels on each side."""
    return replace(images, images=F.pad(images.images, (pad,) * 4))


def placed(images: ImageSet, most: int, draw: int) -> ImageSet:
    """The same images, each moved by up to ``most`` pixels in x and in y; each ``draw`` gives other moves."""
    move = RandomShift(most, TEST_SEED)
    return replace(images, images=move(images.images, torch.arange(len(images)), draw))


class Affine(NamedTuple):
    r"""An affine transform for each of N images, around the centre of the canvas, x to the right and y downwards.

    .. math:: p \mapsto R_{rotation} S_{shear} \operatorname{diag}(scale) p + shift

    Args:
        rotation: in degrees, counter-clockwise, (N,).
        shear: pixels that a point leans to the right for each pixel that it is above the middle, (N,).
        scale: in x and in y, (N, 2).
        shift: in x and in y, in pixels, (N, 2).

    Example:
        >>> from torchcaps.data import Affine, apply_affine
        >>> affine = Affine(torch.tensor([30.0]), torch.zeros(1), torch.ones(1, 2), torch.zeros(1, 2))
        >>> apply_affine(torch.full((1, 1, 9, 9), 255, dtype=torch.uint8), affine).shape
        torch.Size([1, 1, 9, 9])
    """

    rotation: Tensor
    shear: Tensor
    scale: Tensor
    shift: Tensor

    @property
    def matrix(self) -> Tensor:
        """The linear part, (N, 2, 2)."""
        angle = self.rotation.deg2rad()
        cosine, sine = angle.cos(), angle.sin()
        one, zero = torch.ones_like(cosine), torch.zeros_like(cosine)
        rotation = torch.stack([cosine, sine, -sine, cosine], -1).unflatten(-1, (2, 2))
        shear = torch.stack([one, -self.shear, zero, one], -1).unflatten(-1, (2, 2))
        return rotation @ shear @ torch.diag_embed(self.scale)


def apply_affine(images: Tensor, affine: Affine) -> Tensor:
    """Transforms images with bilinear interpolation; pixels from outside are black.

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
    grid = F.affine_grid(torch.cat([back, offset], -1), list(images.shape), align_corners=False)
    moved = F.grid_sample(images.float(), grid, "bilinear", "zeros", align_corners=False)
    return moved.round().clamp(0, 255).to(torch.uint8)


def shift_limits(images: Tensor, matrix: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """How far transformed digits can be shifted before ink leaves the canvas.

    Args:
        images: uint8 (N, C, H, W), H = W; what is not black is ink.
        matrix: the linear part of their transforms, (N, 2, 2).
        most: largest limit, in pixels.

    Returns:
        The least and the largest shift in x and in y, each (N, 2). They are equal, and leave equal margins on both
        sides, where a digit is too large for its canvas.

    Raises:
        ValueError: the images are not square.
    """
    size = _side(images)
    ink = images.amax(1).flatten(1) > 0  # [N, pixels]
    place = torch.arange(size) - (size - 1) / 2
    pixels = torch.stack(torch.meshgrid(place, place, indexing="xy")).flatten(1)  # x and y, [2, pixels]
    # Interpolation spreads a pixel over less than one pixel in x and in y, before the transform; the first pixel
    # outside the canvas must get nothing of it.
    room = (size + 1) / 2 - matrix.abs().sum(2)
    low, high = [], []
    for axis in (0, 1):
        moved = matrix[:, axis] @ pixels
        low.append(-room[:, axis] - moved.where(ink, torch.inf).amin(1))
        high.append(room[:, axis] - moved.where(ink, -torch.inf).amax(1))
    least, largest = torch.stack(low, 1).clamp_min(-most), torch.stack(high, 1).clamp_max(most)
    middle = (least + largest) / 2
    fits = least <= largest
    return least.where(fits, middle), largest.where(fits, middle)


@dataclass(frozen=True)
class AffineRanges:
    """Ranges of random affine transforms, which are uniformly distributed.

    Attributes:
        rotation: up to this many degrees to either side.
        shear: up to this to either side.
        scale: between these, in x and in y independently.
        shift: up to this many pixels in x and in y, as far as the digit stays on its canvas.

    Example:
        >>> from torchcaps.data import AffineRanges, apply_affine
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
        """A random transform for each of the images, uint8 (N, C, H, W)."""
        rotation, shear, *rest = torch.rand(6, len(images), generator=torch.Generator().manual_seed(seed))
        share = torch.stack(rest, 1)
        low, high = self.scale
        affine = Affine(
            (2 * rotation - 1) * self.rotation, (2 * shear - 1) * self.shear, low + share[:, :2] * (high - low), share
        )
        least, largest = shift_limits(images, affine.matrix, self.shift)
        return affine._replace(shift=least + share[:, 2:] * (largest - least))


AFFNIST = AffineRanges()
"""The ranges of affNIST."""


FACTORS = ("rotation", "shear", "scale", "shift")
"""The factors of an affine transform."""


def one_factor(name: str, value: float, count: int, seed: int = TEST_SEED) -> Affine:
    """Transforms in which one factor is changed and the others stay.

    Args:
        name: of the factor.
        value: of it. A scale is the same in x and in y; a shift is as large in x and in y, each to a random side.
        count: how many transforms.
        seed: of those sides.

    Raises:
        ValueError: if there is no such factor.
    """
    check_choice("name", name, FACTORS)
    zero = torch.zeros(count)
    still = Affine(zero, zero, torch.ones(count, 2), torch.zeros(count, 2))
    if name == "rotation":
        return still._replace(rotation=zero + value)
    if name == "shear":
        return still._replace(shear=zero + value)
    if name == "scale":
        return still._replace(scale=still.scale * value)
    sides = torch.randint(2, (count, 2), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return still._replace(shift=sides * value)


def _side(images: Tensor) -> int:
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise ValueError(f"images must be (N, C, H, W) and square, got shape {tuple(images.shape)}")
    return images.shape[2]


class Overlaid(NamedTuple):
    """Digits of two different classes, one on top of the other.

    Args:
        images: of both, (B, C, H, W) in [0, 1]: the sum, clipped.
        parts: each alone, (B, 2, C, H, W).
        labels: of each, int64 (B, 2).

    Example:
        >>> from torchcaps.data import Digits, Overlay, fixed_pairs
        >>> overlaid = fixed_pairs(Overlay(Digits().test, size=12, shift=2), count=4, seed=0)
        >>> overlaid.images.shape, overlaid.parts.shape, overlaid.labels.shape
        (torch.Size([4, 1, 12, 12]), torch.Size([4, 2, 1, 12, 12]), torch.Size([4, 2]))
    """

    images: Tensor
    parts: Tensor
    labels: Tensor


def check_single(digits: ImageSet) -> None:
    """Raises a `ValueError` if images show several things each, or are composed already."""
    if digits.labels.ndim != 1 or digits.composition is not None:
        raise ValueError("digits must be images of one class each, not scenes, pairs or others with masks as labels")


def by_class(digits: ImageSet) -> tuple[Tensor, Tensor]:
    """The digits' indices, class by class, int64 (N,), and how many there are of each class, (E,); on the CPU."""
    labels = digits.labels.cpu()
    return labels.argsort(stable=True), torch.bincount(labels, minlength=len(digits.classes))


@dataclass(frozen=True)
class Overlay(Composition):
    """Lays each digit on another of a different class, both moved at random.

    As a composition of the digits that it lies on, it makes other pairs in each epoch.

    Source: Sabour, Frosst & Hinton 2017, section 5.1: shifts up to 4 pixels on 36 x 36, so that the bounding boxes of
    the two overlap by 80 % on average.

    Args:
        digits: where the other digits come from.
        size: height and width of the images, at least that of the digits.
        shift: how far each digit is moved from the centre in x and in y at most, in pixels.

    Raises:
        ValueError: if a digit could be moved off the image.

    Example:
        >>> from torchcaps.data import Digits, Overlay
        >>> overlay = Overlay(Digits().test, size=12, shift=2)
        >>> overlay.image_shape((1, 8, 8))
        (1, 12, 12)
    """

    digits: ImageSet
    size: int = 36
    shift: int = 4

    def __post_init__(self) -> None:
        check_single(self.digits)
        height, width = self.digits.raw_image_shape[1:]
        if not 0 <= self.shift <= (self.size - max(height, width)) // 2:
            raise ValueError(
                f"shift must be from 0 to {(self.size - max(height, width)) // 2} for digits of {height} x {width} on "
                f"{self.size} x {self.size}, got {self.shift}"
            )

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """As many channels, of the full size."""
        return raw[0], self.size, self.size

    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        """Pairs (B, C, H, W) with masks of their two classes; their parts are the digits, that of the set first."""
        side = 2 * self.shift + 1
        drawn = random_integers(seed, epoch, batch.indices)
        moves = []
        for _ in range(4):  # down and right of the digit, down and right of the other one
            moves.append(drawn % side)
            drawn = drawn // side
        draws = torch.stack(moves).unflatten(0, (2, 2)).permute(1, 2, 0).flatten(1)  # [2, 2 B]
        share = (drawn % 2**24).double() / 2**24
        images, parts, labels = self._pairs(batch.images, batch.labels, share.cpu(), draws.cpu())
        mask = F.one_hot(labels, len(self.digits.classes)).sum(1).bool()
        return batch._replace(images=images, pictures=images, labels=mask, parts=Parts(labels, parts))

    def draw(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> Overlaid:
        """Overlays digits (B, C, h, w) in [0, 1]; the generator, on the CPU, draws the other digits and the shifts."""
        share = torch.rand(len(labels), generator=generator)
        return self._pairs(
            images, labels, share, torch.randint(2 * self.shift + 1, (2, 2 * len(labels)), generator=generator)
        )

    def _pairs(self, images: Tensor, labels: Tensor, share: Tensor, draws: Tensor) -> Overlaid:
        """Overlays digits; ``share`` in [0, 1), (B,), chooses the others, ``draws``, int64 (2, 2 B), the shifts."""
        chosen = self._others(labels.cpu(), share)
        others = self.digits.images[chosen.to(self.digits.images.device)].to(images) / 255
        both = torch.stack([images, others], 1)  # [B, 2, C, h, w]
        parts = self._moved(both.flatten(0, 1), draws.to(images.device)).unflatten(0, both.shape[:2])
        pairs = torch.stack([labels, self.digits.labels[chosen.to(self.digits.labels.device)].to(labels)], 1)
        return Overlaid(parts.sum(1).clamp(max=1), parts, pairs)

    def _others(self, labels: Tensor, share: Tensor) -> Tensor:
        """A digit of another class for each label, all equally likely: int64 (B,)."""
        order, counts = self._by_class
        first = counts.cumsum(0) - counts
        rank = (share * (len(order) - counts[labels])).long()
        rank = torch.where(rank >= first[labels], rank + counts[labels], rank)  # skips the digit's own class
        return order[rank.clamp(max=len(order) - 1)]

    @cached_property
    def _by_class(self) -> tuple[Tensor, Tensor]:
        return by_class(self.digits)

    def _moved(self, digits: Tensor, draws: Tensor) -> Tensor:
        """Digits (N, C, h, w), shifted, on images of the full size, (N, C, H, W)."""
        height, width = digits.shape[2:]
        reach = self.size - height, self.size - width
        padded = F.pad(digits, (reach[1], reach[1], reach[0], reach[0]))
        windows = padded.unfold(2, self.size, 1).unfold(3, self.size, 1)  # [N, C, reach + 1, reach + 1, H, W]
        down, right = (extent - extent // 2 - self.shift + draw for extent, draw in zip(reach, draws, strict=True))
        return windows[torch.arange(len(digits), device=digits.device), :, down, right]


class Pairs(_MadeOf):
    """Pairs of overlaid digits of different classes, both to be recognised.

    Training pairs are made anew in each epoch; validation and test pairs are always the same, made of validation and
    test digits only.

    Args:
        data: the digits.
        size: see :class:`Overlay`.
        shift: likewise.

    Raises:
        ValueError: if a digit could be moved off the image.

    Example:
        >>> from torchcaps.data import Digits, Pairs
        >>> pairs = Pairs(Digits(), size=12, shift=2)
        >>> batch = pairs.test.__getitems__([0, 1])
        >>> batch.images.shape, batch.labels.sum(1)  # two digits in each
        (torch.Size([2, 1, 12, 12]), tensor([2, 2]))
    """

    task: ClassVar[Mapping[str, Any]] = {"name": "several_labels", "count": 2}

    def __init__(self, data: ImageData, size: int = 36, shift: int = 4) -> None:
        super().__init__(data)
        self.size = size
        self.shift = shift

    def load_train(self) -> ImageSet:
        """Read the digits to train on, without those for validation; each comes with others in each epoch."""
        return self._overlaid(self.data.train)

    def load_validation(self) -> ImageSet:
        """Read the validation digits, each with another one."""
        return self._overlaid(self.data.validation)

    def load_test(self) -> ImageSet:
        """Read the test digits, each with another one."""
        return self._overlaid(self.data.test)

    def _overlaid(self, digits: ImageSet) -> ImageSet:
        return replace(digits, composition=Overlay(digits, self.size, self.shift))


def fixed_pairs(overlay: Overlay, count: int, seed: int) -> Overlaid:
    """A fixed set of ``count`` pairs: the digits in their order, repeatedly, each with a random other one."""
    indices = torch.arange(count) % len(overlay.digits)
    images = overlay.digits.images[indices].float() / 255
    return overlay.draw(images, overlay.digits.labels[indices], torch.Generator().manual_seed(seed))


def bounding_box_overlap(parts: Tensor) -> Tensor:
    """Overlap of the bounding boxes of two digits, intersection over the smaller box, (B,).

    Args:
        parts: each digit alone, (B, 2, C, H, W).
    """
    ink = parts.amax(2) > 0  # [B, 2, H, W]
    sides = []
    for axis in (2, 3):
        seen = ink.any(5 - axis)  # [B, 2, extent]
        extent = seen.shape[-1]
        low = seen.int().argmax(-1)
        high = extent - seen.flip(-1).int().argmax(-1)
        common = (high.amin(1) - low.amax(1)).clamp(min=0)
        sides.append((common, high - low))
    areas = sides[0][1] * sides[1][1]
    return sides[0][0] * sides[1][0] / areas.amin(1).clamp(min=1)


LAYOUTS: dict[str, tuple[int, int]] = {
    "one above the other": (2, 1),
    "side by side": (1, 2),
    "three in a row": (1, 3),
    "2 x 2": (2, 2),
    "five in a row": (1, 5),
}
"""Rows and columns of digits side by side."""


class Scenes(NamedTuple):
    """Images of several different digits each.

    Args:
        images: uint8 (N, C, rows H, columns W).
        present: which digits an image shows, bool (N, E).

    Example:
        >>> from torchcaps.data import Digits, arrange
        >>> scenes = arrange(Digits().test, layout=(1, 2), count=4)
        >>> scenes.images.shape, scenes.present.shape
        (torch.Size([4, 1, 8, 16]), torch.Size([4, 10]))
    """

    images: Tensor
    present: Tensor


def arrange(digits: ImageSet, layout: tuple[int, int], count: int, seed: int = 0) -> Scenes:
    """Places digits side by side; those of one image have different classes.

    Args:
        digits: where they come from.
        layout: rows and columns.
        count: how many images.
        seed: of the choice.

    Raises:
        ValueError: if there are fewer classes than places.
    """
    (rows, columns), classes = layout, len(digits.classes)
    places = rows * columns
    if places > classes:
        raise ValueError(f"layout {layout} needs {places} different classes, there are {classes}")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(count, classes, generator=generator).argsort(1)[:, :places]  # [N, places] labels
    rank = torch.rand(count, places, generator=generator)
    members = [(digits.labels == label).nonzero().squeeze(1) for label in range(classes)]
    sizes = torch.tensor([len(one) for one in members])
    picked = (rank * sizes[chosen]).long()
    index = torch.nn.utils.rnn.pad_sequence(members, batch_first=True)[chosen, picked]
    tiles = digits.images[index].unflatten(1, layout)  # [N, rows, columns, C, H, W]
    images = tiles.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    return Scenes(images, F.one_hot(chosen, classes).sum(1).bool())


class TurnedDigits(Digits):
    """Digits for quick trials of the viewpoint experiment: novel ones are turned by 30 degrees, or 0.7 times as high.

    Args:
        viewpoints: how novel test digits differ: ``azimuth``, turned; ``elevation``, lower.
        test_viewpoints: whether the test digits are ``novel`` or ``familiar``, as they were in training.
        validation: as of :class:`~torchcaps.data.Digits`.
        seed: likewise.
        size: likewise.

    Example:
        >>> from torchcaps.data import TurnedDigits
        >>> digits = TurnedDigits("azimuth", "novel")
        >>> digits.test.images.shape
        torch.Size([359, 1, 8, 8])
    """

    def __init__(
        self,
        viewpoints: Viewpoints = "azimuth",
        test_viewpoints: TestViewpoints = "novel",
        validation: float = 0.1,
        seed: int = 0,
        size: int = 8,
    ) -> None:
        super().__init__(validation, seed, size)
        self.viewpoints = viewpoints
        self.test_viewpoints = test_viewpoints

    def load_test(self) -> ImageSet:
        """Read the fifth of the digits to test on, seen from the viewpoints to test on."""
        digits = super().load_test()
        if self.test_viewpoints == "familiar":
            return digits
        return replace(digits, images=turn(digits.images, 30) if self.viewpoints == "azimuth" else lower(digits.images))


def turn(images: Tensor, degrees: float) -> Tensor:
    """Images, uint8 (N, C, H, W), turned counterclockwise around their centre; pixels from outside are black."""
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    return _warp(images, [[cosine, -sine, 0.0], [sine, cosine, 0.0]])


def lower(images: Tensor, factor: float = 0.7) -> Tensor:
    """Images, uint8 (N, C, H, W), with their height scaled around the centre by a factor; the rest is black."""
    return _warp(images, [[1.0, 0.0, 0.0], [0.0, 1 / factor, 0.0]])


def _warp(images: Tensor, source: list[list[float]]) -> Tensor:
    """Images whose pixels come from where ``source`` maps them to, in coordinates from -1 to 1, x right and y down."""
    grid = F.affine_grid(torch.tensor([source]), [1, *images.shape[1:]], align_corners=False)
    warped = F.grid_sample(images.float(), grid.expand(len(images), -1, -1, -1), align_corners=False)
    return warped.round().to(torch.uint8)
