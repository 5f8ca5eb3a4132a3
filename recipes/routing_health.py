"""Is routing worth its steps? Trained networks with more and fewer of them (Paik 2019,
Mitterreiter 2023).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

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
from torchcaps_lab.evaluate import examine, routing_health, routing_steps
from torchcaps_lab.report import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ENTROPY_OF, DEAD_OF = "assignment_entropy_", "dead_capsules_"
"""What the figures of :func:`~torchcaps_lab.evaluate.routing_health` begin with."""


@dataclass(frozen=True)
class Health:
    """The routing of one layer of capsules.

    Args:
        entropy: the entropy of the assignment, from 0 (hard) to 1 (uniform); None for a
            layer that does not route.
        dead: the share of the types of capsules that no image switches on.
    """

    entropy: float | None
    dead: float


def layer_health(network: nn.Module, images: Tensor) -> dict[str, Health]:
    """The :class:`Health` of every layer of capsules, in the order in which they run,
    averaged over images.

    Args:
        network: any network of torchcaps layers.
        images: the images, (B, C, H, W), prepared for the network.
    """
    figures = routing_health(network, images)
    health = {}
    for figure, value in figures.items():
        name = figure.removeprefix(DEAD_OF)
        if name != figure:
            health[name] = Health(figures.get(ENTROPY_OF + name), value)
    return health


@dataclass(frozen=True, eq=False)
class AtSteps:
    """What a network does with one number of routing steps.

    Args:
        accuracy: the accuracy on test images, in percent.
        prediction: the most active class of each of these images.
        layers: the health of each layer, on a few of these images.
    """

    accuracy: float
    prediction: Tensor
    layers: Mapping[str, Health]

    @property
    def classes(self) -> Health:
        """Of the class capsules, the last layer that routes."""
        routed = [
            health for health in self.layers.values() if health.entropy is not None
        ]
        return routed[-1]

    @property
    def first(self) -> Health:
        """Of the lowest capsules."""
        return next(iter(self.layers.values()))


def at_steps(
    network: Any,
    test: Examples,
    steps: int,
    observed: int,
) -> AtSteps:
    """What a network does if all its routings make this number of steps.

    Args:
        network: a classifier with capsules.
        test: the test images, prepared for the network.
        steps: the number of steps, as in :func:`routing_steps`.
        observed: the number of images on which the health of the layers is measured.
    """
    with routing_steps(network, steps):
        result = examine(network, test, batch_size=64)
        images = test.__getitems__(list(range(min(observed, len(test))))).inputs
        health = layer_health(network, images)
        return AtSteps(100 * result.accuracy, result.prediction, health)


@dataclass(frozen=True)
class Source:
    """A recipe whose networks are measured.

    Args:
        label: the prefix of its networks in the table.
        recipe: the name of the recipe, which trains the networks.
        steps: the number of routing steps that each row is trained with.
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


_ONE = f"{VARIANT}: 1 step"
_THREE = f"{VARIANT}: none (3 steps, squash half)"
_CAPSNETS = {
    row: changes["routing"]["steps"]
    for row, changes in get_recipe("mnist-dynamic").rows.items()
    if "routing" in changes
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
ROWS: dict[str, tuple[Source, str]] = {}
"""Recipe and row of each network in the table."""

for _source in SOURCES:
    for _row in _source.steps:
        ROWS[_source.name(_row)] = _source, _row


Measure = tuple[Callable[[AtSteps, AtSteps, AtSteps], float | None], str, bool | None]
"""Computed from results with the steps of training, with 1 step and with 10; the unit;
whether higher is better.
"""

MEASURES: dict[str, Measure] = {
    "test accuracy, steps as trained": (
        lambda trained, uniform, many: trained.accuracy,
        "%",
        True,
    ),
    "test accuracy, uniform assignment at test time": (
        lambda trained, uniform, many: uniform.accuracy,
        "%",
        True,
    ),
    "test images whose class the routing changes": (
        lambda trained, uniform, many: _changed(trained, uniform),
        "%",
        None,
    ),
    "test accuracy, 10 steps at test time": (
        lambda trained, uniform, many: many.accuracy,
        "%",
        True,
    ),
    "entropy of the assignment, class capsules": (
        lambda trained, uniform, many: trained.classes.entropy,
        "",
        None,
    ),
    "dead class capsules": (
        lambda trained, uniform, many: 100 * trained.classes.dead,
        "%",
        False,
    ),
    "dead types of the lowest capsules": (
        lambda trained, uniform, many: 100 * trained.first.dead,
        "%",
        False,
    ),
}
TRAINED, UNIFORM, CHANGED, MANY, ENTROPY, DEAD_CLASSES, DEAD_FIRST = MEASURES
WORTH = "test accuracy, difference"


def _changed(trained: AtSteps, uniform: AtSteps) -> float:
    return percent(trained.prediction != uniform.prediction)


def measures(steps: int, primary: bool) -> dict[str, Measure]:
    """The measures of a network trained with ``steps`` steps, with or without layers
    below the class capsules.
    """
    missing = set()
    if steps == 1:
        missing |= {UNIFORM, CHANGED}
    if not primary:
        missing.add(DEAD_FIRST)
    return {name: measure for name, measure in MEASURES.items() if name not in missing}


def _lines(source: Source) -> Iterator[Line]:
    for row, steps in source.steps.items():
        for name, (_, unit, better) in measures(steps, source.primary).items():
            yield Line(
                source.name(row),
                name,
                unit=unit,
                higher_is_better=better,
            )
    yield from (
        Line(source.pair(row), WORTH, unit="points", higher_is_better=True)
        for row in source.pairs
    )


@dataclass(frozen=True)
class RoutingHealthSettings(TrainingOptions):
    """One preset.

    Attributes:
        images: the number of test images on which the accuracy is measured.
        observed: the number of these images on which the entropy and dead capsules are
            measured.
        steps: the numbers of routing steps at test time, 1 and 10 among them; the
            number that a network was trained with is added.
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
    lines: ClassVar = tuple(chain.from_iterable(map(_lines, SOURCES)))
    settings: ClassVar = RoutingHealthSettings

    def begin(self, study: Study) -> dict[str, Examples]:
        """The test images of each source."""
        labels = {ROWS[row][0].label for row in self.present(study.settings)}
        tests = {}
        for source in SOURCES:
            if source.label in labels:
                preset = get_recipe(source.recipe).presets[study.lab.preset]
                tests[source.label] = data_of(preset.data).test
        return tests

    def measure(
        self,
        study: Study,
        row: str,
        tests: Mapping[str, Examples],
    ) -> dict[str, float]:
        """Accuracy and health of the network with every number of steps."""
        trained = study.trained[row]
        settings = study.settings
        source, row_of_source = ROWS[row]
        steps_of_training = source.steps[row_of_source]
        test = at_random(tests[source.label], settings.images)
        prepared = trained.classifier.prepared(test)
        points = {
            steps: at_steps(trained.network, prepared, steps, settings.observed)
            for steps in sorted({*settings.steps, steps_of_training})
        }
        curves = study.curves.setdefault(source.label, {})
        curves[row_of_source] = as_curves(points, steps_of_training)
        return findings(points, steps_of_training)

    def finish(self, study: Study, tests: Mapping[str, Examples]) -> None:
        """The gain from training with routing, and curves over the steps."""
        for source in SOURCES:
            study.figures |= differences(source, study.trained)
        for label, rows in study.curves.items():
            name = label.replace(" ", "-").lower()
            figure = steps_figure(label, rows)
            study.pictures[name] = Picture(figure, _caption(label, rows))


def findings(points: Mapping[int, AtSteps], trained: int) -> dict[str, float]:
    """The figures of one network, by measure, from the results of each number of steps,
    also 1, 10 and ``trained``.
    """
    results = points[trained], points[1], points[10]
    primary = len(points[trained].layers) > 1
    figures = {}
    for name, (compute, _, _) in measures(trained, primary).items():
        value = compute(*results)
        if value is not None:
            figures[name] = value
    return figures


def differences(source: Source, networks: Mapping[str, Trained]) -> dict[Key, float]:
    """How much more accurate networks trained with routing are than their twins with
    uniform assignment, in points.
    """
    points = {}
    for row, uniform_row in source.pairs.items():
        routed = networks.get(source.name(row))
        uniform = networks.get(source.name(uniform_row))
        if routed is not None and uniform is not None:
            key = source.pair(row), WORTH
            points[key] = routed.test_accuracy - uniform.test_accuracy
    return points


def as_curves(points: Mapping[int, AtSteps], trained: int) -> dict[str, Any]:
    """The measurements of one network, ready for JSON: accuracy in percent; the others
    from 0 to 1, by layer.
    """
    layers: dict[str, dict[str, list[Any]]] = {}
    for layer in points[trained].layers:
        health = [point.layers[layer] for point in points.values()]
        layers[layer] = {}
        for field in fields(Health):
            values = [getattr(at_point, field.name) for at_point in health]
            layers[layer][field.name] = values
    return {
        "trained": trained,
        "steps": list(points),
        "accuracy": [point.accuracy for point in points.values()],
        "layers": layers,
    }


def _routed_layers(curves: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The curves of the layers that route, in the order in which they run."""
    layers = curves["layers"].values()
    return [layer for layer in layers if layer["entropy"][0] is not None]


def _caption(label: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    captions = StepsWorth.captions
    caption = captions["steps"].format(label=label)
    if any(len(_routed_layers(curves)) > 1 for curves in rows.values()):
        caption += f" {captions['lower layers']}"
    return caption


def steps_figure(title: str, rows: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """Accuracy and entropy over the number of steps at test time, a line for each
    network.
    """
    figure = new_figure(8.0, 3.7 + 0.2 * len(rows), "constrained")
    left, right = figure.subplots(1, 2)
    steps_of_all = set()
    for rank, (row, curves) in enumerate(rows.items()):
        steps_of_all |= {*curves["steps"]}
        # so that curves that lie on each other can all be seen
        width = 1.2 + 0.5 * (len(rows) - 1 - rank)
        look = {"color": f"C{rank}", "linewidth": width}
        _plot(
            left,
            curves,
            curves["accuracy"],
            "-",
            label=row,
            **look,
        )
        for place, layer in enumerate(reversed(_routed_layers(curves))):
            style = ("-", "--", ":")[min(place, 2)]
            if place:
                look["linewidth"] = 1.0
            label = "" if place else row
            _plot(
                right,
                curves,
                layer["entropy"],
                style,
                label=label,
                **look,
            )
    left.set(title="test accuracy", ylabel="% of images")
    right.set(title="entropy of the assignment", ylabel="0 hard, 1 uniform")
    for axes in (left, right):
        axes.set_xlabel("steps of routing at test time")
        axes.set_xticks(sorted(steps_of_all))
        axes.grid(alpha=0.3)
    right.set_ylim(-0.04, 1.04)
    figure.suptitle(title, fontsize=11)
    figure.set_layout_engine("constrained", w_pad=0.12)
    figure.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower left",
        fontsize=8,
        frameon=False,
    )
    return figure


def _plot(
    axes: "Axes",
    curves: Mapping[str, Any],
    values: Sequence[float],
    style: str,
    **look: Any,
) -> None:
    """Draws a curve over the steps, with a dot at the steps of the training."""
    axes.plot(curves["steps"], values, style, **look)
    place = curves["steps"].index(curves["trained"])
    axes.plot(
        curves["trained"],
        values[place],
        "o",
        color=look["color"],
        markersize=look["linewidth"] + 3.5,
    )
