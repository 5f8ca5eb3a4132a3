"""The house is in order: who imports whom, lengths of functions, what ``import
torchcaps`` needs, public names.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docs import house, reading
from docs.house import Import
from tests.api_surface import SURFACE, surface
from torchcaps.models.registry import MODELS
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab import data, kinds
from torchcaps_lab.cli.models import KNOWN, described
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.tasks.base import TASKS

LONGEST = 88
"""Lines of code of a function, without its parameters, which stand one a line."""


def run_time_imports(tree: ast.AST) -> Iterator[ast.ImportFrom]:
    """The statements ``from ... import`` that are not for type checkers alone."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.ImportFrom):
            yield child
        elif not (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        ):
            yield from run_time_imports(child)


def every_import() -> list[Import]:
    return [one for module in house.modules() for one in house.imports(module)]


class TestImportOrder:
    def test_every_room_has_a_place(self) -> None:
        rooms = {house.room(module) for module in house.modules()} - {""}
        assert rooms <= {*house.ORDER, *house.BESIDE}

    def test_each_room_imports_from_those_before_it_only(self) -> None:
        wrong = [
            f"{one.module}, line {one.line}: {house.room(one.module)} may not import "
            f"from {house.room(one.target)}"
            for one in every_import()
            if house.room(one.module) and house.room(one.target)
            if not house.may_import(house.room(one.module), house.room(one.target))
        ]
        assert not wrong, "\n".join(wrong)

    @pytest.mark.parametrize(
        ("importer", "imported", "allowed"),
        [
            ("ops", "numerics", True),
            ("numerics", "ops", False),
            ("tasks", "report", True),
            ("report", "tasks", False),
            ("mixture", "layers", True),
            ("mixture", "models", False),
            ("testing", "data", True),
            ("cli", "testing", False),
            ("attic", "ops", False),
            ("cli", "attic", False),
        ],
    )
    def test_rule(self, importer: str, imported: str, allowed: bool) -> None:
        assert house.may_import(importer, imported) is allowed

    def test_kinds_import_from_those_that_they_are_built_on_only(self) -> None:
        wrong = [
            f"{one.module}, line {one.line}: {house.kind(one.module)} may not import "
            f"from {house.kind(one.target)}"
            for one in every_import()
            if house.kind(one.module) and house.kind(one.target)
            if not house.may_build_on(house.kind(one.module), house.kind(one.target))
        ]
        assert not wrong, "\n".join(wrong)

    @pytest.mark.parametrize(
        ("importer", "imported", "allowed"),
        [
            ("pixels", "images", True),
            ("images", "pixels", False),
            ("texts", "images", False),
            ("images", "texts", False),
            ("texts", "texts", True),
        ],
    )
    def test_rule_of_kinds(self, importer: str, imported: str, allowed: bool) -> None:
        assert house.may_build_on(importer, imported) is allowed

    def test_the_kind_that_others_build_on_is_looked_through_first(self) -> None:
        assert kinds.FOUNDATION == house.BUILT_ON[0]
        assert {*house.BUILT_ON} <= {*kinds.KINDS}

    def test_nobody_inside_asks_the_room_of_data_for_what_the_kinds_have(self) -> None:
        """It would import them, and a kind is imported before it is whole."""
        names = vars(data)
        asked = [
            f"{module}, line {node.lineno}: {alias.name}"
            for module in house.modules()
            for node in run_time_imports(house.tree(module))
            if node.module == data.__name__
            for alias in node.names
            if alias.name not in names
        ]
        assert not asked, "\n".join(asked)

    def test_torchcaps_imports_nothing_of_the_lab(self) -> None:
        """Its front door hands on what it is asked for by the names of modules
        alone.
        """
        wrong = [
            one
            for one in every_import()
            if not one.module.startswith(house.LAB) and one.target.startswith(house.LAB)
        ]
        assert not wrong

    def test_imports_are_found_wherever_they_stand(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = {
            "__init__.py": (
                "from torchcaps.ops import moments\n"
                "def __getattr__(name):\n    from torchcaps.routing import "
                "Routing\n    return Routing\n"
            ),
            "cli.py": "from torchcaps import Routing\nimport torchcaps\n",
            "ops/__init__.py": "from .moments import moments\n",
            "ops/moments.py": "def moments():\n    import torch, torchcaps.routing\n",
            "routing.py": (
                "from typing import TYPE_CHECKING\n"
                "from torchcaps import moments\n"
                "from torchcaps.ops import moments as module\n"
                "if TYPE_CHECKING:\n    from torchcaps import cli\n"
                "class Routing:\n    route = lambda: __import__('math')\n    from "
                ".ops import moments\n"
            ),
        }
        for name, text in files.items():
            (tmp_path / "torchcaps" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "torchcaps" / name).write_text(text)
        monkeypatch.setattr(house, "ROOT", tmp_path)
        for name in (
            "modules",
            "tree",
            "imports",
        ):  # what they keep of the package stays
            monkeypatch.setattr(house, name, cache(getattr(house, name).__wrapped__))
        results = [
            tuple(one) for module in house.modules() for one in house.imports(module)
        ]
        assert results == [
            ("torchcaps", "torchcaps.ops.moments", 1, False),
            ("torchcaps", "torchcaps.routing", 3, True),
            ("torchcaps.cli", "torchcaps.routing", 1, False),
            ("torchcaps.cli", "torchcaps", 2, False),
            ("torchcaps.ops", "torchcaps.ops.moments", 1, False),
            ("torchcaps.ops.moments", "torchcaps.routing", 2, True),
            ("torchcaps.routing", "torchcaps.ops", 2, False),
            ("torchcaps.routing", "torchcaps.ops.moments", 3, False),
            ("torchcaps.routing", "torchcaps.ops.moments", 8, False),
        ]


def circles(imports: list[Import]) -> set[tuple[str, ...]]:
    """The strongly connected components of more than one module (Tarjan)."""
    targets: dict[str, list[str]] = {}
    for one in imports:
        targets.setdefault(one.module, []).append(one.target)
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    results: set[tuple[str, ...]] = set()

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for target in targets.get(module, []):
            if target not in number:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], number[target])
        if low[module] == number[module]:
            place = stack.index(module)
            if len(stack) > place + 1:
                results.add(tuple(sorted(stack[place:])))
            del stack[place:]

    for module in targets:
        if module not in number:
            visit(module)
    return results


class TestNoCircle:
    def test_when_modules_are_imported(self) -> None:
        assert circles([one for one in every_import() if not one.lazy]) == set()

    def test_when_functions_are_called(self) -> None:
        """The front door hands on what is behind it, and rooms ask it for the version:
        that is no circle.
        """
        inside = [
            one
            for one in every_import()
            if house.PACKAGE not in (one.module, one.target)
        ]
        assert circles(inside) == set()

    def test_circles_are_found(self) -> None:
        arrows = ["ab", "bc", "ca", "cd", "de", "ed", "fa"]
        assert circles([Import(a, b, 1, False) for a, b in arrows]) == {
            ("a", "b", "c"),
            ("d", "e"),
        }


def functions(
    module: str,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions of a module with their full names."""

    def inside(
        node: ast.AST, name: str
    ) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield f"{name}.{child.name}", child
            named = isinstance(
                child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
            )
            yield from inside(child, f"{name}.{child.name}" if named else name)

    yield from inside(house.tree(module), module)


def test_no_function_is_longer_than_a_page() -> None:
    """Docstrings, blank lines and comments not counted."""
    long = {}
    for module, path in house.modules().items():
        code = house.code_lines(path)
        for name, node in functions(module):
            first = node.body[0].lineno
            lines = len(code & set(range(first, (node.end_lineno or first) + 1)))
            if lines > LONGEST:
                long[name] = lines
    assert not long, f"longer than {LONGEST} lines of code: {long}"


def test_lines_of_code_are_neither_blank_nor_comment_nor_docstring(
    tmp_path: Path,
) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""One\n\ntwo."""\n\n# Three\nA = 1  # four\n"""What A is."""\n\n'
        'def f():\n    """Five."""\n    x = """\n\n    """\n'
    )
    assert house.code_lines(path) == {6, 9, 11, 13}


# Ratchets: as it was when they were set, rounded up. Lower them where the code gets
# better. The aims are reached: 4.8 nodes a line in torchcaps, 4.9 in the lab and 5.2
# elsewhere; in both packages 1 nested comprehension and 20 ternaries in 1,000 lines;
# vague names 1 % in both packages and 2 % elsewhere; 170 public names, and no import of
# another one.
MOST = {
    "torchcaps": reading.Reading(0, 4.8, 0.7, 20, 0.8),
    "lab/torchcaps_lab": reading.Reading(0, 4.9, 0.3, 20, 0.8),
    "recipes": reading.Reading(0, 5.15, 0.3, 10, 0.5),
    "benchmarks": reading.Reading(0, 4.7, 0.5, 18, 1.2),
    "examples": reading.Reading(0, 5.13, 0.5, 10, 0.5),
    "docs": reading.Reading(0, 5.15, 0.5, 11, 0.5),
    "tests": reading.Reading(0, 5.2, 2.3, 7, 2.0),
}
PUBLIC, PRIVATE_IMPORTS, WITHOUT_USERS = 170, 0, 0


class TestReadsAtFirstSight:
    @pytest.mark.parametrize("folder", reading.FOLDERS)
    def test_as_easily_as_before(self, folder: str) -> None:
        measured = reading.reading_of(folder)
        most = MOST[folder]
        worse = {
            name: value
            for name, value, limit in zip(most._fields, measured, most, strict=True)
            if value > limit and name != "lines"
        }
        assert not worse, f"{folder} got harder to read, at most {most}: {worse}"

    def test_what_is_counted(self) -> None:
        nested = ast.parse(
            "[[y for y in x] for x in z]\n[a for b in c for a in b]\n[d]"
        )
        counted = [node for node in ast.walk(nested) if reading.is_nested(node)]
        assert [node.lineno for node in counted] == [1, 2]
        names = ast.parse("found = 1\ndef f(one): return found")
        assigned = {reading.assigned_name(node) for node in ast.walk(names)}
        assert assigned == {"found", "one", ""}

    def test_no_more_public_names(self) -> None:
        assert len(reading.public_names()) <= PUBLIC

    def test_public_names_have_users(self) -> None:
        unused = reading.names_without_users()
        assert len(unused) <= WITHOUT_USERS, f"public, and nobody uses them: {unused}"

    def test_who_stands_outside_imports_public_names(self) -> None:
        private = reading.private_imports()
        assert len(private) <= PRIVATE_IMPORTS, "\n".join(private)


IMPORT = """
import json, sys, torchcaps
assert "torch" not in sys.modules, "nobody waits for it before it is needed"
for name in [name for name in sys.modules if name.split(".")[0] == "torchcaps"]:
    del sys.modules[name]

import torch
before = set(sys.modules)
import torchcaps
at_once = set(sys.modules) - before
assert "torchcaps.ops.fused.operators" in sys.modules, "saved programs name operators"
[getattr(torchcaps, name) for name in set(torchcaps.__all__) - set(torchcaps._OF_THE_LAB)]
print(json.dumps([sorted(at_once), sorted(set(sys.modules) - before)]))

sys.modules.update(PIL=None, pooch=None, sklearn=None)
import torchcaps_lab.data
for name in ("PIL", "pooch", "sklearn"):
    del sys.modules[name]

assert torchcaps.Classifier.__name__ == "Classifier"
assert not {"PIL", "lightning"} & set(sys.modules), "what a classifier may never need"
try:
    torchcaps.Classifer
except AttributeError as error:
    assert "Classifer" in str(error)
else:
    raise SystemExit("no error")

import contextlib
from torchcaps_lab.cli import main
with contextlib.suppress(SystemExit):
    main(["train", "--help"])
digits = "digits/capsnet_digits"
for words in (["predict", digits, sys.argv[1]], ["evaluate", digits, "--data", "Digits"], ["models", "capsnet"]):
    assert main(words) == 0
heavy = {"lightning", "torchmetrics", "matplotlib", "tensorboard"} & set(sys.modules)
assert not heavy, f"{heavy} are for training and drawing only, and not for their options"
assert torch.__version__ < (2, 12) or "torch._dynamo" not in sys.modules, "who compiles nothing needs no compiler"

import torchcaps_lab.report as report
assert "matplotlib" not in sys.modules
one = report.pictures.Confusion(title="", text="", counts=torch.eye(2), classes=("a", "b"))
next(one.draw()).figure.savefig(sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules, "drawing opens no window"
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """The modules that ``import torchcaps`` loads where torch is there already, and
    with those all its names do.
    """
    picture = tmp_path_factory.mktemp("imports") / "digit.png"
    Image.new("L", (8, 8)).save(picture)
    command = [sys.executable, "-c", IMPORT, picture]
    environment = {
        **os.environ,
        "TORCHCAPS_BACKEND": "native",
    }  # whose operators once brought the compiler
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])


class TestImportOfThePackage:
    def test_is_quick(self, loaded: tuple[list[str], list[str]]) -> None:
        """What programs that were saved name is there; routings, layers and networks
        come when asked for.
        """
        rooms = {
            house.room(name) for name in loaded[0] if name.split(".")[0] == "torchcaps"
        } - {""}
        assert (
            {"capsules", "ops"}
            <= rooms
            <= set(house.ORDER[: house.ORDER.index("ops") + 1])
        )
        assert "torchcaps.ops.fused.operators" in loaded[0]

    def test_needs_torch_alone(self, loaded: tuple[list[str], list[str]]) -> None:
        """Nothing comes with it but itself, parts of torch, and what those stand on."""
        others = {name.split(".")[0] for name in loaded[1]} - set(
            sys.stdlib_module_names
        )
        assert others == {"torchcaps"}

    def test_brings_no_room_that_it_does_not_show(
        self, loaded: tuple[list[str], list[str]]
    ) -> None:
        rooms = {
            house.room(name) for name in loaded[1] if name.split(".")[0] == "torchcaps"
        } - {""}
        assert rooms <= set(house.ORDER[: house.ORDER.index("models") + 1])


def test_public_names_are_those_of_the_list() -> None:
    was = set(json.loads(SURFACE.read_text(encoding="utf-8")))
    now = set(surface())
    changes = [f"- {name}" for name in sorted(was - now)] + [
        f"+ {name}" for name in sorted(now - was)
    ]
    assert not changes, "\n".join(
        ["public names changed; python -m tests.api_surface notes them:", *changes]
    )


def test_what_the_command_models_lists_is_in_the_registries() -> None:
    """Other tests may have registered things of their own."""
    known = {
        "networks": {name: one.network for name, one in MODELS.items()},
        "routings": ROUTINGS,
        "tasks": TASKS,
        "datasets": {name: DATASETS.find(name) for name in described()["datasets"]},
    }
    ours = {
        kind: {
            name: thing
            for name, thing in things.items()
            if known[kind][name].__module__.startswith("torchcaps")
        }
        for kind, things in _by_name(json.loads(json.dumps(described()))).items()
    }
    listed = _by_name(json.loads(KNOWN.read_text(encoding="utf-8")))
    assert ours == listed, "python -m tests.api_surface writes the list anew"


def _by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {**found, "networks": {row["name"]: row for row in found["networks"]}}


class TestPicture:
    def test_shows_the_rooms_and_imports_of_today(self) -> None:
        svg = house.PICTURE.read_text(encoding="utf-8")
        assert set(re.findall(r'data-room="(\w+)"', svg)) == set(house.rooms()), (
            "python -m docs.house draws it anew"
        )
        arrows = {
            (name, target)
            for name, targets in house.reduced(house.rooms()).items()
            for target in targets
        }
        shown = set(re.findall(r'data-from="(\w+)" data-to="(\w+)"', svg))
        assert shown == arrows, "python -m docs.house draws it anew"

    def test_is_well_formed_and_boxes_do_not_overlap(self, tmp_path: Path) -> None:
        from xml.etree import ElementTree

        house.main(["--picture", str(tmp_path / "house.svg")])
        root = ElementTree.parse(tmp_path / "house.svg").getroot()
        width, height = map(float, root.get("viewBox", "").split()[2:])
        boxes = [
            rect
            for rect in root.iter("{http://www.w3.org/2000/svg}rect")
            if rect.get("data-room")
        ]
        corners = [(float(box.get("x", "")), float(box.get("y", ""))) for box in boxes]
        assert len(corners) == len(house.rooms())
        for number, (x, y) in enumerate(corners):
            assert 0 <= x <= width - house.WIDTH
            assert 0 <= y <= height - house.HEIGHT
            for other_x, other_y in corners[:number]:
                assert (
                    abs(x - other_x) >= house.WIDTH or abs(y - other_y) >= house.HEIGHT
                )

    def test_arrows_that_follow_from_others_are_left_out(self) -> None:
        graph = {
            "a": {"b", "c", "d"},
            "b": {"c"},
            "c": set(),
            "d": set(),
        }
        assert house.reduced(graph) == {
            "a": {"b", "d"},
            "b": {"c"},
            "c": set(),
            "d": set(),
        }

    def test_arrows_point_down(self) -> None:
        arrows = house.reduced(house.rooms())
        rows = house.layers(arrows)
        assert all(
            rows[name] > rows[target]
            for name, targets in arrows.items()
            for target in targets
        )


def test_each_room_has_its_paragraph_in_order() -> None:
    page = house.PICTURE.with_suffix(".md").read_text(encoding="utf-8")
    assert re.findall(r"^\*\*`(\w+)`\*\*", page, re.MULTILINE) == list(house.rooms())
    assert "](house.svg)" in page
