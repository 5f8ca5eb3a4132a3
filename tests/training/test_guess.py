"""``torchcaps train FOLDER``: what is guessed from a folder, and how explicit options
win over it.
"""

from pathlib import Path

import pytest
from PIL import Image

from tests.runs import TINY, status
from torchcaps.spec import Typed
from torchcaps_lab.options.guess import guess, over
from torchcaps_lab.options.reading import read_options, typed


@pytest.fixture(autouse=True, params=[False], ids=[""])
def pretrained(request, monkeypatch) -> bool:
    """Whether the package of ImageNet weights is installed, whatever is."""
    monkeypatch.setattr(
        "torchcaps.models.timm_package.imagenet_installed", lambda: request.param
    )
    return request.param


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    """A folder of colour images of several sizes, in an empty working folder."""
    for name, colour in (("cats", "gold"), ("dogs", "navy")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(12):
            image = Image.new("RGB", (20 + place, 24), colour)
            image.putpixel((place, 0), (place, 0, 0))
            image.save(tmp_path / "photos" / name / f"{place}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


def test_a_folder_alone_is_enough_and_its_run_is_resumed_and_evaluated_as_any(
    photos, capsys
):
    tiny = str({**TINY, "decoder_hidden": "null"}).replace("'", "")
    few = (
        "--model",
        "capsnet_small",
        "--model_args",
        tiny,
        "--epochs",
        "1",
        "--report",
        "false",
    )
    assert (
        status(
            "train",
            "photos",
            *few,
            "--trainer.accelerator",
            "cpu",
            "--batch_size",
            "16",
        )
        == 0
    )
    output = capsys.readouterr().out
    for option in (
        "data ",
        "data.size ",
        "data.channels 3",
        "preprocess flip",
        "optimizer",
        "run runs/photos",
    ):
        assert f"guessed: {option}" in output
    assert "guessed: batch_size" not in output  # it was given
    assert "guessed: model" not in output
    options = read_options(Path("runs/photos/config.yaml"))
    assert options["data"]["name"].endswith(("ImageFolder", "folder"))
    assert (
        options["data"]["root"],
        options["data"]["size"],
        options["batch_size"],
    ) == ("photos", 24, 16)
    assert status("train", "--resume", "runs/photos", "--epochs", "2") == 0
    assert status("evaluate", "runs/photos") == 0
    assert guess("photos").options["run"] == str(Path("runs/photos-2"))


def test_given_options_win(photos):
    options, lines = over(guess(photos), {"data": {"size": 32}, "model": "capsnet"})
    assert (options["data"]["size"], options["model"]) == (32, "capsnet")
    assert not [
        line
        for line in lines
        if line.startswith(("guessed: data.size", "guessed: model"))
    ]


ON_IMAGENET = {
    "backbone": "timm/efficientnet_lite0",
    "weights": "imagenet",
    "keep_statistics": True,
}


@pytest.mark.parametrize("pretrained", [False, True], indirect=True)
@pytest.mark.parametrize(
    ("given", "free"),
    [
        ({}, True),
        ({"model": "capsnet_on_backbone_cnn"}, True),
        ({"model": "capsnet_small"}, False),
        ({"model_args": {"backbone": "residual"}}, False),
        ({"data": {"size": 24}}, False),  # weights of ImageNet want larger pictures
        (
            {"model_args": Typed("{weights: runs/mine}", {"weights": "runs/mine"})},
            False,
        ),
    ],
)
def test_photos_stand_on_a_pretrained_backbone_where_there_is_one(
    photos, pretrained, given, free
):
    actual = guess(photos, given)
    on = pretrained and free
    assert actual.options.get("model_args") == (ON_IMAGENET if on else None)
    sizes = (144, 128) if on else (24, None)
    assert (
        actual.options["data"]["size"],
        actual.options["preprocess"].get("crop"),
    ) == sizes
    assert actual.options["preprocess"]["flip"]
    assert ("frozen_epochs" in actual.options) == on
    assert (
        "on timm/efficientnet_lite0 with weights imagenet" in actual.why["model"]
    ) == on


@pytest.mark.parametrize("size", [{}, {"data": {"size": 48}}])
def test_another_backbone_of_timm_is_trained_in_the_same_way(photos, size):
    """Also on smaller pictures than would be guessed for it."""
    actual = guess(
        photos,
        {"model_args": {"backbone": "timm/resnet18", "weights": "hub"}, **size},
    )
    assert actual.options["model_args"] == {
        **ON_IMAGENET,
        "backbone": "timm/resnet18",
        "weights": "hub",
    }
    assert "standardise" not in actual.options["preprocess"]  # the backbone normalises
    assert "on timm/resnet18 with weights hub" in actual.why["model"]


@pytest.mark.parametrize("pretrained", [True], indirect=True)
def test_crops_follow_a_size_that_is_given(photos, pretrained):
    options, _ = over(
        guess(photos, {"data": {"size": Typed("180", 180)}}), {"data": {"size": 180}}
    )
    assert (options["data"]["size"], options["preprocess"]["crop"]) == (180, 160)


def test_names_of_classes_and_columns_may_look_like_something_else(tmp_path: Path):
    for name, shade in (("1", 9), ("no", 99), ("1e3", 199)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            picture = Image.new("L", (8, 8), shade + number)
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    seen = guess(tmp_path / "photos", {"data": {"classes": typed("[1, no, 1e3]")}})
    assert "24 files of 3 classes" in seen.why["data"]
    rows = [
        f"{name}/{number}.png,{name}" for name in ("1", "no") for number in range(8)
    ]
    table = tmp_path / "photos" / "table.csv"
    table.write_text("\n".join(["0,yes", *rows]), encoding="utf-8")
    named = {"file": typed("0"), "label": typed("yes")}
    assert guess(table, {"data": named}).options["data"]["label"] == "yes"


def test_epochs_are_guessed_for_a_number_of_steps(photos):
    """17 photos of 24 are trained on, two batches of 8 an epoch."""
    options = guess(photos).options
    assert (options["batch_size"], options["epochs"]) == (8, 150)
    for path in photos.rglob("*.png"):
        with Image.open(path) as image:
            image.convert("L").save(path)
    options = guess(photos).options
    assert (options["model"], options["batch_size"], options["epochs"]) == (
        "capsnet_small",
        4,
        100,
    )
    assert "preprocess" not in options  # drawings are not mirrored


def test_a_given_optimizer_goes_by_its_own_rate(photos):
    options, _ = over(guess(photos), {"optimizer": {"lr": 0.01}})
    assert (options["optimizer"]["name"], options["optimizer"]["lr"]) == ("AdamW", 0.01)
    assert "scheduler" not in options


def test_a_data_set_goes_by_its_name(photos):
    assert guess("Digits").options == {
        "data": {"name": "digits"},
        "run": str(Path("runs/digits")),
    }


def test_texts_are_data_too_and_few_make_many_steps(photos):
    for texts, batch in ((2, 4), (150, 4), (1_500, 32), (15_000, 128)):
        rows = ["good,yes\n", "bad,no\n"] * (texts // 2)
        Path("reviews.csv").write_text("text,label\n" + "".join(rows))
        data = {"name": "Text", "root": "reviews.csv"}
        best = {"keep": "best", "patience": 10}
        assert guess("reviews.csv").options == {
            "data": data,
            "batch_size": batch,
            **(best if texts > 1_000 else {}),
            "run": "runs/reviews",
        }


def test_pictures_with_masks_have_classes_of_pixels(photos):
    for name, new in (("cats", "images"), ("dogs", "masks")):
        (photos / name).rename(photos / new)
    options = guess("photos").options
    assert options["data"] == {
        "name": "Masks",
        "root": "photos",
        "cut": 8,
        "channels": 3,
    }
    assert (options["loss"]["name"], options["batch_size"], options["epochs"]) == (
        "LengthCrossEntropy",
        4,
        200,
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "there is no folder nowhere"),
        (("Digit",), "did you mean Digits?"),
        (("--seed", "1", "Digit", "--epochs", "1"), "did you mean Digits?"),
        (("photos", "--data", "Digits"), "photos and --data both name the data"),
    ],
)
def test_what_is_not_there_is_one_clear_error(photos, capsys, words, message):
    assert status("train", *words) != 0
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


def test_all_that_is_in_the_way_is_said_at_once(photos, capsys):
    for name in ("birds", "fish"):
        (photos / name).mkdir()
    assert status("train", "photos") != 0
    output = capsys.readouterr().err
    assert (
        "class folder photos/birds holds no images; class folder photos/fish holds no "
        "images" in output
    )
    assert not Path("runs").exists()


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images of which a tenth of those to train on is enough to choose an epoch by."""
    for name in ("even", "odd"):
        (tmp_path / "many" / name).mkdir(parents=True)
        for place in range(230):
            image = Image.new("L", (8, 8), place)
            image.save(tmp_path / "many" / name / f"{place}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "many"


def test_the_epoch_that_is_best_on_validation_images_is_kept(many: Path) -> None:
    """Validation was 73 % right at epoch 16 and 53 % at the last, which was kept."""
    options, lines = over(guess(many), {})
    assert options["keep"] == "best"
    assert options["patience"] >= options["epochs"] // 3
    assert any(line.startswith("guessed: keep best") for line in lines)
    assert any(line.startswith("guessed: patience ") for line in lines)
    options, lines = over(guess(many), {"keep": "last", "patience": None})
    assert (options["keep"], options["patience"]) == ("last", None)
    assert not any("keep" in line or "patience" in line for line in lines)


def test_a_choice_that_few_validation_images_would_make_is_not_made(
    many: Path, photos: Path
) -> None:
    assert "keep" not in guess(photos).options
    without = guess(many, {"data": {"validation": 0}})
    assert "keep" not in without.options
    assert (
        "patience" not in guess("Digits").options
    )  # data sets with a name keep theirs
