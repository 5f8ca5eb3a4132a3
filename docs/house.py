"""The house and its rooms: ``python -m docs.house`` draws it anew from the imports,
from the root of the repository.

A room is a module or a package directly below ``torchcaps`` or ``torchcaps_lab``. An
arrow goes from a room to one that it imports from; imports that follow from others (A
from B, B from C: so A may well from C) are left out of the picture. Lines of code are
those that are neither blank nor comment nor docstring.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).parent.parent
PACKAGE = "torchcaps"
LAB = "torchcaps_lab"
PICTURE = Path(__file__).with_suffix(".svg")

ORDER = (
    "names",
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
    "report",
    "tasks",
    "card",
    "classifier",
    "explore",
    "training",
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


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _imports(module: str, node: ast.AST, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(module, ast.Module(child.orelse, []), lazy)
        elif isinstance(child, (ast.Import, ast.ImportFrom)):
            for target in _targets(module, child):
                yield Import(module, target, child.lineno, lazy)
        else:
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


def size(name: str) -> int:
    """Lines of code in a room."""
    files = {path for module, path in modules().items() if room(module) == name}
    files |= set((ROOT / PACKAGE / name).rglob("*.cpp"))
    return sum(len(code_lines(path)) for path in files)


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


WIDTH = 176
HEIGHT = 52
GAP = 40
ROW = 96
MARGIN = 24
BAR = 152
"""Of the picture, in pixels: a box, the space between boxes and between the tops of two
rows, the edge, a full bar.
"""

STYLE = """
text { font-family: Helvetica, Arial, sans-serif; text-anchor: middle; fill: #1f2933; }
.name { font-size: 17px; font-weight: bold; } .lines { font-size: 13px; fill: #52606d; }
.room { fill: #e8f0fa; stroke: #3b6ea5; stroke-width: 1.5; } .beside { fill: #fdf3e1; stroke: #b7791f; }
.bar { fill: #3b6ea5; } .beside + text + text + .bar { fill: #b7791f; }
.import { fill: none; stroke: #7b8794; stroke-width: 1.6; }
"""


class Point(NamedTuple):
    """A place in the picture."""

    x: float
    y: float


def layers(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The row of each room, 0 at the bottom: above all that it imports from, and close
    to what imports it.
    """

    def lowest(name: str) -> int:
        return max((1 + lowest(target) for target in arrows[name]), default=0)

    rows = {name: lowest(name) for name in arrows}
    for name in reversed(ORDER):
        importers = [importer for importer in arrows if name in arrows[importer]]
        if name in rows and importers:
            rows[name] = min(rows[importer] - 1 for importer in importers)
    return rows


def chains(
    arrows: dict[str, set[str]], rows: dict[str, int]
) -> dict[tuple[str, str], list[str]]:
    """Each arrow as the boxes and, in the rows between them, the gaps that it
    passes.
    """
    paths = {}
    for name, targets in arrows.items():
        for target in sorted(targets):
            between = range(rows[name] - 1, rows[target], -1)
            gaps = [f"{name} {target} {row}" for row in between]
            paths[name, target] = [name, *gaps, target]
    return paths


def places(rows: dict[str, int], paths: Sequence[Sequence[str]]) -> dict[str, Point]:
    """The middle of every box, and of every gap that an arrow passes through a row."""
    row_of = dict(rows)
    linked: dict[str, set[str]] = {name: set() for name in rows}
    for path in paths:
        for step, (upper, lower) in enumerate(pairwise(path)):
            row_of[lower] = row_of[path[0]] - step - 1
            linked.setdefault(upper, set()).add(lower)
            linked.setdefault(lower, set()).add(upper)
    x = dict.fromkeys(row_of, 0.0)

    def wish(name: str) -> float:
        return sum(x[end] for end in linked[name]) / max(len(linked[name]), 1)

    for _ in range(40):
        for row in range(max(row_of.values()) + 1):
            items = [name for name in row_of if row_of[name] == row]
            items.sort(key=wish)
            widths = [WIDTH if name in rows else GAP for name in items]
            left = -(sum(widths) + GAP * (len(items) - 1)) / 2
            for name, width in zip(items, widths, strict=True):
                x[name] = left + width / 2
                left += width + GAP
    start = min(x.values()) - WIDTH / 2
    top = max(row_of.values())
    points = {}
    for name, row in row_of.items():
        y = (top - row) * ROW + MARGIN + HEIGHT / 2
        points[name] = Point(x[name] - start + MARGIN, y)
    return points


def curve(points: Sequence[Point]) -> str:
    """The path of an arrow from the bottom of the first box, through gaps, to the top
    of the last.
    """
    half = HEIGHT / 2
    x = points[0].x
    y = points[0].y + half
    drawn = [f"M{x:.0f} {y:.0f}"]
    bend = (ROW - HEIGHT) / 2
    for number, point in enumerate(points[1:], 2):
        is_last = number == len(points)
        upper = point.y - half
        if is_last:
            upper -= 4  # room for the head of the arrow
        drawn.append(
            f"C{x:.0f} {y + bend:.0f} "
            f"{point.x:.0f} {upper - bend:.0f} "
            f"{point.x:.0f} {upper:.0f}"
        )
        if not is_last:
            drawn.append(f"V{point.y + half:.0f}")
        x = point.x
        y = point.y + half
    return " ".join(drawn)


def picture() -> str:
    """The house as SVG."""
    arrows = reduced(rooms())
    sizes = {name: size(name) for name in rooms()}
    rows = layers(arrows)
    paths = chains(arrows, rows)
    points = places(rows, list(paths.values()))
    width = max(point.x for point in points.values()) + WIDTH / 2 + MARGIN
    height = max(point.y for point in points.values()) + HEIGHT / 2 + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} '
        f'{height:.0f}" width="{width:.0f}">',
        f"<title>The rooms of {PACKAGE}, what each imports from, and its lines of "
        "code</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="5" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#7b8794"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for (name, target), path in paths.items():
        line = curve([points[step] for step in path])
        parts.append(
            f'<path class="import" data-from="{name}" data-to="{target}" '
            f'd="{line}" marker-end="url(#head)"/>'
        )
    most = max(sizes.values())
    for name, lines in sizes.items():
        parts.append(_box(name, points[name], lines, most))
    return "\n".join([*parts, "</svg>", ""])


def _box(name: str, middle: Point, lines: int, most: int) -> str:
    x = middle.x - WIDTH / 2
    y = middle.y - HEIGHT / 2
    kind = "room beside" if name in BESIDE else "room"
    bar = max(BAR * lines / most, 1)
    return (
        f'<rect class="{kind}" data-room="{name}" '
        f'x="{x:.0f}" y="{y:.0f}" '
        f'width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text class="name" x="{middle.x:.0f}" '
        f'y="{y + 20:.0f}">{escape(name)}</text>'
        f'<text class="lines" x="{middle.x:.0f}" '
        f'y="{y + 36:.0f}">{lines:,} lines</text>'
        f'<rect class="bar" x="{middle.x - bar / 2:.1f}" '
        f'y="{y + 42:.0f}" width="{bar:.1f}" height="4"/>'
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Draws the picture."""
    parser = argparse.ArgumentParser(prog="python -m docs.house", description=__doc__)
    parser.add_argument(
        "--picture", type=Path, default=PICTURE, help="the SVG file to write"
    )
    options = parser.parse_args(arguments)
    options.picture.write_text(picture(), encoding="utf-8")
    sys.stdout.write(f"{options.picture}\n")


if __name__ == "__main__":
    main()
