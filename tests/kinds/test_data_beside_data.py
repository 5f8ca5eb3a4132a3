"""Folders and files that hold more, or something else, than the data of one kind."""

import pickle
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.kinds.shapes import COLOURS, picture
from tests.runs import status
from torchcaps.spec import fit
from torchcaps_lab.data import DataSet
from torchcaps_lab.data.files import list_folder
from torchcaps_lab.kinds.images.reader import ImageReader
from torchcaps_lab.kinds.images.sets.files import ImageListing
from torchcaps_lab.options.guess import guess

WORDS = ("storm", "flood", "fire", "help", "sun", "walk", "happy", "cat")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def photos(folder: str, count: int = 12) -> None:
    for row in range(count):
        picture(Path(folder, f"{row}.png"), [*COLOURS][row % 2], row)


def data_at(path: str) -> Any:
    """The data set that a training on a path would read."""
    return fit(DataSet, guess(path).options["data"], "data").make()


def masks(name: Callable[[int], str], count: int = 12) -> None:
    for row in range(count):
        Path(name(row)).parent.mkdir(parents=True, exist_ok=True)
        values = np.zeros((24, 24), np.uint8)
        values[row : row + 9, 4:16] = 1
        Image.fromarray(values).save(name(row))


def test_masks_in_a_folder_of_another_name_are_asked_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pictures and masks were taken for two classes."""
    photos("cells/img")
    masks(lambda row: f"cells/labels/{row}.png")
    with pytest.raises(ValueError, match=r"--data\.class_folders outer") as error:
        guess("cells")
    command = re.search(r"torchcaps (train [^;]*)", str(error.value))
    assert command is not None
    words = shlex.split(command[1])
    assert status("check", *words[1:]) == 0
    assert guess("cells", {"data": {"images": "img", "masks": "labels"}}).options[
        "data"
    ]["name"] == ("Masks")
    assert guess("cells", {"data": {"class_folders": "outer"}})


def test_classes_of_files_of_the_same_names_are_classes() -> None:
    photos("two/cat")
    photos("two/dog")
    assert guess("two").options["data"]["name"] == "ImageFolder"


def test_masks_beside_their_pictures_are_no_pictures() -> None:
    photos("cells")
    masks(lambda row: f"cells/{row}_mask.png")
    with pytest.raises(ValueError, match=r"0_mask.*'images'.*'masks'"):
        guess("cells")


def test_a_folder_for_each_picture_and_its_mask_is_no_class() -> None:
    for row in range(12):
        picture(Path(f"cells/case{row}/image.png"), [*COLOURS][row % 2], row)
    masks("cells/case{}/mask.png".format)
    with pytest.raises(ValueError, match=r"case0/mask.*'images'.*'masks'"):
        guess("cells")


@pytest.mark.parametrize(
    ("pictures", "marked", "named"),
    [
        ("{}", "{}_labels/{{}}_L.png", "--data.images train --data.masks train_labels"),
        ("{}/images", "{}/masks/{{}}.png", "--data.images train/images"),
        ("{}/gold", "{}/gold/{{}}_mask.png", "0_mask"),
        ("{}/a", "{}/gt/{{}}.png", "--data.images train/a --data.masks train/gt"),
        ("a/{}", "notes/{}/{{}}.png", "--data.images a/train --data.masks notes/train"),
        ("images/{}", "masks/{}/{{}}.png", "images/train --data.masks masks/train"),
    ],
)
def test_masks_in_the_folders_of_splits_are_no_pictures(
    pictures: str, marked: str, named: str
) -> None:
    """Their folders were trained on as classes, or they as pictures of one."""
    for part, count in (("train", 12), ("val", 6)):
        photos(f"scans/{pictures.format(part)}", count)
        if "/" in pictures:
            photos(f"scans/{part}/navy", 3)
        masks(f"scans/{marked.format(part)}".format, count)
    with pytest.raises(ValueError, match=named):
        guess("scans")


def test_masks_may_be_called_so() -> None:
    photos("cells/images")
    masks("cells/masks/{}_mask.png".format)
    assert data_at("cells").classes == ("0", "1")


def test_a_table_of_sounds_says_where_sounds_are_read_from() -> None:
    Path("clips").mkdir()
    rows = [f"clips/{row}.wav,{'ab'[row % 2]}" for row in range(12)]
    for row in range(12):
        Path(f"clips/{row}.wav").write_bytes(b"RIFF")
    Path("sounds.csv").write_text("\n".join(["file,label", *rows]))
    Path("set/meta").mkdir(parents=True)
    Path("clips").rename("set/clips")
    Path("set/meta/sounds.csv").write_text(Path("sounds.csv").read_text())
    Path("set/meta/broken.csv").write_text("a,b\n1\n2\n")
    for path in ("sounds.csv", ".", "set"):
        with pytest.raises(ValueError, match=r"'file'.*names sounds.*LABEL/0\.wav"):
            guess(path)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("x.npz", r"load these arrays in Python.*torchcaps\.train\(inputs, labels\)"),
        ("x.pkl", "may execute code"),
    ],
)
def test_arrays_and_pickles_are_read_in_python(name: str, advice: str) -> None:
    if name.endswith("npz"):
        np.savez(name, x=np.zeros((4, 8, 8)))
    else:
        Path(name).write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(ValueError, match=advice):
        guess(name)


def test_the_folder_of_a_competition_of_pictures() -> None:
    photos("dogs/train", 12)
    picture(Path("dogs/test/unknown.png"), "gold", 0)
    rows = [f"{row},{'ab'[row % 2]}" for row in range(12)]
    Path("dogs/train.csv").write_text("\n".join(["id,breed", *rows]))
    Path("dogs/test.csv").write_text("id\nunknown\n")
    Path("dogs/sample_submission.csv").write_text("id,breed\nunknown,a\n")
    seen = guess("dogs")
    data = seen.options["data"]
    assert data["root"] == str(Path("dogs/train.csv"))
    assert data["label"] == "breed"
    assert "test.csv" in seen.why["tables"]
    # What a network is asked about may stand in a table alone.
    reader = ImageReader((3, 8, 8))
    assert [*reader.inputs_of("dogs/test.csv")] == [Path("dogs/test/unknown.png")]


def test_a_larger_table_to_test_on_lacks_the_labels() -> None:
    """The ages in it were asked about."""
    for part, count, more in (("train", 12, ",breed"), ("test", 20, "")):
        photos(f"dogs/{part}", count)
        rows = [f"{part}/{row}.png,{row + 0.5}" for row in range(count)]
        if more:
            rows = [f"{row},{'ab'[number % 2]}" for number, row in enumerate(rows)]
        Path(f"dogs/{part}.csv").write_text("\n".join([f"id,age{more}", *rows]))
    for given in ({}, {"data": {"label": "breed"}}):
        data = guess("dogs", given).options["data"]
        assert data["root"] == str(Path("dogs/train.csv"))
        assert data["label"] == "breed"


@pytest.mark.parametrize("between", [" ", ", "])
def test_pixels_in_a_cell_are_no_text(between: str) -> None:
    """Faces were trained on as texts of numbers."""
    pixels = [between.join(map(str, range(row, row + 64))) for row in range(40)]
    rows = [f'{row % 3},"{cell}"' for row, cell in enumerate(pixels)]
    Path("faces.csv").write_text("\n".join(["emotion,pixels", *rows]))
    with pytest.raises(ValueError, match=r"'pixels'.*torchcaps\.train"):
        guess("faces.csv")


def test_the_folder_of_a_competition_of_texts() -> None:
    Path("tweets").mkdir()
    rows = [f"{row},{' '.join([*WORDS, str(row)])},{row % 2}" for row in range(40)]
    Path("tweets/train.csv").write_text("\n".join(["id,text,target", *rows]))
    rows = [row.rpartition(",")[0] for row in rows]
    Path("tweets/test.csv").write_text("\n".join(["id,text", *rows]))
    Path("tweets/sample_submission.csv").write_text("id,target\n0,0\n1,0\n")
    seen = guess("tweets")
    assert seen.options["data"]["root"] == str(Path("tweets/train.csv"))
    assert "without labels: test.csv" in seen.why["data"]


def test_pictures_called_as_classes_or_series_make_no_table_of_images() -> None:
    """A few plots beside a table were trained on, with the labels of some of its rows."""
    for name in ("sad", "happy", "s0", "s1"):
        picture(Path(f"plots/{name}.png"), "gold", 0)
    rows = [f"{' '.join(WORDS)} {row},{('sad', 'happy')[row % 2]}" for row in range(24)]
    Path("texts.csv").write_text("\n".join(["text,label", *rows]))
    assert guess("texts.csv").options["data"]["name"] == "Text"
    rows = [
        f"s{row // 24},{row % 24},{row / 7:.2f},{row // 24 % 2}" for row in range(240)
    ]
    Path("series.csv").write_text("\n".join(["id,t,x,label", *rows]))
    assert guess("series.csv").options["data"]["name"] == "Series"


def test_a_table_with_other_classes_than_the_folders_is_asked_about() -> None:
    """The folders that an archive was unpacked to were trained on as classes."""
    photos("skin/part1")
    for row in range(12):
        picture(Path("skin/part2", f"{row + 12}.png"), [*COLOURS][row % 2], row)
    table = Path("skin/meta.csv")
    rows = [f"{row},{'ab'[row % 2]},{20 + row % 7}" for row in range(24)]
    table.write_text("\n".join(["image_id,dx,age", *rows]))
    with pytest.raises(ValueError, match=r"meta\.csv.*part1, part2.*dx, age"):
        guess("skin")
    by_table = guess(str(table), {"data": {"label": "dx"}}).options["data"]
    assert by_table["name"] == "ImageTable"
    by_folder = guess("skin", {"data": {"class_folders": "outer"}}).options["data"]
    assert by_folder["name"] == "ImageFolder"
    rows = [f"{row},{row // 12},{20 + row % 7}" for row in range(24)]
    table.write_text("\n".join(["image_id,part,age", *rows]))
    assert guess("skin").options["data"]["name"] == "ImageFolder"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("labels.xlsx", "save this"),
        ("labels.parquet", "save this"),
        ("all.zip", "unpack this"),
        ("annotations.xml", "boxes in .xml files .* CVAT"),
        ("labels.txt", "if this is a table"),  # Excel's "Unicode text"
    ],
)
def test_what_is_not_read_beside_loose_pictures_is_named(
    name: str, advice: str
) -> None:
    for folder in ("loose", "loose/pictures"):
        photos(folder)
        Path("loose", name).write_bytes(b"PK")
        with pytest.raises(ValueError, match=f"{name}: {advice}"):
            guess("loose")
        shutil.rmtree("loose")


def test_pictures_without_labels_are_no_test_of_a_network() -> None:
    photos("loose")
    with pytest.raises(ValueError, match="use torchcaps predict"):
        list_folder(ImageListing(("gold", "navy"), root=Path("loose")))


@pytest.mark.parametrize("name", ["train.parquet", "data.arrow"])
def test_data_of_hugging_face_are_named_before_their_description(name: str) -> None:
    Path("hub").mkdir()
    Path("hub", "config.json").write_text("{}")
    Path("hub", name).write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=rf"{name}: .*--data Hub --data\.path"):
        guess("hub")


def test_rows_for_validation_are_tested_on_with_a_note() -> None:
    """They became the test without a word; of two tables none was read."""
    rows = [f"{' '.join(WORDS)} {row},{'ab'[row % 2]}" for row in range(40)]
    parts = [("train", "val")[row > 29] for row in range(40)]
    split = [f"{row},{part}" for row, part in zip(rows, parts, strict=True)]
    Path("one.csv").write_text("\n".join(["text,label,split", *split]))
    Path("two").mkdir()
    Path("two/train.csv").write_text("\n".join(["text,label", *rows[:30]]))
    Path("two/val.csv").write_text("\n".join(["text,label", *rows[30:]]))
    Path("two/README.txt").write_text("Only train.csv was read, without a word.")
    for path in ("one.csv", "two"):
        data = data_at(path)
        assert len(data.test) == 10
        assert any("are used as the test" in note for note in data.notes())


@pytest.mark.parametrize("inside", ["", "scans/"])
def test_a_table_of_patients_labels_the_pictures_in_their_folders(inside: str) -> None:
    """Patients were trained on as classes, or nothing was."""
    for row in range(36):
        picture(Path(f"clinic/{inside}P{row // 3:03}/{row}.png"), "gold", row)
    rows = [f"P{patient:03},{'ab'[patient % 2]}" for patient in range(13)]
    Path("clinic/info.csv").write_text("\n".join(["patient_id,diagnosis", *rows]))
    if not inside:
        with pytest.raises(ValueError, match=r"info\.csv --data\.label diagnosis"):
            guess("clinic")
    data = data_at("clinic/info.csv" if not inside else "clinic")
    labels = {item.name[-10:]: item.category for item in data.listed.items}
    patients = [int(name.split("/")[0][-3:]) for name in labels]
    assert len(patients) == 36
    assert [*labels.values()] == ["ab"[patient % 2] for patient in patients]
    tested = {Path(name).parent for name in data.test.files}
    assert len(data.test) == 3 * len(tested)
    assert any("row 13" in note for note in data.notes())


def test_sounds_of_any_usual_kind_are_read_and_others_are_named() -> None:
    """MP3 files were no kind of image."""
    soundfile = pytest.importorskip("soundfile")
    for row in range(8):
        folder = Path("songs", "ab"[row % 2])
        folder.mkdir(parents=True, exist_ok=True)
        wave = 0.3 * np.sin(0.1 * np.arange(9000) * (1 + row % 2))
        kind = ("mp3", "aiff")[row // 4]
        soundfile.write(folder / f"{row}.{kind}", wave, (8000, 16000)[row % 2])
    assert guess("songs").options["data"]["name"] == "Series"
    for path in Path("songs").rglob("*.*"):
        path.rename(path.with_suffix(".m4a"))
    with pytest.raises(ValueError, match=r"save this sound as \.wav"):
        guess("songs")


def test_class_folders_may_be_links() -> None:
    """They were refused with an empty message."""
    photos("disk/gold")
    photos("disk/navy")
    Path("links").mkdir()
    for name in ("gold", "navy"):
        Path("links", name).symlink_to(Path("disk", name).resolve())
    Path("links/gold/around").symlink_to(Path("links").resolve())
    data = data_at("links")
    assert len(data.listed.items) == 24


def test_frames_that_are_not_read_are_noted() -> None:
    """Only the check told of them."""
    photos("stacks/gold")
    photos("stacks/navy")
    frames = [Image.new("RGB", (24, 24), colour) for colour in COLOURS]
    frames[0].save("stacks/gold/deep.tif", save_all=True, append_images=frames[1:])
    (note,) = (note for note in data_at("stacks").notes() if "several frames" in note)
    assert "gold/deep.tif" in note


def test_a_table_of_pictures_for_each_split_is_read() -> None:
    """Only the first was."""
    photos("pets/img", 30)
    parts = {"train": range(18), "val": range(18, 24), "test": range(23, 30)}
    for part, numbers in parts.items():
        rows = [f"{row}.png,{'ab'[row % 2]}" for row in numbers]
        Path(f"pets/{part}.csv").write_text("\n".join(["file,label", *rows]))
    data = data_at("pets")
    counts = [len(part) for part in (data.train, data.validation, data.test)]
    assert counts == [18, 5, 7]
    assert any("has a row before: val.csv, row 6" in note for note in data.notes())


def test_boxes_in_the_folders_of_splits_are_all_read() -> None:
    """Of Pascal VOC, those of the first folder were: the test images."""
    for part, count in (("train", 8), ("valid", 4), ("test", 3)):
        photos(f"voc/{part}", count)
        for row in range(count):
            corners = ("xmin", 2), ("ymin", 3), ("xmax", 9), ("ymax", 12)
            box = "".join(f"<{side}>{at}</{side}>" for side, at in corners)
            Path(f"voc/{part}/{row}.xml").write_text(
                f"<annotation><filename>{row}.png</filename><object><name>{'ab'[row % 2]}"
                f"</name><bndbox>{box}</bndbox></object></annotation>"
            )
    data = data_at("voc")
    counts = [len(part) for part in (data.train, data.validation, data.test)]
    assert counts == [8, 4, 3]


def test_boxes_of_classes_without_names_are_asked_about() -> None:
    photos("yolo/train/images")
    Path("yolo/train/labels").mkdir()
    Path("yolo/train/labels/0.txt").write_text("1 0.5 0.5 0.2 0.4\n")
    with pytest.raises(ValueError, match=r"Write yolo/data\.yaml"):
        guess("yolo")


def test_numbers_in_files_are_no_texts() -> None:
    """Each was trained on as a text of words such as 0.25."""
    for row in range(12):
        path = Path("moves", "ab"[row % 2], f"{row}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(f"{step * row / 8} -1e-3" for step in range(20)))
    with pytest.raises(ValueError, match="holds a table for each series"):
        guess("moves")


def test_folders_of_folds_are_doubted_as_classes() -> None:
    for fold in range(1, 4):
        photos(f"cells/fold{fold}", 6)
    assert any("fold1, fold2, fold3" in note for note in data_at("cells").notes())
