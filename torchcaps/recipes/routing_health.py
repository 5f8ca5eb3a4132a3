"""Is routing worth its steps? Trained networks with more and fewer of them (Paik 2019, Mitterreiter 2023)."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torchcaps.data import ImageSet, Preprocess
from torchcaps.explain import dead_capsules, examine, layer_entropy, new_figure, observe_layers, peak_activation
from torchcaps.explain.findings import evaluating
from torchcaps.explain.layers import Layer
from torchcaps.recipes import mnist_dynamic, smallnorb, two_digits
from torchcaps.recipes.base import Line, Outcome, Picture, Recipe, register_recipe
from torchcaps.recipes.lab import Lab, Trained, data_of
from torchcaps.routing import EMRouting, Routing
from torchcaps.routing.em import inverse_temperatures

PAIK = "Paik, Kwak & Kim 2019"
MITTERREITER = "Mitterreiter, Koch, Giesen & Laue 2023"

_AT_ONCE = 16
"""Images that are observed together: the assignments of a convolution are larger than its capsules."""


def stretched(temperatures: Sequence[float], steps: int) -> list[float]:
    r"""The inverse temperatures of a training, drawn out over another number of steps.

    With :math:`\lambda_0 \dots \lambda_{S-1}` those of the training, joined by straight lines, and n steps:

    .. math::
        \lambda'_k = \lambda\Big(\frac{k (S - 1)}{n - 1}\Big), \quad k = 0 \dots n - 1

    They begin and end as in the training; a single step has the last. The activations of the parents are then made at
    the temperature that the network knows, and only the assignment differs.

    Args:
        temperatures: of each step of the training.
        steps: n.
    """
    last = len(temperatures) - 1
    places = [step * last / (steps - 1) for step in range(steps)] if steps > 1 else [float(last)]
    below = [min(int(place), max(last - 1, 0)) for place in places]
    above = [min(index + 1, last) for index in below]
    return [
        temperatures[i] + (place - i) * (temperatures[j] - temperatures[i])
        for place, i, j in zip(places, below, above, strict=True)
    ]


@contextmanager
def routing_steps(network: nn.Module, steps: int) -> Iterator[None]:
    """Inside the ``with`` block all routings of a network take so many steps; 1 is uniform assignment.

    EM routing keeps the first and the last inverse temperature of its training: see :func:`stretched`.

    Args:
        network: any network of torchcaps layers.
        steps: at least 1.

    Raises:
        ValueError: if ``steps`` is less than 1, or a routing has no number of steps.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    routings: list[Any] = [module for module in network.modules() if isinstance(module, Routing)]
    without = [type(routing).__name__ for routing in routings if "steps" not in vars(routing)]
    if without:
        raise ValueError(f"network must route in steps, but {', '.join(without)} does not")
    before = [{name: value for name, value in vars(one).items() if name in ("steps", "schedule")} for one in routings]
    try:
        for routing in routings:
            if isinstance(routing, EMRouting) and steps != routing.steps:
                routing.schedule = _stretched_schedule(routing, steps)
            routing.steps = steps
        yield
    finally:
        for routing, settings in zip(routings, before, strict=True):
            for name, value in settings.items():
                setattr(routing, name, value)


def _stretched_schedule(routing: EMRouting, steps: int) -> Callable[[int, int], float]:
    """A schedule of EM routing; its own scale is multiplied with it."""
    trained = inverse_temperatures(routing.schedule, routing.steps, 1.0)
    temperatures = stretched(trained, steps)
    return lambda step, steps: temperatures[step]


def polarisation(assignment: Tensor) -> Tensor:
    r"""How close assignment probabilities are to choosing one parent for each child.

    .. math::
        \frac{1}{I} \sum_i \frac{\max_j r_{ij} - 1/J}{1 - 1/J}, \quad r_{ij} = \frac{R_{ij}}{\sum_{j'} R_{ij'}}

    From 0 (all parents get the same) to 1 (one parent gets all). A child that goes to no parent at all counts as
    undecided, and with one parent there is nothing to choose: 0.

    Args:
        assignment: R, (B, I, J).

    Returns:
        (B,), no units.

    Paik, Kwak & Kim 2019, "Capsule Networks Need an Improved Routing Algorithm", found that routing polarises the
    strengths of the links, to the extreme if it goes on; the measure is our own.
    """
    J = assignment.shape[-1]
    if J == 1:
        return assignment.new_zeros(len(assignment))
    total = assignment.sum(-1)
    peak = torch.where(total > 0, assignment.amax(-1) / torch.where(total > 0, total, 1.0), 1 / J)
    return ((peak - 1 / J) / (1 - 1 / J)).clamp(0, 1).mean(-1)  # but for rounding, it lies there


def layer_polarisation(layer: Layer) -> Tensor:
    """:func:`polarisation` of a layer, over the same parents as :func:`~torchcaps.explain.layer_entropy`.

    In a convolution whose parents compete over the whole image, these are the parents of all windows that see the
    child, fewer at the border. Where each window routes for itself, they are those of one window, and the mean is also
    over the windows. Padding and children that no window sees are left out; groups are averaged.

    Args:
        layer: one that routes, of :func:`~torchcaps.explain.observe_layers`.

    Returns:
        (B,), no units.

    Raises:
        ValueError: if the layer does not route.
    """
    if not layer.routed:
        raise ValueError(f"layer {layer.name} routes nothing: it has no assignment")
    return torch.stack([_group_polarisation(layer, group) for group in range(len(layer.routed))]).mean(0)


def _group_polarisation(layer: Layer, group: int) -> Tensor:
    R = layer.assignment(group)  # [B, windows, I, J]
    R = R.to(torch.promote_types(R.dtype, torch.float32))
    if layer.windows is None:
        return polarisation(R.squeeze(1))
    seen = layer.scatter(torch.ones_like(R[..., 0]))  # [B, children] windows that see the child
    if getattr(layer.module, "competition", "window") == "window":
        own = polarisation(R.flatten(0, 2).unsqueeze(1)).view(R.shape[:3])
        value = layer.scatter(own) / seen.clamp(min=1)
    else:
        parents, total = (seen * R.shape[-1]).clamp(min=2), layer.scatter(R).sum(-1)
        peak = torch.where(total > 0, _highest(layer, R) / torch.where(total > 0, total, 1.0), 1 / parents)
        value = ((peak - 1 / parents) / (1 - 1 / parents)).clamp(0, 1) * (seen * R.shape[-1] > 1)
    value, inside = (layer.inside(field).flatten(1) for field in (value, (seen > 0).to(value.dtype)))
    return (value * inside).sum(1) / inside.sum(1)


def _highest(layer: Layer, R: Tensor) -> Tensor:
    """The most that any parent of any window gets of each child: (B, windows, I, J) to (B, children)."""
    assert layer.windows is not None
    sites = layer.windows.sites(R.device)  # [windows, places]
    peak = R.amax(-1).unflatten(2, (sites.shape[1], -1))  # [B, windows, places, types]
    highest = peak.new_zeros(len(peak), layer.windows.padded, peak.shape[-1])
    for place, at in enumerate(sites.unbind(1)):  # at one place in the window, each window sees another child
        highest[:, at] = torch.maximum(highest[:, at], peak[:, :, place])
    return highest.flatten(1)


@dataclass(frozen=True)
class Health:
    """The routing of one layer of capsules.

    Args:
        entropy: of its assignment, from 0 (hard) to 1 (uniform); None for a layer that does not route.
        polarisation: from 0 (uniform) to 1 (hard); None for a layer that does not route.
        dead: share of its types that no image switches on.
    """

    entropy: float | None
    polarisation: float | None
    dead: float


def layer_health(network: nn.Module, images: Tensor, threshold: float = 0.01) -> dict[str, Health]:
    """The :class:`Health` of every layer of capsules, in the order in which they run, averaged over images.

    Args:
        network: any network of torchcaps layers.
        images: (B, C, H, W), prepared for the network.
        threshold: a type of capsule whose activation is nowhere above it, in none of the images, counts as dead.
    """
    entropies: dict[str, list[Tensor]] = defaultdict(list)
    polarisations: dict[str, list[Tensor]] = defaultdict(list)
    peaks: dict[str, list[Tensor]] = defaultdict(list)
    with evaluating(network) as device:
        for part in images.split(_AT_ONCE):
            for name, layer in observe_layers(network, part.to(device)).items():
                peaks[name].append(peak_activation(layer.capsules).float().cpu())
                if layer.routed:
                    entropies[name].append(layer_entropy(layer).float().cpu())
                    polarisations[name].append(layer_polarisation(layer).float().cpu())
    return {
        name: Health(_mean(entropies[name]), _mean(polarisations[name]), dead_capsules(torch.cat(parts), threshold))
        for name, parts in peaks.items()
    }


def _mean(parts: list[Tensor]) -> float | None:
    return torch.cat(parts).mean().item() if parts else None


@dataclass(frozen=True, eq=False)
class Point:
    """A network with one number of steps.

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
        return [health for health in self.layers.values() if health.entropy is not None][-1]

    @property
    def first(self) -> Health:
        """Of the lowest capsules."""
        return next(iter(self.layers.values()))


def measure(network: Any, test: ImageSet, steps: int, observed: int) -> Point:
    """What a network does if all its routings take so many steps.

    Args:
        network: a classifier with capsules.
        test: images, prepared for it.
        steps: see :func:`routing_steps`.
        observed: how many of the images the health of the layers is measured on.
    """
    with routing_steps(network, steps):
        findings = examine(network, test, batch_size=64)
        images = test.__getitems__(list(range(min(observed, len(test))))).images
        return Point(100 * findings.accuracy, findings.prediction, layer_health(network, images))


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
        recipe: where its settings stand.
        job: of a row, as :meth:`Lab.train` takes it.
        steps: number of steps that each row is trained with.
        pairs: rows that differ in nothing but the steps: one with routing, one with uniform assignment.
        primary: whether its networks have layers of capsules below the class capsules.
    """

    label: str
    recipe: type[Recipe[Any]]
    job: Callable[[Any, str], tuple[str, dict[str, Any]]]
    steps: Mapping[str, int]
    pairs: Mapping[str, str]
    primary: bool = True

    def present(self, settings: Any, names: Sequence[str] = ()) -> list[str]:
        """The rows that a preset of the recipe has networks of, and whose names in the table are asked for, if any."""
        rows = [row for row in self.steps if not settings.rows or row in settings.rows]
        return [row for row in rows if not names or self.name(row) in names]

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
    return Source("MNIST", mnist_dynamic.MnistDynamic, mnist_dynamic.job, steps, pairs)


def _smallnorb() -> Source:
    rows = ("1 step", "2 steps", smallnorb.BASE, "5 steps")
    steps = {row: variant.steps for row in rows if (variant := smallnorb.ROWS[row]) is not None}
    pairs = {row: "1 step" for row in rows if row != "1 step"}
    return Source("smallNORB", smallnorb.SmallNORBEM, smallnorb.job, steps, pairs)


def _single_digits() -> Source:
    kinds = {row: routing["init_args"] for row, routing in two_digits.ROUTINGS.items() if routing is not None}
    variants = {
        kinds[row]["steps"]: row
        for row in two_digits.VARIANTS
        if {**kinds[row], "steps": 3} == kinds[two_digits.KMEANS] and kinds[row]["steps"] in (1, 3)
    }
    rows = (two_digits.DYNAMIC, two_digits.KMEANS, variants[1], variants[3])
    steps = {row: kinds[row]["steps"] for row in rows}
    return Source("single digits", two_digits.TwoDigits, two_digits.job, steps, {variants[3]: variants[1]}, False)


SOURCES: tuple[Source, ...] = (_mnist(), _smallnorb(), _single_digits())

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
class RoutingHealth(Recipe[RoutingHealthSettings]):
    """Trained networks with more and fewer steps of routing: what they decide, and how decidedly.

    Source: Paik, Kwak & Kim 2019, "Capsule Networks Need an Improved Routing Algorithm"; Mitterreiter, Koch, Giesen &
    Laue 2023, "Why Capsule Neural Networks Do Not Scale: Challenging the Dynamic Parse-Tree Assumption".
    """

    name: ClassVar[str] = "routing-health"
    title: ClassVar[str] = "is routing worth its steps: accuracy, entropy, polarisation, dead capsules"
    source: ClassVar[str] = f"{PAIK}; {MITTERREITER}"
    lines: ClassVar[tuple[Line, ...]] = _lines()
    presets: ClassVar = {
        "paper": RoutingHealthSettings(images=10000, observed=512),
        "quick": RoutingHealthSettings(),
        "smoke": RoutingHealthSettings(
            images=64,
            observed=16,
            steps=(1, 2, 10),
            rows=(
                f"MNIST: {mnist_dynamic.CAPSNET}",
                f"smallNORB: {smallnorb.BASE}",
                "smallNORB: 1 step",
            ),
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

    def run(self, lab: Lab, settings: RoutingHealthSettings) -> Outcome:
        """Opens the networks, trains those that are missing, and measures each with every number of steps."""
        figures: dict[tuple[str, str], float] = {}
        facts: dict[str, dict[str, Any]] = {}
        curves: dict[str, dict[str, Any]] = {}
        for source in SOURCES:
            networks = open_networks(lab, source, settings.rows)
            if not networks:
                continue
            test = data_of(source.recipe.presets[lab.preset].data).test
            curves[source.label] = {}
            for row, trained in networks.items():
                lab.show(f"{source.name(row)}: with {', '.join(map(str, settings.steps))} steps")
                steps = sorted({*settings.steps, source.steps[row]})
                images = sample(test, settings.images, trained.summary)
                points = {one: measure(trained.network, images, one, settings.observed) for one in steps}
                figures |= {
                    (source.name(row), key): value for key, value in findings(points, source.steps[row]).items()
                }
                facts[source.name(row)] = trained.facts
                curves[source.label][row] = as_curves(points, source.steps[row])
            figures |= differences(source, networks)
        pictures = {label.replace(" ", "-").lower(): _picture(label, rows) for label, rows in curves.items()}
        return Outcome(figures, facts, pictures, curves)


def open_networks(lab: Lab, source: Source, names: Sequence[str] = ()) -> dict[str, Trained]:
    """The networks of a recipe's rows, with the preset of the lab; trained where they are not yet.

    Args:
        lab: where they are.
        source: the recipe.
        names: in the table, of those that are wanted; all if empty.
    """
    settings = source.recipe.presets[lab.preset]
    return {row: lab.train(*source.job(settings, row)) for row in source.present(settings, names)}


def findings(points: Mapping[int, Point], trained: int) -> dict[str, float]:
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


def differences(source: Source, networks: Mapping[str, Trained]) -> dict[tuple[str, str], float]:
    """How much more accurate networks trained with routing are than their twins with uniform assignment, in points."""
    return {
        (source.pair(row), WORTH): networks[row].test_accuracy - networks[uniform].test_accuracy
        for row, uniform in source.pairs.items()
        if row in networks and uniform in networks
    }


def as_curves(points: Mapping[int, Point], trained: int) -> dict[str, Any]:
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


def _picture(label: str, rows: Mapping[str, Mapping[str, Any]]) -> Picture:
    """Accuracy, entropy and polarisation over the number of steps at test time, a line for each network."""
    figure = new_figure(11.0, 3.7 + 0.2 * len(rows), "constrained")
    panels = figure.subplots(1, 3)
    for rank, (row, curves) in enumerate(rows.items()):
        steps, trained = curves["steps"], curves["steps"].index(curves["trained"])
        routed = [health for health in curves["layers"].values() if health["entropy"][0] is not None]
        lines = [(panels[0], curves["accuracy"], "-")]
        for place, health in enumerate(reversed(routed)):
            style = ("-", "--", ":")[min(place, 2)]
            lines += [(panels[1], health["entropy"], style), (panels[2], health["polarisation"], style)]
        wide = 1.2 + 0.5 * (len(rows) - 1 - rank)  # so that curves that lie on each other can all be seen
        for axes, values, style in lines:
            width, named = (wide, row) if style == "-" else (1.0, "")
            axes.plot(steps, values, style, color=f"C{rank}", linewidth=width, label=named)
            axes.plot(steps[trained], values[trained], "o", color=f"C{rank}", markersize=width + 3.5)
    titles = (("test accuracy", "% of images"), ("entropy of the assignment", "0 hard, 1 uniform"),
              ("polarisation", "0 uniform, 1 hard"))  # fmt: skip
    for axes, (title, unit) in zip(panels, titles, strict=True):
        axes.set(title=title, ylabel=unit, xlabel="steps of routing at test time")
        axes.set_xticks(sorted({step for curves in rows.values() for step in curves["steps"]}))
        axes.grid(alpha=0.3)
    for axes in panels[1:]:
        axes.set_ylim(-0.04, 1.04)
    figure.suptitle(label, fontsize=11)
    figure.get_layout_engine().set(w_pad=0.12)  # type: ignore[union-attr, call-arg]
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, frameon=False)
    several = any(sum(h["entropy"][0] is not None for h in curves["layers"].values()) > 1 for curves in rows.values())
    below = " Broken lines: the layers below the class capsules, dotted the lowest." if several else ""
    caption = (
        f"Networks of {label}, tested with other numbers of routing steps than they were trained with (dots): the "
        f"test accuracy, and entropy and polarisation of the assignment to the class capsules; 1 step is uniform "
        f"assignment.{below}"
    )
    return Picture(figure, caption)
