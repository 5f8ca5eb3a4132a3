"""Images with a class for each pixel: masks beside pictures, COCO annotations, and the
pixels of scenes.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.numerics import Size
from torchcaps.spec import Within, argument, settings
from torchcaps.whole import LARGEST_NOTE, read_text, seen_from
from torchcaps_lab.data.base import (
    DataSet,
    find_data_dir,
    group_of,
    register_dataset,
)
from torchcaps_lab.data.boxes import INK
from torchcaps_lab.data.examples import Batch, Composition, Examples
from torchcaps_lab.data.manifest import (
    PARTS,
    Entry,
    Manifest,
    lacking_lines,
    left_out_lines,
)
from torchcaps_lab.data.schema import each_once
from torchcaps_lab.data.streams import digest_of
from torchcaps_lab.data.transforms.draws import random_integers
from torchcaps_lab.data.transforms.preprocess import MOVES, Preprocess
from torchcaps_lab.kinds.images.decoding.bands import Bands, Range
from torchcaps_lab.kinds.images.decoding.handwriting import orientation, upright
from torchcaps_lab.kinds.images.decoding.picture import (
    BLACK,
    Background,
    broken_images,
    image_suffixes,
    in_mode,
    opened,
    to_tensor,
)
from torchcaps_lab.kinds.images.doubts import image_doubts
from torchcaps_lab.kinds.images.made.base import Part
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.pixels.doubts import (
    Mask,
    check_colours,
    check_drawn,
    count_values,
    mask_lines,
    nearest_of,
)
from torchcaps_lab.kinds.scenes.coco import Coco, check_same_size
from torchcaps_lab.kinds.scenes.made import DigitScenes, Scenery
from torchcaps_lab.kinds.scenes.noted import check_names
from torchcaps_lab.kinds.scenes.stated import frame_of
from torchcaps_lab.look import Fit

NO_CLASS = 255
"""The label of pixels that count for nothing, and of the margins of smaller pictures.
"""

_MOST = 64
"""Different values of masks that are taken for classes; more are those of a picture."""


@dataclass(frozen=True)
class Cuts(Composition):
    """Random squares of images and, in the same places, of their labels; mirrored and
    turned by quarters.

    Args:
        size: side of a square, in pixels.
        count: the number of squares from each image.

    Example:
        >>> from torchcaps_lab.data import Cuts
        >>> Cuts(size=32, count=4).image_shape((1, 64, 96))
        (1, 32, 32)
    """

    size: int
    count: int = 1

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """The same channels, the side of a square."""
        return raw[0], self.size, self.size

    def __call__(
        self,
        batch: Batch,
        epoch: int,
        seed: int,
    ) -> Batch:
        """``count`` squares of each image, one after the other."""
        rows = torch.arange(
            len(batch.inputs), device=batch.inputs.device
        ).repeat_interleave(self.count)
        places = batch.indices.repeat_interleave(self.count) * self.count
        places = places + torch.arange(self.count, device=places.device).repeat(
            len(batch.inputs)
        )
        draws = random_integers(seed, epoch, places.cpu()).tolist()
        squares: list[Tensor] = []
        labels: list[Tensor] = []
        for row, draw in zip(rows.tolist(), draws, strict=True):
            squares.append(self._cut(batch.inputs[row], draw))
            labels.append(self._cut(batch.labels[row], draw))
        images = torch.stack(squares)
        return batch._replace(
            inputs=images,
            labels=torch.stack(labels),
            indices=batch.indices[rows],
            pictures=images,
        )

    def _cut(self, part: Tensor, draw: int) -> Tensor:
        for axis in (-2, -1):
            draw, start = divmod(draw, part.shape[axis] - self.size + 1)
            part = part.narrow(axis, start, self.size)
        part = part.flip(-1) if draw & 1 else part
        part = part.flip(-2) if draw & 2 else part
        return part.mT if draw & 4 else part


@dataclass(frozen=True, eq=False)
class MaskSet(Examples):
    """Images whose labels are masks: uint8 (N, H, W), the class of each pixel, 255 for
    none.

    Batches have them as int64 (B, H, W).

    Example:
        >>> from torchcaps_lab.data import MaskSet
        >>> masks = torch.zeros(2, 8, 8, dtype=torch.uint8)
        >>> MaskSet(masks[:, None], masks, classes=("sky", "ground"))[0].labels.shape
        torch.Size([1, 8, 8])
    """

    def _check_labels(self) -> None:
        size = (len(self.inputs), *self.inputs.shape[2:])
        labels = self.labels
        if labels.dtype != torch.uint8 or labels.shape != size:
            raise ValueError(
                f"labels must be uint8 {size}, one a pixel, got {labels.dtype} "
                f"{tuple(labels.shape)}"
            )
        if bool(((labels >= len(self.classes)) & (labels != NO_CLASS)).any()):
            raise ValueError(
                f"labels must be in 0..{len(self.classes) - 1}, or {NO_CLASS} for none"
            )
        if (
            isinstance(self.composition, Cuts)
            and len(self)
            and self.composition.size > min(size[1:])
        ):
            raise ValueError(
                f"cut must be at most {min(size[1:])} for images of {size[1]} x "
                f"{size[2]}"
            )

    def labelled(self, labels: Tensor) -> Tensor:
        """The labels of pixels that are of a class."""
        return labels[labels != NO_CLASS]

    def counts(self) -> dict[str, int]:
        """How many pictures have pixels of each class, by its name."""
        counts = dict.fromkeys(self.classes, 0)
        for mask in self.labels:
            for label in mask.unique().tolist():
                if label != NO_CLASS:
                    counts[self.classes[label]] += 1
        return counts

    def _used_labels(self) -> list[int]:
        return [label for label in self.labels.unique().tolist() if label != NO_CLASS]

    def _relabelled(self, places: Tensor, classes: tuple[str, ...]) -> Examples:
        table = torch.full(
            (NO_CLASS + 1,), NO_CLASS, dtype=torch.uint8, device=places.device
        )
        table[: len(places)] = places.to(torch.uint8)
        return replace(self, labels=table[self.labels.long()], classes=classes)

    def _fetch(self, indices: list[int]) -> Batch:
        batch = super()._fetch(indices)
        return batch._replace(labels=batch.labels.long())


_ENDS = re.compile(r"(?<=.)[_-](masks?|seg|segmentation|labels?|gt|L|groundtruth)$")
"""How the names of masks may end."""


def picture_of(stem: str) -> str:
    """The name of the picture that a mask of some name is of, without suffix.

    Example:
        >>> from torchcaps_lab.kinds.pixels.masks import picture_of
        >>> picture_of("cell_1"), picture_of("cell_1_mask")
        ('cell_1', 'cell_1')
    """
    return _ENDS.sub("", stem)


class _Pair(NamedTuple):
    picture: Path
    mask: Path


@register_dataset("masks")
@settings
class Masks(DataSet):
    """Pictures with a mask each, an image of the same size whose grey values or indexed
    colours are classes.

    ``root/images/cell1.jpg`` has the mask ``root/masks/cell1.png``, or
    ``cell1_mask.png``. With ``masks`` the
    name of a .json file, the masks are drawn from its COCO annotations by pycocotools,
    smaller things over larger ones, on a background; those of Pascal VOC are images
    already (``images="JPEGImages", masks="SegmentationClass", ignore=255,
    listed=...``).

    Whole pictures are put aside, in the order of their names, because neighbours in a
    stack or a film look alike: one of ``folds`` blocks to test on, and of the others
    the share ``validation``.

    Args:
        root: the folder; if it does not exist, it is looked for in the folder of the
            data sets.
        images: the folder of the pictures, below ``root``.
        masks: the folder of the masks, or a .json file.
        names: the names of the classes; default: their values.
        values: the values of the classes in masks, in their order; default: all that
            occur.
        ignore: the value of pixels that are ignored.
        listed: a file with the names of the pictures to use, one in each line and
            without suffix; default: all.
        cut: train on squares of this side, at new places in each epoch; default: on
            whole pictures.
        cuts: number of squares of each picture in one batch.
        fold: the number of the block of pictures that is the test set, from 0.
        folds: number of blocks, at least 2.
        channels: 1 for grey pictures, 3 for colour; others must be those of the
            pictures.
        nearest: round each pixel of a mask to the nearest of ``values``, for masks that
            were saved as JPEG or reduced in size.
        range: the pixel values of pictures that become black and white; default: the
            whole range of the type.
        background: the colour behind transparent parts, by name or as ``#ffd700``.
        group_before: as of :class:`ImageFolder`; blocks are of whole groups.
        skip_broken: leave out pictures that cannot be read, or whose mask cannot, with
            a note, instead of raising an error.

    Raises:
        FileNotFoundError: there is no such folder or file, or a picture has no mask.
        ValueError: an argument is out of range, or a mask has another size than its
            picture, says nothing, or has a value that is no class; names the file.

    Example:
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from torchcaps_lab.data import Masks
        >>> for number in range(5):
        ...     for folder in ("images", "masks"):
        ...         Path("cells", folder).mkdir(parents=True, exist_ok=True)
        ...         picture = Image.new("L", (40, 30), 90)
        ...         picture.paste(200, (5, 5, 20, 20))
        ...         picture.save(f"cells/{folder}/{number}.png")
        >>> data = Masks("cells", names=("background", "cell"), validation=0.25)
        >>> data.classes, len(data.train), len(data.validation), data.test.labels.shape
        (('background', 'cell'), 3, 1, torch.Size([1, 30, 40]))
    """

    task: ClassVar[str] = "segmentation"
    gives = "pixels"
    reads = "pixels"
    model = "segcaps"

    root: str | Path
    images: str = "images"
    masks: str = "masks"
    names: tuple[str, ...] = ()
    values: Annotated[tuple[int, ...], Within(0, 255)] = ()
    ignore: Annotated[int, Within(0, 255)] | None = None
    listed: str = ""
    cut: Size | None = None
    cuts: Size = 1
    fold: Annotated[int, Within(0)] = 0
    folds: Annotated[int, Within(2)] = 5
    channels: Size = 1
    nearest: bool = False
    levels: Range | None = argument(default=None, alias="range")
    background: Background = argument(default=BLACK)
    group_before: str = ""
    skip_broken: bool = False

    def __post_init__(self) -> None:
        self._lines: tuple[str, ...] = ()
        self._broken: dict[Path, str] = {}
        if self.nearest and not self.values:
            raise ValueError(
                "nearest needs values, those that masks should have, got none"
            )
        if self.fold >= self.folds:
            raise ValueError(
                f"fold must be less than folds, {self.folds}, got {self.fold}"
            )
        root = Path(self.root).expanduser()
        self.root = root if root.exists() else find_data_dir(None) / root
        if not (Path(self.root) / self.images).is_dir():
            raise FileNotFoundError(
                f"root {root} has no folder {self.images!r} of "
                f"pictures{seen_from(root)}"
            )
        check_names(self.names, "names")
        each_once(self.values, int, "values: the value of a class")
        if self.ignore in self.values:
            raise ValueError(
                f"ignore must be none of values, {self.values}, got {self.ignore}"
            )
        if self.names and self.values and len(self.names) != len(self.values):
            raise ValueError(
                f"names must be one for each of values, {self.values}, got {self.names}"
            )
        _ = self._parts  # missing pictures and masks are reported at once

    @property
    def resize(self) -> Fit:
        """Pictures keep their size."""
        return "keep"

    def load_train(self) -> Examples:
        """Cuts of the pictures that are not put aside."""
        cuts = None if self.cut is None else Cuts(self.cut, self.cuts)
        return replace(
            self._whole.subset(torch.tensor(self._parts["train"])), composition=cuts
        )

    def load_validation(self) -> Examples:
        """Whole pictures."""
        return self._whole.subset(
            torch.tensor(self._parts["validation"], dtype=torch.int64)
        )

    def load_test(self) -> Examples:
        """Whole pictures."""
        return self._whole.subset(torch.tensor(self._parts["test"]))

    @property
    def read_shape(self) -> tuple[int, int, int]:
        """The shape of whole pictures."""
        return self._whole.image_shape

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """The shape of the images; a `ValueError` if ``preprocess`` would move pixels
        away from their labels.
        """
        moved = [name for name in (*MOVES, "rescale") if getattr(preprocess, name)]
        if moved:
            raise ValueError(
                f"preprocess.{moved[0]} would move pixels away from their labels: cut "
                "does both"
            )
        return super().arguments(preprocess)

    @cached_property
    def _parts(self) -> dict[str, list[int]]:
        units = self._units
        count = len(units)
        if count < self.folds:
            held = f"{Path(self.root) / self.images} holds {count}"
            things = "groups of pictures" if self.group_before else "pictures"
            raise ValueError(
                f"folds must be at most the number of {things}, {count}, got "
                f"{self.folds}: {held}"
            )
        start, end = (count * fold // self.folds for fold in (self.fold, self.fold + 1))
        train = [*range(end, count), *range(start)]
        aside = min(round(self.validation_share * len(train)), len(train) - 1)
        first = self.seed * aside % len(train)
        train = train[first:] + train[:first]
        parts = {
            "train": train[aside:],
            "validation": train[:aside],
            "test": range(start, end),
        }
        return {
            part: sorted(row for place in places for row in units[place])
            for part, places in parts.items()
        }

    @cached_property
    def _units(self) -> list[list[int]]:
        """The rows of the pictures that stay in one part: of each group, or of one."""
        units: dict[object, list[int]] = {}
        for row, pair in enumerate(self._pairs):
            group = group_of(pair.picture.as_posix(), self.group_before)
            units.setdefault(group or row, []).append(row)
        return [*units.values()]

    @cached_property
    def _pairs(self) -> list[_Pair]:
        """Pictures and masks, in the natural order of the names."""
        root = Path(self.root)
        files = image_files(root / self.images)
        if not self._coco:
            each_once(files, _stem, f"{root / self.images}: the name")
        if self.listed:
            by_stem = {path.stem: path for path in files}
            lines = read_text(root / self.listed, LARGEST_NOTE).splitlines()
            chosen = [*filter(None, map(str.strip, lines))]
            if missing := [name for name in chosen if name not in by_stem]:
                raise FileNotFoundError(
                    f"{root / self.listed} lists {missing[0]!r}, which is not in "
                    f"{self.images!r}"
                )
            each_once(chosen, str, f"{root / self.listed}: the picture")
            files = [by_stem[name] for name in chosen]
        files.sort(
            key=lambda path: [
                (not part.isdigit(), part.zfill(20))
                for part in re.split(r"(\d+)", path.stem)
            ]
        )
        pairs = [_Pair(path, self._mask_of(path)) for path in files]
        if self.skip_broken:
            masks = [] if self._coco else [pair.mask for pair in pairs]
            pictures = [pair.picture for pair in pairs]
            self._broken = broken_images((*pictures, *masks), self.levels)
            pairs = [pair for pair in pairs if not self._broken.keys() & {*pair}]
        return pairs

    def _mask_of(self, picture: Path) -> Path:
        place = Path(self.root) / self.masks
        if self.masks.endswith(".json"):
            if not place.is_file():
                raise FileNotFoundError(f"masks {place} is not there")
            return place
        suffixes = image_suffixes()
        masks = [
            path
            for path in sorted(place.glob(f"{escape(picture.stem)}*.*"))
            if picture.stem in (path.stem, picture_of(path.stem))
            and path.suffix.lower() in suffixes
        ]
        if len(masks) > 1:
            raise ValueError(
                f"{picture} must have one mask, and has {masks[0]} and {masks[1]}"
            )
        if not masks:
            raise FileNotFoundError(
                f"{picture} has no mask: expected {place / picture.stem}.png"
            )
        return masks[0]

    def notes(self) -> tuple[str, ...]:
        """Which values were taken for classes, and what speaks against it; how many
        pixels got another value.
        """
        _ = self._whole
        parts = {part: getattr(self, part).shown() for part in PARTS}
        lacking = lacking_lines(self.classes, parts)
        broken = left_out_lines({str(file): why for file, why in self._broken.items()})
        return (
            *self._lines,
            *self.contradictions(),
            *lacking,
            *broken,
            *self._unused(),
        )

    def _unused(self) -> list[str]:
        """Tell people of masks that are of no picture, which are left out."""
        if self._coco or self.listed:
            return []
        used = {pair.mask for pair in self._pairs} | self._broken.keys()
        files = image_files(Path(self.root) / self.masks)
        others = [file for file in files if file not in used]
        return left_out_lines(dict.fromkeys(map(str, others), "it is of no picture"))

    def record(self) -> Manifest:
        """The pictures of each split; the class of a picture is its mask."""
        return self._files

    @cached_property
    def _files(self) -> Manifest:
        parts = {}
        for part, rows in self._parts.items():
            entries = []
            for row in rows:
                file = self._pairs[row].picture
                mask = hashlib.sha256(self._whole.labels[row].numpy().tobytes())
                entries.append(Entry(str(file), mask.hexdigest(), digest_of(file)))
            parts[part] = entries
        return Manifest((), parts)

    @cached_property
    def _whole(self) -> MaskSet:
        """All pictures and masks, smaller ones with margins below and on the right that
        have no class.
        """
        pictures = []
        masks = []
        categories = ("background", *self._coco.names.values()) if self._coco else ()
        for pair in self._pairs:
            with opened(pair.picture) as source:
                turn = orientation(source)
                image = in_mode(source, self.channels, self.levels, self.background)
            pictures.append(
                to_tensor(image, (self.channels, image.height, image.width), "pad")
            )
            if self._coco:
                masks.append(
                    Mask(pair.mask, self._coco.mask(pair.picture, image.size, turn))
                )
            else:
                masks.append(_mask(pair, image.size, turn))
        values = list(self.values) or (
            list(range(len(categories))) if self._coco else self._guessed(masks)
        )
        if not 2 <= len(values) <= _MOST:
            raise ValueError(
                f"masks in {self._pairs[0].mask.parent} must have 2 to {_MOST} "
                f"values, got {len(values)}"
            )
        if self.nearest:
            masks = self._snapped(masks)
        labels = [self._labelled(mask, values) for mask in masks]
        names = self.names or categories or tuple(str(value) for value in values)
        if len(names) != len(values):
            raise ValueError(
                f"names must be {len(values)}, one for each of the values {values}, "
                f"got {names}"
            )
        images = _padded(pictures, 0)
        classes = _padded(labels, NO_CLASS)
        self._lines += tuple(
            image_doubts(images, [pair.picture.name for pair in self._pairs])
        )
        return MaskSet(
            images, classes, names, tuple(str(pair.picture) for pair in self._pairs)
        )

    def _guessed(self, masks: list[Mask]) -> list[int]:
        """The values of masks, each taken for a class; a `ValueError` if they look like
        fewer that were changed.
        """
        counts = count_values(masks)
        if self.ignore is not None:
            counts[self.ignore] = 0
        check_colours(masks)
        check_drawn(masks, counts)
        values: list[int] = counts.nonzero().flatten().tolist()
        if 2 <= len(values) <= _MOST:
            self._lines = tuple(mask_lines(masks, counts, values, self.ignore))
        return values

    def _snapped(self, masks: list[Mask]) -> list[Mask]:
        """Masks with the nearest of the values in place of each."""
        class_values = [*self.values, *([] if self.ignore is None else [self.ignore])]
        counts = count_values(masks)
        table = nearest_of(class_values).to(torch.uint8)
        counts, total = (
            counts.index_fill(0, torch.tensor(class_values), 0),
            counts.sum(),
        )
        self._lines = (
            f"{int(counts.sum()) / int(total):.1%} of the pixels of masks became the "
            f"nearest of {class_values}",
        )
        return [mask._replace(values=table[mask.values.int()]) for mask in masks]

    def _labelled(self, mask: Mask, values: list[int]) -> Tensor:
        """The class of each pixel of a mask."""
        table = torch.full((256,), -1, dtype=torch.int64)
        table[values] = torch.arange(len(values))
        if self.ignore is not None:
            table[self.ignore] = NO_CLASS
        labels = table[mask.values.long()]
        if (labels < 0).any():
            strange_values = mask.values[labels < 0].unique().tolist()
            raise ValueError(
                f"{mask.path} has the values {strange_values[:5]}, which are no class: values "
                f"are {values}; --data.nearest true rounds each to the nearest of them"
            )
        if (labels == NO_CLASS).all():
            raise ValueError(
                f"{mask.path} is an empty mask: no pixel of it has a class"
            )
        return labels.to(torch.uint8)

    @cached_property
    def _coco(self) -> Coco | None:
        if self.masks.endswith(".json"):
            return Coco(Path(self.root) / self.masks)
        return None


def _stem(path: Path) -> str:
    return path.stem


def _mask(pair: _Pair, size: tuple[int, int], turn: int) -> Mask:
    """The values of a mask, turned with its picture if it has the size that this has
    before its turn.
    """
    with opened(pair.mask) as mask:
        kind = mask.format or ""
        mode = mask.mode
        palette: Any = ()
        if isinstance(mask, Bands):
            values = mask.pixels.squeeze(2) if mask.channels == 1 else mask.pixels
        else:
            palette = np.reshape(
                (mask.getpalette() if mode == "P" else None) or [], (-1, 3)
            )
            values = np.array(upright(mask))
    if values.ndim != 2 or (
        mode not in ("1", "L", "P") and values.dtype not in (np.uint8, np.bool_)
    ):
        raise ValueError(
            f"{pair.mask} must have grey values or indexed colours of 8 bit, got mode "
            f"{mode}: save each class as one grey value"
        )
    stored = values.shape[::-1]
    if stored != size[::-1] or size[0] == size[1]:
        check_same_size(pair.mask, stored, pair.picture, size)
    read = torch.from_numpy(values.astype(np.uint8))
    colours = {
        int(value): tuple(palette[value].tolist())
        for value in np.unique(values)
        if value < len(palette)
    }
    return Mask(
        pair.mask,
        frame_of(stored, size, turn, pair.mask, pair.picture).mask(read),
        kind,
        mode,
        colours,
    )


def _padded(images: Sequence[Tensor], fill: int) -> Tensor:
    """Images (..., H, W) of several sizes as one tensor, filled at the right and at the
    bottom.
    """
    height = max(image.shape[-2] for image in images)
    width = max(image.shape[-1] for image in images)
    padded = []
    for image in images:
        margins = (0, width - image.shape[-1], 0, height - image.shape[-2])
        padded.append(F.pad(image, margins, value=fill))
    return torch.stack(padded)


@dataclass(frozen=True)
class _Pixels(Scenery):
    """Scenes whose labels are the digit that each pixel belongs to, from 1; 0 for
    none.
    """

    def __call__(
        self,
        batch: Batch,
        epoch: int,
        seed: int,
    ) -> Batch:
        scenes = super().__call__(batch, epoch, seed)
        assert scenes.parts is not None
        ink, topmost = scenes.parts.pictures.amax(2).max(1)  # [B, H, W]
        labels = 1 + scenes.parts.labels.gather(1, topmost.flatten(1)).view_as(topmost)
        return scenes._replace(labels=labels * (ink >= INK), parts=None)


class ScenePixels(DigitScenes):
    """Scenes of digits among clutter, with the class of each pixel: nothing, or the
    digit that it is ink of.

    The arguments are those of :class:`DigitScenes`.

    Example:
        >>> from torchcaps_lab.data import Digits, ScenePixels
        >>> scenes = ScenePixels(Digits(), canvas=(48, 48), most=2, clutter=2)
        >>> scenes.test.__getitems__([0, 1]).labels.shape, scenes.classes[:2]
        (torch.Size([2, 48, 48]), ('nothing', '0'))
    """

    task: ClassVar[Any] = {"name": "segmentation"}
    gives = "pixels"
    reads = "pixels"
    model = "segcaps"

    def made(self, images: Examples, part: Part) -> Examples:
        """Each digit in a scene, as :class:`DigitScenes` makes it."""
        scenes = super().made(images, part)
        scenery = scenes.composition
        pixels = _Pixels(
            **{field.name: getattr(scenery, field.name) for field in fields(Scenery)}
        )
        return replace(scenes, classes=("nothing", *scenes.classes), composition=pixels)
