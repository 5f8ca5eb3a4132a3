"""Pictures of the user's own with a class for each pixel: masks beside them, or COCO
annotations.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.numerics import Size
from torchcaps.spec import Within, argument, settings
from torchcaps.whole import LARGEST_NOTE, expanded, read_text, seen_from
from torchcaps_lab.data.base import find_data_dir, register_dataset
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.files import ListedFile
from torchcaps_lab.data.listed import Decoded, Listed, Parts, RecordedData
from torchcaps_lab.data.manifest import Entry, Manifest
from torchcaps_lab.data.schema import each_once
from torchcaps_lab.kinds.images.decoding.bands import Bands, Range
from torchcaps_lab.kinds.images.decoding.handwriting import orientation, upright
from torchcaps_lab.kinds.images.decoding.picture import (
    BLACK,
    Background,
    BrokenImage,
    in_mode,
    opened,
    to_tensor,
)
from torchcaps_lab.kinds.images.doubts import image_doubts
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.images.sets.listed import look, reading
from torchcaps_lab.kinds.pixels.doubts import (
    Mask,
    check_colours,
    check_drawn,
    count_values,
    mask_lines,
    nearest_of,
)
from torchcaps_lab.kinds.pixels.mask_set import NO_CLASS, Cuts, MaskSet
from torchcaps_lab.kinds.scenes.coco import Coco, check_same_size
from torchcaps_lab.kinds.scenes.noted import check_names
from torchcaps_lab.kinds.scenes.stated import frame_of
from torchcaps_lab.look import Fit

_MOST = 64
"""Different values of masks that are taken for classes; more are those of a picture."""


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


def _natural(path: Path) -> list[tuple[bool, str]]:
    """A key by which 2 comes before 10."""
    parts = re.split(r"(\d+)", path.stem)
    return [(not part.isdigit(), part.zfill(20)) for part in parts]


@dataclass(frozen=True)
class _Pair(ListedFile):
    """A picture and its mask.

    Args:
        name: that of the picture.
        category: empty.
        path: the picture.
        mask: the file of its mask.
    """

    mask: Path


@register_dataset("masks")
@settings
class Masks(RecordedData):
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
    shared = ("names", "values", "ignore", "nearest", "channels")

    root: str | Path
    images: str = "images"
    masks: str = "masks"
    names: tuple[str, ...] = ()
    values: Annotated[tuple[int, ...], Within(0, 255)] = ()
    ignore: Annotated[int, Within(0, 255)] | None = None
    chosen: str = argument(default="", alias="listed")
    cut: Size | None = None
    cuts: Size = 1
    fold: Annotated[int, Within(0)] = 0
    folds: Annotated[int, Within(2)] = 5
    channels: Size = 1
    nearest: bool = False
    levels: Range | None = argument(default=None, alias="range")
    background: Background = argument(default=BLACK)
    group_before: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._lines: tuple[str, ...] = ()
        if self.nearest and not self.values:
            raise ValueError(
                "nearest needs values, those that masks should have, got none"
            )
        if self.fold >= self.folds:
            raise ValueError(
                f"fold must be less than folds, {self.folds}, got {self.fold}"
            )
        root = expanded(self.root)
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
        _ = self._parts({}, {})  # missing pictures and masks are reported at once

    @property
    def resize(self) -> Fit:
        """Pictures keep their size."""
        return "keep"

    @property
    def read_shape(self) -> tuple[int, int, int]:
        """The shape of whole pictures."""
        return self.train.raw_image_shape

    def _divide(self, entries: Parts, same: Mapping[str, str]) -> Parts:
        """A block to test on, and a share of the others for validation."""
        units: dict[object, list[Entry]] = {}
        for entry in entries["all"]:
            group = self._items[entry.name].group
            units.setdefault(group or entry, []).append(entry)
        blocks = [*units.values()]
        count = len(blocks)
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
            part: [entry for place in sorted(places) for entry in blocks[place]]
            for part, places in parts.items()
        }

    def list_items(self) -> Listed:
        """Pictures and masks, in the natural order of the names. Masks that are of no
        picture are left out.
        """
        root = Path(self.root)
        files = image_files(root / self.images)
        if not self._coco:
            each_once(files, attrgetter("stem"), f"{root / self.images}: the name")
        if self.chosen:
            by_stem = {path.stem: path for path in files}
            lines = read_text(root / self.chosen, LARGEST_NOTE).splitlines()
            chosen = [*filter(None, map(str.strip, lines))]
            if missing := [name for name in chosen if name not in by_stem]:
                raise FileNotFoundError(
                    f"{root / self.chosen} lists {missing[0]!r}, which is not in "
                    f"{self.images!r}"
                )
            each_once(chosen, str, f"{root / self.chosen}: the picture")
            files = [by_stem[name] for name in chosen]
        files.sort(key=_natural)
        pairs = [
            _Pair(path.relative_to(root).as_posix(), "", path, self._mask_of(path))
            for path in files
        ]
        listed = Listed(parts={"all": [*pairs]})
        listed.group(self.group_before)
        if not self._coco and not self.chosen:
            used = {pair.mask for pair in pairs}
            for mask in image_files(root / self.masks):
                if mask not in used:
                    name = mask.relative_to(root).as_posix()
                    listed.left_out[name] = "it is of no picture"
        return listed

    def _category(self, item: _Pair) -> str:
        """The digest of its mask, since copies of a picture have one mask."""
        if self._coco:
            return self._coco.digest(item.path)
        return look(lambda: item.mask, str(item.mask)).digest

    def _digest(self, item: _Pair) -> str:
        return look(item.source, item.title).digest

    def _mask_of(self, picture: Path) -> Path:
        place = Path(self.root) / self.masks
        if self._coco:
            return place
        masks = self._masks_of.get(picture.stem, [])
        if len(masks) > 1:
            raise ValueError(
                f"{picture} must have one mask, and has {masks[0]} and {masks[1]}"
            )
        if not masks:
            raise FileNotFoundError(
                f"{picture} has no mask: expected {place / picture.stem}.png"
            )
        return masks[0]

    @cached_property
    def _masks_of(self) -> dict[str, list[Path]]:
        """The masks in their folder, by the names of the pictures that they may be of."""
        masks: dict[str, list[Path]] = {}
        place = Path(self.root) / self.masks
        for path in image_files(place):
            if path.parent == place:
                for stem in {path.stem, picture_of(path.stem)}:
                    masks.setdefault(stem, []).append(path)
        return masks

    def notes(self) -> tuple[str, ...]:
        """Which values were taken for classes, and what speaks against it; how many
        pixels got another value.
        """
        notes = super().notes()  # which reads the masks
        return (*self._lines, *notes)

    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """Pictures and masks, smaller ones with margins below and on the right that
        have no class; cuts of those to train on.
        """
        self._lines = ()
        pictures = []
        masks = []
        problems: dict[str, BrokenImage] = {}
        used = {entry.name for rows in manifest.parts.values() for entry in rows}
        # In their order, so that what is said of them depends on no split.
        pairs = [pair for name, pair in self._items.items() if name in used]
        for pair in pairs:
            try:
                with reading(pair):
                    picture, mask = self._read(pair)
            except BrokenImage as problem:
                problems[pair.name] = problem
            else:
                pictures.append(picture)
                masks.append(mask)
        if problems:
            return {}, problems
        categories = ("background", *self._coco.names.values()) if self._coco else ()
        values = [*(self.values or range(len(categories)) or self._guessed(masks))]
        if not 2 <= len(values) <= _MOST:
            raise ValueError(
                f"masks in {pairs[0].mask.parent} must have 2 to {_MOST} "
                f"values, got {len(values)}"
            )
        if self.nearest:
            masks = self._snapped(masks)
        classes = self.names or categories or tuple(map(str, values))
        if len(classes) != len(values):
            raise ValueError(
                f"names must be {len(values)}, one for each of the values {values}, "
                f"got {classes}"
            )
        images = _padded(pictures, 0)
        labels = _padded([self._labelled(mask, values) for mask in masks], NO_CLASS)
        self._lines += (*image_doubts(images, [pair.path.name for pair in pairs]),)
        every = MaskSet(images, labels, classes, tuple(pair.title for pair in pairs))
        place_of = {pair.name: place for place, pair in enumerate(pairs)}
        sets: dict[str, Examples] = {}
        for part, entries in manifest.parts.items():
            places = [place_of[entry.name] for entry in entries]
            sets[part] = every.subset(torch.tensor(places, dtype=torch.int64))
        cuts = None if self.cut is None else Cuts(self.cut, self.cuts)
        return {**sets, "train": replace(sets["train"], composition=cuts)}, {}

    def _read(self, pair: _Pair) -> tuple[Tensor, Mask]:
        """A picture and its mask."""
        with opened(pair.path) as source:
            turn = orientation(source)
            image = in_mode(source, self.channels, self.levels, self.background)
        shape = (self.channels, image.height, image.width)
        picture = to_tensor(image, shape, "pad")
        if self._coco:
            marked = self._coco.mask(pair.path, image.size, turn)
            return picture, Mask(pair.mask, marked)
        return picture, _mask(pair, image.size, turn)

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
        kept = int(counts[class_values].sum()) / int(counts.sum())
        self._lines = (
            f"{1 - kept:.1%} of the pixels of masks became the nearest of {class_values}",
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
            strange = mask.values[labels < 0].unique().tolist()
            raise ValueError(
                f"{mask.path} has the values {strange[:5]}, which are no class: values "
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


def _mask(pair: _Pair, size: tuple[int, int], turn: int) -> Mask:
    """The values of a mask, turned with its picture if it has the size that this has
    before its turn.
    """
    with opened(pair.mask) as mask:
        kind = mask.format or ""
        mode = mask.mode
        palette: Any = None
        if isinstance(mask, Bands):
            values = mask.pixels.squeeze(2) if mask.channels == 1 else mask.pixels
        else:
            palette = mask.getpalette() if mode == "P" else None
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
        check_same_size(pair.mask, stored, pair.path, size)
    frame = frame_of(stored, size, turn, pair.mask, pair.path)
    read = frame.mask(torch.from_numpy(values.astype(np.uint8)))
    table = np.reshape(palette or [], (-1, 3)).tolist()
    used = [value for value in np.unique(values).tolist() if value < len(table)]
    colours = {value: tuple(table[value]) for value in used}
    return Mask(pair.mask, read, kind, mode, colours)


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
