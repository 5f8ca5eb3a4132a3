"""The table of all routing algorithms."""

from pathlib import Path

import pytest

from benchmarks import routings
from benchmarks.__main__ import main
from benchmarks.about import ABOUT
from torchcaps import list_routings


@pytest.mark.parametrize("name", list_routings())
def test_every_routing_says_what_it_is(name: str) -> None:
    for value in vars(ABOUT[name]).values():
        assert value
        assert "|" not in value  # a column of the table
        assert "\n" not in value


def empty_page(old: str) -> str:
    """A page with both parts, of which each holds the old text."""
    parts = []
    for part in (routings.DESCRIPTIONS, routings.FIGURES):
        begin, end = routings.marks_of(part)
        parts.append(f"{begin}\n{old}\n{end}")
    return "\n\n".join(["# Title", *parts, "after\n"])


def test_measures_in_turn_and_writes_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shown = list[str]()
    page.write_text(empty_page("old"))
    only = ["mean", "dynamic", "hard_kmeans"]
    options = [
        "--batch",
        "1",
        "--runs",
        "1",
        "--threads",
        "1",
        "--no-memory",
        "--note",
        "A note.",
    ]
    main(["routings", "--only", *only, *options, "--into", str(page)], shown.append)
    text = page.read_text()
    assert text.startswith("# Title\n\n<!-- routings: begin -->\n| routing |")
    assert text.endswith("A note.\n<!-- figures of routings: end -->\n\nafter\n")
    assert "old" not in text
    descriptions = routings.words(only)
    assert shown[0].startswith(f"{descriptions}\n\n")
    assert descriptions in text
    assert shown[0].removeprefix(descriptions).strip() in text
    tables = [part for part in shown[0].split("\n\n") if part.startswith("|")]
    assert [len(table.splitlines()) for table in tables] == [2 + len(only)] * 3
    figures = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in tables[2].splitlines()[2:]
    ]
    assert figures[-1][0] == "`hard_kmeans`"  # it does not train
    assert [bool(cell) for cell in figures[-1]] == [
        True,
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    assert all(
        float(cell) > 0
        for row in figures[:2]
        for cell in (row[1], row[2], row[4], row[5])
    )
    assert "medians of 1 rounds in which all took turns. A note." in shown[0]


@pytest.mark.usefixtures("kernels")
def test_a_backend_is_forced(capsys: pytest.CaptureFixture[str]) -> None:
    shown = list[str]()
    options = [
        "--batch",
        "1",
        "--runs",
        "1",
        "--threads",
        "1",
        "--no-memory",
        "--backend",
        "native",
    ]
    main(["routings", "--only", "mean", "max_min", *options], shown.append)
    assert shown[0].endswith("backend native, which cannot do max_min.")
    assert shown[0].count("`max_min`") == 2  # described, not measured
    assert main(["routings", "--only", "max_min", *options], shown.append) == 1
    assert (
        "--backend native can do none of max_min: backend 'native' cannot do"
        in capsys.readouterr().err
    )


def test_words_alone() -> None:
    shown = list[str]()
    main(["routings", "--words"], shown.append)
    for name in list_routings():
        assert shown[0].count(f"| `{name}` |") == 2


def test_a_page_without_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n")
    assert main(["routings", "--words", "--into", str(page)], list[str]().append) == 1
    assert "must have the marks <!-- routings: begin -->" in capsys.readouterr().err
    assert page.read_text() == "# Title\n"


def test_words_leave_the_figures_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(empty_page("measured elsewhere"))
    main(["routings", "--words", "--into", str(page)], list[str]().append)
    text = page.read_text()
    assert routings.words(list_routings()) in text
    assert text.count("measured elsewhere") == 1  # the figures
    begin, _ = routings.marks_of(routings.FIGURES)
    assert f"{begin}\nmeasured elsewhere\n" in text


def test_the_page_describes_every_routing_of_the_library() -> None:
    page = (Path(__file__).parent.parent / "docs" / "routings.md").read_text()
    begin, end = routings.marks_of(routings.DESCRIPTIONS)
    assert f"{begin}\n{routings.words(list_routings())}\n{end}" in page
    routings.put_into(page, routings.FIGURES, "which it has the marks for")
