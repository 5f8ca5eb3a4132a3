"""The table of the kinds of input: the only place that names them.

A kind is a package in this folder with everything that is special to it: its reader,
its data sets, its networks, its task, its pictures. Every file in it is imported, and
registers what it has with ``@register_reader``, ``@register_dataset``,
``@register_model``, ``@register_task``, ``@register_exhibit`` and ``@register_doubt``.
Its ``__init__.py``
imports what others may ask for, and ``__all__`` names what is public. To add a kind,
move into a folder and put its name into :data:`KINDS`.

The rooms that all kinds share import none of them: they look up a reader, a data set or
a task by name in a :class:`SharedRegistry`, which loads the kinds when it is first
asked.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from torchcaps.spec import Registry, package_of
from torchcaps.spec.registry import Decorated

KINDS = ("scenes", "pixels", "images", "series", "texts")
"""The kinds, each with a reader of its name, in the order in which they are asked what
a path holds: the first that recognises it reads it, so the more special a kind is, the
earlier it comes.
"""

FOUNDATION = "images"
"""The kind that others build on. It stands on no other, so that what it exports is
imported without them.
"""

ADDITIONS = ("none_of_these", "objects")
"""Folders of the same form without a reader: what a task may have beside."""

FOLDERS = (*KINDS, *ADDITIONS)

_asked: list[str] = []
"""The folders whose modules were imported, or are being imported now."""


def load() -> None:
    """Import every folder, so that the registries know what it has."""
    for name in FOLDERS:
        load_one(name)


def load_one(name: str) -> None:
    """Import one folder."""
    if name not in _asked:
        _asked.append(name)
        kind = import_module(f"{__name__}.{name}")
        for file in iter_modules(kind.__path__):
            import_module(f"{kind.__name__}.{file.name}")


def public(name: str, room: str = __name__) -> Any:
    """Return what a kind exports under a name.

    Args:
        name: a name that the package of one of the kinds has.
        room: the module that was asked for it.

    Raises:
        AttributeError: no kind exports that name.
    """
    # A submodule that is being imported is asked for here before it is there.
    if name.startswith("__") or find_spec(f"{room}.{name}") is not None:
        raise AttributeError(f"module {room!r} has no attribute {name!r}")
    for kind in (FOUNDATION, *FOLDERS):
        package = import_module(f"{__name__}.{kind}")
        value = getattr(package, name, None)
        if value is not None and not isinstance(value, ModuleType):
            return value
    raise AttributeError(f"module {room!r} has no attribute {name!r}")


class SharedRegistry(Registry):
    """A registry of classes to which the kinds of input add theirs.

    It loads the kinds as soon as somebody looks something up, not when they register:
    for one name, only until a kind has it.
    """

    def register(self, name: str) -> Callable[[Decorated], Decorated]:
        """As :meth:`torchcaps.spec.Registry.register`; the class has the name as its
        ``name``, too.
        """

        enter = super().register(name)

        def named(cls: Any) -> Any:
            enter(cls).name = name
            return cls

        return named

    def find(self, name: object, place: str = "") -> type:
        """The class of a name, see :meth:`torchcaps.spec.Registry.find`."""
        text = str(name)
        # A reader has the name of its kind.
        first = (text,) if text in FOLDERS else ()
        for folder in (*first, FOUNDATION, *ADDITIONS, *KINDS):
            if self._has(text):
                break
            load_one(folder)
        return super().find(name, place)

    def _has(self, name: str) -> bool:
        """Whether a class of the packages of this name is imported."""
        last = name.rpartition(".")[2]
        if last in self and _is_ours(self[last]):
            return True
        return any(cls.__name__ == last and _is_ours(cls) for cls in self.imported())

    def loaded(self) -> dict[str, Any]:
        """The names and the classes whose modules are imported; it imports none."""
        return dict(super().items())

    def classes(self) -> list[type]:
        """All classes of the kind that can be made."""
        load()
        return super().classes()

    def __iter__(self) -> Iterator[str]:
        load()
        return super().__iter__()

    def items(self) -> Any:
        """The names and their classes."""
        load()
        return super().items()

    def values(self) -> Any:
        """The classes."""
        load()
        return super().values()


def _is_ours(cls: type) -> bool:
    """Whether a class is no plug-in's."""
    return package_of(cls.__module__) == "torchcaps"
