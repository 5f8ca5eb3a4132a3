"""The page of the viewpoint study says what its result says, and its intervals are those of the bootstrap."""

import json
from pathlib import Path

import numpy as np
import pytest

from docs import where_routing_pays as page
from docs.where_routing_pays import Run
from recipes.smallnorb_viewpoints import FAMILIAR, NOVEL


def run(shares: list[float], familiar: list[float], novel: list[float]) -> Run:
    return Run({}, {NOVEL: np.array(shares)}, {FAMILIAR: familiar, NOVEL: novel})


def test_the_page_has_the_figures_of_the_result() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text) == text
    assert page.claim() in " ".join((page.ROOT.parent / "README.md").read_text(encoding="utf-8").split())


def test_the_result_has_all_that_it_says(tmp_path: Path) -> None:
    result = json.loads(page.RESULT.read_text(encoding="utf-8"))
    for row in (row for row in result["rows"] if row["row"].startswith("azimuth, dynamic, 1")):
        runs = page.read("azimuth")["dynamic, 1 step"]
        assert [one.facts["figures"][row["measure"]] for one in runs.values()] == row["ours"]
        if row["unit"] == "%":
            assert [one.shares[row["measure"]].mean() for one in runs.values()] == pytest.approx(row["ours"])


def test_intervals() -> None:
    assert page.interval(np.full((3, 25), -2.0)) == (-2, -2)  # nothing varies
    random = np.random.default_rng(1)
    toys = random.normal(size=(1, 400)).repeat(2, 0)  # seeds agree: the error of a mean of 400
    assert page.interval(toys) == pytest.approx(toys.mean() + np.array([-1.96, 1.96]) / 20, abs=0.02)
    seeds = np.array([[0.0], [1.0]]).repeat(400, 1)  # toys agree: either seed alone is as likely as 0.25
    assert page.interval(seeds) == (0, 1)


def test_differences_are_of_common_seeds_and_the_same_toys() -> None:
    one = {seed: run([10.0 + seed, 30.0 + seed], [20, 10], [40, 30]) for seed in (0, 1, 2)}
    other = {seed: run([12.0 + seed, 32.0 + seed], [30, 14], [50, 33]) for seed in (1, 2, 3)}
    found = page.difference({"a": one, "b": other}, "a", "b")
    assert found[:4] == (-2, -2, -2, 2)
    assert found.matched == pytest.approx(34 - 33)  # at 14 %, 0.4 of the way from (10, 30) to (20, 40)
    assert found.verdict == "fewer"


def test_novel_errors_at_a_familiar_error() -> None:
    one = run([0.0], [50, 20, 30, 10], [60, 40, 44, 30])
    assert one.novel_at(10) == 30
    assert one.novel_at(20) == pytest.approx(37)  # the last time that it came down to it
    assert one.novel_at(5) == 30  # never: the end
