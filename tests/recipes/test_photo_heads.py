"""Heads on the features of photos."""

import dataclasses

import pytest
import torch

from recipes import photo_heads
from recipes.kit.base import get_recipe

SMOKE = get_recipe("photo-heads").presets["smoke"]


def separable(count: int) -> photo_heads.Shown:
    """Features of three classes, each on its own channel at one of four places."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    place = torch.randint(4, (count,), generator=generator)
    features = 0.1 * torch.randn(count, 8, 4, generator=generator)
    features[torch.arange(count), labels, place] += 3
    present = torch.nn.functional.one_hot(labels, 3).bool()
    return photo_heads.Shown(features.unflatten(2, (2, 2)), present)


@pytest.mark.parametrize("row", photo_heads.HEADS)
def test_every_head_learns_what_a_line_can_tell_apart(row: str) -> None:
    torch.manual_seed(0)
    head = photo_heads.make_head(row, 8, 3)
    shown = separable(96)
    settings = dataclasses.replace(SMOKE, epochs=20, batch_size=16, rate=0.02)
    photo_heads.fit(head, shown, settings)
    assert photo_heads.accuracy(head, shown) > 95


def test_class_maps_pool_by_log_mean_exp() -> None:
    head = photo_heads.MapsHead(5, 3)
    features = torch.randn(2, 5, 3, 4)
    evidence = head.evidence(features)
    expected = evidence.exp().mean((2, 3)).log().sigmoid()
    torch.testing.assert_close(head(features), expected)


def test_features_are_those_of_enlarged_images_scaled_to_one() -> None:
    images = torch.full((3, 1, 4, 4), 255, dtype=torch.uint8)
    features = photo_heads.features_of(torch.nn.Identity(), images, scale=2)
    torch.testing.assert_close(features, torch.ones(3, 1, 8, 8))
