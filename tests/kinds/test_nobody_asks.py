"""Code that all kinds of input share asks nobody what kind it is."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data import Examples, list_datasets
from torchcaps_lab.data.reader import READERS
from torchcaps_lab.kinds import KINDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "lab" / "torchcaps_lab" / "kinds"
SHARED = (ROOT / "torchcaps", ROOT / "lab" / "torchcaps_lab")
USERS = tuple(ROOT / name for name in ("recipes", "benchmarks", "examples", "docs"))


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed source of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes_in(paths: Iterable[Path]) -> list[ast.stmt]:
    """The statements of modules."""
    return [node for path in paths for node in tree_of(path).body]


def classes_in(paths: Iterable[Path]) -> set[str]:
    """The names of the classes that modules define."""
    return {node.name for node in nodes_in(paths) if isinstance(node, ast.ClassDef)}


def assigned_in(paths: Iterable[Path]) -> set[str]:
    """The names that modules assign, such as those of several classes together."""
    assigned = [node for node in nodes_in(paths) if isinstance(node, ast.Assign)]
    targets = [target for node in assigned for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def shared_modules() -> list[Path]:
    """The modules of both packages that belong to no kind."""
    modules = [path for folder in SHARED for path in sorted(folder.rglob("*.py"))]
    return [path for path in modules if not path.is_relative_to(FOLDER)]


def classes_of_kinds() -> set[str]:
    """The classes that the kinds define, whatever they are called, without those of
    which a namesake is shared, such as the layers ``Affine``.
    """
    shared = classes_in(shared_modules()) | assigned_in(shared_modules())
    return classes_in(FOLDER.rglob("*.py")) - {"SharedRegistry"} - shared


def names_of_kinds() -> set[str]:
    """The words that stand for a kind: its name, what networks take of it, and what its
    examples are called.
    """
    list_datasets()  # which loads the kinds
    words = {*KINDS}
    for reader in READERS.values():
        words |= {reader.name, reader.takes, reader.examples.what}
    return words


def classes_of_inputs() -> set[str]:
    """The classes of examples, and the bases of the networks that take them."""
    list_datasets()
    names = {reader.examples.__name__ for reader in READERS.values()}
    networks = list(ClassifierNetwork.__subclasses__())
    while networks:
        network = networks.pop()
        networks += network.__subclasses__()
        if "takes" in vars(network):
            names.add(network.__name__)
    return names - {Examples.__name__}


def compared(tree: ast.AST, classes: set[str], words: set[str]) -> Iterator[int]:
    """The lines in which something is compared with a kind, or its class is asked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            asked = {
                name.id for name in ast.walk(node) if isinstance(name, ast.Name)
            } | {
                name.attr for name in ast.walk(node) if isinstance(name, ast.Attribute)
            }
            if asked & classes:
                yield node.lineno
        elif isinstance(node, ast.Compare):
            attributes = {
                part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)
            }
            sides = (node.left, *node.comparators)
            values = {side.value for side in sides if isinstance(side, ast.Constant)}
            if values & words and attributes & {"what", "takes", "gives", "reads"}:
                yield node.lineno


def places() -> list[str]:
    classes, words = classes_of_kinds(), names_of_kinds()
    positions = []
    for path in shared_modules():
        lines = compared(tree_of(path), classes, words)
        positions += [f"{path.relative_to(ROOT)}:{line}" for line in lines]
    return positions


def test_shared_code_compares_with_no_kind() -> None:
    assert places() == []


def test_nobody_asks_of_what_class_examples_or_networks_are() -> None:
    """Not even their own kind: ``Examples.require`` asks, in one place."""
    classes = classes_of_inputs()
    assert {"TextSet", "SeriesSet", "ImageClassifier", "TextClassifier"} <= classes
    asking = []
    for folder in (*SHARED, *USERS):
        for path in sorted(folder.rglob("*.py")):
            lines = compared(tree_of(path), classes, set())
            asking += [f"{path.relative_to(ROOT)}:{line}" for line in lines]
    assert asking == []


def test_comparisons_are_found() -> None:
    code = "if isinstance(x, kinds.TextSet) or data.what == 'texts': pass\nx == 'texts'"
    lines = [*compared(ast.parse(code), {"TextSet"}, {"texts"})]
    assert lines == [1, 1]


def test_the_names_are_those_of_today() -> None:
    assert {"TextSet", "ImageReader", "Masks"} <= classes_of_kinds()
    assert {"images", "words", "texts", "series", "pixels"} <= names_of_kinds()
