"""Classes by name, and the arguments that their constructors declare."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

Decorated = TypeVar("Decorated", bound=type)


MISSING = inspect.Parameter.empty
"""Stands for a default that there is not."""


_GATHERED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class NotKnown(ValueError):
    """A name that no registry has: the module that defines its class may not be
    imported.
    """


class Registry(dict[str, Any]):
    """The classes of a kind by name.

    A class is known by the name that it is registered under, and by that of the class;
    a subclass of the base that is not registered, by that of the class alone. A thing
    is written down as its name beside its arguments, so no argument may be called
    ``name``.

    Args:
        kind: what they are, for messages: "routing".
        base: the class that they are derived from; an argument with this type hint
            takes a name of this registry.
        factory: whether the first argument of their constructors comes later, as the
            parameters of an optimizer.

    Example:
        >>> from torchcaps.routing.base import ROUTINGS
        >>> ROUTINGS.find("em") is ROUTINGS.find("EMRouting") is tc.routing.EMRouting
        True
    """

    every: "list[Registry]" = []  # noqa: RUF012

    def __init__(self, kind: str, base: type, factory: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.base = base
        self.factory = factory
        self.every.append(self)

    def register(self, name: str) -> Callable[[Decorated], Decorated]:
        """Class decorator: makes a class known under a name; one that was defined again
        replaces its old self.

        Raises:
            ValueError: if another class has that name, or the class takes an argument
                called ``name``.
        """

        def enter(cls: Decorated) -> Decorated:
            self.check_arguments(cls)
            if name in self and not same_class(self[name], cls):
                raise ValueError(
                    f"a {self.kind} named {name!r} exists already: "
                    f"{self[name].__name__}"
                )
            self[name] = cls
            return cls

        return enter

    def classes(self) -> list[type]:
        """Return all classes of the kind that can be made."""
        return self.imported()

    def imported(self) -> list[type]:
        """Return the classes that can be made and whose modules are imported."""
        return [
            cls
            for cls in subclasses(self.base)
            if not inspect.isabstract(cls)
            and cls is not self.base
            and not cls.__name__.startswith("_")
        ]

    def find(self, name: object, place: str = "") -> type:
        """Return the class of a name.

        Args:
            name: the name of the class, or that it is registered under. A dotted path
                tells classes of one name apart: it must begin with the package that
                defines the class.
            place: what takes the class, for the message.

        Raises:
            ValueError: if there is none, or it takes an argument called ``name``.
        """
        if isinstance(name, str):
            *path, last = name.split(".")
        else:
            *path, last = [""]
        called = [
            *filter(None, [self.get(last)]),
            *[cls for cls in self.imported() if cls.__name__ == last],
        ]
        matching = [
            cls
            for cls in called
            if not path or path[0] == cls.__module__.partition(".")[0]
        ]
        if not matching:
            raise NotKnown(self.unknown(name, place or self.kind))
        package = package_of(self.base.__module__)
        # A class of the user's goes by its path.
        from_here = [cls for cls in matching if package_of(cls.__module__) == package]
        cls = (from_here or matching)[0]
        self.check_arguments(cls)
        return cls

    def check_arguments(self, cls: type) -> None:
        """Refuse a class with an argument that would take the place of the class's own
        name where it is written down.

        Raises:
            ValueError: if there is one: names it.
        """
        if "name" in parameters(cls, int(self.factory)):
            raise ValueError(
                f"{self.kind} {cls.__name__}: no argument may be called 'name', which "
                "options and saved files write beside the arguments: give it another "
                "name"
            )

    @property
    def with_article(self) -> str:
        """Return the kind with its article."""
        return f"{'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind}"

    def unknown(self, name: object, place: str) -> str:
        """Return the message for an unknown name."""
        classes = sorted({cls.__name__ for cls in self.classes()})
        names = sorted(self) or classes
        hint = meant(str(name), [*self, *classes])
        return (
            f"{place} must be the name of {self.with_article}, got {name!r}{hint}\n"
            "  One of your own is known once its module is imported: --import my_module\n"
            f"  The names: {', '.join(names)}"
        )

    def name_of(self, cls: type) -> str:
        """Return the name that :meth:`find` knows a class by: as registered, or its
        own, or its path.

        Raises:
            ValueError: if it takes an argument called ``name``.
        """
        self.check_arguments(cls)
        # Its module is imported, so nothing needs to be loaded to find its name.
        registered = [name for name, known in dict.items(self) if known is cls]
        for name in (*registered, cls.__name__):
            with suppress(ValueError):
                if self.find(name) is cls:
                    return name
        return f"{cls.__module__}.{cls.__name__}"


def package_of(name: str) -> str:
    """Return the package that a dotted name begins with; ``torchcaps_lab`` counts as
    ``torchcaps``.
    """
    first = name.partition(".")[0]
    return "torchcaps" if first == "torchcaps_lab" else first


def registry_of(kind: Any) -> Registry | None:
    """Return the registry that an argument with this type hint takes a name of; None if
    it takes no class.
    """
    result = kind
    if get_origin(kind) is Callable or kind is Callable:
        result = get_args(kind)[-1]
    if not inspect.isclass(result):
        return None
    for registry in Registry.every:
        if issubclass(result, registry.base):
            return registry
    return None


def subclasses(base: type) -> list[type]:
    """Return a class and all that are derived from it so far."""
    waiting = [base]
    classes: dict[type, None] = {}
    while waiting:
        cls = waiting.pop()
        if cls not in classes:
            classes[cls] = None
            waiting += type.__subclasses__(cls)
    return [*classes]


def same_class(first: type, second: type) -> bool:
    """Whether two classes are one, defined twice: its module was reloaded, or its cell
    in a notebook run again.
    """
    files = {
        getattr(sys.modules.get(cls.__module__), "__file__", None)
        for cls in (first, second)
    }
    one_module = first.__module__ == second.__module__ or (
        len(files) == 1 and None not in files
    )
    return one_module and first.__qualname__ == second.__qualname__


class Argument(NamedTuple):
    """A declared argument: its type hint, and its default, or :data:`MISSING`."""

    hint: Any
    default: Any = MISSING


class Declared(NamedTuple):
    """What a constructor takes: arguments by name, and whether it takes others, too."""

    arguments: dict[str, Argument]
    open: bool


@cache
def declared(cls: Callable[..., Any], skip: int = 0) -> Declared:
    """Return the arguments that a class declares in the signature of its constructor,
    or a function in its own.

    Args:
        cls: the class or function.
        skip: how many of the first arguments to leave out.
    """
    maker: Any = cls.__init__ if inspect.isclass(cls) else cls
    try:
        hints = get_type_hints(maker, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # Hints of a module that is not imported.
        hints = {}
    arguments = {}
    is_open = False
    for name, parameter in parameters(cls, skip).items():
        if parameter.kind not in _GATHERED:
            arguments[name] = Argument(hints.get(name, Any), parameter.default)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            is_open = True
    # A signature has a mark in place of a default that is made.
    for item in fields(cls) if is_dataclass(cls) else ():
        if item.name in arguments and callable(item.default_factory):
            default = item.default_factory()
            arguments[item.name] = arguments[item.name]._replace(default=default)
    return Declared(arguments, is_open)


@cache
def parameters(cls: Callable[..., Any], skip: int = 0) -> dict[str, inspect.Parameter]:
    """Return what a class or a function takes, by name, without ``self`` and the first
    arguments that are left out; the type hints need not be known yet.
    """
    maker: Any = cls.__init__ if inspect.isclass(cls) else cls
    taken = list(inspect.signature(maker).parameters.items())
    return dict(taken[inspect.isclass(cls) + skip :])


@cache
def argument_names(cls: type) -> dict[str, str]:
    """Return the names of the arguments of a dataclass by those of the attributes that
    keep them.
    """
    return {
        attribute.name: attribute.metadata.get("argument", attribute.name)
        for attribute in fields(cls)
        if attribute.init
    }


@cache
def attribute_names(cls: type) -> dict[str, str]:
    """Return the names of the attributes of a dataclass by those of its arguments."""
    return {argument: name for name, argument in argument_names(cls).items()}


def refused(name: str, cls: type, arguments: Sequence[str]) -> str:
    """Return why the constructor of a class does not take these arguments, in words
    about ``name``; empty if it does.
    """
    declaration = declared(cls)
    unknown = [name for name in arguments if name not in declaration.arguments]
    if declaration.open or not unknown:
        return ""
    wrong = unknown[0]
    takes = ", ".join(declaration.arguments) or "none"
    missing = [name for name in declaration.arguments if name not in arguments]
    hint = _taken_by(wrong, declaration) or meant(wrong, missing)
    return f"{name} takes no argument {wrong!r}{hint}; it takes {takes}"


def _taken_by(argument: str, declaration: Declared) -> str:
    """The argument of a class, such as its routing, that takes this one, in words; empty
    if there is none.
    """
    for name, taken in declaration.arguments.items():
        registry = next(filter(None, map(registry_of, get_args(taken.hint))), None)
        if registry is None or registry.factory:
            continue
        if any(argument in parameters(cls) for cls in registry.values()):
            made = f"{name}=create_{registry.kind}(NAME, {argument}=...)"
            return f": it is an argument of the {registry.kind}, {made}"
    return ""


class SuggestsNames:
    """Base of classes whose constructors answer a misspelt argument with the one that
    is meant.

    Raises:
        TypeError: if an argument is given by a name that the constructor does not take:
            names those that it takes.

    Example:
        >>> tc.Squash(kid="released")
        Traceback (most recent call last):
        TypeError: Squash takes no argument 'kid'; did you mean kind?; it takes kind, dim
    """

    def __new__(cls, *_: Any, **named: Any) -> Self:
        """Check the names before the constructor gets them."""
        if named and (why := refused(cls.__name__, cls, list(named))):
            raise TypeError(why)
        return super().__new__(cls)


_NEAR = 0.7
"""How alike a name and the one that was meant are, by difflib's ratio."""


def meant(name: str, names: Mapping[str, Any] | Sequence[str]) -> str:
    """Return a question after the known name that looks like an unknown one."""
    near = [
        candidate for candidate in names if name and candidate.startswith(name)
    ] or get_close_matches(name, names, 1, _NEAR)
    return f"; did you mean {near[0]}?" if near else ""
