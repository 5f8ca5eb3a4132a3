"""Files of COCO annotations, read by pycocotools: boxes around things, and masks of
them.
"""

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.names import needing
from torchcaps.whole import LARGEST_TABLE, named_below, parsed_json, read_text
from torchcaps_lab.kinds.scenes.stated import frame_of, stated_size

_WRONG = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RecursionError,
)
"""Errors of readers that take the content of a file on trust."""


class Noted(NamedTuple):
    """One image and the boxes around its things.

    Args:
        file: the file of the image.
        labels: the class of each thing.
        boxes: left, top, right, bottom in pixels, or shares of the sides of the image.
        shares: whether they are shares.
        source: the file that says so.
        size: width and height of the image by that file, if it states them.
    """

    file: Path
    labels: list[str]
    boxes: Sequence[tuple[float, ...]]
    source: Path
    shares: bool = False
    size: tuple[int, int] | None = None


class Coco:
    """A file of annotations.

    Attributes:
        names: the names of the classes, by their numbers.

    Raises:
        ValueError: if it is not as of COCO.
    """

    def __init__(self, path: Path) -> None:
        with needing("COCO annotations", "torchcaps-lab[detection]"):
            from pycocotools.coco import COCO

        self.path = path
        text = read_text(path, LARGEST_TABLE)
        with self._as_of_coco():
            self.coco: Any = COCO()
            self.coco.dataset = parsed_json(text)
            with contextlib.redirect_stdout(
                io.StringIO()
            ):  # pycocotools prints progress
                self.coco.createIndex()
            self.names = {
                label: self.coco.cats[label]["name"] for label in sorted(self.coco.cats)
            }
            self._entries: dict[str, list[Mapping[str, Any]]] = {}
            for entry in self.coco.imgs.values():
                self._entries.setdefault(
                    PurePosixPath(entry["file_name"]).name, []
                ).append(entry)
            self._numbers = sorted(self.coco.imgs)
            self._unlisted = {row["image_id"] for row in self.coco.anns.values()} - {
                *self._numbers
            }

    @contextlib.contextmanager
    def _as_of_coco(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except _WRONG as error:
            raise ValueError(
                f"annotations {self.path} are not as of COCO: {type(error).__name__} "
                f"{error}"
            ) from error

    def boxes(self, root: Path) -> list[Noted]:
        """The images in a folder, with the boxes around their things, but for those
        around crowds.
        """
        noted = []
        if self._unlisted:
            example = min(self._unlisted, key=str)
            raise ValueError(
                f"annotations {self.path} have boxes in the image {example}, which they "
                "do not list"
            )
        for number in self._numbers:
            entry = self.coco.imgs[number]
            mine = self.coco.imgToAnns[number]
            file = named_below(root, entry["file_name"], self.path, "image")
            with self._as_of_coco():
                mine = [row for row in mine if not row.get("iscrowd")]
                corners = []
                for row in mine:
                    left, top, width, height = row["bbox"]
                    sides = (left, top, left + width, top + height)
                    corners.append(tuple(map(float, sides)))
                labels = [
                    self.names.get(row["category_id"], f"id {row['category_id']}")
                    for row in mine
                ]
                size = stated_size(entry.get("width"), entry.get("height"))
            noted.append(Noted(file, labels, corners, self.path, size=size))
        return noted

    def mask(
        self,
        picture: Path,
        size: tuple[int, int],
        turn: int = 1,
    ) -> Tensor:
        """The place of the class of each pixel among the names, from 1; 0 for the
        background; uint8 (H, W).

        Args:
            picture: found by its name, and by the folders that it is in where several
                have that name.
            size: its width and height, upright.
            turn: its EXIF orientation.

        Raises:
            FileNotFoundError: if it is not among the images.
            ValueError: if it has another shape there, or an annotation marks nothing.
        """
        entry = self._entry(picture)
        with self._as_of_coco():
            stated = stated_size(entry.get("width"), entry.get("height")) or size
        frame = frame_of(
            stated, size, turn, self.path, picture
        )  # before memory of the stated size is taken
        places = list(self.names)
        parts = []
        for annotation in self.coco.imgToAnns[entry["id"]]:
            try:
                parts.append(
                    (
                        self._marked(annotation, stated),
                        1 + places.index(annotation["category_id"]),
                    )
                )
            except Exception as error:  # pycocotools raises that type, too
                raise ValueError(
                    f"{self.path}: annotation {annotation.get('id')} of {picture.name} has "
                    f"no mask: {error}"
                ) from error
        mask = torch.zeros(stated[::-1], dtype=torch.uint8)
        for marked, label in sorted(
            parts, key=lambda part: -int(part[0].sum())
        ):  # smaller ones over larger ones
            mask[marked] = label
        if not mask.any():
            raise ValueError(
                f"{self.path} has an empty annotation: it marks nothing in {picture}"
            )
        return frame.mask(mask)

    def _entry(self, picture: Path) -> Mapping[str, Any]:
        """What the file says of a picture."""
        entries = self._entries.get(picture.name, [])
        if len(entries) > 1:
            entries = [
                entry
                for entry in entries
                if picture.as_posix().endswith(
                    f"/{entry['file_name'].removeprefix('./')}"
                )
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

    def _marked(self, annotation: Mapping[str, Any], size: tuple[int, int]) -> Tensor:
        """The pixels of a thing, bool (H, W); a `ValueError` if they would be others
        than those of the image.
        """
        from pycocotools import mask as masks

        wide, high = size
        marks = annotation["segmentation"]
        if isinstance(marks, list):
            for polygon in marks:
                if not all(
                    -wide - high <= place <= 2 * (wide + high) for place in polygon
                ):
                    raise ValueError(
                        f"its outline leaves the image of {wide} x {high} pixels"
                    )
            marks = masks.merge(masks.frPyObjects(marks, high, wide))
            with (
                warnings.catch_warnings()
            ):  # of NumPy, about how pycocotools hands it arrays
                warnings.simplefilter("ignore", DeprecationWarning)
                return torch.from_numpy(masks.decode(marks)).bool()
        if tuple(marks["size"]) != (high, wide):
            raise ValueError(
                f"it has the size {marks['size']}, the image has {[high, wide]}"
            )
        if isinstance(marks["counts"], list):
            runs = marks["counts"]
        else:
            runs = _runs(marks["counts"])
        if (
            not all(isinstance(run, int) and run >= 0 for run in runs)
            or sum(runs) != high * wide
        ):
            raise ValueError(
                f"its runs must make up the {high * wide:,} pixels of the image"
            )
        inside = torch.arange(len(runs)) % 2 == 1
        return (
            inside.repeat_interleave(torch.tensor(runs, dtype=torch.int64))
            .view(wide, high)
            .mT
        )


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
