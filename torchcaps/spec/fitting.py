"""Plain values, checked against type hints, as the things that they describe."""

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from torchcaps.spec.registry import (
    MISSING,
    Argument,
    Registry,
    declared,
    meant,
    registry_of,
)
from torchcaps.spec.wire import Spec, Typed, plain


def check(hint: Any, value: Any, place: str) -> None:
    """Check a Python value against a type hint; a thing must be an object, not a name.

    Raises:
        ValueError: if it does not fit; says what was expected.
    """
    for part, bounds in alternatives(hint):
        if isinstance(value, str | Mapping) and registry_of(part) is not None:
            continue
        if _takes(part, value):
            if get_origin(part) in _SEQUENCES:
                _elements(part, value, place, check)
            for bound in bounds:
                bound.check(place, value)
            return
    for _, bounds in alternatives(hint):
        for bound in bounds:
            bound.refuse(place, value)
    raise ValueError(f"{place} must be {_expected(hint)}, got {value!r}")


def fit(hint: Any, value: Any, place: str) -> Any:
    """Return a plain value as a type hint asks for it: checked, with a :class:`Spec`
    wherever it describes a thing.

    Args:
        hint: the type hint of an argument. Where it is a class with a
            :class:`Registry`, the value is a name, or a dict with ``name`` and
            arguments; where it is a dataclass, a dict of its fields. ``Annotated`` with
            :class:`Within` bounds numbers.
        value: of plain values, or as typed on a command line; things are taken as
            :func:`plain` describes them.
        place: the place of the argument, for messages: "data.root".

    Raises:
        ValueError: if it does not fit: says what was expected.
    """
    parts = alternatives(hint)
    meanings = [value.value, value.text] if isinstance(value, Typed) else [value]
    for meaning in meanings:
        for part, bounds in parts:
            if _takes(part, meaning):
                fitted = _fitted(part, meaning, place)
                for bound in bounds:
                    bound.check(place, fitted)
                return fitted
    got = meanings[-1]
    if isinstance(got, Mapping):
        got = _untyped(got, place)
    raise ValueError(f"{place} must be {_expected(hint)}, got {got!r}")


def _expected(hint: Any) -> str:
    """The values that a type hint takes, in words."""
    return " or ".join(
        dict.fromkeys(
            words for part, _ in alternatives(hint) if (words := _words(part))
        )
    )


@dataclass(frozen=True, repr=False)
class Within:
    """Bounds of a number, for ``Annotated``: finite, from ``least`` to ``most``, or
    between them if ``open``.

    Args:
        least: the lower bound, if there is one.
        most: the upper bound.
        open: whether the bounds themselves are out of bounds.
        zero: whether 0 is allowed beside them, for none.
        words: what to say that the number must be, in place of the bound that it is
            beyond.

    Example:
        >>> from torchcaps.spec import Within
        >>> Within(0, 1).check("share", 1.5)
        Traceback (most recent call last):
        ValueError: share must be at most 1, got 1.5
    """

    least: float | None = None
    most: float | None = None
    open: bool = False
    zero: bool = False
    words: str = ""

    def __repr__(self) -> str:
        # help() shows it in signatures: only the bounds that there are.
        given = (
            f"{bound.name}={value!r}"
            for bound in fields(self)
            if bound.name != "words"
            and (value := getattr(self, bound.name)) != bound.default
        )
        return f"{type(self).__name__}({', '.join(given)})"

    def check(self, place: str, value: Any) -> None:
        """Raise a ValueError that names the place unless the number, or each of
        several, is within.
        """
        for number in value if isinstance(value, list | tuple) else [value]:
            if bound := self._beyond(number):
                raise ValueError(
                    f"{place} must be {self.words or bound}, got {number!r}"
                )

    def _beyond(self, number: Any) -> str:
        """The bound that the number breaks, in words; empty if it is within."""
        if not is_finite(number):
            return "finite"
        if self.zero and number == 0:
            return ""
        above, below = ("above", "below") if self.open else ("at least", "at most")
        if self.least is not None and (
            number <= self.least if self.open else number < self.least
        ):
            return f"{above} {self.least:g}"
        if self.most is not None and (
            number >= self.most if self.open else number > self.most
        ):
            return f"{below} {self.most:g}"
        return ""

    def refuse(self, place: str, value: Any) -> None:
        """Raise an error that says more than the type hint about a value of another
        type; by default there is none.
        """


Size = Annotated[int, Within(1)]
"""The type hint of an argument that is a size: a whole number of at least 1."""

BETWEEN_0_AND_1 = Within(0, 1, open=True, words="a share between 0 and 1")
"""The bounds of a share that is neither nothing nor all."""


def is_finite(number: Any) -> TypeGuard[float]:
    """Whether it is a real number, and neither a bool, nor infinite, nor NaN."""
    return (
        isinstance(number, Real)
        and not isinstance(number, bool)
        and math.isfinite(number)
    )


def alternatives(hint: Any) -> list[tuple[Any, tuple[Within, ...]]]:
    """Return the alternatives of a type hint in their order, each with its bounds."""
    parts: list[tuple[Any, tuple[Within, ...]]] = []
    waiting: list[tuple[Any, tuple[Within, ...]]] = [(hint, ())]
    while waiting:
        part, bounds = waiting.pop()
        if get_origin(part) is Annotated:
            inner, *more = get_args(part)
            more = [bound for bound in more if isinstance(bound, Within)]
            waiting.append((inner, (*bounds, *more)))
        elif get_origin(part) in (Union, types.UnionType):
            waiting += [(inner, bounds) for inner in get_args(part)[::-1]]
        elif isinstance(part, TypeVar):
            parts.append((Any, bounds))
        else:
            parts.append((part, () if part in (None, type(None)) else bounds))
    return parts


_SEQUENCES = (list, tuple, Sequence, set, frozenset)


_MAPPINGS = (dict, Mapping)


def _takes(part: Any, value: Any) -> bool:
    """Whether a value is of the kind of one alternative of a type hint, whatever is
    inside it.
    """
    kind = get_origin(part) or part
    if kind is Any or kind is object:
        return True
    if kind in (None, type(None)):
        return value is None
    if kind is Literal:
        # An int and a bool may be equal.
        return (type(value), value) in [
            (type(choice), choice) for choice in get_args(part)
        ]
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, str | Path)
    if kind in _SEQUENCES:
        return isinstance(value, list | tuple)
    if kind in _MAPPINGS:
        return isinstance(value, Mapping)
    registry = registry_of(part)
    if registry is not None or is_dataclass(kind):
        is_thing = isinstance(value, kind) if inspect.isclass(kind) else callable(value)
        is_name = isinstance(value, str) and registry is not None
        return isinstance(value, Mapping) or is_thing or is_name
    return inspect.isclass(kind) and isinstance(value, kind)


def _fitted(part: Any, value: Any, place: str) -> Any:
    """A value of the kind of one alternative of a type hint, with what is inside it."""
    kind: Any = get_origin(part) or part
    inner = get_args(part)
    registry = registry_of(part)
    if registry is not None:
        return _described(registry, kind, value, place)
    if is_dataclass(kind) and isinstance(kind, type):
        arguments = value if isinstance(value, Mapping) else plain(value, place)
        return Spec(kind, complete(kind, arguments, place), place)
    if kind is float:
        return float(value)
    if kind in _SEQUENCES:
        items = _elements(part, value, place, fit)
        return items if kind is list else tuple(items)
    if kind in _MAPPINGS:
        hint = inner[1] if inner else Any
        return {
            str(name): fit(hint, item, f"{place}.{name}")
            for name, item in value.items()
        }
    return _untyped(value, place) if kind in (Any, object) else value


def _elements(
    part: Any,
    values: Sequence[Any],
    place: str,
    convert: Callable[[Any, Any, str], Any],
) -> list[Any]:
    """What ``convert``, :func:`fit` or :func:`check`, makes of the elements of a list or a
    tuple.
    """
    inner: tuple[Any, ...] = get_args(part) or (Any,)
    if get_origin(part) is tuple and inner[-1] is not Ellipsis:
        if len(inner) != len(values):
            raise ValueError(
                f"{place} must be {len(inner)} values, got {list(values)!r}"
            )
        return [
            convert(hint, value, place)
            for hint, value in zip(inner, values, strict=True)
        ]
    return [convert(inner[0], value, place) for value in values]


def _untyped(value: Any, place: str) -> Any:
    """A value for an argument without a type hint: any plain one."""
    if isinstance(value, Typed):
        return _untyped(value.value, place)
    if isinstance(value, Mapping):
        return {
            str(name): _untyped(item, f"{place}.{name}") for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_untyped(item, place) for item in value]
    return value


def _described(registry: Registry, kind: Any, value: Any, place: str) -> Spec:
    """What a name, or a name with arguments, describes."""
    if not isinstance(value, str | Mapping):
        value = plain(value, place)
    if isinstance(value, str):
        value = {"name": value}
    if "name" not in value:
        names = sorted(registry) or [cls.__name__ for cls in registry.classes()]
        given = ", ".join(map(str, value)) or "none"
        raise ValueError(
            f"{place} must have a name beside its arguments ({given}), one of "
            f"{', '.join(names)}"
        )
    name = value["name"]
    if isinstance(name, Typed):
        name = name.text
    cls = registry.find(name, place)
    if issubclass(kind, registry.base) and not issubclass(cls, kind):
        raise ValueError(f"{place} must be a {kind.__name__}, got {name!r}")
    values = {key: item for key, item in value.items() if key != "name"}
    arguments = complete(cls, values, place, int(registry.factory))
    return Spec(cls, arguments, place, registry)


class UnknownOption(ValueError):
    """An option of a name that a class does not take.

    Args:
        place: the option that the class belongs to; empty for the options themselves.
        name: the name.
        taken: the names that the class takes.
    """

    def __init__(self, place: str, name: str, taken: Sequence[str]) -> None:
        self.name = name
        self.option = f"{place}.{name}" if place else name
        self.near = meant(name, taken)
        self.taken = f"{place} takes {', '.join(taken) or 'nothing'}"
        super().__init__(f"there is no option {self.option}{self.near}\n  {self.taken}")


def complete(
    cls: Callable[..., Any], values: Mapping[str, Any], place: str, skip: int = 0
) -> dict[str, Any]:
    """Return the arguments of a class, each as its type hint asks for it, with the
    defaults of those that are not given.

    Raises:
        UnknownOption: if the class takes no argument of a name.
        ValueError: if one is missing, or does not fit.
    """
    declaration = declared(cls, skip)
    within = f"{place}." if place else ""
    for name in values:
        if name not in declaration.arguments and not declaration.open:
            raise UnknownOption(place, str(name), list(declaration.arguments))
    completed = {}
    for name, argument in declaration.arguments.items():
        if name in values:
            completed[name] = fit(argument.hint, values[name], within + name)
        elif argument.default is MISSING:
            raise ValueError(
                f"{within}{name} is missing: {getattr(cls, '__name__', place)} needs it"
            )
        elif isinstance(argument.default, bool | int | float | None):
            completed[name] = argument.default
        elif _is_plain(argument.default):
            completed[name] = fit_default(argument, within + name)
    for name, value in values.items():
        if name not in completed:
            completed[name] = _untyped(value, within + name)
    return completed


def fit_default(argument: Argument, place: str) -> Any:
    """Return the default of an argument, as it would be read; as it is where it does
    not fit its own type hint.
    """
    try:
        return fit(argument.hint, argument.default, place)
    except ValueError:
        return argument.default


def _is_plain(default: Any) -> bool:
    try:
        plain(default)
    except ValueError:
        return False
    return True


def _words(part: Any) -> str:
    """The values that one alternative of a type hint takes, in words; empty if these
    cannot be written.
    """
    kind = get_origin(part) or part
    registry = registry_of(part)
    if registry is not None:
        return f"the name of {registry.with_article}"
    if kind is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(part))
    if is_dataclass(kind):
        return "options by name"
    if kind in _SEQUENCES:
        return "a list"
    if kind in _MAPPINGS:
        return "values by name"
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        Path: "a path",
    }
    return "null" if kind in (None, type(None)) else words.get(kind, "")
