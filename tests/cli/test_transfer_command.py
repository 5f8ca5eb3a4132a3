"""``torchcaps transfer``."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from torchcaps import create_model
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli import main
from torchcaps_lab.cli.transferring import transferred
from torchcaps_lab.data import Digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two images, and saved networks whose decoders are told different things."""
    folder = tmp_path_factory.mktemp("transfer")
    torch.manual_seed(0)
    for told in ("pose_and_class", "pose", "masked"):
        create_model("capsnet_digits", decoder_input=told).save_pretrained(
            folder / told, classes=list("abcdefghij")
        )
    create_model("capsnet_digits", decoder_hidden=None).save_pretrained(folder / "none")
    for name, image in zip(
        ("content", "style"), Digits().test.inputs[[3, 40]], strict=True
    ):
        Image.fromarray(image[0].numpy()).save(folder / f"{name}.png")
    return folder


def transfer(folder: Path, told: str, *more: str) -> int:
    files = [str(folder / f"{name}.png") for name in ("content", "style")]
    return main(
        [
            "transfer",
            *files,
            "--run",
            str(folder / told),
            "--out",
            str(folder / "out.png"),
            *more,
        ]
    )


def test_picture_and_words(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        transfer(folder, "pose_and_class", "--steps", "4", "--content_class", "d") == 0
    )
    output = capsys.readouterr()
    assert output.out.startswith("d of ")
    assert output.out.strip().endswith("out.png")
    assert not output.err
    with Image.open(folder / "out.png") as picture:
        assert picture.width > 3 * picture.height  # seven images in a row


def test_json_tells_what_was_measured(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "transfer",
                str(folder / "content.png"),
                str(folder / "style.png"),
                "--json",
                "--run",
                str(folder / "pose_and_class"),
                "--out",
                str(folder / "out.png"),
            ]
        )
        == 0
    )
    output = json.loads(capsys.readouterr().out)
    assert set(output["attributes"]) == {"content", "again", "transferred", "style"}
    assert set(output["attributes"]["style"]) == {
        "slant",
        "thickness",
        "aspect",
        "size",
    }


def test_the_way_begins_and_ends_where_it_shall(folder: Path) -> None:
    classifier = Classifier.open(folder / "pose_and_class")
    pictures = torch.stack(
        [classifier.pixels(folder / f"{name}.png") for name in ("content", "style")]
    )
    drawn, labels = transferred(classifier, pictures, "d", 3)
    assert drawn.shape == (4, 1, 8, 8)
    assert labels[0] == 3
    network = classifier.network
    with torch.no_grad():
        capsules = network.encode(pictures)
        expected = network.decode(
            capsules._replace(pose=capsules.pose.clone()), torch.tensor(labels)
        )
    torch.testing.assert_close(drawn[0], expected[0])
    back, _ = transferred(classifier, pictures[[0, 0]], None, 2)
    torch.testing.assert_close(back[1], back[0])
    torch.testing.assert_close(back[2], back[0])


def test_networks_whose_classes_share_no_poses(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transfer(folder, "masked") == 0
    assert (
        "each class of this network has its own pose dimensions"
        in capsys.readouterr().err
    )
    assert transfer(folder, "pose") == 1
    assert "it would draw the style image again" in capsys.readouterr().err
    assert transfer(folder, "none") == 1
    assert "this CapsNet has no decoder" in capsys.readouterr().err


def test_a_class_that_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transfer(folder, "pose_and_class", "--content_class", "z") == 1
    message = "--content_class must be one of a, b, c"
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "transfer",
                "nothing.png",
                "nothing.png",
                "--run",
                str(folder / "pose_and_class"),
            ]
        )
        == 1
    )
    assert "nothing.png" in capsys.readouterr().err
