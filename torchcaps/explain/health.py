"""The health of the routing, layer by layer."""

from collections import defaultdict

import torch
from torch import Tensor, nn

from torchcaps.explain.assignments import dead_capsules
from torchcaps.explain.findings import evaluating
from torchcaps.explain.layers import layer_entropy, observe_layers, peak_activation

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
        ``assignment_entropy_<layer>``, see :func:`~torchcaps.explain.layer_entropy`, averaged over the images, for each
        layer that routes, and ``dead_capsules_<layer>``, see :func:`~torchcaps.explain.dead_types`, for each layer of
        capsules; both in [0, 1]. Empty for a network without capsules.
    """
    entropies: dict[str, list[Tensor]] = defaultdict(list)
    peaks: dict[str, list[Tensor]] = defaultdict(list)
    devices = [images.device] if images.device.type == "cuda" else []
    with evaluating(model), torch.random.fork_rng(devices):
        for part in images.split(_AT_ONCE):
            for name, layer in observe_layers(model, part).items():
                peaks[name].append(peak_activation(layer.capsules).float())
                if layer.routed:
                    entropies[name].append(layer_entropy(layer).float())
    health = {f"assignment_entropy_{name}": torch.cat(parts).mean().item() for name, parts in entropies.items()}
    dead = {f"dead_capsules_{name}": dead_capsules(torch.cat(parts), threshold) for name, parts in peaks.items()}
    return {**health, **dead}
