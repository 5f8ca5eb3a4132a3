"""The two coins, with the trace that is published for them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_data import COINS
from scipy.stats import binom, multinomial

from torchcaps.mixture import BinomialMixture

PUBLISHED = [
    (0.71, 0.58),
    (0.75, 0.57),
    (0.77, 0.55),
    (0.78, 0.53),
    (0.79, 0.53),
    (0.79, 0.52),
    (0.80, 0.52),
    (0.80, 0.52),
    (0.80, 0.52),
]
PUBLISHED_BOUND = [
    -32.69,
    -31.26,
    -30.76,
    -30.33,
    -30.07,
    -29.95,
    -29.90,
    -29.88,
    -29.87,
]


def coins(**arguments: object) -> BinomialMixture:
    """Coins chosen with equal chances, as the published problem has it."""
    settings = {
        "learn": ("probabilities",),
        "probabilities_init": [[0.6, 0.4], [0.5, 0.5]],
        "tol": 5e-5,
    }
    return BinomialMixture(2, **{**settings, **arguments})


def test_published_trace() -> None:
    fitted = coins().fit(COINS)
    assert fitted.n_iter_ == 9
    assert fitted.converged_
    trace = [tuple(step.probabilities[:, 0].round(2)) for step in fitted.history_]
    assert trace == PUBLISHED
    np.testing.assert_array_equal(
        fitted.probabilities_, fitted.history_[-1].probabilities
    )
    np.testing.assert_array_equal(fitted.weights_, [0.5, 0.5])


def test_published_bound_and_its_rule_to_stop() -> None:
    """Expected log-likelihood of the complete data before each step; it stopped at the
    first change below 0.01.
    """
    thetas = [np.array([[0.6, 0.4], [0.5, 0.5]])] + [
        step.probabilities for step in coins(tol=1e-9).fit(COINS).history_
    ]
    bounds = []
    for theta in thetas[:12]:
        model = coins(probabilities_init=theta).fit(COINS)
        model.probabilities_ = theta
        bounds.append((model.predict_proba(COINS) * (COINS @ np.log(theta).T)).sum())
    assert [round(bound, 2) for bound in bounds[:9]] == PUBLISHED_BOUND
    changes = np.abs(np.diff(bounds, prepend=0))
    assert int(np.argmax(changes < 0.01)) + 1 == 9


def test_complete_data() -> None:
    heads = np.array([7, 9, 2, 6, 0])
    fitted = BinomialMixture(2).fit_complete(
        np.stack([heads, 10 - heads], 1), [0, 0, 1, 0, 1]
    )
    np.testing.assert_allclose(
        fitted.probabilities_, [[22 / 30, 8 / 30], [0.1, 0.9]], rtol=1e-12
    )
    assert fitted.probabilities_[:, 0].round(4).tolist() == [0.7333, 0.1]
    np.testing.assert_allclose(fitted.weights_, [0.6, 0.4], rtol=1e-12)
    likelihood = binom.logpmf(heads, 10, np.where([1, 1, 0, 1, 0], 22 / 30, 0.1)).sum()
    assert likelihood == pytest.approx(-7.655267754139319, abs=1e-9)  # published


def test_posterior_and_likelihood_are_those_of_binomials() -> None:
    fitted = BinomialMixture(
        2, probabilities_init=[[0.7, 0.3], [0.4, 0.6]], tol=1e-6
    ).fit(COINS)
    joint = fitted.weights_ * binom.pmf(COINS[:, :1], 10, fitted.probabilities_[:, 0])
    np.testing.assert_allclose(
        fitted.score_samples(COINS), np.log(joint.sum(1)), rtol=1e-9
    )
    np.testing.assert_allclose(
        fitted.predict_proba(COINS), joint / joint.sum(1, keepdims=True), rtol=1e-9
    )
    assert fitted.score(COINS) == pytest.approx(np.log(joint.sum(1)).mean())
    assert (fitted.predict(COINS) == joint.argmax(1)).all()


def test_dice() -> None:
    """Three sides and two loaded dice, many throws: it finds them."""
    random = np.random.default_rng(0)
    dice = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    which = random.random(400) < 0.3
    X = np.stack(
        [random.multinomial(30, dice[int(second)]) for second in which]
    ).astype(float)
    fitted = BinomialMixture(2, random_state=0).fit(X)
    order = fitted.probabilities_[:, 0].argsort()[::-1]
    np.testing.assert_allclose(fitted.probabilities_[order], dice, atol=0.02)
    np.testing.assert_allclose(fitted.weights_[order], [0.7, 0.3], atol=0.05)
    logs = [multinomial.logpmf(X, 30, theta) for theta in fitted.probabilities_]
    expected = np.log((fitted.weights_[:, None] * np.exp(logs)).sum(0))
    np.testing.assert_allclose(fitted.score_samples(X), expected, rtol=1e-9)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(2, 12),
    st.integers(2, 4),
    st.integers(1, 3),
)
@pytest.mark.filterwarnings("ignore:.*did not settle")
def test_log_likelihood_never_falls(
    seed: int, n: int, sides: int, components: int
) -> None:
    random = np.random.default_rng(seed)
    X = random.integers(0, 12, (n + components, sides)).astype(float)
    fitted = BinomialMixture(
        components, random_state=seed % 1000, max_iter=20, tol=0
    ).fit(X)
    assert fitted.n_iter_ > 1
    assert np.diff(fitted.lower_bounds_).min() >= -1e-10
    assert fitted.score(X) >= fitted.lower_bound_ - 1e-10


def test_a_side_that_never_came_up() -> None:
    fitted = BinomialMixture(2, random_state=0).fit(
        [[5.0, 0.0], [4.0, 0.0], [0.0, 3.0]]
    )
    np.testing.assert_allclose(np.sort(fitted.probabilities_[:, 0]), [0, 1], atol=1e-12)
    assert np.isfinite(fitted.score_samples([[5.0, 0.0], [0.0, 2.0], [1.0, 1.0]])).all()


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="Negative values in data"):
        BinomialMixture().fit([[1.0, -1.0], [1.0, 2.0]])
    with pytest.raises(ValueError, match=r"learn must be .*'theta'"):
        BinomialMixture(learn=("theta",)).fit(COINS)
    with pytest.raises(
        ValueError, match=r"probabilities_init must have shape \(2, 2\), got \(2,\)"
    ):
        BinomialMixture(probabilities_init=[0.6, 0.5]).fit(COINS)
    with pytest.raises(ValueError, match="probabilities_init must have rows"):
        BinomialMixture(probabilities_init=[[0.6, 0.6], [0.5, 0.5]]).fit(COINS)
    with pytest.raises(
        ValueError, match="weights_init must be at least 0 and sum to 1"
    ):
        BinomialMixture(weights_init=[0.6, 0.6]).fit(COINS)
    with pytest.raises(ValueError, match="assignment must be 5 integers from 0 to 1"):
        BinomialMixture().fit_complete(COINS, [0, 1, 2, 0, 1])
    with pytest.raises(ValueError, match="assignment leaves out component 1"):
        BinomialMixture().fit_complete(COINS, [0, 0, 0, 0, 0])
