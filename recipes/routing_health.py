"""Is routing worth its steps? Trained networks with more and fewer of them (Paik 2019, Mitterreiter 2023)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from recipes import mnist_dynamic, smallnorb
from recipes.kit.base import Key, Line, Picture, register_recipe
from recipes.kit.comparison import Comparison, Study
from recipes.kit.lab import Trained, at_random, data_of
from recipes.kit.options import presets_of
from recipes.smallnorb import SmallNORBEM
from recipes.two_digits import DYNAMIC, KMEANS, VARIANT, TwoDigits
from torchcaps.data import ImageSet
from torchcaps.explain.draw.charts import steps_figure
from torchcaps.explain.health import AtSteps, Health, at_steps


@dataclass(frozen=True)
class Source:
    """A recipe whose networks are measured.

    Args:
        label: prefix of its networks in the table.
        recipe: trains the networks.
        steps: number of routing steps that each row is trained with.
        pairs: rows with routing, each with the row that differs only in its single step, which assigns uniformly.
        primary: whether its networks have layers of capsules below the class capsules.
    """

    label: str
    recipe: type[Comparison[Any]]
    steps: Mapping[str, int]
    pairs: Mapping[str, str]
    primary: bool = True

    def name(self, row: str) -> str:
        """The row of a network in the table."""
        return f"{self.label}: {row}"

    def pair(self, row: str) -> str:
        """The row of the comparison of a network with its twin with uniform assignment."""
        return f"{self.name(row)}, against {self.pairs[row]}"


_ONE, _THREE = f"{VARIANT}: 1 step", f"{VARIANT}: none (3 steps, squash half)"
_CAPSNETS = {row: kind.steps for row, kind in mnist_dynamic.ROWS.items() if kind is not None}
_UNIFORM = {row: row.replace("3 steps", "1 step") for row, steps in _CAPSNETS.items() if steps == 3}
_NORB = {"2 steps": 2, smallnorb.BASE: 3, "5 steps": 5}

SOURCES: tuple[Source, ...] = (
    Source("MNIST", mnist_dynamic.MnistDynamic, _CAPSNETS, _UNIFORM),
    Source("smallNORB", SmallNORBEM, {"1 step": 1, **_NORB}, dict.fromkeys(_NORB, "1 step")),
    Source("single digits", TwoDigits, {DYNAMIC: 3, KMEANS: 3, _ONE: 1, _THREE: 3}, {_THREE: _ONE}, primary=False),
)
ROWS: dict[str, tuple[Source, str]] = {one.name(row): (one, row) for one in SOURCES for row in one.steps}
"""Recipe and row of each network in the table."""


Measure = tuple[Callable[[AtSteps, AtSteps, AtSteps], float | None], str, bool | None]
"""Computed from results with the steps of training, with 1 step and with 10; the unit; whether higher is better."""

MEASURES: dict[str, Measure] = {
    "test accuracy, steps as trained": (lambda own, uniform, many: own.accuracy, "%", True),
    "test accuracy, uniform assignment at test time": (lambda own, uniform, many: uniform.accuracy, "%", True),
    "test images whose class the routing changes": (lambda own, uniform, many: _changed(own, uniform), "%", None),
    "test accuracy, 10 steps at test time": (lambda own, uniform, many: many.accuracy, "%", True),
    "entropy of the assignment, class capsules": (lambda own, uniform, many: own.classes.entropy, "", None),
    "polarisation, class capsules": (lambda own, uniform, many: own.classes.polarisation, "", None),
    "polarisation with 10 steps, class capsules": (lambda own, uniform, many: many.classes.polarisation, "", None),
    "dead class capsules": (lambda own, uniform, many: 100 * own.classes.dead, "%", False),
    "dead types of the lowest capsules": (lambda own, uniform, many: 100 * own.first.dead, "%", False),
}
TRAINED, UNIFORM, CHANGED, MANY, ENTROPY, POLARISATION, EXTREME, DEAD_CLASSES, DEAD_FIRST = MEASURES
WORTH = "test accuracy, difference"


def _changed(own: AtSteps, uniform: AtSteps) -> float:
    return 100 * (own.prediction != uniform.prediction).double().mean().item()


def measures(steps: int, primary: bool) -> dict[str, Measure]:
    """The measures of a network trained with ``steps`` steps, with or without layers below the class capsules."""
    missing = {*((UNIFORM, CHANGED) if steps == 1 else ()), *(() if primary else (DEAD_FIRST,))}
    return {name: measure for name, measure in MEASURES.items() if name not in missing}


def _lines(source: Source) -> Iterator[Line]:
    for row, steps in source.steps.items():
        for name, (_, unit, better) in measures(steps, source.primary).items():
            yield Line(source.name(row), name, unit=unit, higher_is_better=better)
    yield from (Line(source.pair(row), WORTH, unit="points", higher_is_better=True) for row in source.pairs)


@dataclass(frozen=True)
class RoutingHealthSettings:
    """One preset.

    Attributes:
        images: how many test images the accuracy is measured on.
        observed: how many of them the entropy, the polarisation and dead capsules are measured on.
        steps: of routing at test time, 1 and 10 among them; the number that a network was trained with is added.
        rows: names of the networks, as in the table; all if empty.
    """

    images: int = 1000
    observed: int = 64
    steps: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10)
    rows: tuple[str, ...] = ()


@register_recipe
class StepsWorth(Comparison[RoutingHealthSettings]):
    """Trained networks with more and fewer steps of routing: accuracy, and how sharp the assignments are.

    Source: Paik, Kwak & Kim 2019, "Capsule Networks Need an Improved Routing Algorithm"; Mitterreiter, Koch, Giesen &
    Laue 2023, "Why Capsule Neural Networks Do Not Scale: Challenging the Dynamic Parse-Tree Assumption".
    """

    name: ClassVar[str] = "routing-health"
    title: ClassVar[str] = "is routing worth its steps: accuracy, entropy, polarisation, dead capsules"
    source: ClassVar[str] = "Paik, Kwak & Kim 2019; Mitterreiter, Koch, Giesen & Laue 2023"
    rows: ClassVar = tuple(ROWS)
    borrowed: ClassVar = {name: (source.recipe, row) for name, (source, row) in ROWS.items()}
    lines: ClassVar = tuple(line for source in SOURCES for line in _lines(source))
    presets: ClassVar = presets_of("routing-health", RoutingHealthSettings)

    def begin(self, study: Study) -> dict[str, ImageSet]:
        """The test images of each source."""
        labels = {ROWS[row][0].label for row in self.present(study.settings)}
        presets = {one.label: one.recipe.presets[study.lab.preset] for one in SOURCES if one.label in labels}
        return {label: data_of(preset.data).test for label, preset in presets.items()}

    def measure(self, study: Study, row: str, given: Mapping[str, ImageSet]) -> dict[str, float]:
        """Accuracy and health of the network with every number of steps."""
        (source, own), trained, settings = ROWS[row], study.trained[row], study.settings
        images = trained.classifier.prepared(at_random(given[source.label], settings.images))
        steps = sorted({*settings.steps, source.steps[own]})
        points = {one: at_steps(trained.network, images, one, settings.observed) for one in steps}
        study.curves.setdefault(source.label, {})[own] = as_curves(points, source.steps[own])
        return findings(points, source.steps[own])

    def finish(self, study: Study, given: Mapping[str, ImageSet]) -> None:
        """The gain from training with routing, and curves over the steps."""
        for source in SOURCES:
            study.figures |= differences(source, study.trained)
        for label, rows in study.curves.items():
            study.pictures[label.replace(" ", "-").lower()] = Picture(steps_figure(label, rows), _caption(label, rows))


def findings(points: Mapping[int, AtSteps], trained: int) -> dict[str, float]:
    """The figures of one network, by measure, from the results of each number of steps, also 1, 10 and ``trained``."""
    three = points[trained], points[1], points[10]
    kinds = measures(trained, primary=len(three[0].layers) > 1)
    found = {name: value(*three) for name, (value, _, _) in kinds.items()}
    return {name: value for name, value in found.items() if value is not None}


def differences(source: Source, networks: Mapping[str, Trained]) -> dict[Key, float]:
    """How much more accurate networks trained with routing are than their twins with uniform assignment, in points."""
    pairs = {row: (source.name(row), source.name(uniform)) for row, uniform in source.pairs.items()}
    return {
        (source.pair(row), WORTH): networks[one].test_accuracy - networks[other].test_accuracy
        for row, (one, other) in pairs.items()
        if one in networks and other in networks
    }


def as_curves(points: Mapping[int, AtSteps], trained: int) -> dict[str, Any]:
    """The measurements of one network, ready for JSON: accuracy in percent; the rest from 0 to 1, by layer."""
    at, names = list(points.values()), [field.name for field in fields(Health)]
    layers = {
        layer: {name: [getattr(point.layers[layer], name) for point in at] for name in names}
        for layer in points[trained].layers
    }
    accuracy = [point.accuracy for point in at]
    return {"trained": trained, "steps": list(points), "accuracy": accuracy, "layers": layers}


def _caption(label: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    several = any(sum(h["entropy"][0] is not None for h in curves["layers"].values()) > 1 for curves in rows.values())
    below = " Broken lines: the layers below the class capsules, dotted the lowest." if several else ""
    return (
        f"Networks of {label}, tested with other numbers of routing steps than they were trained with (dots): the "
        f"test accuracy, and entropy and polarisation of the assignment to the class capsules; 1 step is uniform "
        f"assignment.{below}"
    )
