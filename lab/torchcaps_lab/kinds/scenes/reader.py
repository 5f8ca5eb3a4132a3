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
    images = {path: _images_of(path, place) for path in noted}
    return _form("COCO", {path: _part(path) for path in noted}, images)


def _form(
    name: str, parts: Mapping[Path, str | None], images: Mapping[Path, Path | None]
) -> Form | None:
    """Annotations of each split, or one; None if their images are missing.

    Args:
        name: that of the form, for people.
        parts: the split of each file or folder of annotations.
        images: the folder of its images; None if they are missing.
    """
    there = [path for path in parts if images[path] is not None]
    if not there:
        return None
    first = {parts[path]: path for path in reversed(there)}
    train = first.get("train", there[0])
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
    return Form(name, root, train, more, unused=unused)


def _is_coco(path: Path) -> bool:
    return _holds(path, '"annotations"') or _holds(path, '"categories"')


def _part(path: Path) -> str | None:
    """The split that the name of a file, or of its folder, stands for."""
    words = [*re.split(r"[\W_\d]+", path.stem), path.parent.name]
    return next(filter(None, map(part_called, words)), None)


def _images_of(path: Path, place: Place) -> Path | None:
    """The folder below which the images of a file of COCO lie."""
    named = re.search(r'"file_name"\s*:\s*("(?:[^"\\]|\\.)+")', _beginning(path))
    if named is None:
        return None
    folders = {path.parent, place.path, *(image.parent for image in place.files)}
    holding = _holding(parsed_json(named[1], str), folders)
    part = _part(path)
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
    first: dict[Path, Path] = {}
    for file in place.with_suffix(".xml"):
        first.setdefault(file.parent, file)
    files = [file for file in first.values() if _holds(file, "<annotation", "<bndbox")]
    images = {file.parent: _images_of_voc(file, place) for file in files}
    parts = {
        folder: part_called(folder.name) or part_called(folder.parent.name)
        for folder in images
    }
    return _form("Pascal VOC", parts, images)


def _images_of_voc(file: Path, place: Place) -> Path | None:
    """The folder of the image of a file of VOC, the nearest if it is in several."""
    named = re.search(r"<filename>([^<]+)</filename>", _beginning(file))
    if named is None:
        return None
    own = file.parent
    folders = {own, *(image.parent for image in place.files)}
    holding = _holding(unescape(named[1]).strip(), folders)
    return min(
        holding,
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
    """Folders ``images`` and ``labels``, and classes.txt in one of them."""
    images = place.inner("images")
    labels = place.inner("labels")
    lists = [path for path in place.files if path.name == CLASSES]
    if images is None or labels is None or not lists:
        return None
    if not {path.suffix.lower() for path in images.iterdir()} & image_suffixes():
        return None
    return Form("YOLO", images, labels, {"classes": [*classes_in(lists[0])]})


def _check_named(place: Place) -> None:
    """Raise a `ValueError` if there are boxes as of YOLO, and nothing names their
    classes.
    """
    beside = (path for path in place.with_suffix(".txt") if "labels" in path.parts)
    file = next(beside, None)
    boxes: list[Any] = []
    with suppress(ValueError):
        boxes = [] if file is None else yolo_boxes(file, ())[1]
    if boxes:
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
