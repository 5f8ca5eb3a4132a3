"""The page of the viewpoint study says what its result says, and its intervals hold for
other seeds and toys.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from docs import where_routing_pays as page
from docs.figures import filled
from docs.where_routing_pays import Run
from recipes.smallnorb_viewpoints import FAMILIAR, NOVEL


def run(
    shares: list[float],
    curve: list[float],
    novel: list[float],
    familiar: tuple[float, float] = (0.0, 0.0),
) -> Run:
    return Run(
        {},
        {NOVEL: np.array(shares), FAMILIAR: np.array(familiar)},
        {FAMILIAR: curve, NOVEL: novel},
    )


@pytest.mark.thorough
def test_documents_have_the_figures_of_the_result() -> None:
    for path, figures in page.pages().items():
        text = path.read_text(encoding="utf-8")
        assert text.count(page.BEGIN) == 1
        assert filled(text, page.BEGIN, figures) == text, path.name


def test_the_result_has_all_that_it_says(tmp_path: Path) -> None:
    result = json.loads(page.RESULT.read_text(encoding="utf-8"))
    for row in (
        row for row in result["rows"] if row["row"].startswith("azimuth, dynamic, 1")
    ):
        runs = page.of_views("azimuth")["dynamic, 1 step"]
        assert [
            seed_run.facts["figures"][row["measure"]] for seed_run in runs.values()
        ] == row["ours"]
        if row["unit"] == "%":
            assert [
                seed_run.shares[row["measure"]].mean() for seed_run in runs.values()
            ] == pytest.approx(row["ours"])


def test_intervals() -> None:
    assert page.interval(np.full((3, 25), -2.0)) == (-2, -2)  # nothing varies
    random = np.random.default_rng(1)
    toys = random.normal(size=(1, 400)).repeat(2, 0)
    # Seeds agree, and the interval is that of 400 toys.
    whole = t_interval(toys[0], 0.95)
    assert page.interval(toys) == pytest.approx(whole, abs=1e-9)
    seeds = np.array([[0.0], [1.0], [5.0]]).repeat(400, 1)
    # Toys agree, and the interval is that of three seeds.
    assert page.interval(seeds) == pytest.approx(t_interval(seeds[:, 0], 0.95))


@pytest.mark.parametrize(("of_seeds", "of_toys"), [(4.0, 5.0), (1.0, 5.0), (4.0, 0.0)])
def test_intervals_hold_for_other_seeds_and_toys(
    of_seeds: float, of_toys: float
) -> None:
    random = np.random.default_rng(2)
    held = []
    for _ in range(1000):
        differences = random.normal(0, 10, (5, 50))
        differences += random.normal(0, of_seeds, (5, 1))
        differences += random.normal(0, of_toys, 50)
        low, high = page.interval(differences)
        held.append(low <= 0 <= high)
    assert 0.93 <= np.mean(held) <= 0.98


def t_interval(values: np.ndarray, share: float) -> np.ndarray:
    """The interval of a mean by Student's t."""
    error = values.std(ddof=1) / np.sqrt(len(values))
    return student.interval(share, len(values) - 1, values.mean(), error)


def test_differences_are_of_common_seeds_and_the_same_toys() -> None:
    first = {
        seed: run([10.0 + seed, 30.0 + seed], [20, 10], [40, 30]) for seed in (0, 1, 2)
    }
    second = {
        seed: run([12.0 + seed, 32.0 + seed], [30, 14], [50, 33]) for seed in (1, 2, 3)
    }
    assert page.difference({"a": first, "b": second}, "a", "b") == (-2, -2, -2, 2)


@pytest.mark.parametrize(
    ("low", "high", "seeds", "verdict"),
    [
        (-3.0, -1.0, 5, "fewer"),
        (1.0, 3.0, 5, "more"),
        (-1.0, 3.0, 5, "open"),
        (1.0, 3.0, 4, "open"),
    ],
)
def test_a_verdict_needs_an_interval_without_zero_and_five_seeds(
    low: float, high: float, seeds: int, verdict: str
) -> None:
    actual = page.Difference((low + high) / 2, low, high, seeds)
    assert actual.verdict == verdict
    assert actual.cell.startswith("**") == (verdict != "open")


def test_what_the_familiar_error_lets_expect_is_taken_off() -> None:
    better = run([20.0, 40.0], [30, 10], [45, 30], familiar=(8.0, 12.0))
    worse = run(
        [23.0, 46.0], [40, 20], [61, 46], familiar=(14.0, 18.0)
    )  # 4.5 more, 6 more of the familiar ones
    assert page.slope([better, worse]) == pytest.approx(0.75)
    actual = page.difference(
        {"a": {0: worse, 1: worse}, "b": {0: better, 1: better}},
        "a",
        "b",
        matched=FAMILIAR,
    )
    assert actual.mean == pytest.approx(4.5 - 6 * 0.75)
