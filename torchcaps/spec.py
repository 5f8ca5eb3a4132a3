"""A thing is a name plus declared arguments: routings, networks, data sets, tasks,
losses, optimizers, and options.

``{"name": "em", "steps": 2}``, or ``"em"`` where no argument differs from its default,
describes a thing anywhere: in Python, in YAML, on the command line, in a saved network.
The name is looked up in a table of classes that exist already, and the arguments are
those that the class declares in the signature of its constructor. Nothing is imported
by name, nothing else is called, and text is never parsed again: a string where a class
is taken is a name.
"""

import inspect
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import InitVar, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, partial, wraps
from numbers import Integral, Real
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import dataclass_transform

Decorated = TypeVar("Decorated", bound=type)

MISSING = inspect.Parameter.empty
"""Stands for a default that there is not."""

_GATHERED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

RESERVED = ("name", "class_path", "init_args", "dict_kwargs")
"""Keys beside the arguments of a thing wherever it is written down, now and in earlier
versions: no argument's name.
"""


class NotKnown(ValueError):
    """A name that no registry has: the module that defines its class may not be
    imported.
    """


class Registry(dict[str, Any]):
    """The classes of a kind by name.

    A class is known by the name that it is registered under, and by that of the class;
    a subclass of the base that is not registered, by that of the class alone. A thing
    is written down as its name beside its arguments, so no argument may be called
    ``name``, or have another of the names in :data:`RESERVED`.

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
        self.kind, self.base, self.factory = kind, base, factory
        self.every.append(self)

    def register(self, name: str) -> Callable[[Decorated], Decorated]:
        """Class decorator: makes a class known under a name; one that was defined again
        replaces its old self.

        Raises:
            ValueError: if another class has that name, or the class takes an argument
                with a reserved name.
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
        """All classes of the kind that can be made."""
        concrete = (
            cls
            for cls in subclasses(self.base)
            if not inspect.isabstract(cls) and cls is not self.base
        )
        return [cls for cls in concrete if not cls.__name__.startswith("_")]

    def find(self, name: object, place: str = "") -> type:
        """The class of a name.

        Args:
            name: of the class, or that it is registered under. The path of the class,
                as in files of earlier versions, is a name too: what comes before the
                last dot must begin with the package that defines the class.
            place: what takes the class, for the message.

        Raises:
            ValueError: if there is none, or it takes an argument with a reserved name.
        """
        *path, last = name.split(".") if isinstance(name, str) else [""]
        called = [
            *filter(None, [self.get(last)]),
            *(cls for cls in self.classes() if cls.__name__ == last),
        ]
        found = [
            cls
            for cls in called
            if not path or package_of(path[0]) == package_of(cls.__module__)
        ]
        if not found:
            raise NotKnown(self.unknown(name, place or self.kind))
        here = package_of(self.base.__module__)
        own = [
            cls for cls in found if package_of(cls.__module__) == here
        ]  # one of the user's goes by its path
        self.check_arguments((own or found)[0])
        return (own or found)[0]

    def check_arguments(self, cls: type) -> None:
        """Refuses a class with an argument that would take the place of the class's own
        name where it is written down.

        Raises:
            ValueError: if there is one: names it.
        """
        if reserved := [
            name for name in parameter_names(cls, int(self.factory)) if name in RESERVED
        ]:
            raise ValueError(
                f"{self.kind} {cls.__name__}: no argument may be called "
                f"{reserved[0]!r}, which options and saved files "
                "write beside the arguments: give it another name"
            )

    def unknown(self, name: object, place: str) -> str:
        """What to say of a name that is not known."""
        classes = sorted({cls.__name__ for cls in self.classes()})
        known = sorted(self) or classes
        near = get_close_matches(str(name), [*self, *classes], 1)
        return (
            f"{place} must be one of {known}, got {name!r}"
            + (f"; did you mean {near[0]}?" if near else "")
            + (
                "\n  One of your own is known once its module is imported: "
                "--import my_module"
            )
        )

    def name_of(self, cls: type) -> str:
        """The name that :meth:`find` knows a class by: as registered, or its own, or
        its path.

        Raises:
            ValueError: if it takes an argument with a reserved name.
        """
        self.check_arguments(cls)
        for name in (*(name for name, one in self.items() if one is cls), cls.__name__):
            with suppress(ValueError):
                if self.find(name) is cls:
                    return name
        return f"{cls.__module__}.{cls.__name__}"


def package_of(name: str) -> str:
    """The package that a dotted name begins with; ``torchcaps_lab`` counts as
    ``torchcaps``, which it was part of.
    """
    first = name.partition(".")[0]
    return "torchcaps" if first == "torchcaps_lab" else first


def registry_of(kind: Any) -> Registry | None:
    """The registry that an argument with this type hint takes a name of; None if it
    takes no class.
    """
    result = (
        get_args(kind)[-1] if get_origin(kind) is Callable or kind is Callable else kind
    )
    if not inspect.isclass(result):
        return None
    return next((one for one in Registry.every if issubclass(result, one.base)), None)


def subclasses(base: type) -> Iterator[type]:
    """A class and all that are derived from it so far."""
    waiting, seen = [base], set()
    while waiting:
        cls = waiting.pop()
        if cls not in seen:
            seen.add(cls)
            waiting += type.__subclasses__(cls)
            yield cls


def same_class(one: type, other: type) -> bool:
    """Whether two classes are one, defined twice: its module was reloaded, or its cell
    in a notebook run again.
    """
    files = {
        getattr(sys.modules.get(cls.__module__), "__file__", None)
        for cls in (one, other)
    }
    one_module = one.__module__ == other.__module__ or (
        len(files) == 1 and None not in files
    )
    return one_module and one.__qualname__ == other.__qualname__


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
    """The arguments that a class declares in the signature of its constructor, or a
    function in its own.

    Args:
        cls: the class or function.
        skip: how many of the first arguments to leave out.
    """
    try:
        hints = get_type_hints(_maker(cls), include_extras=True)
    except (
        NameError,
        TypeError,
        AttributeError,
    ):  # hints of a module that is not imported
        hints = {}
    taken = _parameters(cls, skip)
    named = {one.name: one for one in taken if one.kind not in _GATHERED}
    defaults = (
        {one.name: one.default_factory for one in fields(cls)}
        if is_dataclass(cls)
        else {}
    )
    arguments = {
        name: Argument(hints.get(name, Any), _default(one, defaults.get(name)))
        for name, one in named.items()
    }
    return Declared(
        arguments, any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken)
    )


def _maker(cls: Callable[..., Any]) -> Any:
    """The function whose signature declares the arguments."""
    return cls.__init__ if inspect.isclass(cls) else cls


def _parameters(cls: Callable[..., Any], skip: int) -> list[inspect.Parameter]:
    """What a class or a function takes, without ``self`` and the first arguments that
    are left out.
    """
    return list(inspect.signature(_maker(cls)).parameters.values())[
        inspect.isclass(cls) + skip :
    ]


def parameter_names(cls: Callable[..., Any], skip: int = 0) -> list[str]:
    """The names of what a class or a function takes; its type hints need not be known
    yet.
    """
    return [one.name for one in _parameters(cls, skip)]


def argument(
    *,
    default: Any = MISSING,
    alias: str | None = None,
    kw_only: bool = False,
    init: bool = True,
) -> Any:
    """A declared argument of :func:`settings` that is more than a type hint and a
    default.

    Args:
        default: its default; without it the argument must be given.
        alias: its name, where the attribute that keeps it has another one.
        kw_only: whether it comes after all that are not, those of derived classes too.
            It may be given by place, too.
        init: False where a base takes the argument, and this class does not.
    """
    known = {} if default is MISSING else {"default": default}
    return field(
        **known,
        metadata={} if alias is None else {"argument": alias},
        kw_only=kw_only,
        init=init,
    )


def argument_names(cls: type) -> dict[str, str]:
    """The names of the arguments of a dataclass by those of the attributes that keep
    them.
    """
    return {
        one.name: one.metadata.get("argument", one.name)
        for one in fields(cls)
        if one.init
    }


@dataclass_transform(eq_default=False, field_specifiers=(field, argument))
def settings(cls: Decorated) -> Decorated:
    """Class decorator: annotated names are the arguments of the constructor, which
    checks and keeps them.

    A dataclass, but for these things: each argument is checked against its type hint,
    as by :func:`check`, before anything else happens, and a list is kept as a tuple;
    the constructor of the nearest base that has one of its own runs before they are
    kept, so that a module can be one, and gets and checks those that it takes itself
    (what it takes and this class does not is an attribute of the class); an
    ``InitVar``, which ``__post_init__`` gets as it comes, hides nothing that a base has
    under its name; an attribute may have another name than its argument, see
    :func:`argument`; and ``==`` and ``repr`` stay those of the base. What depends on
    several arguments is checked in ``__post_init__``.

    Example:
        >>> @settings
        ... class Blur:
        ...     sigma: Annotated[float, Within(0, open=True)] = 1.0
        ...     steps: Annotated[int, Within(1)] = 3
        >>> Blur(2.0).sigma, Blur().steps
        (2.0, 3)
        >>> Blur(steps=0)
        Traceback (most recent call last):
        ValueError: steps must be at least 1, got 0
    """
    bases = cls.__mro__[1:]
    base: Any = next(
        one
        for one in bases
        if "__init__" in vars(one) and "__dataclass_fields__" not in vars(one)
    )
    made: Any = dataclass(eq=False, repr=False)(cls)
    keep = made.__init__
    names = argument_names(made)
    attributes = {name: attribute for attribute, name in names.items()}
    by_place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    taken = inspect.signature(keep).parameters.values()
    signature = inspect.Signature(
        [
            one.replace(name=names.get(one.name, one.name), kind=by_place)
            for one in taken
        ]
    )
    handed = {
        name
        for name, one in made.__dataclass_fields__.items()
        if isinstance(one.type, InitVar)
    }

    @wraps(keep)
    def __init__(self: Any, *values: Any, **named: Any) -> None:
        hints, of_base = declared(cls).arguments, declared(base).arguments
        try:
            given = signature.bind(self, *values, **named)
        except TypeError as error:
            raise TypeError(f"{cls.__name__}: {error}") from None
        for name, value in given.arguments.items():
            if name in hints and name not in (*handed, *of_base):
                check(hints[name].hint, value, name)
            given.arguments[name] = tuple(value) if isinstance(value, list) else value
        given.apply_defaults()
        base.__init__(
            self,
            **{
                name: given.arguments.get(name, getattr(cls, name, None))
                for name in of_base
            },
        )
        keep(
            **{
                attributes.get(name, name): value
                for name, value in given.arguments.items()
            }
        )

    for name in handed & vars(made).keys():
        if not isinstance(vars(made)[name], property):
            delattr(made, name)
    __init__.__annotations__ = {
        names.get(name, name): hint.type if isinstance(hint, InitVar) else hint
        for name, hint in keep.__annotations__.items()
    }
    vars(__init__)["__signature__"] = signature
    made.__init__ = __init__
    return cls


def check_fields(thing: Any) -> None:
    """Checks the fields of a dataclass against their type hints: for its
    ``__post_init__``.

    Raises:
        ValueError: if one does not fit; names the field.
    """
    kind: Any = type(thing)
    for name, argument in declared(kind).arguments.items():
        check(argument.hint, getattr(thing, name), name)


def check(hint: Any, value: Any, place: str) -> None:
    """Checks that a value in Python is what a type hint asks for; things are things
    here, no names.

    Raises:
        ValueError: if it is not: says what was expected.
    """
    for part, bounds in alternatives(hint):
        named = registry_of(part) is not None and isinstance(value, str | Mapping)
        if _takes(part, value) and not named:
            if get_origin(part) in _SEQUENCES:
                _several(part, value, place, check)
            for bound in bounds:
                bound.check(place, value)
            return
    for _, bounds in alternatives(hint):
        for bound in bounds:
            bound.refuse(place, value)
    raise ValueError(f"{place} must be {_expected(hint)}, got {value!r}")


def _default(parameter: inspect.Parameter, factory: Any) -> Any:
    """The default of a parameter; where a dataclass makes it, one that it made."""
    return factory() if callable(factory) else parameter.default


def refused(name: str, cls: type, arguments: Sequence[str]) -> str:
    """Why the constructor of a class does not take these arguments, in words about
    ``name``; empty if it does.
    """
    known = declared(cls)
    wrong = (
        None
        if known.open
        else next((one for one in arguments if one not in known.arguments), None)
    )
    takes = ", ".join(known.arguments) or "none"
    if wrong is None:
        return ""
    return (
        f"{name} takes no argument {wrong!r}{meant(wrong, known.arguments)}; it "
        f"takes {takes}"
    )


def meant(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """A question after the known name that looks like an unknown one."""
    near = [one for one in known if one.startswith(name)] or get_close_matches(
        name, known, 1
    )
    return f"; did you mean {near[0]}?" if near else ""


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
    """

    cls: type
    arguments: dict[str, Any]
    place: str
    registry: Registry | None = None

    def make(self) -> Any:
        """The thing; of an optimizer or a scheduler, a function that makes it.

        Raises:
            ValueError: if the arguments do not fit each other.
        """
        arguments = {name: make(value) for name, value in self.arguments.items()}
        if self.registry is not None and self.registry.factory:
            return partial(self.cls, **arguments)
        with _named(self.place):
            return self.cls(**arguments)

    def plain(self) -> dict[str, Any]:
        """The name and all arguments, ready for JSON and YAML."""
        name = (
            {} if self.registry is None else {"name": self.registry.name_of(self.cls)}
        )
        written = {
            key: value
            for key, value in self.arguments.items()
            if not isinstance(value, Given)
        }
        return {**name, **{key: plain(value) for key, value in written.items()}}


@contextmanager
def _named(place: str) -> Iterator[None]:
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
    """The value with the things that it describes, at any depth, made."""
    if isinstance(value, Spec):
        return value.make()
    if isinstance(value, Given):
        return value.value
    if isinstance(value, list | tuple):
        return type(value)(map(make, value))
    return (
        {name: make(one) for name, one in value.items()}
        if isinstance(value, Mapping)
        else value
    )


def plain(value: Any, place: str = "argument") -> Any:
    """A value as JSON and YAML hold it: things as their names and arguments, paths as
    text, tuples as lists.

    Raises:
        ValueError: if it has no such form; names the place.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Spec):
        return value.plain()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise ValueError(
                f"{place} must have names for its values, got {wrong[0]!r}"
            )
        return {key: plain(one, f"{place}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, place) for one in value]
    registry = registry_of(type(value))
    if registry is not None or (is_dataclass(value) and not isinstance(value, type)):
        name = {} if registry is None else {"name": registry.name_of(type(value))}
        kind: Any = type(value)
        return {
            **name,
            **{
                one: plain(kept(value, one), f"{place}.{one}")
                for one in declared(kind).arguments
            },
        }
    raise ValueError(
        f"{place} must be a name, a number, a list, or a dict of these, as {{'name': "
        f"..., argument: ...}} for a class, "
        f"to be saved; got {value!r}"
    )


def kept(owner: Any, argument: str) -> Any:
    """The attribute that holds an argument of the constructor.

    Raises:
        ValueError: if there is none of that name.
    """
    names = argument_names(type(owner)) if is_dataclass(owner) else {}
    try:
        return getattr(
            owner,
            next((kept for kept, name in names.items() if name == argument), argument),
        )
    except AttributeError as error:
        kind = type(owner).__name__
        raise ValueError(
            f"{kind} must keep its argument {argument!r} as an attribute of that "
            f"name, to be saved with it ({error})"
        ) from error


def shown(owner: Any, *arguments: str) -> str:
    """The attributes of these names with their values, for a ``repr``."""
    return ", ".join(f"{name}={getattr(owner, name)!r}" for name in arguments)


def fit(hint: Any, value: Any, place: str) -> Any:
    """A plain value as a type hint asks for it: checked, with a :class:`Spec` wherever
    it describes a thing.

    Args:
        hint: the type hint of an argument. Where it is a class with a
            :class:`Registry`, the value is a name, or a dict with ``name`` and
            arguments; where it is a dataclass, a dict of its fields. ``Annotated`` with
            :class:`Within` bounds numbers.
        value: of plain values, or as typed on a command line; things are taken as
            :func:`plain` describes them.
        place: of the argument, for messages: "data.root".

    Raises:
        ValueError: if it does not fit: says what was expected.
    """
    parts = list(alternatives(hint))
    meanings = [value.value, value.text] if isinstance(value, Typed) else [value]
    for meaning in meanings:
        for part, bounds in parts:
            if _takes(part, meaning):
                found = _fitted(part, meaning, place)
                for bound in bounds:
                    bound.check(place, found)
                return found
    raise ValueError(f"{place} must be {_expected(hint)}, got {meanings[-1]!r}")


def _expected(hint: Any) -> str:
    """What a type hint takes, for people."""
    return " or ".join(
        dict.fromkeys(
            words for part, _ in alternatives(hint) if (words := _words(part))
        )
    )


@dataclass(frozen=True)
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
    """

    least: float | None = None
    most: float | None = None
    open: bool = False
    zero: bool = False
    words: str = ""

    def check(self, place: str, value: Any) -> None:
        """Raises a ValueError that names the place unless the number, or each of
        several, is within.
        """
        for number in value if isinstance(value, list | tuple) else [value]:
            if bound := self._beyond(number):
                raise ValueError(
                    f"{place} must be {self.words or bound}, got {number!r}"
                )

    def _beyond(self, number: Any) -> str:
        """What the number should be and is not; empty if it is within."""
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
        """Says what was expected where a value is of another type; nothing here, where
        the type hint says it.
        """


def is_finite(number: Any) -> TypeGuard[float]:
    """Whether it is a real number, and neither a bool, nor infinite, nor NaN."""
    return (
        isinstance(number, Real)
        and not isinstance(number, bool)
        and math.isfinite(number)
    )


def alternatives(
    hint: Any, bounds: tuple[Within, ...] = ()
) -> Iterator[tuple[Any, tuple[Within, ...]]]:
    """The alternatives of a type hint, each with its bounds."""
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        yield from alternatives(
            inner, (*bounds, *(one for one in more if isinstance(one, Within)))
        )
    elif get_origin(hint) in (Union, types.UnionType):
        for one in get_args(hint):
            yield from alternatives(one, bounds)
    elif isinstance(hint, TypeVar):
        yield Any, bounds
    else:
        yield hint, () if hint in (None, type(None)) else bounds


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
        return any(value == one and type(value) is type(one) for one in get_args(part))
    if registry_of(part) is not None or is_dataclass(kind):
        is_thing = isinstance(value, kind) if inspect.isclass(kind) else callable(value)
        return (
            isinstance(value, Mapping)
            or is_thing
            or (isinstance(value, str) and registry_of(part) is not None)
        )
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
    return inspect.isclass(kind) and isinstance(value, kind)


def _fitted(part: Any, value: Any, place: str) -> Any:
    """A value of the kind of one alternative of a type hint, with what is inside it."""
    kind: Any = get_origin(part) or part
    inner = get_args(part)
    registry = registry_of(part)
    if registry is not None:
        return _thing(registry, kind, value, place)
    if is_dataclass(kind) and isinstance(kind, type):
        arguments = value if isinstance(value, Mapping) else plain(value, place)
        return Spec(kind, complete(kind, arguments, place), place)
    if kind is float:
        return float(value)
    if kind in _SEQUENCES:
        found = _several(part, value, place, fit)
        return found if kind is list else tuple(found)
    if kind in _MAPPINGS:
        hint = inner[1] if inner else Any
        return {
            str(name): fit(hint, one, f"{place}.{name}") for name, one in value.items()
        }
    return _untyped(value, place) if kind in (Any, object) else value


def _several(
    part: Any, values: Sequence[Any], place: str, each: Callable[[Any, Any, str], Any]
) -> list[Any]:
    """What ``each``, :func:`fit` or :func:`check`, makes of the elements of a list or a
    tuple.
    """
    inner: tuple[Any, ...] = get_args(part) or (Any,)
    if get_origin(part) is tuple and inner[-1] is not Ellipsis:
        if len(inner) != len(values):
            raise ValueError(
                f"{place} must be {len(inner)} values, got {list(values)!r}"
            )
        return [
            each(hint, value, place) for hint, value in zip(inner, values, strict=True)
        ]
    return [each(inner[0], value, place) for value in values]


def _untyped(value: Any, place: str) -> Any:
    """A value for an argument without a type hint: any plain one."""
    if isinstance(value, Typed):
        return _untyped(value.value, place)
    if isinstance(value, Mapping):
        return {
            str(name): _untyped(one, f"{place}.{name}") for name, one in value.items()
        }
    return (
        [_untyped(one, place) for one in value]
        if isinstance(value, list | tuple)
        else value
    )


def _thing(registry: Registry, kind: Any, value: Any, place: str) -> Spec:
    """What a name, or a name with arguments, describes."""
    if not isinstance(value, str | Mapping):
        value = plain(value, place)
    value = {"name": value} if isinstance(value, str) else of_old(value)
    if "name" not in value:
        names = [cls.__name__ for cls in registry.classes()]
        raise ValueError(
            f"{place} must name a class before its arguments: "
            f"{', '.join(sorted(registry) or names)}"
        )
    name = value["name"].text if isinstance(value["name"], Typed) else value["name"]
    cls = registry.find(name, place)
    if issubclass(kind, registry.base) and not issubclass(cls, kind):
        raise ValueError(f"{place} must be a {kind.__name__}, got {name!r}")
    arguments = {key: one for key, one in value.items() if key != "name"}
    return Spec(
        cls, complete(cls, arguments, place, int(registry.factory)), place, registry
    )


def of_old(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """A thing as files of earlier versions describe it, ``class_path`` and
    ``init_args``, in today's form.
    """
    if "class_path" not in value and "init_args" not in value:
        return value
    rest = {
        key: one
        for key, one in value.items()
        if key not in ("class_path", "init_args", "dict_kwargs")
    }
    named = {"name": value["class_path"]} if "class_path" in value else {}
    inner = [value.get(key) or {} for key in ("init_args", "dict_kwargs")]
    if not all(isinstance(one, Mapping) for one in inner):
        raise ValueError(f"init_args must hold arguments by name, got {inner[0]!r}")
    return {**named, **inner[0], **inner[1], **rest}


def complete(
    cls: Callable[..., Any], given: Mapping[str, Any], place: str, skip: int = 0
) -> dict[str, Any]:
    """The arguments of a class, each as its type hint asks for it, with the defaults of
    those that are not given.

    Raises:
        ValueError: if the class takes no argument of a name, one is missing, or does
            not fit.
    """
    known, within = declared(cls, skip), f"{place}." if place else ""
    for name in given:
        if name not in known.arguments and not known.open:
            takes = ", ".join(known.arguments) or "nothing"
            near = meant(str(name), known.arguments)
            raise ValueError(
                f"there is no option {within}{name}{near}\n  {place} takes {takes}"
            )
    found = {}
    for name, argument in known.arguments.items():
        if name in given:
            found[name] = fit(argument.hint, given[name], within + name)
        elif argument.default is MISSING:
            raise ValueError(
                f"{within}{name} is missing: {getattr(cls, '__name__', place)} needs it"
            )
        elif _is_plain(argument.default):
            found[name] = fit_default(argument, within + name)
    return {
        **found,
        **{
            name: _untyped(one, within + name)
            for name, one in given.items()
            if name not in found
        },
    }


def fit_default(argument: Argument, place: str) -> Any:
    """The default of an argument, as it would be read; as it is where it does not fit
    its own type hint.
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
    """What one alternative of a type hint takes, for people; empty if that cannot be
    written.
    """
    kind = get_origin(part) or part
    registry = registry_of(part)
    if registry is not None:
        return f"the name of a {registry.kind}"
    if kind is Literal:
        return "one of " + ", ".join(repr(one) for one in get_args(part))
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
