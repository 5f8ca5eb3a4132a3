"""What the kinds of input have is known in ``torchcaps_lab.data``."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

from torchcaps_lab import data
from torchcaps_lab.data.base import DATASETS


def typed_names() -> list[tuple[str, str]]:
    """The modules and names that type checkers are told of."""
    names = []
    for node in ast.parse(inspect.getsource(data)).body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                module = statement.module or ""
                names += [(module, alias.name) for alias in statement.names]
    return names


@pytest.mark.parametrize(("module", "name"), typed_names())
def test_what_type_checkers_are_told_is_true(module: str, name: str) -> None:
    assert getattr(data, name) is getattr(import_module(module), name)


def test_every_public_name_is_there_and_shown() -> None:
    for name in data.__all__:
        assert getattr(data, name) is not None
    assert {*data.__all__} <= {*dir(data)}


def test_every_data_set_of_images_is_known() -> None:
    for cls in DATASETS.values():
        if cls.__module__.startswith("torchcaps_lab.kinds.images."):
            assert getattr(data, cls.__name__) is cls


def test_a_module_of_a_kind_is_no_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sets'"):
        assert data.sets


CHEAP = """
import sys
from torchcaps_lab.data import Digits, ImageFolder
kinds = {name.split(".")[2] for name in sys.modules if name.startswith("torchcaps_lab.kinds.")}
assert kinds == {"images"}, kinds
"""


@pytest.mark.thorough
def test_data_sets_of_images_come_without_other_kinds() -> None:
    subprocess.run([sys.executable, "-c", CHEAP], check=True)
