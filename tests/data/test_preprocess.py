from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps_lab.data import (
    Preprocess,
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomShift,
    centre_crop,
    standardise,
    thirteen_crops,
)

RANDOM = [RandomCrop(4), RandomBrightness(0.25), RandomContrast(0.2, 1.8)]


def pictures(count: int, channels: int = 3, height: int = 7, width: int = 9) -> Tensor:
    return torch.rand(
        count, channels, height, width, generator=torch.Generator().manual_seed(0)
    )


def positions(count: int, height: int, width: int) -> Tensor:
    """Images whose pixels are numbered, row by row."""
    return (
        torch.arange(height * width, dtype=torch.float32)
        .reshape(1, 1, height, width)
        .repeat(count, 1, 1, 1)
    )


def places(
    crop: RandomCrop, indices: Tensor, epoch: int, margins: tuple[int, int] = (4, 6)
) -> Tensor:
    """Which place each crop came from, numbered row by row."""
    height = crop.size + margins[0]
    width = crop.size + margins[1]
    corner = crop(positions(len(indices), height, width), indices, epoch)[
        :, 0, 0, 0
    ].long()
    return corner // width * (margins[1] + 1) + corner % width


def offsets(change: RandomBrightness, indices: Tensor, epoch: int) -> Tensor:
    """What is added to each image."""
    return change(
        torch.zeros(len(indices), 1, 1, 1, dtype=torch.float64), indices, epoch
    ).flatten()


def factors(change: RandomContrast, indices: Tensor, epoch: int) -> Tensor:
    """What each image is scaled by."""
    images = (
        torch.tensor([-1.0, 1.0], dtype=torch.float64)
        .reshape(1, 1, 1, 2)
        .repeat(len(indices), 1, 1, 1)
    )
    return change(images, indices, epoch)[:, 0, 0, 1]


def cells(values: Tensor, low: float, high: float, count: int) -> Tensor:
    return ((values - low) / (high - low) * count).long()


def chi_square(values: Tensor, count: int) -> float:
    expected = len(values) / count
    return float(((values.bincount(minlength=count) - expected) ** 2 / expected).sum())


# Standardising


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_is_zero_and_variance_one_over_all_of_an_image(dtype: torch.dtype) -> None:
    scale = torch.tensor([0.5, 1.0, 255.0, 1.0]).reshape(4, 1, 1, 1)
    images = (
        pictures(4) * scale + torch.tensor([0.0, 0, 0, 5]).reshape(4, 1, 1, 1)
    ).to(dtype)
    result = standardise(images).flatten(1).double()
    assert result.shape == (4, 3 * 7 * 9)
    torch.testing.assert_close(
        result.mean(1), torch.zeros(4).double(), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        result.square().mean(1), torch.ones(4).double(), atol=1e-5, rtol=0
    )


def test_channels_keep_their_differences() -> None:
    images = torch.stack([torch.zeros(2, 2), torch.ones(2, 2)])[None]
    assert standardise(images).tolist() == [[[[-1.0] * 2] * 2, [[1.0] * 2] * 2]]


def test_a_flat_image_becomes_zero_and_a_faint_one_is_not_blown_up() -> None:
    flat = torch.full((1, 1, 4, 4), 0.75)
    assert standardise(flat).count_nonzero() == 0
    faint = torch.zeros(1, 1, 4, 4)
    faint[..., 0] = 0.01  # Its standard deviation is below the bound 1 / sqrt(16).
    torch.testing.assert_close(standardise(faint), (faint - faint.mean()) * 4)


def test_gradient_of_standardising_a_flat_image_is_finite() -> None:
    images = torch.full((1, 1, 4, 4), 0.75, requires_grad=True)
    standardise(images)[0, 0, 0, 0].backward()
    expected = torch.full(
        (1, 1, 4, 4), -4 / 16
    )  # sqrt(16) times the derivative of x - mean(x)
    expected[0, 0, 0, 0] += 4
    torch.testing.assert_close(images.grad, expected)


def test_no_images_give_no_images() -> None:
    empty = torch.zeros(0, 1, 12, 12)
    no_indices = torch.zeros(0, dtype=torch.int64)
    assert standardise(empty).shape == (0, 1, 12, 12)
    assert thirteen_crops(empty, 6).shape == (0, 13, 1, 6, 6)
    assert [change(empty, no_indices, 0).shape for change in RANDOM] == [
        (0, 1, 4, 4),
        empty.shape,
        empty.shape,
    ]


# Crops without chance


@pytest.mark.parametrize(
    ("size", "top", "left"), [(7, 0, 1), (5, 1, 2), (4, 1, 2), (1, 3, 4)]
)
def test_centre_crop_is_the_middle(size: int, top: int, left: int) -> None:
    images = pictures(2)
    assert torch.equal(
        centre_crop(images, size), images[:, :, top : top + size, left : left + size]
    )


def test_thirteen_crops_are_the_middle_and_twelve_diagonal_neighbours() -> None:
    images = pictures(2, height=48, width=50)
    crops = thirteen_crops(images, 32)
    assert crops.shape == (2, 13, 3, 32, 32)
    assert torch.equal(crops[:, 0], centre_crop(images, 32))
    numbers = thirteen_crops(positions(1, 48, 50), 32)[0, :, 0, 0, 0].long()
    results = [
        (int(number) % 50 - 9, int(number) // 50 - 8) for number in numbers
    ]  # (x, y) off the middle
    assert results == [(0, 0)] + [
        (x * d, y * d) for d in (1, 2, 3) for x in (1, -1) for y in (1, -1)
    ]
    assert len(set(results)) == 13
    for crop, (x, y) in zip(crops.unbind(1), results, strict=True):
        assert torch.equal(crop, images[:, :, 8 + y : 40 + y, 9 + x : 41 + x])


@pytest.mark.parametrize(("height", "width"), [(11, 20), (20, 11)])
def test_thirteen_crops_need_three_pixels_on_every_side(
    height: int, width: int
) -> None:
    images = pictures(1, height=height, width=width)
    assert thirteen_crops(images, 5).shape == (1, 13, 3, 5, 5)
    with pytest.raises(
        ValueError, match=rf"at most 5 for images of {height} x {width}, got 6"
    ):
        thirteen_crops(images, 6)


# Random changes


def test_random_crops_are_slices() -> None:
    images = pictures(200, height=8, width=10)
    indices = torch.randint(
        0, 60_000, (200,), generator=torch.Generator().manual_seed(1)
    )
    crop = RandomCrop(4, seed=3)
    where = places(crop, indices, epoch=2)
    for image, result, place in zip(
        images, crop(images, indices, epoch=2), where.tolist(), strict=True
    ):
        top = place // 7
        left = place % 7
        assert torch.equal(result, image[:, top : top + 4, left : left + 4])


def test_a_crop_of_the_images_own_size_is_the_identity() -> None:
    images = pictures(5, height=6, width=6)
    assert torch.equal(RandomCrop(6)(images, torch.arange(5), epoch=1), images)


def test_all_crops_are_equally_likely() -> None:
    assert (
        chi_square(places(RandomCrop(2), torch.arange(35_000), epoch=0), 35) < 65.3
    )  # 99.9 %, 34 degrees


def test_brightness_adds_one_number_to_an_image() -> None:
    images = pictures(50).double()
    indices = torch.arange(50)
    change = RandomBrightness(0.25, seed=1)
    added = offsets(change, indices, epoch=4)[:, None, None, None]
    torch.testing.assert_close(change(images, indices, epoch=4), images + added)


def test_brightness_is_uniform_within_its_bounds() -> None:
    added = offsets(RandomBrightness(0.25), torch.arange(50_000), epoch=0)
    assert float(added.abs().max()) <= 0.25
    assert chi_square(cells(added, -0.25, 0.25, 50), 50) < 85.4  # 99.9 %, 49 degrees


def test_contrast_scales_each_channel_around_its_mean() -> None:
    images = pictures(50).double()
    indices = torch.arange(50)
    change = RandomContrast(0.2, 1.8, seed=1)
    result = change(images, indices, epoch=4)
    mean = images.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(result.mean(dim=(2, 3), keepdim=True), mean)
    scale = factors(change, indices, epoch=4)[:, None, None, None]
    torch.testing.assert_close(result - mean, scale * (images - mean))


def test_contrast_is_uniform_within_its_bounds() -> None:
    scale = factors(RandomContrast(0.2, 1.8), torch.arange(50_000), epoch=0)
    assert 0.2 <= float(scale.min()) <= float(scale.max()) <= 1.8
    assert chi_square(cells(scale, 0.2, 1.8, 50), 50) < 85.4  # 99.9 %, 49 degrees


def test_no_change_is_the_identity() -> None:
    images = pictures(5)
    indices = torch.arange(5)
    assert torch.equal(RandomBrightness(0)(images, indices, epoch=0), images)
    torch.testing.assert_close(RandomContrast(1, 1)(images, indices, epoch=0), images)


@pytest.mark.parametrize("change", RANDOM[1:])
def test_standardising_takes_brightness_and_contrast_of_a_grey_image_back(
    change: Any,
) -> None:
    images = (
        10 * pictures(20, channels=1).double()
    )  # of more contrast than the bound, by any factor
    torch.testing.assert_close(
        standardise(change(images, torch.arange(20), 0)), standardise(images)
    )


@pytest.mark.parametrize("change", RANDOM, ids=lambda change: type(change).__name__)
def test_result_depends_on_seed_epoch_and_index_alone(change: Any) -> None:
    images = pictures(1, 1, 40, 40).repeat(300, 1, 1, 1)
    indices = torch.arange(300)
    first = change(images, indices, epoch=0)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    assert torch.equal(change(images, indices[order], epoch=0), first[order])
    assert torch.equal(torch.get_rng_state(), state)

    def agreement(other: Tensor) -> float:
        return float((other == first).flatten(1).all(1).float().mean())

    # By chance 1 crop in 37^2 would agree, and no change of brightness or contrast.
    assert agreement(change(images, indices, epoch=1)) < 0.02
    assert agreement(change(images, indices + 1, epoch=0)) < 0.02
    assert agreement(replace(change, seed=1)(images, indices, epoch=0)) < 0.02


def test_changes_with_one_seed_are_independent() -> None:
    indices = torch.arange(50_000)
    # Five of each: the rows of the crops and of the shifts, the fifths of the other
    # two.
    five = {
        "crop": places(RandomCrop(1), indices, 0, margins=(4, 0)),
        "shift": RandomShift(2)(positions(len(indices), 5, 5), indices, 0)[
            :, 0, 2, 2
        ].long()
        // 5,
        "brightness": cells(offsets(RandomBrightness(1), indices, 0), -1, 1, 5),
        "contrast": cells(factors(RandomContrast(0, 1), indices, 0), 0, 1, 5),
    }
    names = list(five)
    for i, change in enumerate(names):
        for other in names[i + 1 :]:
            assert chi_square(five[change] * 5 + five[other], 25) < 51.2, (
                change,
                other,
            )  # 99.9 %, 24 degrees
        assert (
            chi_square(flips(RandomFlip(), indices, 0) * 5 + five[change], 10) < 27.9
        ), change  # 99.9 %, 9 degrees


def test_every_type_gets_the_same_numbers() -> None:
    indices = torch.arange(10)
    for change in RANDOM:
        single, double = (
            change(pictures(10).to(dtype), indices, 0)
            for dtype in (torch.float32, torch.float64)
        )
        assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
        torch.testing.assert_close(single.double(), double, atol=1e-6, rtol=0)


# Errors


IMAGES = torch.zeros(2, 1, 12, 12)


@pytest.mark.parametrize(
    "function",
    [standardise, lambda x: centre_crop(x, 2), lambda x: thirteen_crops(x, 2)]
    + [
        lambda x, change=change: change(x, torch.arange(len(x)), 0) for change in RANDOM
    ],
)
def test_images_are_checked(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(
        ValueError,
        match=r"images must be float \(B, C, H, W\), got torch.float32 \(2, 12, 12\)",
    ):
        function(IMAGES[:, 0])
    with pytest.raises(ValueError, match=r"images must be float .* got torch.uint8"):
        function(IMAGES.to(torch.uint8))


@pytest.mark.parametrize("change", RANDOM)
def test_there_is_one_index_per_image(change: Any) -> None:
    with pytest.raises(
        ValueError, match=r"indices must be \(2,\), one per image, got \(3,\)"
    ):
        change(IMAGES, torch.arange(3), 0)


@pytest.mark.parametrize("size", [0, 13])
def test_crops_lie_within_the_images(size: int) -> None:
    for crop in (centre_crop, thirteen_crops):
        with pytest.raises(
            ValueError, match=f"size must be 1 to 12 for images of 12 x 12, got {size}"
        ):
            crop(IMAGES, size)
    with pytest.raises(ValueError, match=f"size must be (1|at least 1).*, got {size}"):
        RandomCrop(size)(IMAGES, torch.arange(2), 0)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (RandomBrightness, (-0.1,), "delta must be at least 0, got -0.1"),
        (RandomBrightness, (float("nan"),), "delta must be finite, got nan"),
        (
            RandomContrast,
            (-0.1, 1),
            "0 <= low <= high, got .-0.1, 1",
        ),
        (RandomContrast, (1.8, 0.2), "low <= high, got .1.8, 0.2"),
    ],
)
def test_arguments_are_checked(
    kind: Any, arguments: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(*arguments)


# Flips


def flips(flip: RandomFlip, indices: Tensor, epoch: int) -> Tensor:
    """Which images are mirrored."""
    images = torch.tensor([0.0, 1.0]).reshape(1, 1, 1, 2).repeat(len(indices), 1, 1, 1)
    return flip(images, indices, epoch)[:, 0, 0, 0].long()


def test_a_flip_mirrors_left_and_right_or_nothing() -> None:
    images = pictures(50)
    indices = torch.arange(50)
    result = RandomFlip(seed=2)(images, indices, epoch=1)
    for image, got, flipped in zip(
        images, result, flips(RandomFlip(seed=2), indices, 1).tolist(), strict=True
    ):
        assert torch.equal(
            got, image[:, :, torch.arange(8, -1, -1)] if flipped else image
        )


def test_half_of_all_images_are_flipped_and_others_in_each_epoch() -> None:
    indices = torch.arange(50_000)
    first = flips(RandomFlip(), indices, 0)
    assert chi_square(first, 2) < 10.9  # 99.9 %, 1 degree
    others = (
        flips(RandomFlip(), indices, 1),
        flips(RandomFlip(), indices + 1, 0),
        flips(RandomFlip(seed=1), indices, 0),
    )
    for other in others:
        assert chi_square(first * 2 + other, 4) < 16.3  # 99.9 %, 3 degrees


def test_a_flip_checks_its_arguments() -> None:
    with pytest.raises(ValueError, match=r"images must be float .* got torch.uint8"):
        RandomFlip()(IMAGES.to(torch.uint8), torch.arange(2), 0)
    with pytest.raises(
        ValueError, match=r"indices must be \(2,\), one per image, got \(3,\)"
    ):
        RandomFlip()(IMAGES, torch.arange(3), 0)


@pytest.mark.parametrize(
    ("options", "side"),
    [({"crop": 5}, 5), ({"rescale": 16}, 8), ({"rescale": 14, "crop": 11}, 6)],
)
def test_numbers_of_pixels_come_back_to_the_image(
    options: dict[str, int], side: int
) -> None:
    """What was cropped away is 0."""
    preprocess = Preprocess(**options)
    image = (torch.arange(8.0) > 3).float().expand(1, 1, 8, 8)
    prepared = preprocess.evaluate(image).images[0, 0] > 0.5
    actual = preprocess.undone(1 + prepared.long(), 8, 8)
    kept = actual > 0
    assert torch.equal(actual[kept], 1 + image[0, 0].long()[kept])
    assert kept.sum() == side**2
