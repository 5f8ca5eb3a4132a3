"""Pictures of objects: figures made here, whose masks are known, and a folder of your
own pictures.
"""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from torchcaps.numerics import Size
from torchcaps.spec import Within, argument, settings
from torchcaps.whole import seen_from
from torchcaps_lab.data.base import (
    TEST_SEED,
    DataSet,
    Fit,
    HeldOut,
    Resize,
    register_dataset,
    stratified_split,
)
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.kinds.images.decoding.picture import (
    BrokenImage,
    check_resize,
    load_image,
)
from torchcaps_lab.kinds.images.sets.files import image_files
from torchcaps_lab.kinds.objects.measures import UNKNOWN
from torchcaps_lab.kinds.pixels.masks import MaskSet

Ground = Literal["plain", "textured"]
AtLeastTwo = Annotated[int, Within(2)]

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


@register_dataset("shapes")
@settings
class Shapes(DataSet):
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

    task: ClassVar[str] = "objects"
    model = "slot_autoencoder"

    size: Annotated[int, Within(16)] = 32
    least: Size = 3
    most: Annotated[int, Within(1, 8)] = 5
    slots: AtLeastTwo | None = None
    ground: Ground = "plain"
    count: Size = 10_000
    tests: Size = 500

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(
                f"least must be at most most, {self.most}, got {self.least}"
            )
        if self.slots is not None and self.slots <= self.most:
            raise ValueError(
                f"slots must be more than most, {self.most}: one for each figure and "
                f"one for the ground, got {self.slots}"
            )

    def load_train(self) -> Examples:
        """The images to train on."""
        return self._drawn(self.count, TRAIN_SEED)

    def load_test(self) -> Examples:
        """Other images."""
        return self._drawn(self.tests, TEST_SEED)

    def _drawn(self, count: int, seed: int) -> ObjectSet:
        generator = torch.Generator().manual_seed(seed)
        images = _grounds(count, self.size, self.ground, generator)
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
        return ObjectSet(images, labels, slot_names(self.slots or self.most + 1))


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


def _grounds(
    count: int,
    size: int,
    ground: Ground,
    generator: torch.Generator,
) -> Tensor:
    """Black, or waves between two dark colours, uint8 (N, 3, H, W)."""
    if ground == "plain":
        return torch.zeros(count, 3, size, size, dtype=torch.uint8)
    colours = 128 * torch.rand(2, count, 3, 1, 1, generator=generator)
    turns = 6 * torch.rand(3, count, 1, 1, generator=generator) - 3
    places = torch.arange(size) / size
    phase = turns[0] * places[:, None] + turns[1] * places + turns[2]
    share = (1 + torch.sin(2 * torch.pi * phase))[:, None] / 2
    return (share * colours[0] + (1 - share) * colours[1]).to(torch.uint8)


@register_dataset("picture_folder")
@settings
class PictureFolder(DataSet):
    """A folder of your own pictures without labels, with all its sub-folders.

    Args:
        root: the folder.
        slots: how many slots networks get: one more than there are objects in a
            picture, or more.
        size: height and width that pictures are brought to.
        channels: 3 for colour, 1 for grey.
        fit: how: ``crop`` the centre, ``pad`` with black, or ``stretch``.
        test: share of the pictures that are tested on.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds fewer than three pictures, or one cannot be read.

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

    task: ClassVar[str] = "objects"
    model = "slot_autoencoder"

    root: str | Path
    slots: AtLeastTwo = 7
    size: Annotated[int, Within(16, 1024)] = 64
    channels: Literal[1, 3] = 3
    fit: Resize = "crop"
    test_share: HeldOut = argument(default=0.2, alias="test")

    def __post_init__(self) -> None:
        check_resize(self.fit)
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise FileNotFoundError(f"there is no folder {root}{seen_from(root)}")
        self._files = image_files(root)
        if len(self._files) < 3:
            raise ValueError(
                f"root must hold at least three pictures, {root} holds "
                f"{len(self._files)}"
            )
        none = torch.zeros(len(self._files), dtype=torch.int64)
        self._parts = stratified_split(none, self.test_share or 0.2, TEST_SEED)

    @property
    def resize(self) -> Fit:
        """How pictures are brought to the size."""
        return self.fit

    def load_train(self) -> Examples:
        """The pictures to train on."""
        return self._read(self._parts[0])

    def load_test(self) -> Examples:
        """The pictures to test on."""
        return self._read(self._parts[1])

    def notes(self) -> tuple[str, ...]:
        """Note that sub-folders are no classes."""
        folders = {file.parent for file in self._files} - {Path(self.root)}
        if not folders:
            return ()
        return (
            f"task 'objects' learns without labels: the {len(folders)} sub-folders of "
            f"{self.root} are not used as classes",
        )

    def _read(self, places: Tensor) -> ObjectSet:
        shape = (self.channels, self.size, self.size)
        files = [self._files[place] for place in places.tolist()]
        images = torch.stack([_loaded(file, shape, self.fit) for file in files])
        labels = torch.full(
            (len(files), self.size, self.size), UNKNOWN, dtype=torch.uint8
        )
        names = tuple(map(str, files))
        return ObjectSet(images, labels, slot_names(self.slots), names)


def _loaded(file: Path, shape: tuple[int, int, int], fit: Resize) -> Tensor:
    try:
        return load_image(file, shape, fit)
    except BrokenImage as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
