"""The recipes mnist-em, fashion and cifar10."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from recipes import RECIPES, run_recipe
from recipes.other_data import CAPSNET, CNN, MATRIX, TEST_ERROR, Cifar10, Fashion, MnistEM, OtherData
from tests.options import made
from torchcaps import create_model

ALL: tuple[type[OtherData], ...] = (MnistEM, Fashion, Cifar10)
SHAPES = {"mnist-em": (1, 28, 28), "fashion": (1, 28, 28), "cifar10": (3, 32, 32)}
ROWS = [
    pytest.param(recipe, preset, row, id=f"{recipe.name}-{preset}-{row.split()[0]}")
    for recipe in ALL
    for preset, settings in recipe.presets.items()
    for row in settings.networks
]


def parsed(config: dict[str, Any]) -> Any:
    """The options as ``torchcaps train`` gets them from YAML."""
    return made(yaml.safe_load(yaml.safe_dump({**config, "run": "unused"})))


@pytest.mark.parametrize(("recipe", "preset", "row"), ROWS)
def test_options_make_a_network_for_the_data(recipe: type[OtherData], preset: str, row: str) -> None:
    settings = recipe.presets[preset]
    name, config = recipe().job(settings, row)
    assert name.startswith(recipe.name)
    options = parsed(config)
    assert type(options.loss).__name__ == {MATRIX: "SpreadLoss", CAPSNET: "MarginLoss"}.get(
        row, "NegativeLogLikelihood"
    )
    shape = SHAPES[recipe.name] if preset != "smoke" else (1, 20, 20)
    routing = {} if options.routing is None else {"routing": options.routing}
    model = create_model(
        options.model,
        image_shape=options.preprocess.image_shape(shape),
        classes=10,
        **(options.model_args or {}),
        **routing,
    )
    assert type(model).__name__ == {MATRIX: "MatrixCapsNet", CAPSNET: "CapsNet"}.get(row, "MatrixCapsNetTwin")


def steps_of(recipe: type[OtherData], row: str, images: int) -> int:
    network = recipe.presets["paper"].networks[row]
    return network.epochs * (images // network.batch_size)


@pytest.mark.parametrize(
    ("recipe", "row", "images", "steps"),
    [
        (MnistEM, MATRIX, 60000, 300_000),
        (Fashion, MATRIX, 60000, 300_000),
        (Fashion, CAPSNET, 60000, 300_000),
        (Cifar10, MATRIX, 50000, 300_000),
        (Cifar10, CAPSNET, 50000, 600_000),
    ],
)
def test_steps_of_the_paper_presets(recipe: type[OtherData], row: str, images: int, steps: int) -> None:
    assert steps_of(recipe, row, images) == pytest.approx(steps, abs=1000)


def test_cifar10_in_the_paper_preset_has_256_channels_and_64_types() -> None:
    networks = Cifar10.presets["paper"].networks
    assert create_model(networks[MATRIX].model).channels == 256
    assert networks[CAPSNET].model_args["types"] == 64
    assert networks[CAPSNET].routing["orphan"]


def test_lossy_pixels_are_told() -> None:
    assert any("lossy" in note and "JPEG" in note for note in Cifar10.notes)


def test_unknown_row() -> None:
    with pytest.raises(ValueError, match=f"row must be one of {MATRIX}, got '{CNN}'"):
        MnistEM().job(MnistEM.presets["smoke"], CNN)


@pytest.mark.parametrize("recipe", ALL)
def test_published_figures_have_sources(recipe: type[OtherData]) -> None:
    assert isinstance(RECIPES[recipe.name], recipe)
    for line in recipe.lines:
        assert (line.published is None) == (line.source == "")
        assert line.published is None or 0 < line.published < 20
    trained = {row for settings in recipe.presets.values() for row in settings.networks}
    assert trained <= {line.row for line in recipe.lines}


@pytest.mark.parametrize("recipe", [ALL[0], *(pytest.param(other, marks=pytest.mark.slow) for other in ALL[1:])])
def test_smoke(recipe: type[OtherData], tmp_path: Path) -> None:
    def run() -> dict[str, Any]:
        folders = {"runs": tmp_path / "runs", "results": tmp_path / "results"}
        return run_recipe(recipe.name, "smoke", trainer={"accelerator": "cpu"}, **folders)

    first = run()
    written = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/summary.json")}
    ours = {row["row"]: row["ours"] for row in first["rows"] if row["ours"]}
    assert set(ours) == set(recipe.presets["smoke"].networks)
    assert len(written) == len(ours)
    assert all(0 <= value <= 100 for values in ours.values() for value in values)
    assert all(row["measure"] == TEST_ERROR for row in first["rows"])
    assert (tmp_path / "results" / f"{recipe.name}-smoke-errors.png").stat().st_size > 1000
    assert run()["rows"] == first["rows"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/**/summary.json")} == written
