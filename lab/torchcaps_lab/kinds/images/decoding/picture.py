"""Reads a picture with Pillow, as bytes of the shape that a network takes."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from torchcaps.spec import Within, check
from torchcaps.whole import LARGEST_TABLE, check_file, seen_from
from torchcaps_lab.data.listed import BrokenItem
from torchcaps_lab.data.reader import Read
from torchcaps_lab.data.transforms.steps import nearest
from torchcaps_lab.kinds.images.decoding.bands import (
    ARRAY_SUFFIX,
    Bands,
    Levels,
    is_tiff,
    read_array,
    read_tiff,
    to_8_bit,
)
from torchcaps_lab.kinds.images.decoding.handwriting import read_handwriting, upright
from torchcaps_lab.look import Fit, Resize, counted

if TYPE_CHECKING:
    from PIL.Image import Image

    Source: TypeAlias = Path | BytesIO | Image | Bands
    """A file, its bytes, a PIL image, or bands."""


FORMATS = (
    "AVIF",
    "BMP",
    "GIF",
    "HEIF",
    "JPEG",
    "JPEG2000",
    "PNG",
    "PPM",
    "TIFF",
    "WEBP",
)
"""What is read, HEIF where its plug-in is installed. Pillow knows more: it decodes
icons to learn their size, and has Ghostscript run PostScript.
"""

BLACK = "black"
"""What lies behind transparent parts, unless it is chosen."""

BY_PLUGIN = dict.fromkeys((".heic", ".heif", ".hif"), "pillow-heif")
"""What to install to read files of other suffixes."""


_SAMPLES = 277  # the tag of TIFF for how many bands there are


class BrokenImage(BrokenItem):
    """The error for a file that is not an image, or damaged."""

    things = "images"


def load_image(
    path: "str | Path | Image | Bands",
    image_shape: tuple[int, int, int],
    resize: Resize = "pad",
    levels: Levels | None = None,
) -> Tensor:
    """Read one image the way `ImageFolder` does.

    Args:
        path: a file in one of the `FORMATS`, a .npy file, an image of Pillow, or bands.
        image_shape: channels (1: grey, 3: colour, others: those of the file), height
            and width of the result.
        resize: `pad` with black, `crop` the centre, `stretch`, or cut out
            `handwriting`.
        levels: the values of pixels that become 0 and 255; default: the range of their
            kind.

    Returns:
        uint8 (C, H, W).

    Raises:
        ValueError: the file is not an image, or is broken; an argument is out of range.
    """
    check(Resize, resize, "resize")
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise ValueError(
            "image_shape must be (channels, height, width), each at least 1, got "
            f"{image_shape}"
        )
    source = Path(path) if isinstance(path, str) else path
    if resize == "handwriting":
        return load_handwriting(source, image_shape, levels=levels).values
    image = open_image(source, image_shape[0], levels=levels)
    return to_tensor(image, image_shape, resize)


def load_handwriting(
    source: "Source",
    image_shape: tuple[int, int, int],
    name: str | Path = "",
    levels: Levels | None = None,
) -> Read:
    """The handwriting in an image that `open_image` takes, with a note; raises what
    that raises.
    """
    with opened(source, name) as image:
        return fit_handwriting(image, image_shape, levels)


def fit_handwriting(
    image: "Image | Bands",
    image_shape: tuple[int, int, int],
    levels: Levels | None = None,
) -> Read:
    """The handwriting in a picture, with a note."""
    if image_shape[0] not in (1, 3):
        raise ValueError(
            f"handwriting is grey or in colour, got {image_shape[0]} channels"
        )
    is_bands = isinstance(image, Bands)
    if is_bands or image.mode.startswith(("I", "F")) or levels is not None:
        image = in_mode(image, 1, levels)
    assert not isinstance(image, Bands)
    return read_handwriting(image, image_shape)


def colour_of(name: str) -> tuple[int, int, int]:
    """Return red, green and blue of a colour, such as ``white`` or ``#ffd700``.

    Raises:
        ValueError: there is no such colour, or it is transparent itself.
    """
    from PIL import ImageColor

    red, green, blue, *alpha = ImageColor.getrgb(name)
    if alpha:
        raise ValueError(f"{name!r} is transparent")
    return red, green, blue


class _Colour(Within):
    """Colours by name or digits."""

    def check(self, place: str, value: Any) -> None:
        try:
            colour_of(value)
        except ValueError:
            raise ValueError(
                f"{place} must be the name of a colour, such as 'white', or its digits, "
                f"such as '#ffd700', got {value!r}"
            ) from None


Background = Annotated[str, _Colour()]
"""The colour behind transparent parts."""


def image_suffixes() -> set[str]:
    """The endings of the files that are read, in lower case."""
    from PIL import Image

    kinds = _opens(FORMATS)
    endings = Image.registered_extensions().items()
    return {ARRAY_SUFFIX} | {suffix for suffix, kind in endings if kind in kinds}


def _opens(formats: Sequence[str]) -> list[str]:
    """Find which of the formats Pillow and its plug-ins open here."""
    from PIL import Image

    _load_plugins()
    return [kind for kind in formats if kind in Image.OPEN]


@cache
def _load_plugins() -> None:
    """Make Pillow and its plug-ins register what they open."""
    from PIL import Image

    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()


def worded(error: OSError, words: str) -> OSError:
    """The error in other words. Its ``strerror``, the bare reason, stays."""
    in_words = type(error)(words)
    in_words.strerror = error.strerror
    return in_words


@contextmanager
def opened(
    source: "Source",
    name: str | Path = "",
    formats: Sequence[str] = FORMATS,
    most_pixels: int | None = None,
) -> Iterator["Image | Bands"]:
    """An image file, or its bytes, of which only the header was read so far, closed at
    the end; a picture as it is.

    Arrays, TIFF files of many bands, and those of colours of more than 8 bit are read
    whole, as :class:`Bands`.

    Args:
        source: the file, or what is in it.
        name: for messages; default: the path.
        formats: which of `FORMATS` are taken.
        most_pixels: images that state more are refused; default: as many as Pillow
            opens, twice `PIL.Image.MAX_IMAGE_PIXELS`.

    Raises:
        BrokenImage: for everything that Pillow raises, here and while the caller reads
            pixels.
        OSError: there is no such file, or it may not be read.
    """
    from PIL import Image, UnidentifiedImageError

    name = name or str(source)
    formats = _opens(formats)
    if most_pixels is None:
        most_pixels = 2 * (Image.MAX_IMAGE_PIXELS or sys.maxsize)
    try:
        if isinstance(source, Path):
            check_file(source, LARGEST_TABLE)
        if isinstance(source, Image.Image | Bands):
            yield source
        elif isinstance(source, Path) and source.suffix.lower() == ARRAY_SUFFIX:
            yield read_array(source, most_pixels)
        elif "TIFF" in formats and is_tiff(source) and not _opens_tiff(source):
            yield read_tiff(source, most_pixels)
        else:
            with Image.open(source, formats=formats) as image:
                _check_pixels(image, most_pixels)
                yield image
    except FileNotFoundError as error:
        raise worded(error, f"there is no file {name}{seen_from(name)}") from None
    except PermissionError as error:
        raise worded(error, f"{name} may not be read") from None
    except IsADirectoryError:
        raise  # It names the folder and says what is wrong.
    except UnidentifiedImageError:
        empty = isinstance(source, Path) and not source.stat().st_size
        empty = empty or (isinstance(source, BytesIO) and not source.getbuffer().nbytes)
        if empty:
            why = "the file is empty"
        else:
            why = f"it is not an image of a kind that is read: {', '.join(formats)}"
        raise BrokenImage(name, why) from None
    # Pillow's readers raise many types: OSError, SyntaxError, struct.error, ...
    except Exception as error:
        raise BrokenImage(name, str(error)) from error


def _opens_tiff(source: "Path | BytesIO") -> bool:
    """Whether Pillow has a mode for the pixels of a TIFF file, one that leaves no band
    out if others could read it.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(source, formats=["TIFF"]) as image:
            bands = image.tag_v2.get(_SAMPLES, 1) if hasattr(image, "tag_v2") else 1
            readable = image.mode != "RGBX" and len(image.getbands()) >= bands
            return readable or find_spec("tifffile") is None
    except (UnidentifiedImageError, SyntaxError):
        return False
    finally:
        if isinstance(source, BytesIO):
            source.seek(0)


def _check_pixels(image: "Image", most: int) -> None:
    """Raise a `ValueError` if more pixels would be decoded; a TIFF file is decoded in
    tiles, whose size it states.
    """
    width, height = image.size
    tags = getattr(image, "tag_v2", {})
    tile_width, tile_height = tags.get(322, 0), tags.get(323, 0)
    if max(width * height, tile_width * tile_height) > most:
        tiles = f" in tiles of {tile_width} x {tile_height}" if tile_width else ""
        raise ValueError(
            f"it has {width} x {height} pixels{tiles}, at most {most:,} are read"
        )


def open_image(
    source: "Source",
    channels: int,
    name: str | Path = "",
    levels: Levels | None = None,
    background: str = BLACK,
) -> "Image | Bands":
    """Decode an image file, its bytes, or a PIL image, as :func:`in_mode` returns it.

    Raises what `opened` raises.
    """
    with opened(source, name) as image:
        return in_mode(image, channels, levels, background)


def in_mode(
    source: "Image | Bands",
    channels: int,
    levels: Levels | None = None,
    background: str = BLACK,
) -> "Image | Bands":
    """A picture in bytes, upright, in the mode L (1 channel) or RGB (3 channels), or
    else as bands.

    Args:
        source: the picture.
        channels: the channels of the result; others than 1 and 3 must be those of the
            picture.
        levels: the values of pixels that become 0 and 255; default: the range of their
            kind.
        background: the colour behind transparent parts, see :func:`colour_of`.

    Raises:
        ValueError: it has other channels, or pixels outside the range of their kind.
    """
    from PIL import Image

    if isinstance(source, Bands):
        source = source.in_8_bit(levels)
        if source.channels == channels and channels not in (1, 3):
            return source
        if source.channels not in (1, 3, 4):
            raise ValueError(
                f"it has {counted(source.channels, 'channels')}, of which none can be left out, "
                f"expected {channels}"
            )
        source = source.picture()
        levels = None
    image = upright(source)
    if channels not in (1, 3):
        bands = np.atleast_3d(np.asarray(image))
        if bands.shape[2] != channels:
            raise ValueError(
                f"it has {counted(bands.shape[2], 'channels')}, expected {channels}"
            )
        return Bands(to_8_bit(bands, levels))
    if image.mode.startswith(("I", "F")):
        image = Image.fromarray(to_8_bit(np.asarray(image), levels))
        levels = None
    if image.getbands()[-1] == "A" or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if levels is None:
        return image
    return Image.fromarray(to_8_bit(np.asarray(image), levels))


def pictured(source: "Image | Bands", levels: Levels | None = None) -> "Image":
    """A picture in RGB, to look at: of bands that are no colours the first three, or
    the first.
    """
    if isinstance(source, Bands) and source.channels not in (1, 3, 4):
        source = Bands(source.pixels[:, :, : 3 if source.channels > 3 else 1])
    picture = in_mode(source, 3, levels)
    assert not isinstance(picture, Bands)
    return picture


def to_tensor(
    image: "Image | Bands", image_shape: tuple[int, int, int], resize: Resize
) -> Tensor:
    """An image in the mode of its channels, of bytes as uint8 (C, H, W), or the numbers
    of bands; does not look for handwriting.
    """
    from PIL import Image, ImageOps

    channels, height, width = image_shape
    if isinstance(image, Bands):
        # Each is resized as a grey picture is.
        bands = np.ascontiguousarray(image.pixels.transpose(2, 0, 1))
        layers = [
            to_tensor(band, (1, height, width), resize)
            for band in map(Image.fromarray, bands)
        ]
        return torch.cat(layers)
    if image.size != (width, height):
        if resize == "pad":
            top, left, high, wide = _inside(image.size[::-1], (height, width))
            picture = Image.new(image.mode, (width, height))
            picture.paste(image.resize((wide, high)), (left, top))
            image = picture
        elif resize == "crop":
            image = ImageOps.fit(image, (width, height))
        else:
            image = image.resize((width, height))
    pixels = torch.from_numpy(np.array(image))  # (H, W) or (H, W, 3)
    return pixels.reshape(height, width, channels).permute(2, 0, 1).contiguous()


def _inside(size: tuple[int, int], frame: tuple[int, int]) -> tuple[int, int, int, int]:
    """Where a picture with margins is in its frame: top, left, height and width. A side
    has a pixel at least.

    Args:
        size: height and width of the picture.
        frame: likewise.
    """
    scale = min(want / have for want, have in zip(frame, size, strict=True))
    high, wide = (max(1, round(extent * scale)) for extent in size)
    return round((frame[0] - high) / 2), round((frame[1] - wide) / 2), high, wide


def at_size(values: Tensor, height: int, width: int, resize: Fit) -> Tensor:
    """Numbers of the pixels of a fitted picture, at the pixels of the picture itself.

    Args:
        values: whole numbers (H, W), such as classes.
        height: the height of the picture.
        width: its width.
        resize: how it was fitted; with ``crop``, what was cut off is 0.

    Returns:
        Of the same dtype, (height, width): the nearest number of each pixel.
    """
    rows, columns = values.shape
    if resize == "pad":
        top, left, high, wide = _inside((height, width), (rows, columns))
        values = values[top : top + high, left : left + wide]
    target = height, width
    if resize == "crop":
        scale = max(rows / height, columns / width)
        high = min(height, max(1, round(rows / scale)))
        target = high, min(width, max(1, round(columns / scale)))
    result = values.new_zeros(height, width)
    top, left = (height - target[0]) // 2, (width - target[1]) // 2
    result[top : top + target[0], left : left + target[1]] = nearest(values, *target)
    return result


def as_picture(image: Any) -> "Image | None":
    """A PIL image, or bytes with the channels of one, as a PIL image; None if it is
    something else.
    """
    from PIL import Image as PIL

    if isinstance(image, PIL.Image):
        return image
    if not hasattr(image, "shape"):
        raise ValueError(
            "an image must be a path, the bytes of a file, a PIL image, an array or a "
            f"tensor, got {type(image).__name__}"
        )
    tensor = as_tensor(image)
    if tensor.dtype != torch.uint8 or tensor.shape[0] not in (1, 3, 4):
        return None
    pixels = tensor.cpu().permute(1, 2, 0).numpy()
    return PIL.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def as_shown(image: Any) -> "Image":
    """An image with any kind of numbers as a PIL image."""
    picture = as_picture(image)
    if picture is None:
        picture = as_picture((255 * as_numbers(image)).round().to(torch.uint8))
    if picture is None:
        raise ValueError(f"a picture must have 1, 3 or 4 channels, got {_shape(image)}")
    return picture


def as_source(image: Any, levels: Levels | None = None) -> "Image | Bands":
    """An image with any kind of numbers, as it is opened: a PIL image of bytes, or
    bands with the numbers as they are.

    Floating point of one, three or four channels becomes bytes unless ``levels`` will
    be applied.
    """
    if not hasattr(image, "shape"):
        return as_shown(image)
    tensor = as_tensor(image)
    if len(tensor) in (1, 3, 4) and (levels is None or tensor.dtype == torch.uint8):
        return as_shown(tensor)
    return Bands(np.ascontiguousarray(tensor.cpu().permute(1, 2, 0).numpy()))


def as_tensor(image: Any) -> Tensor:
    """An array (H, W) or (H, W, C), or a tensor (C, H, W), as a tensor (C, H, W)."""
    if isinstance(image, Tensor):
        if image.ndim != 3:
            raise ValueError(
                "a tensor must be (C, H, W), or (B, C, H, W) for several images, got "
                f"{_shape(image)}"
            )
        tensor = image
    else:
        if image.ndim not in (2, 3):
            raise ValueError(
                "an array must be (H, W) or (H, W, C), or (B, H, W, C) for several, "
                f"got {_shape(image)}"
            )
        # A copy: those of Pillow may not be written to, and torch reads none backwards,
        # as image[..., ::-1] of OpenCV.
        tensor = torch.from_numpy(np.array(image, order="C"))
        tensor = tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1)
    _check_axes(image)
    if 0 in tensor.shape:
        raise ValueError(f"an image must have pixels, got {_shape(image)}")
    return tensor


def _check_axes(image: Any) -> None:
    """Raise a `ValueError` for an image whose channels stand where those of its kind do
    not.
    """
    if image.ndim != 3:
        return
    first, _, last = image.shape
    if isinstance(image, Tensor):
        channels, other, how = first, last, "image.permute(2, 0, 1)"
        kind, order, turned = "a tensor", "(C, H, W)", "(H, W, C)"
    else:
        channels, other, how = last, first, "image.transpose(1, 2, 0)"
        kind, order, turned = "an array", "(H, W, C)", "(C, H, W)"
    if other in (1, 3) and channels not in (1, 2, 3, 4):
        raise ValueError(
            f"{kind} is {order}: this one, {tuple(image.shape)}, would have {channels} "
            f"channels and looks like {turned}; give {how}"
        )


def as_numbers(image: Any, levels: Levels | None = None) -> Tensor:
    """An image, or tensors of several, float32 in [0, 1] with the channels before
    height and width.

    Args:
        image: of bytes, or of floating point in [0, 1].
        levels: the values that become 0 and 1; with them any numbers will do.
    """
    if isinstance(image, Tensor) and image.ndim == 4:
        tensor = image
    else:
        tensor = as_tensor(image)
    if levels is not None:
        low, high = levels
        return ((tensor.double() - low) / (high - low)).clamp(0, 1).float()
    check_pixels(tensor)
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor.float()


def check_pixels(pixels: Tensor) -> None:
    """Raise a `ValueError` unless the pixels are bytes, or floating point in [0, 1]."""
    if pixels.dtype == torch.uint8 or not pixels.numel():
        return
    if not pixels.is_floating_point():
        raise ValueError(
            "pixels must be bytes (uint8), or floating point in [0, 1], got "
            f"{pixels.dtype}: scale them, or pass "
            "range, the values that become black and white"
        )
    least, most = (float(end) for end in torch.aminmax(pixels))
    if math.isnan(least):
        raise ValueError(
            "floating-point pixels must lie in [0, 1], got NaN: put a value in its "
            "place, such as images.nan_to_num(0)"
        )
    if not 0 <= least <= most <= 1:
        raise ValueError(
            f"floating-point pixels must lie in [0, 1], got {least:g} to {most:g}: "
            "give bytes (uint8), or scale them, or pass range, the values that become "
            "black and white"
        )


def _shape(image: Any) -> str:
    return f"the shape {tuple(image.shape)}"
