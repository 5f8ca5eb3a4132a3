"""Is routing worth its steps? Trained networks with more and fewer of them (Paik 2019,
Mitterreiter 2023).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from recipes import smallnorb
from recipes.kit.base import (
    Key,
    Line,
    Picture,
    Recipe,
    Study,
    get_recipe,
    register_recipe,
)
from recipes.kit.lab import Trained, at_random, data_of
from recipes.kit.measures import percent
from recipes.kit.options import TrainingOptions
from recipes.two_digits import DYNAMIC, KMEANS, VARIANT
from torchcaps_lab.data import Examples
from torchcaps_lab.report import examine, layer_entropy, new_figure, routing_steps
from torchcaps_lab.report.health import observed_health
from torchcaps_lab.report.layers import dead_capsules

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Health:
    """The routing of one layer of capsules.

    Args:
        entropy: of its assignment, from 0 (hard) to 1 (uniform); None for a layer that
            does not route.
        dead: share of its types that no image switches on.
    """

    entropy: float | None
    dead: float


def layer_health(
    network: nn.Module, images: Tensor, threshold: float = 0.01
) -> dict[str, Health]:
    """The :class:`Health` of every layer of capsules, in the order in which they run,
    averaged over images.

    Args:
        network: any network of torchcaps layers.
        images: (B, C, H, W), prepared for the network.
        threshold: a type of capsule whose activation is nowhere above it, in none of
            the images, counts as dead.
    """
    peaks, (entropies,) = observed_health(network, images, layer_entropy)
    return {
        name: Health(
            torch.cat(entropies[name]).mean().item() if name in entropies else None,
            dead_capsules(torch.cat(parts), threshold),
        )
        for name, parts in peaks.items()
    }


@dataclass(frozen=True, eq=False)
class AtSteps:
    """What a network does with one number of routing steps.

    Args:
        accuracy: on test images, in percent.
        prediction: the most active class of each of these images.
        layers: the health of each layer, on a few of them.
    """

    accuracy: float
    prediction: Tensor
    layers: Mapping[str, Health]

    @property
    def classes(self) -> Health:
        """Of the class capsules, the last layer that routes."""
        return [
            health for health in self.layers.values() if health.entropy is not None
        ][-1]

    @property
    def first(self) -> Health:
        """Of the lowest capsules."""
        return next(iter(self.layers.values()))


def at_steps(network: Any, test: Examples, steps: int, observed: int) -> AtSteps:
    """What a network does if all its routings make this number of steps.

    Args:
        network: a classifier with capsules.
        test: images, prepared for it.
        steps: see :func:`routing_steps`.
        observed: how many of the images the health of the layers is measured on.
    """
    with routing_steps(network, steps):
        findings = examine(network, test, batch_size=64)
        images = test.__getitems__(list(range(min(observed, len(test))))).inputs
        return AtSteps(
            100 * findings.accuracy, findings.prediction, layer_health(network, images)
        )


@dataclass(frozen=True)
class Source:
    """A recipe whose networks are measured.

    Args:
        label: prefix of its networks in the table.
        recipe: trains the networks.
        steps: number of routing steps that each row is trained with.
        pairs: rows with routing, each with the row that differs only in its single
            step, which assigns uniformly.
        primary: whether its networks have layers of capsules below the class capsules.
    """

    label: str
    recipe: str
    steps: Mapping[str, int]
    pairs: Mapping[str, str]
    primary: bool = True

    def name(self, row: str) -> str:
        """The row of a network in the table."""
        return f"{self.label}: {row}"

    def pair(self, row: str) -> str:
        """The row of the comparison of a network with its twin with uniform
        assignment.
        """
        return f"{self.name(row)}, against {self.pairs[row]}"


_ONE, _THREE = f"{VARIANT}: 1 step", f"{VARIANT}: none (3 steps, squash half)"
_CAPSNETS = {
    row: one["routing"]["steps"]
    for row, one in get_recipe("mnist-dynamic").rows.items()
    if "routing" in one
}
_UNIFORM = {
    row: row.replace("3 steps", "1 step")
    for row, steps in _CAPSNETS.items()
    if steps == 3
}
_NORB = {"2 steps": 2, smallnorb.BASE: 3, "5 steps": 5}

SOURCES: tuple[Source, ...] = (
    Source("MNIST", "mnist-dynamic", _CAPSNETS, _UNIFORM),
    Source(
        "smallNORB",
        "smallnorb-em",
        {"1 step": 1, **_NORB},
        dict.fromkeys(_NORB, "1 step"),
    ),
    Source(
        "single digits",
        "two-digits",
        {DYNAMIC: 3, KMEANS: 3, _ONE: 1, _THREE: 3},
        {_THREE: _ONE},
        primary=False,
    ),
)
ROWS: dict[str, tuple[Source, str]] = {
    one.name(row): (one, row) for one in SOURCES for row in one.steps
}
"""Recipe and row of each network in the table."""


Measure = tuple[Callable[[AtSteps, AtSteps, AtSteps], float | None], str, bool | None]
"""Computed from results with the steps of training, with 1 step and with 10; the unit;
whether higher is better.
"""

MEASURES: dict[str, Measure] = {
    "test accuracy, steps as trained": (
        lambda own, uniform, many: own.accuracy,
        "%",
        True,
    ),
    "test accuracy, uniform assignment at test time": (
        lambda own, uniform, many: uniform.accuracy,
        "%",
        True,
    ),
    "test images whose class the routing changes": (
        lambda own, uniform, many: _changed(own, uniform),
        "%",
        None,
    ),
    "test accuracy, 10 steps at test time": (
        lambda own, uniform, many: many.accuracy,
        "%",
        True,
    ),
    "entropy of the assignment, class capsules": (
        lambda own, uniform, many: own.classes.entropy,
        "",
        None,
    ),
    "dead class capsules": (
        lambda own, uniform, many: 100 * own.classes.dead,
        "%",
        False,
    ),
    "dead types of the lowest capsules": (
        lambda own, uniform, many: 100 * own.first.dead,
        "%",
        False,
    ),
}
TRAINED, UNIFORM, CHANGED, MANY, ENTROPY, DEAD_CLASSES, DEAD_FIRST = MEASURES
WORTH = "test accuracy, difference"


def _changed(own: AtSteps, uniform: AtSteps) -> float:
    return percent(own.prediction != uniform.prediction)


def measures(steps: int, primary: bool) -> dict[str, Measure]:
    """The measures of a network trained with ``steps`` steps, with or without layers
    below the class capsules.
    """
    missing = {
        *((UNIFORM, CHANGED) if steps == 1 else ()),
        *(() if primary else (DEAD_FIRST,)),
    }
    return {name: measure for name, measure in MEASURES.items() if name not in missing}


def _lines(source: Source) -> Iterator[Line]:
    for row, steps in source.steps.items():
        for name, (_, unit, better) in measures(steps, source.primary).items():
            yield Line(source.name(row), name, unit=unit, higher_is_better=better)
    yield from (
        Line(source.pair(row), WORTH, unit="points", higher_is_better=True)
        for row in source.pairs
    )


@dataclass(frozen=True)
class RoutingHealthSettings(TrainingOptions):
    """One preset.

    Attributes:
        images: how many test images the accuracy is measured on.
        observed: how many of them the entropy and dead capsules are measured on.
        steps: of routing at test time, 1 and 10 among them; the number that a network
            was trained with is added.
    """

    images: int = 1000
    observed: int = 64
    steps: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10)


@register_recipe
class StepsWorth(Recipe[RoutingHealthSettings]):
    """Trained networks with more and fewer steps of routing: accuracy, and how sharp
    the assignments are.

    Source: Paik, Kwak & Kim 2019, "Capsule Networks Need an Improved Routing
    Algorithm"; Mitterreiter, Koch, Giesen & Laue 2023, "Why Capsule Neural Networks Do
    Not Scale: Challenging the Dynamic Parse-Tree Assumption".
    """

    name: ClassVar = "routing-health"
    rows: ClassVar = ROWS
    borrowed: ClassVar = {
        name: (source.recipe, row) for name, (source, row) in ROWS.items()
    }
    lines: ClassVar = tuple(line for source in SOURCES for line in _lines(source))
    settings: ClassVar = RoutingHealthSettings

    def begin(self, study: Study) -> dict[str, Examples]:
        """The test images of each source."""
        labels = {ROWS[row][0].label for row in self.present(study.settings)}
        presets = {
            one.label: get_recipe(one.recipe).presets[study.lab.preset]
            for one in SOURCES
            if one.label in labels
        }
        return {label: data_of(preset.data).test for label, preset in presets.items()}

    def measure(
        self, study: Study, row: str, given: Mapping[str, Examples]
    ) -> dict[str, float]:
        """Accuracy and health of the network with every number of steps."""
        (source, own), trained, settings = ROWS[row], study.trained[row], study.settings
        images = trained.classifier.prepared(
            at_random(given[source.label], settings.images)
        )
        steps = sorted({*settings.steps, source.steps[own]})
        points = {
            one: at_steps(trained.network, images, one, settings.observed)
            for one in steps
        }
        study.curves.setdefault(source.label, {})[own] = as_curves(
            points, source.steps[own]
        )
        return findings(points, source.steps[own])

    def finish(self, study: Study, given: Mapping[str, Examples]) -> None:
        """The gain from training with routing, and curves over the steps."""
        for source in SOURCES:
            study.figures |= differences(source, study.trained)
        for label, rows in study.curves.items():
            study.pictures[label.replace(" ", "-").lower()] = Picture(
                steps_figure(label, rows), _caption(label, rows)
            )


def findings(points: Mapping[int, AtSteps], trained: int) -> dict[str, float]:
    """The figures of one network, by measure, from the results of each number of steps,
    also 1, 10 and ``trained``.
    """
    three = points[trained], points[1], points[10]
    kinds = measures(trained, primary=len(three[0].layers) > 1)
    found = {name: value(*three) for name, (value, _, _) in kinds.items()}
    return {name: value for name, value in found.items() if value is not None}


def differences(source: Source, networks: Mapping[str, Trained]) -> dict[Key, float]:
    """How much more accurate networks trained with routing are than their twins with
    uniform assignment, in points.
    """
    pairs = {
        row: (source.name(row), source.name(uniform))
        for row, uniform in source.pairs.items()
    }
    return {
        (source.pair(row), WORTH): networks[one].test_accuracy
        - networks[other].test_accuracy
        for row, (one, other) in pairs.items()
        if one in networks and other in networks
    }


def as_curves(points: Mapping[int, AtSteps], trained: int) -> dict[str, Any]:
    """The measurements of one network, ready for JSON: accuracy in percent; the rest
    from 0 to 1, by layer.
    """
    at, names = list(points.values()), [field.name for field in fields(Health)]
    layers = {
        layer: {
            name: [getattr(point.layers[layer], name) for point in at] for name in names
        }
        for layer in points[trained].layers
    }
    accuracy = [point.accuracy for point in at]
    return {
        "trained": trained,
        "steps": list(points),
        "accuracy": accuracy,
        "layers": layers,
    }


def _caption(label: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    several = any(
        sum(h["entropy"][0] is not None for h in curves["layers"].values()) > 1
        for curves in rows.values()
    )
    captions = StepsWorth.captions
    return " ".join(
        [
            captions["steps"].format(label=label),
            *([captions["lower layers"]] if several else []),
        ]
    )


def steps_figure(title: str, rows: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """Accuracy and entropy over the number of steps at test time, a line for each
    network.
    """
    figure = new_figure(8.0, 3.7 + 0.2 * len(rows), "constrained")
    panels = figure.subplots(1, 2)
    for rank, (row, curves) in enumerate(rows.items()):
        steps, trained = curves["steps"], curves["steps"].index(curves["trained"])
        routed = [
            health
            for health in curves["layers"].values()
            if health["entropy"][0] is not None
        ]
        lines = [(panels[0], curves["accuracy"], "-")]
        for place, health in enumerate(reversed(routed)):
            style = ("-", "--", ":")[min(place, 2)]
            lines.append((panels[1], health["entropy"], style))
        wide = 1.2 + 0.5 * (
            len(rows) - 1 - rank
        )  # so that curves that lie on each other can all be seen
        for axes, values, style in lines:
            width, named = (wide, row) if style == "-" else (1.0, "")
            axes.plot(
                steps, values, style, color=f"C{rank}", linewidth=width, label=named
            )
            axes.plot(
                steps[trained],
                values[trained],
                "o",
                color=f"C{rank}",
                markersize=width + 3.5,
            )
    measures = (
        ("test accuracy", "% of images"),
        ("entropy of the assignment", "0 hard, 1 uniform"),
    )
    for axes, (measure, unit) in zip(panels, measures, strict=True):
        axes.set(title=measure, ylabel=unit, xlabel="steps of routing at test time")
        axes.set_xticks(
            sorted({step for curves in rows.values() for step in curves["steps"]})
        )
        axes.grid(alpha=0.3)
    panels[1].set_ylim(-0.04, 1.04)
    figure.suptitle(title, fontsize=11)
    figure.set_layout_engine("constrained", w_pad=0.12)
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower left",
        fontsize=8,
        frameon=False,
    )
    return figure
