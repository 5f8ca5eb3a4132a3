"""Files of COCO annotations: boxes around things, and masks of them, which pycocotools
draws.
"""

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, TypeAlias

import torch
from msgspec import Meta, Struct
from torch import Tensor

from torchcaps.optional_imports import needing
from torchcaps.whole import LARGEST_TABLE, parsed_json, read_text
from torchcaps_lab.data.classes import composed
from torchcaps_lab.data.schema import checked, each_once
from torchcaps_lab.kinds.scenes.noted import Noted, check_names, named_below
from torchcaps_lab.kinds.scenes.stated import frame_of, stated_size

Pixels: TypeAlias = Annotated[float, Meta(ge=-(2**31), le=2**31)]
"""A coordinate: finite, since no comparison holds for NaN."""


class Picture(Struct):
    """An image of the file.

    Args:
        id: its number.
        file_name: its path below the folder of images.
        width: in pixels, if it is stated.
        height: likewise.
    """

    id: int
    file_name: str
    width: int | float | None = None
    height: int | float | None = None


class Category(Struct):
    """A class of the file.

    Args:
        id: its number.
        name: its name.
    """

    id: int
    name: str


class Runs(Struct):
    """Runs of pixels outside and inside a thing, column by column.

    Args:
        size: height and width of the image.
        counts: the runs, as numbers or in COCO's text.
    """

    size: tuple[int, int]
    counts: list[int] | str


Outline: TypeAlias = Annotated[list[Pixels], Meta(min_length=6)]
"""The corners of a polygon, x and y of each."""


class Annotation(Struct):
    """A thing in an image.

    Args:
        id: its number.
        image_id: the number of the image.
        category_id: the number of the class.
        bbox: left, top, width and height of its box.
        iscrowd: 1 for a crowd of things.
        segmentation: its outlines, or its runs of pixels.
    """

    id: int
    image_id: int
    category_id: int
    bbox: tuple[Pixels, Pixels, Pixels, Pixels] | None = None
    iscrowd: Literal[0, 1] = 0
    segmentation: list[Outline] | Runs | None = None


class File(Struct):
    """What a file of COCO may hold; other fields are of no use here."""

    images: list[Picture]
    annotations: list[Annotation]
    categories: list[Category]


class Coco:
    """A file of annotations.

    Attributes:
        names: the names of the classes, by their numbers.

    Raises:
        ValueError: it is not as of COCO: a value is missing or of another type, a
            number, a name of a class or an image stands twice, or an annotation points
            to an image or a class that is not there. Names the place and the value.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._title = f"annotations {path} are not as of COCO"
        text = read_text(path, LARGEST_TABLE)
        try:
            content = parsed_json(text)
        except ValueError as error:
            raise ValueError(f"{self._title}: {error}") from error
        file = checked(File, content, self._title)
        by_number = f"{self._title}: the id"
        number = attrgetter("id")
        categories = each_once(file.categories, number, f"{by_number} of a category")
        self.names = {number: categories[number].name for number in sorted(categories)}
        check_names([*self.names.values()], self._title)
        images = each_once(file.images, number, f"{by_number} of an image")
        each_once(file.images, _file_of, f"{self._title}: the file_name of an image")
        each_once(file.annotations, number, f"{by_number} of an annotation")
        self._images = [images[number] for number in sorted(images)]
        self._entries: dict[str, list[Picture]] = defaultdict(list)
        for image in file.images:
            self._entries[PurePosixPath(_file_of(image)).name].append(image)
        self._things: dict[int, list[Annotation]] = defaultdict(list)
        for thing in file.annotations:
            self._check_points(thing, images)
            self._things[thing.image_id].append(thing)

    def _check_points(self, thing: Annotation, images: dict[int, Picture]) -> None:
        """Raise a `ValueError` if an annotation is of no image or of no class."""
        if thing.image_id not in images:
            raise ValueError(
                f"annotations {self.path} have boxes in the image {thing.image_id}, "
                f"which they do not list: image_id of the annotation {thing.id}"
            )
        if thing.category_id not in self.names:
            raise ValueError(
                f"annotations {self.path} have the class 'id {thing.category_id}', "
                f"which is none of {[*self.names]}: category_id of the annotation "
                f"{thing.id}"
            )

    def boxes(self, root: Path) -> list[Noted]:
        """The images in a folder, with the boxes around their things, but for those
        around crowds, which are counted.
        """
        noted = []
        for image in self._images:
            file = named_below(root, image.file_name, self.path)
            things = self._things[image.id]
            mine = [thing for thing in things if not thing.iscrowd]
            noted.append(
                Noted(
                    file,
                    [self.names[thing.category_id] for thing in mine],
                    [self._corners(thing) for thing in mine],
                    self.path,
                    size=self._stated(image),
                    aside=len(things) - len(mine),
                )
            )
        return noted

    def _corners(self, thing: Annotation) -> tuple[float, ...]:
        """The box of a thing: left, top, right, bottom."""
        if thing.bbox is None or min(thing.bbox[2:]) < 0:
            raise ValueError(
                f"{self._title}: bbox of the annotation {thing.id} must be left, top, "
                f"width and height, the last two at least 0, got {thing.bbox}"
            )
        left, top, width, height = thing.bbox
        return left, top, left + width, top + height

    def _stated(self, image: Picture) -> tuple[int, int] | None:
        """Width and height of an image by the file."""
        try:
            return stated_size(image.width, image.height)
        except ValueError as error:
            raise ValueError(f"{self._title}: image {image.id}: {error}") from None

    def mask(self, picture: Path, size: tuple[int, int], turn: int = 1) -> Tensor:
        """The place of the class of each pixel among the names, from 1; 0 for the
        background; uint8 (H, W).

        Args:
            picture: found by its name, and by the folders that it is in where several
                have that name.
            size: its width and height, upright.
            turn: its EXIF orientation.

        Raises:
            FileNotFoundError: if it is not among the images.
            ModuleNotFoundError: pycocotools is not installed; it names the extra.
            ValueError: if it has another shape there, or an annotation marks nothing.
        """
        entry = self._entry(picture)
        stated = self._stated(entry) or size
        # Before memory of the stated size is taken.
        frame = frame_of(stated, size, turn, self.path, picture)
        places = list(self.names)
        parts = []
        for thing in self._things[entry.id]:
            try:
                marked = marked_pixels(thing.segmentation, stated)
            except ModuleNotFoundError:
                raise
            except Exception as error:  # pycocotools raises that type, too
                raise ValueError(
                    f"{self.path}: annotation {thing.id} of {picture.name} has no "
                    f"mask: {error}"
                ) from error
            parts.append((marked, 1 + places.index(thing.category_id)))
        mask = torch.zeros(stated[::-1], dtype=torch.uint8)
        # Smaller ones over larger ones.
        for marked, label in sorted(parts, key=lambda part: -int(part[0].sum())):
            mask[marked] = label
        if not mask.any():
            raise ValueError(
                f"{self.path} has an empty annotation: it marks nothing in {picture}"
            )
        return frame.mask(mask)

    def digest(self, picture: Path) -> str:
        """SHA-256 of the marks of the things in a picture, and of their classes."""
        marks = [
            (self.names[thing.category_id], thing.segmentation)
            for thing in self._things[self._entry(picture).id]
        ]
        return hashlib.sha256(repr(marks).encode()).hexdigest()

    def _entry(self, picture: Path) -> Picture:
        """What the file says of a picture, whose suffix may be missing there."""
        path = PurePosixPath(composed(picture.as_posix()))
        spellings = path, path.with_suffix("")
        entries = next(
            filter(None, (self._entries.get(way.name) for way in spellings)), []
        )
        if len(entries) > 1:
            entries = [
                entry
                for entry in entries
                if any(f"{way}".endswith(f"/{_file_of(entry)}") for way in spellings)
            ]
        if not entries:
            raise FileNotFoundError(
                f"{picture} has no mask: {self.path} has no entry for it"
            )
        if len(entries) > 1:
            raise ValueError(
                f"{self.path} has {len(entries)} entries for {picture}: keep one"
            )
        return entries[0]


def _file_of(image: Picture) -> str:
    """The path of an image, written in one way."""
    return PurePosixPath(composed(image.file_name).replace("\\", "/")).as_posix()


def marked_pixels(
    marks: list[list[float]] | Runs | None, size: tuple[int, int]
) -> Tensor:
    """The pixels of a thing, bool (H, W).

    Args:
        marks: its outlines, or its runs of pixels.
        size: width and height of the image.

    Raises:
        ValueError: they would be others than those of the image.
    """
    wide, high = size
    if not marks:
        raise ValueError("segmentation is missing")
    if isinstance(marks, Runs):
        return _of_runs(marks, size)
    for polygon in marks:
        if len(polygon) % 2:
            raise ValueError(f"an outline has x and y of each corner, got {polygon}")
        if not all(-wide - high <= place <= 2 * (wide + high) for place in polygon):
            raise ValueError(f"its outline leaves the image of {wide} x {high} pixels")
    with needing("COCO outlines", "torchcaps-lab[detection]"):
        from pycocotools import mask as masks
    merged = masks.merge(masks.frPyObjects(marks, high, wide))
    # NumPy warns of how pycocotools hands it arrays.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.from_numpy(masks.decode(merged)).bool()


def _of_runs(marks: Runs, size: tuple[int, int]) -> Tensor:
    """The pixels of a thing from its runs."""
    wide, high = size
    if marks.size != (high, wide):
        raise ValueError(f"it has the size {marks.size}, the image has {(high, wide)}")
    runs = _runs(marks.counts) if isinstance(marks.counts, str) else marks.counts
    if min(runs, default=-1) < 0 or sum(runs) != high * wide:
        raise ValueError(
            f"its runs must make up the {high * wide:,} pixels of the image"
        )
    inside = torch.arange(len(runs)) % 2 == 1
    lengths = torch.tensor(runs, dtype=torch.int64)
    return inside.repeat_interleave(lengths).view(wide, high).mT


def _runs(text: str) -> list[int]:
    """The runs of pixels outside and inside a thing, column by column, from COCO's text
    for them.

    Each is a difference to the one before the last, in groups of 5 bits from the
    lowest, whose sixth bit says that more follow. pycocotools writes beyond its memory
    where they do not make up a picture.

    Source: ``rleFrString`` of cocoapi's maskApi.c.
    """
    runs: list[int] = []
    value = place = 0
    for sign in text.encode("ascii"):
        bits = sign - 48
        if not 0 <= bits < 64 or place > 30:
            raise ValueError("its runs are no text of COCO")
        value = value | (bits & 31) << place
        place = place + 5
        if not bits & 32:
            value -= (bits >> 4 & 1) << place  # the highest bit is the sign
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = place = 0
    return runs


def check_same_size(
    mask: Path,
    size: Sequence[int],
    picture: Path,
    expected: Sequence[int],
) -> None:
    """Raises a `ValueError` unless mask and picture have the same width and height."""
    if tuple(size) != tuple(expected):
        actual, wanted = (f"{high} x {wide}" for wide, high in (size, expected))
        raise ValueError(
            f"{mask} has {actual} pixels (height x width), its picture {picture} has "
            f"{wanted}"
        )
