"""Reads pictures whose pixels have classes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data.reader import Reader, register_reader
from torchcaps_lab.kinds.images.decoding.bands import Bands
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes, opened
from torchcaps_lab.kinds.images.guess import looked_at, range_line
from torchcaps_lab.kinds.images.reader import ImageReader
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.look import (
    Fit,
    Guess,
    Place,
    epochs_for,
    trained_of,
    values_of,
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

_ENDS = ("_mask", "_masks", "_seg", "_segmentation", "_label", "_gt", "-mask", "-seg")
"""How the names of masks end that lie beside their pictures."""

_LISTED = "ImageSets/Segmentation/trainval.txt"
"""The pictures of Pascal VOC that have masks."""

_LARGEST_CUT = 128

_TRIED = 8
"""Pairs of pictures that are looked at."""


@register_reader("pixels")
@dataclass(frozen=True)
class PixelReader(ImageReader):
    """Pictures of any size, for a network that gives each pixel a class."""

    takes = "pixels"

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """A folder of pictures beside one of masks.

        Raises:
            ValueError: pictures lie beside what may be their masks, in folders of other
                names or in one; says what to type.
        """
        asked = values_of(given.get("data"))
        named = {name: str(asked[name]) for name in _NAMED if name in asked}
        usual = {**dict(zip(_NAMED, _NAMED, strict=True)), **named}
        folders = ((usual["images"], usual["masks"], named), *_FOLDERS)
        for images, masks, arguments in folders:
            if (place.path / images).is_dir() and (place.path / masks).is_dir():
                guess = _of_masks(place.path, images, arguments)
                pictures = image_files(place.path / images)
                return watched(guess, given, len(pictures) * 4 // 5 // 10)
        if not place.is_file and "class_folders" not in asked:
            _check_folders(place)
            _check_beside(place)
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


def _check_folders(place: Place) -> None:
    """Raise a `ValueError` if there are two folders of pictures by the same names, and
    those of one look like masks of the others.
    """
    by_folder: dict[Path, dict[str, Path]] = {}
    for path in place.with_suffix(*image_suffixes()):
        by_folder.setdefault(path.parent, {})[path.stem] = path
    if len(by_folder) != 2 or {*by_folder} - {*place.path.iterdir()}:
        return
    first, second = by_folder
    if by_folder[first].keys() != by_folder[second].keys():
        return
    for images, masks in ((first, second), (second, first)):
        stems = sorted(by_folder[images])[:_TRIED]
        pairs = [(by_folder[images][stem], by_folder[masks][stem]) for stem in stems]
        if all(_is_mask_of(mask, picture) for picture, mask in pairs):
            train = ["torchcaps", "train", str(place.path)]
            named = ["--data.images", images.name, "--data.masks", masks.name]
            raise ValueError(
                f"{masks} holds a picture of few values for each one in {images}, by "
                f"the same name: if these are its masks, {shlex.join([*train, *named])}"
                "; if the two folders are classes, "
                f"{shlex.join([*train, '--data.class_folders', 'outer'])}"
            )


def _check_beside(place: Place) -> None:
    """Raise a `ValueError` if masks lie in one folder with their pictures."""
    pictures = [path for path in place.top if path.suffix.lower() in image_suffixes()]
    stems = {path.stem for path in pictures}
    for end in _ENDS:
        masks = [stem for stem in stems if stem.removesuffix(end) in stems - {stem}]
        if masks and 2 * len(masks) == len(stems):
            raise ValueError(
                f"{place.path} holds masks beside their pictures, such as "
                f"{min(masks)}. Put the pictures into a folder 'images' in it, and the "
                "masks under the names of their pictures, without "
                f"{end!r}, into a folder 'masks', then: "
                f"{shlex.join(['torchcaps', 'train', str(place.path)])}"
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
    if looks.levels is not None:
        data["range"] = list(looks.levels)
        why["data.range"] = range_line(looks)
    options = {
        **MASKS,
        "data": data,
        "epochs": epochs_for(steps, 400, (6, 200)),
    }
    for name in ("batch_size", "epochs"):
        why[name] = f"{options[name]}"
    return Guess(options, why)
