"""What functions and classes declare, read from their source: help and wrong options
need not wait for torch.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchcaps.spec import MISSING
from torchcaps.whole import LARGEST_NOTE, read_bytes
from torchcaps_lab.cli.places import Existing, Trained

_BUILTIN = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, tuple)}
_KNOWN = {"Any": Any, "Literal": Literal, "Existing": Existing, "Trained": Trained}


class Sketch(NamedTuple):
    """An argument, as its source declares it.

    Args:
        name: the name of the argument.
        hint: its type hint, with an empty class in place of each that would have to be
            imported.
        default: its default, or the name of what makes it; or
            :data:`~torchcaps.spec.MISSING`.
        told: what the docstring says of it.
        exact: whether nothing in the hint would have to be imported.
        by_name: whether it can only be given by its name.
    """

    name: str
    hint: Any
    default: Any
    told: str
    exact: bool
    by_name: bool


def sketches(module: str, name: str) -> Iterator[Sketch]:
    """The arguments of a function, or the fields of a dataclass, at the top of a module
    of this package.
    """
    node = _node(module, name)
    documentation = documented(ast.get_docstring(node))
    for argument, annotation, default, by_name in _declared(node):
        names = _Names(_parsed(module))
        hint = names.meaning(annotation)
        yield Sketch(
            argument,
            hint,
            _default(default),
            documentation.get(argument, ""),
            not names.unknown,
            by_name,
        )


def docstring(module: str, name: str = "") -> str:
    """Return the docstring of a module of this package, or of a function or class in
    it.
    """
    return ast.get_docstring(_node(module, name) if name else _parsed(module)) or ""


def arguments_of(rooms: Sequence[str], base: str) -> set[str]:
    """What the constructors of a class in rooms of this package, and of all that derive
    from it there, take.
    """
    classes = list(chain.from_iterable(map(_classes_in, rooms)))
    waiting = [definition for definition in classes if definition.name == base]
    names = set[str]()
    while waiting:
        base_class = waiting.pop()
        names |= {name for name, *_ in _declared(base_class)}
        for member in base_class.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                names |= {name for name, *_ in _declared(member)}
        for definition in classes:
            bases = [getattr(parent, "id", None) for parent in definition.bases]
            if base_class.name in bases:
                waiting.append(definition)
    return names - {"self"}


def _classes_in(room: str) -> Iterator[ast.ClassDef]:
    """The classes of all modules of a room of this package."""
    place = _place(room)
    for path in place.rglob("*.py"):
        module = ".".join((room, *path.relative_to(place).with_suffix("").parts))
        for node in _parsed(module).body:
            if isinstance(node, ast.ClassDef):
                yield node


def documented(*docs: str | None) -> Mapping[str, str]:
    """What docstrings say of arguments, by name; later ones win."""
    from docstring_parser import parse

    descriptions = {}
    for doc in docs:
        for argument in parse(inspect.cleandoc(doc or "")).params:
            text = argument.description or ""
            descriptions[argument.arg_name] = text.replace("\n", " ")
    return descriptions


def _node(module: str, name: str) -> Any:
    return next(
        node for node in _parsed(module).body if getattr(node, "name", None) == name
    )


def _declared(node: Any) -> Iterator[tuple[str, ast.expr, ast.expr | None, bool]]:
    if isinstance(node, ast.ClassDef):
        for field in node.body:
            if isinstance(field, ast.AnnAssign):
                names = [
                    key.value
                    for key in getattr(field.value, "keywords", ())
                    if key.arg == "alias"
                ]
                if names:
                    name = ast.literal_eval(names[0])
                else:
                    name = ast.unparse(field.target)
                yield name, field.annotation, field.value, True
        return
    arguments = node.args
    defaults = [
        *[None] * (len(arguments.args) - len(arguments.defaults)),
        *arguments.defaults,
    ]
    for parameter, default in zip(arguments.args, defaults, strict=True):
        yield parameter.arg, parameter.annotation, default, False
    for parameter, default in zip(
        arguments.kwonlyargs, arguments.kw_defaults, strict=True
    ):
        yield parameter.arg, parameter.annotation, default, True


def _default(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Call):  # field(default_factory=Preprocess)
        return ast.unparse(node.keywords[0].value)
    return MISSING if node is None else ast.literal_eval(node)


class _Names(dict[str, Any]):
    """Looks up the names in a type hint; those that would have to be imported are
    ``unknown``.
    """

    def __init__(self, tree: ast.Module) -> None:
        super().__init__(_BUILTIN | _KNOWN)
        self.tree = tree
        self.unknown: list[str] = []

    def meaning(self, hint: ast.expr) -> Any:
        """The hint, as Python would evaluate it."""
        return eval(
            compile(ast.Expression(hint), "hint", "eval"), {"__builtins__": {}}, self
        )

    def __missing__(self, name: str) -> Any:
        choices = next(
            (
                node.value
                for node in _assigned(self.tree, name)
                if _is_choice(node.value)
            ),
            None,
        )
        if choices is not None:
            return self.meaning(choices)
        self.unknown.append(name)
        return type(name, (), {"__class_getitem__": classmethod(lambda cls, item: cls)})


def _assigned(tree: ast.Module, name: str) -> Iterator[ast.Assign]:
    """Where a module gives something the name, or else the module that it imports the
    name from.
    """
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            yield node
        elif isinstance(node, ast.ImportFrom) and name in {
            alias.name for alias in node.names
        }:
            home = str(node.module)
            yield from (
                _assigned(_parsed(home), name)
                if home.startswith("torchcaps_lab.")
                else ()
            )


def _is_choice(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Literal"


@cache
def _parsed(module: str) -> ast.Module:
    place = _place(module)
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(read_bytes(path, LARGEST_NOTE))


def _place(module: str) -> Path:
    return Path(__file__).parents[1].joinpath(*module.split(".")[1:])
