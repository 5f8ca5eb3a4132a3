"""Measures of slots against scikit-learn's, and where their values are known."""

import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from torchcaps_lab.kinds.objects.measures import (
    adjusted_rand_index,
    best_overlap,
    foreground_rand_index,
)

B, H, W = 6, 9, 11


def labels(most: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(most, (B, H, W), generator=generator)


@pytest.mark.parametrize("objects", [1, 2, 5])
@pytest.mark.parametrize("slots", [1, 2, 7])
def test_the_rand_index_is_that_of_scikit_learn(objects: int, slots: int) -> None:
    true = labels(objects, 0)
    predicted = labels(slots, 1)
    predicted[:3] = true[:3] % slots  # some that agree in part
    expected = [
        adjusted_rand_score(true_labels.flatten(), predicted_labels.flatten())
        for true_labels, predicted_labels in zip(true, predicted, strict=True)
    ]
    torch.testing.assert_close(
        adjusted_rand_index(true, predicted),
        torch.tensor(expected, dtype=torch.float64),
    )


def test_in_the_foreground_only_pixels_of_objects_count() -> None:
    true = labels(4, 0)
    predicted = labels(5, 1)
    expected = [
        adjusted_rand_score(
            true_labels[true_labels > 0], predicted_labels[true_labels > 0]
        )
        for true_labels, predicted_labels in zip(true, predicted, strict=True)
    ]
    torch.testing.assert_close(
        foreground_rand_index(true, predicted),
        torch.tensor(expected, dtype=torch.float64),
    )
    changed = torch.where(true > 0, predicted, 4)
    torch.testing.assert_close(
        foreground_rand_index(true, changed), foreground_rand_index(true, predicted)
    )


def test_names_of_slots_do_not_matter() -> None:
    true = labels(5, 0)
    order = torch.tensor([3, 0, 4, 1, 2])
    perfect_score = torch.ones(B, dtype=torch.float64)
    torch.testing.assert_close(adjusted_rand_index(true, order[true]), perfect_score)
    torch.testing.assert_close(best_overlap(true, order[true]), perfect_score)


def test_half_of_an_object_overlaps_it_by_a_half() -> None:
    true = torch.zeros(1, 4, 8, dtype=torch.int64)
    true[:, :, 4:] = 1
    predicted = torch.zeros_like(true)
    predicted[:, :, 6:] = 1
    assert best_overlap(true, predicted).item() == 0.5


def test_pixels_of_which_nothing_is_known_count_for_nothing() -> None:
    true = labels(4, 0)
    predicted = labels(5, 1)
    true[:, :, -3:] = 255
    for measure in (adjusted_rand_index, foreground_rand_index, best_overlap):
        torch.testing.assert_close(
            measure(true, predicted), measure(true[:, :, :-3], predicted[:, :, :-3])
        )
