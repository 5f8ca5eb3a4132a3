"""A split without examples of its own measures nothing new: every kind of data says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.kinds import shapes
from torchcaps_lab.cli import main
from torchcaps_lab.data import Entry, Manifest, MapStyle
from torchcaps_lab.data.manifest import repeated_lines


def yolo(root: Path) -> Path:
    """``data.yaml`` names the training images as ``val``, as many tutorials do."""
    scenes = shapes.yolo(root)
    text = (scenes / "data.yaml").read_text()
    (scenes / "data.yaml").write_text(text.replace("images/val", "images/train"))
    return scenes


def coco(root: Path) -> Path:
    """The images of the training under other names, with their own annotations."""
    scenes = shapes.coco(root)
    shutil.rmtree(scenes / "val2017")
    notes = scenes / "annotations"
    content = json.loads((notes / "instances_train2017.json").read_text())
    for image in content["images"]:
        source = scenes / "train2017" / image["file_name"]
        image["file_name"] = f"again-{image['file_name']}"
        (scenes / "val2017").mkdir(exist_ok=True)
        shutil.copy(source, scenes / "val2017" / image["file_name"])
    (notes / "instances_val2017.json").write_text(json.dumps(content))
    return scenes


def class_folders(root: Path) -> Path:
    for number in range(24):
        colour = [*shapes.COLOURS][number % 2]
        path = root / "photos" / "train" / colour / f"{number}.png"
        shapes.picture(path, colour, number, 40)
    shutil.copytree(root / "photos" / "train", root / "photos" / "test")
    return root / "photos"


def texts(root: Path) -> Path:
    shapes.text_folders(root / "split")
    (root / "split" / "reviews").rename(root / "split" / "train")
    shutil.copytree(root / "split" / "train", root / "split" / "test")
    return root / "split"


KINDS: tuple[tuple[Callable[[Path], Path], str], ...] = (
    (yolo, "images"),
    (coco, "images"),
    (class_folders, "images"),
    (texts, "texts"),
)


@pytest.mark.parametrize(
    ("make", "thing"),
    [
        *KINDS[2:],
        *(pytest.param(*kind, marks=pytest.mark.thorough) for kind in KINDS[:2]),
    ],
)
def test_check_and_train_say_that_the_test_is_the_training(
    make: Callable[[Path], Path],
    thing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = str(make(tmp_path))
    warning = f" test {thing} are also in the training or validation split, so "
    assert main(["check", place]) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if warning in line]
    assert line.startswith("PROBLEM: all of ")
    assert f"train on it: torchcaps train {place}" in printed  # it can be trained on
    quick = ["--epochs", "1", "--report", "false", "--run", str(tmp_path / "run")]
    assert main(["train", place, *quick, "--frozen_epochs", "0"]) == 0
    assert warning in capsys.readouterr().out


def test_masks_on_one_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twelve copies of one picture, so that the test has none of its own."""
    cells = shapes.masks(tmp_path)
    for file in (cells / "images").iterdir():
        shutil.copy(cells / "images" / "0.png", tmp_path / "same.png")
        (tmp_path / "same.png").replace(file)
    assert main(["check", str(cells)]) == 1
    assert "test images are also in the training" in capsys.readouterr().out


def test_arrays_that_are_tested_on_themselves() -> None:
    images, labels = torch.rand(8, 1, 8, 8), [0, 1] * 4
    pairs = list(zip(images, labels, strict=True))
    data = MapStyle(pairs, test_data=pairs, validation=0)
    (line,) = data.repeated()
    assert line.startswith("all of 8 test images are also in the training")
    assert line in data.notes()


def entries(*digests: str) -> list[Entry]:
    return [Entry(f"{digest}.png", "a", digest) for digest in digests]


@pytest.mark.parametrize(
    ("validation", "test", "starts"),
    [
        ("1", "45", ["all of 1 validation image is also in the training split"]),
        ("5", "12", ["all of 2 test images are also in the training or validation"]),
        ("56", "55", ["all of 2 test images are also in the training or validation"]),
        ("5", "14", []),  # one of two is a copy
        ("", "", []),
    ],
)
def test_only_whole_splits_count(validation: str, test: str, starts: list[str]) -> None:
    parts = {
        "train": entries(*"123"),
        "validation": entries(*validation),
        "test": entries(*test),
    }
    lines = repeated_lines(Manifest(("a",), parts))
    assert len(lines) == len(starts)
    assert all(map(str.startswith, lines, starts))
