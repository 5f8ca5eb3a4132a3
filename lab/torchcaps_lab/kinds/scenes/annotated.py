"""Images of the user's own with boxes around things: COCO's JSON, XML files as of
Pascal VOC, text files as of YOLO.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from torchcaps.spec import argument, settings
from torchcaps.whole import expanded, resolved, seen_from
from torchcaps_lab.data.base import DataSet, register_dataset
from torchcaps_lab.data.examples import Batch, Examples, Parts
from torchcaps_lab.data.files import ListedFile
from torchcaps_lab.data.listed import Decoded, Listed
from torchcaps_lab.data.manifest import Manifest
from torchcaps_lab.kinds.images.decoding.handwriting import orientation
from torchcaps_lab.kinds.images.decoding.picture import in_mode, opened
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.images.sets.listed import ListedImages, reading
from torchcaps_lab.kinds.scenes.coco import Coco
from torchcaps_lab.kinds.scenes.noted import (
    Noted,
    check_names,
    check_noted,
    class_of_each,
    doubts,
)
from torchcaps_lab.kinds.scenes.stated import frame_of
from torchcaps_lab.kinds.scenes.voc import voc_images
from torchcaps_lab.kinds.scenes.yolo import (
    CLASSES,
    YAML,
    labels_beside,
    of_yaml,
    yolo_images,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from torchcaps_lab.kinds.images.decoding.bands import Bands

_OUTSIDE = 1.0  # pixels by which a box may leave its image, as rounding does


@dataclass(frozen=True, eq=False)
class AnnotatedSet(Examples):
    """Images with boxes around things; the parts of a batch are these boxes, filled, so
    that they move along.

    Attributes:
        things: the class of each, int64 (N, K).
        boxes: around each, whole pixels, int64 (N, K, 4); empty where an image has
            fewer than K things.

    Example:
        >>> from torchcaps_lab.data import AnnotatedSet
        >>> images, mask = (
        ...     torch.zeros(1, 1, 8, 8, dtype=torch.uint8),
        ...     torch.tensor([[False, True]]),
        ... )
        >>> boxes = torch.tensor([[[1, 2, 5, 6], [4, 0, 8, 3]]])
        >>> two = AnnotatedSet(
        ...     images, mask, ("cat", "dog"), things=torch.tensor([[1, 1]]), boxes=boxes
        ... )
        >>> two[0].parts.pictures.sum((2, 3, 4))
        tensor([[16., 12.]])
    """

    things: Tensor = field(kw_only=True)
    boxes: Tensor = field(kw_only=True)

    several = True

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        return {
            **super()._rows(indices),
            "things": self.things[indices],
            "boxes": self.boxes[indices],
        }

    def _relabelled(self, places: Tensor, classes: tuple[str, ...]) -> Examples:
        relabelled = super()._relabelled(places, classes)
        assert isinstance(relabelled, AnnotatedSet)
        return replace(relabelled, things=places[self.things])

    def digest(self) -> str:
        """SHA-256 of images, labels and boxes."""
        boxes = torch.cat([self.things[..., None], self.boxes], -1).cpu().contiguous()
        content = super().digest().encode() + boxes.numpy().tobytes()
        return hashlib.sha256(content).hexdigest()

    def _fetch(self, indices: list[int]) -> Batch:
        batch = super()._fetch(indices)
        boxes = self.boxes[indices].to(batch.inputs.device)[..., None]  # [B, K, 4, 1]
        rows, columns = (
            torch.arange(side, device=boxes.device) for side in batch.inputs.shape[2:]
        )
        across = (columns >= boxes[:, :, 0]) & (columns < boxes[:, :, 2])
        down = (rows >= boxes[:, :, 1]) & (rows < boxes[:, :, 3])
        # [B, K, 1, H, W]
        filled = (down[..., None] & across[:, :, None])[:, :, None].to(batch.inputs)
        filled = filled.expand(-1, -1, batch.inputs.shape[1], -1, -1)
        parts = Parts(self.things[indices].to(boxes.device), filled)
        return batch._replace(parts=parts)


_BETWEEN = "\n"
"""What stands between the classes of an image in its category: no name has it."""


@dataclass(frozen=True)
class _Item(ListedFile):
    """An image and its annotation.

    Args:
        name: its path below the folder that holds all images.
        category: the classes of its things.
        path: its file.
        noted: its annotation.
    """

    noted: Noted


@register_dataset("annotated")
@settings
class AnnotatedImages(ListedImages):
    """Images of the user's own with any number of boxes around things of any class.

    COCO's and VOC's files state the size of each image. Boxes follow an image that was
    resized since, and one that was annotated as it is stored and is shown turned by its
    EXIF data. A turn that leaves width and height as they were cannot be noticed: such
    boxes, and all of YOLO's, are those of the upright image.

    Args:
        root: the folder of the images. Files of annotations name images by their paths
            below it.
        annotations: a .json file as in COCO; a folder of .xml files as in Pascal VOC,
            one for each image; a folder of .txt files as in YOLO, whose lines are the
            number of a class, then centre, width and height of a box as shares of the
            image's sides; or YOLO's ``data.yaml``, which names the classes and the
            folders of images, each with a folder of labels beside it.
        classes: the names of the classes; default: the categories of COCO's file, all
            names in VOC's, or those of ``classes.txt`` or ``data.yaml`` for YOLO, whose
            numbers count the names there.
        validation_annotations: the annotations of the validation images, in the same
            form; default: a share of the images is for validation, unless ``data.yaml``
            names a ``val`` beside a ``test``.
        validation_root: the folder of the validation images; default: ``root``.
        test_annotations: the annotations of the test images, in the same form; default:
            the validation images become the test set, or else a share of the images,
            unless ``data.yaml`` names a ``test``.
        test_root: the folder of the test images; default: ``root``.
        channels: 1 makes every image grey, 3 colour.
        resize: how images and their boxes are resized; a ``crop`` discards everything
            outside it.

    Raises:
        FileNotFoundError: there is no root, no file of annotations, or no image that
            they name.
        ValueError: a file cannot be read, or contradicts itself: a value has another
            type, an image, a number or the name of a class stands twice, a number
            points nowhere; it names an image outside ``root``; a box is empty or
            outside its image; the size that COCO's or VOC's file states has another
            shape than the image; a class is unknown; or no class is named.

    Source: Lin et al. 2014, "Microsoft COCO", and cocodataset.org, "Data format";
    Everingham et al. 2010, "The PASCAL Visual Object Classes Challenge", whose pixels
    count from 1.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from torchcaps_lab.data import AnnotatedImages
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("1", "2", "3"):
        ...         Image.new("RGB", (40, 30), "gold").save(
        ...             Path(folder) / f"{name}.png"
        ...         )
        ...         _ = (Path(folder) / f"{name}.txt").write_text("0 0.5 0.5 0.2 0.4")
        ...     data = AnnotatedImages(
        ...         folder, folder, classes=("coin", "note"), validation=0.0
        ...     )
        ...     print(data.classes, data.train.boxes[0].tolist())
        ('coin', 'note') [[16, 9, 24, 21]]
    """

    task: ClassVar[str] = "detection"
    model: ClassVar[str] = "scene_capsnet"
    reads: ClassVar[str] = "scenes"

    root: str | Path
    annotations: str | Path
    validation_annotations: str | Path | None = argument(default=None, kw_only=True)
    validation_root: str | Path | None = argument(default=None, kw_only=True)
    test_annotations: str | Path | None = argument(default=None, kw_only=True)
    test_root: str | Path | None = argument(default=None, kw_only=True)
    channels: Literal[1, 3] = argument(default=3, kw_only=True)
    resize: Literal["pad", "crop", "stretch"] = argument(default="pad", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The size of each upright image, and its EXIF orientation.
        self._shown: dict[str, tuple[tuple[int, int], int]] = {}
        _ = self.listed  # problems of the files are reported at once

    @property
    def called(self) -> str:
        """The folder that holds those of the images and of the annotations, or else
        that of the images.
        """
        root = resolved(expanded(self.root))
        annotations = resolved(expanded(self.annotations))
        holder = annotations if annotations.is_dir() else annotations.parent
        beside = holder != root and holder.parent == root.parent
        return root.parent.name if beside else root.name

    def fingerprint(self) -> str:
        """A digest of the training and validation images and of all boxes in them."""
        return DataSet.fingerprint(self)

    def notes(self) -> tuple[str, ...]:
        """What all images note, and boxes that are left out or stand twice."""
        return (
            *super().notes(),
            *doubts([item.noted for item in self._items.values()]),
        )

    def labels_of(self, category: str) -> tuple[str, ...]:
        """The classes of the things in an image."""
        return (*filter(None, category.split(_BETWEEN)),)

    def _check_classes(self, listed: Listed) -> None:
        """Nothing: the annotations were checked, which may have one class."""

    def list_items(self) -> Listed:
        """The classes, and the images of each split of the annotations."""
        root = _there(expanded(self.root), "root")
        annotations = expanded(self.annotations)
        names = check_names(self.named, "classes") or None
        roots = [root]
        if annotations.suffix.lower() in YAML:
            listed = of_yaml(annotations, root, names)
        else:
            listed = _annotations(annotations, root, names)
        of_parts = {
            "validation": (self.validation_annotations, self.validation_root),
            "test": (self.test_annotations, self.test_root),
        }
        for part, (path, place) in of_parts.items():
            if path is not None:
                inside = root if place is None else expanded(place)
                roots.append(_there(inside, f"{part}_root"))
                other = _annotations(expanded(path), inside, listed.classes)
                listed.parts[part] = other.parts["train"]
                listed.left_out |= other.left_out
        for noted in listed.parts.values():
            check_noted(noted, listed.classes)
        _check_boxes(listed.parts["train"], annotations)
        every = [*chain(*listed.parts.values())]
        labelled = [image for image in every if image.source != image.file]
        # Folders of labels with one folder of images: those of other splits have no
        # labels in each, and those without any are in the first.
        of_file = {image.file: image for image in every[::-1]} | _alike(labelled)
        # Images of several folders may have one name in these.
        base = os.path.commonpath([folder.absolute() for folder in roots])

        def name_of(path: Path) -> str:
            return Path(os.path.relpath(path, base)).as_posix()

        for part, noted in listed.parts.items():
            listed.parts[part] = [
                _Item(
                    name_of(image.file),
                    _BETWEEN.join(sorted({*image.labels})),
                    image.file,
                    image,
                )
                for image in noted
                if image.source != image.file or image is of_file[image.file]
            ]
        used = {item.name for item in listed.items}
        others = {name_of(Path(path)): why for path, why in listed.left_out.items()}
        listed.left_out = {name: others[name] for name in others if name not in used}
        listed.separator = _BETWEEN
        return listed

    def _open(self, item: Any, channels: int) -> "Image | Bands":
        """The decoded image, whose size and turn are kept for its boxes."""
        with reading(item), opened(item.path) as source:
            turn = orientation(source)
            image = in_mode(source, channels, self.levels, self.background)
        self._shown[item.name] = image.size, turn
        return image

    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """The images of each split with their boxes."""
        sets, problems = super()._decode(manifest, decoded)
        for part, images in sets.items():
            items = [self._items[entry.name] for entry in manifest.parts[part]]
            sets[part] = self._with_boxes(images, items)
        return sets, problems

    def _with_boxes(self, images: Examples, items: "Sequence[_Item]") -> AnnotatedSet:
        """Images with the boxes in each."""
        _, height, width = images.raw_image_shape
        boxes = []
        for item in items:
            if item.name not in self._shown:  # another run decoded it into a file
                self._open(item, self.channels)
            size, turn = self._shown[item.name]
            placed = _placed(item.noted, size, turn)
            boxes.append(_moved(placed, size, (width, height), self.resize))
        most = max([1, *map(len, boxes)])
        things = torch.zeros(len(items), most, dtype=torch.int64)
        moved = torch.zeros(len(items), most, 4, dtype=torch.int64)
        shown = torch.zeros(len(items), len(images.classes), dtype=torch.bool)
        for row, (item, corners) in enumerate(zip(items, boxes, strict=True)):
            labels = torch.tensor(
                [images.classes.index(name) for name in item.noted.labels],
                dtype=torch.int64,
            )
            inside = (corners[:, 2:] > corners[:, :2]).all(1)  # not cropped away
            things[row, : len(labels)] = labels
            moved[row, : len(labels)] = corners * inside[:, None]
            shown[row, labels[inside]] = True
        return AnnotatedSet(
            images.inputs,
            shown,
            images.classes,
            images.files,
            things=things,
            boxes=moved,
        )


def _placed(noted: Noted, shown: tuple[int, int], turn: int) -> Tensor:
    """The boxes of an image in its upright pixels, (K, 4); a `ValueError` if one is
    empty, or outside.
    """
    frame = frame_of(noted.size, shown, turn, noted.source, noted.file)
    boxes = torch.tensor(noted.boxes, dtype=torch.float64).view(-1, 4)
    wide, high = frame.stated
    sides = torch.tensor([wide, high, wide, high], dtype=torch.float64)
    boxes = boxes * sides if noted.shares else boxes
    for label, box in zip(noted.labels, boxes, strict=True):
        place = [round(side, 2) for side in box.tolist()]
        start = (
            f"the box of {label!r} in {noted.file}, {place} (left, top, right, bottom) "
            f"by {noted.source}"
        )
        if not (box[2:] > box[:2]).all():
            raise ValueError(
                f"{start}, is empty: right must be beyond left, and bottom below top"
            )
        if (box < -_OUTSIDE).any() or (box > sides + _OUTSIDE).any():
            raise ValueError(f"{start}, is outside the image of {wide} x {high} pixels")
    return frame.boxes(boxes)


def _moved(
    boxes: Tensor, size: tuple[int, int], to: tuple[int, int], resize: str
) -> Tensor:
    """Boxes in an image that was resized, whole pixels of at least 1; empty if they
    were cropped away.
    """
    old = torch.tensor(size).double()
    new = torch.tensor(to).double()
    scale = new / old
    if resize != "stretch":
        scale = (scale.min() if resize == "pad" else scale.max()).expand(2)
    shift = (new - scale * old) / 2
    moved = (boxes.view(-1, 2, 2) * scale + shift).flatten(1)
    low = moved[:, :2].round()
    high = moved[:, 2:].round()
    # What ends at the last pixel may begin within half of it.
    inside = (moved[:, 2:] <= new + _OUTSIDE) & (moved[:, :2] < new)
    low = torch.where(inside, torch.minimum(low, new - 1), low)
    high = torch.maximum(high, low + 1)
    return torch.cat([low.clamp_min(0), torch.minimum(high, new)], 1).long()


def _alike(noted: Iterable[Noted]) -> dict[Path, Noted]:
    """The annotated images by their files; a `ValueError` if one that is in several
    splits has other boxes in each.
    """
    of_files: dict[Path, Noted] = {}
    for image in noted:
        other = of_files.setdefault(image.file, image)
        if (other.labels, other.boxes) != (image.labels, image.boxes):
            raise ValueError(
                f"{image.file} must have the same boxes in each split, and has others by "
                f"{other.source} than by {image.source}"
            )
    return of_files


def _there(path: Path, description: str) -> Path:
    if not path.exists():
        raise FileNotFoundError(f"{description} {path} does not exist{seen_from(path)}")
    return path


def _annotations(path: Path, root: Path, names: Sequence[str] | None) -> Listed:
    """The classes, and the images with their boxes, of a file or folder of
    annotations; all of them are to train on.
    """
    _there(path, "annotations")
    if path.is_file() and path.suffix == ".json":
        coco = Coco(path)
        noted = coco.boxes(root)
        named: Sequence[str] = [*coco.names.values()]
    else:
        files = [file for file in sorted(path.glob("[!.]*")) if file.name != CLASSES]
        voc, yolo = (
            [file for file in files if file.suffix == suffix]
            for suffix in (".xml", ".txt")
        )
        if bool(voc) == bool(yolo):
            both = " with .xml and .txt" if voc else ""
            raise ValueError(
                "annotations must be a .json file as of COCO, or a folder of either "
                f".xml files as of VOC or .txt files as of YOLO, got {path}{both}"
            )
        if voc:
            noted = voc_images(voc, root)
            named = names or check_names(class_of_each(noted), path)
        else:
            named, noted = yolo_images(yolo, root, names)
    classes = (*(names or named),)
    for image in noted:
        _there(image.file, "the image")
    if not noted or not classes:
        raise ValueError(
            f"annotations {path} name no {'classes' if noted else 'images'}"
        )
    files_of_noted = {image.file.resolve() for image in noted}
    others = [
        file for file in image_files(root) if file.resolve() not in files_of_noted
    ]
    why = f"no annotation in {path} names it"
    return Listed(classes, {"train": noted}, dict.fromkeys(map(str, others), why))


def _check_boxes(train: Sequence[Noted], annotations: Path) -> None:
    """Raise a `ValueError` if no image to train on has a box; names where they were
    looked for.
    """
    if not any(image.labels for image in train):
        yaml = annotations.suffix.lower() in YAML
        labels = labels_beside(train[0].file, annotations.parent)
        files = f" in files such as {labels}" if yaml else ""
        raise ValueError(
            f"annotations {annotations} have no box in any of {len(train)} images to "
            f"train on{files}"
        )
