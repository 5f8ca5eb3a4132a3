"""Options of a training on images, from their number, sizes and colours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcaps.models import timm_package
from torchcaps_lab.kinds.images.decoding.bands import channels_of
from torchcaps_lab.kinds.images.decoding.handwriting import TURNED_SIDES, orientation
from torchcaps_lab.kinds.images.decoding.picture import BrokenImage, opened, pictured
from torchcaps_lab.kinds.images.doubts import Extent, extent_of, range_for, range_text
from torchcaps_lab.look import (
    STEPS,
    Guess,
    batch_size_for,
    counted,
    epochs_for,
    name_in,
    values_of,
    watched,
)

if TYPE_CHECKING:
    from torchcaps_lab.kinds.images.decoding.picture import Source

LOOKED_AT = 64
"""Images whose size and colours are looked at, evenly over all."""

_LONG = 1.5
"""How many times as long as wide images are of which it is said that they are padded.
"""

LARGEST_SIDE = 64
"""Height and width that larger images are brought to."""

_SMALLEST_SIDE = 16
"""Least height and width that ``capsnet_small`` takes, and that colour pictures are
taken for photos with.
"""

ON_BACKBONE = "capsnet_on_backbone", "capsnet_on_backbone_cnn"
"""The network for photos, and its twin."""

PHOTO_BATCH = 32

SCRATCH: dict[str, Any] = {
    "preprocess": {"flip": True, "shift": 4, "erase": 0.25, "standardise": True},
    "optimizer": {"name": "AdamW", "lr": 3e-3, "weight_decay": 0.05},
    "scheduler": {"name": "OneCycleLR", "max_lr": 3e-3},
    "speed": {"channels_last": True},
    "trainer": {"average": 0.98},
}
"""How a network learns photos from nothing. Chosen on photos that were neither trained
nor tested on, as the next.
"""

PRETRAINED: dict[str, Any] = {
    "data": {"size": 144},
    "preprocess": {"flip": True},
    "model_args": {
        "backbone": "timm/efficientnet_lite0",
        "weights": "imagenet",
        "keep_statistics": True,
    },
    "frozen_epochs": 10,
    "optimizer": {"name": "AdamW", "lr": 3e-4, "weight_decay": 0.05},
    "scheduler": {"name": "OneCycleLR", "max_lr": 3e-4},
    "speed": {"channels_last": True},
}
"""How one learns that stands on a pretrained backbone, of crops of 8/9 of that size."""


def guess_of_images(
    data: dict[str, Any],
    summary: str,
    images: "Sequence[Source]",
    train: int,
    given: Mapping[str, Any],
    validation: int | None = None,
) -> Guess:
    """Return the options of a training that classifies images.

    Args:
        data: the name of the data set and the arguments that say where it is.
        summary: what the data set is, for people.
        images: the files of all images, or some images.
        train: how many are trained on, about.
        given: the options that the user gave.
        validation: how many images are set apart for validation; None: a share of
            the others is.
    """
    looks = looked_at(images)
    shape, why = shape_of(looks)
    side = shape.get("size") or min(map(min, looks.sizes), default=LARGEST_SIDE)
    photos = looks.colours > 0 and side >= _SMALLEST_SIDE
    options = _of_photos(train, given) if photos else _of_drawings(side, train)
    size = options.get("data", {}).get("size", shape.get("size"))
    if size is not None:
        shape = {**shape, "size": size}
        why["data.size"] = _size_line(size, looks.sizes)
    # Fewer images are one batch.
    steps = max(train // options["batch_size"], 1)
    backbone = options.get("model_args")
    kind = f"for images of {side} pixels"
    if backbone:
        kind = f"on {backbone['backbone']} with weights {backbone['weights']}"
    why = {"data": summary, **why}
    why |= {
        "model": f"{options['model']}, {kind}",
        "batch_size": f"{options['batch_size']}, for {counted(steps, 'steps')} an epoch",
        "epochs": f"{options['epochs']}, {steps * options['epochs']:,} steps",
    }
    for name in ("preprocess", "optimizer") if photos else ():
        why[name] = ", ".join(
            f"{key} {value}" for key, value in options[name].items() if key != "name"
        )
    if "frozen_epochs" in options:
        why["frozen_epochs"] = f"{options['frozen_epochs']}, of the capsules alone"
    guess = Guess({**options, "data": {**data, **shape}}, why)
    return watched(guess, given, train // 9 if validation is None else validation)


def shape_of(looks: "Looks") -> tuple[dict[str, Any], dict[str, str]]:
    """Return the size, the channels and the range that images are brought to.

    Args:
        looks: what some of the images look like.

    Returns:
        The arguments of the data set, and a reason for each option of it.
    """
    size = size_for(looks.sizes)
    data = dict[str, Any]()
    why = dict[str, str]()
    why["data.size"] = _size_line(size, looks.sizes)
    if size is not None:
        data["size"] = size
    if looks.colours:
        data["channels"] = 3
        share = ""
        if looks.colours < len(looks.sizes):
            share = f": {looks.colours} of {len(looks.sizes)} that were looked at"
        why["data.channels"] = f"3, colour{share}"
    looks.add_range(data, why)
    return data, why


def _size_line(size: int | None, sizes: Sequence[tuple[int, int]]) -> str:
    """Tell people the size that images are brought to, and why."""
    seen = "several sizes"
    if len({*sizes}) == 1:
        height, width = sizes[0]
        seen = f"{height} x {width}"
    if size is None:
        return f"their own, {seen}"
    return f"{size}, for images of {seen}{_padded(sizes)}"


def _of_drawings(side: int, train: int) -> dict[str, Any]:
    """Options for images without colours, or too small for photos."""
    batch = batch_size_for(train)
    model = "capsnet_small" if side >= _SMALLEST_SIDE else "capsnet_digits"
    return {
        "model": model,
        "batch_size": batch,
        "epochs": epochs_for(train // batch, 20 * STEPS, (20, 100)),
    }


def _of_photos(train: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options for photos: on a pretrained backbone where there is one, and what was
    given does not speak against it.
    """
    model_args = values_of(given.get("model_args"))
    size = values_of(given.get("data")).get("size", PRETRAINED["data"]["size"])
    mine = name_in(given.get("model")) in (None, *ON_BACKBONE)
    backbone = str(model_args.get("backbone"))
    chosen = backbone.startswith("timm/") and "weights" in model_args
    own = {"backbone", "weights"} & model_args.keys()
    usual = not own and timm_package.imagenet_installed()
    if mine and isinstance(size, int) and (chosen or (usual and size >= LARGEST_SIDE)):
        recipe = {
            **PRETRAINED,
            "data": {"size": size},
            "preprocess": {**PRETRAINED["preprocess"], "crop": size * 8 // 9},
            "model_args": {**PRETRAINED["model_args"], **model_args},
        }
        steps = 190
        least = 4
    else:
        recipe = SCRATCH
        steps = 2100
        least = 6
    # Half the images where there are few.
    batch = min(batch_size_for(train * STEPS // 2), PHOTO_BATCH)
    epochs = epochs_for(train // batch, steps, (least, 150))
    return {"model": ON_BACKBONE[0], **recipe, "batch_size": batch, "epochs": epochs}


def size_for(sizes: Sequence[tuple[int, int]]) -> int | None:
    """Height and width to bring images to; None: they have one that can be left as it
    is.

    Args:
        sizes: height and width of each image.

    Example:
        >>> from torchcaps_lab.kinds.images.guess import size_for
        >>> size_for([(32, 32)]), size_for([(32, 32), (30, 40)]), size_for([(400, 300)])
        (None, 32, 64)
    """
    if not sizes or (
        len({*sizes}) == 1 and 8 <= min(min(sizes)) and max(min(sizes)) <= LARGEST_SIDE
    ):
        return None
    usual = median(min(size) for size in sizes)
    return int(min(max(8 * round(usual / 8), _SMALLEST_SIDE), LARGEST_SIDE))


class Looks(NamedTuple):
    """What some images look like.

    Args:
        sizes: height and width of each that can be read, when upright.
        colours: how many have colours.
        deep: how many have pixels of more than 8 bit.
        levels: the range of pixels of these, if it is not the usual one.
    """

    sizes: list[tuple[int, int]]
    colours: int
    deep: int
    levels: tuple[float, float] | None

    def add_range(self, data: dict[str, Any], why: dict[str, str]) -> None:
        """Add the range to the arguments of a data set, and to the reasons.

        A range counts for all images. Beside pictures of 8 bit there is none, and the
        reason warns of it.
        """
        if self.levels is None:
            return
        used = range_text(self.levels)
        if self.deep == len(self.sizes):
            data["range"] = list(self.levels)
            why["data.range"] = (
                f"{used}, the values of pixels in {self.deep} images that were looked at"
            )
        else:
            why["data.range"] = (
                f"none, although {self.deep} of {len(self.sizes)} images that were "
                f"looked at have pixels of more than 8 bit, only from {used}, and turn "
                "out darker than the others: convert them to 8 bit"
            )


def looked_at(images: "Sequence[Source]") -> Looks:
    """What some of the images that can be read look like, evenly over all."""
    sizes = list[tuple[int, int]]()
    extents = list[Extent]()
    colours = 0
    for source in images[:: -(-len(images) // LOOKED_AT) or 1]:
        try:
            with opened(source) as image:
                stored = image.size
                if isinstance(source, Path) and hasattr(image, "draft"):
                    # Decodes a JPEG file at a fraction of its size.
                    image.draft("RGB", (LARGEST_SIDE, LARGEST_SIDE))
                sides = _upright_sides(image, stored)
                extent = extent_of(image)
                reduced = pictured(image, extent and range_for([extent])).resize(
                    (16, 16)
                )
                coloured = channels_of(image) in (1, 3)
        except (BrokenImage, OSError, ValueError):
            continue  # the data set says which files cannot be read
        red, green, blue = [band.tobytes() for band in reduced.split()]
        sizes.append(sides)
        extents += [] if extent is None else [extent]
        colours += coloured and not red == green == blue
    return Looks(sizes, colours, len(extents), range_for(extents))


def _upright_sides(image: Any, stored: tuple[int, int]) -> tuple[int, int]:
    """Height and width of an image when upright. Decodes the whole file.

    Args:
        image: the image, which may have been opened at a fraction of its size.
        stored: width and height in the file.
    """
    turn = orientation(image)
    if hasattr(image, "tag_v2"):  # a TIFF file, which Pillow turns when it is decoded
        width, height = image.size
        return height, width
    width, height = stored
    return (width, height) if turn in TURNED_SIDES else (height, width)


def _padded(sizes: Sequence[tuple[int, int]]) -> str:
    """What becomes of images that are not square, if the longest is half as long again
    as wide.
    """
    longest = max((max(size) / min(size) for size in sizes), default=1)
    if longest < _LONG:
        return ""
    return (
        f", up to {longest:.1f} times as long as wide, padded with black: "
        "--data.resize crop or stretch does not"
    )
