"""No row of a table is lost without a word, whatever the table is of."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from PIL import Image

from torchcaps_lab.data import ImageTable, Series, Text
from torchcaps_lab.data.base import DataSet
from torchcaps_lab.data.tables import Table
from torchcaps_lab.kinds.images.sets.table import table_of_images
from torchcaps_lab.look import NoHeader, Place

ROWS = 40


class Kind(NamedTuple):
    """A kind of data that a table may be of.

    Args:
        header: the names of the columns.
        row: the cells of a row, as text with the place of its number and its label.
        read: makes the data set of a table.
    """

    header: str
    row: str
    read: Callable[[Path], DataSet]


KINDS = {
    "images": Kind(
        "file,label",
        "{number}.png,{label}",
        lambda path: ImageTable(path, file="file", label="label"),
    ),
    "texts": Kind("text,label", "a film {number},{label}", lambda path: Text(path)),
    "series": Kind(
        "series,label,height",
        "{series},{label},{number}.5",
        lambda path: Series(path),
    ),
}

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def lines(kind: Kind) -> list[str]:
    """The header and the rows of a table; four rows are of a series."""
    rows = [
        kind.row.format(number=number, series=number // 4, label="ab"[number // 4 % 2])
        for number in range(ROWS)
    ]
    return [kind.header, *rows]


def written(folder: Path, content: str, name: str = "all.csv") -> Path:
    """A table beside the images that it may name."""
    for number in range(ROWS):
        image = Image.new("L", (6, 6), 5 * number)
        image.save(folder / f"{number}.png")
    (folder / name).write_text(content)
    return folder / name


def examples(data: DataSet) -> int:
    return sum(len(part) for part in (data.train, data.validation, data.test))


@every_kind
def test_a_quote_that_is_not_closed_is_an_error(tmp_path: Path, kind: Kind) -> None:
    """It made one cell of all that follows: 30 of 40 rows were gone."""
    rows = lines(kind)
    rows[10] = rows[10].replace(",", ',"', 1)
    with pytest.raises(ValueError, match=r"all\.csv, after line 10: unexpected end"):
        kind.read(written(tmp_path, "\n".join(rows)))


@every_kind
def test_semicolons_as_other_programs_write_them(tmp_path: Path, kind: Kind) -> None:
    semicolons = written(tmp_path, "\n".join(lines(kind)).replace(",", ";"))
    commas = written(tmp_path, "\n".join(lines(kind)), "commas.csv")
    assert examples(kind.read(semicolons)) == examples(kind.read(commas))


@every_kind
def test_empty_cells_at_the_end_of_a_row_do_not_matter(
    tmp_path: Path, kind: Kind
) -> None:
    rows = lines(kind)
    whole = examples(kind.read(written(tmp_path, "\n".join(rows))))
    rows[7] += ",,"
    assert examples(kind.read(written(tmp_path, "\n".join(rows)))) == whole


@pytest.mark.parametrize("broken", ["2.png", "2.png,a,b"])
def test_a_row_of_too_few_or_many_cells_is_named(tmp_path: Path, broken: str) -> None:
    """It was left out without a note, and the numbers of later rows were wrong."""
    rows = lines(KINDS["images"])
    rows[3], rows[5] = broken, "nowhere.png,a"
    data = KINDS["images"].read(written(tmp_path, "\n".join(rows)))
    assert examples(data) == ROWS - 2
    notes = "\n".join(data.notes())
    assert "not as many cells as there are columns, 2: all.csv, row 3" in notes
    assert "its image is not there: all.csv, row 5" in notes


def test_a_broken_line_of_objects_is_named(tmp_path: Path) -> None:
    """The whole table was taken for none, so that the folder had no classes."""
    rows = [
        f'{{"file": "{number}.png", "label": "{"ab"[number % 2]}"}}'
        for number in range(ROWS)
    ]
    rows[30] = rows[30][:-3]
    table = written(tmp_path, "\n".join(rows), "labels.jsonl")
    with pytest.raises(ValueError, match=r"labels\.jsonl, line 31"):
        table_of_images(Place(tmp_path))
    with pytest.raises(ValueError, match=r"labels\.jsonl, line 31"):
        KINDS["images"].read(table)


def test_a_decimal_comma_between_semicolons(tmp_path: Path) -> None:
    rows = lines(KINDS["series"])
    points = Series(written(tmp_path, "\n".join(rows)))
    text = "\n".join(rows).replace(",", ";").replace(".5", ",5")
    commas = Series(written(tmp_path, text, "commas.csv"))
    for with_point, with_comma in zip(
        points.train.inputs, commas.train.inputs, strict=True
    ):
        assert with_point.equal(with_comma)


def test_a_comma_and_a_point_are_not_both_decimal(tmp_path: Path) -> None:
    """1,234 is not 1.234 where another cell is 0.5."""
    rows = [line.replace(",", ";") for line in lines(KINDS["series"])]
    rows[6] = rows[6].replace("5.5", "1,234")
    with pytest.raises(ValueError, match=r"0\.5 at .*csv:2 and 1,234 at .*csv:7"):
        Series(written(tmp_path, "\n".join(rows)))


def test_a_decimal_comma_between_quotes(tmp_path: Path) -> None:
    """Between semicolons it was read, and between commas it was no number."""
    rows = lines(KINDS["series"])
    text = "\n".join(rows)
    points = Series(written(tmp_path, text)).train
    text = re.sub(r"(\d+)\.5", r'"\1,5"', text.replace(",1.5", ',"1,500"'))
    commas = Series(written(tmp_path, text)).train
    for with_point, with_comma in zip(points.inputs, commas.inputs, strict=True):
        assert with_point.equal(with_comma)


def test_a_comma_may_mark_thousands_between_commas(tmp_path: Path) -> None:
    text = re.sub(r"(\d+)\.5", r'"\g<1>,500"', "\n".join(lines(KINDS["series"])[4:]))
    with pytest.raises(ValueError, match=r"comma of 3,500 at .* mark thousands"):
        Series(written(tmp_path, f"{KINDS['series'].header}\n{text}"))


def test_a_row_without_its_series_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("height,series,label\n1,s,a\n2\n")
    with pytest.raises(ValueError, match=r"all\.csv:3 .* not as many cells as .* 3"):
        Series(tmp_path / "all.csv")


@every_kind
def test_a_name_of_two_columns_is_an_error(tmp_path: Path, kind: Kind) -> None:
    """The last of them counted, or the first: another label than was meant."""
    rows = [f"{line},b" for line in lines(kind)]
    rows[0] = f"{kind.header},label"
    with pytest.raises(ValueError, match=r"all\.csv has 2 columns 'label'"):
        kind.read(written(tmp_path, "\n".join(rows)))


@pytest.mark.parametrize(
    ("first", "names"),
    [
        ("-0.14,0.66,0.05,walk", False),
        ("7,7,walk", False),
        ("400.5,410,420.5,label", True),
        ("label,2,1,0", True),
    ],
)
def test_numbers_beside_a_name_are_columns_only_in_order(
    tmp_path: Path, first: str, names: bool
) -> None:
    """The first series named the columns, and its values were their order."""
    rows = ["walk" if cell.isalpha() else "5" for cell in first.split(",")]
    path = written(tmp_path, f"{first}\n{','.join(rows)}\n")
    if names:
        assert Table(path).columns == tuple(first.split(","))
    else:
        with pytest.raises(NoHeader, match="looks like an example"):
            Table(path)


def test_columns_with_one_1_in_each_row_hold_classes(tmp_path: Path) -> None:
    """They were several labels, and classes in an array."""
    rows = [f"{number}.png,{number % 2},{1 - number % 2}" for number in range(ROWS)]
    path = written(tmp_path, "\n".join(["file,sea,sky", *rows]))
    data = ImageTable(path, file="file", label=("sea", "sky"))
    assert (data.classes, data.default_task()) == (("sea", "sky"), "classification")
    assert data.train.labels.dtype == torch.int64
    assert any("--data.delimiter '|'" in note for note in data.notes())
    several = ImageTable(path, file="file", label=("sea", "sky"), delimiter="|")
    assert several.default_task() == "several_labels"
    assert several.train.labels.sum(1).tolist() == [1] * len(several.train)
