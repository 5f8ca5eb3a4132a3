"""Slots of images: what they draw does not depend on their order."""

import math
from typing import Any

import pytest
import torch

import torchcaps as tc
from torchcaps.models.slot_autoencoder import assigned_pixels, merged_slots
from torchcaps.ops import use_backend

NETWORK: dict[str, Any] = {
    "channels": 4,
    "dim": 6,
    "image_shape": (3, 8, 9),
}


@pytest.mark.parametrize("name", ["slot_autoencoder", "slot_autoencoder_mixture"])
def test_slots_in_another_order_draw_the_same_image(name: str) -> None:
    torch.manual_seed(0)
    network = tc.create_model(name, classes=4, **NETWORK).double().eval()
    images = network.examples(2).double()
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        before = network(images)
        noise = network.slots.routing.first.noise
        noise.copy_(noise[order].clone())
        after = network(images)
    torch.testing.assert_close(after.reconstruction, before.reconstruction)
    torch.testing.assert_close(after.masks, before.masks[:, order])
    torch.testing.assert_close(after.capsules.pose, before.capsules.pose[:, order])


GROUND_NAMES = ["slot_autoencoder", "slot_autoencoder_mixture"]


@pytest.mark.parametrize("name", GROUND_NAMES)
def test_with_a_ground_images_of_another_light_have_the_same_masks(name: str) -> None:
    network = tc.create_model(name, classes=4, ground=True, **NETWORK)
    network = network.double().eval()
    images = network.examples(2).double()
    light = torch.tensor([0.3, -0.1, 0.2]).double()[:, None, None]
    before, after = network(images), network(images + light)
    torch.testing.assert_close(after.masks, before.masks)
    torch.testing.assert_close(after.colours, before.colours + light)
    torch.testing.assert_close(after.reconstruction, before.reconstruction + light)


@pytest.mark.parametrize("name", GROUND_NAMES)
@pytest.mark.parametrize("grid_channels", [None, 5])
@pytest.mark.parametrize("size", [(8, 9), (50, 90)])  # halved once, or three times
def test_the_ground_is_a_slot_of_the_median_colour(
    name: str, size: tuple[int, int], grid_channels: int | None
) -> None:
    shape = (3, *size)
    network = tc.create_model(
        name,
        classes=4,
        ground=True,
        channels=4,
        dim=6,
        grid_channels=grid_channels,
        image_shape=shape,
    ).eval()
    images = network.examples(2)
    prediction = network(images)
    assert prediction.masks.shape == (2, 4, *size)
    assert prediction.capsules.pose.shape == (2, 4, 6)
    ordered = images.flatten(2).sort(2).values
    median = ordered[..., ordered.shape[2] // 2, None, None].expand(2, *shape)
    torch.testing.assert_close(prediction.colours[:, 0], median)
    assert network.route(images).assignment.shape[2] == 3
    assert network.with_slots(6)(images).masks.shape[1] == 6
    prediction.reconstruction.sum().backward()
    grads = [parameter.grad for parameter in network.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)


def test_places_of_the_ground_are_no_children() -> None:
    network = tc.models.SlotAutoencoder(ground=True, image_shape=(1, 16, 16))
    images = torch.full((2, 1, 16, 16), 0.2)
    images[0, :, 4:6, 8:12] = 0.9
    features = network.features_of(images)
    activation = features.activation.unflatten(1, (8, 8))
    expected = torch.zeros(2, 8, 8)
    expected[0, 2, 4:6] = 1.0
    # Two of 64 places have energy, so theirs is 1 / (1 + 1 / 128).
    torch.testing.assert_close(activation, expected, atol=0.01, rtol=0)


def test_slots_that_draw_the_same_are_one() -> None:
    """The second and the fourth slot, and the fifth by way of the fourth."""
    torch.manual_seed(0)
    pixels = [[4, 4, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 0], [0, 1, 1, 0]]
    masks = torch.tensor(pixels).double().reshape(1, 5, 2, 2)
    colours = torch.rand(1, 5, 3, 2, 2).double()
    merged, together = merged_slots(colours, masks)
    expected = torch.zeros_like(masks)
    expected[:, 0], expected[:, 2] = masks[:, 0], masks[:, 2]
    expected[:, 1] = masks[:, 1] + masks[:, 3] + masks[:, 4]
    torch.testing.assert_close(together, expected)
    drawn = (merged * together[:, :, None]).sum(1)
    torch.testing.assert_close(drawn, (colours * masks[:, :, None]).sum(1))


def test_a_faint_slot_keeps_its_colours_in_half_precision() -> None:
    colours = torch.full((1, 2, 3, 1, 1), 0.5, dtype=torch.float16)
    masks = torch.tensor([0.996, 0.004], dtype=torch.float16).view(1, 2, 1, 1)
    merged, _ = merged_slots(colours, masks)
    torch.testing.assert_close(merged, colours)


def test_another_number_of_slots_has_the_weights_in_their_dtype() -> None:
    network = tc.create_model("slot_autoencoder", image_shape=(3, 8, 8)).double().eval()
    with torch.no_grad():
        network.decoder.place.linear.bias.fill_(1 / 3)
    bias = network.with_slots(3).decoder.place.linear.bias
    assert torch.equal(bias, network.decoder.place.linear.bias)


def test_a_ground_needs_another_slot() -> None:
    with pytest.raises(ValueError, match="classes must be at least 2"):
        tc.models.SlotAutoencoder(ground=True, classes=1)


def entropy_at_first(sharpness: float) -> float:
    """That of the attention of an untrained network, as a share of the largest."""
    torch.manual_seed(0)
    routing = tc.create_routing("slots", start="normal", first_sharpness=sharpness)
    network = tc.create_model("slot_autoencoder", classes=6, routing=routing).eval()
    share = network.route(network.examples(4)).assignment.double()
    return torch.special.entr(share).sum(2).mean().item() / math.log(6)


def test_sharp_slots_collect_different_places_before_the_first_update() -> None:
    assert entropy_at_first(8.0) < 0.9 < entropy_at_first(1.0)


def mixture(images: torch.Tensor, colours: torch.Tensor, masks: torch.Tensor) -> Any:
    """The responsibilities of a Gaussian mixture with equal variances in all
    directions, by torch's own distributions.
    """
    drawn = (colours * masks[:, :, None]).sum(1)
    deviation = (images - drawn).square().mean((1, 2, 3)).sqrt()
    normal = torch.distributions.Normal(colours, deviation[:, None, None, None, None])
    log_likelihood = normal.log_prob(images[:, None]).sum(2)
    joint = masks * log_likelihood.exp()
    return joint / joint.sum(1, keepdim=True)


def test_pixels_are_assigned_by_the_e_step_of_a_mixture() -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 3, 5, 4).double()
    masks = torch.randn(2, 4, 5, 4).double()
    colours = torch.rand(2, 4, 3, 5, 4).double()
    masks = masks.softmax(1)
    actual = assigned_pixels(images, colours, masks)
    torch.testing.assert_close(actual, mixture(images, colours, masks))
    torch.testing.assert_close(actual.sum(1), torch.ones(2, 5, 4).double())


def test_the_colour_of_a_pixel_decides_where_masks_are_even() -> None:
    """A red slot and a blue one, both everywhere, on an image of two halves."""
    colours = torch.zeros(1, 2, 3, 4, 6)
    colours[:, 0, 0] = colours[:, 1, 2] = 1.0
    images = torch.where(torch.arange(6) < 2, colours[:, 0], colours[:, 1])
    slot = assigned_pixels(images, colours, torch.full((1, 2, 4, 6), 0.5)).argmax(1)
    assert slot[0].tolist() == [[0, 0, 1, 1, 1, 1]] * 4


def test_an_image_that_is_drawn_perfectly_is_assigned() -> None:
    """Its variance is 0."""
    colours = torch.rand(1, 3, 3, 4, 4)
    masks = torch.zeros(1, 3, 4, 4)
    masks[:, 1] = 1.0
    assigned = assigned_pixels(colours[:, 1], colours, masks)
    torch.testing.assert_close(assigned, masks)


def test_one_wrong_pixel_is_assigned_in_half_precision() -> None:
    """White on black, of 65,536 pixels, while all slots draw black."""
    images = torch.zeros(1, 3, 256, 256, dtype=torch.float16)
    images[:, :, 5, 7] = 1
    masks = torch.full((1, 4, 256, 256), 0.25, dtype=torch.float16)
    assigned = assigned_pixels(images, images.new_zeros(1, 4, 3, 256, 256), masks)
    assert torch.equal(assigned, masks)


def test_training_assigns_no_pixels() -> None:
    network = tc.create_model("slot_autoencoder", classes=4, **NETWORK)
    images = network.examples(2)
    assert network.train()(images).assigned is None
    prediction = network.eval()(images)
    torch.testing.assert_close(prediction.assigned.sum(1), torch.ones(2, 8, 9))


def test_of_several_starts_the_one_counts_that_draws_an_image_best() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"image_shape": (3, 24, 20), "ground": True}
    once = tc.create_model("slot_autoencoder", **options).eval()
    often: Any = tc.create_model("slot_autoencoder", **options, starts=5).eval()
    often.load_state_dict(once.state_dict())
    images = torch.rand(6, 3, 24, 20)
    with torch.no_grad():
        expected = []
        for noise in often.noise:
            once.routing.first.noise = noise
            expected.append(once(images))
        errors = torch.stack(
            [
                (trial.reconstruction - images).square().mean((1, 2, 3))
                for trial in expected
            ]
        )
        best = errors.argmin(0)
        assert len(best.unique()) > 1
        drawn = often(images)
        for image, start in enumerate(best.tolist()):
            for actual, wanted in zip(
                (drawn.reconstruction, drawn.masks, drawn.capsules.pose),
                (
                    expected[start].reconstruction,
                    expected[start].masks,
                    expected[start].capsules.pose,
                ),
                strict=True,
            ):
                torch.testing.assert_close(actual[image], wanted[image])
        pose = drawn.capsules.pose
        torch.testing.assert_close(often.route(images).pose, pose[:, 1:])
        begun = often.with_start_of(images[2:3])
        assert begun.starts == 1
        torch.testing.assert_close(begun(images[2:3]).capsules.pose, pose[2:3])
        assert often.with_slots(9)(images).masks.shape == (6, 9, 24, 20)


@pytest.mark.thorough
def test_several_starts_are_exported_for_any_batch() -> None:
    options: dict[str, Any] = {"image_shape": (3, 24, 20), "starts": 2}
    network: Any = tc.create_model("slot_autoencoder", **options).eval()
    images = torch.rand(5, 3, 24, 20)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    with use_backend("naive"), torch.no_grad():
        program = torch.export.export(network, (images[:2],), dynamic_shapes=(batch,))
        for part in (images, images[:1]):
            actual = program.module()(part).masks
            torch.testing.assert_close(actual, network(part).masks)


def test_several_starts_need_a_learned_gaussian() -> None:
    for routing in ("slot_mixture", "em"):
        with pytest.raises(ValueError, match=r"starts may be more than 1 only with"):
            tc.create_model("slot_autoencoder", starts=2, routing=routing)
