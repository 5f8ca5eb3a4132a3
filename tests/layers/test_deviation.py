"""Poses of ten stacked routed layers at the start: normalised, past the routing, or by
their initial transforms.
"""

from typing import Any

import pytest
import torch
from torch import nn

from torchcaps import CapsConv2d, Capsules, ClassCaps, create_model
from torchcaps.layers import preserve_deviation
from torchcaps.routing import EMRouting
from torchcaps_lab.evaluate import observe_layers

ROUTINGS = pytest.mark.parametrize(
    ("preset", "steps"), [("soft", 1), ("soft", 3), ("paper", 1), ("paper", 3)]
)
COMPETITIONS = pytest.mark.parametrize("competition", ["image", "window"])
DEPTH = 10


def capsules(seed: int, batch: int = 4, size: int = 8) -> Capsules:
    generator = torch.Generator().manual_seed(seed)
    pose = torch.randn(batch, size, size, 4, 4, 4, generator=generator)
    return Capsules(pose, torch.rand(batch, size, size, 4, generator=generator))


def stacked(
    preset: str,
    steps: int,
    competition: Any,
    strides: tuple[int, ...] = (2, 1, 1, 1, 1, 2),
    **options: Any,
) -> nn.Sequential:
    torch.manual_seed(0)
    routing = EMRouting.preset(preset, steps=steps)
    layers = []
    for stride in (*strides, *[1] * DEPTH)[:DEPTH]:
        shared = {"routing": routing, "competition": competition, **options}
        layers.append(
            CapsConv2d(
                4,
                4,
                (4, 4),
                (4, 4),
                3,
                stride,
                1,
                **shared,
            )
        )
    return nn.Sequential(*layers)


@torch.no_grad()
def deviations(layers: nn.Sequential, children: Capsules) -> list[float]:
    by_layer = [children.pose.std().item()]
    for layer in layers:
        children = layer(children)
        by_layer.append(children.pose.std().item())
    return by_layer


@pytest.mark.parametrize("kind", ["element", "type"])
@COMPETITIONS
@ROUTINGS
def test_normalised(preset: str, steps: int, competition: str, kind: str) -> None:
    by_layer = deviations(
        stacked(preset, steps, competition, pose_norm=kind), capsules(0)
    )
    assert max(by_layer) < 3 * min(by_layer)


@COMPETITIONS
@ROUTINGS
def test_initial_transforms(preset: str, steps: int, competition: str) -> None:
    """Without normalisation, on other children than those that the transforms were made
    for.
    """
    layers = stacked(preset, steps, competition)
    lost = deviations(layers[:3], capsules(0))
    assert lost[-1] < 0.3  # as they were: gone after three layers
    preserve_deviation(layers, capsules(0, 8, 10))
    by_layer = deviations(layers, capsules(1, 8, 10))
    assert max(by_layer) < 3 * min(by_layer)
    assert all(
        parameter.requires_grad and parameter.is_leaf
        for parameter in layers.parameters()
    )


@COMPETITIONS
@ROUTINGS
def test_an_identity_path(preset: str, steps: int, competition: str) -> None:
    """Without normalisation, at stride 1: the child at the parent's place passes by."""
    by_layer = deviations(
        stacked(preset, steps, competition, strides=(), residual=True), capsules(0)
    )
    assert max(by_layer) < 3 * min(by_layer)


def test_a_network() -> None:
    torch.manual_seed(0)
    model = create_model("matrixcapsnet_small", types=(2, 3, 4), pose_norm=None)
    images, more_images = torch.rand(2, 4, 2, 32, 32)
    class_transforms = model.class_caps.weight.clone()
    preserve_deviation(model, images)
    first, *following = (
        layer.capsules.pose.std()
        for layer in observe_layers(model, more_images).values()
    )
    for deviation in following[:2]:
        assert deviation.item() == pytest.approx(first.item(), rel=0.2)
    assert torch.equal(
        model.class_caps.weight, class_transforms
    )  # no parents of a convolution


def test_layers_that_keep_it_themselves_are_left() -> None:
    children = capsules(0)
    layers = nn.Sequential(
        CapsConv2d(4, 4, (4, 4), (4, 4), 3, padding=1, pose_norm="type"),
        CapsConv2d(4, 4, (4, 4), (4, 4), 3, padding=1, residual=True),
        ClassCaps(4, 3, (4, 4), (4, 4)),
    )
    before = [layer.weight.clone() for layer in layers]
    preserve_deviation(layers, children)
    assert all(
        torch.equal(layer.weight, weight)
        for layer, weight in zip(layers, before, strict=True)
    )


def test_constant_poses_stay_finite() -> None:
    layer = CapsConv2d(4, 4, (4, 4), (4, 4), 3)
    zeros = Capsules(torch.zeros(2, 4, 4, 4, 4, 4), torch.rand(2, 4, 4, 4))
    preserve_deviation(layer, zeros)
    assert layer.weight.isfinite().all()
    assert layer.weight.std() > 0.1
    masked = CapsConv2d(4, 4, (4, 4), (4, 4), 3)
    preserve_deviation(masked, capsules(0), torch.rand(4, 8, 8, 4) > 0.5)
    assert masked.weight.std() > 0.5


def test_a_plain_pair_is_taken_as_a_layer_takes_it() -> None:
    layer = CapsConv2d(2, 2, (2, 2), (2, 2), 3)
    pair = torch.randn(2, 5, 5, 2, 2, 2), torch.rand(2, 5, 5, 2)
    preserve_deviation(layer, pair)
    ratio = layer(pair).pose.std() / pair[0].std()
    assert ratio.item() == pytest.approx(1, abs=0.05)
