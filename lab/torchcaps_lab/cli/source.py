"""The arguments of functions and dataclasses that are declared without torch.

A type hint in quotes is a name that waits for torch.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, fields, is_dataclass
from importlib import import_module
from typing import Any, NamedTuple, get_type_hints

from torchcaps.spec import MISSING


class Sketch(NamedTuple):
    """An argument, as it is declared.

    Args:
        name: the name of the argument.
        hint: its type hint; text where it is in quotes.
        default: its default, or the name of the class that makes it; or
            :data:`~torchcaps.spec.MISSING`.
        description: its description in the docstring.
        by_name: whether it can only be given by its name.
    """

    name: str
    hint: Any
    default: Any
    description: str
    by_name: bool

    @property
    def exact(self) -> bool:
        """Whether the hint names nothing that waits for torch."""
        return not isinstance(self.hint, str) and not is_dataclass(self.hint)

    @property
    def metavar(self) -> str:
        """The first name of a hint in quotes."""
        first = re.match(r"\w+", self.hint)
        return first[0] if first else ""


def sketches(owner: Callable[..., Any]) -> Iterator[Sketch]:
    """The arguments of a function, or the fields of a dataclass."""
    documentation = documented(owner.__doc__)
    made = {item.name: item for item in fields(owner)} if is_dataclass(owner) else {}
    for parameter in inspect.signature(owner).parameters.values():
        name = parameter.name
        yield Sketch(
            name,
            parameter.annotation,
            _default_of(made[name]) if name in made else parameter.default,
            documentation.get(name, ""),
            parameter.kind is parameter.KEYWORD_ONLY,
        )


def _default_of(item: "Field[Any]") -> Any:
    """The default of a field, or the name of the class that makes it."""
    factory: Any = item.default_factory
    if factory is not NO_DEFAULT:
        return factory.__name__
    return MISSING if item.default is NO_DEFAULT else item.default


def resolved(owner: Callable[..., Any], name: str, home: str) -> Any:
    """The type hint of an argument, with what waits for torch.

    Args:
        owner: the function or the dataclass.
        name: the name of the argument.
        home: the module that has the names in quotes.
    """
    names = vars(import_module(home))
    return get_type_hints(owner, localns=names, include_extras=True)[name]


def documented(*docs: str | None) -> Mapping[str, str]:
    """What docstrings say of arguments, by name; later ones win."""
    from docstring_parser import parse

    descriptions = {}
    for doc in docs:
        for argument in parse(inspect.cleandoc(doc or "")).params:
            text = (argument.description or "").replace("\n", " ")
            descriptions[argument.arg_name] = without_markup(text)
    return descriptions


def without_markup(text: str) -> str:
    """A description as a terminal shows it: names without roles and backticks."""
    text = re.sub(r":\w+:`~[^`]*?(\w+)`", r"\1", text)
    text = re.sub(r":\w+:`([^`<]*)(<[^`]*>)?`", r"\1", text)
    return re.sub(r"`+([^`]*)`+_?", r"\1", text)
