"""The two recipes on smallNORB."""

from pathlib import Path
from typing import Any

import pytest
import torch

from recipes import smallnorb_viewpoints
from recipes.kit.base import Recipe
from recipes.kit.command import run_recipe
from recipes.kit.lab import PRESETS, Trained
from recipes.smallnorb import BASE, CNN, ERROR, ROWS, THIRTEEN, SmallNORBEM
from recipes.smallnorb_viewpoints import FAMILIAR, NOVEL, SmallNORBViewpoints
from torchcaps.models import create_model, load_pretrained
from torchcaps_lab.data import Digits, Preprocess
from torchcaps_lab.data.made import turn
from torchcaps_lab.data.preprocess import standardise, thirteen_crops
from torchcaps_lab.training import training_options

job = SmallNORBEM().job
viewpoints_job = SmallNORBViewpoints().job


def _run(name: str, folder: Path) -> dict[str, Any]:
    return run_recipe(
        name, "smoke", runs=folder / "runs", results=folder / "results", trainer={"accelerator": "cpu"}
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smallnorb")


@pytest.fixture(scope="module")
def em(folder: Path) -> dict[str, Any]:
    return _run("smallnorb-em", folder)


@pytest.fixture(scope="module")
def viewpoints(folder: Path) -> dict[str, Any]:
    return _run("smallnorb-viewpoints", folder)


def _ours(result: dict[str, Any]) -> dict[tuple[str, str], float]:
    return {(row["row"], row["measure"]): row["ours"][0] for row in result["rows"] if row["ours"]}


def _summaries(folder: Path, name: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.glob(f"runs/smoke/{name}*/summary.json")}


class TestEM:
    @pytest.mark.slow
    def test_smoke_measures_its_rows_and_trains_nothing_twice(self, em: dict[str, Any], folder: Path) -> None:
        rows = SmallNORBEM.presets["smoke"].rows
        ours = _ours(em)
        assert set(ours) == {(row, ERROR) for row in rows} | {(BASE, THIRTEEN)}
        assert all(0 <= value <= 100 for value in ours.values())
        assert (folder / "results" / em["pictures"][0]["file"]).is_file()
        before = _summaries(folder, "smallnorb-")
        assert len(before) >= len(rows)
        assert _ours(_run("smallnorb-em", folder)) == ours
        assert _summaries(folder, "smallnorb-") == before

    @pytest.mark.slow
    def test_thirteen_crops_are_averaged(self, em: dict[str, Any], folder: Path) -> None:
        settings = SmallNORBEM.presets["smoke"]
        run = folder / "runs" / "smoke" / f"{job(settings, '1 step')[0]}-seed0"
        network = load_pretrained(run / "model").eval()
        test = Digits(size=24).test
        crops = thirteen_crops(test.images.float() / 255, 18)
        with torch.no_grad():
            activation = torch.stack([network(standardise(crop)).activation for crop in crops.unbind(1)]).mean(0)
        wrong = 100 * (activation.argmax(1) != test.labels).double().mean().item()
        assert wrong < 85  # it has learned something, so that there is something to see
        error = Trained(network, {}, run).error_on(test, crops=13)
        assert error == pytest.approx(wrong, abs=0.6)  # two images, for ties in rounding

    def test_published_figures_are_those_of_the_table(self) -> None:
        published = {line.row: line.published for line in SmallNORBEM.lines if line.measure == ERROR}
        assert list(published) == list(ROWS)
        assert [published[row] for row in ("1 step", "2 steps", BASE, "5 steps")] == [9.7, 2.2, 1.8, 3.9]
        assert [published[row] for row in ("vector pose", "vector pose, no coordinates")] == [2.9, 3.2]
        others = ("margin loss", "cross-entropy", "no coordinates", CNN)
        assert [published[row] for row in others] == [3.2, 5.8, 2.6, 5.2]


CHANGES: dict[str, dict[str, Any]] = {
    "1 step": {"routing.steps": 1},
    "2 steps": {"routing.steps": 2},
    "5 steps": {"routing.steps": 5},
    "vector pose": {"model_args.pose": [1, 16]},
    "no coordinates": {"model_args.coordinates": False},
    "vector pose, no coordinates": {"model_args.pose": [1, 16], "model_args.coordinates": False},
    "margin loss": {"loss.name": "MarginLoss"},
    "cross-entropy": {"loss.name": "NegativeLogLikelihood"},
}


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {f"{prefix}{name}": value}
    return flat


class TestJobs:
    def test_every_row_has_its_change(self) -> None:
        assert set(CHANGES) == set(ROWS) - {BASE, CNN}

    @pytest.mark.parametrize("preset", PRESETS)
    @pytest.mark.parametrize("row", CHANGES)
    def test_a_row_differs_from_the_base_in_what_it_names(self, preset: str, row: str) -> None:
        settings = SmallNORBEM.presets[preset]
        base, changed = _flat(job(settings, BASE)[1]), _flat(job(settings, row)[1])
        if "loss.name" in CHANGES[row]:  # the arguments of the spread loss belong to it alone
            base, changed = (
                {k: v for k, v in c.items() if not k.startswith("loss.") or k == "loss.name"} for c in (base, changed)
            )
        assert changed == base | CHANGES[row]

    @pytest.mark.parametrize("preset", PRESETS)
    def test_options_are_those_of_train(self, preset: str) -> None:
        for row in ROWS:
            name, config = job(SmallNORBEM.presets[preset], row)
            training_options({**config, "run": name})
        for row in smallnorb_viewpoints.NETWORKS:
            name, config = viewpoints_job(SmallNORBViewpoints.presets[preset], f"azimuth, {row}", 0.9)
            assert config["stop_at"] == 0.9
            training_options({**config, "run": name})

    def test_names_are_different(self) -> None:
        names = [job(SmallNORBEM.presets["quick"], row)[0] for row in ROWS]
        names += [
            viewpoints_job(SmallNORBViewpoints.presets["quick"], f"{kind}, {network}")[0]
            for kind in smallnorb_viewpoints.VIEWPOINTS
            for network in smallnorb_viewpoints.NETWORKS
        ]
        assert len(set(names)) == len(names) == 14

    def test_paper_preset_trains_for_two_million_steps(self) -> None:
        for recipe, images in ((SmallNORBEM, 24300), (SmallNORBViewpoints, 24300 // 3 * 9 // 10)):
            settings = recipe.presets["paper"]
            steps = images // settings.batch_size
            assert (settings.epochs - 1) * steps < 2_000_000 <= settings.epochs * steps

    def test_vector_poses_have_sixteen_times_the_transforms(self) -> None:
        settings = SmallNORBEM.presets["paper"]
        sizes = []
        for row in (BASE, "vector pose"):
            arguments = job(settings, row)[1]["model_args"]
            network = create_model("matrixcapsnet", image_shape=(2, 32, 32), classes=5, **arguments)
            sizes.append(
                [layer.weight.numel() for layer in (network.conv_caps1, network.conv_caps2, network.class_caps)]
            )
        assert sizes[0] == [9 * 32 * 32 * 16, 9 * 32 * 32 * 16, 32 * 5 * 16]
        assert sizes[1] == [16 * size for size in sizes[0]]


class TestViewpoints:
    @pytest.mark.slow
    def test_smoke_measures_everything(self, viewpoints: dict[str, Any], folder: Path) -> None:
        ours = _ours(viewpoints)
        assert set(ours) == {(line.row, line.measure) for line in SmallNORBViewpoints.lines}
        assert all(0 <= value <= 100 for value in ours.values())
        before = _summaries(folder, "smallnorb-viewpoints")
        assert len(before) == 4
        assert _ours(_run("smallnorb-viewpoints", folder)) == ours
        assert _summaries(folder, "smallnorb-viewpoints") == before

    @pytest.mark.slow
    def test_the_second_network_ends_at_the_accuracy_of_the_first(self, viewpoints: dict[str, Any]) -> None:
        settings, facts = SmallNORBViewpoints.presets["smoke"], viewpoints["facts"][0]
        for kind in ("azimuth", "elevation"):
            first, second = facts[f"{kind}, capsules"], facts[f"{kind}, convolutional"]
            assert first["stop_at"] is None
            assert first["epochs"] == settings.epochs
            assert 0 <= first["validation_accuracy"] - second["stop_at"] < 0.001
            reached = second["validation_accuracy"] >= second["stop_at"]
            assert reached or second["epochs"] == settings.cnn_epochs

    @pytest.mark.slow
    def test_novel_error_is_that_of_turned_digits(self, viewpoints: dict[str, Any], folder: Path) -> None:
        settings = SmallNORBViewpoints.presets["smoke"]
        name, config = viewpoints_job(settings, "azimuth, convolutional")
        network = load_pretrained(folder / "runs" / "smoke" / f"{name}-seed0" / "model").eval()
        test = Digits(size=24).test
        for measure, images in ((FAMILIAR, test.images), (NOVEL, turn(test.images, 30))):
            view = Preprocess.from_config(config["preprocess"]).evaluate(images.float() / 255)
            with torch.no_grad():
                wrong = (network(view.images).activation.argmax(1) != test.labels).double().mean().item()
            assert _ours(viewpoints)["azimuth, convolutional", measure] == pytest.approx(100 * wrong, abs=0.6)

    def test_training_never_sees_the_novel_viewpoints(self) -> None:
        for preset in PRESETS:
            config = viewpoints_job(SmallNORBViewpoints.presets[preset], "elevation, capsules")[1]
            arguments = config["data"]
            assert (arguments["viewpoints"], arguments["test_viewpoints"]) == ("elevation", "familiar")


@pytest.mark.parametrize("recipe", [SmallNORBEM, SmallNORBViewpoints])
def test_presets_say_where_the_images_come_from(recipe: type[Recipe[Any]]) -> None:
    for preset in ("paper", "quick"):
        assert recipe.presets[preset].data["name"] == "SmallNORB"
