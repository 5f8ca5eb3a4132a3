"""Tables as spreadsheets, R, NumPy and people write them: read rightly, or refused."""

from pathlib import Path

import pytest

from torchcaps_lab.data.columns import LIST, Columns, between_labels, parts_of
from torchcaps_lab.data.tables import Table

ROWS = "a b,1\nc d,2\n"


def table(folder: Path, content: str, encoding: str = "utf-8") -> Table:
    path = folder / "t.csv"
    path.write_bytes(content.encode(encoding))
    return Table(path)


def columns_and_cells(read: Table) -> tuple[tuple[str, ...], list[list[str]]]:
    return read.columns, [[*row.values.values()] for row in read.rows(read.columns)]


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        ("x,y\n" + ROWS, "utf-8-sig"),
        ("x,y\n" + ROWS, "utf-16"),
        ("x,y\r\n" + ROWS.replace("\n", "\r\n"), "utf-8"),
        ("x,y\r" + ROWS.replace("\n", "\r"), "utf-8"),
        ("x|y\n" + ROWS.replace(",", "|"), "utf-8"),
        ("x;y\n" + ROWS.replace(",", ";"), "utf-8"),
        ("sep=;\nx;y\n" + ROWS.replace(",", ";"), "utf-8"),
        ("# by me, twice\n\n# really\nx,y\n" + ROWS, "utf-8"),
        ("# x,y\n" + ROWS, "utf-8"),
        (" x , y\n" + ROWS.replace(",", ' , "').replace("\n", '"\n'), "utf-8"),
        ("x,y,\n" + ROWS.replace("\n", ",\n") + ",,\n,,\n", "utf-8"),
    ],
)
def test_one_table_in_many_forms(content: str, encoding: str, tmp_path: Path) -> None:
    columns, cells = columns_and_cells(table(tmp_path, content, encoding))
    assert columns[:2] == ("x", "y")
    assert [row[:2] for row in cells] == [["a b", "1"], ["c d", "2"]]


def test_a_sign_in_the_cells_of_every_row_may_separate_them(tmp_path: Path) -> None:
    read = table(tmp_path, "x;y\na, b;1\nc, d;2\n")
    assert columns_and_cells(read)[1] == [["a, b", "1"], ["c, d", "2"]]
    with pytest.raises(ValueError, match=r"t\.csv may be separated by ',' or by ';'"):
        table(tmp_path, "x;y,z\na;b,1\nc;d,2\n")


@pytest.mark.parametrize(
    "content",
    [
        "Report of May\nx,y\n" + ROWS,
        "x,y\n1,a,b\n2,c,d\n",
        "y,x\n1,well, no\n2,well, yes\n",
    ],
    ids=["title", "names of rows", "no quotes"],
)
def test_rows_of_another_width_than_the_header(content: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"t\.csv: .* rows have not as many cells"):
        list(table(tmp_path, content).rows([]))


def test_decimal_commas_between_commas_are_told(tmp_path: Path) -> None:
    rows = "\n".join(f"{row},-0,{row}5,a" for row in range(4))
    with pytest.raises(ValueError, match=r"decimal commas.*semicolons"):
        list(table(tmp_path, f"t,x,label\n{rows}").rows([]))
    with pytest.raises(ValueError, match=r"between quotes$"):
        list(table(tmp_path, "t,x\na,b,c\n").rows([]))


def test_a_header_of_numbers_is_an_example(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must name its columns"):
        table(tmp_path, "0,0.5,0.25\n1,0.1,0.2\n")
    assert table(tmp_path, "0,1,2\n1,0.1,0.2\n").columns == ("0", "1", "2")


def test_a_header_with_a_label_that_comes_again_is_an_example(tmp_path: Path) -> None:
    """Its two texts were taken for the names of two columns."""
    with pytest.raises(ValueError, match="such as label,text"):
        table(tmp_path, "3,Wins,Ajax won\n1,Rain,It rains\n3,Loses,It lost\n")
    assert table(tmp_path, "town,2024\nUlm,7\n").columns == ("town", "2024")


def test_a_name_of_a_column_in_several_lines(tmp_path: Path) -> None:
    assert table(tmp_path, '"x\n(cm) ",y\n1,2\n').columns == ("x (cm)", "y")


def test_an_encoding_is_told_or_refused(tmp_path: Path) -> None:
    read = table(tmp_path, "x,y\n“café” – 5 €,1\n", "cp1252")
    assert columns_and_cells(read)[1] == [["“café” – 5 €", "1"]]
    assert "Windows-1252" in read.notes[0]
    with pytest.raises(ValueError, match=r"t\.csv is neither UTF-8"):
        table(tmp_path, "x,y\nпривет мир,1\n", "cp1251")


def test_missing_cells_and_keys(tmp_path: Path) -> None:
    cells = [*map(str, ("NA", "NaN", "null", "None", "-"))]
    read = table(tmp_path, "x,y\n" + "".join(f"{cell},1\n" for cell in cells))
    assert read.cells().column("x") == ["", "", "", "None", "-"]
    path = tmp_path / "t.jsonl"
    path.write_text('{"x": 1}\n{"y": 2, "x": null}\n')
    assert columns_and_cells(Table(path)) == (("x", "y"), [["1", ""], ["", "2"]])


@pytest.mark.parametrize(
    ("cells", "sign", "certain"),
    [
        (["a|b", "b|c", "a|c"], "|", True),
        (["a|b", "c|d"], "|", False),
        (["a, b", "a", "b"], ",", True),
        (["Paris, France", "Lyon, France"], ",", False),
        (["good", "bad", "very good", "very bad"], " ", False),
        (["New York", "Rome"], "", False),
        (["['a']", "[]", '["a", "b c"]'], LIST, True),
    ],
)
def test_what_stands_between_labels(cells: list[str], sign: str, certain: bool) -> None:
    assert between_labels(cells) == (sign, certain)


@pytest.mark.parametrize(
    "cell", ["['a', 'b c']", '["a", "b c"]', "['a' 'b c']", "[a, b c]"]
)
def test_lists_as_programs_write_them(cell: str) -> None:
    assert parts_of(cell, LIST) == ["a", "b c"]


def test_splits_of_unknown_names_are_not_passed_over(tmp_path: Path) -> None:
    rows = [f"{row},{('train', 'test', 'extra')[row % 3]}" for row in range(9)]
    (_, split) = Columns.of(
        table(tmp_path, "\n".join(["x,use", *rows])).cells()
    ).columns
    assert (split.role, split.unclear) == ("split", "extra")
