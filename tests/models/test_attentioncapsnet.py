"""The network of inverted dot-product attention."""

import pytest
import torch
from torch.nn import functional as F

from torchcaps import create_model

SMALL = {"channels": (4, 6), "blocks": (1, 1), "types": 3, "pose": (2, 2), "classes": 3}


def test_published_layers() -> None:
    model = create_model("attentioncapsnet")
    assert model.class_caps.in_capsules == 5 * 5 * 32
    assert model.class_caps.weight.std().item() == pytest.approx((10 / (4 * 800)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_classes_written_out(rounds: int) -> None:
    """Score and softmax of what the last routing gives, which ``route`` shows."""
    torch.manual_seed(0)
    model = create_model("attentioncapsnet", image_shape=(1, 15, 16), rounds=rounds, **SMALL).double().eval()
    images = torch.rand(2, 1, 15, 16, dtype=torch.float64)
    prediction, routed = model(images), model.route(images)
    torch.testing.assert_close(prediction.capsules.pose.flatten(2), routed.pose, rtol=1e-9, atol=1e-12)
    scores = routed.pose @ model.score.weight[0] + model.score.bias
    torch.testing.assert_close(prediction.activation, scores.softmax(-1), rtol=1e-9, atol=1e-12)
    pose = model.children_of(images).pose.flatten(1, 3)
    votes = torch.einsum("bicp,ijpd->bijcd", pose, model.class_caps.weight).flatten(3)
    total = torch.einsum("bij,bijh->bjh", routed.assignment, votes)
    gain, bias = model.routing.gain, model.routing.bias
    torch.testing.assert_close(routed.pose, F.layer_norm(total, (4,), gain, bias), rtol=1e-9, atol=1e-12)
