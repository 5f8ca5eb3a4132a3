"""The networks of variational Bayes routing and of inverted dot-product attention."""

import math

import pytest
import torch
from torch.nn import functional as F

from torchcaps import create_model

SMALL = {
    "channels": (4, 6),
    "blocks": (1, 1),
    "types": 3,
    "pose": (2, 2),
    "classes": 3,
}


def test_published_layers_and_initial_weights_of_bayes() -> None:
    torch.manual_seed(0)
    model = create_model("vbcapsnet")
    assert model.children_of(torch.rand(2, 2, 32, 32)).pose.shape == (2, 4, 4, 16, 4, 4)
    for caps, fans in (
        (model.conv_caps1, (8 + 16) * 9 * 16),
        (model.class_caps, (16 + 5) * 16),
    ):
        bound = math.sqrt(6 / fans)
        assert 0.95 * bound < caps.weight.abs().max() <= bound
    assert not model.routing.unit_cost.any()


def test_primary_capsules_have_one_scale_a_type() -> None:
    """Over the batch, the places and the numbers of a pose."""
    torch.manual_seed(0)
    model = create_model("vbcapsnet")
    pose = model.primary_of(torch.rand(4, 2, 32, 32)).pose.transpose(0, 3).flatten(1)
    torch.testing.assert_close(pose.mean(1), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        pose.std(1, correction=0), torch.ones(8), rtol=1e-2, atol=0
    )


def test_published_layers_of_attention() -> None:
    model = create_model("attentioncapsnet")
    assert model.class_caps.in_capsules == 5 * 5 * 32
    assert model.class_caps.weight.std().item() == pytest.approx(
        (10 / (4 * 800)) ** 0.5, rel=0.05
    )


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_classes_written_out(rounds: int) -> None:
    """Score and softmax of what the last routing gives, which ``route`` shows."""
    torch.manual_seed(0)
    model = (
        create_model(
            "attentioncapsnet", image_shape=(1, 15, 16), rounds=rounds, **SMALL
        )
        .double()
        .eval()
    )
    images = torch.rand(2, 1, 15, 16, dtype=torch.float64)
    prediction = model(images)
    routed = model.route(images)
    torch.testing.assert_close(
        prediction.capsules.pose.flatten(2), routed.pose, rtol=1e-9, atol=1e-12
    )
    scores = routed.pose @ model.score.weight[0] + model.score.bias
    torch.testing.assert_close(
        prediction.activation, scores.softmax(-1), rtol=1e-9, atol=1e-12
    )
    pose = model.children_of(images).pose.flatten(1, 3)
    votes = torch.einsum("bicp,ijpd->bijcd", pose, model.class_caps.weight).flatten(3)
    total = torch.einsum("bij,bijh->bjh", routed.assignment, votes)
    gain = model.routing.gain
    bias = model.routing.bias
    torch.testing.assert_close(
        routed.pose, F.layer_norm(total, (4,), gain, bias), rtol=1e-9, atol=1e-12
    )
