"""Text files, whatever their encoding."""

from collections.abc import Iterable
from pathlib import Path

from torchcaps.whole import LARGEST_TABLE, encoding_of, read_bytes
from torchcaps_lab.look import CONTROLS

_LOOKED_AT = 100_000
"""Letters that tell whether a file without a known encoding is in a Western script."""


def decoded(path: Path) -> str:
    """The text of a file, see :func:`decoded_as`."""
    return decoded_as(path)[0]


def decoded_as(path: Path) -> tuple[str, str]:
    """The text of a file, and its encoding: UTF-16 if it begins with the mark of that,
    as Excel writes it, or else UTF-8, or Windows-1252, which is Latin-1 with quotation
    marks and the euro.

    Raises:
        ValueError: if it holds zeros, as pictures do and texts do not, or most of
            its letters are in another script, is no regular file, or is larger than
            4 GiB.
    """
    content = read_bytes(path, LARGEST_TABLE)
    encoding = encoding_of(content)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        if encoding == "utf-16":
            raise ValueError(f"{path} begins as UTF-16 and is not: {error}") from None
        encoding = "cp1252"
        text = _windows(content)
        letters = [*filter(str.isalpha, text[:_LOOKED_AT])]
        if 2 * sum(map(str.isascii, letters)) < len(letters):
            raise ValueError(
                f"{path} is neither UTF-8 nor in a Western script: save it as UTF-8"
            ) from None
    if "\0" in text:
        raise ValueError(
            f"{path} is not text in UTF-8, Windows-1252 or UTF-16 with a byte order "
            "mark: it holds zero bytes"
        )
    return text.replace("\r\n", "\n"), encoding


def _windows(content: bytes) -> str:
    """A text in Windows-1252; in Latin-1 if it holds one of five bytes that have no
    sign in it.
    """
    try:
        return content.decode("cp1252")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def lines_of(path: Path) -> list[str]:
    """The lines of a file, without an empty last one. Only a line feed ends a line."""
    return decoded(path).removesuffix("\n").split("\n")


def check_text(text: str, title: str) -> str:
    r"""Return a text, after checking that it can be written.

    Args:
        text: of any origin: JSON, YAML and Python can state half of a character of
            UTF-16, a lone surrogate such as ``\ud800``, which no encoding can write.
        title: what the error names.

    Raises:
        ValueError: it holds a lone surrogate; shows the text around.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 20) : error.end + 20]
        raise ValueError(
            f"{title} must be text, and {around!r} holds half of a character, the "
            f"lone surrogate {text[error.start]!r}"
        ) from None
    return text


def check_class_names(names: Iterable[str], title: str) -> None:
    """Check that lists, tables and terminals can show names as they are.

    Args:
        names: the names of classes.
        title: what the error names.

    Raises:
        ValueError: one holds a line break, or another character that commands a
            terminal.
    """
    for name in names:
        if CONTROLS.search(name):
            raise ValueError(
                f"{title} must be in one line of characters that can be shown, got "
                f"{name!r}"
            )
