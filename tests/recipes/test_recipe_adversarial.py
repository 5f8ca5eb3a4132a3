import csv
import json
import math

import pytest

from recipes import run_recipe, smallnorb
from recipes.adversarial import (
    CAPSULES,
    CLEAN,
    CNN,
    NETWORKS,
    Adversarial,
    AdversarialSettings,
)
from recipes.attacks import UNTARGETED, WHITE

job = Adversarial().job


def test_jobs():
    for preset, settings in Adversarial.presets.items():
        _, capsules = job(settings, CAPSULES)
        name, cnn = job(settings, CNN, 0.9)
        assert capsules["model"] == "matrixcapsnet"
        assert (cnn["model"], cnn["stop_at"], name) == ("matrixcapsnet_cnn", 0.9, "adversarial-convolutional-network")
        assert cnn["data"] == capsules["data"]
        assert cnn["preprocess"] == capsules["preprocess"]
        assert cnn["data"].get("validation", 0.1) > 0, preset
    quick = Adversarial.presets["quick"]
    assert job(quick, CAPSULES) == smallnorb.SmallNORBEM().job(smallnorb.SmallNORBEM.presets["quick"], smallnorb.BASE)
    assert job(Adversarial.presets["paper"], CAPSULES)[0] == "adversarial-matrix-capsules"


def test_settings_need_the_epsilons_of_the_table():
    networks = Adversarial.presets["smoke"].networks
    with pytest.raises(ValueError, match=r"epsilons of BIM must hold \(0\.01,\), got \(0\.1,\)"):
        AdversarialSettings(networks, 1, epsilons={"FGSM": (0.01, 0.1), "BIM": (0.1,)})


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adversarial")

    def run():
        paths = {"runs": folder / "runs", "results": folder / "results"}
        return run_recipe("adversarial", "smoke", **paths, trainer={"accelerator": "cpu"})

    return folder, run(), run


@pytest.mark.slow
def test_smoke_measures_every_line(smoke):
    folder, result, _ = smoke
    written = json.loads((folder / "results" / "adversarial-smoke.json").read_text())
    assert written["rows"] == result["rows"]
    assert len(written["rows"]) == len(Adversarial.lines) == 2 * (3 * 4 + 3)
    for row in written["rows"]:
        assert len(row["ours"]) == 1
        assert 0 <= row["ours"][0] <= 100
    assert {picture["file"] for picture in written["pictures"]} == {
        "adversarial-smoke-curves.png",
        "adversarial-smoke-images.png",
    }
    values = {(row["row"], row["measure"]): row["ours"][0] for row in written["rows"]}
    for name, curve in written["curves"][0].items():
        network = name.split(",")[0]
        assert curve["epsilon"][0] == 0
        assert curve["accuracy"][0] == pytest.approx(values[network, CLEAN])
        assert len(curve["epsilon"]) == len(curve["accuracy"]) == len(curve["success"]) == 3
        if WHITE in name and UNTARGETED in name:
            assert min(curve["accuracy"]) < curve["accuracy"][0]


@pytest.mark.slow
def test_smoke_trains_the_cnn_to_the_capsules_accuracy(smoke):
    folder, result, _ = smoke
    facts = result["facts"][0]
    assert set(facts) == set(NETWORKS)
    stop_at = math.floor(1000 * facts[CAPSULES]["validation_accuracy"]) / 1000
    run = folder / "runs" / "smoke" / facts[CNN]["run"]
    assert f"stop_at: {stop_at}\n" in (run / "config.yaml").read_text()
    with (run / "metrics.csv").open() as file:
        accuracy = [float(row["val_accuracy"]) for row in csv.DictReader(file)]
    assert accuracy[-1] == pytest.approx(facts[CNN]["validation_accuracy"])
    assert max(accuracy[:-1], default=0) < stop_at
    assert accuracy[-1] >= stop_at or len(accuracy) == Adversarial.presets["smoke"].epochs


@pytest.mark.slow
def test_a_second_run_trains_nothing(smoke):
    folder, result, run = smoke
    summaries = list(folder.glob("runs/smoke/*/summary.json"))
    assert len(summaries) == 2
    before = [path.stat().st_mtime_ns for path in summaries]
    assert run()["rows"] == result["rows"]
    assert [path.stat().st_mtime_ns for path in summaries] == before
