"""What every recipe's smoke run shows, and what is special to one."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes import (
    RECIPES,
    adversarial,
    affine,
    multimnist,
    perturb,
    routing_health,
    routings,
    run_recipe,
    scenes,
    two_digits,
    words,
)
from recipes.kit.lab import Trained
from recipes.kit.results import _all_figures
from recipes.read_outs import COLOUR, PLACE, SIZE
from recipes.smallnorb_viewpoints import FAMILIAR, NOVEL, SAME
from torchcaps.models import load_pretrained
from torchcaps_lab.data import Digits, Examples, Preprocess
from torchcaps_lab.data.transforms.steps import standardise, thirteen_crops
from torchcaps_lab.kinds.images.made import turn

SLOW = (
    "affine",
    "smallnorb-em",
    "fashion",
    "cifar10",
    "adversarial",
    "routing-health",
    "perturb",
    "scenes",
    "several",
    "smallnorb-viewpoints",
    "strangers",
)
CPU = {"accelerator": "cpu"}
QUICK = ("two-digits",)
"""What every run of the tests has; .ci/run has all but the slow ones where recipes
changed.
"""
TIMED = ("ms", "s", "KiB an image")


def rare(name: str) -> Any:
    """A recipe that not every run of the tests has."""
    marks = (
        pytest.mark.slow
        if name in SLOW
        else ()
        if name in QUICK
        else pytest.mark.thorough
    )
    return pytest.param(name, marks=marks)


def stamps(folder: Path) -> dict[Path, int]:
    return {
        path: path.stat().st_mtime_ns for path in folder.glob("runs/**/summary.json")
    }


@pytest.mark.parametrize("name", [rare(name) for name in RECIPES])
def test_a_run_measures_its_rows_and_a_second_trains_nothing(name, smoke, run_smoke):
    recipe = RECIPES[name]
    done = smoke(name)
    rows = set(recipe.present(recipe.presets["smoke"]))
    assert {row for row, _ in done.ours} >= rows
    missing = {
        (line.row, line.measure) for line in recipe.lines if line.row in rows
    } - set(done.ours)
    assert not missing - {(row, "test error, 13 crops") for row in rows}
    for line in recipe.lines:
        value = done.ours.get((line.row, line.measure), 0.0)
        assert line.unit != "%" or value <= 100
        # A share of variance is negative where a fit is worse than the mean.
        share = any(word in line.measure for word in ("variance", PLACE, COLOUR, SIZE))
        assert line.unit != "%" or share or value >= 0
    for picture in done.result["pictures"]:
        assert picture["caption"]
        assert (
            (done.folder / "results" / picture["file"])
            .read_bytes()
            .startswith(b"\x89PNG")
        )
    before = stamps(done.folder)
    again = run_smoke(name).result["rows"]
    first, second = (
        [row for row in rows if row["unit"] not in TIMED]
        for rows in (done.result["rows"], again)
    )
    assert str(first) == str(second)  # as texts, in which NaN is NaN
    assert stamps(done.folder) == before


@pytest.mark.thorough
def test_three_steps_learn_digits(smoke):
    ours = smoke("mnist-dynamic").ours
    assert (
        ours["3 steps, reconstruction weighted as in the paper", "test error"] < 80
    )  # of ten classes, 90 is chance


def test_an_interrupted_run_goes_on_where_it_was(smoke, run_smoke):
    done = smoke("two-digits")
    runs = [
        done.folder / "runs" / "smoke" / facts["run"] for facts in done.facts.values()
    ]
    metrics = [(run / "metrics.csv").read_text() for run in runs]
    (runs[0] / "summary.json").unlink()  # as if killed just before the end
    (done.folder / "results" / "two-digits-smoke.json").unlink()
    assert run_smoke("two-digits").result["rows"] == done.result["rows"]
    assert [(run / "metrics.csv").read_text() for run in runs] == metrics


@pytest.mark.slow
def test_affine_curves_meet_where_nothing_is_transformed(smoke):
    done = smoke("affine")
    settings = done.result["settings"]
    curves = done.result["curves"][0]
    for row, facts in done.facts.items():
        assert done.ours[row, affine.STOP] == pytest.approx(
            100 * facts["validation_accuracy"]
        )
        assert facts["reached"] == (facts["validation_accuracy"] >= settings["stop_at"])
        assert facts["reached"] or facts["epochs"] == settings["epochs"]
        factors = affine.factors(4)
        assert all(
            len(curves[name][row]) == len(factor.values)
            for name, factor in factors.items()
        )
        middle = {
            curves[name][row][curves[name]["values"].index(name == "scale")]
            for name in factors
        }
        assert len(middle) == 1


@pytest.mark.slow
def test_the_cnn_ends_at_the_accuracy_of_the_capsules(smoke):
    done = smoke("adversarial")
    stop_at = (
        math.floor(1000 * done.facts[adversarial.CAPSULES]["validation_accuracy"])
        / 1000
    )
    run = done.folder / "runs" / "smoke" / done.facts[adversarial.CNN]["run"]
    assert f"stop_at: {stop_at}\n" in (run / "config.yaml").read_text()
    with (run / "metrics.csv").open() as file:
        accuracy = [float(row["val_accuracy"]) for row in csv.DictReader(file)]
    assert accuracy[-1] == pytest.approx(
        done.facts[adversarial.CNN]["validation_accuracy"]
    )
    assert max(accuracy[:-1], default=0) < stop_at
    assert accuracy[-1] >= stop_at or len(accuracy) == 10


@pytest.mark.slow
def test_attacks_begin_at_the_clean_accuracy_and_hurt(smoke):
    done = smoke("adversarial")
    for name, curve in done.result["curves"][0].items():
        assert curve["epsilon"][0] == 0
        assert curve["accuracy"][0] == pytest.approx(
            done.ours[name.split(",")[0], adversarial.CLEAN]
        )
        assert (
            len(curve["epsilon"])
            == len(curve["accuracy"])
            == len(curve["success"])
            == 3
        )
        if "white box" in name and "untargeted" in name:
            assert min(curve["accuracy"]) < curve["accuracy"][0]


@pytest.mark.slow
def test_perturbed_poses_change_pictures(smoke):
    done = smoke("perturb")
    for name in perturb.Perturb.presets["smoke"].rows:
        assert 0 < done.ours[name, perturb.CHANGE] < 50
        assert 5 < done.ours[name, perturb.ERROR] < 60
        assert all(
            len(changes) == 16 for changes in done.result["curves"][0][name].values()
        )


@pytest.mark.slow
def test_more_steps_decide(smoke):
    done = smoke("routing-health")
    assert done.ours["smallNORB: 1 step", routing_health.ENTROPY] == pytest.approx(
        1, abs=1e-5
    )
    for rows in done.result["curves"][0].values():
        for row in rows.values():
            assert row["steps"] == sorted({1, 2, 10, row["trained"]})
            classes = row["layers"]["class_caps"]
            assert classes["entropy"][0] == pytest.approx(1, abs=1e-5)
            assert classes["entropy"][-1] < classes["entropy"][0]
            assert all(0 <= dead <= 1 for dead in classes["dead"])


@pytest.mark.thorough
def test_hard_routing_is_tested_in_the_network_of_another(smoke):
    done = smoke("routings")
    assert done.facts["hard_kmeans"]["run"] == done.facts["euclidean"]["run"]
    assert (
        done.ours["hard_kmeans", routings.ENTROPY]
        == 0
        != done.ours["euclidean", routings.ENTROPY]
    )
    assert ("hard_kmeans", routings.STEP) not in done.ours


@pytest.mark.slow
def test_scenes_train_with_and_without_boxes(smoke):
    done = smoke("scenes")
    runs = [
        done.folder / "runs" / "smoke" / facts["run"] for facts in done.facts.values()
    ]
    assert [("detection" in (run / "config.yaml").read_text()) for run in runs] == [
        False,
        False,
        True,
    ]
    assert all(
        value <= 1
        for (_, measure), value in done.ours.items()
        if measure in (scenes.OVERLAP, scenes.PIXELS)
    )


def test_to_be_sure_is_harder(smoke):
    done = smoke("two-digits")
    for row in (two_digits.TWIN, two_digits.KMEANS):
        for layout in two_digits.PAIRS:
            sure = two_digits.ALSO_SURE.format(layout)
            most = two_digits.MOST_ACTIVE.format(layout)
            assert done.ours[row, sure] <= done.ours[row, most]


@pytest.mark.thorough
def test_words_learn_simple_patterns(smoke):
    assert smoke("words").ours[f"TREC: {words.CNN}", words.ACCURACY] > 80


@pytest.mark.slow
def test_thirteen_crops_are_averaged(smoke):
    done = smoke("smallnorb-em")
    run = done.folder / "runs" / "smoke" / done.facts["1 step"]["run"]
    network = load_pretrained(run / "model").eval()
    test = Digits(size=24).test
    crops = thirteen_crops(test.inputs.float() / 255, 18)
    with torch.no_grad():
        activation = torch.stack(
            [network(standardise(crop)).activation for crop in crops.unbind(1)]
        ).mean(0)
    wrong = 100 * (activation.argmax(1) != test.labels).double().mean().item()
    assert wrong < 85  # it has learned something, so that there is something to see
    assert Trained(network, {}, run).error_on(test, crops=13) == pytest.approx(
        wrong, abs=0.6
    )  # ties in rounding


def _turned(digits: Examples) -> Examples:
    return replace(digits, inputs=turn(digits.inputs, 30))


@pytest.mark.thorough
def test_novel_error_is_that_of_turned_digits(smoke):
    done, row = smoke("smallnorb-viewpoints"), "azimuth, average pooling"
    recipe = RECIPES["smallnorb-viewpoints"]
    config = recipe.job(recipe.presets["smoke"], row)[1]
    network = load_pretrained(
        done.folder / "runs" / "smoke" / done.facts[row]["run"] / "model"
    ).eval()
    test = Digits(size=16).test
    same = Digits(size=16, validation=0).train
    for measure, digits in (
        (FAMILIAR, test),
        (NOVEL, _turned(test)),
        (SAME, _turned(same)),
    ):
        view = Preprocess.from_config(config["preprocess"]).evaluate(
            digits.inputs.float() / 255
        )
        with torch.no_grad():
            wrong = (
                (network(view.images).activation.argmax(1) != digits.labels)
                .double()
                .mean()
                .item()
            )
        assert done.ours[row, measure] == pytest.approx(100 * wrong, abs=0.6)


@pytest.mark.thorough
def test_a_result_grows_without_the_networks(smoke, tmp_path):
    """From the file alone: only what is missing is trained, and what was there
    stays.
    """
    name, results = "smallnorb-viewpoints", tmp_path / "results"
    whole, (row, second, *_) = smoke(name), RECIPES["smallnorb-viewpoints"].rows
    result = run_recipe(
        name, "smoke", rows=[row], runs=tmp_path / "a", results=results, trainer=CPU
    )
    assert (list(result["facts"][0]), result["seeds"]) == ([row], [0])
    assert result["command"] == f"python -m recipes run {name} --preset smoke"
    assert [
        line.split(" | ")[0] for line in _all_figures(RECIPES[name], result)[2:]
    ] == [f"| {row}"]
    grown = run_recipe(
        name,
        "smoke",
        [0, 1],
        rows=[row, second],
        runs=tmp_path / "b",
        results=results,
        trainer=CPU,
    )
    trained = {path.parent.name for path in (tmp_path / "b").glob("*/*/summary.json")}
    runs = {facts["run"] for seed in grown["facts"] for facts in seed.values()}
    assert trained == runs - {result["facts"][0][row]["run"]}
    assert grown["facts"][0][row] == result["facts"][0][row]
    assert [len(line["ours"]) for line in grown["rows"] if line["row"] == row] == [
        2,
        2,
        2,
    ]
    assert grown["curves"][0][row] == whole.result["curves"][0][row]
    path = results / f"{name}-smoke.json"
    path.write_text(path.read_text().replace('"batch_size": 64', '"batch_size": 32'))
    with pytest.raises(ValueError, match="than the preset has: batch_size"):
        run_recipe(name, "smoke", runs=tmp_path / "c", results=results)


@pytest.mark.thorough
def test_seeds_are_added_to_a_result(tmp_path, monkeypatch):
    results = tmp_path / "results"

    def run(seeds, runs):
        return run_recipe(
            "mnist-em",
            "smoke",
            seeds,
            runs=tmp_path / runs,
            results=results,
            trainer=CPU,
        )

    first = run([0], "a")
    (row,) = first["facts"][0]
    result = json.loads((results / "mnist-em-smoke.json").read_text())
    grown = run([0, 1], "b")
    assert [path.name for path in (tmp_path / "b" / "smoke").iterdir()] == [
        first["facts"][0][row]["run"].replace("seed0", "seed1")
    ]
    assert grown["facts"][0] == first["facts"][0]
    assert {facts[row]["made by"] for facts in grown["facts"]} == {grown["made by"]}
    monkeypatch.setattr("recipes.kit.command.made_by", lambda: "another version")
    assert run([2], "b")["made by"].endswith("; another version")
    assert grown["rows"][0]["ours"][0] == first["rows"][0]["ours"][0]
    result["settings"] = {"epochs": 1}
    (results / "mnist-em-smoke.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="than the preset has: batch_size; "):
        run([0], "c")


@pytest.mark.thorough
def test_what_networks_drew_that_are_gone_stays(smoke, tmp_path):
    """The picture and the figures of no network are kept as rows and seeds are
    added.
    """
    results, row = tmp_path / "results", "convolutional network"
    whole = smoke("multimnist")
    shutil.copytree(whole.folder / "results", results)
    grown = run_recipe(
        "multimnist",
        "smoke",
        [0, 1],
        rows=[row],
        runs=tmp_path / "runs",
        results=results,
        trainer=CPU,
    )
    (picture,) = grown["pictures"]
    assert [picture] == whole.result["pictures"]
    assert (results / picture["file"]).is_file()
    assert list(grown["facts"][1]) == [row]
    ours = {(line["row"], line["measure"]): line["ours"] for line in grown["rows"]}
    overlap = whole.ours[multimnist.PAIRS, multimnist.OVERLAP]
    assert ours[multimnist.PAIRS, multimnist.OVERLAP] == [overlap, overlap]


@pytest.mark.thorough
def test_a_twin_that_comes_later_stops_at_what_the_result_says(smoke, tmp_path):
    whole, row = smoke("affine"), "CNN"
    arguments = {"rows": [row], "runs": tmp_path / "runs", "trainer": CPU}
    with pytest.raises(ValueError, match="rows must have 'CapsNet' before 'CNN'"):
        run_recipe("affine", "smoke", **arguments)
    results = tmp_path / "results"
    shutil.copytree(whole.folder / "results", results)
    path = results / "affine-smoke.json"
    result = json.loads(path.read_text())
    del result["facts"][0][row]
    result["rows"] = [line for line in result["rows"] if line["row"] != row]
    for factor in affine.factors(4):
        del result["curves"][0][factor][row]
    path.write_text(json.dumps(result))
    grown = run_recipe("affine", "smoke", **arguments, results=results)
    assert grown["curves"] == whole.result["curves"]
    assert grown["rows"] == whole.result["rows"]
    facts, expected = (
        {name: each["facts"][0][row][name] for name in ("stop_at", "epochs", "reached")}
        for each in (grown, whole.result)
    )
    assert facts == expected


def test_rows_are_for_recipes_that_grow(tmp_path):
    with pytest.raises(ValueError, match="left out: scenes measures all its rows"):
        run_recipe("scenes", "smoke", rows=["capsules"], runs=tmp_path)
    with pytest.raises(ValueError, match="rows must be among"):
        run_recipe("two-digits", "smoke", rows=["dynamic"], runs=tmp_path)
    with pytest.raises(
        ValueError, match=r"rows must be among .*got \['azimuth, hats'\]"
    ):
        run_recipe(
            "smallnorb-viewpoints", "smoke", rows=["azimuth, hats"], runs=tmp_path
        )


@pytest.mark.thorough
def test_errors_are_those_of_all_toys_and_curves_end_near_them(smoke):
    done = smoke("smallnorb-viewpoints")
    count = {
        FAMILIAR: len(Digits().test),
        NOVEL: len(Digits().test),
        SAME: len(Digits(validation=0).train),
    }
    for row, curves in done.result["curves"][0].items():
        for measure, wrong in curves["wrong"].items():
            assert done.ours[row, measure] == pytest.approx(
                100 * sum(wrong) / count[measure]
            )
            assert sum(curves["images"][measure]) == count[measure]
        for measure, errors in curves["epochs"].items():
            assert len(errors) == done.facts[row]["epochs"]
            assert errors[-1] == pytest.approx(
                done.ours[row, measure], abs=20
            )  # of a third of 359 digits
