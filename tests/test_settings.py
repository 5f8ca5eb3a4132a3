"""Every argument that a class declares as a field has bounds, or names, and refuses all
that is beyond them.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import InitVar, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from sklearn.base import BaseEstimator
from torch import nn

import torchcaps as tc
import torchcaps.mixture
import torchcaps.sklearn
from tests.test_things_as_written import needed
from torchcaps.layers import ImplicitActivation, SelfWeightedPooling
from torchcaps.losses import LOSSES as LOSSES_BY_NAME
from torchcaps.models.registry import MODELS
from torchcaps.routing.base import ROUTINGS
from torchcaps.spec import Typed, Within, alternatives, declared, fit
from torchcaps.spec.registry import argument_names
from torchcaps_lab.data import Preprocess
from torchcaps_lab.data.base import DATASETS
from torchcaps_lab.options import declarations
from torchcaps_lab.tasks.base import TASKS
from torchcaps_lab.training import options as training
from torchcaps_lab.training.speed import Speed

SOME_LOSSES = (
    tc.MarginLoss,
    tc.SpreadLoss,
    tc.LengthCrossEntropy,
    tc.ReconstructionLoss,
)
CLASSES: list[Any] = [
    *ROUTINGS.values(),
    *SOME_LOSSES,
    ImplicitActivation,
    SelfWeightedPooling,
    tc.Squash,
]
SAMPLES: dict[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: (1, 2),
    float: (0.5, 1.5),
    str: ("x", ""),
    type(None): (None,),
    Callable: (len,),
    object: (object(),),
}


def kinds(part: Any) -> set[Any]:
    """Which rows of the samples are of the kind of an alternative of a type hint."""
    kind = get_origin(part) or part
    return (
        {int, float}
        if kind is float
        else {Callable}
        if "Callable" in str(kind)
        else {kind}
    )


def beyond(bound: Within) -> Iterator[float]:
    """The nearest numbers that are out of bounds, and those that no bound allows."""
    yield from (math.nan, math.inf, -math.inf)
    if bound.least is not None:
        yield bound.least if bound.open else math.nextafter(bound.least, -math.inf)
    if bound.most is not None:
        yield bound.most if bound.open else math.nextafter(bound.most, math.inf)


def wrong(hint: Any) -> Iterator[Any]:
    parts = list(alternatives(hint))
    taken = set().union(*(kinds(part) for part, _ in parts))
    choices = [
        choice
        for part, _ in parts
        if get_origin(part) is Literal
        for choice in get_args(part)
    ]
    if Path in taken:
        taken |= {str}
    yield from (
        sample
        for kind, samples in SAMPLES.items()
        if kind not in taken
        for sample in samples
        if sample not in choices
    )
    for part, bounds in parts:
        if get_origin(part) is Literal:
            yield from ("no such name", [get_args(part)[0]])
        if part is float:
            yield from (number for bound in bounds for number in beyond(bound))
        if part is int:
            yield from (bound.least - 1 for bound in bounds)
            yield from (bound.most + 1 for bound in bounds if bound.most is not None)


def test_arguments_of_routings_and_losses_are_bounded() -> None:
    for cls in filter(is_dataclass, CLASSES):
        for name, argument in declared(cls).arguments.items():
            for part, bounds in alternatives(argument.hint):
                assert part is not str, f"any text will do for {cls}, {name}"
                assert bounds or part not in (int, float) or cls is tc.Squash, (
                    f"any number will do for {cls}, {name}"
                )


def _attribute(cls: type, name: str) -> str:
    """The attribute that keeps an argument."""
    names = argument_names(cls)
    return next((key for key, argument in names.items() if argument == name), name)


OPTIONS = (
    training.Subject,
    training.Optimisation,
    declarations.Schedule,
    training.Running,
    declarations.TrainerOptions,
    Preprocess,
    Speed,
)
NETWORKS = {configuration.network for configuration in MODELS.values()}
DECLARED = [
    cls
    for cls in dict.fromkeys(
        (
            *ROUTINGS.values(),
            *LOSSES_BY_NAME.values(),
            *sorted(NETWORKS, key=lambda cls: cls.__name__),
            *DATASETS.values(),
            *TASKS.values(),
            *OPTIONS,
            *CLASSES,
        )
    )
    if cls.__module__.startswith("torchcaps")
    if declared(cls).arguments
]
every_class = pytest.mark.parametrize("cls", DECLARED, ids=lambda cls: cls.__name__)


@every_class
def test_an_option_is_refused_with_its_place_and_what_came(cls: type) -> None:
    """However it is given: in Python, in a file, or on the command line."""
    for name, argument in declared(cls).arguments.items():
        hint = argument.hint
        place = f"some.{name}"
        # On a command line everything is text, too.
        takes_text = {str, Path} & {part for part, _ in alternatives(hint)}
        for value in wrong(hint):
            typed = () if takes_text else (Typed(repr(value), value),)
            for given in (value, *typed):
                with pytest.raises(ValueError, match=rf"^{place} must ") as caught:
                    fit(hint, given, place)
                (line, *_) = str(caught.value).splitlines()
                assert "got" in line
                assert len(line) < 1000


@every_class
def test_a_constructor_refuses_what_is_beyond_a_constraint(cls: type) -> None:
    # Groups check when they are made.
    if not is_dataclass(cls) or (cls in OPTIONS and cls not in (Preprocess, Speed)):
        return
    arguments = needed(cls)
    for name, argument in declared(cls).arguments.items():
        # What __post_init__ gets as it comes is made there.
        if isinstance(cls.__dataclass_fields__[_attribute(cls, name)].type, InitVar):
            continue
        for value in wrong(argument.hint):
            with pytest.raises(ValueError, match=rf"^{name} must .*got"):
                cls(**{**arguments, name: value})


def test_options_of_every_registry_are_tried() -> None:
    assert sum(len(declared(cls).arguments) for cls in DECLARED) > 400


def test_all_routings_with_arguments_declare_them() -> None:
    assert not [
        cls
        for cls in ROUTINGS.values()
        if declared(cls).arguments and not is_dataclass(cls)
    ]


ROOMS = (
    tc,
    tc.layers,
    tc.losses,
    tc.mixture,
    tc.models,
    tc.routing,
    tc.sklearn,
)
PUBLIC = {
    value
    for room in ROOMS
    for value in (getattr(room, name) for name in dir(room))
    if inspect.isclass(value) and value.__module__.startswith("torchcaps")
}
WITH_ARGUMENTS = sorted(
    (
        cls
        for cls in PUBLIC
        if issubclass(cls, nn.Module | BaseEstimator)
        and not inspect.isabstract(cls)
        and declared(cls).arguments
        and not declared(cls).open
    ),
    key=lambda cls: cls.__name__,
)


def test_public_classes_are_many() -> None:
    assert len(WITH_ARGUMENTS) >= 60
    assert {tc.CapsHead, tc.CapsNet, tc.MarginLoss} < set(WITH_ARGUMENTS)


@pytest.mark.parametrize("cls", WITH_ARGUMENTS, ids=lambda cls: cls.__name__)
def test_a_misspelt_argument_of_a_class_is_answered_with_the_right_one(
    cls: type,
) -> None:
    for name in declared(cls).arguments:
        with pytest.raises(TypeError, match=f"no argument '{name}s_'; did you mean "):
            cls(**{f"{name}s_": 1})


def test_an_argument_that_is_given_is_not_what_another_one_meant() -> None:
    with pytest.raises(TypeError, match="no argument 'out_channels'; it takes"):
        tc.PrimaryCaps(in_channels=4, out_channels=8)
