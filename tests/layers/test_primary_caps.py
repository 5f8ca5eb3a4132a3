"""Primary capsules."""

import pytest
import torch
from torch import Tensor

from torchcaps import Capsules, PrimaryCaps, length, squash


def features(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_a_capsule_is_the_channels_of_one_type_at_one_position() -> None:
    """A 1x1 convolution that passes channels through: each number of the map says where
    it came from.
    """
    types = 3
    dim = 4
    height = 2
    width = 5
    layer = PrimaryCaps(types * dim, types, dim, kernel_size=1, stride=1, squash="none")
    layer.conv.weight.data = torch.eye(types * dim)[..., None, None]
    layer.conv.bias.data.zero_()
    origin = torch.arange(types * dim * height * width, dtype=torch.float32).view(
        1, types * dim, height, width
    )
    pose, _ = layer(origin)
    assert pose.shape == (1, height, width, types, dim)
    for row, column, kind in ((0, 0, 0), (1, 3, 2), (0, 4, 1)):
        assert torch.equal(
            pose[0, row, column, kind],
            origin[0, kind * dim : (kind + 1) * dim, row, column],
        )


@pytest.mark.parametrize("kind", ["sabour", "half", "none"])
def test_formula(kind: str) -> None:
    layer = PrimaryCaps(3, 4, 5, kernel_size=3, stride=2, padding=1, squash=kind)
    maps = features(2, 3, 9, 7)
    pose, activation = layer(maps)
    raw = torch.nn.functional.conv2d(
        maps, layer.conv.weight, layer.conv.bias, stride=2, padding=1
    )
    expected = squash(
        torch.stack(raw.split(5, dim=1), dim=1).permute(0, 3, 4, 1, 2), kind
    )
    torch.testing.assert_close(pose, expected)
    torch.testing.assert_close(activation, expected.square().sum(-1).sqrt())


@pytest.mark.parametrize("size", [(9, 9), (12, 17), (31, 10)], ids=str)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(9, 2, 0), (5, 3, 2), (1, 1, 0), (4, 5, 1)]
)
def test_sites(size: tuple[int, int], kernel: int, stride: int, padding: int) -> None:
    layer = PrimaryCaps(2, 3, 4, kernel, stride, padding)
    capsules = layer(features(2, 2, *size))
    assert isinstance(capsules, Capsules)
    assert capsules.activation.shape == (2, *layer.sites(*size))
    assert capsules.pose.shape == (2, *layer.sites(*size), 4)
    assert capsules.pose_shape == (4,)
    flat = capsules.flatten()
    assert torch.equal(flat.pose, capsules.pose.reshape(2, -1, 4))
    assert torch.equal(flat.activation, capsules.activation.reshape(2, -1))


def test_routed_is_one_step_over_the_types_with_a_bias() -> None:
    layer = PrimaryCaps(2, 3, 4, 3, 1, routed=True)
    assert layer.conv.bias is None
    assert torch.equal(layer.bias, torch.full((3, 4), 0.1))
    layer.bias.data = features(3, 4)
    maps = features(2, 2, 5, 6)
    raw = layer.conv(maps)
    for row, column, kind in ((0, 0, 0), (2, 3, 2), (1, 1, 1)):
        total = raw[:, 4 * kind : 4 * kind + 4, row, column] / 3 + layer.bias[kind]
        torch.testing.assert_close(
            layer(maps).pose[:, row, column, kind], squash(total)
        )
    layer(maps).pose.sum().backward()
    assert (layer.bias.grad != 0).all()


def test_batch_norm() -> None:
    layer = PrimaryCaps(2, 3, 4, 3, 1, batch_norm=True, squash="none")
    assert layer.conv.bias is None
    pose, _ = layer(5 + 3 * features(8, 2, 9, 9))
    channels = pose.flatten(0, 2).flatten(1)
    torch.testing.assert_close(channels.mean(0), torch.zeros(12), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        channels.var(0, unbiased=False), torch.ones(12), rtol=1e-3, atol=0
    )
    maps = features(2, 2, 9, 9)
    alone = layer.eval()(maps[:1]).pose
    torch.testing.assert_close(layer(maps).pose[:1], alone)
    both = PrimaryCaps(2, 3, 4, 3, 1, batch_norm=True, routed=True)
    assert both(maps).pose.shape == (2, 7, 7, 3, 4)


def test_zero_map_gives_finite_gradients() -> None:
    layer = PrimaryCaps(2, 3, 4, 3, 1)
    layer.conv.bias.data.zero_()
    maps = torch.zeros(1, 2, 5, 5, requires_grad=True)
    pose, activation = layer(maps)
    (pose.sum() + activation.sum()).backward()
    assert (pose == 0).all()
    assert maps.grad.isfinite().all()
    assert layer.conv.weight.grad.isfinite().all()


def test_length_is_the_activation() -> None:
    pose, activation = PrimaryCaps(1, 2, 3, 3, 1)(features(1, 1, 4, 4))
    assert torch.equal(length(pose), activation)
    assert (activation < 1).all()


class TestMatrixPoses:
    def test_a_capsule_is_the_channels_of_one_type_row_by_row(self) -> None:
        layer = PrimaryCaps(12, 2, (2, 3), kernel_size=1, stride=1, squash="none")
        layer.conv.weight.data = torch.eye(12)[..., None, None]
        layer.conv.bias.data.zero_()
        maps = features(1, 12, 3, 4)
        capsules = layer(maps)
        assert capsules.pose.shape == (1, 3, 4, 2, 2, 3)
        assert capsules.pose_shape == (2, 3)
        assert torch.equal(capsules.pose[0, 1, 3, 1], maps[0, 6:, 1, 3].view(2, 3))

    @pytest.mark.parametrize("kind", ["sabour", "none"])
    def test_length_and_squash_are_of_the_whole_matrix(self, kind: str) -> None:
        torch.manual_seed(0)
        matrices = PrimaryCaps(3, 4, (2, 3), 3, 1, squash=kind)
        vectors = PrimaryCaps(3, 4, 6, 3, 1, squash=kind)
        vectors.load_state_dict(matrices.state_dict())
        maps = features(2, 3, 5, 6)
        torch.testing.assert_close(matrices(maps).pose.flatten(-2), vectors(maps).pose)
        torch.testing.assert_close(matrices(maps).activation, vectors(maps).activation)

    def test_routed(self) -> None:
        layer = PrimaryCaps(3, 4, (2, 3), 3, 1, routed=True)
        assert layer.bias.shape == (4, 2, 3)
        assert layer(features(2, 3, 5, 6)).pose.shape == (2, 3, 4, 4, 2, 3)


class TestLearnedActivation:
    def test_is_a_sigmoid_of_a_convolution_of_its_own(self) -> None:
        torch.manual_seed(0)
        layer = PrimaryCaps(3, 4, (2, 2), 3, 2, 1, squash="none", activation="learned")
        maps = features(2, 3, 9, 7)
        weight = layer.activation_conv.weight
        bias = layer.activation_conv.bias
        raw = torch.nn.functional.conv2d(maps, weight, bias, stride=2, padding=1)
        activation = layer(maps).activation
        assert activation.shape == (2, *layer.sites(9, 7))
        torch.testing.assert_close(
            activation, (1 / (1 + (-raw).exp())).permute(0, 2, 3, 1)
        )
        assert ((activation > 0) & (activation < 1)).all()

    def test_pose_and_activation_learn_apart(self) -> None:
        layer = PrimaryCaps(3, 4, (2, 2), 3, 1, activation="learned")
        capsules = layer(features(1, 3, 5, 5))
        capsules.activation.sum().backward(retain_graph=True)
        assert layer.conv.weight.grad is None
        assert (layer.activation_conv.weight.grad != 0).any()
        capsules.pose.sum().backward()
        assert (layer.conv.weight.grad != 0).any()

    @pytest.mark.parametrize("bias", [False, True])
    def test_bias(self, bias: bool) -> None:
        layer = PrimaryCaps(5, 4, (2, 3), 1, 1, activation="learned", bias=bias)
        assert (
            (layer.conv.bias is not None)
            == (layer.activation_conv.bias is not None)
            == bias
        )
        assert sum(p.numel() for p in layer.parameters()) == 5 * 4 * (
            6 + 1
        ) + bias * 4 * (6 + 1)

    def test_length_has_no_convolution_for_it(self) -> None:
        assert PrimaryCaps(5, 4, 3).activation_conv is None

    def test_zero_map(self) -> None:
        layer = PrimaryCaps(2, 3, (2, 2), 3, 1, activation="learned", bias=False)
        pose, activation = layer(torch.zeros(1, 2, 5, 5))
        assert (pose == 0).all()
        assert (activation == 0.5).all()


class TestExceptions:
    @pytest.mark.parametrize("option", ["activation", "squash"])
    def test_choice(self, option: str) -> None:
        with pytest.raises(ValueError, match=rf"{option} must be one of .*got 'relu'"):
            PrimaryCaps(2, 3, 4, **{option: "relu"})

    @pytest.mark.parametrize(
        "shape", [(2, 3, 9, 9), (2, 9, 9), (2, 2, 9, 9, 1)], ids=str
    )
    def test_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(
            ValueError, match=r"features must be \(B, 2, H, W\), got shape \(2, "
        ):
            PrimaryCaps(2, 3, 4)(features(*shape))

    def test_capsules(self) -> None:
        layer = PrimaryCaps(2, 3, 4, kernel_size=3)
        with pytest.raises(TypeError, match="features must be a tensor, got Capsules"):
            layer(layer(features(1, 2, 9, 9)))

    def test_map_smaller_than_the_kernel(self) -> None:
        layer = PrimaryCaps(2, 3, 4, kernel_size=9)
        for call in (lambda: layer(features(1, 2, 20, 8)), lambda: layer.sites(20, 8)):
            with pytest.raises(ValueError, match=r"20x8, smaller than .* kernel of 9"):
                call()
