"""Every layer of every network is seen as it ran, and its health is what the
definitions say.
"""

import math

import pytest
import torch
from torch import Tensor, nn

from torchcaps import (
    CapsConv1d,
    CapsConv2d,
    CapsConv3d,
    CapsLinear,
    Capsules,
    ClassCaps,
    PrimaryCaps,
    create_model,
    create_routing,
    list_models,
)
from torchcaps.models import CapsuleClassifier, ImageClassifier
from torchcaps.models.registry import MODELS
from torchcaps.routing import Routed
from torchcaps_lab.evaluate import (
    assignment_entropy,
    dead_capsules,
    layer_entropy,
    observe_layers,
    peak_activation,
)
from torchcaps_lab.evaluate.layers import Layer, below

SMALL = {
    "byerly": {"channels": 4, "growth": 2, "stages": (1, 2)},
    "capsnet": {
        "channels": 4,
        "types": 3,
        "primary_dim": 2,
        "pose_dim": 3,
        "decoder_hidden": None,
    },
    "matrixcapsnet": {"channels": 4, "types": (2, 3, 2), "pose": (2, 2)},
    "scene_capsnet": {
        "channels": (4, 6, 8),
        "child_dim": 5,
        "pose_dim": 3,
        "boxes": True,
    },
    "scene_cnn": {"channels": (4, 6, 8)},
    "sharedcapsnet": {"channels": (4, 4, 4, 4)},
    "capsnet_on_backbone": {
        "widths": (4, 6),
        "types": 3,
        "primary_dim": 2,
        "pose_dim": 3,
    },
    "capsnet_on_backbone_cnn": {"widths": (4, 6)},
    "efficient_capsnet_multimnist": {"strides": (1, 1, 2, 1), "primary_kernel_size": 3},
    "heinsen_smallnorb": {"channels": 4, "strides": (1, 2, 1, 2), "parts": 3},
    "attentioncapsnet": {
        "channels": (4, 6),
        "blocks": (1, 1),
        "types": 3,
        "rounds": 3,
    },
}


def odd_model(name: str) -> ImageClassifier:
    """A registered network with few channels, for 2 x 21 x 23 images of 3 classes."""
    torch.manual_seed(0)
    family = name.split("_")[0]
    arguments = SMALL.get(family, {})
    if name in SMALL:
        arguments = SMALL[name]
    elif name.endswith("_cnn"):
        arguments = {"channels": arguments["channels"], "hidden": 4}
    if name == "matrixcapsnet_cnn":
        arguments["channels"] = (4, 4)
    if name in ("capsnet_cnn", "capsnet_small_cnn"):
        arguments = {"channels": (4, 4, 4), "hidden": (4, 4)}
    return create_model(name, image_shape=(2, 21, 23), classes=3, **arguments).eval()


IMAGES = torch.rand(2, 2, 21, 23, generator=torch.Generator().manual_seed(1))


SHIPPED = [
    name
    for name in list_models(takes="images")
    if MODELS[name].network.__module__.startswith("torchcaps.")
]


@pytest.mark.parametrize("name", SHIPPED)
@torch.no_grad()
def test_every_network_is_seen_as_it_runs(name: str) -> None:
    model = odd_model(name)
    layers = observe_layers(model, IMAGES)
    if not isinstance(model, CapsuleClassifier):
        assert layers.keys() <= {"slots"}  # those of networks without classes
        return
    classes = layers["class_caps"]
    assert list(layers)[-1] == "class_caps"
    expected = model.encode(IMAGES)
    torch.testing.assert_close(classes.capsules, expected)
    torch.testing.assert_close(
        classes.routed[0].assignment, model.route(IMAGES).assignment
    )
    torch.testing.assert_close(classes.children, model.children_of(IMAGES))
    for key, layer in layers.items():
        assert layer.module is getattr(model, key)
        if layer.routed:
            entropy = layer_entropy(layer)
            assert entropy.shape == (2,)
            assert bool((entropy > 0).all())
            assert bool((entropy <= 1 + 1e-5).all())
        assert 0 <= dead_capsules(peak_activation(layer.capsules)) <= 1
    assert not any(module._forward_hooks for module in model.modules())


@torch.no_grad()
def test_the_layers_of_a_matrix_capsule_network() -> None:
    model = odd_model("matrixcapsnet")
    layers = observe_layers(model, IMAGES)
    assert list(layers) == ["primary_caps", "conv_caps1", "conv_caps2", "class_caps"]
    for name, capsules in model.layers_of(IMAGES).items():
        torch.testing.assert_close(layers[name].capsules, capsules)
    chain = [None, "primary_caps", "conv_caps1", "conv_caps2"]
    for layer, lower in zip(layers.values(), chain, strict=True):
        actual = below(layers, layer)
        assert (actual and actual.name) == lower
    routed = model.conv_caps1.route(layers["primary_caps"].capsules)
    torch.testing.assert_close(
        layers["conv_caps1"].assignment().flatten(0, 1), routed.assignment
    )


class Own(nn.Module):
    """A network of one's own: nested names, a block that passes capsules on, a layer
    used twice, bare poses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(PrimaryCaps(1, 2, 4, kernel_size=3, stride=1))
        self.again = CapsConv2d(
            2, 2, 4, 4, 3, padding=1, routing=create_routing("dynamic")
        )
        self.last = CapsLinear(None, 3, 4, 5, transforms="shared")
        self.runs = 0

    def forward(self, images: Tensor) -> Tensor:
        self.runs += 1
        return self.last(
            self.again(children=self.again(self.first(images))).pose
        ).activation


def test_a_network_of_ones_own() -> None:
    torch.manual_seed(0)
    model = Own()
    layers = observe_layers(model, torch.rand(2, 1, 5, 6))
    assert list(layers) == ["first.0", "again", "again_2", "last"]
    assert model.runs == 1
    assert below(layers, layers["last"]) is layers["again_2"]  # known by its poses
    assert below(layers, layers["again_2"]) is layers["again"]
    assert below(layers, layers["again"]) is layers["first.0"]
    torch.testing.assert_close(
        layers["last"].children.activation, layers["again_2"].capsules.pose.norm(dim=-1)
    )
    assert layers["last"].capsules.activation.requires_grad  # gradients are left on
    with pytest.raises(ValueError, match=r"layer first\.0 routes nothing"):
        layer_entropy(layers["first.0"])


def test_an_error_leaves_no_hooks() -> None:
    model = Own()
    with pytest.raises(ValueError, match="features must be"):
        observe_layers(model, torch.rand(2, 3, 5, 6))
    assert not any(module._forward_hooks for module in model.modules())


def conv_layer(
    R: Tensor, competition: str, size: tuple[int, int], types: int, **options: int
) -> Layer:
    """A convolutional layer of one image with assignments (windows, I, J) made by
    hand.
    """
    J = R.shape[-1]
    module = CapsConv2d(types, J, 2, 2, competition=competition, **options)
    children = Capsules(torch.zeros(1, *size, types, 2), torch.ones(1, *size, types))
    parents = Capsules(torch.zeros(1, 1, len(R), J, 2), torch.ones(1, 1, len(R), J))

    class Given(Routed):
        @property
        def assignment(self) -> Tensor:
            return R

    return Layer("conv", module, parents, children, (Given(*[None] * 4),))


def entropy(*shares: float) -> float:
    """Of one child, in units of its largest."""
    return -sum(share * math.log(share) for share in shares if share) / math.log(
        len(shares)
    )


def test_entropy_of_image_wide_competition_by_hand() -> None:
    # Three positions in a row, windows of two: the middle child is seen by both
    # windows, each with two parents.
    R = torch.tensor([[[1.0, 0.0], [0.1, 0.2]], [[0.3, 0.4], [0.5, 0.5]]])
    layer = conv_layer(R, "image", (1, 3), 1, kernel_size=(1, 2))
    expected = (entropy(1, 0) + entropy(0.1, 0.2, 0.3, 0.4) + entropy(0.5, 0.5)) / 3
    assert layer_entropy(layer).item() == pytest.approx(expected, rel=1e-6)


def test_entropy_of_competition_in_each_window_by_hand() -> None:
    R = torch.tensor([[[1.0, 0.0], [0.9, 0.1]], [[0.5, 0.5], [0.3, 0.7]]])
    layer = conv_layer(R, "window", (1, 3), 1, kernel_size=(1, 2))
    middle = (entropy(0.9, 0.1) + entropy(0.5, 0.5)) / 2
    expected = (entropy(1, 0) + middle + entropy(0.3, 0.7)) / 3
    assert layer_entropy(layer).item() == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(
        layer.scatter(layer.assignment()).sum(-1), torch.ones(1, 3)
    )


@pytest.mark.parametrize("competition", ["image", "window"])
def test_padding_and_children_that_no_window_sees_do_not_count(
    competition: str,
) -> None:
    # Padding of one to either side of four children, windows of two at a distance of
    # three: the third is not seen.
    even = torch.full((2, 2, 2), 0.5)
    even[0, 0] = torch.tensor([1.0, 0.0])  # padding, decided
    layer = conv_layer(
        even, competition, (1, 4), 1, kernel_size=(1, 2), stride=3, padding=(0, 1)
    )
    assert layer.windows.out == (1, 2)
    torch.testing.assert_close(layer_entropy(layer), torch.ones(1))
    assert layer.inside(layer.scatter(torch.ones_like(layer.assignment())))[
        0, 0, :, 0, 0
    ].tolist() == [1, 0, 1, 1]


@pytest.mark.parametrize("competition", ["image", "window"])
@torch.no_grad()
def test_layers_over_a_sequence_and_a_volume(competition: str) -> None:
    torch.manual_seed(0)
    for layer, size in ((CapsConv1d, (7,)), (CapsConv3d, (3, 4, 5))):
        module = layer(
            2,
            3,
            4,
            4,
            3,
            padding=1,
            competition=competition,
            routing=create_routing("dynamic"),
        )
        children = Capsules(torch.randn(2, *size, 2, 4), torch.rand(2, *size, 2))
        (seen,) = observe_layers(module, children).values()
        shares = seen.inside(seen.scatter(seen.assignment()).sum(-1, keepdim=True))
        assert shares.shape == (2, *size, 2, 1)
        torch.testing.assert_close(shares, torch.ones_like(shares))
        entropy = layer_entropy(seen)
        assert bool((entropy > 0.5).all())
        assert bool((entropy < 1).all())


@pytest.mark.parametrize("competition", ["image", "window"])
@torch.no_grad()
def test_before_the_first_step_all_parents_get_the_same(competition: str) -> None:
    layer = CapsConv2d(
        4,
        6,
        3,
        3,
        3,
        competition=competition,
        routing=create_routing("em", steps=1),
    )
    children = Capsules(torch.rand(2, 5, 6, 4, 3), torch.rand(2, 5, 6, 4))
    (seen,) = observe_layers(layer, children).values()
    torch.testing.assert_close(layer_entropy(seen), torch.ones(2))


@torch.no_grad()
def test_one_window_is_a_linear_layer() -> None:
    torch.manual_seed(0)
    layer = ClassCaps(2, 3, 4, 4)
    (seen,) = observe_layers(
        layer, Capsules(torch.randn(2, 3, 3, 2, 4), torch.rand(2, 3, 3, 2))
    ).values()
    torch.testing.assert_close(
        layer_entropy(seen), assignment_entropy(seen.routed[0].assignment)
    )
    assert layer_entropy(seen).max() < 0.99


def test_a_type_is_dead_that_is_active_nowhere() -> None:
    activation = torch.zeros(2, 3, 3, 4)
    activation[1, 2, 0, 1] = 0.5
    activation[:, :, :, 2] = 0.01
    capsules = Capsules(activation[..., None], activation)
    assert peak_activation(capsules).tolist() == [
        [0, 0, pytest.approx(0.01), 0],
        [0, 0.5, pytest.approx(0.01), 0],
    ]
    assert dead_capsules(peak_activation(capsules), 0.02) == 0.75
    assert dead_capsules(peak_activation(capsules), 0.005) == 0.5
    one_type = Capsules(activation[..., 1, None], activation[..., 1])
    assert dead_capsules(peak_activation(one_type)) == 0
    flat = Capsules(activation[:, 2, 0, :, None], activation[:, 2, 0])
    assert dead_capsules(peak_activation(flat), 0.02) == 0.75


@torch.no_grad()
def test_a_bias_that_kills_types_is_noticed() -> None:
    model = odd_model("matrixcapsnet")
    assert (
        dead_capsules(
            peak_activation(observe_layers(model, IMAGES)["primary_caps"].capsules)
        )
        == 0
    )
    model.primary_caps.activation_conv.weight.zero_()
    model.primary_caps.activation_conv = nn.Conv2d(4, 2, 1)
    nn.init.zeros_(model.primary_caps.activation_conv.weight)
    model.primary_caps.activation_conv.bias.copy_(torch.tensor([0.0, -20.0]))
    assert (
        dead_capsules(
            peak_activation(observe_layers(model, IMAGES)["primary_caps"].capsules)
        )
        == 0.5
    )
