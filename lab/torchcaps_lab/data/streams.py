"""Reading of files with limits: no more than a stated number of bytes, of a regular file, below a folder."""

import gzip
import hashlib
import json
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Any

LARGEST_NOTE = 2**26
"""Bytes of a file about one image, one run or one list of classes, which usually has a few thousand."""

LARGEST_TABLE = 2**32
"""Bytes of a file about a whole data set: COCO's own annotations have 0.5 GB, those of LVIS 1.2 GB."""

_READ = 1 << 24  # bytes read at once
_SHRINKS = 1032  # most bytes that deflate can make from one


def check_file(path: Path, most: int) -> Path:
    """Return the path, after checking that it is a regular file of at most ``most`` bytes.

    A device or a pipe has no size: reading it may never end.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no regular file, or it is larger; names the file, its size and the limit.
    """
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path} is not a regular file: it is {'a folder' if path.is_dir() else 'a device or a pipe'}")
    if facts.st_size > most:
        raise ValueError(f"{path} has {facts.st_size:,} bytes, at most {most:,} are read")
    return path


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; raises what :func:`check_file` raises."""
    return check_file(path, most).read_bytes()


def read_text(path: Path, most: int, encoding: str = "utf-8") -> str:
    """Return the text of a regular file of at most ``most`` bytes, with line feeds alone at the ends of lines.

    Raises:
        ValueError: it is not text in this encoding, and what :func:`check_file` raises.
    """
    try:
        text = read_bytes(path, most).decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in {encoding.removesuffix('-sig').upper()}: {error}") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, most: int, kind: type = dict) -> Any:
    """Return the content of a JSON file of at most ``most`` bytes, a ``kind``.

    Raises:
        ValueError: it is not JSON, or holds something else, and what :func:`check_file` raises.
    """
    try:
        return parsed_json(read_text(path, most), kind)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def parsed_json(text: str | bytes, kind: type = dict) -> Any:
    """Return the content of JSON, a ``kind``; raises a `ValueError` if it is no JSON, nested too deep, or another."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(content, kind):
        raise ValueError(f"it must hold a {kind.__name__}, got {type(content).__name__}")
    return content


def named_below(root: Path, name: Any, source: object, what: str = "file") -> Path:
    """Return the path of a file below a folder by the name that another file has for it.

    The name must stay below the folder as it is written. Links that lie in the folder are followed: who keeps the
    folder made them, which need not hold for the file with the name.

    Args:
        root: the folder.
        name: relative to it.
        source: the file that holds the name, for messages.
        what: the name of such a file, likewise.

    Raises:
        ValueError: the name is no text, is absolute or leads out of the folder; or it is that of a folder, a device or
            a pipe; names the source.
        FileNotFoundError: there is no such file.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"{source} must name each {what} by its path below {root}, got {name!r}")
    parts = re.split(r"[/\\]", name)
    if ".." in parts or not parts[0] or ":" in parts[0]:
        raise ValueError(f"{source} names {name!r}, which leads out of {root}: names must be relative to that folder")
    path = root / name
    if not path.exists():
        raise FileNotFoundError(f"the {what} {path} does not exist, which {source} names")
    if not path.is_file():
        raise ValueError(f"{source} names {name!r}: {path} is not a regular file")
    return path


def digest_of(source: Path | BytesIO, algorithm: str = "sha256") -> str:
    """The digest of the content of a file, or of bytes, in hexadecimal."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    if isinstance(source, BytesIO):
        digest.update(source.getbuffer())
        return digest.hexdigest()
    check_file(source, sys.maxsize)
    with source.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


@contextmanager
def unpacked(path: Path) -> Iterator[BufferedIOBase]:
    """The content of a file, plain or compressed with gzip, as a stream; nothing is read ahead.

    Raises:
        ValueError: the file is damaged.
    """
    with path.open("rb") as plain:
        compressed = plain.read(2) == b"\x1f\x8b"
        plain.seek(0)
        if not compressed:
            yield plain
            return
    try:
        with gzip.open(path) as stream:
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is a broken gzip file: {error}") from error


def read_entries(file: BufferedIOBase, path: Path, expected: int) -> tuple[bytearray, int]:
    """The first ``expected`` bytes of a stream, or fewer if it ends, and how many there are, up to some beyond.

    They are read in pieces, so that a wrong header cannot demand more memory than there are bytes; and not at all if
    the file is too small to hold them at the best compression.

    Raises:
        ValueError: the file is too small to hold that many bytes.
    """
    size = path.stat().st_size
    if isinstance(file, gzip.GzipFile) and expected > _SHRINKS * size:
        raise ValueError(f"{path} states {expected:,} bytes of entries, more than {size:,} bytes of gzip can hold")
    entries = bytearray()
    while piece := file.read(min(expected - len(entries), _READ)):
        entries += piece
    return entries, len(entries) + len(file.read(_READ))
