"""Reads a picture with Pillow, as bytes of the shape that a network takes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from torchcaps.numerics import check_choice
from torchcaps.whole import check_file
from torchcaps_lab.data.base import Resize
from torchcaps_lab.data.handwriting import Handwriting, read_handwriting, upright

if TYPE_CHECKING:
    from PIL.Image import Image

    Source: TypeAlias = Path | BytesIO | Image
    """A file, its bytes, or a PIL image."""


FORMATS = ("AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is read, HEIF where its plug-in is installed. Pillow knows more: it decodes icons to learn their size, and has
Ghostscript run PostScript."""

BY_PLUGIN = dict.fromkeys((".heic", ".heif", ".hif"), "pillow-heif")
"""What to install to read files of other suffixes."""


class BrokenImage(ValueError):
    """The error for a file that is not an image, or damaged.

    Args:
        name: of the file.
        why: what is wrong with it.
    """

    def __init__(self, name: str | Path, why: str) -> None:
        super().__init__(f"cannot read the image {name}: {why}")
        self.why = why


def load_image(path: str | Path, image_shape: tuple[int, int, int], resize: Resize = "pad") -> Tensor:
    """Read one image the way `ImageFolder` does.

    Args:
        path: a file in one of the `FORMATS`.
        image_shape: channels (1: grey, 3: colour), height and width of the result.
        resize: `pad` with black, `crop` the centre, `stretch`, or cut out `handwriting`.

    Returns:
        uint8 (C, H, W).

    Raises:
        ValueError: the file is not an image, or is broken; an argument is out of range.
    """
    check_resize(resize)
    if len(image_shape) != 3 or image_shape[0] not in (1, 3) or min(image_shape) < 1:
        raise ValueError(f"image_shape must be (1 or 3, height, width), got {image_shape}")
    if resize == "handwriting":
        return load_handwriting(Path(path), image_shape).pixels
    return to_tensor(open_image(Path(path), image_shape[0]), image_shape, resize)


def load_handwriting(source: "Source", image_shape: tuple[int, int, int], name: str | Path = "") -> Handwriting:
    """The handwriting in an image that `open_image` takes, with a note; raises what that raises."""
    with opened(source, name) as image:
        return fit_handwriting(image, image_shape)


def fit_handwriting(image: "Image", image_shape: tuple[int, int, int]) -> Handwriting:
    """The handwriting in a PIL image, with a note."""
    more_than_8_bit = image.mode.startswith(("I", "F"))
    return read_handwriting(in_mode(image, 1) if more_than_8_bit else image, image_shape)


def fit_image(image: "Image", image_shape: tuple[int, int, int], resize: Resize = "pad") -> Tensor:
    """Convert a PIL image to uint8 (C, H, W) as `load_image` does; raises what that raises."""
    if resize == "handwriting":
        return fit_handwriting(image, image_shape).pixels
    return to_tensor(in_mode(image, image_shape[0]), image_shape, resize)


def check_resize(resize: str) -> None:
    """Raise a `ValueError` unless there is such a way to resize."""
    check_choice("resize", resize, get_args(Resize))


def image_suffixes() -> set[str]:
    """The endings of the files that are read, in lower case."""
    from PIL import Image

    kinds = _opens(FORMATS)
    return {suffix for suffix, kind in Image.registered_extensions().items() if kind in kinds}


def _opens(formats: Sequence[str]) -> list[str]:
    """Those of the formats that Pillow and its plug-ins open here."""
    from PIL import Image

    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    return [kind for kind in formats if kind in Image.OPEN]


@contextmanager
def opened(
    source: "Source", name: str | Path = "", formats: Sequence[str] = FORMATS, most_pixels: int | None = None
) -> Iterator["Image"]:
    """An image file, or its bytes, of which only the header was read so far, closed at the end; a PIL image as it is.

    Args:
        source: the file, or what is in it.
        name: for messages; default: the path.
        formats: which of `FORMATS` are taken.
        most_pixels: images that state more are refused; default: as many as Pillow opens, twice
            `PIL.Image.MAX_IMAGE_PIXELS`.

    Raises:
        BrokenImage: for everything that Pillow raises, here and while the caller reads pixels.
        OSError: there is no such file, or it may not be read.
    """
    from PIL import Image, UnidentifiedImageError

    name, formats = name or str(source), _opens(formats)
    if most_pixels is None:
        most_pixels = 2 * (Image.MAX_IMAGE_PIXELS or sys.maxsize)
    try:
        if isinstance(source, Image.Image):
            yield source
            return
        if isinstance(source, Path):
            check_file(source, sys.maxsize)
        with Image.open(source, formats=formats) as image:
            _check_pixels(image, most_pixels)
            yield image
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise  # They name it and say what is wrong.
    except UnidentifiedImageError:
        empty = isinstance(source, Path) and not source.stat().st_size
        empty = empty or (isinstance(source, BytesIO) and not source.getbuffer().nbytes)
        why = "the file is empty" if empty else f"it is not an image of a kind that is read: {', '.join(formats)}"
        raise BrokenImage(name, why) from None
    except Exception as error:  # Pillow's readers raise many types: OSError, SyntaxError, struct.error, ...
        raise BrokenImage(name, str(error)) from error


def _check_pixels(image: "Image", most: int) -> None:
    """Raise a `ValueError` if more pixels would be decoded; a TIFF file is decoded in tiles, whose size it states."""
    width, height = image.size
    tags = getattr(image, "tag_v2", {})
    tile_width, tile_height = (tags.get(tag, 0) for tag in (322, 323))
    if max(width * height, tile_width * tile_height) > most:
        tiles = f" in tiles of {tile_width} x {tile_height}" if tile_width else ""
        raise ValueError(f"it has {width} x {height} pixels{tiles}, at most {most:,} are read")


def open_image(source: "Source", channels: int, name: str | Path = "") -> "Image":
    """Decode an image file, its bytes, or a PIL image: upright, in the mode L (1 channel) or RGB (3 channels).

    Raises what `opened` raises.
    """
    with opened(source, name) as image:
        return in_mode(image, channels)


def in_mode(source: "Image", channels: int) -> "Image":
    """An image, upright, in the mode L (1 channel) or RGB (3 channels)."""
    from PIL import Image

    image = upright(source)
    if image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range, expected 8 or 16 bit")
    if image.mode.startswith("I"):
        image = _to_8_bit(image)
    if image.getbands()[-1] == "A" or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
    return image.convert("L" if channels == 1 else "RGB")


def _to_8_bit(image: "Image") -> "Image":
    from PIL import Image

    # Pillow gives 16-bit grey as I;16 or, depending on its version and on the format, as 32-bit I.
    pixels = np.asarray(image)
    if pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError(f"pixels must be 16 bit, 0..65535, got {pixels.min()}..{pixels.max()}")
    return Image.fromarray((pixels / 257).round().astype(np.uint8))


def to_tensor(image: "Image", image_shape: tuple[int, int, int], resize: Resize) -> Tensor:
    """An image in the mode of its channels as uint8 (C, H, W); does not look for handwriting."""
    from PIL import ImageOps

    channels, height, width = image_shape
    if image.size != (width, height):
        if resize == "pad":
            image = ImageOps.pad(image, (width, height), color=0)
        elif resize == "crop":
            image = ImageOps.fit(image, (width, height))
        else:
            image = image.resize((width, height))
    pixels = torch.from_numpy(np.array(image))  # (H, W) or (H, W, 3)
    return pixels.reshape(height, width, channels).permute(2, 0, 1).contiguous()


def as_picture(image: Any) -> "Image | None":
    """A PIL image, or bytes with the channels of one, as a PIL image; None if it is something else."""
    from PIL import Image as PIL

    if isinstance(image, PIL.Image):
        return image
    if not hasattr(image, "shape"):
        raise ValueError(f"an image must be a path, a PIL image, an array or a tensor, got {type(image).__name__}")
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


def as_tensor(image: Any) -> Tensor:
    """An array (H, W) or (H, W, C), or a tensor (C, H, W), as a tensor (C, H, W)."""
    if isinstance(image, Tensor):
        if image.ndim != 3:
            raise ValueError(f"a tensor must be (C, H, W), or (B, C, H, W) for several images, got {_shape(image)}")
        tensor = image
    else:
        if image.ndim not in (2, 3):
            raise ValueError(f"an array must be (H, W) or (H, W, C), or (B, H, W, C) for several, got {_shape(image)}")
        tensor = torch.tensor(image)  # a copy: those of Pillow may not be written to
        tensor = tensor[None] if tensor.ndim == 2 else tensor.permute(2, 0, 1)
    if 0 in tensor.shape:
        raise ValueError(f"an image must have pixels, got {_shape(image)}")
    return tensor


def as_numbers(image: Any) -> Tensor:
    """An image, or tensors of several, float32 in [0, 1] with the channels before height and width."""
    tensor = image if isinstance(image, Tensor) and image.ndim == 4 else as_tensor(image)
    if tensor.dtype == torch.uint8:
        return tensor.float() / 255
    if not tensor.is_floating_point():
        raise ValueError(f"pixels must be bytes (uint8), or floating point in [0, 1], got {tensor.dtype}")
    if tensor.numel() and not (0 <= float(tensor.min()) and float(tensor.max()) <= 1):  # NaN included
        raise ValueError(
            f"floating-point pixels must lie in [0, 1], got {float(tensor.min()):g} to {float(tensor.max()):g}: "
            "give bytes (uint8), or scale them"
        )
    return tensor.float()


def _shape(image: Any) -> str:
    return f"the shape {tuple(image.shape)}"
