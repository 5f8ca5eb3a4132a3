"""Reads pictures whose pixels have classes."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, permutations
from pathlib import Path
from typing import Any

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data.reader import Reader, register_reader
from torchcaps_lab.kinds.images.decoding.bands import Bands
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes, opened
from torchcaps_lab.kinds.images.guess import looked_at
from torchcaps_lab.kinds.images.reader import ImageReader
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.pixels.masks import picture_of
from torchcaps_lab.look import (
    Fit,
    Guess,
    Place,
    data_asked,
    epochs_for,
    trained_of,
    watched,
)

MASKS: dict[str, Any] = {
    "batch_size": 4,
    "loss": {"name": "LengthCrossEntropy"},
    "optimizer": {"name": "Adam", "lr": 0.01},
    "scheduler": {"name": "OneCycleLR", "max_lr": 0.01},
    "scheduler_interval": "step",
}
"""How a network learns the classes of pixels, from squares of pictures: poses are
normalised over several of them.
"""

_FOLDERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("images", "masks", {}),
    (
        "JPEGImages",
        "SegmentationClass",
        {
            "images": "JPEGImages",
            "masks": "SegmentationClass",
            "ignore": 255,
        },
    ),
)
"""The folders of pictures and of masks, and the arguments that name them."""

_NAMED = ("images", "masks")
"""The arguments that name the folders, and their usual names."""

_FEW_VALUES = 32
"""Different values of pixels that a mask may have."""

_FEW = 4
"""Folders, or files of a case, of which any two may be pictures and their masks."""

_LISTED = "ImageSets/Segmentation/trainval.txt"
"""The pictures of Pascal VOC that have masks."""

_LARGEST_CUT = 128

_TRIED = 8
"""Pairs of pictures that are looked at, and pairs of folders."""


@register_reader("pixels")
@dataclass(frozen=True)
class PixelReader(ImageReader):
    """Pictures of any size, for a network that gives each pixel a class."""

    takes = "pixels"
    in_program = ""

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """A folder of pictures beside one of masks.

        Raises:
            ValueError: pictures lie beside what may be their masks, in folders of other
                names or in one; says what to type.
        """
        asked = data_asked(given)
        named = {name: str(asked[name]) for name in _NAMED if name in asked}
        usual = {**dict(zip(_NAMED, _NAMED, strict=True)), **named}
        folders = ((usual["images"], usual["masks"], named), *_FOLDERS)
        for images, masks, arguments in folders:
            if (place.path / images).is_dir() and (place.path / masks).is_dir():
                guess = _of_masks(place.path, images, arguments)
                pictures = image_files(place.path / images)
                return watched(guess, given, len(pictures) * 4 // 5 // 10)
        if not place.is_file and "class_folders" not in asked:
            _check_masks(place)
        return None

    @classmethod
    def report(cls, place: Place, seen: Guess | ValueError) -> Any:
        """The pictures with pixels of each class."""
        return super(ImageReader, cls).report(place, seen)

    def check_fit(self, network: ClassifierNetwork, resize: Fit | None) -> None:
        """Raise a `ValueError` if pictures should not keep their size."""
        if resize is not None and resize != self.resize:
            Reader.check_fit(self, network, resize)

    def unexplored(self, network: ClassifierNetwork) -> str:
        """Why there is nothing to explore: the page shows classes of whole images."""
        return "whose task is segmentation: 'torchcaps explain' draws its report"

    def facts(self) -> dict[str, str]:
        """None: pictures of any size."""
        return {}

    def in_folder(self, folder: Path) -> list[Path]:
        """The pictures in a folder, without the masks beside them."""
        for images, masks, _ in _FOLDERS:
            if (folder / images).is_dir() and (folder / masks).is_dir():
                return image_files(folder / images)
        return image_files(folder)


def _check_masks(place: Place) -> None:
    """Raise a `ValueError` if pictures that look like the masks of others lie in a
    folder beside that of these, by the same names, or among them; says what to do.
    """
    folders: dict[Path, dict[str, Path]] = {}
    for path in place.with_suffix(*image_suffixes()):
        folders.setdefault(path.parent, {})[path.stem] = path
    # The largest first, which are to train on.
    folders = dict(sorted(folders.items(), key=lambda row: -len(row[1])))
    train = ["torchcaps", "train", str(place.path)]
    classes = shlex.join([*train, "--data.class_folders", "outer"])
    for images, masks in islice(_pairs_of_folders(folders), _TRIED):
        marked = {picture_of(stem): path for stem, path in folders[masks].items()}
        if _are_masks(marked, folders[images]):
            places = [str(path.relative_to(place.path)) for path in (images, masks)]
            named = ["--data.images", places[0], "--data.masks", places[1]]
            raise ValueError(
                f"{masks} holds a picture of few values for each one in {images}, by "
                f"the same name: if these are its masks, {shlex.join([*train, *named])}"
                f"; if the two folders are classes, {classes}"
            )
    for marked, pictures in _masks_beside(folders):
        if _are_masks(marked, pictures):
            first = min(marked.values())
            raise ValueError(
                f"{place.path} holds masks beside their pictures, such as {first}. For "
                "the classes of pixels, put the pictures into a folder 'images', and "
                "the masks, by the same names, into a folder 'masks' beside it, then: "
                "torchcaps train with the folder of the two. For classes of pictures, "
                f"move the masks away; {classes} takes them for pictures"
            )


def _masks_beside(
    folders: Mapping[Path, Mapping[str, Path]],
) -> Iterator[tuple[dict[str, Path], dict[str, Path]]]:
    """What may be masks in the folders of their pictures, and these, by the same names:
    files whose names end as those of masks do; and one of a few names that every folder
    has, where each is a case.
    """
    for pictures in islice(folders.values(), _TRIED):
        marked = {
            picture_of(stem): path
            for stem, path in pictures.items()
            if picture_of(stem) in pictures.keys() - {stem}
        }
        if marked and 3 * len(marked) >= len(pictures):
            yield marked, {**pictures}
    names = {frozenset(pictures) for pictures in folders.values()}
    if len(names) == 1 < len(folders):
        of_case = sorted(names.pop())
        for picture, mask in permutations(of_case if len(of_case) <= _FEW else (), 2):
            yield (
                {str(folder): files[mask] for folder, files in folders.items()},
                {str(folder): files[picture] for folder, files in folders.items()},
            )


def _pairs_of_folders(
    folders: Mapping[Path, Mapping[str, Path]],
) -> Iterator[tuple[Path, Path]]:
    """The folders that may hold pictures and their masks, by the names in them: of a
    few, which are all or are in one folder or have one name; and of those whose names
    begin with that of the other.
    """
    groups: dict[Path | str, list[Path]] = {}
    for folder in folders:
        for shared in (folder.parent, folder.name):
            groups.setdefault(shared, []).append(folder)
    if len(folders) <= _FEW:
        groups = {"": [*folders]}
    pairs: list[tuple[Path, Path]] = []
    for group in groups.values():
        if len(group) <= _FEW:
            pairs += permutations(group, 2)
            continue
        for folder in group:
            ends = range(1, len(folder.name))
            begun = (folder.with_name(folder.name[:end]) for end in ends)
            pairs += [(first, folder) for first in begun if first in folders]
    for images, masks in pairs:
        if {*map(picture_of, folders[masks])} == folders[images].keys():
            yield images, masks


def _are_masks(marked: Mapping[str, Path], pictures: Mapping[str, Path]) -> bool:
    """Whether files look like the masks of pictures, by the names of these."""
    stems = sorted(marked)
    return {*stems} <= pictures.keys() and all(
        _is_mask_of(marked[stem], pictures[stem]) for stem in stems[:_TRIED]
    )


def _is_mask_of(mask: Path, picture: Path) -> bool:
    """Whether a file has few values of pixels, one as large has many."""
    try:
        with opened(mask) as values, opened(picture) as shown:
            if isinstance(values, Bands) or isinstance(shown, Bands):
                return False
            return (
                values.size == shown.size
                and values.getcolors(_FEW_VALUES) is not None
                and shown.getcolors(_FEW_VALUES) is None
            )
    except (OSError, ValueError):
        return False


def _of_masks(root: Path, images: str, arguments: Mapping[str, Any]) -> Guess:
    """Options for pictures with masks: squares of three quarters of the smallest side,
    at most 128.
    """
    files = image_files(root / images)
    looks = looked_at(files)
    smallest = min(map(min, looks.sizes), default=0)
    cut = min(smallest * 3 // 4 // 8 * 8, _LARGEST_CUT) or None
    steps = trained_of(len(files)) // MASKS["batch_size"]
    data: dict[str, Any] = {
        "name": "Masks",
        "root": str(root),
        **arguments,
        "cut": cut,
        "channels": 3 if looks.colours else 1,
    }
    if arguments and (root / _LISTED).is_file():
        data["listed"] = _LISTED
    why = {
        "data": f"Masks, {len(files)} pictures with masks in {root}",
        "data.cut": f"{cut}, squares to train on",
    }
    looks.add_range(data, why)
    options = {
        **MASKS,
        "data": data,
        "epochs": epochs_for(steps, 400, (6, 200)),
    }
    for name in ("batch_size", "epochs"):
        why[name] = f"{options[name]}"
    return Guess(options, why)
