"""Files as of YOLO: a text file of boxes for each image, and data.yaml, which names the
classes and the folders.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from torchcaps.whole import LARGEST_NOTE, read_text
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.scenes.coco import Noted
from torchcaps_lab.training.reading import LARGEST_FILE, parsed

YAML = (".yaml", ".yml")

_PARTS = {"train": ("train",), "test": ("test", "val", "valid")}
"""The keys of data.yaml for the images to train and to test on, the first that has
images; where there is no test, validation images take its place.
"""

_BESIDE = {"images": "labels"}
"""The folder of the labels, by that of the images."""


def yolo_boxes(
    file: Path, names: Sequence[str]
) -> tuple[list[str], list[tuple[float, ...]]]:
    """Return the class and the box of each thing in a file of labels.

    Args:
        file: its lines are the number of a class, then centre, width and height of a
            box, or the corners of a polygon, as shares of the image's sides.
        names: the names of the classes.

    Returns:
        The labels, and the boxes: left, top, right, bottom as shares.

    Raises:
        ValueError: a line is neither.
    """
    labels = list[str]()
    boxes = list[tuple[float, ...]]()
    for line in read_text(file, LARGEST_NOTE).split("\n"):
        if not line.strip():
            continue
        try:
            label, *numbers = (float(part) for part in line.split())
            boxes.append(_box(numbers))
        except ValueError as error:
            raise ValueError(
                f"annotations {file} are not as of YOLO: {line.strip()!r} must be "
                "five numbers"
            ) from error
        is_known = label in range(len(names))
        labels.append(names[int(label)] if is_known else f"number {label:g}")
    return labels, boxes


def _box(numbers: Sequence[float]) -> tuple[float, ...]:
    if len(numbers) == 4:
        x, y, width, height = numbers
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


def of_yaml(
    path: Path, root: Path, names: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Noted], list[Noted] | None]:
    """Return the classes, the images to train on and those to test on.

    Args:
        path: the file data.yaml.
        root: the folder that all images must be in.
        names: the classes; None: those that the file names.

    Returns:
        The names of the classes, the images of ``train``, and those of ``test`` or
        else ``val``; None if the file names neither.

    Raises:
        ValueError: the file is not as of YOLO, names a folder outside ``root``, or
            names no images.
        FileNotFoundError: a folder is not there.
    """
    options = parsed(read_text(path, LARGEST_FILE), str(path))
    if not isinstance(options, Mapping) or not options.get("names"):
        raise ValueError(f"{path} must hold names, the classes, and train, a folder")
    classes = tuple(map(str, names or names_in(options)))
    noted: dict[str, list[Noted] | None] = {}
    for part, keys in _PARTS.items():
        key = next((name for name in keys if options.get(name)), None)
        folders = [] if key is None else _folders(options, key, path, root)
        images = chain.from_iterable(map(image_files, folders))
        noted[part] = [_noted(image, classes) for image in images] or None
    train = noted["train"]
    if train is None:
        raise ValueError(f"{path} names no images to train on: train must be a folder")
    for image in [*train, *(noted["test"] or ())]:
        strange = sorted({*image.labels} - {*classes})
        if strange:
            raise ValueError(
                f"the annotations of {image.file} have the class {strange[0]!r}, which "
                f"is none of {classes}"
            )
    return classes, train, noted["test"]


def names_in(options: Mapping[str, Any]) -> list[str]:
    """The names of the classes in data.yaml, by their numbers or in their order."""
    names = options["names"]
    if isinstance(names, Mapping):
        try:
            return [str(names[key]) for key in sorted(names, key=int)]
        except ValueError as error:
            raise ValueError(f"names must be numbered from 0, got {names}") from error
    return [str(name) for name in names]


def _folders(
    options: Mapping[str, Any],
    key: str,
    path: Path,
    root: Path,
) -> list[Path]:
    """The folders of images of a split."""
    values = options[key] if isinstance(options[key], list) else [options[key]]
    base = path.parent / str(options.get("path") or "")
    if not base.is_dir():  # that of the machine where the file was written
        base = path.parent
    return [_folder(str(value), base, path, root) for value in values]


def _folder(
    value: str,
    base: Path,
    path: Path,
    root: Path,
) -> Path:
    """One folder; files of Roboflow name ``../train/images`` for ``train/images``."""
    tried = [base / value, base / value.lstrip("./")]
    folder = next((place for place in tried if place.is_dir()), None)
    if folder is None:
        raise FileNotFoundError(f"{path} names {value}, and there is no such folder")
    if not folder.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{path} names {value}, which is not below {root}")
    return folder


def labels_beside(image: Path) -> Path:
    """The file of labels of an image: in ``labels`` where the image is in ``images``,
    or else beside it.
    """
    parts = list(image.parts)
    places = [place for place, part in enumerate(parts[:-1]) if part in _BESIDE]
    if places:
        parts[places[-1]] = _BESIDE[parts[places[-1]]]
    return Path(*parts).with_suffix(".txt")


def _noted(image: Path, classes: Sequence[str]) -> Noted:
    file = labels_beside(image)
    if not file.is_file():  # nothing is in the image
        return Noted(image, [], [], image)
    labels, boxes = yolo_boxes(file, classes)
    return Noted(image, labels, boxes, file, shares=True)
