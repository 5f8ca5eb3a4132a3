"""Heinsen's network for smallNORB."""

import pytest
import torch
from torch.nn import functional as F

from torchcaps import Capsules, create_model, negative_log_likelihood
from torchcaps.models import HeinsenCapsNet
from torchcaps.testing import check_model


def test_initial_weights() -> None:
    model = create_model("heinsen_smallnorb")
    assert model.part_caps.weight.std().item() == pytest.approx(1 / 4, rel=0.1)
    assert not model.routing.bias.any()
    assert not model.routing.benefit.any()


def small() -> HeinsenCapsNet:
    torch.manual_seed(0)
    model = HeinsenCapsNet(
        (2, 11, 12), 3, channels=6, strides=(1, 2, 2), parts=4, pose=(2, 3)
    )
    for layer in (model.part_caps, model.class_caps):
        for parameter in layer.routing.parameters():
            torch.nn.init.normal_(parameter)
    return model


def route(
    V: torch.Tensor, a: torch.Tensor, use: torch.Tensor, ignore: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Algorithm 1 of the paper on stored votes (B, I, J, c, d) and logits."""
    f = a.sigmoid()[..., None]
    R = torch.full(V.shape[:3], 1 / V.shape[2], dtype=V.dtype)
    for _ in range(3):
        used = f * R
        out = (use * used).sum(1) - (ignore * (f - used)).sum(1)
        over = used.sum(1)[..., None, None] + 1e-5
        mu = (used[..., None, None] * V).sum(1) / over
        away = (V - mu[:, None]) ** 2
        s2 = (used[..., None, None] * away).sum(1) / over + 1e-5
        log_p = (
            -(away / (2 * s2[:, None])).sum((-2, -1))
            - s2.sqrt().log().sum((-2, -1))[:, None]
        )
        R = (F.logsigmoid(out)[:, None] + log_p).softmax(-1)
    return out, mu


def test_network_written_out() -> None:
    """From the features on as in the paper: scores are logits, and their softmax is
    what the classes get.
    """
    model = small().double().eval()
    images = torch.rand(
        2, 2, 13, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    rows = torch.linspace(-1, 1, 13).double()
    columns = torch.linspace(-1, 1, 12).double()
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(
        2, -1, -1, -1
    )
    x = model.features(torch.cat([images, grid], 1))
    a = model.activations(x).flatten(1)
    mu = model.poses(x).unflatten(1, (4, 2, 3)).permute(0, 1, 4, 5, 2, 3).flatten(1, 3)
    for layer in (model.part_caps, model.class_caps):
        bias = layer.routing.bias.unflatten(-1, (2, 3))
        weight = layer.weight.expand(mu.shape[1], -1, -1, -1)
        votes = torch.einsum("bicp,ijpd->bijcd", mu, weight) + bias
        a, mu = route(votes, a, layer.routing.benefit, layer.routing.cost)
    prediction = model(images)
    torch.testing.assert_close(
        prediction.activation, a.softmax(-1), rtol=1e-7, atol=1e-9
    )
    torch.testing.assert_close(prediction.capsules.pose, mu, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_scores_far_from_zero(dtype: torch.dtype) -> None:
    """Beyond 16 in float32, and 6 in bfloat16, the sigmoid of a score is 1: classes
    were alike, without gradient.
    """
    layer = small().class_caps.to(dtype)
    # With costs of the opposite sign a score is 4 times the benefit, whatever the
    # assignment
    with torch.no_grad():
        layer.routing.benefit.copy_(torch.tensor([20.0, 20.25, 20.125]))
        layer.routing.cost.copy_(-layer.routing.benefit)
    activation = layer(
        Capsules(torch.randn(2, 4, 2, 3, dtype=dtype), torch.ones(2, 4, dtype=dtype))
    ).activation
    expected = torch.tensor([80.0, 81.0, 80.5]).softmax(-1).expand(2, 3)
    torch.testing.assert_close(activation, expected.to(dtype))
    activation[:, 1].sum().backward()
    assert (layer.routing.benefit.grad != 0).all()


def test_all_that_holds_for_networks() -> None:
    """With betas that are not all 0, where no gradient reaches the transforms."""
    check_model(small(), skip=("other_images_and_classes", "export"))


@pytest.mark.thorough
def test_it_learns_from_where_it_starts() -> None:
    torch.manual_seed(0)
    shape = {
        "image_shape": (1, 11, 12),
        "classes": 3,
        "channels": 8,
        "parts": 4,
        "strides": (1, 2, 2),
    }
    model = create_model("heinsen_smallnorb", **shape)
    images = torch.rand(6, 1, 11, 12)
    labels = torch.arange(6) % 3
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        losses.append(negative_log_likelihood(model(images).activation, labels))
        losses[-1].backward()
        optimizer.step()
    assert all((parameter.grad != 0).any() for parameter in model.parameters())
    assert (
        min(losses) < 0.8 * losses[0]
    )  # where it is between two bursts is a matter of rounding
