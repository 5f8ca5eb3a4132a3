import json
import math

import pytest
import torch
import torch.nn.functional as F

from torchcaps.data import Digits
from torchcaps.models import create_model
from torchcaps.recipes import PRESETS, run_recipe
from torchcaps.recipes.affine import (
    AFFNIST,
    CLEAN,
    FACTORS,
    ROWS,
    STOP,
    TRANSFORMED,
    Affine,
    AffineRobustness,
    Padded,
    apply_affine,
    job,
    one_factor,
    shift_limits,
)
from torchcaps.recipes.kit.lab import data_of
from torchcaps.training import train_parser

QUARTER = torch.tensor([90.0])


def still(count=1, **changes):
    affine = Affine(torch.zeros(count), torch.zeros(count), torch.ones(count, 2), torch.zeros(count, 2))
    return affine._replace(**changes)


def noise(count, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 1, size, size), generator=generator, dtype=torch.uint8)


def slowly(image, matrix, shift):
    """The transform of one image (H, W), pixel by pixel from the definition."""
    size = len(image)
    back, middle = torch.linalg.inv(matrix.double()), (size - 1) / 2
    moved = torch.zeros(size, size, dtype=torch.double)
    for row in range(size):
        for column in range(size):
            x, y = (back @ (torch.tensor([column - middle, row - middle]).double() - shift.double())).tolist()
            for i in range(size):
                for j in range(size):
                    weight = max(0.0, 1 - abs(y + middle - i)) * max(0.0, 1 - abs(x + middle - j))
                    moved[row, column] += weight * float(image[i, j])
    return moved


class TestAffine:
    @pytest.mark.parametrize(
        ("affine", "point", "expected"),
        [
            (still(rotation=QUARTER), (1, 0), (0, -1)),  # to the right becomes up
            (still(rotation=torch.tensor([30.0])), (2, 0), (math.sqrt(3), -1)),
            (still(shear=torch.tensor([0.5])), (3, -2), (4, -2)),  # above leans to the right
            (still(scale=torch.tensor([[2.0, 3.0]])), (1, 1), (2, 3)),
            (still(rotation=QUARTER, scale=torch.tensor([[2.0, 1.0]])), (1, 0), (0, -2)),  # scaled first
            (still(shear=torch.tensor([0.5]), scale=torch.tensor([[1.0, 2.0]])), (0, -1), (1, -2)),
        ],
    )
    def test_matrix_maps_points_as_computed_by_hand(self, affine, point, expected):
        mapped = affine.matrix[0] @ torch.tensor(point).float()
        torch.testing.assert_close(mapped, torch.tensor(expected).float(), atol=1e-6, rtol=1e-6)

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
        for one in range(2):
            expected = slowly(images[one, 0], affine.matrix[one], affine.shift[one])
            assert (moved[one, 0] - expected).abs().max() <= 0.51  # rounded to bytes

    def test_images_must_be_square(self):
        with pytest.raises(ValueError, match="square"):
            apply_affine(torch.zeros(1, 1, 4, 5, dtype=torch.uint8), still())


class TestShiftLimits:
    @pytest.mark.parametrize(("scale", "most", "expected"), [(1.0, 9, 4), (2.0, 9, 3), (1.0, 2, 2)])
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
        low, high = shift_limits(torch.full((1, 1, 9, 9), 255, dtype=torch.uint8), 2 * torch.eye(2)[None], 8)
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
        # One pixel further, some does: the limits are not too narrow by more than the spread of the interpolation.
        further = apply_affine(F.pad(images, (9, 9, 9, 9)), affine._replace(shift=shift + (4 * end - 2)))
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
        for one, other in ((affine.scale[:, 0], affine.scale[:, 1]), (affine.shift[:, 0], affine.shift[:, 1])):
            assert torch.corrcoef(torch.stack([one, other]))[0, 1].abs() < 0.2

    def test_depends_on_the_seed_alone(self):
        images = F.pad(noise(5, 3), (9, 9, 9, 9))
        assert torch.equal(AFFNIST.draw(images, 1).matrix, AFFNIST.draw(images, 1).matrix)
        assert not torch.equal(AFFNIST.draw(images, 1).matrix, AFFNIST.draw(images, 2).matrix)


class TestOneFactor:
    @pytest.mark.parametrize("name", FACTORS)
    def test_changes_one_factor(self, name):
        changed = one_factor(name, 0.5, 40)
        for other, (values, rest) in {n: (getattr(changed, n), getattr(still(40), n)) for n in FACTORS}.items():
            if other != name:
                assert torch.equal(values, rest)
            else:
                assert torch.equal(values.abs(), torch.full_like(values, 0.5))

    def test_shifts_to_all_sides(self):
        assert len(one_factor("shift", 3.0, 100).shift.unique(dim=0)) == 4

    def test_unknown_factor(self):
        with pytest.raises(ValueError, match="rotation"):
            one_factor("colour", 1.0, 1)


@pytest.fixture(scope="module")
def data():
    inner = {"class_path": "Digits", "init_args": {"size": 6, "validation": 0.2}}
    return data_of({"class_path": "torchcaps.recipes.affine.Padded", "init_args": {"data": inner, "pad": 2}})


class TestPadded:
    def test_training_images_are_in_the_middle(self, data):
        inner = Digits(size=6, validation=0.2)
        assert data.image_shape == (1, 10, 10)
        assert torch.equal(data.train.images[:, :, 2:-2, 2:-2], inner.train.images)
        assert torch.equal(data.train.labels, inner.train.labels)
        assert torch.equal(data.centred_test().images, F.pad(inner.test.images, (2, 2, 2, 2)))

    @pytest.mark.parametrize("part", ["validation", "test"])
    def test_others_are_somewhere_on_the_canvas_unharmed(self, data, part):
        images, inner = getattr(data, part), getattr(Digits(size=6, validation=0.2), part)
        assert torch.equal(images.labels, inner.labels)
        windows = images.images.unfold(2, 6, 1).unfold(3, 6, 1)[:, 0].flatten(1, 2)  # [N, places, 6, 6]
        same = (windows == inner.images).all(-1).all(-1)
        assert same.any(1).all()
        assert same.any(0).all()  # every place occurs
        assert torch.equal(images.images.flatten(1).sum(1), inner.images.flatten(1).sum(1))

    def test_places_are_the_same_for_every_seed(self, data):
        assert torch.equal(Padded(Digits(size=6, seed=5), 2).test.images, data.test.images)

    def test_border_must_not_be_negative(self):
        with pytest.raises(ValueError, match="pad"):
            Padded(Digits(), -1)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("row", ROWS)
def test_jobs_are_options_of_train(preset, row):
    name, config = job(AffineRobustness.presets[preset], row, 0.95)
    options = train_parser().parse_object({**config, "run": name})
    assert (options.stop_at, options.data.init_args.pad) == (config["stop_at"], options.preprocess.shift)


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_both_networks_have_as_many_parameters(preset):
    counts = []
    for row in ROWS:
        config = job(AffineRobustness.presets[preset], row, 0.95)[1]
        network = create_model(config["model"], image_shape=(1, 40, 40), classes=10, **config["model_args"])
        counts.append(sum(one.numel() for one in network.parameters()))
    assert abs(counts[1] / counts[0] - 1) < 0.03


def test_smoke_preset_measures_every_line_and_trains_once(tmp_path):
    def once():
        folders = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
        run_recipe("affine", "smoke", **folders, trainer={"accelerator": "cpu"})
        summaries = sorted((tmp_path / "runs").rglob("summary.json"))
        return json.loads((tmp_path / "results" / "affine-smoke.json").read_text()), {
            path: path.stat().st_mtime_ns for path in summaries
        }

    result, times = once()
    ours = {(row["row"], row["measure"]): row["ours"] for row in result["rows"]}
    assert set(ours) == {(row, measure) for row in ROWS for measure in (STOP, CLEAN, TRANSFORMED)}
    assert all(len(values) == 1 and 0 <= values[0] <= 100 for values in ours.values())
    settings, curves = result["settings"], result["curves"][0]
    for row, facts in result["facts"][0].items():
        assert ours[row, STOP] == [pytest.approx(100 * facts["validation_accuracy"])]
        assert facts["reached"] == (facts["validation_accuracy"] >= settings["stop_at"])
        assert facts["reached"] or facts["epochs"] == settings["epochs"]
        assert all(len(curves[name][row]) == len(factor.values) for name, factor in FACTORS.items())
        # Where nothing is transformed, all four curves meet.
        middle = [curves[name][row][curves[name]["values"].index(name == "scale")] for name in FACTORS]
        assert len(set(middle)) == 1
    assert {one["file"] for one in result["pictures"]} == {"affine-smoke-curves.png", "affine-smoke-digits.png"}
    assert all((tmp_path / "results" / one["file"]).is_file() for one in result["pictures"])

    again, later = once()
    assert later == times
    assert len(times) == len(ROWS)
    assert again["rows"] == result["rows"]
