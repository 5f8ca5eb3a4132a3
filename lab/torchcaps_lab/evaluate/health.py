"""The health of the routing, layer by layer: how decided it is, and what is dead."""

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from torchcaps_lab.evaluate.findings import in_parts
from torchcaps_lab.evaluate.layers import (
    Layer,
    dead_capsules,
    layer_entropy,
    observe_layers,
    peak_activation,
)


def routing_health(model: nn.Module, images: Tensor) -> dict[str, float]:
    """Entropy of the assignment and share of dead capsules of each layer.

    Runs in evaluation mode and without gradients; the network and all random number
    generators are left as they were.

    Args:
        model: any network of torchcaps layers.
        images: (B, C, H, W), at least one, on the device of the network.

    Returns:
        ``assignment_entropy_<layer>``, see :func:`~torchcaps_lab.evaluate.layer_entropy`,
        averaged over the images, for each layer that routes to several parents, and
        ``dead_capsules_<layer>``, see :func:`~torchcaps_lab.evaluate.dead_capsules`, for
        each layer of capsules; both in [0, 1]. Empty for a network without capsules.
    """
    device = images.device
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type=device.type):
        peaks, (entropies,) = observed_health(model, images, layer_entropy)
    health = {
        f"assignment_entropy_{name}": torch.cat(parts).mean().item()
        for name, parts in entropies.items()
    }
    dead = {
        f"dead_capsules_{name}": dead_capsules(torch.cat(parts))
        for name, parts in peaks.items()
    }
    return {**health, **dead}


_Parts = Mapping[str, list[Tensor]]


def observed_health(
    network: nn.Module, images: Tensor, *measures: Callable[[Layer], Tensor]
) -> tuple[_Parts, tuple[_Parts, ...]]:
    """The highest activation of each type of every layer, and measures (B,) of those
    whose routing decides something, a few images each.
    """
    peaks: dict[str, list[Tensor]] = defaultdict(list)
    parts_of_measures: tuple[dict[str, list[Tensor]], ...] = tuple(
        defaultdict(list) for _ in measures
    )

    def look(part: Tensor) -> None:
        for name, layer in observe_layers(network, part).items():
            peaks[name].append(peak_activation(layer.capsules).float())
            if layer.decides:
                for measure, parts in zip(measures, parts_of_measures, strict=True):
                    parts[name].append(measure(layer).float())

    for _ in in_parts(network, images, look):
        pass
    return peaks, parts_of_measures
