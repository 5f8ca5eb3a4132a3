"""Reads pictures that somebody sends to a page, with limits."""

from io import BytesIO
from typing import TYPE_CHECKING

from torchcaps_lab.kinds.images.decoding.bands import Bands
from torchcaps_lab.kinds.images.decoding.picture import opened

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

MOST_PIXELS = 40_000_000
"""Pictures with more pixels are refused, judging by their header."""

UPLOADS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
"""Of the pictures that are taken. What these decode has the size that their header
states.
"""


def uploaded_picture(file: bytes, name: str) -> "PILImage":
    """The picture in a file.

    Raises:
        ValueError: if it is not a picture, or too large.
    """
    with opened(BytesIO(file), name, UPLOADS, MOST_PIXELS) as picture:
        if isinstance(picture, Bands):
            raise ValueError(
                f"{name} has {picture.mode} channels, a picture to look at has 1, 3 "
                "or 4 of 8 bit"
            )
        picture.load()
        return picture
