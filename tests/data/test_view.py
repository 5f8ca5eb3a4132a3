"""What a network gets to see: the options, the training view, the test view, and image
sets that carry them.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps_lab.data import (
    Examples,
    Preprocess,
    RandomBrightness,
    RandomContrast,
    RandomCrop,
    RandomFlip,
    RandomShift,
    centre_crop,
    normalise,
    rescale,
    standardise,
    thirteen_crops,
)

PAPER = Preprocess(
    crop=6, brightness=63 / 255, contrast=(0.2, 1.8), standardise=True, crops=13
)
EVERYTHING = replace(PAPER, shift=2, flip=True)
OPTIONS = {
    "none": Preprocess(),
    "shift": Preprocess(shift=1),
    "crop": Preprocess(crop=5),
    "flip": Preprocess(flip=True),
    "brightness": Preprocess(brightness=0.3),
    "contrast": Preprocess(contrast=(0.5, 2)),
    "standardise": Preprocess(standardise=True),
    "everything": EVERYTHING,
}
SHAPE = (2, 12, 14)


def pictures(count: int) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(0))


def image_set(count: int = 5) -> Examples:
    images = (pictures(count) * 255).to(torch.uint8)
    return Examples(
        images,
        torch.arange(count),
        tuple("abcde"),
        tuple(f"{place}.png" for place in range(count)),
    )


# Views


def test_without_options_images_stay_as_they_are() -> None:
    images = pictures(3)
    indices = torch.arange(3)
    for view in (
        Preprocess().train(images, indices, epoch=4),
        Preprocess().evaluate(images),
    ):
        assert torch.equal(view.images, images)
        assert torch.equal(view.pictures, images)
    assert torch.equal(Preprocess().evaluate_crops(images), images[:, None])


def test_training_view_makes_every_change_in_order() -> None:
    images = pictures(40)
    indices = torch.arange(100, 140)
    epoch = 3
    seed = 7
    steps: list[Callable[[Tensor, Tensor, int], Tensor]] = [
        RandomShift(2, seed=seed),
        RandomCrop(6, seed=seed),
        RandomFlip(seed=seed),
        RandomBrightness(63 / 255, seed=seed),
        RandomContrast(0.2, 1.8, seed=seed),
    ]
    expected = images
    for step in steps:
        expected = step(expected, indices, epoch)
    view = EVERYTHING.train(images, indices, epoch, seed)
    assert torch.equal(view.images, standardise(expected))
    assert (expected.amin() < 0) & (expected.amax() > 1)
    assert torch.equal(view.pictures, expected.clamp(0, 1))


@pytest.mark.parametrize("preprocess", OPTIONS.values(), ids=OPTIONS)
def test_training_view_depends_on_seed_epoch_and_index_alone(
    preprocess: Preprocess,
) -> None:
    images = pictures(50)
    indices = torch.arange(50)
    whole = preprocess.train(images, indices, epoch=2, seed=1)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    for rows in (order, torch.arange(0, 50, 2)):
        part = preprocess.train(images[rows], indices[rows], epoch=2, seed=1)
        assert torch.equal(part.images, whole.images[rows])
        assert torch.equal(part.pictures, whole.pictures[rows])
    chance = preprocess not in (OPTIONS["none"], OPTIONS["standardise"])
    for other in (
        preprocess.train(images, indices, 3, seed=1),
        preprocess.train(images, indices, 2, seed=2),
    ):
        assert torch.equal(other.images, whole.images) != chance


@pytest.mark.parametrize("preprocess", OPTIONS.values(), ids=OPTIONS)
def test_every_view_has_the_stated_shape(preprocess: Preprocess) -> None:
    images = pictures(3)
    shape = preprocess.image_shape(SHAPE)
    assert shape == (
        SHAPE if preprocess.crop is None else (2, preprocess.crop, preprocess.crop)
    )
    for view in (
        preprocess.train(images, torch.arange(3), 0),
        preprocess.evaluate(images),
    ):
        assert view.images.shape == view.pictures.shape == (3, *shape)
    assert preprocess.evaluate_crops(images).shape == (3, preprocess.crops, *shape)


def test_test_view_is_the_standardised_centre() -> None:
    images = pictures(4)
    view = EVERYTHING.evaluate(images)
    assert torch.equal(view.pictures, centre_crop(images, 6))
    assert torch.equal(view.images, standardise(centre_crop(images, 6)))


def test_thirteen_crops_are_standardised_one_by_one() -> None:
    images = pictures(4)
    crops = PAPER.evaluate_crops(images)
    parts = thirteen_crops(images, 6)
    torch.testing.assert_close(crops[:, 0], PAPER.evaluate(images).images)
    for place in range(13):
        torch.testing.assert_close(crops[:, place], standardise(parts[:, place]))
    assert torch.equal(replace(PAPER, standardise=False).evaluate_crops(images), parts)


# Options


@pytest.mark.parametrize("preprocess", OPTIONS.values(), ids=OPTIONS)
def test_options_survive_json(preprocess: Preprocess) -> None:
    assert (
        Preprocess.from_config(json.loads(json.dumps(preprocess.config())))
        == preprocess
    )


def test_unknown_options_are_named() -> None:
    with pytest.raises(ValueError, match="unknown preprocess options colour, tilt"):
        Preprocess.from_config({"tilt": 2, "crop": 3, "colour": True})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"contrast": (1.8, 0.2)},
            r"contrast must be two factors, 0 <= low <= high, got \(1.8, 0.2\)",
        ),
        ({"crop": 4, "crops": 5}, "crops must be one of 1, 13, got 5"),
        ({"crops": 13}, "crops=13 needs crop"),
        (
            {"mean": (0.5,)},
            r"mean and deviation must be one number each a channel, got \(0.5,\) and "
            r"None",
        ),
        ({"mean": (0.5,), "deviation": (1.0, 1.0)}, "one number each a channel"),
        ({"mean": (0.5,), "deviation": (0.0,)}, "deviation must be above 0, got 0"),
        (
            {"mean": (float("nan"),), "deviation": (1.0,)},
            "mean must be finite, got nan",
        ),
        (
            {"mean": (0.5,), "deviation": (1.0,), "standardise": True},
            "standardise and mean are two ways",
        ),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preprocess(**options)


def test_crops_must_fit_the_images() -> None:
    assert Preprocess(crop=12).image_shape(SHAPE) == (2, 12, 12)
    with pytest.raises(
        ValueError, match="shift must be less than 12 for images of 12 x 14, got 12"
    ):
        Preprocess(shift=12).image_shape((1, 12, 14))
    with pytest.raises(
        ValueError, match="crop must be at most 12 for images of 12 x 14, got 13"
    ):
        Preprocess(crop=13).image_shape(SHAPE)
    assert Preprocess(crop=6, crops=13).image_shape(SHAPE) == (2, 6, 6)
    with pytest.raises(
        ValueError,
        match=r"crop must be at most 6 for images of 12 x 14, 3 pixels less .* got 7",
    ):
        Preprocess(crop=7, crops=13).image_shape(SHAPE)


class TestBinarise:
    """Pixels above one half are 1, all others 0: for every image, and for people
    too.
    """

    LEVELS = torch.tensor([0, 127, 128, 255]).view(1, 1, 2, 2) / 255

    def test_the_threshold_is_one_half(self) -> None:
        expected = torch.tensor([0.0, 0, 1, 1]).view(1, 1, 2, 2)
        for view in (
            Preprocess(binarise=True).evaluate(self.LEVELS),
            Preprocess(binarise=True).train(self.LEVELS, torch.arange(1), 0),
        ):
            assert torch.equal(view.images, expected)
            assert torch.equal(view.pictures, expected)

    def test_monotone_changes_that_keep_one_half_change_nothing(self) -> None:
        images = torch.rand(3, 1, 8, 8)
        bright = 0.5 + (images - 0.5).sign() * (images - 0.5).abs().sqrt()
        once = Preprocess(binarise=True).evaluate(images).images
        assert torch.equal(Preprocess(binarise=True).evaluate(bright).images, once)
        assert torch.equal(Preprocess(binarise=True).evaluate(once).images, once)

    def test_it_comes_before_the_scale(self) -> None:
        images = torch.rand(3, 1, 8, 8)
        binary = (images > 0.5).float()
        assert torch.equal(
            Preprocess(binarise=True, standardise=True).evaluate(images).images,
            standardise(binary),
        )
        scaled = (
            Preprocess(binarise=True, mean=(0.5,), deviation=(0.5,))
            .evaluate(images)
            .images
        )
        assert torch.equal(scaled, 2 * binary - 1)

    def test_it_is_saved_and_files_without_it_load(self) -> None:
        config = Preprocess(binarise=True).config()
        assert Preprocess.from_config(config).binarise
        del config["binarise"]
        assert not Preprocess.from_config(config).binarise


# Image sets


def test_a_prepared_set_gives_prepared_images() -> None:
    raw = image_set()
    images = raw.inputs.float() / 255
    prepared = raw.prepared(PAPER)
    batch = prepared.__getitems__([3, 1])
    assert torch.equal(batch.inputs, standardise(centre_crop(images[[3, 1]], 6)))
    assert torch.equal(batch.pictures, centre_crop(images[[3, 1]], 6))
    assert batch.labels.tolist() == batch.indices.tolist() == [3, 1]
    assert torch.equal(prepared.crops([4, 0]), PAPER.evaluate_crops(images[[4, 0]]))
    assert prepared.image_shape == (2, 6, 6)
    assert prepared.raw_image_shape == SHAPE
    assert raw.image_shape == SHAPE  # and is itself left alone
    assert torch.equal(raw[2].inputs, images[2:3])


def test_a_subset_is_prepared_like_its_set() -> None:
    prepared = image_set().prepared(PAPER)
    part = prepared.subset(torch.tensor([4, 2]))
    assert torch.equal(part[1].inputs, prepared[2].inputs)
    assert part.files == ("4.png", "2.png")


def test_a_set_refuses_options_that_do_not_fit_it() -> None:
    with pytest.raises(ValueError, match="crop must be at most 12"):
        image_set().prepared(Preprocess(crop=40))


# One size and one scale for the whole set

SET_WISE = Preprocess(
    rescale=8,
    crop=6,
    brightness=0.3,
    contrast=(0.5, 1.5),
    mean=(0.25, 0.75),
    deviation=(0.5, 0.125),
    crops=1,
)


def written_out(images: Tensor, size: int) -> Tensor:
    """Bilinear, half-pixel centres, each result between the nearest four pixels."""
    for axis in (2, 3):
        extent = images.shape[axis]
        place = ((torch.arange(size) + 0.5) * extent / size - 0.5).clamp(0, extent - 1)
        before = place.floor().long()
        after = (before + 1).clamp(max=extent - 1)
        shape = [-1 if number == axis else 1 for number in range(4)]
        share = (place - before).to(images.dtype).view(shape)
        images = (
            images.index_select(axis, before) * (1 - share)
            + images.index_select(axis, after) * share
        )
    return images


@pytest.mark.parametrize("size", [5, 12, 17])
def test_rescaling_is_bilinear_without_smoothing(size: int) -> None:
    images = pictures(3)
    torch.testing.assert_close(
        rescale(images, size), written_out(images, size), rtol=0, atol=1e-6
    )
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        rescale(images, 0)


def test_set_wise_views() -> None:
    images = pictures(5)
    indices = torch.arange(5)
    assert SET_WISE.image_shape(SHAPE) == (2, 6, 6)
    mean = torch.tensor([0.25, 0.75])[:, None, None]
    deviation = torch.tensor([0.5, 0.125])[:, None, None]
    scaled = written_out(images, 8)
    changed = RandomContrast(0.5, 1.5, seed=7)(
        RandomBrightness(0.3, seed=7)(
            RandomCrop(6, seed=7)(scaled, indices, 3), indices, 3
        ),
        indices,
        3,
    )
    for view, expected in (
        (SET_WISE.train(images, indices, 3, 7), changed),
        (SET_WISE.evaluate(images), centre_crop(scaled, 6)),
    ):
        torch.testing.assert_close(view.images, (expected - mean) / deviation)
        torch.testing.assert_close(view.pictures, expected.clamp(0, 1))
    many = replace(SET_WISE, rescale=12, crops=13)
    assert torch.equal(
        many.evaluate_crops(images)[:, 0],
        replace(many, crops=1).evaluate(images).images,
    )
    assert Preprocess.from_config(json.loads(json.dumps(SET_WISE.config()))) == SET_WISE


def test_set_wise_options_must_fit_the_channels() -> None:
    with pytest.raises(ValueError, match="mean and deviation must be for 3 channels"):
        SET_WISE.image_shape((3, 12, 14))
    with pytest.raises(
        ValueError,
        match=r"mean and deviation must be for 2 channels, got \(1,\) and \(2,\)",
    ):
        normalise(pictures(1), (1,), (2,))
