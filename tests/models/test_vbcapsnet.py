"""The network of variational Bayes routing."""

import math

import torch

from torchcaps import create_model


def test_published_layers() -> None:
    model = create_model("vbcapsnet")
    children = model.children_of(torch.rand(2, 2, 32, 32))
    assert children.pose.shape == (2, 4, 4, 16, 4, 4)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = create_model("vbcapsnet")
    for caps, fans in ((model.conv_caps1, (8 + 16) * 9 * 16), (model.class_caps, (16 + 5) * 16)):
        bound = math.sqrt(6 / fans)
        assert 0.95 * bound < caps.weight.abs().max() <= bound
    assert not model.routing.unit_cost.any()


def test_primary_capsules_have_one_scale_a_type() -> None:
    """Over the batch, the places and the numbers of a pose."""
    torch.manual_seed(0)
    model = create_model("vbcapsnet")
    pose = model.primary_of(torch.rand(4, 2, 32, 32)).pose.transpose(0, 3).flatten(1)
    torch.testing.assert_close(pose.mean(1), torch.zeros(8), rtol=0, atol=1e-5)
    torch.testing.assert_close(pose.std(1, correction=0), torch.ones(8), rtol=1e-2, atol=0)
