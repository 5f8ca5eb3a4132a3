"""Stacks of capsule layers: what the recipe trains and measures."""

import math
from typing import Any

import pytest
import torch

from recipes import RECIPES, Study
from recipes.depth import (
    BETWEEN,
    DEPTHS,
    LEAST,
    ROWS,
    CapsuleStack,
    relative_gradients,
    row_of,
)
from recipes.kit.base import TEST_ERROR
from torchcaps.capsules import Capsules
from torchcaps.testing import check_model

SMALL: dict[str, Any] = {
    "channels": 4,
    "types": 2,
    "hidden": 5,
    "dim": 4,
}


def stack(**arguments: Any) -> CapsuleStack:
    torch.manual_seed(0)
    return CapsuleStack(**SMALL, **arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("between", BETWEEN)
def test_the_network_holds_what_holds_for_every_network(between: Any) -> None:
    check_model(stack(depth=3, between=between, vote_bias=True))


@pytest.mark.parametrize("row", ROWS)
def test_rows_are_what_they_are_called(row: str) -> None:
    arguments = RECIPES["depth"].rows[row]["model_args"]
    network = stack(**arguments)
    assert len(network.routed_layers) == arguments["depth"] == int(row.split()[0])
    assert {layer.bias is not None for layer in network.routed_layers} == {
        "bias" in row
    }
    assert bool(network.norms) == ("normalised" in row)
    squashes = {layer.routing.squash for layer in network.routed_layers[:-1]}
    assert squashes <= ({"sabour"} if ", squashed" in row else {"none"})
    assert network.class_caps.routing.squash == "sabour"  # a length is a probability


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
def test_no_depth_tells_children_from_their_negatives_without_a_bias(
    depth: int, bias: bool
) -> None:
    network = stack(depth=depth, vote_bias=bias).eval()
    pose = torch.randn(3, 8, 4)
    activations = []
    for sign in (1, -1):
        capsules = Capsules(sign * pose, pose.norm(dim=-1))
        for layer in network.routed_layers:
            capsules = layer(capsules)
        activations.append(capsules.activation)
    assert torch.equal(*activations) == (not bias)


def test_gradients_are_relative_to_the_transforms() -> None:
    images = torch.rand(20, 1, 16, 16)
    network = stack(depth=3)
    actual = relative_gradients(network, images)
    shares = [
        (layer.weight.grad.norm() / layer.weight.norm()).item()
        for layer in network.routed_layers
    ]
    assert actual == pytest.approx([math.log10(share) for share in shares])
    silent = stack(depth=2)
    torch.nn.init.zeros_(
        silent.primary_caps.conv.weight
    )  # all poses are 0, and so are all gradients of transforms
    torch.nn.init.zeros_(silent.primary_caps.conv.bias)
    assert relative_gradients(silent, images) == [LEAST, LEAST]


def test_the_picture_is_of_the_seeds_that_have_a_row() -> None:
    figures = {row_of(depth, "squash", False): 2.0 * depth for depth in DEPTHS}
    study = Study(
        lab=None,
        settings=None,
        figures={(row, TEST_ERROR): figure for row, figure in figures.items()},
    )
    figure = RECIPES["depth"].pictures([study])["depth"].figure
    lines = [
        line.get_ydata().tolist()
        for line in figure.axes[0].lines
        if len(line.get_ydata())
    ]
    assert lines[0] == [2.0, 4.0, 8.0, 16.0]
