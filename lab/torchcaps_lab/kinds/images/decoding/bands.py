"""Pictures that Pillow has no mode for: arrays in .npy files, TIFF files of many bands,
and the range of pixels.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from torchcaps.spec import Within, is_finite
from torchcaps.whole import LARGEST_TABLE, opened
from torchcaps_lab.kinds.images.sets.arrays import order_of

if TYPE_CHECKING:
    from PIL.Image import Image

Levels = tuple[float, float]
"""The values of pixels that become 0 and 255; those below and above become the same."""


class _BlackBelowWhite(Within):
    """Two finite values, the first below the second."""

    def check(self, place: str, value: Any) -> None:
        if not all(map(is_finite, value)) or not value[0] < value[1]:
            raise ValueError(
                f"{place} must be two values of pixels, those of black and white, the "
                f"first below, got {value}"
            )


Range = Annotated[tuple[float, float], _BlackBelowWhite()]
"""The same as an argument."""

ARRAY_SUFFIX = ".npy"

_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


@dataclass(frozen=True, eq=False)
class Bands:
    """A picture of any number of channels and any kind of numbers.

    Args:
        pixels: (H, W, C).
        format: the format of the file.
    """

    pixels: np.ndarray
    format: str = ""

    @property
    def channels(self) -> int:
        """How many."""
        return self.pixels.shape[2]

    @property
    def mode(self) -> str:
        """The kind of pixels, for people."""
        return f"{self.channels} x {self.pixels.dtype}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.pixels.shape[1], self.pixels.shape[0]

    @property
    def width(self) -> int:
        """The width in pixels."""
        return self.pixels.shape[1]

    @property
    def height(self) -> int:
        """The height in pixels."""
        return self.pixels.shape[0]

    def load(self) -> None:
        """Do nothing: the pixels are here, as those of an image of Pillow are after
        this call.
        """

    def tobytes(self) -> bytes:
        """The numbers, one after the other."""
        return self.pixels.tobytes()

    def in_8_bit(self, levels: Levels | None) -> "Bands":
        """The same as bytes, see :func:`to_8_bit`."""
        kind = self.pixels.dtype
        if levels is None and kind.kind in "iu" and kind not in (np.uint8, np.uint16):
            least = int(self.pixels.min())
            most = int(self.pixels.max())
            raise ValueError(
                f"pixels of {kind} have no usual range, got {least} to {most}: range "
                "says which values become black "
                "and white"
            )
        return Bands(to_8_bit(self.pixels, levels), self.format)

    def picture(self) -> "Image":
        """Bytes of one, three or four bands as a PIL image."""
        from PIL import Image

        return Image.fromarray(
            self.pixels[:, :, 0] if self.channels == 1 else self.pixels
        )


def to_8_bit(pixels: np.ndarray, levels: Levels | None = None) -> np.ndarray:
    """Scale pixels to bytes: the levels become 0 and 255.

    Args:
        pixels: the pixels of any numbers.
        levels: default: 0 and 255 for bytes, 0 and 65535 for 16 bit, 0 and 1 for
            floating point.

    Raises:
        ValueError: pixels are not finite; or without levels, the numbers lie outside,
            or have no usual range.
    """
    if pixels.dtype == np.uint8 and levels is None:
        return pixels
    if pixels.dtype.kind == "f" and not np.isfinite(pixels).all():
        raise ValueError("pixels must be finite, got NaN or infinite ones")
    low, high = levels or _usual_levels(pixels)
    return (
        ((pixels.astype(np.float64) - low) / ((high - low) / 255))
        .round()
        .clip(0, 255)
        .astype(np.uint8)
    )


def _usual_levels(pixels: np.ndarray) -> Levels:
    if pixels.dtype == np.bool_:
        return 0, 1
    least = float(pixels.min())
    most = float(pixels.max())
    if pixels.dtype.kind == "f":
        low = 0
        high = 1
        kind = "floating-point pixels must lie in [0, 1]"
    else:  # Pillow gives 16-bit grey as I;16 or, depending on its version and on the format, as 32-bit I.
        low = 0
        high = 65535
        kind = "pixels must be 16 bit, 0..65535"
    if not low <= least <= most <= high:
        raise ValueError(
            f"{kind}, got {least:g} to {most:g}: range says which values become black "
            "and white"
        )
    return low, high


def channels_of(image: Any) -> int:
    """How many channels a picture has: of a PIL image 1 for grey, 3 for colour."""
    from PIL import Image

    if isinstance(image, Bands):
        return image.channels
    return 1 if Image.getmodebase(image.mode) == "L" else 3


def read_array(source: Path | BytesIO, most_pixels: int) -> Bands:
    """Read the picture in a .npy file, (H, W), (H, W, C) or (C, H, W); never a pickled
    object.

    Raises:
        ValueError: it is none, or has more pixels, or the order of its axes is not
            clear.
    """
    if isinstance(source, BytesIO):
        _check_header(source, most_pixels)
        return _as_bands(np.load(source, allow_pickle=False), "NPY")
    with opened(source, LARGEST_TABLE) as file:
        _check_header(file, most_pixels)
    return _as_bands(np.load(source, mmap_mode="r", allow_pickle=False), "NPY")


def _check_header(file: Any, most_pixels: int) -> None:
    """Raise a `ValueError` unless the header states a picture that is not too large; no
    more is read.
    """
    major, _ = np.lib.format.read_magic(file)
    if major == 1:
        read = np.lib.format.read_array_header_1_0
    else:
        read = np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    file.seek(0)
    if kind.kind not in "buif":
        raise ValueError(f"it must hold numbers, got {kind}")
    if len(shape) not in (2, 3) or 0 in shape:
        raise ValueError(
            "it must hold a picture (H, W), (H, W, C) or (C, H, W), got the shape "
            f"{shape}"
        )
    if math.prod(shape) > most_pixels:
        raise ValueError(
            f"it has {math.prod(shape):,} numbers, at most {most_pixels:,} are read"
        )


def _as_bands(array: np.ndarray, kind: str) -> Bands:
    if array.ndim == 2:
        return Bands(np.array(array)[:, :, None], kind)
    order = order_of(
        (1, *array.shape),
        "the picture",
        advice="store the picture as (H, W, C) with other sides",
    )
    return Bands(
        np.array(array if order == "NHWC" else array.transpose(1, 2, 0), order="C"),
        kind,
    )


def is_tiff(source: Path | BytesIO) -> bool:
    """Whether a file begins as a TIFF file does."""
    if isinstance(source, BytesIO):
        return source.getvalue()[:4] in _TIFF
    # The caller has checked what it opens.
    with source.open("rb") as file:
        return file.read(4) in _TIFF


def read_tiff(source: Path | BytesIO, most_pixels: int) -> Bands:
    """Read a TIFF file of many bands, or of colours of more than 8 bit, which Pillow
    does not read.

    Raises:
        ValueError: tifffile, which reads it, is not installed; or it has more pixels,
            or holds no picture.
    """
    try:
        import tifffile
    except ModuleNotFoundError:
        raise ValueError(
            "TIFF files of such pixels need tifffile: pip install "
            "'torchcaps-lab[bands]'"
        ) from None
    file = source if isinstance(source, BytesIO) else str(source)
    with _quiet(), tifffile.TiffFile(file) as tiff:
        page = tiff.pages[0]
        if math.prod(page.shape) > most_pixels or math.prod(page.chunks) > most_pixels:
            sides = " x ".join(map(str, page.shape))
            raise ValueError(
                f"it has {sides} numbers, at most {most_pixels:,} are read"
            )
        if (
            page.dtype is None
            or page.dtype.kind not in "buif"
            or page.ndim not in (2, 3)
        ):
            raise ValueError(
                f"it must hold numbers (H, W) or (H, W, C), got {page.dtype} "
                f"{page.shape}"
            )
        pixels = page.asarray()
        if page.ndim == 3 and page.axes.startswith("S"):
            # Bands one after the other.
            pixels = pixels.transpose(1, 2, 0)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    return Bands(np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("=")), "TIFF")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences what tifffile logs and warns of damaged files, whose errors are
    reported.
    """
    import logging

    logger = logging.getLogger("tifffile")
    was = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = was
