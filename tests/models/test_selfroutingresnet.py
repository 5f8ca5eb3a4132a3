"""The residual network with self-routed classes."""

import pytest
import torch

from torchcaps import create_model
from torchcaps.testing import check_model

SMALL = {"channels": 4, "blocks": 1, "types": 3, "pose_dim": 4, "classes": 3}


def test_classes_written_out() -> None:
    """Activations as published, poses the means of the children."""
    torch.manual_seed(0)
    model = (
        create_model("self_routing_resnet20", image_shape=(1, 9, 10), **SMALL)
        .double()
        .eval()
    )
    torch.nn.init.normal_(model.routing.weight)
    torch.nn.init.normal_(model.routing.bias)
    images = torch.rand(2, 1, 9, 10, dtype=torch.float64)
    pose, a = model.children_of(images).flatten()
    r = (
        torch.einsum("bip,ijp->bij", pose, model.routing.weight) + model.routing.bias
    ).softmax(-1)
    shares = a[..., None] * r
    capsules = model(images).capsules
    torch.testing.assert_close(
        capsules.activation,
        shares.sum(1) / a.sum(1, keepdim=True),
        rtol=1e-9,
        atol=1e-12,
    )
    mean = torch.einsum("bij,bip->bjp", shares, pose) / shares.sum(1)[..., None]
    torch.testing.assert_close(capsules.pose, mean, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("depth", [1, 3])
def test_all_that_holds_for_networks(depth: int) -> None:
    """With children that choose: where all choose alike, no gradient reaches their
    poses.
    """
    torch.manual_seed(0)
    model = create_model(
        "self_routing_resnet20", image_shape=(2, 9, 12), depth=depth, **SMALL
    )
    for name, parameter in model.named_parameters():
        if "routing" in name:
            torch.nn.init.normal_(parameter)
    check_model(model, skip=("export", "other_images_and_classes"))
    for shape in ((1, 8, 8), (3, 13, 10)):
        other = create_model(
            "self_routing_resnet20",
            image_shape=shape,
            depth=depth,
            **{**SMALL, "classes": 4},
        )
        assert other(torch.rand(2, *shape)).capsules.pose.shape == (2, 4, 4)


def test_classes_have_nothing_to_draw() -> None:
    model = create_model("self_routing_resnet20", image_shape=(1, 8, 8), **SMALL)
    model.class_caps.reset_parameters()
    assert torch.equal(model.class_caps.weight, torch.eye(4).expand(1, 3, 4, 4))
