"""Matches the classes of two sources by their names: splits, other images,
annotations.
"""

import unicodedata
from collections.abc import Sequence

from torchcaps.spec import meant
from torchcaps_lab.data.manifest import some


class UnknownClasses(ValueError):
    """Names that are none of the classes.

    Args:
        message: the message.
        names: the names.
    """

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = names


def composed(name: str) -> str:
    """A name with each letter as one character (NFC): some systems write ``ä`` as two,
    which look the same.

    Args:
        name: the name of a class or a file.

    Example:
        >>> from torchcaps_lab.data.classes import composed
        >>> len("a\N{COMBINING DIAERESIS}"), len(composed("a\N{COMBINING DIAERESIS}"))
        (2, 1)
    """
    return unicodedata.normalize("NFC", name)


def called_like(names: Sequence[str], classes: Sequence[str]) -> list[str]:
    """The class that each name is the same as, for people; the name if none is.

    Args:
        names: the names, in any order.
        classes: the names of the classes.
    """
    places = zip(names, _labels_of(names, classes), strict=True)
    return [name if label is None else classes[label] for name, label in places]


def _labels_of(names: Sequence[str], classes: Sequence[str]) -> list[int | None]:
    """The label of the class of each name, or else of each composed name."""
    by_composed = {composed(name): label for label, name in enumerate(classes)}
    by_name = by_composed | {name: label for label, name in enumerate(classes)}
    return [by_name.get(name, by_name.get(composed(name))) for name in names]


def places_of(names: Sequence[str], classes: Sequence[str], where: str) -> list[int]:
    """Find the place of each name among the classes; not all of these need a name.

    Args:
        names: the names of classes, in any order.
        classes: those that are known, in the order of their labels.
        where: what has the names, for the message.

    Returns:
        The label of each name.

    Raises:
        UnknownClasses: a name is none of the classes; names all of these.

    Example:
        >>> from torchcaps_lab.data.classes import places_of
        >>> places_of(("dog", "cat"), ("bird", "cat", "dog"), "the test images")
        [2, 1]
    """
    places = _labels_of(names, classes)
    extra = [name for name, place in zip(names, places, strict=True) if place is None]
    if extra:
        near = meant(extra[0], classes) if len(extra) == 1 else ""
        verb = "is" if len(extra) == 1 else "are"
        raise UnknownClasses(
            f"{where}: {some(extra)} {verb} none of the classes {some(classes)}{near}",
            extra,
        )
    return [place for place in places if place is not None]
