"""Tables of classes by name: routings, networks, data sets, tasks and exhibits."""

import sys
from typing import Any


def enter(table: dict[str, Any], kind: str, name: str, cls: type) -> None:
    """Registers a class under a name; a class that was defined again replaces its old self.

    Args:
        table: the classes of this kind by name; the class is added to it.
        kind: what they are, for the message.
        name: of the class.
        cls: the class.

    Raises:
        ValueError: if another class has that name.
    """
    if name in table and not same_class(table[name], cls):
        raise ValueError(f"a {kind} named {name!r} exists already: {table[name].__name__}")
    table[name] = cls


def same_class(one: type, other: type) -> bool:
    """Whether two classes are one, defined twice: its module was reloaded, or its cell in a notebook run again."""
    files = {getattr(sys.modules.get(cls.__module__), "__file__", None) for cls in (one, other)}
    one_module = one.__module__ == other.__module__ or (len(files) == 1 and None not in files)
    return one_module and one.__qualname__ == other.__qualname__
