"""Data sets that are made of others."""

import math

import pytest
import torch
import torch.nn.functional as F

from recipes.kit.lab import data_of
from torchcaps_lab.data import Digits, DigitScenes, Examples, Few, MadeQuestions
from torchcaps_lab.kinds.images.made import (
    Affine,
    AffineRanges,
    Overlaid,
    Overlay,
    Padded,
    Pairs,
    Scenes,
    TurnedDigits,
    apply_affine,
    arrange,
    bounding_box_overlap,
    fixed_pairs,
    lower,
    shift_limits,
    turn,
)

AFFNIST = AffineRanges()
QUARTER = torch.tensor([90.0])


def still(count=1, **changes):
    affine = Affine(
        torch.zeros(count),
        torch.zeros(count),
        torch.ones(count, 2),
        torch.zeros(count, 2),
    )
    return affine._replace(**changes)


def noise(count, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (count, 1, size, size), generator=generator, dtype=torch.uint8
    )


def slowly(image, matrix, shift):
    """The transform of one image (H, W), pixel by pixel from the definition."""
    size = len(image)
    back = torch.linalg.inv(matrix.double())
    middle = (size - 1) / 2
    moved = torch.zeros(size, size, dtype=torch.double)
    for row in range(size):
        for column in range(size):
            x, y = (
                back
                @ (
                    torch.tensor([column - middle, row - middle]).double()
                    - shift.double()
                )
            ).tolist()
            for i in range(size):
                for j in range(size):
                    weight = max(0.0, 1 - abs(y + middle - i)) * max(
                        0.0, 1 - abs(x + middle - j)
                    )
                    moved[row, column] += weight * float(image[i, j])
    return moved


class TestAffine:
    @pytest.mark.parametrize(
        ("affine", "point", "expected"),
        [
            (still(rotation=QUARTER), (1, 0), (0, -1)),  # to the right becomes up
            (still(rotation=torch.tensor([30.0])), (2, 0), (math.sqrt(3), -1)),
            (
                still(shear=torch.tensor([0.5])),
                (3, -2),
                (4, -2),
            ),  # above leans to the right
            (still(scale=torch.tensor([[2.0, 3.0]])), (1, 1), (2, 3)),
            (
                still(rotation=QUARTER, scale=torch.tensor([[2.0, 1.0]])),
                (1, 0),
                (0, -2),
            ),  # scaled first
            (
                still(shear=torch.tensor([0.5]), scale=torch.tensor([[1.0, 2.0]])),
                (0, -1),
                (1, -2),
            ),
        ],
    )
    def test_matrix_maps_points_as_computed_by_hand(self, affine, point, expected):
        mapped = affine.matrix[0] @ torch.tensor(point).float()
        torch.testing.assert_close(
            mapped, torch.tensor(expected).float(), atol=1e-6, rtol=1e-6
        )

    def test_nothing_changed_is_the_same_image(self):
        images = noise(3, 9)
        assert torch.equal(apply_affine(images, still(3)), images)

    def test_shift_moves_pixels_right_and_down(self):
        images = noise(1, 8)
        moved = apply_affine(images, still(shift=torch.tensor([[2.0, 3.0]])))
        assert torch.equal(moved[:, :, 3:, 2:], images[:, :, :-3, :-2])
        assert not moved[:, :, :3].any()
        assert not moved[..., :2].any()

    def test_quarter_turn_is_counter_clockwise(self):
        images = noise(2, 7)
        moved = apply_affine(images, still(2, rotation=QUARTER.expand(2)))
        assert torch.equal(moved, torch.rot90(images, 1, (2, 3)))

    def test_any_transform_interpolates_between_four_pixels(self):
        images = noise(2, 6)
        affine = Affine(
            torch.tensor([17.0, -40.0]),
            torch.tensor([0.3, -0.1]),
            torch.tensor([[1.2, 0.9], [0.7, 1.4]]),
            torch.tensor([[0.6, -1.3], [-0.4, 0.8]]),
        )
        moved = apply_affine(images, affine)
        for number in range(2):
            expected = slowly(
                images[number, 0], affine.matrix[number], affine.shift[number]
            )
            assert (moved[number, 0] - expected).abs().max() <= 0.51  # rounded to bytes

    def test_images_must_be_square(self):
        with pytest.raises(ValueError, match="square"):
            apply_affine(torch.zeros(1, 1, 4, 5, dtype=torch.uint8), still())


class TestShiftLimits:
    @pytest.mark.parametrize(
        ("scale", "most", "expected"), [(1.0, 9, 4), (2.0, 9, 3), (1.0, 2, 2)]
    )
    def test_one_pixel_in_the_middle(self, scale, most, expected):
        images = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
        images[0, 0, 4, 4] = 255
        low, high = shift_limits(images, scale * torch.eye(2)[None], most)
        assert torch.equal(high, torch.full((1, 2), float(expected)))
        assert torch.equal(low, -high)

    def test_limits_are_of_x_and_y(self):
        images = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
        images[0, 0, 2, 7] = 255  # two above the middle, three right of it
        low, high = shift_limits(images, torch.eye(2)[None], 9)
        assert (low.tolist(), high.tolist()) == ([[-7, -2]], [[1, 6]])

    def test_too_large_a_digit_gets_equal_margins(self):
        low, high = shift_limits(
            torch.full((1, 1, 9, 9), 255, dtype=torch.uint8), 2 * torch.eye(2)[None], 8
        )
        assert torch.equal(low, high)
        assert torch.equal(low, torch.zeros(1, 2))

    @pytest.mark.parametrize("end", [0, 1])
    def test_no_ink_leaves_the_canvas_at_the_limits(self, end):
        images = F.pad(noise(20, 5), (8, 8, 8, 8))
        affine = AFFNIST.draw(images)
        shift = shift_limits(images, affine.matrix, 99)[end]
        larger = apply_affine(F.pad(images, (9, 9, 9, 9)), affine._replace(shift=shift))
        outside = larger.clone()
        outside[..., 9:-9, 9:-9] = 0
        assert larger.any()
        assert not outside.any()
        # One pixel further, some does: the limits are not too narrow by more than the
        # spread of the interpolation.
        further = apply_affine(
            F.pad(images, (9, 9, 9, 9)), affine._replace(shift=shift + (4 * end - 2))
        )
        further[..., 9:-9, 9:-9] = 0
        assert further.flatten(1).any(1).all()


class TestRandomAffine:
    def test_fills_its_ranges_and_stays_in_them(self):
        images = F.pad(noise(500, 3), (18, 19, 18, 19))
        affine = AFFNIST.draw(images)
        for values, low, high in (
            (affine.rotation, -20, 20),
            (affine.shear, -0.2, 0.2),
            (affine.scale, 0.8, 1.2),
            (affine.shift, -8, 8),
        ):
            width = high - low
            assert low <= values.min() < low + 0.05 * width
            assert high - 0.05 * width < values.max() <= high
        for first_axis, second_axis in (
            (affine.scale[:, 0], affine.scale[:, 1]),
            (affine.shift[:, 0], affine.shift[:, 1]),
        ):
            assert (
                torch.corrcoef(torch.stack([first_axis, second_axis]))[0, 1].abs() < 0.2
            )

    def test_depends_on_the_seed_alone(self):
        images = F.pad(noise(5, 3), (9, 9, 9, 9))
        assert torch.equal(
            AFFNIST.draw(images, 1).matrix, AFFNIST.draw(images, 1).matrix
        )
        assert not torch.equal(
            AFFNIST.draw(images, 1).matrix, AFFNIST.draw(images, 2).matrix
        )


class TestOneFactor:
    @pytest.mark.parametrize("name", Affine._fields)
    def test_changes_one_factor(self, name):
        changed = Affine.of_factor(name, 0.5, 40)
        for other, (values, rest) in {
            n: (getattr(changed, n), getattr(still(40), n)) for n in Affine._fields
        }.items():
            if other != name:
                assert torch.equal(values, rest)
            else:
                assert torch.equal(values.abs(), torch.full_like(values, 0.5))

    def test_shifts_to_all_sides(self):
        assert len(Affine.of_factor("shift", 3.0, 100).shift.unique(dim=0)) == 4

    def test_unknown_factor(self):
        with pytest.raises(ValueError, match="rotation"):
            Affine.of_factor("colour", 1.0, 1)


@pytest.fixture(scope="module")
def data():
    inner = {"name": "Digits", "size": 6, "validation": 0.2}
    return data_of(
        {
            "name": "torchcaps_lab.kinds.images.made.Padded",
            "data": inner,
            "pad": 2,
        }
    )


class TestPadded:
    def test_training_images_are_in_the_middle(self, data):
        inner = Digits(size=6, validation=0.2)
        assert data.image_shape == (1, 10, 10)
        assert torch.equal(data.train.inputs[:, :, 2:-2, 2:-2], inner.train.inputs)
        assert torch.equal(data.train.labels, inner.train.labels)
        assert torch.equal(
            data.centred_test().inputs, F.pad(inner.test.inputs, (2, 2, 2, 2))
        )

    @pytest.mark.parametrize("part", ["validation", "test"])
    def test_others_are_somewhere_on_the_canvas_unharmed(self, data, part):
        images = getattr(data, part)
        inner = getattr(Digits(size=6, validation=0.2), part)
        assert torch.equal(images.labels, inner.labels)
        windows = (
            images.inputs.unfold(2, 6, 1).unfold(3, 6, 1)[:, 0].flatten(1, 2)
        )  # [N, places, 6, 6]
        same = (windows == inner.inputs).all(-1).all(-1)
        assert same.any(1).all()
        assert same.any(0).all()  # every place occurs
        assert torch.equal(
            images.inputs.flatten(1).sum(1), inner.inputs.flatten(1).sum(1)
        )

    def test_places_are_the_same_for_every_seed(self, data):
        assert torch.equal(
            Padded(Digits(size=6, seed=5), 2).test.inputs, data.test.inputs
        )

    def test_border_must_not_be_negative(self):
        with pytest.raises(ValueError, match="pad"):
            Padded(Digits(), -1)


@pytest.fixture(scope="module")
def digits() -> Examples:
    return Digits().test


def overlaid(
    digits: Examples, count: int = 50, size: int = 13, shift: int = 2, seed: int = 0
) -> Overlaid:
    return fixed_pairs(Overlay(digits, size, shift), count, seed)


class TestOverlay:
    def test_two_classes_one_clipped_sum(self, digits):
        images, parts, labels = overlaid(digits)
        assert images.shape == (50, 1, 13, 13)
        assert parts.shape == (50, 2, 1, 13, 13)
        assert (labels[:, 0] != labels[:, 1]).all()
        assert torch.equal(labels[:, 0], digits.labels[:50])
        torch.testing.assert_close(images, parts.sum(1).clamp(max=1), rtol=0, atol=0)
        assert images.max() == 1.0

    @pytest.mark.parametrize(("size", "shift"), [(13, 2), (12, 2), (8, 0), (15, 3)])
    def test_each_part_is_a_digit_of_its_class_within_the_shift(
        self, digits, size, shift
    ):
        _, parts, labels = overlaid(digits, 60, size, shift)
        known = {
            (image.numpy().tobytes(), int(label))
            for image, label in zip(digits.inputs, digits.labels, strict=True)
        }
        allowed = range((size - 8) // 2 - shift, (size - 8) // 2 + shift + 1)
        for pair, classes in zip(
            (255 * parts).round().to(torch.uint8), labels.tolist(), strict=True
        ):
            for part, label in zip(pair, classes, strict=True):
                results = [
                    (row, column)
                    for row in allowed
                    for column in allowed
                    if (
                        part[:, row : row + 8, column : column + 8]
                        .contiguous()
                        .numpy()
                        .tobytes(),
                        label,
                    )
                    in known
                    and part.sum() == part[:, row : row + 8, column : column + 8].sum()
                ]
                assert results

    def test_all_shifts_are_as_likely(self):
        dot = Examples(
            torch.full((2, 1, 1, 1), 255, dtype=torch.uint8),
            torch.tensor([0, 1]),
            ("a", "b"),
        )
        _, parts, _ = fixed_pairs(Overlay(dot, 5, 2), 5000, 0)
        heat = parts.mean((0, 1, 2))
        assert (
            heat - 1 / 25
        ).abs().max() < 0.006  # four standard deviations of 10,000 draws

    def test_partners_are_all_as_likely(self):
        labels = torch.tensor([0, 0, 0, 1, 2, 2])
        images = (torch.arange(6) * 40 + 10).to(torch.uint8).view(6, 1, 1, 1)
        overlay = Overlay(Examples(images, labels, ("a", "b", "c")), 1, 0)
        generator = torch.Generator().manual_seed(0)
        for label in range(3):
            chosen = overlay._digits_of_other_classes(
                torch.full((6000,), label), torch.rand(6000, generator=generator)
            )
            counts = torch.bincount(chosen, minlength=6).double() / 6000
            expected = (labels != label).double() / (labels != label).sum()
            assert (counts - expected).abs().max() < 0.03

    def test_seed(self, digits):
        images, again, reseeded = (
            overlaid(digits, seed=seed).images for seed in (0, 0, 1)
        )
        assert torch.equal(images, again)
        assert not torch.equal(images, reseeded)

    def test_a_digit_stays_on_the_image(self, digits):
        with pytest.raises(
            ValueError,
            match="shift must be from 0 to 2 for digits of 8 x 8 on 12 x 12, got 3",
        ):
            Overlay(digits, 12, 3)


class TestPairs:
    def test_a_pair_depends_on_seed_epoch_and_place_alone(self, digits):
        overlay = Overlay(digits, 13, 2)
        whole = overlay(digits.__getitems__(list(range(20))), 3, 7)
        parts = [
            overlay(digits.__getitems__(places), 3, 7)
            for places in ([4, 3], list(range(5, 20)))
        ]
        for place, batch in (
            (4, parts[0]),
            (3, parts[0]),
            (5, parts[1]),
            (19, parts[1]),
        ):
            row = batch.indices.tolist().index(place)
            assert torch.equal(batch.inputs[row], whole.inputs[place])
            assert torch.equal(batch.labels[row], whole.labels[place])
            assert torch.equal(batch.parts.pictures[row], whole.parts.pictures[place])
        for epoch, seed in ((4, 7), (3, 8)):
            second = overlay(digits.__getitems__(list(range(20))), epoch, seed)
            assert (second.parts.labels[:, 1] != whole.parts.labels[:, 1]).any()
            assert not torch.equal(second.inputs, whole.inputs)

    def test_images_are_the_clipped_sums_of_their_parts(self, digits):
        batch = Overlay(digits, 13, 2)(digits.__getitems__(list(range(50))), 0, 0)
        labels, pictures = batch.parts
        torch.testing.assert_close(
            batch.inputs, pictures.sum(1).clamp(max=1), rtol=0, atol=0
        )
        assert torch.equal(labels[:, 0], digits.labels[:50])
        assert (labels[:, 0] != labels[:, 1]).all()
        assert torch.equal(batch.labels, F.one_hot(labels, 10).sum(1).bool())

    def test_shifts_and_partners_are_all_as_likely(self):
        images = torch.full((30, 1, 1, 1), 255, dtype=torch.uint8)
        dots = Examples(images, torch.arange(30) % 3, ("a", "b", "c"))
        overlay = Overlay(dots, 5, 2)
        batches = [
            overlay(dots.__getitems__(list(range(30))), epoch, 0)
            for epoch in range(400)
        ]
        heat = torch.cat([batch.parts.pictures for batch in batches]).mean(
            (0, 2)
        )  # [2, 5, 5]
        assert (
            heat - 1 / 25
        ).abs().max() < 0.0075  # four standard deviations of 12,000 draws
        partners = torch.cat(
            [batch.parts.labels[0::3, 1] for batch in batches]
        )  # of the first class
        assert abs((partners == 1).double().mean() - 0.5) < 0.03
        assert not (partners == 0).any()

    def test_splits_are_of_their_own_digits(self):
        digits = Digits(validation=0.2)
        pairs = Pairs(digits, 12, 2)
        assert pairs.image_shape == (1, 12, 12)
        for name in ("train", "validation", "test"):
            own = getattr(digits, name)
            images = getattr(pairs, name)
            known = {image.numpy().tobytes() for image in own.inputs}
            shown = (
                (255 * images.__getitems__(list(range(30))).parts.pictures)
                .round()
                .to(torch.uint8)
            )
            windows = (
                shown.unfold(3, 8, 1).unfold(4, 8, 1).flatten(0, 1).flatten(2, 3)[:, 0]
            )  # [60, places, 8, 8]
            assert all(
                any(place.contiguous().numpy().tobytes() in known for place in places)
                for places in windows
            )
        assert torch.equal(pairs.test[0].inputs, pairs.test[0].inputs)

    def test_a_digit_stays_on_the_image(self):
        with pytest.raises(ValueError, match="shift must be from 0 to 2"):
            _ = Pairs(Digits(), 12, 3).train


def test_bounding_box_overlap():
    parts = torch.zeros(3, 2, 1, 10, 10)
    parts[0, 0, 0, 2:6, 2:6] = 1  # 4 x 4
    parts[0, 1, 0, 4:8, 3:6] = 1  # 4 x 3: 2 x 3 in common
    parts[1, 0, 0, 0:2, 0:2] = 1
    parts[1, 1, 0, 5:7, 5:7] = 1  # apart
    parts[2, 0, 0, 1:9, 1:9] = 1
    parts[2, 1, 0, 3:5, 3:5] = 1  # inside
    torch.testing.assert_close(
        bounding_box_overlap(parts), torch.tensor([6 / 12, 0.0, 1.0])
    )


class TestArrange:
    @pytest.mark.parametrize("layout", list(Scenes.layouts().values()))
    def test_every_place_shows_a_test_digit_of_a_class_of_its_own(self, digits, layout):
        rows, columns = layout
        images, present = arrange(digits, layout, 40)
        assert images.shape == (40, 1, 8 * rows, 8 * columns)
        assert images.dtype == torch.uint8
        known = {
            image.numpy().tobytes(): int(label)
            for image, label in zip(digits.inputs, digits.labels, strict=True)
        }
        for image, classes in zip(images, present, strict=True):
            tiles = [
                image[
                    :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8
                ].contiguous()
                for row in range(rows)
                for column in range(columns)
            ]
            labels = [known[tile.numpy().tobytes()] for tile in tiles]
            assert len(set(labels)) == rows * columns
            assert sorted(labels) == classes.nonzero().squeeze(1).tolist()

    def test_seed(self, digits):
        images, again, reseeded = (
            arrange(digits, (1, 2), 20, seed).images for seed in (0, 0, 1)
        )
        assert torch.equal(images, again)
        assert not torch.equal(images, reseeded)

    def test_all_classes_and_digits_come_up(self, digits):
        images, present = arrange(digits, (1, 2), 4000)
        assert present.float().mean(0).sub(0.2).abs().max() < 0.03
        assert len(images[..., :8].flatten(1).unique(dim=0)) == len(
            digits.inputs.flatten(1).unique(dim=0)
        )

    def test_too_many_places(self, digits):
        with pytest.raises(
            ValueError, match=r"\(3, 4\) needs 12 different classes, there are 10"
        ):
            arrange(digits, (3, 4), 1)


class TestTurnedDigits:
    def test_only_novel_test_digits_are_changed(self) -> None:
        plain = Digits(size=16)
        for kind in ("azimuth", "elevation"):
            familiar = TurnedDigits(kind, "familiar", size=16)
            novel = TurnedDigits(kind, "novel", size=16)
            assert torch.equal(familiar.test.inputs, plain.test.inputs)
            assert torch.equal(novel.train.inputs, plain.train.inputs)
            assert torch.equal(novel.test.labels, plain.test.labels)
            assert (novel.test.inputs != plain.test.inputs).float().mean() > 0.2
            same = TurnedDigits(kind, "novel_of_same_toys", size=16)
            assert torch.equal(
                same.test.labels, Digits(size=16, validation=0).train.labels
            )

    def test_a_quarter_turn(self) -> None:
        images = torch.randint(256, (3, 2, 9, 9), dtype=torch.uint8)
        assert torch.equal(turn(images, 90), images.rot90(1, (2, 3)))
        assert torch.equal(turn(images, 0), images)

    def test_half_as_high(self) -> None:
        half = lower(torch.full((1, 1, 8, 6), 200, dtype=torch.uint8), 0.5)
        assert half[0, 0, :, 0].tolist() == [0, 0, 200, 200, 200, 200, 0, 0]
        assert (half == half[..., :1]).all()


def test_few_of_scenes_have_their_task_and_texts_are_refused() -> None:
    few = Few(
        DigitScenes(Digits(), canvas=(48, 48), largest=30.0), train=40, validation=20
    )
    assert (few.task, few.resize) == ({"name": "several_labels"}, "keep")
    assert Few(Digits()).task == "classification"
    with pytest.raises(
        ValueError, match="data must give images, MadeQuestions gives words"
    ):
        Few(MadeQuestions(8))


@pytest.mark.parametrize("made", [DigitScenes, Few, Padded, Pairs])
@pytest.mark.parametrize("data", ["Digits", None, Digits])
def test_what_is_no_data_set_is_told(made, data) -> None:
    with pytest.raises(
        TypeError, match=r"data must be a data set, such as Digits\(\), got "
    ):
        made(data)
