"""Captum's methods run on layers that return capsules, and give what they promise;
pairs stand for capsules.
"""

import warnings

import pytest
import torch
from torch import Tensor, nn

import torchcaps as tc
from tests.small_networks import SMALLER

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from captum import attr

LAYERS = [
    ("capsnet_digits", "primary_caps"),
    ("capsnet_digits", "class_caps"),
    ("efficient_capsnet", "primary_caps"),
    ("efficient_capsnet", "class_caps"),
    ("matrixcapsnet_small", "primary_caps"),
    ("matrixcapsnet_small", "conv_caps1"),
    ("matrixcapsnet_small", "class_caps"),
    ("sharedcapsnet", "class_caps"),
]
pytestmark = pytest.mark.filterwarnings("ignore")


def network_and_images(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    network = tc.create_model(name, **SMALLER.get(name, {})).eval()
    return network, network.examples(2)


def first_number(output: tuple[Tensor, Tensor]) -> Tensor:
    return output[0].flatten(1)[:, 0]


@pytest.mark.parametrize(("name", "place"), LAYERS)
def test_methods_of_a_layer(name: str, place: str) -> None:
    network, images = network_and_images(name)
    layer = network.get_submodule(place)

    def scores(images: Tensor) -> Tensor:
        return network(images).activation

    shapes = [
        tensor.shape for tensor in attr.LayerActivation(scores, layer).attribute(images)
    ]
    for method in (attr.LayerIntegratedGradients, attr.LayerConductance):
        attributions = method(scores, layer).attribute(images, target=1, n_steps=2)
        assert [tensor.shape for tensor in attributions] == shapes
        assert all(tensor.isfinite().all() for tensor in attributions)
    cam = attr.LayerGradCam(scores, layer).attribute(images, target=1)
    assert [tensor.shape[0] for tensor in cam] == [2, 2]
    neuron = attr.NeuronConductance(scores, layer).attribute(
        images, first_number, target=1, n_steps=2
    )
    assert neuron.shape == images.shape


@pytest.mark.parametrize("name", ["capsnet_digits", "sharedcapsnet"])
def test_methods_of_the_input(name: str) -> None:
    """Integrated gradients add up to the difference of the scores of image and
    baseline.
    """
    network, images = network_and_images(name)

    def scores(images: Tensor) -> Tensor:
        return network(images).activation

    pixels = attr.IntegratedGradients(scores).attribute(images, target=1, n_steps=100)
    difference = (scores(images) - scores(torch.zeros_like(images)))[:, 1]
    torch.testing.assert_close(
        pixels.flatten(1).sum(1).float(), difference, rtol=0.02, atol=2e-3
    )
    assert attr.Saliency(scores).attribute(images, target=1).shape == images.shape


def test_what_is_not_used_gets_nothing() -> None:
    """Dynamic routing has no use for the activations of children."""
    network, images = network_and_images("capsnet_digits")
    layer = attr.LayerConductance(
        lambda images: network(images).activation, network.primary_caps
    )
    pose, activation = layer.attribute(images, target=1, n_steps=2)
    assert pose.any()
    assert not activation.any()


CHILDREN = tc.Capsules(torch.rand(2, 5, 5, 3, 4), torch.rand(2, 5, 5, 3))


@pytest.mark.parametrize(
    "layer",
    [
        tc.CapsLinear(75, 2, 4, 4),
        tc.CapsConv2d(3, 2, 4, 4, 3, residual=True, pose_norm="type"),
        tc.ClassCaps(3, 2, 4, 4),
        tc.layers.LocalCaps(3, 2, 4, 4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_a_pair_stands_for_capsules(layer: nn.Module) -> None:
    layer.eval()
    expected = layer(CHILDREN)
    parents = layer((CHILDREN.pose, CHILDREN.activation))
    assert isinstance(parents, tc.Capsules)
    assert torch.equal(parents.pose, expected.pose)
    with layer.register_forward_hook(
        lambda module, inputs, output: (output.pose, output.activation)
    ):
        assert isinstance(layer(CHILDREN), tc.Capsules)
    if hasattr(layer, "route"):
        layer.route((CHILDREN.pose, CHILDREN.activation))


def test_a_pair_is_decoded() -> None:
    network, images = network_and_images("capsnet_digits")
    capsules = network.encode(images)
    assert torch.equal(network.decode(tuple(capsules)), network.decode(capsules))


def test_a_pair_is_differentiated_as_capsules_are() -> None:
    children = [field[:, 0, 0].double().requires_grad_() for field in CHILDREN]
    layer = tc.CapsLinear(3, 2, 4, 4, routing=tc.create_routing("em")).double()
    assert torch.autograd.gradcheck(
        lambda *pair: layer(pair).pose, children, check_forward_ad=False
    )
    ones = tuple(torch.ones_like(field) for field in children)
    _, tangent = torch.func.jvp(
        lambda *pair: tuple(tc.capsules.from_pair(pair)), tuple(children), ones
    )
    assert all(field.eq(1).all() for field in tangent)
