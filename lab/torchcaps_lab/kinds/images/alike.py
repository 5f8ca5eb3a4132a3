"""Images that show the same: the same pixels in several files, and pictures that look
alike.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.manifest import Manifest, one_digest
from torchcaps_lab.kinds.images.decoding.store import threaded

if TYPE_CHECKING:
    from PIL.Image import Image

    from torchcaps_lab.kinds.images.decoding.bands import Bands

SIDE = 16
"""Bits along each side of the perceptual hash."""

FARTHEST = 12
"""Bits, of 256, in which the hashes of pictures that look alike differ at most.

Photos saved anew as JPEG of quality 50 to 90, or at half their size, differ in 2 bits
(median) to 8 (nine in ten), different cut-outs of one photo in 40 at least, different
digits of MNIST in 66.
"""

_AT_ONCE = 2**24  # pairs that are compared at once, which limits the memory


def pixels_digest(image: "Image | Bands") -> str:
    """SHA-256 of the size and the pixels of a decoded image, in hexadecimal."""
    return hashlib.sha256(
        repr((image.mode, image.size)).encode() + image.tobytes()
    ).hexdigest()


def same_content(manifest: Manifest, sets: Mapping[str, Examples]) -> dict[str, str]:
    """One digest for all files of the same pixels, see
    :func:`~torchcaps_lab.data.manifest.one_digest`.

    Args:
        manifest: the manifest of the images.
        sets: the images of each part as they are decoded.
    """
    shown: dict[str, str] = {}
    for part, entries in manifest.parts.items():
        digests = threaded(partial(_row_digest, sets[part].inputs), range(len(entries)))
        shown |= zip((entry.digest for entry in entries), digests, strict=True)
    return one_digest(shown)


def _row_digest(images: Tensor, index: int) -> str:
    return hashlib.sha256(images[index].numpy().data).hexdigest()


def look_of(image: "Image") -> Tensor:
    """The perceptual hash of a picture, 256 numbers of 1 and -1; zeros, like no other,
    if it is of one grey.
    """
    import imagehash

    grey = image.convert("L")
    low, high = grey.getextrema()
    if low == high:
        return torch.zeros(SIDE * SIDE)
    return torch.from_numpy(imagehash.phash(grey, SIDE).hash).flatten().float() * 2 - 1


def looks_of(images: Tensor, rows: Sequence[int]) -> Tensor:
    """The hashes, (rows, 256), of some of the decoded images, uint8 (N, C, H, W)."""
    looks = threaded(partial(_look_of_row, images), rows)
    return torch.stack(list(looks)) if len(rows) else torch.zeros(0, SIDE * SIDE)


def _look_of_row(images: Tensor, index: int) -> Tensor:
    from PIL import Image

    shown = images[index, : 3 if images.shape[1] >= 3 else 1]
    return look_of(Image.fromarray(shown.permute(1, 2, 0).squeeze(2).numpy()))


def first_alike(looks: Tensor, among: Tensor, earlier: bool = False) -> list[int]:
    """The first of some pictures that each picture looks like; -1 if there is none.

    Args:
        looks: what the pictures look like, float (N, 256).
        among: of those to find, (M, 256).
        earlier: whether ``among`` are the same pictures, and only those before each
            count.
    """
    if not len(among):
        return [-1] * len(looks)
    places: list[int] = []
    rows = max(1, _AT_ONCE // len(among))
    for start in range(0, len(looks), rows):
        alike = looks[start : start + rows] @ among.mT >= SIDE * SIDE - 2 * FARTHEST
        alike = alike.tril(start - 1) if earlier else alike
        places += torch.where(alike.any(1), alike.byte().argmax(1), -1).tolist()
    return places
