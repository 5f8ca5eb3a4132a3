"""Pictures of objects: figures made here, whose masks are known, and a folder of your
own pictures.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from torchcaps.numerics import ProperShare, Size
from torchcaps.spec import Within, argument, settings
from torchcaps.whole import expanded, seen_from
from torchcaps_lab.data.base import (
    TEST_SEED,
    DataSet,
    register_dataset,
)
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.files import ListedFile
from torchcaps_lab.data.listed import (
    Decoded,
    Item,
    Listed,
    Parts,
    RecordedData,
    put_aside,
)
from torchcaps_lab.data.manifest import Manifest
from torchcaps_lab.kinds.images.alike import same_content
from torchcaps_lab.kinds.images.decoding.bands import Range
from torchcaps_lab.kinds.images.decoding.picture import (
    BrokenImage,
    as_source,
    load_image,
)
from torchcaps_lab.kinds.images.sets.arrays import Arrays
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.images.sets.listed import (
    GivenImage,
    decode_parts,
    look,
    reading,
)
from torchcaps_lab.kinds.objects.measures import UNKNOWN
from torchcaps_lab.kinds.pixels.beside import masks_in
from torchcaps_lab.kinds.pixels.mask_set import MaskSet
from torchcaps_lab.look import Fit, Resize

if TYPE_CHECKING:
    from torchcaps_lab.kinds.images.decoding.picture import Source

Ground = Literal["plain", "textured"]
SlotCount = Annotated[int, Within(2, 254)]
"""How many slots: the pixels of masks are bytes, and 255 is none."""

TRAIN_SEED = 1
_COLOURS = torch.tensor(
    [
        [255, 0, 0],
        [0, 255, 0],
        [0, 0, 255],
        [255, 255, 0],
        [255, 0, 255],
        [0, 255, 255],
        [255, 255, 255],
        [255, 128, 0],
    ],
    dtype=torch.uint8,
)
_KINDS = ("disc", "square", "triangle")
_RADIUS = (3 / 32, 5.5 / 32)
_MARGIN = 5 / 32
_AT_ONCE = 256


def slot_names(slots: int) -> tuple[str, ...]:
    """The names of so many slots, which are all that they are known by."""
    return tuple(f"slot {number + 1}" for number in range(slots))


class ObjectSet(MaskSet):
    """Pictures whose labels are the objects of the pixels: uint8 (N, H, W), 0 for the
    ground, 255 where nothing is known.

    The classes are slots, which are not matched to objects.

    Example:
        >>> from torchcaps_lab.data import Shapes
        >>> Shapes(count=20, tests=10).train[0].labels.unique()[:1]
        tensor([0])
    """

    groups = "slots"


class DrawnObjects(DataSet):
    """Pictures of objects that are drawn here: always the same for training, and the
    same for the test, whatever the seed. Subclasses have ``count`` and ``tests``.
    """

    task: ClassVar[str] = "objects"
    model = "slot_autoencoder"

    count: int
    tests: int

    def load_train(self) -> Examples:
        """The images to train on."""
        return self._drawn(self.count, TRAIN_SEED)

    def load_test(self) -> Examples:
        """Other images."""
        return self._drawn(self.tests, TEST_SEED)

    @abstractmethod
    def _drawn(self, count: int, seed: int) -> ObjectSet:
        """Draw so many pictures; the same seed draws the same."""


class SomeObjects(DrawnObjects):
    """Pictures of ``least`` to ``most`` objects, and ``slots`` for them; subclasses have
    these.
    """

    least: int
    most: int
    slots: int | None

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(
                f"least must be at most most, {self.most}, got {self.least}"
            )
        if self.slots is not None and self.slots <= self.most:
            raise ValueError(
                f"slots must be more than most, {self.most}: one for each object and "
                f"one for the ground, got {self.slots}"
            )

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The names of the slots: one for each object and one for the ground, or
        more.
        """
        return slot_names(self.slots or self.most + 1)


@register_dataset("shapes")
@settings
class Shapes(SomeObjects):
    """Coloured figures that overlap, on a plain or textured ground: their masks are
    known.

    Figures are discs, squares and triangles of eight colours, with a radius from 3 to
    5.5 pixels of 32. Later ones cover earlier ones. Training images are always the
    same, and so are the test images, whatever the seed.

    Args:
        size: height and width, in pixels.
        least: how many figures an image has at least.
        most: how many at most.
        slots: how many slots networks get: one for each figure and one for the ground,
            or more. Default: ``most`` + 1.
        ground: ``plain``, black; or ``textured``, a random pattern of two colours.
        count: how many training images, those for validation among them.
        tests: how many test images.

    Raises:
        ValueError: if there are more figures than colours or slots, or ``least`` is
            more than ``most``.

    Example:
        >>> from torchcaps_lab.data import Shapes
        >>> shapes = Shapes(least=3, most=5, count=20, tests=10)
        >>> shapes.train.inputs.shape, len(shapes.classes)
        (torch.Size([18, 3, 32, 32]), 6)
    """

    size: Annotated[int, Within(16)] = 32
    least: Size = 3
    most: Annotated[int, Within(1, 8)] = 5
    slots: SlotCount | None = None
    ground: Ground = "plain"
    count: Size = 10_000
    tests: Size = 500

    def _drawn(self, count: int, seed: int) -> ObjectSet:
        generator = torch.Generator().manual_seed(seed)
        if self.ground == "plain":
            images = torch.zeros(count, 3, self.size, self.size, dtype=torch.uint8)
        else:
            images = waves(count, self.size, generator, 128)
        labels = torch.zeros(count, self.size, self.size, dtype=torch.uint8)
        number = torch.randint(
            self.least, self.most + 1, (count, 1, 1), generator=generator
        )
        chosen = _colours(count, self.most, generator)
        for figure in range(self.most):
            inside = _figures(count, self.size, generator) & (figure < number)
            colour = _COLOURS[chosen[:, figure]][..., None, None]
            images = torch.where(inside[:, None], colour, images)
            labels = torch.where(inside, figure + 1, labels).to(torch.uint8)
        return ObjectSet(images, labels, self.slot_names)


def _colours(count: int, most: int, generator: torch.Generator) -> Tensor:
    """Draw another colour for each figure of an image, (N, most)."""
    return torch.rand(count, len(_COLOURS), generator=generator).argsort(1)[:, :most]


def _figures(count: int, size: int, generator: torch.Generator) -> Tensor:
    """The pixels of a figure in each image, bool (N, H, W)."""
    low, high = _RADIUS
    draws = torch.rand(3, count, 1, 1, generator=generator)
    radius = size * (low + (high - low) * draws[0])
    row, column = size * (_MARGIN + (1 - 2 * _MARGIN) * draws[1:])
    places = torch.arange(size) + 0.0
    down = places[:, None] - row
    across = places - column
    disc = down.square() + across.square() < radius.square()
    square = torch.maximum(down.abs(), across.abs()) < 0.85 * radius
    triangle = (down < 0.8 * radius) & (down > 2 * across.abs() - 1.1 * radius)
    kind = torch.randint(len(_KINDS), (count, 1, 1), generator=generator)
    return torch.where(kind == 0, disc, torch.where(kind == 1, square, triangle))


def waves(count: int, size: int, generator: torch.Generator, bright: int) -> Tensor:
    """Waves between two colours of so much brightness at most, uint8 (N, 3, H, W)."""
    colours = bright * torch.rand(2, count, 3, 1, 1, generator=generator)
    turns = 6 * torch.rand(3, count, 1, 1, generator=generator) - 3
    places = torch.arange(size) / size
    phase = turns[0] * places[:, None] + turns[1] * places + turns[2]
    images = torch.empty(count, 3, size, size, dtype=torch.uint8)
    # Floats of all images at once may need more memory than there is.
    for some in torch.arange(count).split(_AT_ONCE):
        share = (1 + torch.sin(2 * torch.pi * phase[some]))[:, None] / 2
        drawn = share * colours[0, some] + (1 - share) * colours[1, some]
        images[some] = drawn.to(torch.uint8)
    return images


@settings
class _OwnPictures(RecordedData):
    """Pictures without labels; subclasses say which.

    Args:
        slots: how many slots networks get: one more than there are objects in a
            picture, or more.
        size: height and width that pictures are brought to.
        channels: 3 for colour, 1 for grey.
        fit: how: ``crop`` the centre, ``pad`` with black, or ``stretch``.
        range: the values of pixels that become black and white; default: the whole
            range of the type.
        test: share of the pictures that are tested on. Which ones depends on their
            contents, so a picture that is added moves one other at most.
    """

    task: ClassVar[str] = "objects"
    model = "slot_autoencoder"
    shared = ("slots", "size", "channels", "fit", "range")

    slots: SlotCount = argument(default=7, kw_only=True)
    size: Annotated[int, Within(16, 1024)] = argument(default=64, kw_only=True)
    channels: Literal[1, 3] = argument(default=3, kw_only=True)
    fit: Resize = argument(default="crop", kw_only=True)
    levels: Range | None = argument(default=None, alias="range", kw_only=True)
    test_share: ProperShare = argument(default=0.2, alias="test", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._parts({}, {})  # too few pictures are reported at once

    @property
    def resize(self) -> Fit:
        """How pictures are brought to the size."""
        return self.fit

    def _divide(self, entries: Parts, same: Mapping[str, str]) -> Parts:
        """A share of all to test on, and one of the others for validation."""
        every = entries["all"]
        if len(every) < 3:
            holder = getattr(self, "root", "pictures")
            raise ValueError(
                f"{holder} must hold at least three pictures, it holds {len(every)}"
            )
        none = torch.zeros(len(every), dtype=torch.int64)
        rest, test = put_aside(every, none, self.test_share, TEST_SEED, same)
        none = none[: len(rest)]
        train, aside = put_aside(rest, none, self.validation_share, self.seed, same)
        return {"train": train, "validation": aside, "test": test}

    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """The pictures of each split at the size of all."""
        shape = (self.channels, self.size, self.size)
        picture = decoded.__getitem__ if decoded else partial(self._picture, shape)
        images, problems = decode_parts(manifest, picture, shape)
        sets: dict[str, Examples] = {}
        for part, rows in manifest.parts.items():
            labels = torch.full_like(images[part][:, 0], UNKNOWN)
            files = tuple(self._items[entry.name].title for entry in rows)
            sets[part] = ObjectSet(images[part], labels, slot_names(self.slots), files)
        return sets, problems

    def _picture(self, shape: tuple[int, int, int], name: str) -> Tensor:
        item = self._items[name]
        try:
            with reading(item):
                return load_image(item.source(), shape, self.fit, self.levels)
        except ValueError as error:
            why = error.why if isinstance(error, BrokenImage) else str(error)
            raise BrokenImage(item.title, why) from error

    def _digest(self, item: Any) -> str:
        return look(item.source, item.title).digest

    def _same_content(
        self, manifest: Manifest, sets: Mapping[str, Examples]
    ) -> Mapping[str, str]:
        return same_content(manifest, sets)


def pictures_and_masks(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the pictures in a folder and its sub-folders, and what looks like their
    masks.
    """
    files = image_files(root)
    masks = masks_in(root)
    pictures = [file for file in files if file not in masks]
    return pictures, [file for file in files if file in masks]


@register_dataset("picture_folder")
@settings
class PictureFolder(_OwnPictures):
    """A folder of your own pictures without labels, with all its sub-folders. What looks
    like masks of the pictures, by the same names, is left out.

    Args:
        root: the folder.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds fewer than three pictures, or some cannot be read.

    Example:
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from torchcaps_lab.kinds.objects.sets import PictureFolder
        >>> Path("shelf").mkdir(exist_ok=True)
        >>> for number in range(10):
        ...     Image.new("RGB", (40, 30), (25 * number, 0, 0)).save(
        ...         f"shelf/{number}.png"
        ...     )
        >>> data = PictureFolder("shelf", slots=4, size=32)
        >>> len(data.train), len(data.test), data.image_shape
        (7, 2, (3, 32, 32))
    """

    root: str | Path

    def __post_init__(self) -> None:
        self.root = root = expanded(self.root)
        if not root.is_dir():
            raise FileNotFoundError(f"there is no folder {root}{seen_from(root)}")
        super().__post_init__()

    def list_items(self) -> Listed:
        """The pictures; a note tells that sub-folders are no classes."""
        root = Path(self.root)
        pictures, masks = pictures_and_masks(root)
        listed = Listed()
        for path in masks:
            name = path.relative_to(root).as_posix()
            listed.left_out[name] = "it is a mask of another"
        listed.parts["all"] = [
            ListedFile(path.relative_to(root).as_posix(), "", path) for path in pictures
        ]
        if folders := {path.parent for path in pictures} - {root}:
            listed.notes = (
                f"task 'objects' learns without labels: the {len(folders)} sub-folders "
                f"of {root} are not used as classes",
            )
        return listed


@settings
class Pictures(_OwnPictures):
    """Pictures without labels that a program has.

    Args:
        pictures: an array or a tensor (N, H, W), (N, H, W, C) or (N, C, H, W), bytes or
            floating point in [0, 1]; or a list of arrays, images of Pillow or paths.

    Raises:
        ValueError: if there are fewer than three pictures, one cannot be read, or the
            order of axes is not clear.

    Example:
        >>> from torchcaps_lab.data import Pictures
        >>> data = Pictures(torch.rand(10, 3, 30, 40), slots=4, size=32)
        >>> len(data.train), len(data.test), data.image_shape
        (7, 2, (3, 32, 32))
    """

    pictures: Any = None

    def __post_init__(self) -> None:
        if self.pictures is None or not hasattr(self.pictures, "__getitem__"):
            raise ValueError(
                "Pictures has the pictures of a program, which no file and no option "
                "can hold: call it in Python with an array or a list of images, got "
                f"{type(self.pictures).__name__}"
            )
        self._images = self.pictures
        if hasattr(self.pictures, "ndim"):
            count = len(self.pictures)
            self._images = Arrays(self.pictures, [0] * count, name="pictures")
        super().__post_init__()

    def list_items(self) -> Listed:
        """The pictures by their numbers, those that are paths as files."""
        return Listed(parts={"all": [*map(self._item, range(len(self._images)))]})

    def _item(self, place: int) -> Item:
        picture = self._images[place]
        name = f"picture {place}"
        if isinstance(picture, str | Path):
            return ListedFile(name, "", Path(picture))
        return GivenImage(name, "", partial(self._source, place, name))

    def _source(self, place: int, name: str) -> "Source":
        picture = self._images[place]
        if isinstance(self._images, Arrays):
            picture = picture[0]
        if isinstance(picture, tuple):
            raise ValueError(
                f"task 'objects' learns without labels: {name} must be an image, got "
                f"a tuple of {len(picture)}"
            )
        return as_source(picture, self.levels)
