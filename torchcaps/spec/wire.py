"""Things as they are written down: a name beside arguments, in JSON and YAML."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from torchcaps.spec.registry import Registry, attribute_names, declared, registry_of


@dataclass(frozen=True)
class Typed:
    """A value as typed on a command line: read as YAML, and as it stands, for what
    takes text.
    """

    text: str
    value: Any


@dataclass(frozen=True)
class Given:
    """A value that only the running program has: taken as it is, and left out wherever
    options are written.
    """

    value: Any


@dataclass(frozen=True)
class Spec:
    """A class with its arguments, checked and complete.

    Args:
        cls: the class.
        arguments: by name, with specs for things.
        place: the option that it belongs to, for messages.
        registry: where its name is; None for a group of options, which has none.

    Example:
        >>> from torchcaps.spec import fit
        >>> spec = fit(tc.routing.Routing, {"name": "mean"}, "routing")
        >>> spec.plain(), type(spec.make()).__name__
        ({'name': 'mean'}, 'MeanRouting')
    """

    cls: type
    arguments: dict[str, Any]
    place: str
    registry: Registry | None = None

    def make(self) -> Any:
        """Make the thing, or for an optimizer or a scheduler a function that makes it.

        Raises:
            ValueError: if the arguments do not fit each other.
        """
        arguments = {name: make(value) for name, value in self.arguments.items()}
        if self.registry is not None and self.registry.factory:
            return partial(self.cls, **arguments)
        with _place_in_errors(self.place):
            return self.cls(**arguments)

    def plain(self) -> dict[str, Any]:
        """Return the name and all arguments, ready for JSON and YAML."""
        if self.registry is None:
            name = {}
        else:
            name = {"name": self.registry.name_of(self.cls)}
        written = {
            key: value
            for key, value in self.arguments.items()
            if not isinstance(value, Given)
        }
        return {**name, **{key: plain(value) for key, value in written.items()}}


@contextmanager
def _place_in_errors(place: str) -> Iterator[None]:
    """Errors that constructors raise for arguments that fit one by one, but not
    together, name the place.
    """
    try:
        yield
    except (
        TypeError,
        AttributeError,
        LookupError,
        ArithmeticError,
        RecursionError,
        RuntimeError,
    ) as error:
        raise ValueError(f"{place}: {error}") from error


def make(value: Any) -> Any:
    """Return the value with the things that it describes, at any depth, made."""
    if isinstance(value, Spec):
        return value.make()
    if isinstance(value, Given):
        return value.value
    if isinstance(value, list | tuple):
        return type(value)(map(make, value))
    if isinstance(value, Mapping):
        return {name: make(item) for name, item in value.items()}
    return value


def plain(value: Any, place: str = "argument") -> Any:
    """Return a value as JSON and YAML hold it: things as their names and arguments,
    paths as text, tuples as lists, numbers and texts of NumPy as those of Python.

    Raises:
        ValueError: if it has no such form; names the place.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Spec):
        return value.plain()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(
                f"{place} must have names for its values, got {wrong[0]!r}"
            )
        return {key: plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, place) for item in value]
    kind: Any = type(value)
    registry = registry_of(kind)
    if registry is not None or (is_dataclass(value) and not isinstance(value, type)):
        name = {} if registry is None else {"name": registry.name_of(kind)}
        return {
            **name,
            **{
                item: plain(argument_value(value, item), f"{place}.{item}")
                for item in declared(kind).arguments
            },
        }
    raise ValueError(
        f"{place} must be a name, a number, a list, or a dict of these, as {{'name': "
        f"..., argument: ...}} for a class, to be saved; got {value!r}"
    )


def argument_value(owner: Any, argument: str) -> Any:
    """Return the attribute that holds an argument of the constructor.

    Raises:
        ValueError: if there is none of that name.
    """
    owner_type: Any = type(owner)
    attributes = attribute_names(owner_type) if is_dataclass(owner) else {}
    try:
        return getattr(owner, attributes.get(argument, argument))
    except AttributeError as error:
        kind = type(owner).__name__
        raise ValueError(
            f"{kind} must keep its argument {argument!r} as an attribute of that "
            f"name, to be saved with it ({error})"
        ) from error


def repr_of(owner: Any, *arguments: str) -> str:
    """Return the attributes of these names with their values, for a ``repr``."""
    return ", ".join(f"{name}={getattr(owner, name)!r}" for name in arguments)


def jsonable(value: Any) -> Any:
    """Return a value for JSON, which has no NaN and no infinity: None in their place,
    in lists and mappings too.
    """
    if isinstance(value, Mapping):
        return {name: jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
