"""The queue: rows that are missing, cheapest first, resumed, limited, one that fails."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from recipes import RECIPES, Recipe, run_recipe
from recipes.kit.base import Line
from recipes.kit.estimates import Estimate, read_estimates, write_estimates
from recipes.kit.options import TrainingOptions
from recipes.kit.queue import Deadline, missing, run_queue
from recipes.kit.results import describe

NETWORK: dict[str, Any] = {
    "data": {"name": "Digits"},
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 1, "decoder_hidden": [4]},
    "epochs": 1,
    "trainer": {"accelerator": "cpu", "extra": {"limit_train_batches": 8}},
}
LONG, SHORT, BROKEN = "sixty epochs", "one epoch", "no such network"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe[TrainingOptions]:
    """Rows of 60 epochs, of one, and one that cannot be trained."""

    class Queued(Recipe[TrainingOptions]):
        name = "queued"
        title = "nothing"
        source = "nobody"
        grows = True
        rows: ClassVar = {
            LONG: {"epochs": 60},
            BROKEN: {"model": "nothing_of_that_name"},
            SHORT: {},
        }
        lines = tuple(Line(row, "test error") for row in rows)
        presets: ClassVar = dict.fromkeys(
            ("paper", "quick", "smoke"), TrainingOptions(**NETWORK)
        )

    made = Queued()
    monkeypatch.setitem(RECIPES, "queued", made)
    return made


def figures(results: Path, row: str) -> list[float]:
    result = json.loads((results / "queued-smoke.json").read_text())
    return [*(line["ours"] for line in result["rows"] if line["row"] == row)][0]


def test_cheapest_first_and_a_row_that_fails_stops_no_other(
    recipe: Recipe[TrainingOptions], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    shown: list[str] = []
    outcomes = run_queue(
        "smoke",
        [0],
        ["queued"],
        hours=1e-9 + read_hours(recipe, tmp_path),
        runs=tmp_path / "runs",
        results=results,
        show=shown.append,
    )
    assert "nothing_of_that_name" in outcomes.pop(f"queued, {BROKEN}, seed 0")
    assert outcomes == {f"queued, {SHORT}, seed 0": "done"}
    order = [line for line in shown if line.endswith("hours")]
    assert [SHORT in order[1], LONG in order[2]] == [True, True]
    assert len(figures(results, SHORT)) == 1

    # What is done is left out; what is longer than the limit has its estimate.
    rows = {entry.row for entry in missing("smoke", [0], ["queued"], results)}
    assert rows == {LONG, BROKEN}
    estimates = read_estimates(results)
    assert estimates["queued", "smoke", LONG].steps == 60 * 8
    text = describe(recipe, {}, estimates=estimates)
    long_row = next(line for line in text.splitlines() if LONG in line)
    assert "not run: " in long_row
    assert " min on 1 x cpu" in long_row


def read_hours(recipe: Recipe[TrainingOptions], folder: Path) -> float:
    """The hours of the short row, by a rehearsal."""
    results = folder / "rehearsed"
    run_queue("smoke", [0], ["queued"], hours=-1, runs=folder, results=results)
    estimates = read_estimates(results)
    return 10 * estimates["queued", "smoke", SHORT].hours


def test_a_training_ends_with_the_time_and_goes_on_later(
    recipe: Recipe[TrainingOptions], tmp_path: Path
) -> None:
    results, runs = tmp_path / "results", tmp_path / "runs"
    write_estimates(
        results,
        {("queued", "smoke", row): Estimate(1, 1.0, "") for row in (LONG, SHORT)},
    )
    outcomes = run_queue(
        "smoke", [0], ["queued"], minutes=0.05, runs=runs, results=results
    )
    assert "out of time" in outcomes.values()
    run_queue("smoke", [0], ["queued"], runs=runs, results=results)
    # Stopped and resumed, it has the figures of a training in one piece.
    whole = run_recipe("queued", "smoke", [0], rows=[LONG], runs=tmp_path / "other")
    in_one_piece = next(line for line in whole["rows"] if line["row"] == LONG)
    assert figures(results, LONG) == in_one_piece["ours"]


def test_a_training_that_does_not_learn_is_stopped(
    recipe: Recipe[TrainingOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate of 0 the loss stays as it is."""
    still = replace(recipe.presets["smoke"], optimizer={"name": "Adam", "lr": 1e-12})
    monkeypatch.setattr(recipe, "presets", {**recipe.presets, "smoke": still})
    results = tmp_path / "results"
    outcomes = run_queue(
        "smoke", [0], ["queued"], runs=tmp_path / "runs", results=results
    )
    assert "does not learn" in outcomes[f"queued, {LONG}, seed 0"]
    assert outcomes[f"queued, {SHORT}, seed 0"] == "done"


def test_a_deadline_that_is_over_stops_before_the_first_epoch() -> None:
    from recipes.kit.queue import OutOfTime

    with pytest.raises(OutOfTime):
        Deadline(time.monotonic() - 1).on_train_epoch_start()


@pytest.mark.thorough
def test_a_killed_queue_goes_on(tmp_path: Path) -> None:
    """Killed in the middle of a training, and called again: the row is there."""
    words = ["queue", "mnist-em", "--preset", "smoke", "--seeds", "0"]
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "recipes", *words, *folders]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "training in" in line:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command, check=True, capture_output=True)
    result = json.loads((tmp_path / "results" / "mnist-em-smoke.json").read_text())
    assert all(
        len(line["ours"]) == 1 for line in result["rows"] if not line["elsewhere"]
    )
