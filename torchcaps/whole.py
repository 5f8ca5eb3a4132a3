"""Files: written whole or not at all, even if the process is killed; below their own
folder; and opened through one door, :func:`opened`, which only regular files pass.
Where those of a trained network lie.
"""

import codecs
import errno
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["read_json", "write_whole"]

UNFINISHED = ".unfinished"
"""The suffix of a file that is being written; what an interruption leaves can be
removed.
"""


LARGEST_NOTE = 2**26
"""Bytes of a file about one image, one run or one list of classes, which usually has a
few thousand.
"""

LARGEST_TABLE = 2**32
"""Bytes of a file about a whole data set: COCO's own annotations have 0.5 GB, those of
LVIS 1.2 GB.
"""


CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
RUN_FILE = "config.yaml"
"""What the folder of a run holds from its start; the network comes into its folder
``model`` at the end.
"""

_FOLDERS_OF_RUN = ("model", "checkpoints")
"""The folders in the folder of a run whose files belong to the network."""


_NEIGHBOURS = 10_000
"""Entries of a folder among which a misspelt one is looked for."""


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give the path of a new file in the same folder to write; after the block it is
    on the disk, and has its name.

    If the block fails, that file is removed, and what had the name before stays. What
    has the name is replaced, never written into: it may be a pipe, or a link, or share
    its content with a file elsewhere.

    Raises:
        OSError: it cannot be written; names the file.
    """
    part = path.with_name(path.name + UNFINISHED)
    with _naming(path):
        # Left by an interruption, or put there to lead elsewhere.
        part.unlink(missing_ok=True)
        try:
            yield part
            _sync(part)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        if os.name == "posix":
            _sync(path.parent)  # the name, too


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a text as UTF-8, or bytes, into a file, whole or not at all."""
    with written_whole(path) as part:
        part.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to errors of reading and writing, which name no file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def sweep(folder: Path) -> None:
    """Remove what interruptions left in a folder."""
    for part in folder.glob(f"*{UNFINISHED}"):
        part.unlink(missing_ok=True)


def owned(folder: Path, *names: str) -> Path:
    """Return the resolved path of what is written or deleted below a folder, after a
    look at the links in it.

    The folder may be reached through links: those are the choice of whoever names it.
    Links inside it would lead what is written and deleted out of it.

    Args:
        folder: the root, which need not exist yet.
        names: the names of the path from there; none: the folder itself.

    Raises:
        ValueError: the path, or something below it, is a link that leads out of the
            folder, or nowhere because it leads back to itself; names link and target.
    """
    root = resolved(folder)
    path = root
    for name in names:
        path = path / name
        _check_link(path, root)
    for place, folders, files in os.walk(path):
        for name in (*folders, *files):
            _check_link(Path(place, name), root)
    return path


def check_writable(folder: Path, advice: str) -> None:
    """Raise a `PermissionError` if nothing can be written into a folder, or where it
    would be made.

    Args:
        folder: the folder, which need not exist yet.
        advice: what to do, for the message.
    """
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise PermissionError(
            f"{folder} cannot be written, because {place} takes no files: {advice}"
        )


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of ``~``. A name such as ``~new.csv``,
    which is no user's, stays as it is; `Path.expanduser` raises for it.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111


def resolved(path: Path) -> Path:
    """Return an absolute path without links, which need not exist.

    Raises:
        ValueError: a link in it leads back to itself.
    """
    try:
        path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path} is a link that leads back to itself") from None
    return Path(os.path.realpath(path))


def _check_link(path: Path, root: Path) -> None:
    if path.is_symlink() and not (target := resolved(path)).is_relative_to(root):
        raise ValueError(
            f"{path} is a link to {target}, outside {root}: nothing is written or "
            "deleted through it; remove the link, or link the whole folder"
        )


def check_file(path: Path, most: int = sys.maxsize) -> Path:
    """Return the path, after checking that it is a regular file of at most ``most``
    bytes. For libraries that open a path themselves; else :func:`opened` is safer.

    A device or a pipe has no size: reading it may never end.

    Raises:
        FileNotFoundError: there is no such file.
        IsADirectoryError: it is a folder.
        ValueError: it is a device, a pipe or a socket, or it is larger; names the file,
            its size and the limit.
    """
    _check(path, path.stat(), most)
    return path


def _check(path: Path, facts: os.stat_result, most: int) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(f"{path} is a folder, not a file")
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(
            f"{path} is not a regular file: it is a device, a pipe or a socket"
        )
    if facts.st_size > most:
        raise ValueError(
            f"{path} has {facts.st_size:,} bytes, at most {most:,} are read"
        )


@contextmanager
def opened(path: Path, most: int = sys.maxsize) -> Iterator[BinaryIO]:
    """Open a regular file of at most ``most`` bytes to read its bytes: the one door to
    what a person or another file names.

    Raises:
        OSError: it cannot be opened or read; names the file.
        ValueError: as :func:`check_file`.
    """
    check_file(path, most)
    with _naming(path), open(path, "rb", opener=_at_once) as file:
        # Another file may have got the name since it was checked.
        _check(path, os.fstat(file.fileno()), most)
        yield file


def _at_once(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; raises what
    :func:`opened` raises, and a `ValueError` if the file grows meanwhile.
    """
    with opened(path, most) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)
    if len(content) > size:
        raise ValueError(f"{path} grows while it is read")
    return content


def encoding_of(content: bytes) -> str:
    """Return the encoding of a text file: UTF-16 after the byte order mark of that, or
    else UTF-8, with a mark or without.

    Args:
        content: the first bytes of the file, or all of them.
    """
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if marked else "utf-8-sig"


def read_text(path: Path, most: int) -> str:
    """Return the text of a regular file of at most ``most`` bytes, with line feeds
    alone at the ends of lines, and without a byte order mark.

    Raises:
        ValueError: it is not text in its encoding, see :func:`encoding_of`, and what
            :func:`check_file` raises.
    """
    content = read_bytes(path, most)
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not text in {encoding.removesuffix('-sig').upper()}: {error}"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, most: int, kind: type = dict) -> Any:
    """Return the content of a JSON file of at most ``most`` bytes, a ``kind``.

    Raises:
        ValueError: it is not JSON, or holds something else, and what :func:`read_text`
            raises.
    """
    text = read_text(path, most)
    try:
        return parsed_json(text, kind)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def parsed_json(text: str | bytes, kind: type = dict) -> Any:
    """Return the content of JSON, a ``kind``.

    Raises:
        ValueError: it is not JSON, nested too deep, or another kind; or an object has
            one name twice, so that a value would be lost.
    """
    if isinstance(text, bytes):
        text = text.decode(encoding_of(text))
    try:
        content = json.loads(text, object_pairs_hook=_with_each_name_once)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(content, kind):
        raise ValueError(
            f"it must hold a {kind.__name__}, got {type(content).__name__}"
        )
    return content


def _with_each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return values


def folder_instead(path: Path) -> str:
    """Return the message for a file in place of the folder of a run or of a network."""
    problem = f"{path} is a file."
    folder = path.parent
    run = folder.parent if folder.name in _FOLDERS_OF_RUN else folder
    if (run / RUN_FILE).is_file():
        return f"{problem} Give the folder of the run: {run}"
    if (folder / CONFIG_FILE).is_file():
        return f"{problem} Give its folder: {folder}"
    return (
        f"{problem} Give the folder of a run, or of a saved network with {CONFIG_FILE} "
        f"and {WEIGHTS_FILE}. Weights from torch.save go into a network of the same "
        "shapes: network.load_state_dict(torch.load(...))"
    )


def network_folder(folder: Path) -> Path:
    """Return where the files of a network are: ``model`` in the folder of a run, else
    the folder itself.

    Raises:
        FileNotFoundError: if it is that of a run that has not ended.
    """
    if (folder / CONFIG_FILE).is_file():
        return folder
    model = folder / "model"
    if (model / CONFIG_FILE).is_file():  # written last
        return model
    if (folder / RUN_FILE).is_file():
        raise FileNotFoundError(
            f"{folder} holds no network yet, its training has not ended: torchcaps "
            f"train --resume {folder}"
        )
    return folder


def is_there(kind: Callable[[], bool]) -> bool:
    """Return the result of a check such as ``path.is_dir``; False without permission to
    look, and for a text that is too long for the name of a file.
    """
    try:
        return kind()
    except OSError:
        return False


def seen_from(path: str | Path) -> str:
    """Return, for messages about a path that is missing, the folder that a relative one
    was looked for in, and what has nearly its name.
    """
    if re.match(r"\w+:/", str(path)) and not Path(path).is_absolute():
        return "; addresses are not opened: download it, and name the file or folder"
    path = Path(path)
    near = nearest(path)
    place = "" if path.is_absolute() else f" (looked for in {Path.cwd()})"
    return place + ("" if near is None else f"; did you mean {near}?")


def nearest(path: Path) -> Path | None:
    """Return a path that exists, of which one part is spelt a little otherwise than in
    a missing one; None if there is none.
    """
    missing = path
    while missing != missing.parent and not missing.parent.is_dir():
        missing = missing.parent
    try:
        beside = [*islice(missing.parent.iterdir(), _NEIGHBOURS)]
    except OSError:
        return None
    behind = path.relative_to(missing)
    # What has the very name is no file, and not what was meant.
    names = {entry.name for entry in beside} - {missing.name}
    for name in get_close_matches(missing.name, names, 3):
        near = missing.with_name(name) / behind
        if near.exists():
            return near
    return None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
