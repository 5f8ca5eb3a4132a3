"""Finds the image files of a folder."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchcaps_lab.data.files import Listing
from torchcaps_lab.kinds.images.decoding.picture import BY_PLUGIN, image_suffixes
from torchcaps_lab.look import advice_on


@dataclass
class ImageListing(Listing):
    """The image files found in a folder; none of them was opened."""

    what = "images"
    unlabelled = "; to train without classes, use --task objects"
    empty_advice = " (--data.skip_broken true leaves it out)"

    @cached_property
    def endings(self) -> Collection[str]:
        """The endings of the images that Pillow and its plug-ins open here."""
        return image_suffixes()

    def not_read(self, path: Path) -> str:
        """Why a file with such an ending is not read, and what would read it."""
        needs = BY_PLUGIN.get(path.suffix.lower())
        plug_in = f"it is with a plug-in: pip install {needs}" if needs else ""
        advice = plug_in or advice_on(path)
        why = f"{path.suffix} is not a kind of image that is read"
        if not path.suffix:
            why = "its name has no suffix, which tells the kind of an image"
        return f"{why}; {advice}" if advice else why


def image_files(folder: Path) -> list[Path]:
    """The files in a folder and its sub-folders whose suffix is that of an image,
    sorted, without hidden ones.
    """
    return sorted(ImageListing(root=folder).below(folder, set()))
