"""Masking and the decoder."""

import itertools

import pytest
import torch

from torchcaps import (
    Capsules,
    FullyConnectedDecoder,
    create_model,
    mask_capsules,
)
from torchcaps.layers import PoseInput
from torchcaps.testing import check_model


@pytest.fixture(params=[(4,), (2, 3)], ids=["vectors", "matrices"])
def capsules(request: pytest.FixtureRequest) -> Capsules:
    generator = torch.Generator().manual_seed(0)
    activation = torch.tensor([[0.1, 0.9, 0.3], [0.8, 0.2, 0.7]])
    return Capsules(
        torch.randn((2, 3, *request.param), generator=generator), activation
    )


class TestMask:
    def test_by_label(self, capsules: Capsules) -> None:
        masked = mask_capsules(capsules, torch.tensor([2, 0]))
        assert masked.shape == capsules.pose.shape
        for b, kept in enumerate((2, 0)):
            for j in range(3):
                assert torch.equal(
                    masked[b, j],
                    capsules.pose[b, j]
                    if j == kept
                    else torch.zeros_like(masked[b, j]),
                )

    def test_the_longest(self, capsules: Capsules) -> None:
        assert torch.equal(
            mask_capsules(capsules), mask_capsules(capsules, torch.tensor([1, 0]))
        )

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
    def test_by_mask(self, capsules: Capsules, dtype: torch.dtype) -> None:
        masked = mask_capsules(
            capsules, torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=dtype)
        )
        assert torch.equal(masked[0, 0], capsules.pose[0, 0])
        assert torch.equal(masked[0, 2], capsules.pose[0, 2])
        assert (masked[0, 1] == 0).all()
        assert (masked[1] == 0).all()

    def test_poses_alone_are_refused(self, capsules: Capsules) -> None:
        with pytest.raises(TypeError, match=r"Capsules, .* got Tensor"):
            mask_capsules(capsules.pose)

    def test_gradient_reaches_the_kept_pose_alone(self, capsules: Capsules) -> None:
        pose = capsules.pose.clone().requires_grad_()
        mask_capsules(
            capsules._replace(pose=pose), torch.tensor([2, 0])
        ).sum().backward()
        assert (pose.grad[0, 2] == 1).all()
        assert (pose.grad[1, 0] == 1).all()
        assert pose.grad.sum() == 2 * pose[0, 0].numel()

    @pytest.mark.parametrize("number", [torch.nan, torch.inf])
    def test_what_is_not_chosen_may_be_anything(
        self, capsules: Capsules, number: float
    ) -> None:
        pose = capsules.pose.index_fill(1, torch.tensor(1), number).requires_grad_()
        masked = mask_capsules(capsules._replace(pose=pose), torch.tensor([2, 0]))
        masked.square().sum().backward()
        assert (masked[:, 1] == 0).all()
        assert (pose.grad[:, 1] == 0).all()
        assert torch.equal(pose.grad[0, 2], 2 * capsules.pose[0, 2])

    def test_by_a_share(self, capsules: Capsules) -> None:
        masked = mask_capsules(capsules, torch.tensor([[0.25, 0, 0.75], [0, 0, 1]]))
        assert torch.equal(masked[0, 0], 0.25 * capsules.pose[0, 0])
        assert (masked[0, 1] == 0).all()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_poses_keep_their_dtype(
        self, capsules: Capsules, dtype: torch.dtype
    ) -> None:
        masked = mask_capsules(
            capsules._replace(pose=capsules.pose.to(dtype)), torch.tensor([2, 0])
        )
        assert torch.equal(masked[0, 2], capsules.pose[0, 2].to(dtype))
        assert masked.dtype == dtype

    def test_shape_that_does_not_fit(self, capsules: Capsules) -> None:
        with pytest.raises(
            ValueError,
            match=(
                r"labels \(2,\) or a mask \(2, 3\), got torch.float32 of shape "
                r"\(2, 4\)"
            ),
        ):
            mask_capsules(capsules, torch.zeros(2, 4))

    @pytest.mark.parametrize("labels", [[2], [2, 0, 1]], ids=["fewer", "more"])
    def test_a_label_for_each_example(
        self, capsules: Capsules, labels: list[int]
    ) -> None:
        """Those without one would be drawn black without a word."""
        with pytest.raises(
            ValueError, match=rf"target must be .* of shape \({len(labels)},\)"
        ):
            mask_capsules(capsules, torch.tensor(labels))

    def test_a_label_that_there_is_not(self, capsules: Capsules) -> None:
        for labels in ([2, 3], [-1, 0]):
            with pytest.raises(
                ValueError,
                match=r"target must be labels in 0\.\.2, got (2 to 3|-1 to 0)",
            ):
                mask_capsules(capsules, torch.tensor(labels))


class TestDecoder:
    @pytest.mark.parametrize(
        "image_shape", [(1, 28, 28), (3, 5, 9), (2, 1, 1)], ids=str
    )
    @pytest.mark.parametrize("pose", [(4,), (2, 3)], ids=["vectors", "matrices"])
    def test_image(
        self, image_shape: tuple[int, int, int], pose: tuple[int, ...]
    ) -> None:
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
        linear = [
            module for module in decoder.layers if isinstance(module, torch.nn.Linear)
        ]
        assert [(m.in_features, m.out_features) for m in linear] == list(
            itertools.pairwise(widths)
        )
        assert sum(p.numel() for p in decoder.parameters()) == 8_215_568 - 6_804_224

    def test_no_hidden_layer(self) -> None:
        decoder = FullyConnectedDecoder(6, (1, 2, 2), ())
        expected = torch.sigmoid(decoder.layers[0](torch.ones(1, 6))).view(1, 1, 2, 2)
        torch.testing.assert_close(decoder(torch.ones(1, 2, 3)), expected)


def test_poses_that_do_not_fit_are_named() -> None:
    for shape in ((2, 5, 15), (80,)):
        with pytest.raises(
            ValueError, match=r"poses must be .* 80 numbers .* got shape"
        ):
            FullyConnectedDecoder(80, (1, 8, 8))(torch.rand(shape))
    for shape in ((2, 1, 4), (2, 3, 5), (3, 4)):
        with pytest.raises(
            ValueError, match=r"poses must be \(B, 3, \*pose\), 4 numbers"
        ):
            PoseInput(3, 4, "pose_and_class")(torch.rand(shape))


@pytest.mark.parametrize("shape", [(3, 12), (2, 4, 5, 6)], ids=["sequence", "volume"])
def test_other_things_than_images(shape: tuple[int, ...]) -> None:
    decoder = FullyConnectedDecoder(3 * 4, shape, hidden=(8,))
    assert decoder(torch.zeros(2, 3, 4)).shape == (2, *shape)


def masked_poses(count: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    """Poses (B, 3, 4) of one class each, each class with a mean and a spread of its
    own.
    """
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    mean, spread = (
        torch.rand(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    pose = mean[labels] + (0.1 + spread[labels]) * torch.randn(
        count, 4, generator=generator, dtype=torch.float64
    )
    poses = torch.zeros(count, 3, 4, dtype=torch.float64)
    poses[torch.arange(count), labels] = pose
    return poses, labels


SMALL = {"channels": (4, 4, 8, 16)}
TINY = {
    "image_shape": (3, 16, 16),
    "widths": (4, 4),
    "blocks": 1,
    "types": 2,
}


class TestPoseInput:
    def test_masked_is_what_decoders_always_got(self) -> None:
        poses, _ = masked_poses()
        assert torch.equal(PoseInput(3, 4, "masked")(poses), poses.flatten(1))
        assert "decoder.layers.0.weight" in create_model("capsnet_digits").state_dict()

    def test_the_pose_alone(self) -> None:
        poses, labels = masked_poses()
        assert torch.equal(
            PoseInput(3, 4, "pose")(poses), poses[torch.arange(len(labels)), labels]
        )

    def test_poses_are_standardised_class_by_class(self) -> None:
        """After one batch the decoder is told numbers of mean 0 and deviation 1, and
        the class.
        """
        poses, labels = masked_poses()
        pose_input = PoseInput(3, 4, "pose_and_class").double()
        pose, classes = pose_input(poses).split([4, 3], dim=1)
        assert torch.equal(classes, torch.nn.functional.one_hot(labels).double())
        for label in range(3):
            of_class = pose[labels == label]
            torch.testing.assert_close(
                of_class.mean(0), torch.zeros(4, dtype=torch.float64)
            )
            torch.testing.assert_close(
                of_class.std(0, correction=0), torch.ones(4, dtype=torch.float64)
            )
        torch.testing.assert_close(
            pose_input.eval()(poses), torch.cat([pose, classes], 1)
        )

    def test_batches_count_alike_at_first(self) -> None:
        poses, _ = masked_poses(198)
        at_once, parts = (PoseInput(3, 4, "pose_and_class").double() for _ in range(2))
        at_once(poses)
        for part in poses.split(66):
            parts(part)
        torch.testing.assert_close(parts.mean, at_once.mean)
        torch.testing.assert_close(parts.deviation, at_once.deviation)

    def test_a_class_that_is_not_in_a_batch_keeps_its_figures(self) -> None:
        poses, labels = masked_poses()
        pose_input = PoseInput(3, 4, "pose_and_class").double()
        pose_input(poses)
        before = pose_input.mean[2].clone(), pose_input.deviation[2].clone()
        pose_input(3 * poses[labels != 2])
        assert torch.equal(pose_input.mean[2], before[0])
        assert torch.equal(pose_input.deviation[2], before[1])
        assert pose_input.updates.tolist() == [2, 2, 1]

    @pytest.mark.parametrize("kind", ["masked", "pose", "pose_and_class"])
    def test_noise_in_training_alone_and_on_the_chosen_pose(self, kind: str) -> None:
        poses, _ = masked_poses(3000)
        noisy, still = (PoseInput(3, 4, kind, noise).double() for noise in (0.5, 0.0))
        torch.manual_seed(0)
        added = noisy(poses) - still(poses)
        chosen = added != 0
        assert chosen.sum() == 3000 * 4
        assert added[chosen].std().item() == pytest.approx(0.5, rel=0.05)
        assert torch.equal(noisy.eval()(poses), still.eval()(poses))

    @pytest.mark.parametrize("training", [True, False])
    def test_a_pose_of_zero_is_of_its_class_all_the_same(self, training: bool) -> None:
        """It was told no class, and drew the same for all; it still does not count
        among the poses of its class.
        """
        torch.manual_seed(0)
        model = create_model(
            "capsnet_digits", channels=4, types=2, decoder_input="pose_and_class"
        ).train(training)
        pose_input = model.decoder[0]
        pose_input.mean.normal_()
        before = pose_input.mean.clone()
        images = model.decode(
            Capsules(torch.zeros(10, 10, 16), torch.rand(10, 10)), torch.arange(10)
        )
        drawn = [
            model.decoder[1](torch.cat([-before[k], torch.eye(10)[k]])[None])
            for k in range(10)
        ]
        torch.testing.assert_close(images, torch.cat(drawn))
        assert torch.equal(pose_input.mean, before)

    def test_whole_numbers_are_standardised(self) -> None:
        poses = torch.arange(2 * 3 * 4).view(2, 3, 4)
        pose_input = PoseInput(3, 4, "pose_and_class").eval()
        assert pose_input.deviation.fill_(2).eq(2).all()
        assert torch.equal(pose_input(poses), pose_input(poses.float()))

    def test_errors(self) -> None:
        with pytest.raises(
            ValueError, match=r"decoder_input must be one of .*'masked', .*got 'class'"
        ):
            create_model("capsnet_digits", decoder_input="class")
        with pytest.raises(
            ValueError, match=r"pose_noise must be at least 0, got -0\.1"
        ):
            create_model("capsnet_digits", pose_noise=-0.1)
        with pytest.raises(ValueError, match=r"^kind must be one of .* got 'class'"):
            PoseInput(3, 4, "class")
        with pytest.raises(ValueError, match=r"^noise must be a number, got None"):
            PoseInput(3, 4, noise=None)

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("capsnet_digits", {"decoder_input": "pose_and_class"}),
            (
                "efficient_capsnet",
                {"decoder_hidden": (8,), "decoder_input": "pose_and_class", **SMALL},
            ),
            (
                "efficient_capsnet_smallnorb",
                {"decoder_channels": (4,), "decoder_input": "pose", **SMALL},
            ),
            (
                "capsnet_on_backbone",
                {"decoder_hidden": (8,), "decoder_input": "pose_and_class", **TINY},
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else value["decoder_input"],
    )
    def test_networks(self, name: str, arguments: dict[str, object]) -> None:
        model = create_model(name, **arguments)
        assert model.pose_input.kind == arguments["decoder_input"]
        check_model(model, skip=("export",))
