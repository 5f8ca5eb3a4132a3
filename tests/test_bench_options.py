"""Which options have a user."""

import ast

import pytest

from benchmarks.options import (
    PUBLISHED,
    Names,
    UsesInCode,
    rooms,
    uses_in_options,
    without_users,
)
from torchcaps.routing import DynamicRouting, InnerProductKMeansRouting
from torchcaps.spec import declared
from torchcaps_lab import kinds

NAMES = Names([DynamicRouting, InnerProductKMeansRouting])


@pytest.mark.parametrize(
    "code",
    [
        "DynamicRouting(bias=True)",
        "tc.create_routing('dynamic', bias=True)",
        "partial(DynamicRouting, bias=True)",
        "register(routing={'name': 'dynamic', 'bias': True})",
        "class Mine(DynamicRouting):\n    bias: bool = True",
        "class Mine(DynamicRouting):\n    def f(self):\n"
        "        super().__init__(bias=True)",
    ],
)
def test_code_that_sets_an_option(code: str) -> None:
    uses = UsesInCode(NAMES)
    uses.visit(ast.parse(code))
    assert (DynamicRouting, "bias") in uses.uses
    assert not [cls for cls, _ in uses.uses if cls is InnerProductKMeansRouting]


@pytest.mark.parametrize("code", ["nn.Linear(2, 3, bias=True)", "bias = True"])
def test_code_that_sets_another_option(code: str) -> None:
    uses = UsesInCode(NAMES)
    uses.visit(ast.parse(code))
    assert not uses.uses


def test_an_attribute_may_be_of_any_class() -> None:
    uses = UsesInCode(NAMES)
    uses.visit(ast.parse("network.steps, self.bias = 2, True"))
    assert uses.uses == {(cls, "steps") for cls in NAMES.classes}


@pytest.mark.thorough
def test_every_option_has_a_user() -> None:
    kinds.load()
    assert not without_users()
    declared_names = {
        f"{cls.__name__}.{option}"
        for classes in rooms().values()
        for cls in classes
        for option in declared(cls).arguments
    }
    assert PUBLISHED.keys() <= declared_names


def test_files_that_set_an_option() -> None:
    row = {"rows": [{"routing": {"name": "kmeans", "squash": "half"}}]}
    uses = set(uses_in_options(row, NAMES))
    assert (InnerProductKMeansRouting, "squash") in uses
    assert (DynamicRouting, "squash") not in uses
