"""Texts in any script: a font of the system that has it, or else a mark that is explained beside the picture."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORD = re.compile(r"\S+")


def make_legible(figure: "Figure", marks: dict[str, str]) -> dict[str, str]:
    """Gives the texts of a figure fonts that have their characters; words that no font draws become marks, "[1]".

    Matplotlib would draw boxes for characters that a font lacks, and it draws from left to right, each character for
    itself: words in scripts that are written otherwise become marks too.

    Args:
        figure: before it is drawn.
        marks: of the words so far, by word; new ones are added.

    Returns:
        The words by the marks that stand for them in this figure.
    """
    from matplotlib.text import Text

    texts: list[Text] = figure.findobj(Text)
    written = "".join(text.get_text() for text in texts)
    foreign = {character for character in written if not character.isspace() and not _in_default(character)}
    if not foreign:
        return {}
    families = list(dict.fromkeys(family for character in sorted(foreign) if (family := _family(character))))
    unknown = {character for character in foreign if not _family(character)}
    used: dict[str, str] = {}
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        if unknown & set("".join(labels)):  # an axis writes its labels anew when it is drawn
            axis.set_ticks(axis.get_ticklocs(), [_marked(label, unknown, marks, used) for label in labels])
    for text in texts:
        text.set_fontfamily([*_default_families(), *families])
        text.set_text(_marked(text.get_text(), unknown, marks, used))
    return used


def measurable(text: str) -> str:
    """The text with a wide letter for each character that the default font lacks: to know how wide it will be."""
    return "".join(one if one.isspace() or _in_default(one) else "M" for one in text)


def _marked(text: str, unknown: set[str], marks: dict[str, str], used: dict[str, str]) -> str:
    """The text with a mark for each word that holds an unknown character."""

    def mark(found: re.Match[str]) -> str:
        word = found[0]
        if not unknown & set(word):
            return word
        sign = marks.setdefault(word, f"[{len(marks) + 1}]")
        used[sign] = word
        return sign

    return _WORD.sub(mark, text)


def _default_families() -> list[str]:
    from matplotlib import rcParams

    return list(rcParams["font.family"])


@cache
def _in_default(character: str) -> bool:
    from matplotlib.font_manager import FontProperties, findfont

    return _from_left(character) and ord(character) in _characters(findfont(FontProperties()))


@cache
def _family(character: str) -> str | None:
    """A family of fonts that has a character; None if none has, or if it takes more than one glyph after the other."""
    if not _from_left(character):
        return None
    return next((family for family, path in _fonts() if ord(character) in _characters(path)), None)


def _fonts() -> Iterator[tuple[str, str]]:
    """Upright fonts of normal weight, by family."""
    from matplotlib.font_manager import fontManager

    plain = [
        font
        for font in fontManager.ttflist
        if font.style == "normal" and font.weight in (400, "normal") and not font.name.startswith("Last Resort")
    ]  # which draws boxes
    yield from sorted({(font.name, font.fname) for font in plain})


@cache
def _characters(path: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()


def _from_left(character: str) -> bool:
    """Whether a character stands for itself, to the right of the one before."""
    return unicodedata.bidirectional(character) not in ("R", "AL") and not unicodedata.category(character).startswith(
        "M"
    )
