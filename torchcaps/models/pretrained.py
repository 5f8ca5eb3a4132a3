"""Trained networks that come with the package: ``torchcaps/pretrained/DATA/NETWORK/``.

Each is a saved network, ``config.json`` and ``model.safetensors``, with a card for
people, ``card.md``. The file ``SHA256SUMS`` beside them, which ``sha256sum --check``
reads too, holds what they were when they were packed.
"""

import hashlib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from torchcaps.whole import LARGEST_NOTE, LARGEST_TABLE, read_bytes, read_text

BOX = Path(__file__).parents[1] / "pretrained"
"""The folder with all of them."""

SUMS = "SHA256SUMS"
CARD_FILE = "card.md"


def list_pretrained(pattern: str = "*") -> list[str]:
    """Return the names of the trained networks that come with the package, those that
    match a shell pattern.

    A name is ``data/network``: ``mnist/efficient_capsnet``.
    """
    names = {path.rpartition("/")[0] for path in _sums()}
    return sorted(name for name in names if fnmatch(name, pattern))


def pretrained_folder(name: str) -> Path:
    """Return the folder of a trained network that comes with the package, its files
    checked against their hashes.

    Args:
        name: one of :func:`list_pretrained`.

    Raises:
        ValueError: if there is no such network, or one of its files is missing or not
            what was packed; names the file.
    """
    files = {
        path: digest
        for path, digest in _sums().items()
        if path.rpartition("/")[0] == name
    }
    if not files:
        raise ValueError(
            f"the trained networks in the package are {', '.join(list_pretrained())}, "
            f"got {name!r}"
        )
    for path, digest in files.items():
        file = BOX / path
        if not file.is_file():
            raise ValueError(f"{file} is missing: install torchcaps again")
        if hashlib.sha256(read_bytes(file, LARGEST_TABLE)).hexdigest() != digest:
            raise ValueError(
                f"{file} is not the file that was packed, its hash differs: install "
                "torchcaps again"
            )
    return BOX / name


def describe_pretrained(name: str) -> dict[str, Any]:
    """Name, size on the disk and card of a trained network; raises what
    :func:`pretrained_folder` raises.
    """
    folder = pretrained_folder(name)
    rows = (
        line.strip("|").split(" | ", 1)
        for line in read_text(folder / CARD_FILE, LARGEST_NOTE).splitlines()
    )
    card = {
        row[0].strip(): row[1].strip()
        for row in rows
        if len(row) == 2 and row[0].strip()
    }
    return {
        "name": name,
        "bytes": sum(file.stat().st_size for file in folder.iterdir()),
        "card": card,
    }


def _sums() -> dict[str, str]:
    """The digest of each file in the box, by its path there."""
    file = BOX / SUMS
    lines = read_text(file, LARGEST_NOTE).splitlines() if file.is_file() else []
    return {
        path: digest for digest, _, path in (line.partition("  ") for line in lines)
    }
