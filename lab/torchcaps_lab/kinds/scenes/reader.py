"""Reads images with boxes around things, in the forms that people have them in."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.whole import encoding_of, opened, parsed_json
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.reader import register_reader
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes
from torchcaps_lab.kinds.images.guess import looked_at, shape_of
from torchcaps_lab.kinds.images.reader import ImageReader
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.scenes.noted import named_below
from torchcaps_lab.kinds.scenes.yolo import (
    CLASSES,
    YAML,
    classes_in,
    labels_beside,
    of_yaml,
    yolo_boxes,
)
from torchcaps_lab.look import Guess, Place, plain_steps, trained_of, value_of, watched

_NETWORK = "scene_capsnet"
"""The network that learns boxes, of several things of a class, too."""

_BEGINNING = 2**20
"""Bytes of a file from which is seen what it is."""


class Form(NamedTuple):
    """Where images and their annotations lie.

    Args:
        name: that of the form, for people.
        root: the folder of the images.
        annotations: the file or the folder of the annotations.
        more: other arguments of the data set.
        trained: how many images are trained on, about; 0: a share of all.
        unused: the names of other files of annotations.
    """

    name: str
    root: Path
    annotations: Path
    more: Mapping[str, Any] = {}
    trained: int = 0
    unused: Sequence[str] = ()


@register_reader("scenes")
@dataclass(frozen=True)
class SceneReader(ImageReader):
    """Images with boxes around things."""

    in_program = ""

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """Annotations as of YOLO, COCO or Pascal VOC."""
        form = next((form for form in _forms(place) if form is not None), None)
        if form is None:
            return None
        files = image_files(form.root)
        shape, why_shape = shape_of(looked_at(files))
        shape.setdefault("channels", 1)
        train = form.trained or trained_of(len(files))
        options, why_steps = plain_steps(train)
        if "task" not in given and value_of(given.get("model")) in (None, _NETWORK):
            options |= {"model": _NETWORK, "model_args": {"boxes": True}}
            why_steps["model"] = f"{_NETWORK}, whose places vote for boxes"
        data = {
            "name": "AnnotatedImages",
            "root": str(form.root),
            "annotations": str(form.annotations),
            **form.more,
            **shape,
        }
        summary = f"AnnotatedImages, boxes as of {form.name} in {form.annotations}"
        if form.unused:
            summary += f"; not used: {some(form.unused)}"
        why = {"data": summary, **why_shape, **why_steps}
        return watched(Guess({**options, "data": data}, why), given, train // 9)

    @classmethod
    def report(cls, place: Place, seen: Guess | ValueError) -> Any:
        """The images that show each class."""
        return super(ImageReader, cls).report(place, seen)

    def in_folder(self, folder: Path) -> list[Path]:
        """The images in a folder, without masks beside them."""
        pictures = folder / "JPEGImages"
        return image_files(pictures if pictures.is_dir() else folder)


def _forms(place: Place) -> Iterator[Form | None]:
    yield _of_yaml(place)
    if not place.is_file:
        yield _of_coco(place)
        yield _of_voc(place)
        yield _of_labels(place)
        _check_named(place)


def _of_yaml(place: Place) -> Form | None:
    """The file data.yaml, or a folder with one."""
    for path in place.top:
        if path.suffix.lower() in YAML and _holds(path, "names:", "train:"):
            root = path.parent
            train = of_yaml(path, root, None).parts["train"]
            return Form("YOLO", root, path, trained=len(train) * 9 // 10)
    return None


def _of_coco(place: Place) -> Form | None:
    """Files of COCO, one for each split, or one."""
    noted = [path for path in place.with_suffix(".json") if _is_coco(path)]
    names = {path: _name_in_coco(path) for path in noted}
    if not any(names.values()):
        return None
    images = {path: _images_of(path, name, place) for path, name in names.items()}
    parts = {path: _part(path, place) for path in noted}
    return _form("COCO", place, parts, images, names)


def _form(
    form: str,
    place: Place,
    parts: Mapping[Path, str | None],
    images: Mapping[Path, Path | None],
    names: Mapping[Path, str | None],
) -> Form:
    """Annotations of each split, or one.

    Args:
        form: its name, for people.
        place: where they are.
        parts: the split of each file or folder of annotations.
        images: the folder of its images; None if they are missing.
        names: the first image that it names.

    Raises:
        ValueError: images to train on are missing, or no annotations are of them.
    """
    there = [path for path in parts if images[path] is not None]
    first = {parts[path]: path for path in reversed(there)}
    to_train = [path for path, part in parts.items() if part == "train"]
    train = first.get("train") or (None if to_train else first.get(None))
    if train is None and there and not to_train:
        held = ", ".join(str(path.relative_to(place.path)) for path in there)
        raise ValueError(
            f"{place.path} holds boxes as of {form} of {' and '.join(map(str, first))} "
            f"and of no train, in {held}: call those to train on 'train'"
        )
    if train is None:
        path = [*to_train, *parts][0]
        raise ValueError(
            f"{path} has boxes as of {form}, and the first image that it names is "
            f"missing: {names[path]!r}, the path of a file below {place.path} or a "
            "folder in it; class folders are read with --data ImageFolder"
        )
    more: dict[str, str] = {}
    for part in ("validation", "test"):
        path = first.get(part, train)
        if path != train:
            more[f"{part}_annotations"] = str(path)
            more[f"{part}_root"] = str(images[path])
    read = {str(train), *more.values()}
    missing = " (images are missing)"
    unused = tuple(
        path.name + missing * (path not in there)
        for path in parts
        if str(path) not in read
    )
    root = images[train]
    assert root is not None
    return Form(form, root, train, more, unused=unused)


def _is_coco(path: Path) -> bool:
    return _holds(path, '"annotations"') or _holds(path, '"categories"')


def _part(path: Path, place: Place) -> str | None:
    """The split that the name of a file, or of its folder in a place, stands for."""
    words = [*re.split(r"[\W_\d]+", path.stem), *_folders_of(path, place)[-1:]]
    return next(filter(None, map(part_called, words)), None)


def _folders_of(path: Path, place: Place) -> tuple[str, ...]:
    """The names of the folders in a place that a path is in."""
    return path.parent.relative_to(place.path).parts


def _name_in_coco(path: Path) -> str | None:
    """The first image that a file of COCO names."""
    named = re.search(r'"file_name"\s*:\s*("(?:[^"\\]|\\.)+")', _beginning(path))
    return None if named is None else parsed_json(named[1], str)


def _images_of(path: Path, name: str | None, place: Place) -> Path | None:
    """The folder below which the images of a file of COCO lie."""
    folders = {path.parent, place.path, *(image.parent for image in place.files)}
    holding = [] if name is None else _holding(name, folders)
    part = _part(path, place)
    for folder in holding:
        if part is not None and part_of(folder, part):
            return folder
    return holding[0] if holding else None


def part_of(folder: Path, part: str) -> bool:
    """Whether the name of a folder stands for a split."""
    return part_called(re.sub(r"[\W_\d]+$", "", folder.name)) == part


def _of_voc(place: Place) -> Form | None:
    """Folders of .xml files for each split, or one, beside a folder of images or among
    them.
    """
    files = place.with_suffix(".xml")
    first: dict[Path, Path] = {}
    for file in files:
        if file.parent not in first and _holds(file, "<annotation"):
            first[file.parent] = file
    # A picture may show nothing, and its file has no box.
    boxes = any(_holds(file, "<bndbox") for file in files if file.parent in first)
    names = {folder: _name_in_voc(file) for folder, file in first.items()}
    if not boxes or not any(names.values()):
        return None
    images = {folder: _images_of_voc(folder, names[folder], place) for folder in first}
    return _form("Pascal VOC", place, _parts_of(first, place), images, names)


def _parts_of(folders: Iterable[Path], place: Place) -> dict[Path, str | None]:
    """The split that the name of each folder, or of the one around it, stands for."""
    inside = {folder: _folders_of(folder / "file", place)[:-3:-1] for folder in folders}
    return {
        folder: next(filter(None, map(part_called, names)), None)
        for folder, names in inside.items()
    }


def _name_in_voc(file: Path) -> str | None:
    """The image that a file of VOC names."""
    named = re.search(r"<filename>([^<]+)</filename>", _beginning(file))
    return None if named is None else unescape(named[1]).strip()


def _images_of_voc(own: Path, name: str | None, place: Place) -> Path | None:
    """The folder of the image that a file of VOC in a folder names, the nearest if it
    is in several.
    """
    folders = {own, *(image.parent for image in place.files)}
    return min(
        [] if name is None else _holding(name, folders),
        key=lambda folder: (folder != own, folder.parent != own.parent),
        default=None,
    )


def _holding(name: str, folders: Iterable[Path]) -> list[Path]:
    """The folders below which there is a file of that name."""
    holding = []
    for folder in sorted(folders):
        with suppress(ValueError, FileNotFoundError):
            named_below(folder, name, "annotations")
            holding.append(folder)
    return holding


def _of_labels(place: Place) -> Form | None:
    """Folders of labels for each split, or one, beside folders of images or among
    them, and classes.txt.
    """
    lists = [path for path in place.files if path.name == CLASSES]
    if not lists:
        return None
    files = {*place.with_suffix(".txt")}
    images: dict[Path, Path] = {}
    names: dict[Path, str] = {}
    for image in place.with_suffix(*image_suffixes()):
        labels = labels_beside(image, place.path)
        if labels in files:
            images.setdefault(labels.parent, image.parent)
            names.setdefault(labels.parent, image.name)
    if not images:
        return None
    form = _form("YOLO", place, _parts_of(images, place), images, names)
    return form._replace(more={**form.more, "classes": [*classes_in(lists[0])]})


def _check_named(place: Place) -> None:
    """Raise a `ValueError` if there are boxes as of YOLO, and nothing names their
    classes, or they are of no image.
    """
    beside = (path for path in place.with_suffix(".txt") if "labels" in path.parts)
    file = next((path for path in beside if path.name != CLASSES), None)
    boxes: list[Any] = []
    with suppress(ValueError):
        boxes = [] if file is None else yolo_boxes(file, ())[1]
    if not boxes:
        return
    if any(path.name == CLASSES for path in place.files):
        raise ValueError(
            f"{file} holds boxes as of YOLO, and no image has labels of its name: "
            "images must be in a folder 'images' beside 'labels', or beside their "
            "labels"
        )
    raise ValueError(
        f"{file} holds boxes as of YOLO, and nothing names their classes. Write "
        f"{place.path / 'data.yaml'}, with 'names: [...]', the classes in their "
        "order, and 'train: ...', the folder of the images, and maybe 'val: ...'"
    )


def _beginning(path: Path) -> str:
    with opened(path) as file:
        content = file.read(_BEGINNING)
    return content.decode(encoding_of(content), errors="replace")


def _holds(path: Path, *words: str) -> bool:
    """Whether the beginning of a file has all these words."""
    text = _beginning(path)
    return all(word in text for word in words)
