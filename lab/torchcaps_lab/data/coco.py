"""Files of COCO annotations, read by pycocotools: boxes around things, and masks of them."""

import contextlib
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.names import needing


class Noted(NamedTuple):
    """One image and the boxes around its things: left, top, right, bottom in pixels, or shares of its sides."""

    file: Path
    labels: list[str]
    boxes: Sequence[tuple[float, ...]]
    shares: bool = False


class Coco:
    """A file of annotations.

    Attributes:
        names: of the classes, by their numbers.

    Raises:
        ValueError: if it is not as of COCO.
    """

    def __init__(self, path: Path) -> None:
        with needing("COCO annotations", "torchcaps-lab[detection]"):
            from pycocotools.coco import COCO

        self.path = path
        with self._as_of_coco():
            with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints progress
                self.coco: Any = COCO(str(path))
            self.names = {label: self.coco.cats[label]["name"] for label in sorted(self.coco.cats)}
            self._numbers = {Path(self.coco.imgs[one]["file_name"]).name: one for one in self.coco.imgs}

    @contextlib.contextmanager
    def _as_of_coco(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise ValueError(f"annotations {self.path} are not as of COCO: {type(error).__name__} {error}") from error

    def boxes(self, root: Path) -> list[Noted]:
        """The images in a folder, with the boxes around their things, but for those around crowds."""
        noted = []
        with self._as_of_coco():
            for number in sorted(self.coco.imgs):
                mine = [row for row in self.coco.imgToAnns[number] if not row.get("iscrowd")]
                corners = [
                    (left, top, left + width, top + height) for left, top, width, height in (r["bbox"] for r in mine)
                ]
                labels = [self.names.get(row["category_id"], f"id {row['category_id']}") for row in mine]
                noted.append(Noted(root / self.coco.imgs[number]["file_name"], labels, corners))
        if strange := {row["image_id"] for row in self.coco.anns.values()} - {*self.coco.imgs}:
            raise ValueError(f"annotations {self.path} have boxes in the image {min(strange)}, which they do not list")
        return noted

    def mask(self, picture: Path, size: tuple[int, int]) -> Tensor:
        """The place of the class of each pixel among the names, from 1; 0 for the background; uint8 (H, W).

        Args:
            picture: found by its name.
            size: its width and height.

        Raises:
            FileNotFoundError: if it is not among the images.
            ValueError: if it has another size there, or an annotation marks nothing.
        """
        if picture.name not in self._numbers:
            raise FileNotFoundError(f"{picture} has no mask: {self.path} has no entry for it")
        entry = self.coco.imgs[self._numbers[picture.name]]
        check_same_size(self.path, (entry["width"], entry["height"]), picture, size)
        places, parts = list(self.names), []
        for one in self.coco.imgToAnns[entry["id"]]:
            try:
                with warnings.catch_warnings():  # of NumPy, about how pycocotools hands it arrays
                    warnings.simplefilter("ignore", DeprecationWarning)
                    there = torch.from_numpy(self.coco.annToMask(one)).bool()
                parts.append((there, 1 + places.index(one["category_id"])))
            except (KeyError, TypeError, IndexError, ValueError) as error:
                raise ValueError(f"{self.path}: annotation {one.get('id')} of {picture.name} has no mask") from error
        mask = torch.zeros(entry["height"], entry["width"], dtype=torch.uint8)
        for there, label in sorted(parts, key=lambda part: -int(part[0].sum())):  # smaller ones over larger ones
            mask[there] = label
        if not mask.any():
            raise ValueError(f"{self.path} has an empty annotation: it marks nothing in {picture}")
        return mask


def check_same_size(mask: Path, size: Sequence[int], picture: Path, expected: Sequence[int]) -> None:
    """Raises a `ValueError` unless mask and picture have the same width and height."""
    if tuple(size) != tuple(expected):
        own, other = (f"{high} x {wide}" for wide, high in (size, expected))
        raise ValueError(f"{mask} has {own} pixels (height x width), its picture {picture} has {other}")
