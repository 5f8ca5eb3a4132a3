"""What a network reads, one kind of input in each class: how it is found, brought to
numbers, batched and told of.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps_lab.data.bands import Levels
from torchcaps_lab.data.base import Fit, Resize
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.files import image_files
from torchcaps_lab.data.handwriting import Read
from torchcaps_lab.data.picture import (
    as_numbers,
    as_picture,
    as_shown,
    as_source,
    check_resize,
    fit_handwriting,
    in_mode,
    load_handwriting,
    open_image,
    to_tensor,
)
from torchcaps_lab.data.series_files import (
    SOUNDS,
    TABLES,
    Columns,
    SeriesItem,
    read_sound,
    table,
)
from torchcaps_lab.data.series_set import Scale, SeriesSet, padded
from torchcaps_lab.data.text_files import named_texts
from torchcaps_lab.data.text_set import TextSet
from torchcaps_lab.data.words import (
    PADDING,
    RESERVED,
    UNKNOWN,
    Reading,
    Words,
    together,
)

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601), as in Pillow."""


class Reader(ABC):
    """A kind of input."""

    kind: ClassVar[type[Examples]]
    """The data sets that hold it."""

    takes: ClassVar[str]
    """As :attr:`torchcaps.models.ImageClassifier.takes`."""

    items: ClassVar[str]
    """What is named on a command line."""

    axes: ClassVar[Mapping[int, str]]
    """The axes of a batch that may have any length, by their places."""

    @abstractmethod
    def read(self, given: Any, resize: Fit | None = None) -> Read:
        """One input as numbers, unprepared, and a note on how they were made, if that
        depends on the input.

        Raises:
            ValueError: if it cannot be read.
        """

    @abstractmethod
    def together(self, rows: Sequence[Tensor]) -> Tensor:
        """Inputs that :meth:`read` made, as one batch."""

    def alike(self, one: Tensor, other: Tensor) -> bool:
        """Whether two inputs can be in one batch."""
        return True

    def most(self, row: Tensor, size: int) -> int:
        """How many inputs like this one take the memory of a batch of ``size`` usual
        ones.
        """
        return size

    def fitted(self, images: Examples) -> Examples:
        """A data set as the network reads it; a `ValueError` if it holds another kind
        of input.
        """
        if images.what != self.kind.what:
            raise ValueError(f"the network takes {self.takes}, these are {images.what}")
        return images

    @abstractmethod
    def named(self, names: Sequence[str]) -> Iterable[Any]:
        """The inputs that are named on a command line."""

    @abstractmethod
    def notes(self) -> dict[str, Any]:
        """For users of an exported network: what its file takes, ready for JSON."""

    @abstractmethod
    def __str__(self) -> str:
        """For people: what the file of an exported network takes."""


@dataclass(frozen=True)
class ImageReader(Reader):
    """Images of any kind and size: see
    :meth:`torchcaps_lab.classifier.Classifier.predict`.

    Args:
        image_shape: (C, H, W) of those that the network takes, before they are
            prepared.
        resize: how images of another size get there.
        levels: the values of pixels that become black and white; default: the range of
            their kind.
    """

    image_shape: tuple[int, int, int]
    resize: Fit = "pad"
    levels: Levels | None = None

    kind = Examples
    takes = "images"
    items = "files"
    axes = MappingProxyType({0: "batch"})

    def read(self, given: Any, resize: Fit | None = None) -> Read:
        """Float32 in [0, 1], of ``image_shape``, or with ``keep`` of its own height and
        width.
        """
        fit = resize or self.resize
        if fit == "handwriting":
            if isinstance(given, str | Path):
                found = load_handwriting(
                    Path(given), self.image_shape, levels=self.levels
                )
            else:
                source = (
                    as_shown(given)
                    if self.levels is None
                    else as_source(given, self.levels)
                )
                found = fit_handwriting(source, self.image_shape, self.levels)
            return found._replace(values=found.values.float() / 255)
        if fit != "keep":
            check_resize(fit)
        return Read(self._pixels(given, fit), "")

    def _pixels(self, image: Any, fit: Fit) -> Tensor:
        channels = self.image_shape[0]
        if isinstance(image, str | Path):
            picture = open_image(Path(image), channels, levels=self.levels)
        else:
            source = (
                as_picture(image)
                if channels in (1, 3) or not hasattr(image, "shape")
                else None
            )
            if source is None:
                numbers = _with_channels(as_numbers(image, self.levels), channels)
                return (
                    numbers
                    if fit == "keep"
                    else _fit_numbers(numbers, self.image_shape, fit)
                )
            picture = in_mode(source, channels, self.levels)
        shape = (
            (channels, picture.height, picture.width)
            if fit == "keep"
            else self.image_shape
        )
        return to_tensor(picture, shape, "pad" if fit == "keep" else fit).float() / 255

    def together(self, rows: Sequence[Tensor]) -> Tensor:
        """Images of one shape, (B, C, H, W)."""
        return torch.stack(list(rows))

    def alike(self, one: Tensor, other: Tensor) -> bool:
        """Whether both have one shape."""
        return one.shape == other.shape

    def most(self, row: Tensor, size: int) -> int:
        """As many as have the pixels of ``size`` images of ``image_shape``."""
        return -(-size * math.prod(self.image_shape) // row.numel())

    def named(self, names: Sequence[str]) -> Iterator[Path]:
        """The named files, with folders and patterns expanded; missing files are
        reported when they are read.

        Raises:
            ValueError: if a folder holds no images, no file fits a pattern, or a name
                is empty.
        """
        for name in names:
            path = Path(name)
            if not name:
                raise ValueError(
                    "images must be names of files or folders, got an empty one"
                )
            if path.is_dir():
                found = image_files(path)
            elif not path.exists() and any(sign in name for sign in "*?["):
                found = sorted(
                    one
                    for one in Path(path.anchor).glob(name.removeprefix(path.anchor))
                    if one.is_file()
                )
            else:
                found = [path]
            if not found:
                raise ValueError(
                    f"there are no images in {name}"
                    if path.is_dir()
                    else f"no file fits the pattern {name}"
                )
            yield from found

    def notes(self) -> dict[str, Any]:
        """Shape, range and fit of the images."""
        told = {
            "image_shape": list(self.image_shape),
            "pixels": "float32 in [0, 1]",
            "resize": self.resize,
        }
        return told if self.levels is None else {**told, "range": list(self.levels)}

    def __str__(self) -> str:
        return (
            f"images (batch, {str(self.image_shape)[1:-1]}), float32 in [0, 1]; "
            "preparing them is in it"
        )


@dataclass(frozen=True)
class TextReader(Reader):
    """Texts, as the numbers of their words.

    Args:
        words: the vocabulary of the network.
    """

    words: Words

    kind = TextSet
    takes = "words"
    items = "texts"
    axes = MappingProxyType({0: "batch", 1: "length"})

    def read(self, given: Any, resize: Fit | None = None) -> Read:
        """The numbers of the words of a text, int64 (L,)."""
        return Read(self.reading(given).numbers, "")

    def reading(self, text: Any) -> Reading:
        """A text with the places of its words.

        Raises:
            ValueError: if it is no string, or has no words.
            UserWarning: as a warning, if none of its words is known.
        """
        if not isinstance(text, str):
            raise ValueError(f"a text must be a string, got {type(text).__name__}")
        (reading,) = self.words.read([text])
        if not reading.length:
            raise ValueError(f"there are no words in {text!r}")
        if reading.unknown == len(reading.numbers):
            warnings.warn(
                f"no word of {beginning(text, 60)!r} was in the training texts: its "
                "answer is a guess",
                stacklevel=2,
            )
        return reading

    def together(self, rows: Sequence[Tensor]) -> Tensor:
        """Texts of any lengths, (B, longest)."""
        return together(rows)

    def fitted(self, images: Examples) -> Examples:
        """The texts in the words of the network."""
        super().fitted(images)
        assert isinstance(images, TextSet)
        return images.in_words(self.words)

    def named(self, names: Sequence[str]) -> Iterable[Any]:
        """Texts, lines of files, or whole files in folders."""
        return named_texts(names)

    def notes(self) -> dict[str, Any]:
        """The vocabulary, and the numbers that stand for no word of it."""
        return {
            "padding": PADDING,
            "unknown": UNKNOWN,
            "first": RESERVED,
            "words": self.words.config(),
        }

    def __str__(self) -> str:
        return (
            "words (batch, length), int64: the numbers of its vocabulary, which "
            "lies in it"
        )


@dataclass(frozen=True)
class SeriesReader(Reader):
    """Series, as numbers in the scale of the network, and sounds.

    Args:
        scale: of the network.
        channels: of its series.
    """

    scale: Scale
    channels: int

    kind = SeriesSet
    takes = "series"
    items = "series"
    axes = MappingProxyType({0: "batch", 2: "length"})

    def read(self, given: Any, resize: Fit | None = None) -> Read:
        """A series (C, L), float32: of a tensor or an array (C, L), an item of a file,
        or the file of a sound.
        """
        values = given.values if isinstance(given, SeriesItem) else given
        if isinstance(given, str | Path):
            values = read_sound(Path(given), self.scale.sound)
        values = torch.as_tensor(values, dtype=torch.float32)
        if (
            values.ndim != 2
            or len(values) != self.channels
            or not values.shape[1]
            or not values.isfinite().all()
        ):
            raise ValueError(
                f"a series must be finite numbers ({self.channels}, L), "
                f"{self.channels} channels of L moments, got "
                f"{(*values.shape,)}{f' of {given}' if isinstance(given, SeriesItem) else ''}"
            )
        return Read(self.scale(values), "")

    def together(self, rows: Sequence[Tensor]) -> Tensor:
        """Series of any lengths, (B, C + 1, longest)."""
        return padded(rows, self.channels)

    def fitted(self, images: Examples) -> Examples:
        """The series in the scale of the network; a `ValueError` if sounds were made
        into other series.
        """
        super().fitted(images)
        assert isinstance(images, SeriesSet)
        if images.scale.sound != self.scale.sound:
            raise ValueError(
                f"the network takes {self.scale.sound}, these are {images.scale.sound}"
            )
        return replace(images, scale=self.scale)

    def named(self, names: Sequence[str]) -> Iterable[Any]:
        """All series of files, and the sounds in folders."""
        for name in names:
            path = Path(name)
            if path.suffix.lower() in TABLES:
                yield from table(path, Columns(*self.scale.columns))
            elif path.is_dir():
                yield from (
                    one
                    for one in sorted(path.rglob("*"))
                    if one.suffix.lower() in SOUNDS
                )
            else:
                yield path

    def notes(self) -> dict[str, Any]:
        """The scale, and how sounds become series."""
        return {"channels": self.channels, "scale": self.scale.config()}

    def __str__(self) -> str:
        return (
            f"series (batch, {self.channels + 1}, length), float32, in the scale "
            "that lies in it; the last is 1"
        )


def beginning(text: str, most: int) -> str:
    """A text, cut after ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _fit_numbers(
    image: Tensor, image_shape: tuple[int, int, int], resize: Resize
) -> Tensor:
    """Numbers (C, H, W) in [0, 1] in another shape."""
    image = _with_channels(image, image_shape[0])
    height, width = image_shape[1:]
    if image.shape[1:] == (height, width):
        return image
    scales = height / image.shape[1], width / image.shape[2]
    if resize != "stretch":
        scales = (min(scales),) * 2 if resize == "pad" else (max(scales),) * 2
    size = [
        max(1, round(extent * scale))
        for extent, scale in zip(image.shape[1:], scales, strict=True)
    ]
    image = F.interpolate(image[None], size, mode="bicubic", antialias=True)[0].clamp(
        0, 1
    )
    missing = [want - have for want, have in zip((height, width), size, strict=True)]
    top, left = (round(extent / 2) for extent in missing)
    return F.pad(
        image, (left, missing[1] - left, top, missing[0] - top)
    )  # negative padding crops


def _with_channels(image: Tensor, channels: int) -> Tensor:
    """Grey as colour, colour as grey, transparent parts black; else the channels must
    be right.
    """
    found = len(image)
    if found == 4 and channels in (1, 3):
        image, found = image[:3] * image[3:], 3
    if found == channels:
        return image
    if (found, channels) == (1, 3):
        return image.expand(3, -1, -1)
    if (found, channels) == (3, 1):
        return (image * image.new_tensor(_LUMA)[:, None, None]).sum(0, keepdim=True)
    raise ValueError(
        f"an image of {found} channels cannot be made into one of {channels}; "
        "arrays are (H, W) or (H, W, C), tensors (C, H, W)"
    )
