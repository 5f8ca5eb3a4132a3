"""Images of the user's own with boxes around things: COCO's JSON, XML files as of
Pascal VOC, text files as of YOLO.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from torchcaps.numerics import ProperShare
from torchcaps.spec import argument, settings
from torchcaps.whole import expanded, resolved, seen_from
from torchcaps_lab.data.base import (
    TEST_SEED,
    DataSet,
    group_of,
    register_dataset,
    stable_split,
)
from torchcaps_lab.data.examples import Batch, Examples, Parts
from torchcaps_lab.data.listed import Listed
from torchcaps_lab.data.manifest import (
    PARTS,
    Entry,
    Manifest,
    lacking_lines,
    left_out_lines,
)
from torchcaps_lab.data.streams import digest_of
from torchcaps_lab.kinds.images.decoding.bands import Range
from torchcaps_lab.kinds.images.decoding.handwriting import orientation
from torchcaps_lab.kinds.images.decoding.picture import (
    BLACK,
    Background,
    broken_images,
    in_mode,
    opened,
    to_tensor,
)
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.images.sets.listed import Side
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


@register_dataset("annotated")
@settings
class AnnotatedImages(DataSet):
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
        size: height and width of the images, one number for both; default: their own,
            which must be the same for all.
        channels: 1 makes every image grey, 3 colour.
        resize: how images and their boxes are resized; a ``crop`` discards everything
            outside it.
        range: the pixel values that become black and white; default: the whole range of
            the type.
        background: the colour behind transparent parts, by name or as ``#ffd700``.
        test: share of the images that become the test set, the same for every ``seed``.
        group_before: as of :class:`ImageFolder`.
        skip_broken: leave out images that cannot be read, with a note, instead of
            raising an error.

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
    names: Sequence[str] | None = argument(default=None, alias="classes", kw_only=True)
    validation_annotations: str | Path | None = argument(default=None, kw_only=True)
    validation_root: str | Path | None = argument(default=None, kw_only=True)
    test_annotations: str | Path | None = argument(default=None, kw_only=True)
    test_root: str | Path | None = argument(default=None, kw_only=True)
    size: Side | tuple[Side, Side] | None = argument(default=None, kw_only=True)
    channels: Literal[1, 3] = argument(default=3, kw_only=True)
    resize: Literal["pad", "crop", "stretch"] = argument(default="pad", kw_only=True)
    levels: Range | None = argument(default=None, alias="range", kw_only=True)
    background: Background = argument(default=BLACK, kw_only=True)
    test_share: ProperShare = argument(default=0.2, alias="test", kw_only=True)
    group_before: str = argument(default="", kw_only=True)
    skip_broken: bool = argument(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _ = self._annotated  # problems of the files are reported at once

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each label."""
        return self._annotated.classes

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

    def load_train(self) -> Examples:
        """Read the training images, those for validation included."""
        return self._load_noted([*self._parts["train"], *self._parts["validation"]])

    def load_validation(self) -> Examples | None:
        """Read the validation images of annotations of their own."""
        if "validation" in self._annotated.parts:
            return self.validation
        return None

    def load_test(self) -> Examples:
        """Read the test images."""
        return self._load_noted(self._parts["test"])

    def notes(self) -> tuple[str, ...]:
        """Which images to test on are also trained on, and what is left out."""
        # Images to test on are read last, so their classes are those of the files.
        parts = {
            "train": self.train.shown(),
            "validation": self.validation.shown(),
            "test": class_of_each(self._parts["test"]),
        }
        return (
            *self._annotated.notes,
            *self.contradictions(),
            *lacking_lines(self.classes, parts),
            *left_out_lines(self._annotated.left_out),
            *doubts([*chain(*self._parts.values())]),
        )

    def record(self) -> Manifest:
        """The files of each split; the classes of its things are those of an image."""
        entries = {part: _entries(self._parts[part]) for part in PARTS}
        return Manifest(self.classes, entries)

    @cached_property
    def _train_and_validation(self) -> tuple[Examples, Examples]:
        both = self.load_train()
        rows = torch.arange(len(both))
        count = len(self._parts["train"])
        return both.subset(rows[:count]), both.subset(rows[count:])

    @cached_property
    def _parts(self) -> dict[str, list[Noted]]:
        """The images of each split; a share of the others where the annotations do not
        name them.
        """
        parts = dict(self._annotated.parts)
        if "all" in parts:
            parts["train"], parts["test"] = self._divided(
                parts.pop("all"), self.test_share, TEST_SEED
            )
        if "validation" not in parts:
            parts["train"], parts["validation"] = self._divided(
                parts["train"], self.validation_share, self.seed
            )
        return parts

    def _divided(
        self, noted: Sequence[Noted], share: float, seed: int
    ) -> tuple[list[Noted], list[Noted]]:
        """The rest of some images, and a share of them that is put aside, chosen by
        content in whole groups.
        """
        digests = [digest_of(image.file) for image in noted]
        shown = [[name in image.labels for name in self.classes] for image in noted]
        groups = None
        if self.group_before:
            names = [image.file.as_posix() for image in noted]
            groups = [group_of(name, self.group_before) for name in names]
        rest, aside = stable_split(torch.tensor(shown), digests, share, seed, groups)
        return [noted[row] for row in rest], [noted[row] for row in aside]

    @cached_property
    def _annotated(self) -> Listed:
        """The classes, and the images of each split of the annotations."""
        root = _there(expanded(self.root), "root")
        annotations = expanded(self.annotations)
        names = None if self.names is None else check_names(self.names, "classes")
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
                _there(inside, f"{part}_root")
                other = _annotations(expanded(path), inside, listed.classes)
                listed.parts[part] = other.parts["train"]
                listed.left_out |= other.left_out
        for noted in listed.parts.values():
            check_noted(noted, listed.classes)
        _check_boxes(listed.parts["train"], annotations)
        for image in chain(*listed.parts.values()):
            listed.left_out.pop(str(image.file), None)
        if self.skip_broken:
            _leave_out_broken(listed, self.levels)
        listed.find_test("images")
        return listed

    def _load_noted(self, noted: Sequence[Noted]) -> AnnotatedSet:
        sides = (self.size, self.size) if isinstance(self.size, int) else self.size
        images = list[Tensor]()
        boxes = list[Tensor]()
        for each in noted:
            with opened(each.file) as source:
                turn = orientation(source)
                image = in_mode(source, self.channels, self.levels, self.background)
            height, width = sides = sides or image.size[::-1]
            if self.size is None and image.size != (width, height):
                raise ValueError(
                    f"images must have one size, {width} x {height}, {each.file} has "
                    f"{image.size}; pass size"
                )
            images.append(to_tensor(image, (self.channels, height, width), self.resize))
            placed = _placed(each, image.size, turn)
            boxes.append(_moved(placed, image.size, (width, height), self.resize))
        if images:
            pixels = torch.stack(images)
        else:
            empty = (0, self.channels, *(sides or (1, 1)))
            pixels = torch.zeros(empty, dtype=torch.uint8)
        return self._set_of(noted, pixels, boxes)

    def _set_of(
        self, noted: Sequence[Noted], pixels: Tensor, boxes: Sequence[Tensor]
    ) -> AnnotatedSet:
        """Images, uint8 (N, C, H, W), with the boxes in each, (K, 4)."""
        most = max([1, *map(len, boxes)])
        things = torch.zeros(len(noted), most, dtype=torch.int64)
        placed = torch.zeros(len(noted), most, 4, dtype=torch.int64)
        shown = torch.zeros(len(noted), len(self.classes), dtype=torch.bool)
        for row, (each, corners) in enumerate(zip(noted, boxes, strict=True)):
            labels = torch.tensor(
                [self.classes.index(name) for name in each.labels], dtype=torch.int64
            )
            inside = (corners[:, 2:] > corners[:, :2]).all(1)  # not cropped away
            things[row, : len(labels)] = labels
            placed[row, : len(labels)] = corners * inside[:, None]
            shown[row, labels[inside]] = True
        files = tuple(str(each.file) for each in noted)
        return AnnotatedSet(
            pixels, shown, self.classes, files, things=things, boxes=placed
        )


def _entries(noted: Sequence[Noted]) -> list[Entry]:
    """The files of images, and the classes of their things."""
    return [
        Entry(str(each.file), ", ".join(sorted({*each.labels})), digest_of(each.file))
        for each in noted
    ]


def _leave_out_broken(listed: Listed, levels: Range | None) -> None:
    """Leave out the images that cannot be read."""
    files = [image.file for image in chain(*listed.parts.values())]
    broken = broken_images(files, levels)
    listed.left_out |= {str(file): why for file, why in broken.items()}
    for noted in listed.parts.values():
        noted[:] = [image for image in noted if image.file not in broken]
    if not listed.parts["train"]:
        raise ValueError("none of the images to train on can be read")


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
