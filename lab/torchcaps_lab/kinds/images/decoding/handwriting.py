"""Turns a photo of one handwritten sign, of any size and colour, into a picture like
MNIST's: light ink on black.

Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, "Gradient-based learning applied to document
recognition", 1998, section III.A: signs are scaled to a box of 20 x 20 pixels, keeping
their aspect ratio, and placed in 28 x 28 pixels with their centre of mass in the
middle.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from torchcaps_lab.data.reader import Read

if TYPE_CHECKING:
    from PIL.Image import Image

    from torchcaps_lab.kinds.images.decoding.bands import Bands

LARGEST = 256
"""Larger pictures are shrunk to this many pixels along the longer side."""

BOX = 20 / 28
"""The side of the sign's box over that of the picture."""

THINNEST = 0.11
USUAL = 0.16
"""Widths of strokes over the side of the box: strokes thinner than the first are
widened to the second, as in MNIST.
"""

FAINTEST = 0.06
"""Smallest difference of ink from its ground, in [0, 1]."""

SMALLEST = 0.06
"""Parts of the sign that are smaller, relative to the largest part, are specks."""


_ORIENTATION = 0x0112
"""The tag of Exif for the orientation."""

TURNED_SIDES = (5, 6, 7, 8)
"""Orientations in which height and width change places."""


def read_handwriting(image: "Image", image_shape: tuple[int, int, int]) -> Read:
    """Finds the ink in a picture, whatever the colours of ink and ground.

    The ground is a smooth surface of colour, fitted robustly; pixels count as ink from
    halfway between the colours of ground and ink. A picture of the right size that is
    light on dark is taken as it is.

    Args:
        image: of 8 bits; upright or with an EXIF orientation, opaque or not.
        image_shape: (C, H, W) of the result.

    Raises:
        ValueError: if there is no ink in it.
    """
    from scipy import ndimage

    picture = _opaque(image)
    width, height = picture.size
    grey = np.asarray(picture.convert("L"))
    if grey.shape == image_shape[1:] and np.median(grey) < 64:
        return Read(_tensor(grey, image_shape), "taken as it is")
    picture.thumbnail((LARGEST, LARGEST))
    pixels = np.asarray(picture, dtype=np.float64) / 255
    ink, darker = _ink(pixels)
    (box,) = ndimage.find_objects((ink > 0.3).astype(int))
    sign = ink[box]
    shares = [
        f"{round(100 * extent / of)} %"
        for extent, of in zip(sign.shape, ink.shape, strict=True)
    ]
    sign, widened = _widened(sign)
    note = (
        f"{'dark' if darker else 'light'} ink on {'light' if darker else 'dark'} "
        "ground, cut out of "
        f"{width} x {height} pixels: {shares[1]} of the width, {shares[0]} of the "
        "height" + (", thin strokes widened" if widened else "")
    )
    return Read(_tensor(_centred(sign, image_shape[1:]), image_shape), note)


def upright(image: "Image") -> "Image":
    """An image turned as its Exif data say; as it is stored where these are damaged.
    Decodes the whole file.
    """
    from PIL import ImageOps

    image.load()
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Pillow raises many types: SyntaxError, struct.error, ...
        return image


def orientation(image: "Image | Bands") -> int:
    """How :func:`upright` turns an image: its Exif orientation, 1 to 8; 1 without one.
    Decodes the whole file.
    """
    # Of TIFF, which Pillow turns itself.
    turn = getattr(image, "tag_v2", {}).get(_ORIENTATION)
    image.load()
    with suppress(Exception):  # as there, and bands have none
        turn = turn or cast(Any, image).getexif().get(_ORIENTATION)
    return turn if isinstance(turn, int) and 1 <= turn <= 8 else 1


def _opaque(image: "Image") -> "Image":
    """An image in RGB; what is transparent becomes white under dark ink, and black
    under light ink.
    """
    from PIL import Image

    image = upright(image)
    if image.getbands()[-1] != "A" and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    pixels = np.asarray(image, dtype=np.float64)
    shown = np.average(pixels[..., :3], weights=pixels[..., 3:].repeat(3, 2) + 1e-9)
    paper = Image.new("RGBA", image.size, "white" if shown < 128 else "black")
    return Image.alpha_composite(paper, image).convert("RGB")


def _ink(pixels: np.ndarray) -> tuple[np.ndarray, bool]:
    """The ink at each pixel, (H, W) in [0, 1], and whether it is darker than the
    ground; raises if there is none.
    """
    from scipy import ndimage

    off = pixels - _ground(pixels)  # [H, W, 3]
    smooth = ndimage.gaussian_filter(off, (1, 1, 0))
    far = np.linalg.norm(smooth, axis=2)
    if far.max() < FAINTEST:
        raise ValueError("no ink found: the picture is of one colour")
    farthest = smooth[np.unravel_index(far.argmax(), far.shape)]
    inked = (far >= 0.6 * far.max()) & (smooth @ farthest > 0)
    colour = smooth[inked].mean(0)  # from the ground to the ink
    length = np.linalg.norm(colour)
    along = off @ colour / max(length**2, 1e-12)  # 0 on the ground, 1 in the ink
    smooth_along = ndimage.gaussian_filter(along, 0.7)
    noise = 1.4826 * np.median(np.abs(smooth_along - np.median(smooth_along)))
    if length / np.sqrt(3) < FAINTEST:
        raise ValueError(
            f"no ink found: only a difference of {length / np.sqrt(3):.2f} of 1 from "
            "the ground"
        )
    if noise > 0.25:
        raise ValueError(
            "no ink stands out from its ground: leave more of the ground empty around "
            "the sign"
        )
    mask = _without_specks(smooth_along > max(0.5, 3 * noise))
    near = ndimage.binary_dilation(mask, iterations=2)
    return np.where(near, along.clip(0, 1), 0), bool(colour.sum() < 0)


def _ground(pixels: np.ndarray) -> np.ndarray:
    """A quadratic surface through the colours of most pixels, by least absolute
    deviations.
    """
    height, width = pixels.shape[:2]
    y, x = (
        axis.ravel()
        for axis in np.meshgrid(
            np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij"
        )
    )
    terms = np.stack([np.ones_like(x), x, y, x * x, x * y, y * y], 1)  # [H W, 6]
    some = np.linspace(0, len(x) - 1, min(len(x), 4001)).astype(int)
    colours = pixels.reshape(-1, 3)
    base = terms[some]
    seen = colours[some]
    fitted = np.broadcast_to(np.median(seen, 0), seen.shape)
    surface = np.zeros((6, 3))
    for _ in range(12):
        weight = 1 / np.maximum(np.linalg.norm(seen - fitted, axis=1), 0.01)
        moments = base.T * weight
        # A little ridge: flat surfaces are preferred to curved ones.
        ridge = np.diag([0, 0.01, 0.01, 0.03, 0.03, 0.03]) * weight.sum()
        surface = np.linalg.solve(moments @ base + ridge, moments @ seen)
        fitted = base @ surface
    return (terms @ surface).reshape(pixels.shape)


def _without_specks(mask: np.ndarray) -> np.ndarray:
    """A mask without the connected parts that are much smaller than the largest."""
    from scipy import ndimage

    parts, count = ndimage.label(mask, np.ones((3, 3)))
    if not count:
        raise ValueError("no ink found")
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return (sizes >= SMALLEST * sizes.max())[parts] & mask


def _widened(sign: np.ndarray) -> tuple[np.ndarray, bool]:
    """The sign, with its strokes as wide as usual if they are thinner than MNIST's."""
    from scipy import ndimage

    side = max(sign.shape)
    deep = ndimage.distance_transform_edt(np.pad(sign > 0.5, 1))
    # Of a long stroke, in pixels.
    width = 4 * deep[deep > 0].mean() - 1 if (deep > 0).any() else side
    missing = round((USUAL * side - width) / 2)
    if width >= THINNEST * side or missing < 1:
        return sign, False
    away = np.hypot(*np.ogrid[-missing : missing + 1, -missing : missing + 1])
    return ndimage.grey_dilation(np.pad(sign, missing), footprint=away <= missing), True


def _centred(sign: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The sign in the box of a black picture (H, W), with its centre of mass in the
    middle; uint8.
    """
    from PIL import Image
    from scipy import ndimage

    side = BOX * min(size)
    scale = side / max(sign.shape)
    height, width = (max(1, round(extent * scale)) for extent in sign.shape)
    picture = Image.fromarray(sign.astype(np.float32)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    small = np.asarray(picture).clip(0, None)
    if (small > 0.1).any():
        small = (small / max(np.quantile(small[small > 0.1], 0.9), 0.1)).clip(0, 1)
    out = np.zeros(size)
    middle = (np.array(size) - 1) / 2 - ndimage.center_of_mass(small)
    free = np.array(size) - small.shape
    top, left = middle.round().astype(int).clip(0, free)
    out[top : top + height, left : left + width] = small
    return (255 * out).round().astype(np.uint8)


def _tensor(grey: np.ndarray, image_shape: tuple[int, int, int]) -> Tensor:
    return (
        torch.from_numpy(grey.copy())[None].expand(image_shape[0], -1, -1).contiguous()
    )
