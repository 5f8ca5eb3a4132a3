"""Is routing worth its steps? Trained networks with more and fewer of them (Paik 2019, Mitterreiter 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torchcaps.data import ImageSet, Preprocess
from torchcaps.explain.draw.charts import steps_figure
from torchcaps.explain.health import AtSteps, at_steps
from torchcaps.recipes import mnist_dynamic, smallnorb, two_digits
from torchcaps.recipes.kit.base import Key, Line, Picture, register_recipe
from torchcaps.recipes.kit.comparison import Comparison, Study
from torchcaps.recipes.kit.lab import Trained, data_of

PAIK = "Paik, Kwak & Kim 2019"
MITTERREITER = "Mitterreiter, Koch, Giesen & Laue 2023"


def sample(test: ImageSet, count: int, summary: Mapping[str, Any]) -> ImageSet:
    """Test images at random, the same for all networks and seeds, prepared as the network of a run takes them.

    Args:
        test: where they come from.
        count: how many; all if there are fewer.
        summary: of the run.
    """
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:count]
    return test.subset(chosen).prepared(Preprocess.from_config(dict(summary["preprocess"])))


@dataclass(frozen=True)
class Source:
    """A recipe whose networks are looked at.

    Args:
        label: what its networks are called here.
        recipe: where its settings and its jobs stand.
        steps: number of steps that each row is trained with.
        pairs: rows that differ in nothing but the steps: one with routing, one with uniform assignment.
        primary: whether its networks have layers of capsules below the class capsules.
    """

    label: str
    recipe: type[Comparison[Any]]
    steps: Mapping[str, int]
    pairs: Mapping[str, str]
    primary: bool = True

    def name(self, row: str) -> str:
        """What a network is called in the table."""
        return f"{self.label}: {row}"

    def pair(self, row: str) -> str:
        """What a network beside its twin with uniform assignment is called in the table."""
        return f"{self.name(row)}, against {self.pairs[row]}"


def _mnist() -> Source:
    kinds = {row: kind for row, kind in mnist_dynamic.ROWS.items() if kind is not None}
    uniform = {kind.weighting: row for row, kind in kinds.items() if kind.steps == 1}
    pairs = {row: uniform[kind.weighting] for row, kind in kinds.items() if kind.steps > 1}
    steps = {row: kind.steps for row, kind in kinds.items()}
    return Source("MNIST", mnist_dynamic.MnistDynamic, steps, pairs)


def _smallnorb() -> Source:
    rows = ("1 step", "2 steps", smallnorb.BASE, "5 steps")
    steps = {row: variant.steps for row in rows if (variant := smallnorb.ROWS[row]) is not None}
    pairs = {row: "1 step" for row in rows if row != "1 step"}
    return Source("smallNORB", smallnorb.SmallNORBEM, steps, pairs)


def _single_digits() -> Source:
    kinds = {row: routing["init_args"] for row, routing in two_digits.ROUTINGS.items() if routing is not None}
    variants = {
        kinds[row]["steps"]: row
        for row in two_digits.VARIANTS
        if {**kinds[row], "steps": 3} == kinds[two_digits.KMEANS] and kinds[row]["steps"] in (1, 3)
    }
    rows = (two_digits.DYNAMIC, two_digits.KMEANS, variants[1], variants[3])
    steps = {row: kinds[row]["steps"] for row in rows}
    return Source("single digits", two_digits.TwoDigits, steps, {variants[3]: variants[1]}, False)


SOURCES: tuple[Source, ...] = (_mnist(), _smallnorb(), _single_digits())
ROWS: dict[str, tuple[Source, str]] = {one.name(row): (one, row) for one in SOURCES for row in one.steps}
"""What each network in the table is: of which recipe, which row."""

TRAINED = "test accuracy, steps as trained"
UNIFORM = "test accuracy, uniform assignment at test time"
MANY = "test accuracy, 10 steps at test time"
CHANGED = "test images whose class the routing changes"
ENTROPY = "entropy of the assignment, class capsules"
POLARISATION = "polarisation, class capsules"
EXTREME = "polarisation with 10 steps, class capsules"
DEAD_CLASSES, DEAD_FIRST = "dead class capsules", "dead types of the lowest capsules"
WORTH = "test accuracy, difference"


def _lines() -> tuple[Line, ...]:
    lines = []
    for source in SOURCES:
        for row, steps in source.steps.items():
            name = source.name(row)
            lines.append(Line(name, TRAINED, higher_is_better=True))
            if steps > 1:
                lines.append(Line(name, UNIFORM, higher_is_better=True))
                lines.append(Line(name, CHANGED, higher_is_better=None))
            lines.append(Line(name, MANY, higher_is_better=True))
            lines += [Line(name, one, unit="", higher_is_better=None) for one in (ENTROPY, POLARISATION, EXTREME)]
            lines += [Line(name, one) for one in (DEAD_CLASSES, DEAD_FIRST)[: 1 + source.primary]]
        lines += [Line(source.pair(row), WORTH, unit="points", higher_is_better=True) for row in source.pairs]
    return tuple(lines)


@dataclass(frozen=True)
class RoutingHealthSettings:
    """One preset.

    Attributes:
        images: how many test images the accuracy is measured on.
        observed: how many of them the entropy, the polarisation and dead capsules are.
        steps: of routing at test time, 1 and 10 among them; the number that a network was trained with is added.
        rows: names of the networks that are looked at, as in the table; all if empty.
    """

    images: int = 1000
    observed: int = 64
    steps: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10)
    rows: tuple[str, ...] = ()


@register_recipe
class RoutingHealth(Comparison[RoutingHealthSettings]):
    """Trained networks with more and fewer steps of routing: what they decide, and how decidedly.

    Source: Paik, Kwak & Kim 2019, "Capsule Networks Need an Improved Routing Algorithm"; Mitterreiter, Koch, Giesen &
    Laue 2023, "Why Capsule Neural Networks Do Not Scale: Challenging the Dynamic Parse-Tree Assumption".
    """

    name: ClassVar[str] = "routing-health"
    title: ClassVar[str] = "is routing worth its steps: accuracy, entropy, polarisation, dead capsules"
    source: ClassVar[str] = f"{PAIK}; {MITTERREITER}"
    rows: ClassVar = tuple(ROWS)
    lines: ClassVar[tuple[Line, ...]] = _lines()
    presets: ClassVar = {
        "paper": RoutingHealthSettings(images=10000, observed=512),
        "quick": RoutingHealthSettings(),
        "smoke": RoutingHealthSettings(
            images=64,
            observed=16,
            steps=(1, 2, 10),
            rows=(f"MNIST: {mnist_dynamic.CAPSNET}", f"smallNORB: {smallnorb.BASE}", "smallNORB: 1 step"),
        ),
    }
    notes: ClassVar[tuple[str, ...]] = (
        smallnorb.LOSSY,
        "The networks are those of the recipes mnist-dynamic, smallnorb-em and two-digits, with the same preset. Paik "
        "et al. claim that routing seldom beats uniform assignment, does not change the class in most cases, and "
        "polarises the links the more steps it takes. Mitterreiter et al. claim that capsules starve and networks of "
        "them do not scale, the more so the deeper they are; these networks are shallow.",
        "All lines of a network are of the same test images, chosen at random, so that its numbers of steps can be "
        "compared; only the difference of two networks is of all test images. 1000 images (quick) tell an accuracy to "
        "about a point where it is near 90 %, to 0.3 points where it is near 99 %; the difference of two networks "
        "also holds the luck of their seeds.",
        "Polarisation is the mean over the children of (max R - 1/J) / (1 - 1/J): 0 where all J parents get the same "
        "of a child, 1 where one gets all. With one step the assignment is uniform by definition: polarisation 0, "
        "entropy 1. A capsule counts as dead if none of the observed images raises its activation above 0.01.",
        "With another number of steps than in its training, EM routing keeps the first and the last inverse "
        "temperature of the training, so that only the assignment differs.",
    )

    def train(self, study: Study, row: str, stop_at: float | None) -> Trained:
        """As the recipe trains it that the network is of."""
        source, own = ROWS[row]
        return study.lab.train(*source.recipe().job(source.recipe.presets[study.lab.preset], own))

    def begin(self, study: Study) -> dict[str, ImageSet]:
        """The test images of each source."""
        labels = {ROWS[row][0].label for row in self.present(study.settings)}
        presets = {one.label: one.recipe.presets[study.lab.preset] for one in SOURCES if one.label in labels}
        return {label: data_of(preset.data).test for label, preset in presets.items()}

    def measure(self, study: Study, row: str, given: Mapping[str, ImageSet]) -> dict[str, float]:
        """With every number of steps."""
        (source, own), trained, settings = ROWS[row], study.trained[row], study.settings
        images = sample(given[source.label], settings.images, trained.summary)
        steps = sorted({*settings.steps, source.steps[own]})
        points = {one: at_steps(trained.network, images, one, settings.observed) for one in steps}
        study.curves.setdefault(source.label, {})[own] = as_curves(points, source.steps[own])
        return findings(points, source.steps[own])

    def finish(self, study: Study, given: Mapping[str, ImageSet]) -> None:
        """What training with routing is worth, and curves over the steps."""
        for source in SOURCES:
            study.figures |= differences(source, study.trained)
        for label, rows in study.curves.items():
            study.pictures[label.replace(" ", "-").lower()] = Picture(steps_figure(label, rows), _caption(label, rows))


def findings(points: Mapping[int, AtSteps], trained: int) -> dict[str, float]:
    """The lines of one network, by measure.

    Args:
        points: by number of steps, 1, 10 and ``trained`` among them.
        trained: number of steps of the training.
    """
    own, uniform, many = points[trained], points[1], points[10]
    found: dict[str, float | None] = {TRAINED: own.accuracy}
    if trained > 1:
        changed = (own.prediction != uniform.prediction).double().mean().item()
        found |= {UNIFORM: uniform.accuracy, CHANGED: 100 * changed}
    found |= {
        MANY: many.accuracy,
        ENTROPY: own.classes.entropy,
        POLARISATION: own.classes.polarisation,
        EXTREME: many.classes.polarisation,
        DEAD_CLASSES: 100 * own.classes.dead,
        DEAD_FIRST: 100 * own.first.dead if len(own.layers) > 1 else None,
    }
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
    layers = {
        name: {
            key: [getattr(point.layers[name], key) for point in points.values()]
            for key in ("entropy", "polarisation", "dead")
        }
        for name in points[trained].layers
    }
    return {
        "trained": trained,
        "steps": list(points),
        "accuracy": [point.accuracy for point in points.values()],
        "layers": layers,
    }


def _caption(label: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    several = any(sum(h["entropy"][0] is not None for h in curves["layers"].values()) > 1 for curves in rows.values())
    below = " Broken lines: the layers below the class capsules, dotted the lowest." if several else ""
    return (
        f"Networks of {label}, tested with other numbers of routing steps than they were trained with (dots): the "
        f"test accuracy, and entropy and polarisation of the assignment to the class capsules; 1 step is uniform "
        f"assignment.{below}"
    )
