"""Images that are listed before they are read: files in a folder, rows of a table."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from torch import Tensor

from torchcaps.numerics import Size
from torchcaps.spec import Within, argument, settings
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.listed import (
    Decoded,
    Item,
    ListedData,
    all_broken,
)
from torchcaps_lab.data.manifest import PARTS, Entry, Manifest
from torchcaps_lab.data.streams import digest_of
from torchcaps_lab.data.transforms.steps import MOST_PIXELS
from torchcaps_lab.kinds.images.alike import (
    first_alike,
    looks_of,
    pixels_digest,
    same_content,
)
from torchcaps_lab.kinds.images.decoding.bands import (
    Bands,
    Levels,
    Range,
    channels_of,
)
from torchcaps_lab.kinds.images.decoding.picture import (
    BLACK,
    Background,
    BrokenImage,
    load_handwriting,
    open_image,
    opened,
    to_tensor,
)
from torchcaps_lab.kinds.images.decoding.store import GIB, decode_images, threaded
from torchcaps_lab.kinds.images.doubts import frames_lines, image_doubts
from torchcaps_lab.look import Resize, counted

if TYPE_CHECKING:
    from PIL.Image import Image

    from torchcaps_lab.kinds.images.decoding.picture import Source

Side = Annotated[int, Within(1, MOST_PIXELS)]
"""Pixels on a side of an image."""

# Images among which training looks for those that look alike, which takes seconds
_COMPARED = 20_000


@settings
class ListedImages(ListedData):
    """Images that are listed one by one, each with a class; subclasses list them.

    Args:
        size: height and width of the images, one number for both; default: their own
            size, which must be the same for all.
        channels: 1 makes every image grey, 3 colour; default: 1 if all are grey, and 3
            otherwise; images with other numbers of channels, such as .npy files and
            TIFF files of many bands, keep theirs.
        resize: how images are resized: `pad` keeps the aspect ratio and adds black,
            `crop` keeps it and cuts the centre, `stretch` changes it, and `handwriting`
            cuts out handwriting.
        range: the pixel values that become black and white, such as 0 and 4095 for
            12-bit values in 16-bit files; values beyond them are clipped; default: the
            whole range of the type, 0 to 255 for 8 bits, 0 to 65535 for 16 bits, 0 to 1
            for floating point.
        background: the colour behind transparent parts, by name or as ``#ffd700``.
        memory: GiB of decoded images that are kept in memory; larger data are decoded
            once into a file in the folder `decoded` of the data sets (the environment
            variable TORCHCAPS_DATA, or torchcaps in the user's cache folder), and read
            from this file.

    Raises:
        ValueError: an argument is out of range.
    """

    names_alike = "compare them before you trust the test"
    """How to see which images look alike."""

    size: Side | tuple[Side, Side] | None = argument(default=None, kw_only=True)
    channels: Size | None = argument(default=None, kw_only=True)
    resize: Resize = argument(default="pad", kw_only=True)
    levels: Range | None = argument(default=None, alias="range", kw_only=True)
    background: Background = argument(default=BLACK, kw_only=True)
    memory: float = argument(default=4.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.memory >= 0:
            raise ValueError(f"memory must be 0 GiB or more, got {self.memory}")

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width to resize to, if any."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def _how_read(self) -> tuple[Any, ...]:
        levels = self.levels or ()
        return self.image_shape, self.resize, *levels, *self._behind

    @property
    def _behind(self) -> tuple[str, ...]:
        """The colour behind transparent parts, if it was chosen."""
        return () if self.background == BLACK else (self.background,)

    def notes(self) -> tuple[str, ...]:
        """Note what all data note, and how many test images look like training images,
        without those of the same pixels.
        """
        train, test = (self._splits.sets[part] for part in ("train", "test"))
        names = [entry.name for entry in self._splits.manifest.parts["train"]]
        moving = [name for name, seen in self._facts.items() if seen.frames > 1]
        doubts = (*frames_lines(moving), *image_doubts(train.inputs, names))
        notes = (*super().notes(), *doubts)
        if len(train) + len(test) > _COMPARED:
            return notes
        parts = self.manifest().merged(self._splits.same).parts
        train_digests = {entry.digest for entry in parts["train"]}
        rows = [
            row
            for row, entry in enumerate(parts["test"])
            if entry.digest not in train_digests
        ]
        first_places = first_alike(
            looks_of(test.inputs, rows), looks_of(train.inputs, range(len(train)))
        )
        alike = [place for place in first_places if place >= 0]
        note = (
            f"{counted(len(alike), 'test images')} nearly the same as a training "
            f"image; {self.names_alike}"
        )
        return (*notes, note) if alike else notes

    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        entries = list(chain.from_iterable(manifest.parts[part] for part in PARTS))
        shape, first = self._shape(entries)
        count = len(entries) + len(decoded)
        mapped = count * math.prod(shape) > self.memory * GIB
        levels = () if self.levels is None else (str(self.levels),)
        how = " ".join([self.resize, *levels, *self._behind])
        picture = (
            decoded.__getitem__ if decoded else partial(self._picture, shape, first)
        )
        images, problems = decode_parts(manifest, picture, shape, how, mapped)
        if problems:
            return {}, problems
        sets: dict[str, Examples] = {}
        for part, rows in manifest.parts.items():
            sets[part] = Examples(
                images[part],
                self.targets(rows, manifest.classes),
                manifest.classes,
                tuple(self._items[entry.name].title for entry in rows),
            )
        return sets, {}

    def _picture(self, shape: tuple[int, int, int], first: Item, name: str) -> Tensor:
        item = self._items[name]
        if self.resize == "handwriting" and self.sides is not None:
            return _handwriting(item, shape, self.levels)
        image = self._open(item, shape[0])
        if self.sides is None and image.size != shape[:0:-1]:
            raise ValueError(
                f"images must have one size: {first.title} has {shape[1]} x "
                f"{shape[2]} pixels "
                f"(height x width) but {item.title} has {image.height} x "
                f"{image.width}; pass size to resize them"
            )
        if self.resize == "handwriting":
            return _handwriting(item, shape, self.levels)
        return to_tensor(image, shape, self.resize)

    def _open(self, item: Item, channels: int) -> "Image | Bands":
        """The decoded image."""
        with reading(item):
            return open_image(
                item.source(), channels, item.title, self.levels, self.background
            )

    def _shape(self, entries: Sequence[Entry]) -> tuple[tuple[int, int, int], Item]:
        """The shape of all images, and the first image that can be read, whose size is
        taken if ``size`` is None.
        """
        items = [self._items[entry.name] for entry in entries]
        channels = self.channels or self._channels([entry.name for entry in entries])
        if self.sides is not None:
            return (channels, *self.sides), items[0]
        problems = []
        for item in items:
            try:
                width, height = self._open(item, channels).size
            except BrokenImage as problem:
                problems.append(problem)
            else:
                return (channels, height, width), item
        raise all_broken(problems, self.advice)

    def _channels(self, names: Sequence[str]) -> int:
        """The channels of images: 1 if all are grey, 3 if some are in colour, or those
        that most have.
        """
        counts = Counter(self._facts[name].channels for name in names)
        del counts[0]  # those that cannot be read
        most = max(counts, key=counts.__getitem__, default=1)
        return 3 if most == 1 and 3 in counts else most

    def _digest(self, item: Item) -> str:
        return self._facts[item.name].digest

    def _same_content(
        self, manifest: Manifest, sets: Mapping[str, Examples]
    ) -> Mapping[str, str]:
        """The digest that stands for those of files of the same pixels; finding it
        takes a look at every pixel.
        """
        return same_content(manifest, sets)

    @cached_property
    def _facts(self) -> dict[str, "ImageFacts"]:
        """Facts about each image from its file, without decoding it."""
        items = self.listed.items
        files_seen = threaded(
            lambda index: look(items[index].source, items[index].title),
            range(len(items)),
        )
        return {item.name: seen for item, seen in zip(items, files_seen, strict=True)}


def decode_parts(
    manifest: Manifest,
    picture: Callable[[str], Tensor],
    shape: tuple[int, int, int],
    how: str = "",
    mapped: bool = False,
) -> tuple[dict[str, Tensor], dict[str, BrokenImage]]:
    """The images of each split, and the problems of those that cannot be read, by name,
    as of :func:`decode_images`; ``picture`` decodes the image of a name.
    """
    images: dict[str, Tensor] = {}
    problems: dict[str, BrokenImage] = {}
    for part, rows in manifest.parts.items():
        names = [entry.name for entry in rows]
        digests = [entry.digest for entry in rows]
        of_row = partial(_of_row, picture, names)
        images[part], broken = decode_images(digests, of_row, shape, how, mapped)
        problems |= {names[row]: problem for row, problem in broken.items()}
    return images, problems


def _of_row(picture: Callable[[str], Tensor], names: Sequence[str], row: int) -> Tensor:
    return picture(names[row])


@dataclass(frozen=True)
class GivenImage(Item):
    """One image of a program.

    Args:
        name: identifies it.
        category: the name of its class, or of its classes.
        image: gives the image, or the path of its file.
    """

    image: "Callable[[], Source]"

    def source(self) -> "Source":
        """The image, or its file."""
        return self.image()


class ImageFacts(NamedTuple):
    """Facts about a file, without decoding it.

    Args:
        digest: the digest of its content.
        channels: how many it has; 0 if it is unknown.
        frames: how many it has.
    """

    digest: str
    channels: int
    frames: int = 1


def look(source_of: Callable[[], "Source"], title: str) -> ImageFacts:
    """Facts about an image; one that cannot be read is known once it is decoded."""
    from PIL import Image

    digest = "unreadable"
    try:
        source = source_of()
        if isinstance(source, Image.Image | Bands):
            digest = pixels_digest(source)
        else:
            digest = digest_of(source)
        with opened(source, title) as image:
            return ImageFacts(digest, channels_of(image), getattr(image, "n_frames", 1))
    except BrokenImage:
        return ImageFacts(digest, 0)
    except OSError as error:
        return ImageFacts(f"unreadable: {error.strerror}", 0)


@contextmanager
def reading(item: Item) -> Iterator[None]:
    """Turns an `OSError`, such as a missing permission, into a `BrokenImage`."""
    try:
        yield
    except OSError as error:
        raise BrokenImage(item.title, str(error.strerror)) from error


def _handwriting(
    item: Item, shape: tuple[int, int, int], levels: Levels | None
) -> Tensor:
    """The handwriting in an image, found as in pictures that a trained network
    classifies: any ink on any paper.
    """
    with reading(item):
        return load_handwriting(item.source(), shape, item.title, levels).values
