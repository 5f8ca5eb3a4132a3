"""Guesses are stated, and doubted: values of masks, the range of pixels, blank
pictures, classes and their files.
"""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import torchcaps as tc
from tests.kinds.images.folders import make_root
from tests.runs import status
from torchcaps_lab.card import Card
from torchcaps_lab.classifier import Classifier
from torchcaps_lab.cli.strange import _errors_of, examine_strange
from torchcaps_lab.data import ImageFolder, Masks, Preprocess
from torchcaps_lab.kinds.images.check import check_folder
from torchcaps_lab.kinds.none_of_these.strangers import Strangers
from torchcaps_lab.kinds.pixels.doubts import Mask, check_drawn, count_values
from torchcaps_lab.options.guess import guess
from torchcaps_lab.tasks import Classification


def disc(size: int, value: int, place: int, scale: int = 1) -> Image.Image:
    image = Image.new("L", (size * scale,) * 2, 0)
    corner = (3 + place % 4) * scale
    ImageDraw.Draw(image).ellipse(
        (corner, corner, corner + 16 * scale, corner + 20 * scale), fill=value
    )
    return image


def save_pairs(
    root: Path,
    suffix: str = "png",
    scale: int = 1,
    values: tuple[int, ...] = (255,),
    count: int = 6,
) -> Path:
    for folder in ("images", "masks"):
        (root / folder).mkdir(exist_ok=True)
    for number in range(count):
        disc(32, 90, number).save(root / f"images/{number}.png")
        mask = disc(32, values[number % len(values)], number, scale)
        mask.resize((32, 32), Image.Resampling.BILINEAR).save(
            root / f"masks/{number}.{suffix}"
        )
    return root


@pytest.mark.parametrize(
    ("suffix", "scale", "why"),
    [("jpg", 1, "JPEG files do not"), ("png", 4, "edges are smooth")],
)
def test_masks_whose_values_were_changed_are_refused_and_can_be_repaired(
    tmp_path: Path, suffix: str, scale: int, why: str
) -> None:
    root = save_pairs(tmp_path, suffix, scale)
    with pytest.raises(
        ValueError,
        match=rf"look as if 2 were drawn, \[0, 255\], and {why}.*masks/0.*nearest true",
    ):
        _ = Masks(root).train
    data = Masks(root, values=(0, 255), nearest=True)
    assert data.classes == ("0", "255")
    whole = torch.from_numpy(np.array(disc(32, 1, 0)))
    assert (
        data.test.labels[0] == whole
    ).float().mean() > 0.95  # pixels at the edge may fall on either side
    assert any(
        "% of the pixels of masks became the nearest of [0, 255]" in note
        for note in data.notes()
    )
    with pytest.raises(
        ValueError, match=r"no class: values are .* --data.nearest true"
    ):
        _ = Masks(root, values=(0, 255)).train


def save_boxes(
    root: Path,
    shift: int = 0,
    smooth: bool = False,
    suffix: str = "png",
    most: int = 255,
) -> Path:
    """Boxes along rows and columns; ``shift`` numbers the colours of every other mask
    in another order.
    """
    for folder in ("images", "masks"):
        (root / folder).mkdir(exist_ok=True)
    for number in range(6):
        disc(32, 90, number).save(root / f"images/{number}.png")
        mask = Image.new("L", (32, 32))
        ImageDraw.Draw(mask).rectangle((5 + number, 4, 20, 25 - number), fill=most)
        if smooth:
            mask = mask.resize((64, 64), Image.Resampling.BILINEAR).resize(
                (32, 32), Image.Resampling.BILINEAR
            )
        if shift:
            order = [0, 1] if number % 2 else [shift, 0]
            mask = Image.fromarray(
                np.array(order, np.uint8)[np.array(mask) // 255], "P"
            )
            shades = {value: [90 * place, 0, 0] for place, value in enumerate(order)}
            mask.putpalette(
                [level for value in range(3) for level in shades.get(value, [9, 9, 9])]
            )
        mask.save(root / f"masks/{number}.{suffix}")
    return root


def test_smooth_edges_of_boxes_are_doubted(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"look as if 2 were drawn, \[0, 255\], and edges are smooth"
    ):
        _ = Masks(save_boxes(tmp_path, smooth=True)).train


@pytest.mark.parametrize("shift", [1, 2])
def test_numbers_of_colours_that_mean_others_in_other_masks_are_refused(
    tmp_path: Path, shift: int
) -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"value 0 of masks is the colour \(90, 0, 0\) in .*0.png and \(0, 0, "
            r"0\) in"
        ),
    ):
        _ = Masks(save_boxes(tmp_path, shift=shift)).train
    assert len(Masks(tmp_path, values=(0, 1, 2)).classes) == 3


def test_values_that_jpeg_cannot_keep_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"too near for JPEG files, .* --data.values '\[0, 1.*'"
    ):
        _ = Masks(save_boxes(tmp_path, suffix="jpg", most=1)).train


def test_drawn_masks_of_many_classes_are_not_doubted(tmp_path: Path) -> None:
    data = Masks(save_pairs(tmp_path, values=(10, 20, 30, 40, 50, 255)))
    assert len(data.classes) == 7
    assert data.notes()[0].startswith("classes are the values of the masks: 0 (")


def test_values_and_masks_that_may_mean_something_else_are_noted(
    tmp_path: Path,
) -> None:
    notes = "\n".join(Masks(save_pairs(tmp_path, values=(1, 255))).notes())
    assert (
        "the value 255 of masks is a class here, but often means no class: "
        "--data.ignore 255" in notes
    )
    inverted = Image.eval(disc(32, 255, 2), lambda value: 255 - value)
    save_pairs(tmp_path)
    inverted.save(tmp_path / "masks/2.png")
    assert any(
        "border has mostly the value 255" in note and "2.png" in note
        for note in Masks(tmp_path).notes()
    )


def save_deep(
    root: Path, most: int, kind: type = np.uint16, suffix: str = "png", count: int = 8
) -> Path:
    """Pictures of two classes whose pixels go from 0 to ``most``."""
    for number in range(count):
        folder = root / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.linspace(0, most, 24 * 24).reshape(24, 24).astype(kind)
        pixels = pixels[::-1] if number % 2 else pixels
        pixels[0, 0] = most * number // count
        Image.fromarray(np.ascontiguousarray(pixels)).save(
            folder / f"{number}.{suffix}"
        )
    return root


def test_twelve_bits_in_sixteen_are_spread_over_all_grey_levels(tmp_path: Path) -> None:
    root = save_deep(tmp_path / "scans", 4095)
    plain = ImageFolder(root)
    assert len(plain.train.inputs.unique()) <= 17
    assert any(
        "no pixel of the training images is brighter than 16 of 255" in note
        for note in plain.notes()
    )
    data = ImageFolder(root, range=(0, 4095))
    assert len(data.train.inputs.unique()) > 200
    card = Card.of_training(data, Preprocess(), Classification())
    assert card.saved()["reader"]["range"] == [0, 4095]
    assert plain.fingerprint() != data.fingerprint()
    actual = guess(root)
    assert actual.options["data"]["range"] == [0, 4095]
    assert actual.why["data.range"].startswith("0 to 4,095, the values of pixels")
    report = check_folder(root)
    assert report.range == (0, 4095)
    assert any(
        "are 0 to 4,095: --data.range '[0, 4095]'" in note for note in report.notes
    )
    assert "range" not in guess(save_deep(tmp_path / "full", 65535)).options["data"]
    assert check_folder(tmp_path / "full").range is None
    for file in next(root.rglob("*.png")).parent.iterdir():
        Image.new("L", (16, 16), 9).save(file)
    mixed = guess(root)
    assert "range" not in mixed.options["data"]
    assert "images that were looked at have pixels of more" in mixed.why["data.range"]


def test_a_run_reads_new_pictures_in_its_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    root = save_deep(Path("scans"), 4095)
    tiny = (
        "--model",
        "capsnet_digits",
        "--epochs",
        "1",
        "--report",
        "false",
        "--trainer.accelerator",
        "cpu",
    )
    assert status("train", "scans", *tiny) == 0
    assert "guessed: data.range 0 to 4,095" in capsys.readouterr().out
    import torchcaps as tc

    classifier = tc.Classifier.open("runs/scans")
    file = next(root.rglob("*.png"))
    seen = classifier.pixels(file)
    torch.testing.assert_close(
        seen, classifier.pixels(np.array(Image.open(file))), atol=0.02, rtol=0
    )
    assert float(seen.max()) > 0.98
    assert (
        status(
            "evaluate",
            "runs/scans",
            "--data",
            "ImageFolder",
            "--data.root",
            "scans",
            "--split",
            "all",
        )
        == 0
    )


@pytest.mark.parametrize("most", [255.0, 900.0])
def test_floating_point_of_other_ranges_is_an_error_that_names_the_option(
    tmp_path: Path, most: float
) -> None:
    root = save_deep(tmp_path / "floats", int(most), np.float32, "tif")
    with pytest.raises(
        ValueError,
        match=r"floating-point pixels must lie in \[0, 1\], got 0 to .*: range says",
    ):
        _ = ImageFolder(root).train
    assert guess(root).options["data"]["range"] == [0, most]
    assert len(ImageFolder(root, range=(0, most)).train.inputs.unique()) > 200
    assert check_folder(root).problems == ()


@pytest.mark.parametrize("levels", [(5, 5), (9, 1), (0, float("nan"))])
def test_a_range_goes_upwards(tmp_path: Path, levels: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="range must be"):
        ImageFolder(make_root(tmp_path, 2), range=levels)


def test_black_drawings_on_transparent_ground_are_noted(tmp_path: Path) -> None:
    make_root(tmp_path, 3)
    drawing = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    drawing.paste((0, 0, 0, 255), (2, 2, 5, 5))
    drawing.save(tmp_path / "a" / "drawn.png")
    assert any(
        "1 image all black or all white, where transparent parts show black: "
        "a/drawn.png" in note
        for note in check_folder(tmp_path).notes
    )
    notes = ImageFolder(tmp_path, test=0.01, validation=0).notes()
    assert any(
        "all black or all white as read" in note and "a/drawn.png" in note
        for note in notes
    )


def test_classes_that_go_by_their_files_are_noted(tmp_path: Path) -> None:
    make_root(tmp_path, 6)
    for path in sorted((tmp_path / "b").iterdir()):
        Image.open(path).save(path.with_suffix(".bmp"))
        path.unlink()
    notes = check_folder(tmp_path).notes
    assert any(
        "all 6 images of b have the format BMP, and no others have" in note
        for note in notes
    )
    assert not any("have the size" in note for note in notes)


def test_classes_alike_in_name_are_noted(tmp_path: Path) -> None:
    make_root(tmp_path, 3, classes=("Cat", "cat ", "dog"))
    line = (
        "classes whose names differ in case, blanks or composition alone: 'Cat', 'cat ': are "
        "they one?"
    )
    assert line in check_folder(tmp_path).notes
    assert line in ImageFolder(tmp_path).notes()


def test_guesses_about_colours_and_shapes_are_stated(tmp_path: Path) -> None:
    make_root(tmp_path, 5)
    Image.new("RGB", (30, 60), "gold").save(tmp_path / "a/long.png")
    why = guess(tmp_path).why
    assert why["data.channels"] == "3, colour: 1 of 11 that were looked at"
    assert "up to 2.0 times as long as wide, padded with black" in why["data.size"]


def test_check_prints_the_command_with_the_range(tmp_path: Path, capsys) -> None:
    save_deep(tmp_path / "scans", 1023)
    assert status("check", str(tmp_path / "scans")) == 0
    assert "--data.range '[0, 1023]'" in capsys.readouterr().out.splitlines()[-1]
    assert status("check", str(tmp_path / "scans"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["range"] == [0, 1023]


def test_strangers_are_told_whatever_the_range_of_pixels(tmp_path: Path) -> None:
    """Images of a data set are in [0, 1], whatever the range of the files."""
    draw = np.random.default_rng(0)
    for name in ("a/0", "a/1", "a/2", "b/0", "b/1", "b/2"):
        pixels = draw.integers(1000, 4096, (8, 8)).astype(np.uint16)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    data = ImageFolder(tmp_path, range=(0, 4095), validation=0)
    network = tc.create_model("capsnet_digits", classes=2)
    classifier = Classifier(network, classes=data.classes)
    classifier.reader = replace(classifier.reader, levels=(0.0, 4095.0))
    classifier.doubts["strangers"] = Strangers(1.0, 0.05, (0.0, 1.0), 20)
    files = [str(tmp_path / file) for file in data.test.files]
    of_files = [answer.error for _, answer in classifier.stream(files)]
    measured = examine_strange(classifier, data.test, str(tmp_path), 64)["strangers"]
    assert measured["known_images"] == len(files)
    of_data = _errors_of(classifier, data.test, 64)
    torch.testing.assert_close(of_data, torch.tensor(of_files))
    drawn = BytesIO()
    Image.new("L", (8, 8), 255).save(drawn, "PNG")
    assert classifier.reader.uploaded(drawn.getvalue(), "drawn").max() == 1


def test_two_values_at_least_are_advised_for_smooth_masks() -> None:
    """With the nearest of one value, all pixels have that."""
    values = torch.zeros(40, 40, dtype=torch.uint8)
    values[10:16, 10:16] = 7 * torch.arange(1, 37).view(6, 6)
    mask = Mask(Path("a.png"), values)
    with pytest.raises(ValueError, match=r"--data.values '\[0, 252\]'"):
        check_drawn([mask], count_values([mask]))
