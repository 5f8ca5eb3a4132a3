"""DeepCaps: parameters as the authors' code counts them, 3-D routing by the book,
shapes.
"""

import numpy as np
import pytest
import torch

from torchcaps import create_model
from torchcaps.models.deepcaps import (
    CapsConvShared,
    CapsMap,
    DeepCaps,
    TransposedDecoder,
    field_routing,
)

SMALL = {
    "channels": 8,
    "types": 4,
    "dims": (2, 4, 4),
    "pose_dim": 6,
    "decoder_channels": (4, 4),
}


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


class TestParameters:
    def test_of_the_released_code_for_28_pixels(self) -> None:
        model = create_model("deepcaps")
        first = 9 * 128 + 128 + 2 * 128
        cells = (
            4 * 9 * 128**2
            + 9 * 128 * 256
            + 3 * 9 * 256**2
            + 4 * 9 * 256**2
            + 3 * 9 * 256**2
        )
        routed = 8 * 9 * 256 + 256
        children = 32 * (4 * 4 + 2 * 2)
        classes = 10 * children * 32 * 8 + 10 * 32
        assert (
            parameters(model) - parameters(model.decoder)
            == first + cells + routed + classes
            == 8_441_920
        )
        linear = 32 * 7 * 7 * 16 + 7 * 7 * 16
        transposed = (
            (9 * 16 * 64 + 64) + (9 * 64 * 32 + 32) + (9 * 32 * 16 + 16) + (9 * 16 + 1)
        )
        assert parameters(model.decoder) == linear + 2 * 16 + transposed == 58_417

    def test_of_the_released_code_for_64_pixels(self) -> None:
        with torch.device("meta"):
            model = DeepCaps((3, 64, 64), decoder_channels=(64, 32, 16, 8))
        assert model.class_caps.in_capsules == 32 * (8 * 8 + 4 * 4)
        assert model.decoder[1].first == (8, 8)
        assert parameters(model.decoder) == 33 * 1024 + 32 + 9_280 + 18_464 + 4_624 + (
            9 * 16 * 8 + 8
        ) + (9 * 8 * 3 + 3)


def by_the_book(
    children: np.ndarray, weight: np.ndarray, bias: np.ndarray, steps: int
) -> np.ndarray:  # (I, P, H, W), (k, k, P, J, D), (J, D) -> (J, D, H, W)
    """Procedure 1 for one image, votes stored, the softmax over all types and
    positions, no logarithms.
    """
    I, _, H, W = children.shape
    k, _, _, J, D = weight.shape
    padded = np.pad(children, ((0, 0), (0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    votes = np.zeros((I, J, D, H, W))
    for y in range(H):
        for x in range(W):
            window = padded[:, :, y : y + k, x : x + k]
            votes[..., y, x] = np.einsum("ipyx,yxpjd->ijd", window, weight)
    logits = np.zeros((I, J, H, W))
    for _ in range(steps):
        share = np.exp(logits)
        share /= share.sum((1, 2, 3), keepdims=True)
        total = np.einsum("ijyx,ijdyx->jdyx", share, votes) + bias[:, :, None, None]
        squared = (total**2).sum((1, 2, 3), keepdims=True)
        pose = squared / (1 + squared) * total / np.sqrt(squared)
        logits = logits + np.einsum("ijdyx,jdyx->ijyx", votes, pose)
    return pose


class TestRouting:
    @pytest.mark.parametrize(
        ("height", "width", "steps"), [(3, 5, 3), (1, 1, 2), (4, 2, 1)]
    )
    def test_equals_the_equations(self, height: int, width: int, steps: int) -> None:
        torch.manual_seed(0)
        layer = CapsConvShared(3, 4, 2, 5, 3, steps).double()
        torch.nn.init.normal_(layer.bias)
        features = 3 * torch.randn(2, 6, height, width, dtype=torch.float64)
        poses = layer(features).unflatten(1, (4, 5)).detach().numpy()
        weight = (
            layer.weight.detach()
            .numpy()
            .reshape(2, 3, 3, 4, 5)
            .transpose(1, 2, 0, 3, 4)
        )
        for image, pose in zip(
            features.unflatten(1, (3, 2)).numpy(), poses, strict=True
        ):
            expected = by_the_book(image, weight, layer.bias.detach().numpy(), steps)
            np.testing.assert_allclose(pose, expected, rtol=1e-10, atol=1e-12)

    def test_gradients(self) -> None:
        torch.manual_seed(0)
        inputs = [
            torch.randn(shape, dtype=torch.float64, requires_grad=True)
            for shape in ((4, 3, 2), (1, 2, 2, 3), (2, 3))
        ]
        assert torch.autograd.gradcheck(
            lambda u, w, b: field_routing(u, w, 2, b, 3), inputs
        )

    def test_each_child_is_shared_out_once_over_all_types_and_positions(self) -> None:
        """With votes of 1 that all agree, and no bias, the parents have got as much as
        there are children.
        """
        children = torch.ones(
            6, 3, 1, dtype=torch.float64
        )  # one image of 6 positions, 3 children
        transforms = torch.ones(1, 2, 1, 1, dtype=torch.float64)
        pose = field_routing(
            children, transforms, 6, torch.zeros(2, 1, dtype=torch.float64), 1
        )
        mass = 3 / 12  # of each parent at each position
        squared = 6 * mass**2
        torch.testing.assert_close(
            pose, torch.full_like(pose, squared**0.5 / (1 + squared) * mass)
        )

    def test_images_do_not_see_each_other(self) -> None:
        layer = CapsConvShared(3, 4, 2, 5).double()
        features = torch.randn(3, 6, 3, 3, dtype=torch.float64)
        torch.testing.assert_close(layer(features)[1:2], layer(features[1:2]))


class TestLayers:
    def test_strided_convolution_is_padded_as_in_tensorflow(self) -> None:
        """Even extents are padded at their end alone: the window of the first position
        begins at pixel 0.
        """
        layer = CapsMap(1, 1, 1, stride=2)
        torch.nn.init.ones_(layer.conv.weight)
        image = torch.zeros(1, 1, 4, 4)
        image[..., 0, 0] = 1
        assert layer(image)[0, 0].tolist() == [[0.5, 0], [0, 0]]
        image = torch.zeros(1, 1, 4, 4)
        image[..., 2, 2] = 1  # in the windows 0..2 and 2..4
        assert (layer(image) > 0).all()
        assert layer(torch.zeros(1, 1, 5, 3)).shape == (1, 1, 3, 2)

    @pytest.mark.parametrize("shape", [(1, 28, 28), (3, 30, 17), (2, 5, 4)], ids=str)
    @pytest.mark.parametrize("channels", [(4, 4, 2), (3,), ()], ids=str)
    def test_decoder(
        self, shape: tuple[int, int, int], channels: tuple[int, ...]
    ) -> None:
        images = TransposedDecoder(6, shape, channels)(torch.randn(2, 6))
        assert images.shape == (2, *shape)
        assert (images >= 0).all()


class TestNetwork:
    def test_no_images(self) -> None:
        prediction = DeepCaps((1, 12, 12), 3, **SMALL).eval()(torch.rand(0, 1, 12, 12))
        assert prediction.activation.shape == (0, 3)

    def test_decoder_is_independent_of_the_class(self) -> None:
        model = DeepCaps((1, 12, 12), 3, **SMALL).eval()
        assert model.pose_input.kind == "pose"
        capsules = model.encode(torch.rand(2, 1, 12, 12))
        moved = capsules._replace(pose=capsules.pose.roll(1, 1))
        torch.testing.assert_close(
            model.decode(capsules, torch.tensor([0, 1])),
            model.decode(moved, torch.tensor([1, 2])),
        )

    def test_children_are_the_capsules_of_the_last_two_cells(self) -> None:
        model = DeepCaps((1, 12, 12), 3, **SMALL).eval()
        children = model.children_of(torch.rand(2, 1, 12, 12))
        assert children.pose.shape == (2, 4 * (2 * 2 + 3 * 3), 4)
        torch.testing.assert_close(children.activation, children.pose.norm(dim=2))
