"""Reads pictures whose pixels have classes."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data.reader import Reader, register_reader
from torchcaps_lab.kinds.images.guess import looked_at
from torchcaps_lab.kinds.images.reader import ImageReader
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.pixels.beside import (
    folders_of_images,
    folders_of_masks,
    masks_beside_pictures,
)
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

_LISTED = "ImageSets/Segmentation/trainval.txt"
"""The pictures of Pascal VOC that have masks."""

_LARGEST_CUT = 128


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
        named = {
            name: str(asked[name]) for name in ("images", "masks") if name in asked
        }
        asked_for = (named.get("images", "images"), named.get("masks", "masks"), named)
        for images, masks, arguments in (asked_for, *_FOLDERS):
            if (place.path / images).is_dir() and _has_files(place.path / masks):
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


def _has_files(folder: Path) -> bool:
    """Whether a folder of masks has some itself: those in folders for each split are
    looked at pair by pair.
    """
    return folder.is_dir() and bool(Place(folder).top or not image_files(folder))


def _check_masks(place: Place) -> None:
    """Raise a `ValueError` if pictures that look like the masks of others lie in a
    folder beside that of these, by the same names, or among them; says what to do.
    """
    folders = folders_of_images(place)
    train = ["torchcaps", "train", str(place.path)]
    classes = shlex.join([*train, "--data.class_folders", "outer"])
    for images, masks in folders_of_masks(folders):
        places = [str(path.relative_to(place.path)) for path in (images, masks)]
        named = ["--data.images", places[0], "--data.masks", places[1]]
        raise ValueError(
            f"{masks} holds a picture of few values for each one in {images}, by "
            f"the same name: if these are its masks, {shlex.join([*train, *named])}"
            f"; if the two folders are classes, {classes}"
        )
    for masks_beside in masks_beside_pictures(folders):
        raise ValueError(
            f"{place.path} holds masks beside their pictures, such as "
            f"{min(masks_beside)}. For "
            "the classes of pixels, put the pictures into a folder 'images', and "
            "the masks, by the same names, into a folder 'masks' beside it, then: "
            "torchcaps train with the folder of the two. For classes of pictures, "
            f"move the masks away; {classes} takes them for pictures"
        )


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
