"""Names with arguments: what type hints take, what is said of the rest, and that
nothing is lost on the way.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch

import torchcaps as tc
from torchcaps.numerics import Several, TwoSizes
from torchcaps.routing.base import ROUTINGS
from torchcaps.spec import (
    Registry,
    Typed,
    Within,
    complete,
    declared,
    fit,
    make,
    plain,
    settings,
)
from torchcaps_lab.options.reading import merged, put, typed
from torchcaps_lab.training.options import OptimizerFactory


class Shape:
    def __init__(self, sides: int, size: float = 1.0) -> None:
        self.sides, self.size = sides, size


SHAPES = Registry("shape", Shape)


@SHAPES.register("polygon")
class Polygon(Shape):
    pass


class Circle(Shape):
    def __init__(
        self, size: float = 1.0, centre: tuple[float, float] | None = None
    ) -> None:
        super().__init__(0, size)
        self.centre = centre


@dataclass
class Drawing:
    shape: Shape
    name: str = "untitled"
    more: dict[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (bool, True, True),
        (str, "x", "x"),
        (int | None, None, None),
        (Any, [1, {"a": 2}], [1, {"a": 2}]),
        (list[int], [1, 2], [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, float], [1, 2], (1, 2.0)),
        (Sequence[int], [1], (1,)),
        (Literal["a", 1], 1, 1),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (int | list[int], [3], [3]),
        (Path, "x", "x"),
        (int, Typed("3", 3), 3),
        (str, Typed("3", 3), "3"),
        (str | None, Typed("null", None), None),
        (Literal["8"], Typed("8", 8), "8"),
        (int | str, Typed("auto", "auto"), "auto"),
        (Annotated[int, Within(1, 5)], 5, 5),
        (Annotated[float | None, Within(0)], None, None),
    ],
)
def test_values_that_fit(hint: Any, value: Any, expected: Any) -> None:
    actual = fit(hint, value, "x")
    assert actual == expected
    assert type(actual) is type(expected)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, "3", "x must be a whole number, got '3'"),
        (int, True, "a whole number, got True"),
        (int, 3.0, "a whole number"),
        (float | None, "a", "x must be a number or null, got 'a'"),
        (bool, 1, "true or false"),
        (str, 3, "must be text, got 3"),
        (str, {"steps": Typed("3", 3)}, "must be text, got {'steps': 3}"),
        (tuple[int, int], [1], "x must be 2 values, got .1."),
        (list[int], [1, "a"], "a whole number, got 'a'"),
        (Literal["a", "b"], "c", "one of 'a', 'b', got 'c'"),
        (Annotated[int, Within(1)], 0, "at least 1, got 0"),
        (Annotated[float, Within(0, 1, open=True)], 1, "below 1, got 1"),
        (Annotated[float, Within()], float("nan"), "finite"),
        (Shape, "pentagon", "(?s)x must be the name of .*got 'pentagon'.*polygon"),
        (Shape, "polgon", "did you mean polygon"),
        (Shape, {"sides": 3}, r"must have a name beside its arguments \(sides\)"),
        (Shape, 3, "the name of a shape, got 3"),
        (Shape, "polygon", "x.sides is missing: Polygon needs it"),
        (Shape, {"name": "Circle", "sizes": 3}, "no option x.sizes; did you mean size"),
        (
            Shape,
            {"name": "Circle", "size": "big"},
            "x.size must be a number, got 'big'",
        ),
        (Shape, "other.Circle", "must be the name of"),
        (dict[str, int], {"a": "b"}, "x.a must be a whole number"),
        (Drawing, 3, "x must be options by name"),
    ],
)
def test_values_that_do_not_fit(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(hint, value, "x")


def test_a_thing_is_a_name_and_arguments_all_the_way_there_and_back() -> None:
    answers = {
        "shape": {"name": "Circle", "size": 2, "centre": [0, 1]},
        "more": {"a": [1, None]},
    }
    spec = fit(Drawing, answers, "drawing")
    whole = {
        "shape": {"name": "Circle", "size": 2.0, "centre": [0.0, 1.0]},
        "name": "untitled",
        "more": {"a": [1, None]},
    }
    assert spec.plain() == whole
    drawing = make(spec)
    assert (type(drawing.shape), drawing.shape.centre) == (Circle, (0.0, 1.0))
    assert plain(drawing) == whole  # from the object
    assert fit(Drawing, plain(drawing), "drawing").plain() == whole
    path = f"{__name__}.Circle"
    assert fit(Shape, {"name": path, "size": 2}, "x").plain()["name"] == "Circle"


@pytest.mark.parametrize(
    "value",
    [
        {"class_path": f"{__name__}.Circle", "init_args": {"size": 2}},
        {"size": 2},
        {},
    ],
)
def test_a_thing_without_its_name_is_refused(value: Any) -> None:
    given = ", ".join(value) or "none"
    message = rf"x must have a name beside its arguments \({given}\), one of"
    with pytest.raises(ValueError, match=message):
        fit(Shape, value, "x")


def test_every_routing_is_named_completely() -> None:
    for name in tc.list_routings():
        routing = tc.create_routing(name)
        spec = fit(tc.routing.Routing, routing, "routing")
        assert spec.plain() == plain(routing)
        assert type(make(fit(tc.routing.Routing, plain(routing), "routing"))) is type(
            routing
        )


def test_what_no_file_can_hold_is_said() -> None:
    for value in (torch.ones(2), lambda: 3, {3: 4}, object()):
        with pytest.raises(ValueError, match="x must"):
            plain(value, "x")


def test_factories_get_their_first_argument_later() -> None:
    optimizers = OptimizerFactory

    made = make(fit(optimizers, {"name": "SGD", "lr": 0.5}, "optimizer"))
    assert made([torch.nn.Parameter(torch.ones(2))]).param_groups[0]["lr"] == 0.5


def test_names_that_are_taken() -> None:
    with pytest.raises(
        ValueError, match="a shape named 'polygon' exists already: Polygon"
    ):
        SHAPES.register("polygon")(Circle)
    assert ROUTINGS.find("EMRouting") is tc.routing.EMRouting
    for strange in (3, None, "", ".", "os.system", ["em"]):
        with pytest.raises(ValueError, match="routing must be the name of"):
            ROUTINGS.find(strange)


def test_what_a_constructor_declares() -> None:
    assert list(declared(Circle).arguments) == ["size", "centre"]
    assert complete(Circle, {}, "x") == {"size": 1.0, "centre": None}
    assert list(declared(Drawing).arguments) == ["shape", "name", "more"]


@pytest.mark.parametrize(
    ("base", "over", "expected"),
    [
        ({"name": "a", "x": 1}, {"x": 2}, {"name": "a", "x": 2}),
        ({"name": "a", "x": 1}, {"name": "b"}, {"name": "b"}),
        ({"name": "a", "x": 1}, "a", {"name": "a", "x": 1}),
        ({"name": "a", "x": 1}, "b", {"name": "b"}),
        ("a", {"x": 1}, {"name": "a", "x": 1}),
        ({"x": {"y": 1, "z": 2}}, {"x": {"y": 3}}, {"x": {"y": 3, "z": 2}}),
        (1, 2, 2),
        (None, {"x": 1}, {"x": 1}),
        ([1], [2], [2]),
    ],
)
def test_options_over_others(base: Any, over: Any, expected: Any) -> None:
    assert merged(base, over) == expected


def test_options_after_dots() -> None:
    tree: dict[str, Any] = {}
    put(tree, ["data"], typed("Pairs"))
    put(tree, ["data", "data", "size"], typed("4"))
    assert tree == {
        "data": {"name": Typed("Pairs", "Pairs"), "data": {"size": Typed("4", 4)}}
    }


class Sided:
    mixed: str

    def __init__(self, sides: int) -> None:
        if sides < 3:
            raise ValueError(f"a figure has three sides at least, got {sides}")
        self.sides = sides

    @property
    def colour(self) -> str:
        return f"light {self.mixed}"


@settings
class Figure(Sided):
    size: TwoSizes
    sides: int = 4
    colour: InitVar[str | None] = None

    def __post_init__(self, colour: str | None) -> None:
        self.mixed = colour or "grey"


def test_settings_over_a_base_with_a_constructor_and_a_property() -> None:
    figure = Figure([2, 3], colour="red")
    assert (figure.size, figure.sides, figure.colour) == ((2, 3), 4, "light red")
    assert Figure((2, 3)).colour == "light grey"
    assert declared(Figure).arguments["colour"] == (str | None, None)
    with pytest.raises(ValueError, match="three sides at least, got 2"):
        Figure((2, 3), 2)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (3, "size must be 2 whole numbers, got 3"),
        ((3,), "2 whole numbers"),
        ((0, 1), "at least 1"),
    ],
)
def test_several_sizes(size: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Figure(size)
    with pytest.raises(
        ValueError, match="size must be one or more whole numbers, got 3"
    ):
        Several().refuse("size", 3)


@pytest.mark.parametrize(
    ("bounds", "shown"),
    [
        (Within(1), "Within(least=1)"),
        (
            Within(0, 1, open=True, words="a share"),
            "Within(least=0, most=1, open=True)",
        ),
        (Several(count=2), "Several(count=2)"),
    ],
)
def test_bounds_are_short_in_a_signature(bounds: Within, shown: str) -> None:
    assert repr(bounds) == shown
