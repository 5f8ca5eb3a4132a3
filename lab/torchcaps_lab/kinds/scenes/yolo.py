"""Files as of YOLO: a text file of boxes for each image, and data.yaml, which names the
classes and the folders.
"""

from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct

from torchcaps.whole import LARGEST_NOTE, read_text, resolved, seen_from
from torchcaps_lab.data.listed import Listed
from torchcaps_lab.data.schema import checked
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.scenes.noted import Noted, check_names
from torchcaps_lab.look import number_in
from torchcaps_lab.options.reading import LARGEST_FILE, parsed

YAML = (".yaml", ".yml")

_PARTS = {"train": ("train",), "validation": ("val", "valid"), "test": ("test",)}
"""The keys of data.yaml for the images of each split, of which the first is read."""

CLASSES = "classes.txt"
"""The names of the classes beside labels, one a line."""


class Yaml(Struct):
    """What data.yaml may hold, read as texts: ``no`` and ``1_0`` are names.

    Args:
        names: the names of the classes, in their order or by their numbers.
        train: the folder, or the folders, of the images to train on.
        test: of those to test on.
        val: of those to validate on.
        valid: another name of that.
        path: the folder that these are in, if it is not that of the file.
        nc: how many classes there are.
        kpt_shape: how many points follow each box, and the numbers of each.
    """

    names: list[str] | dict[str, str]
    train: str | list[str] | None = None
    test: str | list[str] | None = None
    val: str | list[str] | None = None
    valid: str | list[str] | None = None
    path: str | None = None
    nc: str | None = None
    kpt_shape: tuple[str, str] | None = None


def yolo_boxes(
    file: Path, names: Sequence[str], points: int = 0
) -> tuple[list[str], list[tuple[float, ...]]]:
    """Return the class and the box of each thing in a file of labels.

    Args:
        file: its lines are the number of a class, then centre, width and height of a
            box, or the corners of a polygon, as shares of the image's sides.
        names: the names of the classes.
        points: how many numbers of points follow each box.

    Returns:
        The labels, and the boxes: left, top, right, bottom as shares.

    Raises:
        ValueError: a line is neither.
    """
    labels = list[str]()
    boxes = list[tuple[float, ...]]()
    for place, line in enumerate(read_text(file, LARGEST_NOTE).split("\n"), 1):
        if not line.strip():
            continue
        try:
            label, *numbers = (number_in(part) for part in line.split())
            boxes.append(_box(numbers, points))
        except ValueError as error:
            expected = (
                "five numbers, or the number of a class and three corners or more"
            )
            if points:
                expected = f"{5 + points} numbers, {points} of them of points"
            raise ValueError(
                f"annotations {file} are not as of YOLO: line {place}, "
                f"{line.strip()[:80]!r}, must be {expected}: {error}"
            ) from error
        is_known = label in range(len(names))
        labels.append(names[int(label)] if is_known else f"number {label:g}")
    return labels, boxes


def _box(numbers: Sequence[float], points: int) -> tuple[float, ...]:
    if points and len(numbers) != 4 + points:
        raise ValueError(f"it has {1 + len(numbers)}")
    if points or len(numbers) == 4:
        x, y, width, height = numbers[:4]
        left = x - width / 2
        right = x + width / 2
        top = y - height / 2
        bottom = y + height / 2
        return left, top, right, bottom
    if len(numbers) < 6 or len(numbers) % 2:
        raise ValueError("neither a box nor a polygon")
    across = numbers[::2]
    down = numbers[1::2]
    return min(across), min(down), max(across), max(down)


def classes_in(path: Path) -> tuple[str, ...]:
    """Return the names of classes in a file, one a line; their numbers count lines.

    Raises:
        ValueError: a line between two names is empty, or a name stands twice.
    """
    lines = read_text(path, LARGEST_NOTE).rstrip().split("\n")
    return check_names([line.strip() for line in lines], path)


def yolo_images(
    files: Sequence[Path], root: Path, names: Sequence[str] | None
) -> tuple[Sequence[str], list[Noted]]:
    """Return the names of the classes, and the images in a folder, each with the boxes
    in the file of labels that has its name, if there is one.

    Args:
        files: the files of labels in another folder.
        root: the folder of the images.
        names: the names of the classes where no ``classes.txt`` beside the labels has
            them.

    Raises:
        ValueError: a file is not as of YOLO, or two images have one name.
        FileNotFoundError: nothing names the classes.
    """
    listed = files[0].with_name(CLASSES)
    if names is None and not listed.exists():
        raise FileNotFoundError(
            f"pass classes, or give their names one a line: {listed} does not "
            f"exist{seen_from(listed)}"
        )
    # Numbers count its lines, whatever the order of the names that were passed.
    names = classes_in(listed) if listed.is_file() else names or ()
    images: dict[str, Path] = {}
    suffixes = image_suffixes()
    for path in sorted(root.glob("[!.]*")):
        if path.suffix.lower() in suffixes:
            first = images.setdefault(path.stem, path)
            if first is not path:
                raise ValueError(
                    f"{first} and {path} have one name, so that {path.stem}.txt would "
                    "be of both: rename one"
                )
    noted = []
    for file in files:
        image = images.pop(file.stem, root / f"{file.stem}.*")
        noted.append(Noted(image, *yolo_boxes(file, names), file, shares=True))
    return names, noted + [Noted(image, [], [], image) for image in images.values()]


def of_yaml(path: Path, root: Path, names: Sequence[str] | None) -> Listed:
    """List the images of each split, and the classes.

    Args:
        path: the file data.yaml.
        root: the folder that all images must be in.
        names: the classes; None: those that the file names.

    Returns:
        The images of the splits that the file names, as `Noted`. Files of labels
        without an image are left out.

    Raises:
        ValueError: the file is not as of YOLO, names a folder outside ``root``, or
            names no images.
        FileNotFoundError: a folder is not there.
    """
    content = parsed(read_text(path, LARGEST_FILE), str(path), as_text=True)
    if not isinstance(content, dict) or not content.get("names"):
        raise ValueError(f"{path} must hold names, the classes, and train, a folder")
    file = checked(Yaml, content, path)
    named = check_names(_names_in(file, path), path)
    points = _points_of(file, path)
    parts: dict[str, list[Noted]] = {}
    for part, keys in _PARTS.items():
        key = next((name for name in keys if getattr(file, name)), None)
        folders = [] if key is None else _folders(file, key, path, root)
        images = chain.from_iterable(map(image_files, folders))
        # Numbers count these names, whatever the order of those that were passed.
        if noted := [_noted(image, named, path.parent, points) for image in images]:
            parts[part] = noted
    if "train" not in parts:
        raise ValueError(f"{path} names no images to train on: train must be a folder")
    every_image = chain(*parts.values())
    labels = {labels_beside(image.file, path.parent) for image in every_image}
    return Listed((*(names or named),), parts, _without_image(labels))


def _points_of(file: Yaml, path: Path) -> int:
    """How many numbers of points follow each box."""
    count, dims = file.kpt_shape or ("0", "2")
    if not count.isdecimal() or dims not in ("2", "3"):
        raise ValueError(
            f"{path}: kpt_shape must be a number of points and 2 or 3 numbers of each, "
            f"got [{count}, {dims}]"
        )
    return int(count) * int(dims)


def _names_in(file: Yaml, path: Path) -> list[str]:
    """The names of the classes in data.yaml, by their numbers or in their order."""
    names = file.names
    if isinstance(names, dict):
        # Numbers are counted as they are written, so that 1 and 01 are not both there.
        numbers = list(map(str, range(len(names))))
        if {*names} != {*numbers}:
            raise ValueError(
                f"{path}: names must be numbered from 0 to {len(names) - 1}, got "
                f"{names!r:.200}"
            )
        names = [names[number] for number in numbers]
    if file.nc not in (None, str(len(names))):
        raise ValueError(
            f"{path}: nc must be the number of names, {len(names)}, got {file.nc}"
        )
    return names


def _without_image(labels: Collection[Path]) -> dict[str, str]:
    """The files beside those of labels that are of no image, and why they are left
    out.
    """
    left_out = dict[str, str]()
    for folder in sorted({path.parent for path in labels}):
        for path in sorted({*folder.glob("[!.]*.txt")}.difference(labels)):
            if path.name != CLASSES:
                left_out[str(path)] = "it has the name of no image"
    return left_out


def _folders(file: Yaml, key: str, path: Path, root: Path) -> list[Path]:
    """The folders of images of a split."""
    named: Any = getattr(file, key)
    base = path.parent / (file.path or "")
    if not base.is_dir():  # that of the machine where the file was written
        base = path.parent
    folders = []
    for value in named if isinstance(named, list) else [named]:
        # Files of Roboflow name ../train/images for train/images.
        tried = [base / value, base / value.lstrip("./")]
        folder = next((place for place in tried if place.is_dir()), None)
        if folder is None:
            raise FileNotFoundError(
                f"{path} names {value}, and there is no such folder"
            )
        if not resolved(folder).is_relative_to(resolved(root)):
            raise ValueError(f"{path} names {value}, which is not below {root}")
        folders.append(folder)
    return folders


def labels_beside(image: Path, root: Path) -> Path:
    """The file of labels of an image: in ``labels`` where the image is in ``images``,
    or else beside it.

    Args:
        image: the file of the image.
        root: the folder below which that may be; folders around it are not looked at.
    """
    parts = list(image.parts)
    outside = len(root.parts) if image.is_relative_to(root) else 0
    places = [
        place
        for place, part in enumerate(parts[:-1])
        if part == "images" and place >= outside
    ]
    if places:
        parts[places[-1]] = "labels"
    return Path(*parts).with_suffix(".txt")


def _noted(image: Path, classes: Sequence[str], root: Path, points: int) -> Noted:
    file = labels_beside(image, root)
    if not file.is_file():  # nothing is in the image
        return Noted(image, [], [], image)
    labels, boxes = yolo_boxes(file, classes, points)
    return Noted(image, labels, boxes, file, shares=True)
