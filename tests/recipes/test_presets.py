"""What the presets say: options of ``torchcaps train`` that are true to the papers."""

from typing import Any

import pytest
import torch
import yaml

from recipes import PRESETS, RECIPES
from recipes.kit.base import get_recipe
from recipes.smallnorb import BASE
from tests.options import made
from torchcaps import create_model
from torchcaps_lab.training.command_line import training_options

NORB, VIEWPOINTS, MNIST = (
    RECIPES[name] for name in ("smallnorb-em", "smallnorb-viewpoints", "mnist-dynamic")
)
CNN = "convolutional network"
SKETCH = "K-Means by exp(-distance), binary pixels"


def parsed(name: str, preset: str, row: str) -> Any:
    """The options as ``torchcaps train`` gets them from YAML."""
    config = RECIPES[name].job(RECIPES[name].presets[preset], row)[1]
    return made(yaml.safe_load(yaml.safe_dump({**config, "run": "unused"})))


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        (name, preset)
        for name, recipe in RECIPES.items()
        if not (recipe.apart or name == "slots")  # trained by code of their own
        for preset in recipe.presets
    ],
)
def test_jobs_are_options_of_train_with_names_of_their_own(name, preset):
    recipe = RECIPES[name]
    rows = [
        row
        for row in recipe.present(recipe.presets[preset])
        if row not in recipe.borrowed
    ]
    jobs = [recipe.job(recipe.presets[preset], row, 0.9) for row in rows]
    assert len({run for run, _ in jobs}) == len(rows)
    for run, config in jobs:
        assert config["stop_at"] == 0.9
        training_options({**config, "run": run})


@pytest.mark.parametrize("name", RECIPES)
def test_unknown_row(name):
    with pytest.raises(ValueError, match=r"row must be one of .*, got 'another'"):
        RECIPES[name].job(RECIPES[name].presets["smoke"], "another")


@pytest.mark.parametrize("row", MNIST.rows)
def test_capsnet_has_the_steps_and_the_loss_of_its_row(row):
    options = parsed("mnist-dynamic", "quick", row)
    if row == "CNN baseline":
        assert (options.model, options.routing, type(options.loss).__name__) == (
            "capsnet_small_cnn",
            None,
            "NegativeLogLikelihood",
        )
        return
    if row == SKETCH:
        assert (options.model, options.preprocess.binarise) == ("capsnet_small", True)
        assert (options.routing.distance, type(options.loss).__name__) == (
            "plain",
            "LengthCrossEntropy",
        )
        return
    assert (options.model, options.reconstruction) == ("capsnet_small", 0.0005)
    if row == "K-Means by exp(-distance), binary pixels":
        assert (type(options.loss).__name__, options.preprocess.binarise) == (
            "LengthCrossEntropy",
            True,
        )
        return
    assert options.routing.steps == (1 if row.startswith("1 step,") else 3)
    assert options.loss.weighting == (
        "released" if row.endswith("the code") else "paper"
    )
    without = (
        "decoder_hidden" in options.model_args
        and options.model_args["decoder_hidden"] is None
    )
    assert without == row.endswith("no reconstruction")


def test_the_paper_preset_of_capsnet():
    options = parsed(
        "mnist-dynamic", "paper", "3 steps, reconstruction weighted as in the paper"
    )
    settings = MNIST.presets["paper"]
    assert settings.scheduler["gamma"] ** 2000 == pytest.approx(0.96)
    assert (settings.data["validation"], options.scheduler_interval) == (0, "step")
    assert (options.batch_size, options.preprocess.shift, options.model) == (
        128,
        2,
        "capsnet",
    )
    assert MNIST.job(settings, "CNN baseline")[1]["model"] == "capsnet_cnn"
    quick = MNIST.presets["quick"]
    assert quick.scheduler["gamma"] ** (quick.epochs - 1) == pytest.approx(
        1 / 20, rel=0.05
    )


@pytest.mark.parametrize(
    ("name", "row", "images", "steps"),
    [
        ("mnist-dynamic", "3 steps, no reconstruction", 60000, 300_000),
        ("mnist-em", "MatrixCapsNet, EM routing", 60000, 300_000),
        ("fashion", "MatrixCapsNet, EM routing", 60000, 300_000),
        ("fashion", "CapsNet, dynamic routing, 3 steps", 60000, 300_000),
        ("cifar10", "MatrixCapsNet, EM routing", 50000, 300_000),
        ("cifar10", "CapsNet, dynamic routing, 3 steps", 50000, 600_000),
        ("smallnorb-em", BASE, 24300, 2_000_000),
    ],
)
def test_the_paper_presets_train_as_long_as_the_papers(name, row, images, steps):
    options = parsed(name, "paper", row)
    assert options.epochs * (images // options.batch_size) == pytest.approx(
        steps, abs=1000
    )


@pytest.mark.parametrize("preset", ["paper", "quick"])
@pytest.mark.parametrize("floor", [0.0, 0.3])
def test_mnist_em_as_in_the_article(preset, floor):
    row = "MatrixCapsNet, as in the article" + (
        f", cost_floor {floor}" if floor else ""
    )
    options = parsed("mnist-em", preset, row)
    assert (options.model, options.batch_size, options.trainer.gradient_clip_val) == (
        "matrixcapsnet_mnist",
        8,
        4.0,
    )
    levels = torch.tensor([0, 64, 128, 255.0]).view(1, 1, 2, 2)
    seen = options.preprocess.evaluate(levels / 255).images
    torch.testing.assert_close(seen, (levels - 128) / 128, rtol=0, atol=1e-6)
    margins = []
    for epoch in range(options.epochs):
        options.loss.advance(epoch, options.epochs, 7500 * epoch)
        margins.append(options.loss.margin)
    assert margins == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert (options.loss.reduction, options.routing.cost_floor) == ("sum", floor)
    assert (
        options.optimizer([torch.nn.Parameter(torch.ones(1))]).defaults["lr"] == 0.001
    )


SHAPES = {
    "mnist-em": (1, 28, 28),
    "fashion": (1, 28, 28),
    "cifar10": (3, 32, 32),
}


@pytest.mark.parametrize(
    ("name", "row"), [(name, row) for name in SHAPES for row in RECIPES[name].rows]
)
def test_networks_fit_the_data(name, row):
    options = parsed(name, "paper", row)
    shape = options.preprocess.image_shape(SHAPES[name])
    routing = options.routing
    arguments = {
        **(options.model_args or {}),
        **({} if routing is None else {"routing": routing}),
    }
    model = create_model(options.model, image_shape=shape, classes=10, **arguments)
    assert (
        type(model).__name__
        == {"Mat": "MatrixCapsNet", "Cap": "CapsNet", "CNN": "MatrixCapsNetTwin"}[
            row[:3]
        ]
    )
    if name == "cifar10":
        assert row[:3] != "Mat" or model.channels == 256
        assert row[:3] != "Cap" or (options.model_args["types"], routing.leaky) == (
            64,
            True,
        )


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= (
            _flat(value, f"{prefix}{name}.")
            if isinstance(value, dict) and value
            else {f"{prefix}{name}": value}
        )
    return flat


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("row", [row for row in NORB.rows if row not in (BASE, CNN)])
def test_a_row_differs_from_the_base_in_what_it_names(preset, row):
    settings = NORB.presets[preset]
    change = _flat(NORB.rows[row])
    base = _flat(NORB.job(settings, BASE)[1])
    changed = _flat(NORB.job(settings, row)[1])
    if "loss.name" in change:  # the arguments of the spread loss belong to it alone
        base, changed = (
            {
                k: v
                for k, v in c.items()
                if not k.startswith("loss.") or k == "loss.name"
            }
            for c in (base, changed)
        )
    assert changed == base | change != base


def test_vector_poses_have_sixteen_times_the_transforms():
    settings = NORB.presets["paper"]
    sizes = []
    for row in (BASE, "vector pose"):
        arguments = NORB.job(settings, row)[1]["model_args"]
        network = create_model(
            "matrixcapsnet", image_shape=(2, 32, 32), classes=5, **arguments
        )
        sizes.append(
            [
                layer.weight.numel()
                for layer in (
                    network.conv_caps1,
                    network.conv_caps2,
                    network.class_caps,
                )
            ]
        )
    assert sizes[0] == [9 * 32 * 32 * 16, 9 * 32 * 32 * 16, 32 * 5 * 16]
    assert sizes[1] == [16 * size for size in sizes[0]]


@pytest.mark.parametrize("preset", VIEWPOINTS.presets)
def test_training_never_sees_the_novel_viewpoints(preset):
    for row in VIEWPOINTS.rows:
        data = VIEWPOINTS.job(VIEWPOINTS.presets[preset], row)[1]["data"]
        assert (data["viewpoints"], data["test_viewpoints"]) == (
            row.split(",")[0],
            "familiar",
        )


def test_lossy_pixels_are_told():
    assert any("lossy" in note and "JPEG" in note for note in RECIPES["cifar10"].notes)


def test_a_misspelt_recipe_is_answered_with_the_one_that_is_meant() -> None:
    with pytest.raises(ValueError, match=r"did you mean object-discovery\?\n"):
        get_recipe("object-discovry")
