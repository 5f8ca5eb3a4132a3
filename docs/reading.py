"""How much one must hold in the head to read the code, measured for each folder:
``python -m docs.reading``, as ``make house`` does.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.house import ROOT, code_lines, modules

FOLDERS = (
    "torchcaps",
    "lab/torchcaps_lab",
    "recipes",
    "benchmarks",
    "examples",
    "docs",
    "tests",
)
PACKAGES = ("torchcaps", "lab/torchcaps_lab")
OUTSIDE = ("recipes", "benchmarks", "examples")
"""Folders that are users of the packages, and import their public names only."""

VAGUE = frozenset(
    (
        *("found", "one", "said", "told", "there", "own", "known", "made", "given"),
        *("kept", "rest", "whole", "way", "what", "which", "other", "others", "it"),
        *("them", "those", "these", "here"),
    )
)
"""Names that do not say what a thing is."""

COMPREHENSIONS = (ast.ListComp, ast.GeneratorExp, ast.DictComp, ast.SetComp)


class Reading(NamedTuple):
    """The measures of a folder.

    Args:
        lines: of code.
        nodes: of the syntax tree, statements and expressions, a line.
        nested: comprehensions with several ``for`` or with another inside, in 1,000
            lines.
        ternaries: in 1,000 lines.
        vague: share of the assigned names that are vague, in percent.
    """

    lines: int
    nodes: float
    nested: float
    ternaries: float
    vague: float


def reading_of(folder: str) -> Reading:
    """The measures of all Python files below a folder."""
    counts: Counter[str] = Counter()
    for path in python_files(folder):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        counts["lines"] += len(code_lines(path))
        for node in ast.walk(tree):
            counts["nodes"] += isinstance(node, ast.expr | ast.stmt)
            counts["nested"] += is_nested(node)
            counts["ternaries"] += isinstance(node, ast.IfExp)
            name = assigned_name(node)
            counts["names"] += bool(name)
            counts["vague"] += name in VAGUE
    return Reading(
        lines=counts["lines"],
        nodes=counts["nodes"] / counts["lines"],
        nested=1000 * counts["nested"] / counts["lines"],
        ternaries=1000 * counts["ternaries"] / counts["lines"],
        vague=100 * counts["vague"] / counts["names"],
    )


def python_files(folder: str) -> Iterator[Path]:
    """The Python files below a folder of the root, in order."""
    yield from sorted((ROOT / folder).rglob("*.py"))


def is_nested(node: ast.AST) -> bool:
    """Whether a comprehension has several ``for``, or another comprehension inside."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    inside = sum(isinstance(part, COMPREHENSIONS) for part in ast.walk(node))
    return len(node.generators) > 1 or inside > 1


def assigned_name(node: ast.AST) -> str:
    """The name that a node assigns or takes as an argument; empty if it is no such
    node.
    """
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else ""


def public_names() -> set[str]:
    """The names in ``__all__`` of all modules of the two packages."""
    names: set[str] = set()
    for folder in PACKAGES:
        for path in python_files(folder):
            text = path.read_text(encoding="utf-8")
            declared = re.search(
                r"^__all__ = \[(.*?)\]", text, re.DOTALL | re.MULTILINE
            )
            if declared:
                names.update(re.findall(r'"(\w+)"', declared[1]))
    return names


def names_without_users() -> list[str]:
    """Public names that no page, recipe, benchmark or example uses."""
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob("*.md")]
    for suffix in ("md", "ipynb"):
        for path in (ROOT / "docs").rglob(f"*.{suffix}"):
            texts.append(path.read_text(encoding="utf-8"))
    for folder in OUTSIDE:
        texts += [path.read_text(encoding="utf-8") for path in python_files(folder)]
    words = set(re.findall(r"\w+", "\n".join(texts)))
    return sorted(public_names() - words)


def private_imports() -> list[str]:
    """What recipes, benchmarks and examples import that is not public, with its place:
    other names, and names from inside a room that declares none.
    """
    public = public_names()
    declaring = {
        name
        for name, path in modules().items()
        if "__all__" in path.read_text(encoding="utf-8")
    }
    places = []
    for folder in OUTSIDE:
        for path in python_files(folder):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.ImportFrom):
                    continue
                module = node.module or ""
                if not module.startswith("torchcaps"):
                    continue
                inside = module.count(".") > 1 and module not in declaring
                for alias in node.names:
                    if inside or alias.name not in public:
                        place = f"{path.relative_to(ROOT)}:{node.lineno}"
                        places.append(f"{place} {node.module}.{alias.name}")
    return places


def table() -> str:
    """The measures of all folders, and the names, as text."""
    lines = [f"{'folder':20s} lines  nodes  nested  ternaries  vague names"]
    for folder in FOLDERS:
        measures = reading_of(folder)
        lines.append(
            f"{folder:20s}{measures.lines:6d}{measures.nodes:7.2f}"
            f"{measures.nested:8.1f}{measures.ternaries:11.1f}{measures.vague:11.1f} %"
        )
    lines.append(
        f"public names: {len(public_names())}; imports of private names in recipes, "
        f"benchmarks and examples: {len(private_imports())}; public names without a "
        f"user: {len(names_without_users())}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
