"""Concurrent routing: all layers at once, each from what the others found in the round before."""

from collections.abc import Sequence
from typing import Any

from torchcaps.capsules import Capsules
from torchcaps.layers.classcaps import ClassCaps
from torchcaps.layers.conv import CapsConvNd
from torchcaps.layers.linear import CapsLinear


def concurrent_routing(
    layers: Sequence[CapsLinear | CapsConvNd | ClassCaps], children: Capsules, rounds: int
) -> list[Capsules]:
    """Capsule layers on top of each other, routed side by side.

    The first round goes through the layers once, from below. In each further round every layer makes the steps of its
    routing from its own parents and its children as they were after the round before. With routings of one step, the
    authors' way, ``rounds`` counts as their steps do, and 1 is the same as layer by layer.

    Args:
        layers: from below; their routings are ``resumable``.
        children: of the lowest layer.
        rounds: how many.

    Returns:
        The capsules of each layer, from below.

    Raises:
        ValueError: if there is not one round at least, or a routing cannot go on from earlier parents.

    Source: Tsai et al. 2020, "Capsules with Inverted Dot-Product Attention Routing", section 2.2 and Procedure 2.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    capsules = [children]
    routed: list[Any] = []
    if rounds == 1:
        for layer in layers:
            capsules.append(layer(capsules[-1]))
        return capsules[1:]
    for layer in layers:
        routed.append(layer.route(capsules[-1]))
        capsules.append(layer.parents(routed[-1], capsules[-1]))
    for _ in range(rounds - 2):
        below = list(zip(layers, capsules, routed, strict=False))
        routed = [layer.route(inputs, initial=parents) for layer, inputs, parents in below]
        found = [layer.parents(parents, inputs) for (layer, inputs, _), parents in zip(below, routed, strict=True)]
        capsules = [children, *found]
    # The last round calls the layers, so that hooks see each of them run once.
    below = list(zip(layers, capsules, routed, strict=False))
    return [layer(inputs, initial=parents) for layer, inputs, parents in below]
