"""Concurrent routing against the loop that Tsai et al. 2020 write down."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from torchcaps import CapsConv2d, CapsLinear, Capsules, create_routing
from torchcaps.layers import concurrent_routing
from torchcaps.ops import Votes
from torchcaps.routing import AttentionRouting

B, T, P = 2, 2, 4


def network() -> tuple[nn.ModuleList, Capsules]:
    torch.manual_seed(0)
    routing = AttentionRouting(steps=1)
    layers = nn.ModuleList(
        [
            CapsConv2d(T, 3, P, P, 2, routing=routing, competition="window"),
            CapsLinear(4 * 3, 5, P, P, routing=routing),
            CapsLinear(5, 3, P, 6, routing=routing),
        ]
    ).double()
    return layers, Capsules(
        torch.randn(B, 3, 3, T, P).double(), torch.rand(B, 3, 3, T).double()
    )


def one_pass(layer: nn.Module, pose: Tensor, parents: Tensor | None) -> Tensor:
    """Of the authors' layers: from scratch, or from parents (B, J, D)."""
    votes = Votes(pose, layer.weight.flatten(0, -4))
    routing = AttentionRouting(steps=1)
    uniform = routing(votes)
    if parents is None:
        return uniform.pose
    return routing(votes, initial=uniform._replace(pose=parents)).pose


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_every_layer_from_the_round_before(rounds: int) -> None:
    layers, children = network()
    linear = list(layers)[1:]
    start = layers[0](children).pose  # its children never change
    steps = layers[0].route(children)
    bottom = [start]
    for _ in range(rounds - 1):
        steps = layers[0].route(children, initial=steps)
        bottom.append(layers[0].parents(steps, children).pose)
    values = [bottom[0].flatten(1, 3)]
    for layer in linear:
        values.append(one_pass(layer, values[-1], None))
    for number in range(1, rounds):
        new = [
            one_pass(layer, values[i], values[i + 1]) for i, layer in enumerate(linear)
        ]
        values = [bottom[number].flatten(1, 3), *new]
    routed = concurrent_routing(list(layers), children, rounds)
    for capsules, expected in zip(routed[1:], values[1:], strict=True):
        torch.testing.assert_close(capsules.pose, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(routed[0].pose, bottom[-1], rtol=1e-10, atol=1e-12)


def test_one_round_is_layer_by_layer() -> None:
    layers, children = network()
    expected = children
    for layer, capsules in zip(
        layers, concurrent_routing(list(layers), children, 1), strict=True
    ):
        expected = layer(expected)
        torch.testing.assert_close(capsules, expected)


def test_more_rounds_of_one_layer_are_more_steps() -> None:
    layers, children = network()
    (actual,) = concurrent_routing([layers[0]], children, 3)
    layers[0].routing.steps = 3
    torch.testing.assert_close(actual, layers[0](children))


def test_what_cannot_be() -> None:
    layers, children = network()
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        concurrent_routing(list(layers), children, 0)
    layer = CapsLinear(9 * T, 3, P, P, routing=create_routing("mean")).double()
    with pytest.raises(
        ValueError, match="MeanRouting cannot go on from earlier parents"
    ):
        concurrent_routing([layer], children, 2)


@pytest.mark.parametrize(
    "change",
    [partial(prune.l1_unstructured, name="weight", amount=0.3), nn.utils.spectral_norm],
    ids=["pruned", "spectral norm"],
)
def test_all_rounds_have_the_weights_of_hooks(
    change: Callable[[nn.Module], object],
) -> None:
    """Those before the last had the weights of the call before."""
    layers, children = network()
    for layer in layers:
        change(layer)
    layers.eval()
    concurrent_routing(list(layers), children, 3)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.mul_(0.5)
    changed, again = (
        concurrent_routing(list(layers), children, 3)[-1].pose for _ in range(2)
    )
    assert torch.equal(changed, again)
    for _ in range(2):  # a graph for each
        concurrent_routing(list(layers), children, 3)[-1].pose.sum().backward()
