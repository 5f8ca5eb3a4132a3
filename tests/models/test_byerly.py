"""The network of homogeneous vector capsules in branches."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps import create_model, create_routing

SMALL = {"channels": 4, "growth": 2, "stages": (1, 2), "classes": 3}


@pytest.mark.parametrize(
    ("name", "children"),
    [
        ("byerly", [(22 * 22, 64), (16 * 16, 112), (10 * 10, 160)]),
        ("byerly_maps", [(64, 22 * 22), (112, 16 * 16), (160, 10 * 10)]),
    ],
)
def test_published_layers(name: str, children: list[tuple[int, int]]) -> None:
    model = create_model(name)
    assert [
        (branch.in_capsules, *branch.in_pose) for branch in model.branches
    ] == children


def normalised(x: Tensor, axis: int) -> Tensor:
    """As the published code does it in training: over all axes but one, without a
    gain.
    """
    axes = [axis_of_mean for axis_of_mean in range(x.ndim) if axis_of_mean != axis]
    mean = x.mean(axes, keepdim=True)
    variance = x.var(axes, correction=0, keepdim=True)
    return (x - mean) / (variance + 1e-3).sqrt()


@pytest.mark.parametrize("capsules_from", ["positions", "maps"])
def test_written_out(capsules_from: str) -> None:
    torch.manual_seed(0)
    model = (
        create_model(
            "byerly", image_shape=(2, 8, 9), capsules_from=capsules_from, **SMALL
        )
        .double()
        .train()
    )
    for name, parameter in model.named_parameters():
        if "bias" in name or "branch_weight" in name:
            torch.nn.init.normal_(parameter)
    images = torch.rand(4, 2, 8, 9, dtype=torch.float64)
    features, scores = images, []
    for stage, branch in zip(model.convolutions, model.branches, strict=True):
        for convolution, norm in zip(stage[::3], stage[1::3], strict=True):
            summed = normalised(F.conv2d(features, convolution.weight), 1)
            features = (summed + norm.bias[:, None, None]).relu()
        b, c, h, w = features.shape
        if capsules_from == "positions":
            u = torch.stack(
                [features[:, :, y, x] for y in range(h) for x in range(w)], 1
            )
        else:
            u = torch.stack([features[:, k].reshape(b, h * w) for k in range(c)], 1)
        total = (u[:, :, None] * branch.routing.scale).sum(1)  # [B, E, H]
        pose = (normalised(total, 2) + branch.routing.bias).relu()
        scores.append(pose.square().sum(-1).sqrt())
    merged = normalised(torch.stack(scores, 2) * model.branch_weight, 2).sum(2)
    capsules = model(images).capsules
    torch.testing.assert_close(
        capsules.activation, merged.softmax(1), rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(capsules.pose, pose, rtol=1e-9, atol=1e-12)


def test_any_routing() -> None:
    model = create_model(
        "byerly",
        image_shape=(1, 8, 8),
        routing=create_routing("dynamic", steps=2),
        **SMALL,
    )
    prediction = model(torch.rand(2, 1, 8, 8))
    torch.testing.assert_close(prediction.activation.sum(1), torch.ones(2))


def test_no_transforms_that_nobody_uses() -> None:
    """Of matrices for every pair, 64 x 10 x 484 x 484 numbers, nothing is drawn or
    kept.
    """
    layer = create_model("byerly_maps").branch1
    assert layer.in_capsules == 64
    assert (
        sum(tensor.numel() for tensor in layer.buffers() if tensor.ndim > 1)
        == 484 * 484
    )


def test_batch_normalisation_over_processes() -> None:
    """What ``sync_batchnorm`` makes of the network says the same; it normalises axis 1,
    and was given another one.
    """
    torch.manual_seed(0)
    model = create_model("byerly", image_shape=(1, 8, 9), **SMALL).train()
    images = torch.rand(4, 1, 8, 9)
    model(images)  # statistics that are not those of the start
    model.eval()
    expected = model(images).activation
    converted = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted.merge_norm, torch.nn.SyncBatchNorm)
    torch.testing.assert_close(converted(images).activation, expected)
