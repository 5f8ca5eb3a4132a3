"""Efficient-CapsNet: the published sizes, its layers written out, its initial
weights.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchcaps import PrimaryCaps, create_model
from torchcaps.models import EfficientCapsNet, UpsamplingDecoder


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def numbers(module: nn.Module) -> int:
    """Parameters and running statistics, as Keras counts them."""
    buffers = (buffer for name, buffer in module.named_buffers() if "running" in name)
    return sum(tensor.numel() for tensor in (*module.parameters(), *buffers))


@pytest.mark.parametrize(
    ("name", "body", "trainable", "decoder", "maps"),
    [
        ("efficient_capsnet", 162_400, 161_824, 1_411_344, [24, 22, 20, 9]),
        ("efficient_capsnet_smallnorb", 151_664, 151_664, 229_570, [21, 19, 17, 8]),
        ("efficient_capsnet_multimnist", 155_232, 154_656, 1_936_144, [32, 30, 14, 6]),
    ],
)
def test_published_sizes(
    name: str, body: int, trainable: int, decoder: int, maps: list[int]
) -> None:
    model = create_model(name)
    assert numbers(model.decoder) == decoder
    assert numbers(model) - decoder == body
    assert sum(p.numel() for p in model.parameters()) - decoder == trainable
    features = images(1, *model.image_shape)
    results = []
    for layer in model.eval().features:
        features = layer(features)
        if isinstance(layer, nn.Conv2d):
            results.append(features.shape[-1])
    assert results == maps
    prediction = model(images(2, *model.image_shape))
    assert prediction.capsules.pose.shape == (2, model.classes, 16)
    assert model.children_of(images(2, *model.image_shape)).pose.shape == (
        2,
        1,
        1,
        16,
        8,
    )


def squash(pose: torch.Tensor) -> torch.Tensor:
    n = pose.norm(dim=-1, keepdim=True)
    return (1 - 1 / n.exp()) * pose / n


@pytest.mark.parametrize("norm", ["batch", "instance"])
def test_network_written_out(norm: str) -> None:
    """Each layer by its textbook formula, in float64."""
    torch.manual_seed(0)
    options = {
        "channels": (4, 6),
        "kernel_sizes": (3, 3),
        "strides": (1, 2),
        "primary_dim": 3,
        "pose_dim": 5,
    }
    model = EfficientCapsNet(
        (2, 12, 11), 3, norm=norm, slope=0.3, decoder_hidden=None, **options
    ).double()
    nn.init.normal_(model.class_caps.routing.offset)
    pictures = images(4, 2, 12, 11, dtype=torch.float64)
    x = pictures
    for convolution, scaling, stride in (
        (model.features[0], model.features[2], 1),
        (model.features[3], model.features[5], 2),
    ):
        x = F.leaky_relu(F.conv2d(x, convolution.weight, convolution.bias, stride), 0.3)
        axes = (0, 2, 3) if norm == "batch" else (2, 3)
        x = (x - x.mean(axes, keepdim=True)) / (
            x.var(axes, correction=0, keepdim=True) + 1e-3
        ).sqrt()
        x = x * scaling.weight[:, None, None] + scaling.bias[:, None, None]
    primary = model.primary_caps.conv
    channels = torch.einsum("bchw,chw->bc", x, primary.weight[:, 0]) + primary.bias
    u = squash(channels.view(4, 2, 3))  # capsule n: channels 3 n to 3 n + 2
    votes = torch.einsum("bip,ijpd->bijd", u, model.class_caps.weight)
    agreement = torch.einsum("bijd,bkjd->bij", votes, votes) / math.sqrt(5)
    coefficients = agreement.softmax(2) + model.class_caps.routing.offset
    v = squash((coefficients[..., None] * votes).sum(1))
    capsules = model.train()(pictures).capsules
    torch.testing.assert_close(capsules.pose, v, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        capsules.activation, v.norm(dim=-1), rtol=1e-10, atol=1e-12
    )


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = create_model("efficient_capsnet")
    weight = model.class_caps.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (10 * 16 * 8)), rel=0.02)
    assert weight.abs().max() <= 2 * math.sqrt(2 / 1280) / 0.8796
    for layer in model.features[3::3]:
        assert layer.weight.std().item() == pytest.approx(
            math.sqrt(2 / (9 * layer.in_channels)), rel=0.03
        )
        assert not layer.bias.any()
    depthwise = model.primary_caps.conv.weight
    bound = math.sqrt(6 / (81 * 129))
    assert 0.99 * bound < depthwise.abs().max() <= bound
    assert not model.primary_caps.conv.bias.any()
    assert not model.routing.offset.any()
    norm = create_model("efficient_capsnet_smallnorb").features[2]
    for parameter in (norm.weight, norm.bias):
        assert 0.03 < parameter.abs().max() <= 0.05


def test_images_that_are_too_small() -> None:
    for name, smallest in (
        ("efficient_capsnet", 11),
        ("efficient_capsnet_multimnist", 29),
    ):
        create_model(name, image_shape=(1, smallest, smallest), decoder_hidden=None)
        with pytest.raises(
            ValueError, match=f"image_shape must be at least {smallest} x {smallest}"
        ):
            create_model(name, image_shape=(1, smallest, smallest - 1))


def test_instance_normalisation_needs_two_places() -> None:
    """Of one it makes 0, whatever the image shows."""
    for shape in ((2, 19, 19), (2, 22, 22)):
        with pytest.raises(
            ValueError, match=r"more than one place under norm='instance'.*got \(2, "
        ):
            create_model("efficient_capsnet_smallnorb", image_shape=shape)
    model = create_model(
        "efficient_capsnet_smallnorb", image_shape=(2, 19, 23), decoder_channels=None
    )
    first, second = model.children_of(images(2, 2, 19, 23)).pose
    assert not torch.equal(first, second)
    create_model("efficient_capsnet", image_shape=(2, 11, 11), decoder_hidden=None)


@pytest.mark.parametrize("size", [1, 5, 9, 16, 28, 47, 48])
@pytest.mark.parametrize("convolutions", [1, 3])
def test_upsampling_decoder_draws_any_size(size: int, convolutions: int) -> None:
    decoder = UpsamplingDecoder(6, (2, size, size + 3), (3,) * convolutions)
    drawn = decoder(images(2, 3, 2))
    assert drawn.shape == (2, 2, size, size + 3)
    assert ((drawn > 0) & (drawn < 1)).all()


class TestDepthwisePrimaryCapsules:
    """Where one place is left, a product stands in for the convolution."""

    @pytest.mark.parametrize(
        ("size", "kernel", "stride"),
        [((9, 7), (9, 7), 1), ((6, 6), 5, 2), ((9, 7), 4, 2)],
    )
    def test_is_the_convolution(
        self, size: tuple[int, int], kernel: int, stride: int
    ) -> None:
        layer = PrimaryCaps(12, 3, 4, kernel, stride, groups=12, squash="none").double()
        features = images(3, 12, *size, dtype=torch.float64).requires_grad_()
        expected = layer.conv(features).movedim(1, -1).unflatten(-1, (3, 4))
        pose = layer(features).pose
        torch.testing.assert_close(pose, expected, rtol=1e-12, atol=1e-12)
        marks = torch.randn_like(expected)
        inputs = (features, layer.conv.weight, layer.conv.bias)
        for gradient, expected_gradient in zip(
            torch.autograd.grad((pose * marks).sum(), inputs),
            torch.autograd.grad((expected * marks).sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(
                gradient, expected_gradient, rtol=1e-12, atol=1e-12
            )
