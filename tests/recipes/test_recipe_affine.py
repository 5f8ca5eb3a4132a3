import json

import pytest
import torch

from recipes import run_recipe
from recipes.affine import (
    CLEAN,
    ROWS,
    STOP,
    TRANSFORMED,
    AffineRobustness,
    factors,
)
from recipes.kit.lab import PRESETS
from torchcaps.models import create_model
from torchcaps_lab.training import training_options

QUARTER = torch.tensor([90.0])


job = AffineRobustness().job


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("row", ROWS)
def test_jobs_are_options_of_train(preset, row):
    name, config = job(AffineRobustness.presets[preset], row, 0.95)
    options = training_options({**config, "run": name}).plain()
    assert (options["stop_at"], options["data"]["pad"]) == (config["stop_at"], options["preprocess"]["shift"])


@pytest.mark.parametrize("preset", ["paper", "quick"])
def test_both_networks_have_as_many_parameters(preset):
    counts = []
    for row in ROWS:
        config = job(AffineRobustness.presets[preset], row, 0.95)[1]
        network = create_model(config["model"], image_shape=(1, 40, 40), classes=10, **config["model_args"])
        counts.append(sum(one.numel() for one in network.parameters()))
    assert abs(counts[1] / counts[0] - 1) < 0.03


@pytest.mark.slow
def test_smoke_preset_measures_every_line_and_trains_once(tmp_path):
    def once():
        folders = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
        run_recipe("affine", "smoke", **folders, trainer={"accelerator": "cpu"})
        summaries = sorted((tmp_path / "runs").rglob("summary.json"))
        return json.loads((tmp_path / "results" / "affine-smoke.json").read_text()), {
            path: path.stat().st_mtime_ns for path in summaries
        }

    result, times = once()
    ours = {(row["row"], row["measure"]): row["ours"] for row in result["rows"]}
    assert set(ours) == {(row, measure) for row in ROWS for measure in (STOP, CLEAN, TRANSFORMED)}
    assert all(len(values) == 1 and 0 <= values[0] <= 100 for values in ours.values())
    settings, curves = result["settings"], result["curves"][0]
    for row, facts in result["facts"][0].items():
        assert ours[row, STOP] == [pytest.approx(100 * facts["validation_accuracy"])]
        assert facts["reached"] == (facts["validation_accuracy"] >= settings["stop_at"])
        assert facts["reached"] or facts["epochs"] == settings["epochs"]
        assert all(len(curves[name][row]) == len(factor.values) for name, factor in factors(4).items())
        # Where nothing is transformed, all four curves meet.
        middle = [curves[name][row][curves[name]["values"].index(name == "scale")] for name in factors(4)]
        assert len(set(middle)) == 1
    assert {one["file"] for one in result["pictures"]} == {"affine-smoke-curves.png", "affine-smoke-digits.png"}
    assert all((tmp_path / "results" / one["file"]).is_file() for one in result["pictures"])

    again, later = once()
    assert later == times
    assert len(times) == len(ROWS)
    assert again["rows"] == result["rows"]
