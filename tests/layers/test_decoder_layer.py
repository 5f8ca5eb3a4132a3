"""Masking and the decoder."""

import itertools

import pytest
import torch

from torchcaps import Capsules, FullyConnectedDecoder, MatrixCapsNet, mask_capsules


@pytest.fixture(params=[(4,), (2, 3)], ids=["vectors", "matrices"])
def capsules(request: pytest.FixtureRequest) -> Capsules:
    generator = torch.Generator().manual_seed(0)
    activation = torch.tensor([[0.1, 0.9, 0.3], [0.8, 0.2, 0.7]])
    return Capsules(torch.randn((2, 3, *request.param), generator=generator), activation)


class TestMask:
    def test_by_label(self, capsules: Capsules) -> None:
        masked = mask_capsules(capsules, torch.tensor([2, 0]))
        assert masked.shape == capsules.pose.shape
        for b, kept in enumerate((2, 0)):
            for j in range(3):
                assert torch.equal(masked[b, j], capsules.pose[b, j] if j == kept else torch.zeros_like(masked[b, j]))

    def test_the_longest(self, capsules: Capsules) -> None:
        assert torch.equal(mask_capsules(capsules), mask_capsules(capsules, torch.tensor([1, 0])))

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
    def test_by_mask(self, capsules: Capsules, dtype: torch.dtype) -> None:
        masked = mask_capsules(capsules, torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=dtype))
        assert torch.equal(masked[0, 0], capsules.pose[0, 0])
        assert torch.equal(masked[0, 2], capsules.pose[0, 2])
        assert (masked[0, 1] == 0).all()
        assert (masked[1] == 0).all()

    def test_gradient_reaches_the_kept_pose_alone(self, capsules: Capsules) -> None:
        pose = capsules.pose.clone().requires_grad_()
        mask_capsules(capsules._replace(pose=pose), torch.tensor([2, 0])).sum().backward()
        assert (pose.grad[0, 2] == 1).all()
        assert (pose.grad[1, 0] == 1).all()
        assert pose.grad.sum() == 2 * pose[0, 0].numel()

    def test_shape_that_does_not_fit(self, capsules: Capsules) -> None:
        with pytest.raises(ValueError, match=r"labels \(B,\) or a mask \(2, 3\), got shape \(2, 4\)"):
            mask_capsules(capsules, torch.zeros(2, 4))


class TestDecoder:
    @pytest.mark.parametrize("image_shape", [(1, 28, 28), (3, 5, 9), (2, 1, 1)], ids=str)
    @pytest.mark.parametrize("pose", [(4,), (2, 3)], ids=["vectors", "matrices"])
    def test_image(self, image_shape: tuple[int, int, int], pose: tuple[int, ...]) -> None:
        poses = torch.randn(5, 3, *pose)
        decoder = FullyConnectedDecoder(poses[0].numel(), image_shape, (7, 6))
        images = decoder(poses)
        assert images.shape == (5, *image_shape)
        assert ((images > 0) & (images < 1)).all()
        alone = decoder(poses[2:3])
        torch.testing.assert_close(images[2:3], alone)

    def test_layers_of_the_paper(self) -> None:
        decoder = FullyConnectedDecoder(160, (1, 28, 28))
        widths = [160, 512, 1024, 784]
        linear = [module for module in decoder.layers if isinstance(module, torch.nn.Linear)]
        assert [(m.in_features, m.out_features) for m in linear] == list(itertools.pairwise(widths))
        assert sum(p.numel() for p in decoder.parameters()) == 8_215_568 - 6_804_224

    def test_no_hidden_layer(self) -> None:
        decoder = FullyConnectedDecoder(6, (1, 2, 2), ())
        expected = torch.sigmoid(decoder.layers[0](torch.ones(1, 6))).view(1, 1, 2, 2)
        torch.testing.assert_close(decoder(torch.ones(1, 2, 3)), expected)

    def test_without_the_class_a_pose_means_the_same_in_all_classes(self, capsules: Capsules) -> None:
        torch.manual_seed(0)
        decoder = FullyConnectedDecoder(capsules.pose[0, 0].numel(), (1, 3, 3), (5,), by_class=False)
        chosen = torch.tensor([2, 0])
        moved = Capsules(capsules.pose.roll(1, 1), capsules.activation)
        images = decoder(mask_capsules(capsules, chosen))
        torch.testing.assert_close(images, decoder(mask_capsules(moved, (chosen + 1) % 3)))
        assert not torch.allclose(images, decoder(mask_capsules(moved, chosen)))
        network = MatrixCapsNet((1, 17, 17), 3, 2, (2, 2, 2), (2, 2), decoder_hidden=(4,), decoder_by_class=False)
        assert network(torch.rand(2, 1, 17, 17)).reconstruction.shape == (2, 1, 17, 17)
        assert network.decoder.layers[0].in_features == 4


@pytest.mark.parametrize("shape", [(3, 12), (2, 4, 5, 6)], ids=["sequence", "volume"])
def test_other_things_than_images(shape: tuple[int, ...]) -> None:
    decoder = FullyConnectedDecoder(3 * 4, shape, hidden=(8,))
    assert decoder(torch.zeros(2, 3, 4)).shape == (2, *shape)
