"""The queue: rows that are missing, cheapest first, resumed, limited, one that fails."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from recipes import RECIPES, Recipe, get_recipe, run_recipe
from recipes.__main__ import main
from recipes.kit.base import Line
from recipes.kit.estimates import Estimate, Key, read_estimates, write_estimates
from recipes.kit.options import TrainingOptions
from recipes.kit.queue import Deadline, OutOfTime, missing, run_queue
from recipes.kit.results import describe

NETWORK: dict[str, Any] = {
    "data": {"name": "Digits"},
    "model": "capsnet_digits",
    "model_args": {"channels": 4, "types": 1, "decoder_hidden": [4]},
    "epochs": 1,
    "trainer": {"accelerator": "cpu", "extra": {"limit_train_batches": 8}},
}
LONG, SHORT, BROKEN = "thirty epochs", "one epoch", "no such network"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Recipe[TrainingOptions]:
    """Rows of 30 epochs, of one, and one that cannot be trained."""

    class Queued(Recipe[TrainingOptions]):
        name = "queued"
        title = "nothing"
        source = "nobody"
        grows = True
        rows: ClassVar = {
            LONG: {"epochs": 30},
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
    [line] = [line for line in result["rows"] if line["row"] == row]
    return list(line["ours"])


def known_costs(results: Path, hours: dict[str, float]) -> None:
    """Write estimates, so that nothing need be rehearsed."""
    write_estimates(
        results,
        {
            Key("queued", "smoke", row, "cpu"): Estimate(1, 3600 * cost, "1 x cpu")
            for row, cost in hours.items()
        },
    )


def test_cheapest_first_and_a_row_that_fails_stops_no_other(
    recipe: Recipe[TrainingOptions], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    known_costs(results, {LONG: 50, SHORT: 1})
    shown: list[str] = []
    outcomes = run_queue(
        "smoke",
        [0],
        ["queued"],
        hours=2,
        runs=tmp_path / "runs",
        results=results,
        trainer={"accelerator": "cpu"},
        show=shown.append,
    )
    assert "nothing_of_that_name" in outcomes.pop(f"queued, {BROKEN}, seed 0")
    assert outcomes == {f"queued, {SHORT}, seed 0": "done"}
    short, long = (
        line for line in shown if line.startswith("queued") and line.endswith("hours")
    )
    assert SHORT in short
    assert LONG in long
    assert len(figures(results, SHORT)) == 1

    # The row that is done is left out; the one that is too long is shown with its cost.
    rows = {entry.row for entry in missing("smoke", [0], ["queued"], results)}
    assert rows == {LONG, BROKEN}
    # What it costs elsewhere stands beside that.
    estimates = read_estimates(results)
    estimates[Key("queued", "smoke", LONG, "cuda")] = Estimate(600, 2.0, "1 x GPU")
    write_estimates(results, estimates)
    text = describe(recipe, {"smoke": {"rows": []}}, estimates=read_estimates(results))
    assert "not run: 50 h on 1 x cpu, 20 min on 1 x GPU" in text


def test_a_rehearsal_trains_nothing_that_stays(
    recipe: Recipe[TrainingOptions], tmp_path: Path
) -> None:
    results = tmp_path / "results"
    run_queue(
        "smoke", [0], ["queued"], hours=0, runs=tmp_path / "runs", results=results
    )
    estimates = {key.row: cost for key, cost in read_estimates(results).items()}
    assert estimates[LONG].steps == 30 * 8
    assert estimates[SHORT].steps == 8
    assert estimates[SHORT].seconds > 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
def test_a_training_ends_with_the_time_and_goes_on_later(
    recipe: Recipe[TrainingOptions], tmp_path: Path
) -> None:
    results, runs = tmp_path / "results", tmp_path / "runs"
    known_costs(results, {LONG: 1, SHORT: 2})
    outcomes = run_queue(
        "smoke", [0], ["queued"], minutes=0.02, runs=runs, results=results
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
    known_costs(results, {LONG: 1, SHORT: 2})
    outcomes = run_queue(
        "smoke", [0], ["queued"], runs=tmp_path / "runs", results=results
    )
    assert "does not learn" in outcomes[f"queued, {LONG}, seed 0"]
    assert outcomes[f"queued, {SHORT}, seed 0"] == "done"


def test_a_deadline_that_is_over_stops_before_the_first_epoch() -> None:
    with pytest.raises(OutOfTime):
        Deadline(time.monotonic() - 1).on_train_epoch_start()


def test_names_no_recipe_for_all(tmp_path: Path) -> None:
    """Without names, the command is about all recipes."""
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert main(["queue", "--preset", "smoke", "--minutes", "0", *folders]) == 0


def test_estimates_recipes_that_measure_rows_together(
    recipe: Recipe[TrainingOptions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows have hours, and are not trained one by one."""
    monkeypatch.setattr(type(recipe), "grows", False)
    outcomes = run_queue(
        "smoke", [0], ["queued"], runs=tmp_path / "runs", results=tmp_path
    )
    assert "python -m recipes run queued" in outcomes[f"queued, {SHORT}, seed 0"]
    assert SHORT in [key.row for key in read_estimates(tmp_path)]


@pytest.mark.thorough
def test_a_killed_queue_goes_on(tmp_path: Path) -> None:
    """Killed in the middle of a training, and called again: the row is there."""
    words = ["queue", "mnist-em", "--preset", "smoke", "--seeds", "0"]
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    command = [sys.executable, "-m", "recipes", *words, *folders]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "training in" in line:
                break
        process.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True, capture_output=True)
    result = json.loads((tmp_path / "results" / "mnist-em-smoke.json").read_text())
    measured = {line["row"]: line["ours"] for line in result["rows"] if line["ours"]}
    assert [*measured] == [
        *get_recipe("mnist-em").present(get_recipe("mnist-em").presets["smoke"])
    ]
    assert all(len(values) == 1 for values in measured.values())
