"""Text files, whatever their encoding."""

import codecs
from pathlib import Path

from torchcaps.whole import LARGEST_TABLE, read_bytes


def decoded(path: Path) -> str:
    """The text of a file: UTF-16 if it begins with the mark of that, as Excel writes
    it, or else UTF-8, or Latin-1.

    Raises:
        ValueError: if it holds zeros, as pictures do and texts do not, is no regular
            file, or is larger than 4 GiB.
    """
    content = read_bytes(path, LARGEST_TABLE)
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = content.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        if marked:
            raise ValueError(f"{path} begins as UTF-16 and is not: {error}") from None
        text = content.decode("latin-1")
    if "\0" in text:
        raise ValueError(
            f"{path} is not text in UTF-8, Latin-1 or UTF-16 with a byte order mark: "
            "it holds zero bytes"
        )
    return text.replace("\r\n", "\n")


def lines_of(path: Path) -> list[str]:
    """The lines of a file, without an empty last one. Only a line feed ends a line."""
    return decoded(path).removesuffix("\n").split("\n")
