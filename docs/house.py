"""The rooms, who imports whom, and how large they are.

``python -m docs.house``, as ``make house`` does, prints lines of code, functions and
nodes of the syntax tree of every room, and writes the table of rooms into ``house.md``,
from the root of the repository.

A room is a module or a package directly below ``torchcaps`` or ``torchcaps_lab``. Lines
of code are those that are neither blank nor comment nor docstring.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeGuard

from docs.figures import filled

ROOT = Path(__file__).parent.parent
PACKAGE = "torchcaps"
LAB = "torchcaps_lab"
PAGE = Path(__file__).with_suffix(".md")
BEGIN = "<!-- from the imports -->"

ORDER = (
    "optional_imports",
    "whole",
    "spec",
    "capsules",
    "numerics",
    "squashing",
    "ops",
    "routing",
    "layers",
    "losses",
    "models",
    "table",
    "look",
    "data",
    "evaluate",
    "report",
    "tasks",
    "card",
    "classifier",
    "explore",
    "options",
    "run_folder",
    "training",
    "conversion",
    "cli",
)
"""Each room imports from those before it only."""

BESIDE = {
    "mixture": "layers",
    "sklearn": "losses",
    "testing": "data",
    "kinds": "training",
}
"""Rooms that no other imports from, and the last room of the order that they may stand
on.
"""

TABLE = f"{LAB}.kinds"
"""The table of the kinds of input."""

BUILT_ON = ("images", "scenes", "pixels", "objects")
"""Kinds of input that are built on others: each imports from those before it only. All
other kinds import none.
"""

FRONT_DOORS = (PACKAGE, LAB, f"{LAB}.__main__")
"""Modules that are no room: they hand on what is in one."""


class Import(NamedTuple):
    """One module that another imports.

    Args:
        module: the module that imports, with all dots.
        target: the module that is imported, with all dots.
        line: the line of the import.
        lazy: whether the import is inside a function, and happens when that is called.
    """

    module: str
    target: str
    line: int
    lazy: bool


@cache
def modules() -> dict[str, Path]:
    """The files of both packages by the names of their modules."""
    files = [(path, ROOT) for path in (ROOT / PACKAGE).rglob("*.py")]
    files += [(path, ROOT / "lab") for path in (ROOT / "lab" / LAB).rglob("*.py")]
    by_name = {}
    for path, root in sorted(files):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        by_name[".".join(parts)] = path
    return by_name


@cache
def tree(module: str) -> ast.Module:
    """The parsed source of a module."""
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """What a module imports of the package, but not what it imports for type
    checkers.
    """
    return tuple(_imports(module, tree(module), lazy=False))


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""The nodes that an import can be in."""


def _imports(module: str, node: ast.AST, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(module, ast.Module(child.orelse, []), lazy)
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            for target in _targets(module, child):
                yield Import(module, target, child.lineno, lazy)
        elif isinstance(child, STATEMENTS):
            in_function = isinstance(child, FUNCTIONS)
            yield from _imports(module, child, lazy or in_function)


def _targets(module: str, statement: ast.Import | ast.ImportFrom) -> Iterator[str]:
    names = [alias.name for alias in statement.names]
    if isinstance(statement, ast.Import):
        yield from (name for name in names if name in modules())
        return
    source = statement.module or ""
    if statement.level:
        package = module.split(".")
        if modules()[module].name != "__init__.py":
            package.pop()
        above = package[: len(package) - statement.level + 1]
        source = ".".join(filter(None, [*above, source]))
    if source in modules():
        yield from dict.fromkeys(_owner(source, name) for name in names)


def _owner(source: str, name: str) -> str:
    """The module that an imported name stands for; a name of the package itself is that
    of the room that it is from.
    """
    if f"{source}.{name}" in modules():
        return f"{source}.{name}"
    if source == PACKAGE:
        # in functions too: some names are loaded when asked for
        for statement in ast.walk(tree(PACKAGE)):
            if not isinstance(statement, ast.ImportFrom):
                continue
            names = {alias.asname or alias.name for alias in statement.names}
            if name in names:
                return statement.module or PACKAGE
    return source


def room(module: str) -> str:
    """The room that a module is in; empty for a front door.

    The folder of the kinds of input is two: the table that names them, which all may
    read, and the kinds, which nobody imports.
    """
    if module == TABLE:
        return "table"
    return "" if module in FRONT_DOORS else module.split(".")[1]


def kind(module: str) -> str:
    """The kind of input that a module belongs to; empty for a module of all kinds."""
    below = module.removeprefix(f"{TABLE}.")
    return "" if below == module else below.split(".")[0]


def may_build_on(importer: str, imported: str) -> bool:
    """Whether one kind of input may import from another."""
    if importer == imported:
        return True
    if importer not in BUILT_ON or imported not in BUILT_ON:
        return False
    return BUILT_ON.index(imported) < BUILT_ON.index(importer)


def rooms() -> dict[str, set[str]]:
    """The rooms, in order, and those that each imports from."""
    targets: dict[str, set[str]] = {}
    for module in modules():
        if room(module):
            of_room = targets.setdefault(room(module), set())
            of_room |= {room(statement.target) for statement in imports(module)}
    order = dict.fromkeys((*ORDER, *BESIDE, *targets))
    return {name: targets[name] - {"", name} for name in order if name in targets}


def may_import(importer: str, imported: str) -> bool:
    """Whether the order of the house allows one room to import from another."""
    if importer == imported:
        return True
    if imported not in ORDER:
        return False
    if importer in BESIDE:
        return ORDER.index(imported) <= ORDER.index(BESIDE[importer])
    return importer in ORDER and ORDER.index(imported) < ORDER.index(importer)


def code_lines(path: Path) -> set[int]:
    """The numbers of the lines of a file that are neither blank nor comment nor
    docstring.
    """
    source = path.read_text(encoding="utf-8")
    code = set()
    for number, line in enumerate(source.splitlines(), 1):
        text = line.strip()
        if text and not text.startswith(("#", "//")):
            code.add(number)
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if _is_docstring(node):
                last = node.end_lineno or node.lineno
                code -= set(range(node.lineno, last + 1))
    return code


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether a statement is a text and nothing else."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


class Size(NamedTuple):
    """How large a room is: lines of code, functions, and nodes of the syntax tree."""

    lines: int
    functions: int
    nodes: int


def size(name: str) -> Size:
    """The size of a room. Its C++ has lines alone."""
    of_room = {
        module: path for module, path in modules().items() if room(module) == name
    }
    nodes = [node for module in of_room for node in ast.walk(tree(module))]
    files = {*of_room.values(), *(ROOT / PACKAGE / name).rglob("*.[ch]pp")}
    return Size(
        sum(len(code_lines(path)) for path in files),
        sum(isinstance(node, FUNCTIONS) for node in nodes),
        len(nodes),
    )


def reduced(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The graph without the arrows that follow from others."""
    behind: dict[str, set[str]] = {}

    def reach(name: str) -> set[str]:
        if name not in behind:
            behind[name] = set()  # ends a circle
            reached = set(graph[name])
            for target in graph[name]:
                reached |= reach(target)
            behind[name] = reached
        return behind[name]

    shortest = {}
    for name, targets in graph.items():
        indirect = set()
        for target in targets:
            indirect |= reach(target) - {target}
        shortest[name] = targets - indirect
    return shortest


def table() -> str:
    """The rooms as Markdown, each with those that it imports from."""
    rows = ["| room | imports from |", "|---|---|"]
    for name, targets in reduced(rooms()).items():
        names = ", ".join(target for target in rooms() if target in targets)
        rows.append(f"| {name} | {names} |")
    return "\n".join(rows)


def main() -> None:
    """Print the sizes, and write the table into the page."""
    page = filled(PAGE.read_text(encoding="utf-8"), BEGIN, table())
    PAGE.write_text(page, encoding="utf-8")
    sizes = {name: size(name) for name in rooms()}
    sizes["together"] = Size(*map(sum, zip(*sizes.values(), strict=True)))
    for name, (lines, functions, nodes) in sizes.items():
        sys.stdout.write(f"{name:12}{lines:8,}{functions:8,}{nodes:10,}\n")


if __name__ == "__main__":
    main()
