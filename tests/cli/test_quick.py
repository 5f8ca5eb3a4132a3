"""Help, and errors of wrong options and missing folders, do not import torch."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import pytest

from torchcaps import list_models
from torchcaps.models.registry import MODELS
from torchcaps.routing.base import ROUTINGS
from torchcaps.spec import MISSING, declared
from torchcaps_lab import cli, data
from torchcaps_lab.cli.source import resolved, sketches
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.options.declarations import GROUPS
from torchcaps_lab.options.guess import listed
from torchcaps_lab.training.command_line import GROUPS as MADE

WITHOUT_TORCH = """
import contextlib, io, json, sys
from torchcaps_lab.cli import main
found = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code
    found.append((status, said.getvalue(), "torch" in sys.modules))
print(json.dumps(found))
"""

OWNERS = [
    (import_module(f"torchcaps_lab.cli.{name}").command, "torchcaps_lab.data")
    for name in cli.NAMES
]
OWNERS += [(group, "torchcaps_lab.training.options") for group in GROUPS]


SAID = [
    *[((name, "--help"), 0, "show this help") for name in cli.COMMANDS],
    (("train", "nowhere"), 1, "there is no folder nowhere"),
    (("train",), 2, "the data are missing: 'torchcaps train FOLDER'"),
    (
        ("train", "Digits", "--model", "capsnet_smal"),
        2,
        "got 'capsnet_smal'; did you mean capsnet_small?",
    ),
    (
        ("train", "Digits", "--routing", "dynamik", "--routing.steps", "2"),
        2,
        "did you mean dynamic?",
    ),
    (("train", "Digit"), 1, "did you mean Digits?"),
    (
        ("train", "photos", "--data.szie", "32"),
        2,
        "there is no option data.szie; did you mean size?",
    ),
    (("train", "--resume", "nowhere"), 1, "nowhere is not the folder of a run"),
    (("train", "--config", "nowhere.yaml"), 1, "there is no file nowhere.yaml"),
    (("train", "--epochs", "many"), 2, "--epochs must be a whole number, got 'many'"),
    (("train", "--epoch", "3"), 2, "did you mean --epochs?"),
    (("check", "nowhere"), 2, "folder nowhere does not exist"),
    (("predict", "nowhere", "x.png"), 2, "run nowhere does not exist"),
    (("predict", ".", "x.png", "--top", "many"), 2, "--top must be"),
    (("evaluate", "nowhere"), 2, "run nowhere does not exist"),
    (("models", "--jso"), 2, "did you mean --json?"),
    (
        ("models", "capsnet_small*"),
        0,
        "capsnet_small_cnn  1,133,314 parameters at 1x28x28",
    ),
    (("models", "nope"), 1, "no network matches 'nope'; there are attentioncapsnet, "),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, bool]]:
    """Of one process to all of these, one after the other: the status, what is printed,
    whether torch is there.
    """
    words = json.dumps([words for words, _, _ in SAID])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, words],
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("empty"),
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "place", range(len(SAID)), ids=[str(words) for words, _, _ in SAID]
)
def test_nobody_waits_for_torch_to_read_help_or_an_error(
    place: int, answers: list[tuple[int, str, bool]]
):
    _, status, message = SAID[place]
    actual, printed, torch_is_there = answers[place]
    assert not torch_is_there
    assert actual == status, printed
    assert message in printed


@pytest.mark.parametrize(
    ("owner", "home"), OWNERS, ids=lambda value: getattr(value, "__qualname__", value)
)
def test_each_argument_is_described_and_its_hint_is_there_with_torch(
    owner: Callable[..., Any], home: str
):
    for sketch in sketches(owner):
        assert sketch.description
        assert sketch.default is MISSING or not sketch.by_name or sketch.description
        hint = resolved(owner, sketch.name, home)
        assert not sketch.exact or hint == sketch.hint


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.__name__)
def test_the_objects_take_what_is_declared(made: type):
    """Each option is declared once, in words that torch gives their meaning."""
    names = {made.__name__, f"{made.__name__}Options"}
    group = next(group for group in GROUPS if group.__name__ in names)
    taken = declared(made).arguments
    assert [*taken] == [sketch.name for sketch in sketches(group)]
    assert all(argument.hint is not Any for argument in taken.values())


def ours(classes: Mapping[str, type]) -> list[str]:
    """The names of classes of the packages: other tests register some of their own."""
    return [
        name
        for name in classes
        if classes[name].__module__.startswith(("torchcaps.", "torchcaps_lab."))
    ]


def is_ours(network: str) -> bool:
    """Whether a network is one of the packages; those of the lab may not be loaded."""
    return network not in MODELS or bool(ours({"": MODELS[network].network}))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("networks", [name for name in list_models() if is_ours(name)]),
        ("routings", ours(ROUTINGS)),
        ("datasets", ours(DATASETS)),
    ],
    ids=["networks", "routings", "datasets"],
)
def test_names_are_in_the_generated_list(kind: str, names: list[str]):
    others = {*listed(kind)} - {*names}  # data sets that go by their class alone
    assert {*names} <= {*listed(kind)}
    assert {listed(kind)[name] for name in others} == others


def test_arguments_of_data_are_in_the_generated_list():
    kinds = [
        cls
        for cls in vars(data).values()
        if isinstance(cls, type) and issubclass(cls, data.DataSet)
    ]
    taken = {name for cls in kinds for name in declared(cls).arguments}
    assert taken <= {*listed("data_arguments")}
