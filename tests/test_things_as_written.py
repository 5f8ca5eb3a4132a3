"""How things are written down, a name beside arguments: for every class there is,
nothing is lost on the way.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin

import pytest

import torchcaps as tc
from torchcaps.models import register_model
from torchcaps.models.network import Network
from torchcaps.models.registry import RESERVED_FOR_MODELS
from torchcaps.models.saved import NETWORKS
from torchcaps.spec import (
    MISSING,
    Registry,
    Spec,
    alternatives,
    complete,
    declared,
    fit,
    plain,
    registry_of,
)
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.options.reading import as_yaml, parsed
from torchcaps_lab.tasks.base import TASKS
from torchcaps_lab.training.command_line import training_options
from torchcaps_lab.training.options import OPTIMIZERS, SCHEDULERS

WRITTEN = [
    tc.routing.base.ROUTINGS,
    tc.losses.LOSSES,
    DATASETS,
    TASKS,
    OPTIMIZERS,
    SCHEDULERS,
]
"""The registries whose things options and saved files name."""

OWN = ("torch", "torchcaps", "torchcaps_lab")
CLASSES = [
    pytest.param(registry, cls, id=f"{registry.kind}-{cls.__name__}")
    for registry in WRITTEN
    for cls in sorted(
        {*registry.classes(), *registry.values()}, key=lambda cls: cls.__name__
    )
    if cls.__module__.split(".")[0] in OWN
]

UNWRITTEN = {
    "MapStyle": {"data", "test_data", "validation_data"},
    "SeriesArrays": {"inputs", "labels"},
    "TextList": {"inputs", "labels"},
    "LambdaLR": {"lr_lambda"},
    "MultiplicativeLR": {"lr_lambda"},
    "ChainedScheduler": {"optimizer"},
    "CyclicLR": {"scale_fn"},
}
"""Arguments that only a running program has: objects and functions."""

NUMBERS = (3, 5, 1, 2, 32, 0.25, 0.75, 0.5, 1.5, 7.0, 64, -1.0)


def candidates(hint: Any) -> Iterator[Any]:
    """Plain values that an argument with this type hint may take."""
    for part, _ in alternatives(hint):
        yield from _of_part(part)


def _of_part(part: Any) -> Iterator[Any]:
    origin = get_origin(part) or part
    inner = get_args(part)
    registry = registry_of(part)
    if registry is not None:
        names = [*sorted(registry), *(cls.__name__ for cls in registry.classes())]
        yield from (
            {"name": name, **needed(registry.find(name), int(registry.factory))}
            for name in names
        )
    elif origin is Literal:
        yield from inner
    elif is_dataclass(origin):
        yield others(origin)
    elif origin is bool:
        yield from (True, False)
    elif origin in (int, float):
        yield from (origin(number) for number in NUMBERS)
    elif origin is str:
        yield from ("some text", "null", "1e-3", "em", "#ffd700")
    elif origin in (Mapping, dict):
        yield from ({"a": value} for value in candidates(inner[1] if inner else Any))
    elif origin is tuple and inner and inner[-1] is not Ellipsis:
        yield from ([value] * len(inner) for value in candidates(inner[0]))
        # Such as a range, whose ends differ.
        if inner[0] in (int, float):
            yield [inner[0](number) for number in range(len(inner))]
    elif origin is Any or origin is object:
        yield from ("some text", 3)
    elif origin in (list, tuple, Sequence):
        yield from ([value] * 2 for value in candidates(inner[0] if inner else Any))


def needed(cls: type, skip: int = 0) -> dict[str, Any]:
    """Values for the arguments that a class cannot be made without."""
    missing = {
        name: argument
        for name, argument in declared(cls, skip).arguments.items()
        if argument.default is MISSING
    }
    return {name: other(argument.hint, None) for name, argument in missing.items()}


def other(hint: Any, default: Any) -> Any:
    """A plain value that fits a type hint and differs from the default; None if none
    can be written.
    """
    for value in candidates(hint):
        try:
            if plain(fit(hint, value, "x")) != default:
                return value
        except ValueError:
            continue
    return None


def others(cls: Any, skip: int = 0) -> dict[str, Any]:
    """An argument for each that a class declares, none of them at its default."""
    results = {}
    for name, argument in declared(cls, skip).arguments.items():
        if name not in UNWRITTEN.get(cls.__name__, ()):
            results[name] = other(argument.hint, _plain_or_none(argument.default))
    return results


def _plain_or_none(default: Any) -> Any:
    try:
        return plain(default)
    except ValueError:
        return None


@pytest.mark.parametrize(("registry", "cls"), CLASSES)
def test_every_argument_of_every_class_is_read_as_it_was_written(
    registry: Registry, cls: Any
) -> None:
    skip = int(registry.factory)
    arguments = others(cls, skip)
    assert [name for name, value in arguments.items() if value is None] == [], (
        "no value could be made for these"
    )
    unwritten = (
        dict.fromkeys(UNWRITTEN.get(cls.__name__, ()), 0)
        if registry is SCHEDULERS
        else {}
    )
    spec = Spec(
        cls, complete(cls, {**arguments, **unwritten}, "x", skip), "x", registry
    )
    written = spec.plain()
    kind: Any = Callable[..., registry.base] if registry.factory else registry.base
    for read in (json.loads(json.dumps(written)), parsed(as_yaml(written), "x")):
        again = fit(kind, read, "x")
        assert (again.cls, again.arguments, again.plain()) == (
            cls,
            spec.arguments,
            written,
        )


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registries that a test makes are gone after it."""
    monkeypatch.setattr(Registry, "every", [*Registry.every])


@pytest.mark.usefixtures("passing")
@pytest.mark.parametrize("registered", [True, False])
def test_no_argument_takes_the_place_of_the_name(registered: bool) -> None:
    """Written beside the name of the class, it would overwrite it, and the class would
    be lost.
    """

    class Thing:
        pass

    things = Registry("thing", Thing)

    class Named(Thing):
        def __init__(self, name: str = "x") -> None:
            self.name = name

    message = "thing Named: no argument may be called 'name'"
    if registered:
        with pytest.raises(ValueError, match=message):
            things.register("named")(Named)
    for use in (
        lambda: fit(Thing, "Named", "x"),
        lambda: plain(Named()),
        lambda: things.name_of(Named),
    ):
        with pytest.raises(ValueError, match=message):
            use()


@pytest.mark.usefixtures("passing")
def test_a_factory_may_call_what_comes_later_as_it_likes() -> None:
    class Maker:
        def __init__(self, name: object, rate: float = 0.5) -> None:
            self.name, self.rate = name, rate

    makers = Registry("maker", Maker, factory=True)
    assert makers.register("own")(type("Own", (Maker,), {}))
    assert fit(Callable[..., Maker], {"name": "own", "rate": 2}, "x").plain() == {
        "name": "own",
        "rate": 2.0,
    }


@pytest.mark.parametrize(
    "reserved", [*RESERVED_FOR_MODELS, "training", "extra", "forward", "half"]
)
def test_no_argument_of_a_network_is_one_of_create_model_or_of_every_network(
    reserved: str,
) -> None:
    network: Any = type(
        "Odd", (), {"__init__": eval(f"lambda self, {reserved}=None: None")}
    )
    with pytest.raises(
        ValueError, match=f"model 'odd': Odd takes an argument '{reserved}'"
    ):
        register_model("odd", "nowhere")(network)
    assert not [
        cls
        for cls in NETWORKS.values()
        if reserved in declared(cls).arguments and issubclass(cls, Network)
    ]


def test_groups_of_options_share_no_name() -> None:
    """They are written on one level, with ``run`` and ``import`` beside them."""
    options = training_options({"data": "Digits"})
    names = [
        "run",
        "import",
        *(name for group in options.groups for name in group.plain()),
    ]
    assert len(names) == len(set(names))
