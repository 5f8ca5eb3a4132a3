"""Rotation, RandAugment and erasing; they are kornia's, what is drawn for each image is
ours.
"""

import math
import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torchcaps_lab.data import (
    Preprocess,
    RandAugment,
    RandomErasing,
    RandomRotation,
    RandomZoom,
)
from torchcaps_lab.data.transforms.strong import OPERATIONS

kornia = pytest.importorskip("kornia")

CHANGES = [RandomRotation(30.0), RandomZoom(0.3), RandAugment(2), RandomErasing(0.7)]


def pictures(
    count: int, channels: int = 3, height: int = 15, width: int = 12
) -> Tensor:
    return torch.rand(
        count, channels, height, width, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
class TestEach:
    @pytest.mark.parametrize("channels", [1, 2, 3])
    def test_depends_on_seed_epoch_and_index_alone(self, change, channels):
        images = pictures(40, channels)
        indices = torch.arange(40)
        actual = change(images, indices, 3)
        assert actual.shape == images.shape
        assert 0 <= float(actual.min()) <= float(actual.max()) <= 1
        order = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:7]
        torch.testing.assert_close(
            change(images[order], order, 3), actual[order], atol=1e-5, rtol=0
        )
        torch.manual_seed(5)
        torch.testing.assert_close(change(images, indices, 3), actual, atol=0, rtol=0)
        for other in (
            change(images, indices, 4),
            replace(change, seed=9)(images, indices, 3),
        ):
            assert (other - actual).abs().amax((1, 2, 3)).gt(1e-3).float().mean() > 0.5


def test_angles_are_even_in_their_range():
    images = torch.zeros(2000, 1, 41, 41)
    images[:, :, 20, 36] = 1  # to the right of the middle
    turned = RandomRotation(90.0)(images, torch.arange(2000), 0).flatten(1)
    rows = turned.argmax(1) // 41 - 20
    columns = turned.argmax(1) % 41 - 20
    angles = torch.atan2(-rows.double(), columns.double()) * 180 / math.pi
    assert -92 < angles.min() < -80
    assert 80 < angles.max() < 92
    assert angles.mean().abs() < 5
    assert angles.std().item() == pytest.approx(180 / math.sqrt(12), rel=0.06)


def test_zooms_are_even_in_width_and_height_alone():
    images = torch.zeros(2000, 1, 41, 41)
    images[:, :, 10:31, 10:31] = 1  # 21 x 21 in the middle
    actual = RandomZoom(0.5)(images, torch.arange(2000), 0)[:, 0]
    height = actual[:, :, 20].sum(1) / 21
    width = actual[:, 20].sum(1) / 21
    for factor in (height, width):
        assert [factor.min().item(), factor.max().item()] == pytest.approx(
            [0.5, 1.5], abs=0.06
        )
        assert factor.std().item() == pytest.approx(1 / math.sqrt(12), rel=0.06)
    assert torch.corrcoef(torch.stack([height, width]))[0, 1].abs() < 0.1
    torch.testing.assert_close(
        actual.flip(1), actual, atol=1e-4, rtol=0
    )  # around the middle


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_type_loses_the_same_rectangle(dtype):
    """Of 262,144 pixels, more than float16 can count."""
    images = torch.ones(4, 1, 512, 512)
    single, half = (
        RandomErasing(1.0)(images.to(precision), torch.arange(4), 0)
        for precision in (torch.float32, dtype)
    )
    assert half.dtype == dtype
    assert torch.equal(half.float(), single)


def test_erased_are_rectangles_of_the_published_sizes():
    actual = RandomErasing(0.5)(torch.ones(2000, 2, 30, 40), torch.arange(2000), 0)
    black = actual[:, 0] == 0
    assert torch.equal(actual[:, 0], actual[:, 1])
    hit = black.flatten(1).any(1)
    assert hit.float().mean().item() == pytest.approx(0.5, abs=0.04)
    area = black[hit].flatten(1).sum(1)
    height = black[hit].any(2).sum(1)
    width = black[hit].any(1).sum(1)
    assert torch.equal(area, height * width)  # whole, and one
    assert area.min() < 0.04 * 1200
    assert 0.28 * 1200 < area.max() < 0.36 * 1200
    ends = [black.any(0)[row, column].item() for row in (0, 29) for column in (0, 39)]
    assert all(ends)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_randaugment(name):
    import kornia

    images = 0.05 + 0.9 * pictures(4)
    strength = torch.tensor([0.3, -0.3, 0.3, -0.3])
    actual = OPERATIONS[name](kornia, images, strength)
    assert actual.shape == images.shape
    same = torch.allclose(actual, images, atol=1e-3)
    assert same == (name == "identity")
    if (
        name in ("brightness", "contrast", "sharpness", "colour", "rotate")
        or "translate" in name
        or "shear" in name
    ):
        torch.testing.assert_close(
            OPERATIONS[name](kornia, images, 0 * strength), images, atol=1e-4, rtol=0
        )


def test_preprocess_does_them_in_training_only():
    images = pictures(16)
    indices = torch.arange(16)
    plain = Preprocess(flip=True)
    for options in (
        {"rotate": 20.0},
        {"zoom": 0.3},
        {"randaugment": 2},
        {"erase": 0.9},
    ):
        strong = Preprocess(flip=True, **options)
        assert not torch.equal(
            strong.train(images, indices, 1).images,
            plain.train(images, indices, 1).images,
        )
        assert torch.equal(strong.evaluate(images).images, images)
        assert Preprocess.from_config(strong.config()) == strong
    assert Preprocess.from_config({"flip": True}) == plain


def test_autocontrast_leaves_a_channel_of_one_value():
    """As Pillow does; the others reach from 0 to 1."""
    images = 0.2 + 0.3 * pictures(2)
    images[0, 1], images[1] = 0.7, 1.0
    actual = OPERATIONS["autocontrast"](kornia, images, torch.ones(2))
    assert torch.equal(actual[0, 1], images[0, 1])
    assert torch.equal(actual[1], images[1])
    low, high = actual[0, [0, 2]].flatten(1).aminmax(dim=1)
    torch.testing.assert_close(
        (low, high), (torch.zeros(2), torch.ones(2)), atol=1e-4, rtol=0
    )


def test_kornia_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(
        ModuleNotFoundError,
        match=r"need kornia.*pip install 'torchcaps-lab\[augment\]'",
    ):
        Preprocess(rotate=5.0).train(pictures(1), torch.arange(1), 0)
