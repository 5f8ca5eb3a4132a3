"""The classifier of scikit-learn keeps its conventions, learns, and says what is
wrong.
"""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchcaps.sklearn import CapsNetClassifier

RANDOM = "batches are drawn at random, so a row twice is not a row of weight 2"


# Some checks fit a few rows, which may get one answer.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.thorough
@parametrize_with_checks(
    [CapsNetClassifier(hidden=16, types=4, epochs=10, random_state=0)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": RANDOM
    },
)
def test_conventions(
    estimator: CapsNetClassifier, check: Callable[[CapsNetClassifier], None]
) -> None:
    check(estimator)


@pytest.mark.parametrize(
    "image_shape", [None, pytest.param((1, 8, 8), marks=pytest.mark.thorough)]
)
def test_learns_digits_in_a_pipeline(image_shape: tuple[int, int, int] | None) -> None:
    X, y = load_digits(return_X_y=True)
    capsules = CapsNetClassifier(image_shape, hidden=32, epochs=10, random_state=0)
    assert (
        cross_val_score(
            make_pipeline(MinMaxScaler(), capsules), X[:900], y[:900], cv=2
        ).min()
        > 0.8
    )


def test_numbers_of_numpy_are_numbers() -> None:
    X = np.random.default_rng(0).normal(size=(9, 3))
    sizes = {"epochs": np.int64(2), "batch_size": np.int64(4), "hidden": np.int64(4)}
    CapsNetClassifier(**sizes, learning_rate=np.float64(0.01)).fit(X, X[:, 0] > 0)


def test_routings_by_name_and_labels_of_any_kind() -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    y = np.where(X[:, 0] > 0, "yes", "no")
    state = torch.get_rng_state()
    fitted = CapsNetClassifier(
        routing="variational_bayes",
        routing_arguments={"steps": 2},
        epochs=5,
        batch_size=np.int64(8),
        random_state=0,
    ).fit(X, y)
    assert torch.equal(state, torch.get_rng_state())
    assert {*fitted.predict(X)} <= {"yes", "no"}
    assert np.allclose(fitted.predict_proba(X).sum(1), 1)
    assert np.allclose(fitted.predict_proba(X)[:1], fitted.predict_proba(X[:1]))
    assert len(fitted.loss_curve_) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be above 0 and finite, got -1.0"),
        ({"routing": "no"}, "routing must be the name of"),
        (
            {"image_shape": (1, 2, 2)},
            r"X must have the pixels of image_shape \(1, 2, 2\), got 3 a row",
        ),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CapsNetClassifier(**arguments).fit(np.eye(3), [0, 1, 1])


def two_clouds() -> tuple[np.ndarray, np.ndarray]:
    """30 and 10 rows of two classes that overlap."""
    generator = np.random.default_rng(0)
    X = np.concatenate(
        [generator.normal(0, 1, (30, 2)), generator.normal(1, 1, (10, 2))]
    )
    return X, np.repeat([0, 1], [30, 10])


FEW = {"hidden": 8, "types": 2, "epochs": 5, "random_state": 0}


def test_rows_of_weight_zero_are_left_out() -> None:
    X, y = two_clouds()
    weights = np.arange(40) % 3 > 0
    with_zeros = CapsNetClassifier(**FEW).fit(X, y, sample_weight=weights)
    without = CapsNetClassifier(**FEW).fit(X[weights], y[weights])
    assert np.array_equal(with_zeros.predict_proba(X), without.predict_proba(X))


def test_the_scale_of_weights_does_not_matter() -> None:
    X, y = two_clouds()
    ones, sevens = (
        CapsNetClassifier(**FEW).fit(X, y, sample_weight=np.full(40, weight))
        for weight in (1, 7)
    )
    assert np.allclose(ones.predict_proba(X), sevens.predict_proba(X))


def test_weights_of_classes_are_weights_of_their_rows() -> None:
    X, y = two_clouds()
    balanced = CapsNetClassifier(class_weight="balanced", **FEW).fit(X, y)
    by_label = CapsNetClassifier(class_weight={0: 2 / 3, 1: 2}, **FEW).fit(X, y)
    by_row = CapsNetClassifier(**FEW).fit(
        X, y, sample_weight=np.where(y == 1, 2, 2 / 3)
    )
    plain = CapsNetClassifier(**FEW).fit(X, y)
    assert np.allclose(balanced.predict_proba(X), by_label.predict_proba(X))
    assert np.allclose(balanced.predict_proba(X), by_row.predict_proba(X))
    assert balanced.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean()


@pytest.mark.parametrize("weights", [[-1, 1, 1], [0, 0, 0], [1, 1]])
def test_weights_that_are_none(weights: list[int]) -> None:
    with pytest.raises(ValueError, match=r"(?i)sample.weight"):
        CapsNetClassifier(**FEW).fit(np.eye(3), [0, 1, 1], sample_weight=weights)


def test_images_may_be_one_pixel_high() -> None:
    rows, labels = two_clouds()
    model = CapsNetClassifier(**FEW, image_shape=(1, 1, rows.shape[1]))
    assert model.fit(rows, labels).predict(rows).shape == labels.shape


def test_rows_may_run_backwards_through_their_memory() -> None:
    rows, labels = two_clouds()
    model = CapsNetClassifier(**FEW).fit(rows[::-1], labels[::-1])
    answers = model.predict(rows)
    np.testing.assert_array_equal(model.predict(rows[::-1]), answers[::-1])


def test_images_that_are_no_rows_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"image_shape=\(1, 8, 8\)"):
        CapsNetClassifier(**FEW).fit(np.zeros((4, 8, 8)), [0, 1, 0, 1])
    channels_last = np.zeros((4, 8, 9, 3))
    with pytest.raises(ValueError, match=r"transpose\(0, 3, 1, 2\).*=\(3, 8, 9\)"):
        CapsNetClassifier().fit(channels_last, [0, 1, 0, 1])


def features(largest: float) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(0).normal(size=(24, 3))
    labels = np.arange(24) % 2
    rows[:, 0] += 3 * labels
    rows[7, 2] = largest
    return rows, labels


SMALL = {"hidden": 8, "types": 2, "epochs": 2, "random_state": 0}


@pytest.mark.parametrize("largest", [1e200, -1e300, 1.7e308])
def test_numbers_that_overflow_are_refused(largest: float) -> None:
    rows, labels = features(largest)
    with pytest.raises(ValueError, match=r"X holds numbers up to .* feature 2: scale"):
        CapsNetClassifier(**SMALL).fit(rows, labels)
    fitted = CapsNetClassifier(**SMALL).fit(*features(1.0))
    with pytest.raises(ValueError, match=r"outputs of rows \[7\] are not finite"):
        fitted.predict(rows)


def test_one_answer_for_all_rows_is_told() -> None:
    """Beside the biases nothing is left of features this small."""
    rows, labels = features(1.0)
    with pytest.warns(ConvergenceWarning, match="the same for all rows"):
        CapsNetClassifier(**SMALL).fit(1e-30 * rows, labels)


def test_features_beside_a_much_larger_one_are_told() -> None:
    """Lengths differ in the fourth digit, and all rows get one class."""
    rows, labels = two_clouds()
    rows = np.concatenate([rows, np.full((len(rows), 1), 1e6)], 1)
    with pytest.warns(ConvergenceWarning, match="the same for all rows"):
        CapsNetClassifier(random_state=0, epochs=5).fit(rows, labels)


@pytest.mark.parametrize("weight", [0.0, -1.0, np.inf])
def test_wrong_weights_of_classes_are_named(weight: float) -> None:
    rows, labels = two_clouds()
    weights = dict.fromkeys(np.unique(labels).tolist(), weight)
    with pytest.raises(ValueError, match="class_weight must be 0 or more, finite"):
        CapsNetClassifier(class_weight=weights).fit(rows, labels)


def test_partial_fit_learns_from_parts_that_lack_classes() -> None:
    rows, labels = two_clouds()
    rows = rows + 3 * labels[:, None]
    parts = np.array_split(np.arange(40), 4)  # the first three hold one class
    model = CapsNetClassifier(random_state=0, batch_size=8, learning_rate=0.01)
    for _ in range(10):
        for part in parts:
            model.partial_fit(rows[part], labels[part], classes=np.unique(labels))
    assert model.score(rows, labels) > 0.95
    assert len(model.loss_curve_) == 40


def test_weights_count_from_one_part_to_the_next() -> None:
    """A part of another class was an error, and each part had weights of mean 1."""
    rows = np.random.default_rng(0).normal(size=(8, 3))
    shares = []
    for weight in (1.0, 20.0):
        model = CapsNetClassifier(**SMALL, class_weight={0: weight})
        for label in (1, 0, 1, 0, 1):
            model.partial_fit(rows, np.full(8, label), classes=[0, 1])
        shares.append(model.predict_proba(rows)[:, 0].mean())
    assert shares[1] > shares[0]


def test_partial_fit_goes_on_where_fit_ended() -> None:
    rows, labels = two_clouds()
    model = CapsNetClassifier(**SMALL).fit(rows, labels)
    network = model.network_
    model.partial_fit(rows[:8], labels[:8])
    assert model.network_ is network


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({}, "classes must be passed"), ({"classes": [7, 8]}, "y must hold labels of")],
)
def test_what_partial_fit_needs_is_named(
    arguments: dict[str, object], message: str
) -> None:
    rows, labels = two_clouds()
    with pytest.raises(ValueError, match=message):
        CapsNetClassifier(**SMALL).partial_fit(rows, labels, **arguments)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_trains_whatever_the_mode_of_gradients(mode: Callable[[], Any]) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    y = X[:, 0] > 0
    fitted = CapsNetClassifier(epochs=1, random_state=0)
    expected = clone(fitted).fit(X, y).partial_fit(X, y)
    with mode():
        fitted.fit(X, y).partial_fit(X, y)
    assert fitted.loss_curve_ == expected.loss_curve_


def test_a_pickle_has_the_network_on_the_cpu_and_goes_on() -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    y = X[:, 0] > 0
    fitted = CapsNetClassifier(epochs=1, random_state=0).fit(X, y).partial_fit(X, y)
    again = pickle.loads(pickle.dumps(fitted))
    assert again.partial_fit(X, y).loss_curve_ == fitted.partial_fit(X, y).loss_curve_
    # Used on the device that is set. A tensor of "meta" has no numbers to copy.
    with pytest.raises(NotImplementedError, match="meta"):
        fitted.set_params(device="meta").predict(X)
    with pytest.raises(NotImplementedError, match="meta"):
        pickle.dumps(fitted)


def test_a_first_part_that_is_refused_begins_nothing() -> None:
    X = np.random.default_rng(0).normal(size=(9, 3))
    y = X[:, 0] > 0
    learner = CapsNetClassifier(hidden=4, types=2)
    with pytest.raises(ValueError, match="NaN"):
        learner.partial_fit(X * np.nan, y, classes=[False, True])
    assert learner.partial_fit(X, y, classes=[False, True]).predict(X).shape == (9,)
