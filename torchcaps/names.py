"""Tables of classes by name: routings, networks, data sets, tasks and exhibits; and the extra that something needs."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def needing_extra(what: str, extra: str) -> Iterator[None]:
    """Inside the ``with`` block a missing module is an error that says what to install.

    Args:
        what: needs the module, for the message: a plural.
        extra: of this package that installs it.

    Raises:
        ModuleNotFoundError: if a module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} need {error.name}, which is not installed: pip install 'torchcaps[{extra}]'", name=error.name
        ) from error
