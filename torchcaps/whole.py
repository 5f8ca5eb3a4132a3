"""Writing files atomically: they are whole or not there at all, even if the process is killed while it writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished"
"""The suffix of a file that is being written; what an interruption leaves can be removed."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives the path of a file in the same folder to write; after the block it is on the disk, and has its name.

    If the block fails, that file is removed, and what had the name before stays.
    """
    part = path.with_name(path.name + UNFINISHED)
    try:
        yield part
        _sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        _sync(path.parent)  # the name, too


def write_whole(path: Path, text: str) -> None:
    """Writes a text into a file, whole or not at all."""
    with written_whole(path) as part:
        part.write_text(text, encoding="utf-8")


def sweep(folder: Path) -> None:
    """Removes what interruptions left in a folder."""
    for part in folder.glob(f"*{UNFINISHED}"):
        part.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
