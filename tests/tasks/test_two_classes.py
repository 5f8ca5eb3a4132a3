"""Of two classes, evaluation reports AUC, sensitivity and specificity, and which class
is the positive one.
"""

import pytest

from torchcaps_lab.tasks.classification import two_class_text, with_positive

DETAILS = {"positive": "ill", "auc": 0.9, "sensitivity": 0.75, "specificity": None}
CLASSES = ["healthy", "ill"]


def test_in_a_line() -> None:
    (line,) = two_class_text(DETAILS)
    assert line == "AUC 0.9000, sensitivity 75.00%, specificity - (positive class: ill)"
    assert two_class_text({"confusion": []}) == []


def test_the_other_class_may_be_the_positive_one() -> None:
    swapped = with_positive(DETAILS, "healthy", CLASSES)
    assert swapped == {
        "positive": "healthy",
        "auc": 0.9,
        "sensitivity": None,
        "specificity": 0.75,
    }
    assert with_positive(swapped, "ill", CLASSES) == DETAILS


def test_a_positive_class_that_is_none() -> None:
    with pytest.raises(
        ValueError, match="positive must be one of 'healthy', 'ill', got 'sick'"
    ):
        with_positive(DETAILS, "sick", CLASSES)
    with pytest.raises(ValueError, match="positive must be None unless"):
        with_positive({}, "ill", CLASSES)
