"""What several recipes measure alike."""

import math

import pytest
import torch

from recipes.compute import Law
from recipes.kit.measures import by_groups, half_interval


def test_half_of_the_interval_of_a_mean() -> None:
    assert half_interval([3.0]) == 0
    assert round(half_interval([1.0, 2.0, 3.0]) * 3**0.5, 3) == 4.303  # Student's t of two degrees of freedom


def test_wrong_answers_are_counted_group_by_group() -> None:
    wrong = {"a": torch.arange(500) < 15}
    assert by_groups(wrong, {"a": torch.arange(500) // 250}) == {"wrong": {"a": [15, 0]}, "images": {"a": [250, 250]}}
    assert by_groups(wrong) == {"wrong": {"a": [10, 5, *[0] * 48]}, "images": {"a": [10] * 50}}


def test_a_power_law_says_when_an_error_is_reached() -> None:
    law = Law.through([1, 2, 4], [8.0, 4.0, 2.0])
    assert law.at_one == pytest.approx(8)
    assert law.epochs_to(0.5) == pytest.approx(16)
    assert Law.through([1, 2], [3.0, 3.5]).epochs_to(1.0) == math.inf
