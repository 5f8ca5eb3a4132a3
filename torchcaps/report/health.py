"""The health of the routing, layer by layer: how decided it is, what is dead, and what more or fewer steps do."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.data import ImageSet
from torchcaps.models.base import in_precision_of
from torchcaps.numerics import check_size
from torchcaps.report.assignments import dead_capsules, ratio
from torchcaps.report.findings import evaluating, examine
from torchcaps.report.layers import (
    Layer,
    layer_entropy,
    mean_of_children,
    mean_of_groups,
    observe_layers,
    peak_activation,
)
from torchcaps.routing import EMRouting, Routing
from torchcaps.routing.em import inverse_temperatures

_AT_ONCE = 16
"""Images that are observed together: the assignments of a convolutional layer are larger than its capsules."""


def routing_health(model: nn.Module, images: Tensor, threshold: float = 0.01) -> dict[str, float]:
    """Entropy of the assignment and share of dead capsules of each layer.

    Runs in evaluation mode and without gradients; the network and all random number generators are left as they were.

    Args:
        model: any network of torchcaps layers.
        images: (B, C, H, W), at least one, on the device of the network.
        threshold: a type of capsule whose activation is nowhere above it, in none of the images, counts as dead.

    Returns:
        ``assignment_entropy_<layer>``, see :func:`~torchcaps.report.layer_entropy`, averaged over the images, for each
        layer that routes, and ``dead_capsules_<layer>``, see :func:`~torchcaps.report.dead_types`, for each layer of
        capsules; both in [0, 1]. Empty for a network without capsules.
    """
    devices = [images.device] if images.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        peaks, (entropies,) = _observed(model, images, layer_entropy)
    health = {f"assignment_entropy_{name}": torch.cat(parts).mean().item() for name, parts in entropies.items()}
    dead = {f"dead_capsules_{name}": dead_capsules(torch.cat(parts), threshold) for name, parts in peaks.items()}
    return {**health, **dead}


_Parts = Mapping[str, list[Tensor]]


def _observed(
    network: nn.Module, images: Tensor, *measures: Callable[[Layer], Tensor]
) -> tuple[_Parts, tuple[_Parts, ...]]:
    """The highest activation of each type of every layer, and measures (B,) of those that route, a few images each."""
    peaks: dict[str, list[Tensor]] = defaultdict(list)
    found: tuple[dict[str, list[Tensor]], ...] = tuple(defaultdict(list) for _ in measures)
    with evaluating(network) as device:
        for part in images.split(_AT_ONCE):
            for name, layer in observe_layers(network, in_precision_of(network, part.to(device))).items():
                peaks[name].append(peak_activation(layer.capsules).float())
                if layer.routed:
                    for measure, parts in zip(measures, found, strict=True):
                        parts[name].append(measure(layer).float())
    return peaks, found


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
    peaks, (entropies, polarisations) = _observed(network, images, layer_entropy, layer_polarisation)
    return {
        name: Health(
            _mean(entropies.get(name)), _mean(polarisations.get(name)), dead_capsules(torch.cat(parts), threshold)
        )
        for name, parts in peaks.items()
    }


def _mean(parts: list[Tensor] | None) -> float | None:
    return torch.cat(parts).mean().item() if parts else None


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
    peak = ratio(assignment.amax(-1), assignment.sum(-1), 1 / J)
    return ((peak - 1 / J) / (1 - 1 / J)).clamp(0, 1).mean(-1)  # rounding may lead out of [0, 1]


def layer_polarisation(layer: Layer) -> Tensor:
    """:func:`polarisation` of a layer, over the same parents as :func:`~torchcaps.report.layer_entropy`.

    In a convolution whose parents compete over the whole image, these are the parents of all windows that see the
    child, fewer at the border; where types do not compete, only those of one type, and the mean is also over the
    types. Where each window routes for itself, they are those of one window, and the mean is also over the windows.
    Padding and children that no window sees are left out; groups are averaged.

    Args:
        layer: one that routes, of :func:`~torchcaps.report.observe_layers`.

    Returns:
        (B,), no units.

    Raises:
        ValueError: if the layer does not route.
    """
    return mean_of_groups(layer, _group_polarisation)


def _group_polarisation(layer: Layer, group: int) -> Tensor:
    R = layer.assignment(group)  # [B, windows, I, J]
    R = R.to(torch.promote_types(R.dtype, torch.float32))
    if layer.windows is None:
        return polarisation(R.squeeze(1))
    seen = layer.scatter(torch.ones_like(R[..., 0]))  # [B, children] windows that see the child
    if layer.competition == "window":
        own = polarisation(R.flatten(0, 2).unsqueeze(1)).view(R.shape[:3])
        value = layer.scatter(own) / seen.clamp(min=1)
    else:
        total, peak, parents = layer.scatter(R), _highest(layer, R), seen.unsqueeze(-1)  # [B, children, J or 1]
        if layer.competition != "position":  # types compete, too
            total, peak, parents = total.sum(-1, keepdim=True), peak.amax(-1, keepdim=True), parents * R.shape[-1]
        even = 1 / parents.clamp(min=2)
        share = ratio(peak, total, even)
        value = (((share - even) / (1 - even)).clamp(0, 1) * (parents > 1)).mean(-1)
    return mean_of_children(layer, value, seen)


def _highest(layer: Layer, R: Tensor) -> Tensor:
    """The most that each parent type of any window gets of each child: (B, windows, I, J) to (B, children, J)."""
    assert layer.windows is not None
    sites = layer.windows.sites(R.device)  # [windows, places]
    R = R.unflatten(2, (sites.shape[1], -1))  # [B, windows, places, types, J]
    highest = R.new_zeros(len(R), layer.windows.padded, *R.shape[3:])
    for place, at in enumerate(sites.unbind(1)):  # at one place in the window, each window sees another child
        highest[:, at] = torch.maximum(highest[:, at], R[:, :, place])
    return highest.flatten(1, 2)


def stretched(temperatures: Sequence[float], steps: int) -> list[float]:
    r"""The inverse temperatures of a training, interpolated to another number of steps.

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
    """Inside the ``with`` block all routings of a network make this number of steps; 1 is uniform assignment.

    EM routing keeps the first and the last inverse temperature of its training, and so its sharpness where that changes
    from step to step: see :func:`stretched`.

    Args:
        network: any network of torchcaps layers.
        steps: at least 1.

    Raises:
        ValueError: if ``steps`` is no whole number, or less than 1, if nothing in the network routes, or a routing has
            no number of steps.
    """
    check_size(steps=steps)
    routings: list[Any] = [module for module in network.modules() if isinstance(module, Routing)]
    if not routings:
        raise ValueError(f"network must route, but {type(network).__name__} has no routing")
    without = [type(routing).__name__ for routing in routings if "steps" not in vars(routing)]
    if without:
        raise ValueError(f"network must route in steps, but {', '.join(without)} does not")
    changed = ("steps", "schedule", "sharpness")
    before = [{name: value for name, value in vars(one).items() if name in changed} for one in routings]
    try:
        for routing in routings:
            if isinstance(routing, EMRouting) and steps != routing.steps:
                routing.schedule = _stretched_schedule(routing, steps)
                if isinstance(routing.sharpness, list) and routing.sharpness:
                    routing.sharpness = stretched(routing.sharpness, steps - 1)[: steps - 1]  # one each E-step
            routing.steps = steps
        yield
    finally:
        for routing, settings in zip(routings, before, strict=True):
            for name, value in settings.items():
                setattr(routing, name, value)


def _stretched_schedule(routing: EMRouting, steps: int) -> Callable[[int, int], float]:
    """A schedule of EM routing over another number of steps."""
    trained = inverse_temperatures(routing.schedule, routing.steps, 1.0)  # the routing multiplies its own scale on
    temperatures = stretched(trained, steps)
    return lambda step, steps: temperatures[step]


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
        return [health for health in self.layers.values() if health.entropy is not None][-1]

    @property
    def first(self) -> Health:
        """Of the lowest capsules."""
        return next(iter(self.layers.values()))


def at_steps(network: Any, test: ImageSet, steps: int, observed: int) -> AtSteps:
    """What a network does if all its routings make this number of steps.

    Args:
        network: a classifier with capsules.
        test: images, prepared for it.
        steps: see :func:`routing_steps`.
        observed: how many of the images the health of the layers is measured on.
    """
    with routing_steps(network, steps):
        findings = examine(network, test, batch_size=64)
        images = test.__getitems__(list(range(min(observed, len(test))))).images
        return AtSteps(100 * findings.accuracy, findings.prediction, layer_health(network, images))
