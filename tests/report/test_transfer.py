"""Poses that move from image to image, attributes of figures, and what reads them from
poses.
"""

import math

import pytest
import torch
from torch import Tensor

from torchcaps import Capsules, create_model
from torchcaps.models import CapsNet
from torchcaps_lab.data import Digits, Examples
from torchcaps_lab.evaluate import (
    ATTRIBUTES,
    attributes,
    carried,
    draw_poses,
    examine,
    fit_readout,
    poses_of,
    transfer,
)
from torchcaps_lab.evaluate.poses import encoded
from torchcaps_lab.report import exhibits_of_classifier
from torchcaps_lab.report.pictures import PoseReadout


def stroke(
    slant: float = 0.0, width: int = 4, height: int = 20, size: int = 28
) -> Tensor:
    """A bar that leans to the right by an angle, grey at its edges, (1, 1, size,
    size).
    """
    y, x = torch.meshgrid(
        torch.arange(size) + 0.5, torch.arange(size) + 0.5, indexing="ij"
    )
    centre = size / 2 - (y - size / 2) * math.tan(math.radians(slant))
    inside = ((x - centre).abs() < width / 2) & ((y - size / 2).abs() <= height / 2)
    return inside.float()[None, None]


class TestAttributes:
    @pytest.mark.parametrize("slant", [-30.0, 0.0, 15.0, 40.0])
    def test_slant_of_a_bar(self, slant: float) -> None:
        assert attributes(stroke(slant))[0, 0].item() == pytest.approx(slant, abs=1.0)

    def test_mirrored_images_lean_the_other_way(self) -> None:
        image = stroke(20.0)
        assert attributes(image.flip(-1))[0, 0].item() == pytest.approx(
            -attributes(image)[0, 0].item(), abs=1e-9
        )

    def test_thickness_grows_with_the_stroke(self) -> None:
        thickness = attributes(
            torch.cat([stroke(width=width) for width in (2, 4, 6, 8)])
        )[:, 1]
        assert (thickness.diff() > 1).all()
        assert thickness[2].item() == pytest.approx(6, abs=1)

    def test_aspect_and_size_of_a_box(self) -> None:
        (_, _, aspect, size), *_ = attributes(stroke(width=6, height=20)).tolist()
        assert aspect == pytest.approx(6 / 20, rel=0.1)
        assert size == pytest.approx(120**0.5, rel=0.05)

    def test_brightness_does_not_matter(self) -> None:
        torch.testing.assert_close(
            attributes(0.4 * stroke(10.0)), attributes(stroke(10.0))
        )

    def test_nothing_in_the_image(self) -> None:
        assert attributes(torch.zeros(2, 1, 8, 8)).isnan().all()
        assert attributes(torch.zeros(0, 1, 8, 8)).shape == (0, 4)

    def test_errors(self) -> None:
        with pytest.raises(
            ValueError, match=r"images must be \(B, C, H, W\), got shape \(8, 8\)"
        ):
            attributes(torch.zeros(8, 8))


def capsules(count: int = 3) -> Capsules:
    pose = torch.randn(count, 10, 16, generator=torch.Generator().manual_seed(0))
    return Capsules(pose, pose.norm(dim=2))


def trained_a_little() -> CapsNet:
    """A network whose decoder has seen poses of all classes."""
    model = create_model("capsnet_digits", decoder_input="pose_and_class").train()
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        pose = (
            torch.randn(60, 10, 16, generator=generator)
            * torch.rand(10, 16, generator=generator)
            + 0.3
        )
        model.decode(Capsules(pose, pose.norm(dim=2)), torch.arange(60) % 10)
    return model.eval()


class TestTransfer:
    @pytest.mark.parametrize("decoder_input", ["masked", "pose", "pose_and_class"])
    def test_onto_itself_draws_the_content_again(self, decoder_input: str) -> None:
        model = create_model(
            "capsnet_digits", decoder_input=decoder_input, pose_noise=0.1
        )
        classes = capsules()
        target = torch.tensor([3, 1, 4])
        drawn = transfer(model, classes, classes, target, target, steps=2)
        assert drawn.shape == (3, 2, 1, 8, 8)
        again = model.eval().decode(classes, target)
        torch.testing.assert_close(drawn, again[:, None].expand_as(drawn))

    def test_by_the_equation(self) -> None:
        """The content's class, with the place in it that the style has in its own
        class.
        """
        model = trained_a_little()
        content = capsules()
        style = Capsules(*(part.flip(0) for part in capsules()))
        target = torch.tensor([3, 1, 4])
        second = torch.tensor([5, 9, 2])
        drawn = transfer(model, content, style, target, second, steps=2)
        pose_input = model.decoder[0]
        for b in range(3):
            standardised = (
                content.pose[b, target[b]] - pose_input.mean[target[b]]
            ) / pose_input.deviation[target[b]]
            taken = (
                style.pose[b, second[b]] - pose_input.mean[second[b]]
            ) / pose_input.deviation[second[b]]
            for step, place in enumerate(((standardised + taken) / 2, taken)):
                predicted = torch.cat([place, torch.eye(10)[target[b]]])
                torch.testing.assert_close(
                    drawn[b, step],
                    model.decoder[1](predicted[None])[0],
                    rtol=1e-4,
                    atol=1e-5,
                )

    def test_a_decoder_that_is_told_the_pose_alone_draws_the_style_again(self) -> None:
        model = create_model("capsnet_digits", decoder_input="pose")
        classes = capsules(2)
        first, second = (
            Capsules(classes.pose[k : k + 1], classes.activation[k : k + 1])
            for k in (0, 1)
        )
        drawn = transfer(
            model,
            first,
            second,
            torch.tensor([3]),
            torch.tensor([1]),
        )[0, -1]
        torch.testing.assert_close(
            drawn, model.eval().decode(second, torch.tensor([1]))[0]
        )

    def test_carried_there_and_back(self) -> None:
        model = trained_a_little()
        poses = capsules().pose[:, 0]
        source = torch.tensor([3, 1, 4])
        target = torch.tensor([5, 9, 2])
        moved = carried(model, poses, source, target)
        assert not torch.allclose(moved, poses, atol=0.1)
        torch.testing.assert_close(carried(model, moved, target, source), poses)
        second = create_model("capsnet_digits")
        assert torch.equal(carried(second, poses, source, target), poses)

    def test_leaves_the_mode_of_the_network(self) -> None:
        model = create_model("capsnet_digits", pose_noise=0.5).train()
        draw_poses(model, torch.randn(1, 16), torch.tensor([0]))
        assert model.training

    def test_errors(self) -> None:
        model = create_model("capsnet_digits")
        classes = capsules()
        target = torch.tensor([3, 1, 4])
        with pytest.raises(ValueError, match="content and style must be as many"):
            transfer(model, classes, capsules(2), target, target[:2])
        with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
            transfer(model, classes, classes, target, target, 0)
        with pytest.raises(RuntimeError, match="without a decoder"):
            transfer(
                create_model("capsnet_digits", decoder_hidden=None),
                classes,
                classes,
                target,
                target,
            )

    def test_labels_that_do_not_fit(self) -> None:
        with pytest.raises(ValueError, match=r"target must lie in 0\.\.9"):
            poses_of(capsules(), torch.tensor([3, 1, 10]))


class TestReadout:
    def poses(self, count: int = 400) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        pose = torch.randn(count, 5, generator=generator, dtype=torch.float64)
        labels = torch.arange(count) % 3
        noise = torch.randn(count, generator=generator, dtype=torch.float64)
        values = torch.stack(
            [2 * pose[:, 0] - pose[:, 3] + 1, pose[:, 1] + noise, noise], 1
        )
        return pose, values, labels

    def test_finds_what_is_linear(self) -> None:
        pose, values, labels = self.poses()
        actual = fit_readout(pose, values, labels)
        torch.testing.assert_close(
            actual.weight[:, 0], torch.tensor([2.0, 0, 0, -1, 0], dtype=torch.float64)
        )
        assert actual.explained[0].item() == pytest.approx(1)
        assert actual.explained[1].item() == pytest.approx(0.5, abs=0.15)
        assert abs(actual.explained[2].item()) < 0.15
        assert actual.alone[:, 0].argmax() == 0
        assert actual.alone[1, 1].item() == pytest.approx(0.5, abs=0.15)

    def test_moved_poses_read_as_they_shall(self) -> None:
        pose, values, labels = self.poses()
        actual = fit_readout(pose, values[:, :2], labels)
        wanted = torch.randn(7, 2, dtype=torch.float64)
        moved = actual.moved(pose[:7], wanted)
        torch.testing.assert_close(actual(moved), wanted)
        # Of all that read so, none is nearer as the poses of a class vary.
        second = moved + torch.tensor([[0.0, 0, 1, 0, 0]], dtype=torch.float64)
        second = second - (actual(second) - wanted) @ torch.linalg.pinv(actual.weight)
        assert self.distance(actual.covariance, moved - pose[:7]) < self.distance(
            actual.covariance, second - pose[:7]
        )

    def distance(self, covariance: Tensor, change: Tensor) -> float:
        return (change @ covariance.inverse() * change).sum().item()

    def test_what_could_not_be_measured_is_left_out(self) -> None:
        pose, values, labels = self.poses()
        values[::2] = torch.nan
        actual = fit_readout(pose, values, labels)
        torch.testing.assert_close(
            actual.weight, fit_readout(pose[1::2], values[1::2], labels[1::2]).weight
        )

    def test_dimensions_that_never_move(self) -> None:
        pose, values, labels = self.poses()
        pose[:, 4] = 0.5
        actual = fit_readout(pose, values, labels)
        assert actual.weight.isfinite().all()
        assert (actual.alone[4] == 0).all()

    def test_errors(self) -> None:
        pose, values, labels = self.poses()
        with pytest.raises(
            ValueError, match="needs at least 10 images that can be measured, got 9"
        ):
            fit_readout(pose[:9], values[:9], labels[:9])
        with pytest.raises(ValueError, match="must be as many"):
            fit_readout(pose, values[:9], labels)


def test_encoded_in_parts() -> None:
    model = create_model("capsnet_digits").train()
    images = Digits().test.inputs[:7].float() / 255
    actual = encoded(model, images, at_once=3)
    at_once = encoded(model, images)
    assert model.training
    torch.testing.assert_close(actual.pose, at_once.pose)
    torch.testing.assert_close(actual.activation, at_once.activation)


def test_poses_of_a_network_in_bfloat16_are_carried_and_drawn() -> None:
    model = create_model("capsnet_digits").bfloat16()
    images = Digits().test.inputs[:2].float() / 255
    capsules = encoded(model, images)
    target = torch.tensor([1, 2])
    assert capsules.pose.dtype == torch.float32
    drawn = transfer(model, capsules, capsules, target, target)
    torch.testing.assert_close(
        drawn[:, 0], model.decode(model.encode(images.bfloat16()), target)
    )


class TestExhibit:
    def test_digits(self) -> None:
        test = Digits().test.subset(torch.arange(100))
        model = create_model("capsnet_digits", decoder_input="pose_and_class")
        shown = PoseReadout.of(model, test)
        assert shown is not None
        assert shown.attributes == ATTRIBUTES
        assert shown.explained.shape == (4,)
        assert shown.alone.shape == (16, 4)
        assert shown.images == 100
        header = shown.table().header
        rows = shown.table().rows
        assert header == ["dimension", *ATTRIBUTES]
        assert [row[0] for row in rows] == ["all", *map(str, range(16))]
        assert (shown.explained <= 1).all()
        assert ((shown.alone >= 0) & (shown.alone <= 1)).all()

    def test_is_in_the_report_of_networks_whose_classes_share_their_poses(self) -> None:
        test = Digits().test.subset(torch.arange(100))
        for decoder_input, expected in (("pose", True), ("masked", False)):
            model = create_model("capsnet_digits", decoder_input=decoder_input)
            kinds = [
                exhibit.kind
                for exhibit in exhibits_of_classifier(
                    model, test, examine(model, test), {}, []
                )
            ]
            assert ("pose_readout" in kinds) is expected

    def test_none_where_there_is_nothing_to_say(self) -> None:
        test = Digits().test.subset(torch.arange(100))
        model = create_model("capsnet_digits", decoder_input="pose")
        assert PoseReadout.of(model, test.subset(torch.arange(20))) is None  # too few
        light = Examples(255 - test.inputs, test.labels, test.classes)
        assert PoseReadout.of(model, light) is None
        black = Examples(torch.zeros_like(test.inputs), test.labels, test.classes)
        assert PoseReadout.of(model, black) is None
        assert (
            PoseReadout.of(create_model("capsnet_digits", decoder_hidden=None), test)
            is None
        )
        assert (
            PoseReadout.of(
                create_model("capsnet_small_cnn", image_shape=(1, 8, 8)), test
            )
            is None
        )
