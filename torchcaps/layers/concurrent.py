"""Concurrent routing: all layers at once, each from what the others gave in the round
before.
"""

from collections.abc import Sequence
from typing import Any

from torchcaps.capsules import Capsules
from torchcaps.layers.classcaps import ClassCaps
from torchcaps.layers.conv import CapsConvNd
from torchcaps.layers.linear import CapsLinear
from torchcaps.numerics import check_size


def concurrent_routing(
    layers: Sequence[CapsLinear | CapsConvNd | ClassCaps],
    children: Capsules,
    rounds: int,
) -> list[Capsules]:
    """Route a stack of capsule layers concurrently.

    The first round routes the layers one after the other, from the bottom up. In each
    further round every layer makes the steps of its routing once more, from its own
    parents and its children as the round before left them. The authors use routings of
    one step: then ``rounds`` counts as the steps of sequential routing do. One round
    alone is sequential routing.

    Args:
        layers: from the bottom up; for more than one round, their routings must be
            ``resumable``.
        children: the children of the lowest layer.
        rounds: number of rounds.

    Returns:
        The capsules of each layer, from the bottom up.

    Raises:
        ValueError: if there is not at least one round, or a routing is not resumable.

    Source: Tsai et al. 2020, "Capsules with Inverted Dot-Product Attention Routing",
    section 2.2 and Procedure 2.
    """
    check_size(rounds=rounds)
    capsules = [children]
    routed: list[Any] = []
    if rounds == 1:
        for layer in layers:
            capsules.append(layer(capsules[-1]))
        return capsules[1:]
    for layer in layers:
        layer.set_hooked_weights()
        routed.append(layer.route(capsules[-1]))
        capsules.append(layer.parents(routed[-1], capsules[-1]))
    for _ in range(rounds - 2):
        below = list(zip(layers, capsules, routed, strict=False))
        routed = [
            layer.route(inputs, initial=parents) for layer, inputs, parents in below
        ]
        parents_of_layers = [
            layer.parents(parents, inputs)
            for (layer, inputs, _), parents in zip(below, routed, strict=True)
        ]
        capsules = [children, *parents_of_layers]
    # The last round calls the layers themselves, so that their hooks run, once for
    # each.
    below = list(zip(layers, capsules, routed, strict=False))
    return [layer(inputs, initial=parents) for layer, inputs, parents in below]
