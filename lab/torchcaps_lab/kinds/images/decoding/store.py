"""Storage of decoded images: in memory or, if there are too many, in a memory-mapped
file.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from torchcaps.whole import check_file, written_whole
from torchcaps_lab.data.base import find_data_dir
from torchcaps_lab.kinds.images.decoding.picture import BrokenImage

Result = TypeVar("Result")
Picture = Callable[[int], Tensor]
"""Decodes the image of an index into uint8 (C, H, W), or raises a `BrokenImage`."""

GIB = 2**30
# Images that threads decode before their results are stored, which limits the memory
_AT_ONCE = 256
_FORMAT = 1  # version of cached images; changes if decoding changes


def decode_images(
    digests: Sequence[str],
    picture: Picture,
    image_shape: tuple[int, int, int],
    how: str,
    mapped: bool,
) -> tuple[Tensor, dict[int, BrokenImage]]:
    """Decode images of one shape into memory, or into a file of the cache.

    The file is a .npy file in ``decoded`` in the folder of the data sets, written whole
    or not at all; its name depends on the contents of its images and on how they were
    decoded. It may be deleted when nothing reads it.

    Args:
        digests: the digests of the contents of the images.
        picture: decodes one.
        image_shape: (C, H, W) of all images.
        how: other settings that the pixels depend on.
        mapped: whether to decode into a file.

    Returns:
        All images, uint8 (N, C, H, W), and the problems of those that cannot be read,
        by index. If there are problems, the pixels mean nothing.

    Raises:
        OSError: the cache cannot be written.
    """
    shape = (len(digests), *image_shape)
    decoded = _decoded(len(digests), picture)
    problems: dict[int, BrokenImage] = {}
    if not mapped or not digests:
        images = torch.empty(shape, dtype=torch.uint8)
        for index, image in enumerate(decoded):
            if isinstance(image, BrokenImage):
                problems[index] = image
            else:
                images[index] = image
        return images, problems
    from filelock import FileLock
    from PIL import __version__ as pillow

    facts = [_FORMAT, pillow, how, image_shape, list(digests)]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    path = find_data_dir(None) / "decoded" / f"{key}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Other processes of this training wait for the file.
    with FileLock(path.with_suffix(".lock")):
        in_file = _mapped(path, shape)
        if in_file is None:
            problems = _write(path, shape, decoded)
            if problems:
                return torch.empty((0, *image_shape), dtype=torch.uint8), problems
            in_file = _mapped(path, shape)
    if in_file is None:
        raise OSError(f"the decoded images in {path} cannot be read")
    return in_file, problems


def _mapped(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """The images in a file, memory-mapped; None if it does not hold them."""
    try:
        pixels = np.load(check_file(path), mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if pixels.shape != shape or pixels.dtype != np.uint8:
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The given NumPy array is not writable", UserWarning
        )
        return torch.from_numpy(pixels)


class _Incomplete(Exception):
    """Some images cannot be read, so no file is kept."""


def _write(
    path: Path, shape: tuple[int, ...], images: Iterable[Tensor | BrokenImage]
) -> dict[int, BrokenImage]:
    """Writes images as they come; if some cannot be read, no file is kept, and their
    problems are returned.
    """
    problems: dict[int, BrokenImage] = {}
    try:
        with written_whole(path) as part, part.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for index, image in enumerate(images):
                if isinstance(image, BrokenImage):
                    problems[index] = image
                elif not problems:
                    file.write(image.numpy().data)
            if problems:
                raise _Incomplete
    except _Incomplete:
        pass
    except OSError as error:
        raise OSError(
            f"{math.prod(shape) / GIB:.1f} GiB of decoded images cannot be written to "
            f"{path.parent}: {error}; "
            "name a folder with room by the environment variable TORCHCAPS_DATA, or "
            "allow them more memory"
        ) from error
    return problems


def _decoded(count: int, picture: Picture) -> Iterator[Tensor | BrokenImage]:
    """The images in their order, or the problem if one cannot be read."""

    def decode(index: int) -> Tensor | BrokenImage:
        try:
            return picture(index)
        except BrokenImage as error:
            return error

    return threaded(decode, range(count))


def threaded(work: Callable[[int], Result], indices: Sequence[int]) -> Iterator[Result]:
    """Results for each index, in order, from a few threads: Pillow and hashing release
    Python's lock.
    """
    with quiet_pillow(), ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for start in range(0, len(indices), _AT_ONCE):
            yield from pool.map(work, indices[start : start + _AT_ONCE])


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silences warnings about files that Pillow reads anyway: large ones, odd
    metadata.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        yield
