"""Reading of files of data with limits."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from torchcaps.whole import opened

_READ = 1 << 24  # bytes read at once
_SHRINKS = 64  # bytes that are read of one of gzip: pictures have 2 to 10, text 20
# Bytes that are read of any file: labels of few classes have 1,000 of one of gzip.
_ALWAYS = 1 << 26


def digest_of(source: Path | BytesIO, algorithm: str = "sha256") -> str:
    """The digest of the content of a file, or of bytes, in hexadecimal."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    if isinstance(source, BytesIO):
        digest.update(source.getbuffer())
        return digest.hexdigest()
    with opened(source) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def unpacked(path: Path) -> Iterator[BufferedIOBase]:
    """The content of a file, plain or compressed with gzip, as a stream; nothing is
    read ahead.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        with opened(path) as plain:
            compressed = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            if compressed:
                with gzip.open(plain) as stream:
                    yield stream
            else:
                # A file opened to read bytes is buffered.
                yield cast(BufferedIOBase, plain)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is a broken gzip file: {error}") from error


def read_entries(
    file: BufferedIOBase, path: Path, expected: int
) -> tuple[bytearray, int]:
    """The first ``expected`` bytes of a stream, or fewer if it ends, and how many there
    are, up to some beyond.

    They are read in pieces, so that a wrong header cannot demand more memory than there
    are bytes; and not at all if the file is too small to hold them at the best
    compression.

    Raises:
        ValueError: the file is too small to hold that many bytes.
    """
    size = path.stat().st_size
    if isinstance(file, gzip.GzipFile) and expected > max(_ALWAYS, _SHRINKS * size):
        raise ValueError(
            f"{path} states {expected:,} bytes of entries, more than {size:,} bytes "
            "of gzip can hold"
        )
    entries = bytearray()
    while piece := file.read(min(expected - len(entries), _READ)):
        entries += piece
    return entries, len(entries) + len(file.read(_READ))


def as_tensor(
    entries: bytearray, shape: tuple[int, ...], dtype: torch.dtype, path: Path
) -> Tensor:
    """Entries as a tensor of the shape that their file states.

    Raises:
        ValueError: no tensor has that shape: of no entries, it may have any sides.
    """
    flat = torch.empty(0, dtype=dtype)
    if entries:
        flat = torch.frombuffer(entries, dtype=dtype)
    try:
        return flat.reshape(shape)
    except RuntimeError:
        raise ValueError(
            f"{path} states the shape {shape}, which no tensor has"
        ) from None
