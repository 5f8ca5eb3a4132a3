"""What several recipes measure alike."""

import pytest
import torch

from recipes.kit.charts import Dots, dot_panels
from recipes.kit.measures import all_found, by_groups, half_interval


def test_half_of_the_interval_of_a_mean() -> None:
    assert half_interval([3.0]) == 0
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)  # Student's t of two degrees


def test_wrong_answers_are_counted_group_by_group() -> None:
    wrong, groups = torch.tensor([True, False, True, True]), torch.tensor([2, 0, 2, 1])
    assert by_groups({"a": wrong}, {"a": groups}) == {"wrong": {"a": [0, 1, 2]}, "images": {"a": [1, 1, 2]}}
    found = by_groups({"a": torch.arange(500) < 15})
    assert (found["wrong"]["a"][:3], set(found["images"]["a"]), len(found["images"]["a"])) == ([10, 5, 0], {10}, 50)


def test_as_many_classes_as_there_are_must_be_the_most_active() -> None:
    present = torch.tensor([[True, True, False], [True, True, False], [False, False, False]])
    activation = torch.tensor([[0.9, 0.2, 0.1], [0.9, 0.1, 0.2], [0.9, 0.1, 0.2]])
    assert all_found(activation, present).tolist() == [True, False, True]


def test_only_long_labels_of_panels_are_broken() -> None:
    figure = dot_panels(["row"], [Dots("IoU, %", [1.0], [0.0]), Dots("error under affine transforms, %", [1.0], [0.0])])
    assert [axes.get_xlabel() for axes in figure.axes] == ["IoU, %", "error under affine transforms,\n%"]
