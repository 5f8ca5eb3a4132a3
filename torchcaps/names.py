"""Classes that go by a name: routings, networks, data sets, tasks and exhibits."""

import sys
from typing import Any


def enter(table: dict[str, Any], kind: str, name: str, cls: type) -> None:
    """Makes a class known by a name; one that was defined again takes its own place.

    Args:
        table: the classes of this kind by name, to be changed.
        kind: what they are, for the message.
        name: of the class.
        cls: the class.

    Raises:
        ValueError: if another class goes by that name.
    """
    if name in table and not same_class(table[name], cls):
        raise ValueError(f"a {kind} named {name!r} exists already: {table[name].__name__}")
    table[name] = cls


def same_class(one: type, other: type) -> bool:
    """Whether two classes are the same one, defined again: by reloading its module, or running its cell once more."""
    files = {getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in (one, other)}
    one_module = one.__module__ == other.__module__ or (len(files) == 1 and None not in files)
    return one_module and one.__qualname__ == other.__qualname__
