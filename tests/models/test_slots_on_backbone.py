"""Slots that draw the features of a backbone."""

from typing import Any

import pytest
import torch

import torchcaps as tc

NETWORK: dict[str, Any] = {
    "widths": (4, 6),
    "blocks": 1,
    "dim": 8,
    "hidden": 16,
    "image_shape": (3, 16, 12),
}


def network_of(**options: Any) -> tc.models.SlotsOnBackbone:
    torch.manual_seed(0)
    return tc.create_model("slots_on_backbone", classes=4, **{**NETWORK, **options})


def error_of(network: tc.models.SlotsOnBackbone, images: torch.Tensor) -> torch.Tensor:
    drawn, true = network(images).features
    return (drawn - true).square().mean()


def test_slots_in_another_order_draw_the_same_features() -> None:
    network = network_of().double().eval()
    images = network.examples(2).double()
    order = torch.tensor([2, 0, 3, 1])
    with torch.no_grad():
        before = network(images)
        noise = network.slots.routing.first.noise
        noise.copy_(noise[order].clone())
        after = network(images)
    torch.testing.assert_close(after.features.drawn, before.features.drawn)
    torch.testing.assert_close(after.masks, before.masks[:, order])
    assert not torch.allclose(after.masks, before.masks)


def test_the_features_of_a_place_have_mean_0_and_variance_1() -> None:
    network = network_of()
    true = network(network.examples(3)).features.true
    maps = network.features(network.examples(3))
    assert true.shape == maps.shape == (3, 6, 8, 6)
    torch.testing.assert_close(true.mean(1), torch.zeros(3, 8, 6))
    expected = (maps - maps.mean(1, keepdim=True)) / (
        maps.var(1, keepdim=True, unbiased=False) + 1e-5
    ).sqrt()
    torch.testing.assert_close(true, expected)


def test_masks_sum_to_one_at_the_size_of_the_image() -> None:
    network = network_of()
    prediction = network(network.examples(2))
    assert prediction.masks.shape == (2, 4, 16, 12)
    torch.testing.assert_close(prediction.masks.sum(1), torch.ones(2, 16, 12))
    assert prediction.reconstruction is None


@pytest.mark.thorough
def test_all_but_the_backbone_learns_to_draw_the_features() -> None:
    network = network_of()
    images = network.examples(4)
    backbone = {name: x.clone() for name, x in network.features.state_dict().items()}
    optimizer = torch.optim.Adam(network.parameters(), 0.01)
    first = error_of(network, images)
    for _ in range(40):
        optimizer.zero_grad()
        error_of(network, images).backward()
        optimizer.step()
    assert error_of(network, images) < 0.7 * first
    for name, tensor in network.features.state_dict().items():
        assert torch.equal(tensor, backbone[name])
    assert not network.train().features.training


def test_a_part_is_the_picture_where_its_mask_is() -> None:
    network = network_of()
    pictures = network.examples(2)
    prediction = network(pictures)
    masks = torch.zeros_like(prediction.masks)
    masks[:, 1] = 1.0
    parts = network.parts(pictures, prediction._replace(masks=masks))
    torch.testing.assert_close(parts[:, 1], pictures)
    assert bool((parts[:, [0, 2, 3]] == 0.5).all())


def test_features_are_drawn_as_colours() -> None:
    """Perfectly drawn ones use the whole range of each colour."""
    network = network_of()
    prediction = network(network.examples(2))
    true = prediction.features.true
    perfect = prediction.features._replace(drawn=true)
    colours = network.drawing(prediction._replace(features=perfect))
    assert colours.shape == (2, 3, 16, 12)
    torch.testing.assert_close(colours.amin((2, 3)), torch.zeros(2, 3))
    torch.testing.assert_close(colours.amax((2, 3)), torch.ones(2, 3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": 2}, "level must be 1 with the backbone 'residual'"),
        ({"backbone": "vgg"}, "backbone must be 'residual' or 'timm/'"),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network_of(**options)


def test_a_saved_network_brings_its_backbone(tmp_path: Any) -> None:
    network = network_of().eval()
    images = network.examples(2)
    network.save_pretrained(tmp_path / "slots")
    again = tc.load_pretrained(tmp_path / "slots").eval()
    torch.testing.assert_close(again(images).masks, network(images).masks)
    assert again.with_slots(6)(images).masks.shape == (2, 6, 16, 12)


@pytest.mark.thorough
def test_an_exported_program_is_saved_with_its_features(tmp_path: Any) -> None:
    network = network_of().eval()
    images = network.examples(2)
    path = tmp_path / "slots.pt2"
    torch.export.save(torch.export.export(network, (images,)), path)
    prediction = torch.export.load(path).module()(images)
    torch.testing.assert_close(
        prediction.features.drawn, network(images).features.drawn
    )
