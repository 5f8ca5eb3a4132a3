"""Who imports whom, and what ``import torchcaps`` needs."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docs import house
from docs.house import Import
from torchcaps.models.registry import MODELS
from torchcaps.routing.base import ROUTINGS
from torchcaps_lab import data, kinds
from torchcaps_lab.cli.models import described
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.options.guess import LISTED
from torchcaps_lab.tasks.base import TASKS


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
    return [edge for module in house.modules() for edge in house.imports(module)]


class TestImportOrder:
    def test_every_room_has_a_place(self) -> None:
        rooms = {house.room(module) for module in house.modules()} - {""}
        assert rooms <= {*house.ORDER, *house.BESIDE}

    def test_each_room_imports_from_those_before_it_only(self) -> None:
        wrong = [
            f"{edge.module}, line {edge.line}: {house.room(edge.module)} may not import "
            f"from {house.room(edge.target)}"
            for edge in every_import()
            if house.room(edge.module) and house.room(edge.target)
            if not house.may_import(house.room(edge.module), house.room(edge.target))
        ]
        assert not wrong, "\n".join(wrong)

    @pytest.mark.parametrize(
        ("importer", "imported", "allowed"),
        [
            ("ops", "numerics", True),
            ("numerics", "ops", False),
            ("tasks", "report", True),
            ("evaluate", "report", False),
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
            f"{edge.module}, line {edge.line}: {house.kind(edge.module)} may not import "
            f"from {house.kind(edge.target)}"
            for edge in every_import()
            if house.kind(edge.module) and house.kind(edge.target)
            if not house.may_build_on(house.kind(edge.module), house.kind(edge.target))
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
        assert {*house.BUILT_ON} <= {*kinds.FOLDERS}

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
            edge
            for edge in every_import()
            if not edge.module.startswith(house.LAB)
            and edge.target.startswith(house.LAB)
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
            tuple(edge) for module in house.modules() for edge in house.imports(module)
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


def check_no_circle(imports: list[Import]) -> None:
    """Raise a CycleError, which names the modules, if they import each other."""
    graph: dict[str, set[str]] = {}
    for edge in imports:
        graph.setdefault(edge.module, set()).add(edge.target)
    TopologicalSorter(graph).prepare()


class TestNoCircle:
    def test_when_modules_are_imported(self) -> None:
        check_no_circle([edge for edge in every_import() if not edge.lazy])

    def test_when_functions_are_called(self) -> None:
        """The front door hands on what is behind it, and rooms ask it for the version:
        that is no circle.
        """
        check_no_circle(
            [
                edge
                for edge in every_import()
                if house.PACKAGE not in (edge.module, edge.target)
            ]
        )

    def test_circles_are_found(self) -> None:
        arrows = ["ab", "bc", "cd", "fa"]
        check_no_circle([Import(a, b, 1, False) for a, b in arrows])
        with pytest.raises(CycleError):
            check_no_circle([Import(a, b, 1, False) for a, b in [*arrows, "ca"]])


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


def test_what_the_command_models_lists_is_in_the_registries() -> None:
    """Other tests may have registered things of their own."""
    known = {
        "networks": {name: entry.network for name, entry in MODELS.items()},
        "routings": ROUTINGS,
        "tasks": TASKS,
        "datasets": {name: DATASETS.find(name) for name in described()["datasets"]},
    }
    things_by_kind = _by_name(json.loads(json.dumps(described())))
    ours = {
        kind: {
            name: thing
            for name, thing in things_by_kind[kind].items()
            if classes[name].__module__.startswith("torchcaps")
        }
        for kind, classes in known.items()
    }
    listed = _by_name(json.loads(LISTED.read_text(encoding="utf-8")))
    listed.pop("data_arguments")
    assert ours == listed, "python -m tests.api_surface writes the list"


def _by_name(listing: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {**listing, "networks": {row["name"]: row for row in listing["networks"]}}


def test_arrows_that_follow_from_others_are_left_out() -> None:
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": set(), "d": set()}
    assert house.reduced(graph) == {"a": {"b", "d"}, "b": {"c"}, "c": set(), "d": set()}


def test_each_room_has_its_paragraph_in_order() -> None:
    page = house.PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^\*\*`(\w+)`\*\*", page, re.MULTILINE) == list(house.rooms())
