"""Poses that keep their scale from layer to layer."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.layers.test_deviation import deviations
from torchcaps import CapsConv2d, Capsules, create_model
from torchcaps.layers import PoseNorm, PrimaryCaps
from torchcaps.routing import EMRouting
from torchcaps.testing import assert_equivariant, orthogonal
from torchcaps_lab.evaluate import observe_layers
from torchcaps_lab.report import class_shares

KINDS = pytest.mark.parametrize("kind", ["element", "type"])


def capsules(
    *sites: int, scale: float = 1.0, shift: float = 0.0, seed: int = 0
) -> Capsules:
    generator = torch.Generator().manual_seed(seed)
    pose = shift + scale * torch.randn(
        *sites, 4, 3, generator=generator, dtype=torch.float64
    )
    return Capsules(pose, torch.rand(*sites, generator=generator, dtype=torch.float64))


def over_poses(norm: PoseNorm) -> Callable[[Capsules], Capsules]:
    return lambda children: children._replace(pose=norm(children.pose))


def test_element_standardises_each_element_of_each_type() -> None:
    inputs = capsules(5, 6, 7, 2, scale=3.0, shift=2.0)
    actual = PoseNorm(2, (4, 3)).double()(inputs.pose)
    mean = inputs.pose.mean((0, 1, 2))
    variance = inputs.pose.var((0, 1, 2), unbiased=False)
    torch.testing.assert_close(actual, (inputs.pose - mean) / (variance + 1e-5).sqrt())


def test_type_has_one_scale_a_type_and_no_shift() -> None:
    inputs = capsules(5, 6, 7, 2, scale=3.0, shift=2.0)
    actual = PoseNorm(2, (4, 3), "type").double()(inputs.pose)
    square = inputs.pose.square().mean((0, 1, 2, 4, 5))
    torch.testing.assert_close(
        actual, inputs.pose / (square + 1e-5).sqrt()[:, None, None]
    )


@KINDS
def test_running_statistics_are_those_of_the_batches(kind: Any) -> None:
    norm = PoseNorm(2, (4, 3), kind).double()
    batches = [capsules(200, 6, 2, scale=3.0, seed=seed) for seed in range(12)]
    for batch in batches:
        norm(batch.pose)
    norm.eval()
    torch.testing.assert_close(
        norm(batches[-1].pose), batches[-1].pose / 3, rtol=0.05, atol=0.1
    )
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    norm(capsules(3, 6, 2, scale=100.0).pose)
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items()
    )  # evaluation looks only


def test_a_change_of_viewpoint_passes_through_one_scale_but_not_through_one_an_element() -> (
    None
):
    inputs = capsules(5, 6, 7, 2, shift=1.0)
    rotation = orthogonal(4, torch.Generator().manual_seed(0))
    for training in (True, False):
        norm = PoseNorm(2, (4, 3), "type").double().train(training)
        assert_equivariant(over_poses(norm), inputs, rotation, atol=1e-6, rtol=1e-6)
    with pytest.raises(AssertionError, match="poses are off"):
        assert_equivariant(
            over_poses(PoseNorm(2, (4, 3), "element").double()), inputs, rotation
        )


@KINDS
def test_half_precision(kind: Any) -> None:
    pose = capsules(5, 6, 7, 2, scale=300.0).pose.bfloat16()
    actual = PoseNorm(2, (4, 3), kind)(pose)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(
        actual, PoseNorm(2, (4, 3), kind)(pose.float()).bfloat16()
    )


@KINDS
def test_gradcheck(kind: Any) -> None:
    norm = PoseNorm(2, (4, 3), kind).double()
    assert torch.autograd.gradcheck(norm, capsules(3, 2, 2).pose.requires_grad_())


@KINDS
def test_constant_poses_stay_finite(kind: Any) -> None:
    pose = torch.zeros(3, 2, 4, 3, requires_grad=True)
    actual = PoseNorm(2, (4, 3), kind)(pose)
    actual.sum().backward()
    assert actual.isfinite().all()
    assert pose.grad is not None
    assert pose.grad.isfinite().all()


@KINDS
def test_a_single_place_has_no_statistics_of_its_own(kind: Any) -> None:
    pose = capsules(1, 2).pose
    actual = PoseNorm(2, (4, 3), kind).double()(pose)
    if kind == "element":
        torch.testing.assert_close(
            actual, pose / math.sqrt(1 + 1e-5)
        )  # the running statistics at the start
    else:
        torch.testing.assert_close(
            actual.square().mean((0, 2, 3)),
            torch.ones(2, dtype=torch.float64),
            rtol=1e-3,
            atol=0,
        )


@KINDS
def test_an_empty_batch_leaves_the_statistics(kind: Any) -> None:
    norm = PoseNorm(2, (4, 3), kind)
    before = copy.deepcopy(norm.state_dict())
    assert norm(torch.empty(0, 5, 2, 4, 3)).shape == (0, 5, 2, 4, 3)
    torch.testing.assert_close(norm.state_dict(), before, rtol=0, atol=0)


def test_wrong() -> None:
    with pytest.raises(
        ValueError, match=r"^kind must be one of \['element', 'type'\], got 'layer'"
    ):
        PoseNorm(2, 4, "layer")
    for make in (
        lambda: CapsConv2d(2, 2, 4, 4, 1, pose_norm="layer"),
        lambda: PrimaryCaps(2, 2, 4, pose_norm="layer"),
    ):
        with pytest.raises(
            ValueError,
            match=r"^pose_norm must be one of \['element', 'type'\], got 'layer'",
        ):
            make()
    with pytest.raises(
        ValueError,
        match=r"poses must be \(B, \*sites, 3, 4, 3\), got shape \(1, 2, 4, 3\)",
    ):
        PoseNorm(3, (4, 3))(torch.zeros(1, 2, 4, 3))


def test_a_layer_is_observed_as_one() -> None:
    """The normalisation is a part of its layer, which keeps its name, windows and
    routing.
    """
    network = create_model("matrixcapsnet_small", pose_norm="element")
    layers = observe_layers(network, torch.rand(2, 2, 32, 32))
    assert list(layers) == ["primary_caps", "conv_caps1", "conv_caps2", "class_caps"]
    assert all(
        layers[name].routed for name in ("conv_caps1", "conv_caps2", "class_caps")
    )
    assert len(class_shares(layers)) == 3


def at_the_start(count: int, **options: Any) -> list[float]:
    """Deviations of the poses of stacked layers of EM routing."""
    torch.manual_seed(0)
    children = Capsules(torch.randn(8, 6, 6, 8, 4, 4), torch.rand(8, 6, 6, 8))
    shared = {
        "padding": 1,
        "routing": EMRouting.preset("standardised", sharpness="mean"),
        **options,
    }
    layers = [
        CapsConv2d(
            8,
            8,
            (4, 4),
            (4, 4),
            3,
            **shared,
        )
        for _ in range(count)
    ]
    return deviations(nn.Sequential(*layers), children)


@KINDS
def test_poses_of_ten_layers_keep_their_deviation(kind: Any) -> None:
    actual = at_the_start(10, pose_norm=kind)
    assert max(actual) < 3 * min(actual)
    assert at_the_start(3)[-1] < 0.01  # without, three layers are enough to lose them


def test_transforms_that_keep_the_deviation_of_a_mean_vote() -> None:
    torch.manual_seed(0)
    children = Capsules(torch.randn(16, 9, 9, 8, 4, 4), torch.ones(16, 9, 9, 8))
    layer = CapsConv2d(
        8, 64, (4, 4), (4, 4), 3, routing=EMRouting(steps=1), init_std=None
    )
    assert layer(children).pose.std().item() == pytest.approx(1.0, rel=0.1)


@KINDS
def test_running_statistics_in_half_precision(kind: str) -> None:
    """Of a network that is bfloat16 as a whole: computed in float32, kept in
    bfloat16.
    """
    torch.manual_seed(0)
    full, half = (
        PoseNorm(2, (2, 3), kind).to(dtype).train()
        for dtype in (torch.float32, torch.bfloat16)
    )
    poses = (3 + torch.randn(40, 5, 2, 2, 3)).bfloat16()
    for _ in range(4):
        actual = half(poses)
        expected = full(poses.float())
        assert actual.dtype == torch.bfloat16
        torch.testing.assert_close(actual, expected.bfloat16(), rtol=0.02, atol=0.02)
    for buffer, wanted in zip(half.buffers(), full.buffers(), strict=True):
        torch.testing.assert_close(
            buffer, wanted.to(buffer.dtype), rtol=0.02, atol=0.02
        )
    torch.testing.assert_close(
        half.eval()(poses), full.eval()(poses.float()).bfloat16(), rtol=0.05, atol=0.05
    )


@KINDS
def test_whole_numbers_are_normalised(kind: str) -> None:
    pose = torch.arange(2 * 5 * 2 * 4).view(2, 5, 2, 4)
    assert torch.equal(PoseNorm(2, 4, kind)(pose), PoseNorm(2, 4, kind)(pose.float()))


def test_capsules_in_place_of_poses_are_refused() -> None:
    with pytest.raises(TypeError, match="poses must be a tensor, got Capsules"):
        PoseNorm(2, (4, 3))(capsules(5, 2))
