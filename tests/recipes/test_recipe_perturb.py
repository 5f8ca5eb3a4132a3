"""The recipe perturb: how much the numbers of a pose change what is drawn."""

from pathlib import Path

import pytest
import torch

from recipes import Lab, mnist_dynamic, run_recipe
from recipes.perturb import (
    CHANGE,
    ERROR,
    IDLE,
    OVERLAID,
    ROWS,
    Perturb,
    Sweep,
    digits_for,
    findings,
)
from torchcaps_lab.data import create_dataset


def test_figures_of_sweeps() -> None:
    def one(*change: float) -> Sweep:
        return Sweep(torch.tensor(change), torch.zeros(1, 2, 2), torch.zeros(2, 3, 1, 2, 2))

    found = findings({0: one(0.25, 4.0), 3: one(0.5, 2.0), 4: one(0.125, 3.0)}, idle=0.5)
    assert found == {CHANGE: pytest.approx(1.25), IDLE: pytest.approx(100 / 3)}


def test_rows_are_those_with_a_decoder() -> None:
    for row, kind in mnist_dynamic.ROWS.items():
        config = mnist_dynamic.MnistDynamic().job(mnist_dynamic.MnistDynamic.presets["quick"], row)[1]
        without = config["model_args"].get("decoder_hidden", ()) is None
        assert (row in ROWS) == (kind is not None and not without)


def test_overlaid_digits_stand_in_the_middle(tmp_path: Path) -> None:
    lab = Lab("smoke", 0, tmp_path, {"accelerator": "cpu"})
    recipe, row = ROWS[OVERLAID]
    trained = recipe().network(lab, row)
    test = digits_for(trained)
    plain = create_dataset("digits").test.images
    assert torch.equal(test.images[:, :, 2:10, 2:10], plain)
    assert test.images.sum() == plain.sum()
    assert test.image_shape == trained.network.image_shape == (1, 12, 12)


@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    def run() -> dict:
        return run_recipe("perturb", "smoke", runs=tmp_path / "runs", results=tmp_path / "results",
                          trainer={"accelerator": "cpu"})  # fmt: skip

    result = run()
    figures = {(row["row"], row["measure"]): row["ours"][0] for row in result["rows"] if row["ours"]}
    names = Perturb.presets["smoke"].rows
    assert set(figures) == {(name, measure) for name in names for measure in (CHANGE, IDLE, ERROR)}
    for name in names:
        assert 0 < figures[name, CHANGE] < 50
        assert 0 <= figures[name, IDLE] <= 100
        assert 5 < figures[name, ERROR] < 60
        assert all(len(changes) == 16 for changes in result["curves"][0][name].values())
    assert [Path(picture["file"]).suffix for picture in result["pictures"]] == [".png"] * len(names)
    summaries = sorted((tmp_path / "runs").rglob("summary.json"))
    assert len(summaries) == len(names)
    times = [summary.stat().st_mtime_ns for summary in summaries]
    assert run()["rows"] == result["rows"]
    assert [summary.stat().st_mtime_ns for summary in summaries] == times
