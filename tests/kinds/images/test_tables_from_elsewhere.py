"""Tables of images that other programs and systems wrote."""

from pathlib import Path

import pytest
from PIL import Image

from torchcaps_lab.data import ImageTable

PICTURES = 16


def write_pictures(folder: Path, name: str = "{}.png") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(PICTURES):
        picture = Image.new("RGB", (9, 8), (200 * (number % 2), 10 * number, 7))
        picture.save(folder / name.format(number))


def write_table(root: Path, first: str, row: str, encoding: str = "utf-8") -> Path:
    """A table with a row for each picture, of two labels in turn."""
    labels = ["Kätzchen", "Hündin"]
    rows = [row.format(number, labels[number % 2]) for number in range(PICTURES)]
    table = root / "labels.csv"
    table.write_text("\n".join([*([first] if first else []), *rows]), encoding=encoding)
    return table


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_names_of_classes_are_read_in_any_encoding(
    tmp_path: Path, encoding: str
) -> None:
    write_pictures(tmp_path)
    table = write_table(tmp_path, "file_name,label", "{}.png,{}", encoding)
    assert ImageTable(table).classes == ("Hündin", "Kätzchen")


@pytest.mark.parametrize("row", ["{}.png,{}", "{},{}"])
def test_a_first_line_that_is_an_example_is_no_header(tmp_path: Path, row: str) -> None:
    """Its image would be lost, without a word."""
    write_pictures(tmp_path)
    table = write_table(tmp_path, "", row)
    file, label = row.format(0, "Kätzchen").split(",")
    with pytest.raises(ValueError, match="must name its columns"):
        ImageTable(table, file=file, label=label)


def test_the_table_of_hugging_face_may_have_objects_in_lines(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_pictures(tmp_path / part)
        lines = [
            f'{{"file_name": "{number}.png", "label": "{"ab"[number % 2]}"}}'
            for number in range(PICTURES)
        ]
        (tmp_path / part / "metadata.jsonl").write_text("\n".join(lines))
    data = ImageTable(tmp_path)
    assert data.classes == ("a", "b")
    assert len(data.test) == PICTURES


def test_a_column_may_have_the_name_of_an_image(tmp_path: Path) -> None:
    write_pictures(tmp_path, "image{}.png")
    Image.new("RGB", (9, 8)).save(tmp_path / "image.png")
    table = write_table(tmp_path, "image,label", "image{}.png,{}")
    assert len(ImageTable(table, file="image").classes) == 2


def test_upper_and_lower_case_mean_the_same_image(tmp_path: Path) -> None:
    """As on the systems where many tables are written."""
    write_pictures(tmp_path / "Img", "{}.png")
    table = write_table(tmp_path, "file_name,label", r"img\{}.PNG,{}")
    assert counted(ImageTable(table)) == PICTURES


def test_case_decides_where_both_are_there(tmp_path: Path) -> None:
    write_pictures(tmp_path, "{}.png")
    write_pictures(tmp_path, "{}.PNG")
    table = write_table(tmp_path, "file_name,label", "{}.PNG,{}")
    names = [entry.name for part in parts(ImageTable(table)) for entry in part]
    assert len(names) == PICTURES
    assert {Path(name).suffix for name in names} == {".PNG"}


def test_an_image_is_not_taken_for_another_of_its_name(tmp_path: Path) -> None:
    """cats/0.png is not there: its label would go to dogs/0.png."""
    write_pictures(tmp_path / "dogs")
    write_pictures(tmp_path / "cats")
    (tmp_path / "cats" / "0.png").unlink()
    rows = ["file_name,label"]
    for label in ("cats", "dogs"):
        rows += [f"{label}/{number}.png,{label}" for number in range(PICTURES)]
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    data = ImageTable(tmp_path / "labels.csv")
    for part in parts(data):
        assert all(entry.name.split("/")[0] == entry.category for entry in part)
    assert data.manifest().left_out["labels.csv, row 1"] == "its image is not there"


def test_two_names_for_one_image_mean_neither(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    rows = [f"x/{number}.png,{'even' * (number % 2)}odd" for number in range(PICTURES)]
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["file_name,label", *rows, "y/3.png,even"]))
    data = ImageTable(table)
    assert counted(data) == PICTURES - 1
    assert "labels.csv, row 4" in data.manifest().left_out


def parts(data: ImageTable) -> list[tuple]:
    return [*data.manifest().parts.values()]


def counted(data: ImageTable) -> int:
    return sum(map(len, parts(data)))
