"""What functions and classes declare, read from their source: help and wrong options
need not wait for torch.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchcaps.spec import MISSING
from torchcaps_lab.cli.places import Existing, Trained

_BUILTIN = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, tuple)}
_KNOWN = {"Any": Any, "Literal": Literal, "Existing": Existing, "Trained": Trained}


class Sketch(NamedTuple):
    """An argument, as its source declares it.

    Args:
        name: of the argument.
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
    told = documented(ast.get_docstring(node))
    for argument, annotation, default, by_name in _declared(node):
        names = _Names(_parsed(module))
        hint = names.meaning(annotation)
        yield Sketch(
            argument,
            hint,
            _default(default),
            told.get(argument, ""),
            not names.unknown,
            by_name,
        )


def docstring(module: str, name: str = "") -> str:
    """That of a module of this package, or of a function or class in it."""
    return ast.get_docstring(_node(module, name) if name else _parsed(module)) or ""


def arguments_of(rooms: Sequence[str], base: str) -> set[str]:
    """What the constructors of a class in rooms of this package, and of all that derive
    from it there, take.
    """
    modules = [
        ".".join((room, *path.relative_to(_place(room)).with_suffix("").parts))
        for room in rooms
        for path in _place(room).rglob("*.py")
    ]
    nodes = [node for module in modules for node in _parsed(module).body]
    known = [node for node in nodes if isinstance(node, ast.ClassDef)]
    waiting, names = [node for node in known if node.name == base], set[str]()
    while waiting:
        node = waiting.pop()
        makers = [
            one
            for one in node.body
            if isinstance(one, ast.FunctionDef) and one.name == "__init__"
        ]
        names |= {name for one in (node, *makers) for name, *_ in _declared(one)}
        waiting += [
            one
            for one in known
            if node.name in (getattr(parent, "id", None) for parent in one.bases)
        ]
    return names - {"self"}


def documented(*docs: str | None) -> Mapping[str, str]:
    """What docstrings say of arguments, by name; later ones win."""
    from docstring_parser import parse

    found = (parse(inspect.cleandoc(doc or "")) for doc in docs)
    return {
        each.arg_name: (each.description or "").replace("\n", " ")
        for doc in found
        for each in doc.params
    }


def _node(module: str, name: str) -> Any:
    return next(
        node for node in _parsed(module).body if getattr(node, "name", None) == name
    )


def _declared(node: Any) -> Iterator[tuple[str, ast.expr, ast.expr | None, bool]]:
    if isinstance(node, ast.ClassDef):
        for field in node.body:
            if isinstance(field, ast.AnnAssign):
                others = [
                    key.value
                    for key in getattr(field.value, "keywords", ())
                    if key.arg == "alias"
                ]
                name = (
                    ast.literal_eval(others[0]) if others else ast.unparse(field.target)
                )
                yield name, field.annotation, field.value, True
        return
    arguments = node.args
    defaults = [
        *[None] * (len(arguments.args) - len(arguments.defaults)),
        *arguments.defaults,
    ]
    for one, default in zip(arguments.args, defaults, strict=True):
        yield one.arg, one.annotation, default, False
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield one.arg, one.annotation, default, True


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
    return ast.parse(path.read_text(encoding="utf-8"))


def _place(module: str) -> Path:
    return Path(__file__).parents[1].joinpath(*module.split(".")[1:])
