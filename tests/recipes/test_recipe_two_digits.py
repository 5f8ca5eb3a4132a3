import json

import torch

from recipes import run_recipe
from recipes.two_digits import (
    ALSO_SURE,
    KMEANS,
    LAYOUTS,
    MOST_ACTIVE,
    PAIRS,
    SINGLE,
    TWIN,
    set_accuracy,
)


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
    assert {measure for _, measure in ours} >= {
        SINGLE,
        *map(MOST_ACTIVE.format, LAYOUTS),
        *map(ALSO_SURE.format, PAIRS),
    }
    assert all(0 <= value <= 100 for values in ours.values() for value in values)
    for row in (TWIN, KMEANS):
        assert all(
            ours[row, ALSO_SURE.format(layout)][0] <= ours[row, MOST_ACTIVE.format(layout)][0] for layout in PAIRS
        )
        run = tmp_path / "runs" / "smoke" / result["facts"][0][row]["run"]
        assert ours[row, SINGLE] == [100 * json.loads((run / "summary.json").read_text())["test_accuracy"]]
    (picture,) = result["pictures"]
    assert (tmp_path / "results" / picture["file"]).read_bytes().startswith(b"\x89PNG")
