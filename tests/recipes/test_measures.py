"""What several recipes measure alike."""

import math

import pytest
import torch

from recipes.compute import Law
from recipes.kit.measures import by_groups, half_interval, rank_of
from recipes.two_digits import set_accuracy


def test_half_of_the_interval_of_a_mean() -> None:
    assert half_interval([3.0]) == 0
    assert (
        round(half_interval([1.0, 2.0, 3.0]) * 3**0.5, 3) == 4.303
    )  # Student's t of two degrees of freedom


def test_wrong_answers_are_counted_group_by_group() -> None:
    wrong = {"a": torch.arange(500) < 15}
    assert by_groups(wrong, {"a": torch.arange(500) // 250}) == {
        "wrong": {"a": [15, 0]},
        "images": {"a": [250, 250]},
    }
    assert by_groups(wrong) == {
        "wrong": {"a": [10, 5, *[0] * 48]},
        "images": {"a": [10] * 50},
    }


def test_the_rank_of_a_class_counts_the_rivals_that_are_as_active() -> None:
    alike, nothing = [0.25] * 4, [math.nan] * 4
    activation = torch.tensor([[0.4, 0.3, 0.2, 0.1], alike, nothing])
    labels = torch.tensor([2, 2, 2])
    rivals = torch.ones(3, 4, dtype=torch.bool)
    assert rank_of(activation, labels, rivals).tolist() == [2, 3, 3]
    rivals[:, 0] = False
    assert rank_of(activation, labels, rivals).tolist() == [1, 2, 2]


def test_a_power_law_says_when_an_error_is_reached() -> None:
    law = Law.through([1, 2, 4], [8.0, 4.0, 2.0])
    assert law.at_one == pytest.approx(8)
    assert law.epochs_to(0.5) == pytest.approx(16)
    assert Law.through([1, 2], [3.0, 3.5]).epochs_to(1.0) == math.inf


def test_all_digits_of_an_image_are_found_or_none_counts() -> None:
    present = torch.tensor(
        [[1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 1]]
    ).bool()
    activation = torch.tensor(
        [
            [0.9, 0.8, 0.1, 0.2],  # right
            [0.3, 0.45, 0.2, 0.4],  # right, neither above 0.5
            [0.9, 0.6, 0.55, 0.1],  # one of two
            [0.1, 0.2, 0.6, 0.5],  # right, but the second is not above 0.5
        ]
    )
    assert set_accuracy(activation, present) == 75.0
    assert set_accuracy(activation, present, above=0.5) == 25.0
    present[0, 2] = True  # three beside two
    assert set_accuracy(activation, present) == 50.0
