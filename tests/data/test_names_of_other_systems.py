"""Names that another system writes otherwise mean the same file or class: composed
letters, blanks, escapes, backslashes.
"""

import json
from pathlib import Path
from unicodedata import normalize

import pytest
from PIL import Image

from torchcaps_lab.data import ImageFolder, ImageTable
from torchcaps_lab.data.classes import places_of
from torchcaps_lab.kinds.scenes.noted import named_below
from torchcaps_lab.kinds.scenes.reader import SceneReader
from torchcaps_lab.look import Place

TWO_CHARACTERS = {"NFC": "NFD", "NFD": "NFC"}


def write_image(path: Path, shade: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), (shade, 200 - shade, 90)).save(path)


@pytest.mark.parametrize("form", TWO_CHARACTERS)
def test_classes_are_matched_however_their_letters_are_composed(form: str) -> None:
    """They look the same: "Äpfel is none of the classes Äpfel" was the error."""
    names, classes = ("Äpfel",), ("Birnen", "Äpfel")
    other = [normalize(TWO_CHARACTERS[form], name) for name in classes]
    assert places_of([normalize(form, names[0])], other, "the test images") == [1]


def test_two_classes_that_differ_in_this_alone_stay_two() -> None:
    classes = [normalize("NFC", "ä"), normalize("NFD", "ä")]
    assert places_of(classes, classes, "here") == [0, 1]


@pytest.mark.parametrize("form", TWO_CHARACTERS)
def test_splits_whose_folders_are_composed_otherwise(tmp_path: Path, form: str) -> None:
    for part, of_part in (("train", form), ("test", TWO_CHARACTERS[form])):
        for number in range(4):
            for name in ("Äpfel", "Birnen"):
                folder = tmp_path / part / normalize(of_part, name)
                shade = 50 * number + len(name + part)
                write_image(folder / f"{number}.png", shade)
    data = ImageFolder(tmp_path)
    assert data.classes == tuple(sorted(["Birnen", normalize(form, "Äpfel")]))
    assert sorted(data.test.labels.tolist()) == [0] * 4 + [1] * 4


@pytest.mark.parametrize("form", TWO_CHARACTERS)
def test_a_table_names_images_in_either_form(tmp_path: Path, form: str) -> None:
    rows = ["file,label"]
    for number in range(8):
        name = f"Äpfel {number}.png"
        write_image(tmp_path / normalize(form, name), 20 * number)
        rows.append(f"{normalize(TWO_CHARACTERS[form], name)},{'ab'[number % 2]}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    data = ImageTable(tmp_path / "labels.csv", file="file", label="label")
    assert not [note for note in data.notes() if "not there" in note]


@pytest.mark.parametrize("name", ["in/Ä.png", "in\\Ä.png"])
@pytest.mark.parametrize("form", TWO_CHARACTERS)
def test_a_name_below_a_folder(tmp_path: Path, name: str, form: str) -> None:
    written = tmp_path / "in" / normalize(form, "Ä.png")
    write_image(written)
    other = normalize(TWO_CHARACTERS[form], name)
    assert named_below(tmp_path, other, "the list") == written
    with pytest.raises(ValueError, match="leads out"):
        named_below(tmp_path, "..\\" + other, "the list")


@pytest.mark.parametrize("name", ["Foto ü.png", "a b.png", "a&b.png", 'a"b.png'])
def test_annotations_are_recognised_by_any_name(tmp_path: Path, name: str) -> None:
    """JSON writes ``ü`` as an escape and XML ``&``; blanks ended a name."""
    coco, voc = tmp_path / "coco", tmp_path / "voc"
    for folder in (coco, voc):
        write_image(folder / "images" / name)
    image = {"id": 1, "file_name": name, "width": 20, "height": 16}
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}
    note = {
        "images": [image],
        "annotations": [box],
        "categories": [{"id": 1, "name": "disc"}],
    }
    (coco / "instances.json").write_text(json.dumps(note))
    corners = "<xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax>"
    thing = f"<object><name>disc</name><bndbox>{corners}</bndbox></object>"
    escaped = name.replace("&", "&amp;")
    (voc / "labels").mkdir()
    (voc / "labels" / "1.xml").write_text(
        f"<annotation><filename>{escaped}</filename>{thing}</annotation>"
    )
    for folder, annotations in ((coco, "instances.json"), (voc, "labels")):
        guess = SceneReader.sees(Place(folder), {})
        assert guess is not None
        assert guess.options["data"]["root"] == str(folder / "images")
        assert guess.options["data"]["annotations"] == str(folder / annotations)
