import json

import pytest
import torch

from torchcaps.data import Digits, ImageSet
from torchcaps.recipes import run_recipe
from torchcaps.recipes.two_digits import (
    KMEANS,
    LAYOUTS,
    PAIRS,
    SINGLE,
    TWIN,
    also_sure,
    arrange,
    most_active,
    set_accuracy,
)


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return Digits().test


class TestArrange:
    @pytest.mark.parametrize("layout", list(LAYOUTS.values()))
    def test_every_place_shows_a_test_digit_of_a_class_of_its_own(self, digits, layout):
        rows, columns = layout
        images, present = arrange(digits, layout, 40)
        assert images.shape == (40, 1, 8 * rows, 8 * columns)
        assert images.dtype == torch.uint8
        known = {image.numpy().tobytes(): int(label) for image, label in zip(digits.images, digits.labels, strict=True)}
        for image, classes in zip(images, present, strict=True):
            tiles = [
                image[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].contiguous()
                for row in range(rows)
                for column in range(columns)
            ]
            labels = [known[tile.numpy().tobytes()] for tile in tiles]
            assert len(set(labels)) == rows * columns
            assert sorted(labels) == classes.nonzero().squeeze(1).tolist()

    def test_seed(self, digits):
        one, two, three = (arrange(digits, (1, 2), 20, seed).images for seed in (0, 0, 1))
        assert torch.equal(one, two)
        assert not torch.equal(one, three)

    def test_all_classes_and_digits_come_up(self, digits):
        images, present = arrange(digits, (1, 2), 4000)
        assert present.float().mean(0).sub(0.2).abs().max() < 0.03
        assert len(images[..., :8].flatten(1).unique(dim=0)) == len(digits.images.flatten(1).unique(dim=0))

    def test_too_many_places(self, digits):
        with pytest.raises(ValueError, match=r"\(3, 4\) needs 12 different classes, there are 10"):
            arrange(digits, (3, 4), 1)


class TestSetAccuracy:
    present = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 1]]).bool()
    activation = torch.tensor(
        [
            [0.9, 0.8, 0.1, 0.2],  # right
            [0.3, 0.45, 0.2, 0.4],  # right, neither above 0.5
            [0.9, 0.6, 0.55, 0.1],  # one of two
            [0.1, 0.2, 0.6, 0.5],  # right, but the second is not above 0.5
        ]
    )

    def test_by_hand(self):
        assert set_accuracy(self.activation, self.present) == 75.0
        assert set_accuracy(self.activation, self.present, above=0.5) == 25.0

    def test_rows_with_different_numbers_of_classes(self):
        present = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 1]]).bool()
        activation = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.5, 0.7, 0.6, 0.4]])
        assert set_accuracy(activation, present) == 50.0


def test_smoke(tmp_path):
    where = {"runs": tmp_path / "runs", "results": tmp_path / "results", "trainer": {"accelerator": "cpu"}}
    result = run_recipe("two-digits", "smoke", **where)
    ours = {(row["row"], row["measure"]): row["ours"] for row in result["rows"] if row["ours"]}
    assert {row for row, _ in ours} == {TWIN, KMEANS}
    assert {measure for _, measure in ours} >= {SINGLE, *map(most_active, LAYOUTS), *map(also_sure, PAIRS)}
    assert all(0 <= value <= 100 for values in ours.values() for value in values)
    for row in (TWIN, KMEANS):
        assert all(ours[row, also_sure(layout)][0] <= ours[row, most_active(layout)][0] for layout in PAIRS)
        run = tmp_path / "runs" / "smoke" / result["facts"][0][row]["run"]
        assert ours[row, SINGLE] == [100 * json.loads((run / "summary.json").read_text())["test_accuracy"]]
    (picture,) = result["pictures"]
    assert (tmp_path / "results" / picture["file"]).read_bytes().startswith(b"\x89PNG")
