"""What annotations say of an image, whoever wrote them, and what they may not say."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from unicodedata import normalize

from torchcaps_lab.data.classes import composed
from torchcaps_lab.data.plain_text import check_class_names, check_text
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes
from torchcaps_lab.look import in_order


class Noted(NamedTuple):
    """One image and the boxes around its things.

    Args:
        file: the file of the image.
        labels: the class of each thing.
        boxes: left, top, right, bottom in pixels, or shares of the sides of the image.
        source: the file that says so.
        shares: whether they are shares.
        size: width and height of the image by that file, if it states them.
        aside: how many boxes around crowds, or difficult things, it has beside these.
    """

    file: Path
    labels: list[str]
    boxes: Sequence[tuple[float, ...]]
    source: Path
    shares: bool = False
    size: tuple[int, int] | None = None
    aside: int = 0


def named_below(root: Path, name: Any, source: object) -> Path:
    """Return the path of an image below a folder by the name that annotations have for
    it.

    The name must stay below the folder as it is written. Links that lie in the folder
    are followed: who keeps the folder made them, which need not hold for the file with
    the name. Another system may have written the name: with backslashes, or with
    letters like ``ä`` composed of one character where the disk has two. A name without
    a suffix is that of the only image with this name.

    Args:
        root: the folder.
        name: relative to it.
        source: the file that holds the name, for messages.

    Raises:
        ValueError: the name is not text, is absolute or leads out of the folder; or it
            is that of a folder, a device or a pipe; names the source.
        FileNotFoundError: there is no such file.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(
            f"{source} must name each image by its path below {root}, got {name!r}"
        )
    parts = re.split(r"[/\\]", name)
    if ".." in parts or not parts[0] or ":" in parts[0]:
        raise ValueError(
            f"{source} names {name!r}, which leads out of {root}: names must be "
            "relative to that folder"
        )
    slashed = name.replace("\\", "/")
    composed_otherwise = (normalize(form, slashed) for form in ("NFC", "NFD"))
    for spelling in (name, slashed, *composed_otherwise):
        path = root / spelling
        if path.is_file():
            return path
        if path.exists():
            raise ValueError(f"{source} names {name!r}: {path} is not a regular file")
    if not PurePosixPath(slashed).suffix:
        endings = [*image_suffixes(), *map(str.upper, image_suffixes())]
        files = (root / f"{slashed}{ending}" for ending in endings)
        # On some disks, both cases are of one file.
        images = {path.stat().st_ino: path for path in files if path.is_file()}
        if len(images) == 1:
            return images.popitem()[1]
    raise FileNotFoundError(
        f"the image {root / name} does not exist, which {source} names"
    )


def check_names(names: Sequence[str], source: object) -> tuple[str, ...]:
    """Return the names of classes.

    Raises:
        ValueError: one is blank or cannot be shown in one line, or two are alike: their
            boxes would be of one class.
    """
    check_class_names(names, f"{source}: the name of a class")
    for name in names:
        check_text(name, f"{source}: the name of a class")
    blank = [place for place, name in enumerate(names) if not name.strip()]
    if blank:
        raise ValueError(
            f"{source}: class {blank[0]} must have a name, got {names[blank[0]]!r}"
        )
    times = Counter(composed(name.strip()) for name in names)
    twice = [name for name, count in times.items() if count > 1]
    if twice:
        raise ValueError(
            f"{source}: each class must have a name of its own, and {twice[0]!r} is "
            f"that of {times[twice[0]]} classes"
        )
    return (*names,)


def check_noted(noted: Sequence[Noted], classes: Sequence[str]) -> None:
    """Raise a `ValueError` if an image is there twice, or two images share one file of
    labels, or a class is unknown, or all boxes are in one pixel. It names the files.
    """
    sources: dict[Path, Noted] = {}
    labels: dict[Path, Noted] = {}
    known = {*classes}
    for image in noted:
        first = sources.setdefault(image.file.resolve(), image)
        if first is not image:
            raise ValueError(
                f"{image.file} must be annotated once, and is twice: by {first.source} "
                f"and by {image.source}"
            )
        first = labels.setdefault(image.source, image) if image.shares else image
        if first is not image:
            raise ValueError(
                f"{image.source} must be of one image, and is of {first.file} and of "
                f"{image.file}"
            )
        strange = sorted({*image.labels} - known)
        if strange:
            raise ValueError(
                f"the annotations of {image.file} have the class {strange[0]!r}, which "
                f"is none of {(*classes,)}"
            )
    in_pixels = [image for image in noted if image.boxes and not image.shares]
    if in_pixels and all(max(map(max, image.boxes)) <= 1 for image in in_pixels):
        raise ValueError(
            f"boxes by {in_pixels[0].source} must be in pixels, and all lie in the "
            f"first pixel, as {in_pixels[0].boxes[0]}: they seem to be shares of the "
            "sides of the image"
        )


def doubts(noted: Sequence[Noted]) -> list[str]:
    """Tell people of boxes that are left out, and of those that stand twice."""
    aside = sum(image.aside for image in noted)
    again = 0
    others = 0
    for image in noted:
        distinct = {*zip(image.labels, image.boxes, strict=True)}
        again += len(image.labels) - len(distinct)
        others += len(distinct) - len({*image.boxes})
    what = "boxes around crowds (COCO) or difficult things (VOC)"
    lines = [f"{what} are left out: {aside:,}"] if aside else []
    if again:
        lines.append(f"boxes of the same class and place as another one: {again:,}")
    if others:
        lines.append(f"boxes of the same place as one of another class: {others:,}")
    return lines


def class_of_each(noted: Sequence[Noted]) -> list[str]:
    """All classes that images show, in their order."""
    return [*in_order({*chain.from_iterable(image.labels for image in noted)})]
