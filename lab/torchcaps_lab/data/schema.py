"""Plain values of a file, checked against what the file may hold before any is used."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

Checked = TypeVar("Checked")
Thing = TypeVar("Thing")

_PLACE = re.compile(r"\.(\w+)|\[(\d+)\]")
"""A step of the place that msgspec names: ``$.annotations[3].bbox``."""

_SHOWN = 60
"""Letters of a value that an error shows."""


def checked(kind: type[Checked], content: Any, source: object) -> Checked:
    """Return the content of a file as a declared kind. No value is converted: ``"1"``
    and ``true`` are no numbers.

    Args:
        kind: a `msgspec.Struct`, whose fields and types are what the file may hold.
        content: plain values, as of JSON.
        source: what the error names.

    Raises:
        ValueError: a value is missing or of another type; names its place, the entry
            that it is in, what was expected and what came.

    Example:
        >>> import msgspec
        >>> from torchcaps_lab.data.schema import checked
        >>> class Point(msgspec.Struct):
        ...     x: float
        >>> checked(Point, {"x": "1"}, "a.json")
        Traceback (most recent call last):
        ValueError: a.json: x: expected `float`, got `str`: '1'
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{source}: {_described(str(error), content)}") from None


def _described(error: str, content: Any) -> str:
    """The message of msgspec with the place in front, the id of the entry and the
    value.
    """
    why, _, place = error.partition(" - at ")
    steps = re.sub(r"^.*\$", "", place).rstrip("`")
    value = content
    shown = ""
    for name, number in _PLACE.findall(steps.partition("[...]")[0]):
        value = value[name] if name else value[int(number)]
        shown += f".{name}" if name else f"[{number}]"
        if number and isinstance(value, Mapping) and "id" in value:
            shown += f" (id {value['id']!r})"
    why = f"{why[:1].lower()}{why[1:]}: {_short(value)}"
    return f"{shown.lstrip('.')}: {why}" if shown else why


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def each_once(
    things: Iterable[Thing], key_of: Callable[[Thing], Any], what: str
) -> dict[Any, Thing]:
    """Return things by their keys, each of which may belong to one.

    Args:
        things: of a file.
        key_of: gives the key of one.
        what: for the error, the file and what the key is called in it.

    Raises:
        ValueError: two have one key; names both.
    """
    by_key: dict[Any, Thing] = {}
    for thing in things:
        key = key_of(thing)
        if key in by_key:
            raise ValueError(
                f"{what} {key!r} stands twice, and must be unique: "
                f"{_short(by_key[key])} and {_short(thing)}"
            )
        by_key[key] = thing
    return by_key
