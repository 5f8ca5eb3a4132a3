"""Each column of a table gets the role of what it holds, under any name and order."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcaps_lab.data.columns import Columns, measurements
from torchcaps_lab.data.tables import Cells

ROWS = 24
WORDS = ("alpha", "beta", "delta", "gamma")


def text(row: int) -> str:
    return f"{WORDS[row % 4]} and {WORDS[row % 3]} number {row}"


MAKERS: dict[str, Callable[[int], str]] = {
    "text": text,
    "label": lambda row: WORDS[row % 3],
    "labels": lambda row: ("sea", "sky", "sea|sky")[row % 3],
    "flag": lambda row: str(int(row % 3 == 0)),
    "number": lambda row: f"{row * 1.37:.2f}",
    "date": lambda row: f"2024-{row % 12 + 1:02d}-{row % 28 + 1:02d}",
    "file": lambda row: f"photos/{row} of 24.jpg",
    "split": lambda row: ("train", "train", "val", "test")[row % 4],
    "identifier": lambda row: f"A-{row:03d}x",
    "constant": lambda row: "Oslo",
    "empty": lambda row: "",
}
"""A cell of a column of each role, by its row; ``group`` is known by its name."""

NAMES = st.text("qwzvk", min_size=3, max_size=6)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Cells, dict[str, str]]:
    """A table of columns in any order under names that say nothing, and their roles."""
    roles = draw(st.permutations(sorted(MAKERS)))
    roles = roles[: draw(st.integers(1, len(roles)))]
    names = draw(st.lists(NAMES, min_size=len(roles), max_size=len(roles), unique=True))
    rows = tuple(tuple(MAKERS[role](row) for role in roles) for row in range(ROWS))
    return Cells(tuple(names), rows), dict(zip(names, roles, strict=True))


@given(tables())
@settings(max_examples=30, deadline=None)
def test_roles_follow_from_the_cells_alone(
    table: tuple[Cells, dict[str, str]],
) -> None:
    cells, roles = table
    columns = Columns.of(cells)
    assert {column.name: column.role for column in columns.columns} == roles
    assert all(column.why for column in columns.columns)
    assert len(columns.lines()) == len(roles)


@given(tables())
@settings(max_examples=60, deadline=None)
def test_labels_are_found_or_asked_for_and_never_a_measurement(
    table: tuple[Cells, dict[str, str]],
) -> None:
    cells, roles = table
    texts = [name for name, role in roles.items() if role == "text"]
    likely = [
        name for name, role in roles.items() if role in ("label", "labels", "flag")
    ]
    columns = Columns.of(cells)
    if len(likely) == 1:
        assert [column.name for column in columns.labels(texts, "t.csv")] == likely
        return
    with pytest.raises(ValueError, match=r"--data\.label") as error:
        columns.labels(texts, "t.csv")
    assert all(name in str(error.value) for name in likely)


@pytest.mark.parametrize("gap", [0, 3])
def test_missing_cells_do_not_change_a_role(gap: int) -> None:
    for role in {*MAKERS} - {"empty", "flag", "constant"}:
        cells = [MAKERS[role](row) if row != gap else "" for row in range(ROWS)]
        (column,) = Columns.of(Cells(("q",), tuple((cell,) for cell in cells))).columns
        assert column.role == role


def test_names_tell_what_cells_cannot() -> None:
    rows = tuple((str(row % 5), text(row % 2), str(row % 7)) for row in range(ROWS))
    columns = Columns.of(Cells(("Stars", "Review", "patient_id"), rows))
    roles = [column.role for column in columns.columns]
    assert roles == ["label", "text", "group"]


def test_flags_are_a_class_each_unless_a_column_is_called_as_labels_are() -> None:
    rows = tuple(
        (text(r), str(r % 2), str(int(r % 3 == 0)), "ab"[r % 2]) for r in range(9)
    )
    columns = Columns.of(Cells(("q", "sea", "sky", "label"), rows))
    assert [column.name for column in columns.labels(["q"], "t")] == ["label"]
    flags = columns.labels(["q", "label"], "t")
    assert [column.name for column in flags] == ["sea", "sky"]
    assert columns.unused(["q", "label"]) == "sea (flag), sky (flag)"


@pytest.mark.parametrize(
    ("cells", "measured"),
    [
        ([f"{row * 1.7:.1f}" for row in range(60)], True),
        ([str(100 + 7 * row) for row in range(60)], True),
        ([f"{row / 7:.3f}".replace(".", ",") for row in range(60)], True),
        ([str(row % 100) for row in range(1000)], False),
        ([str(row % 10 / 2) for row in range(60)], False),
        ([WORDS[row % 3] for row in range(60)], False),
    ],
    ids=["fractions", "whole", "commas", "classes", "half stars", "words"],
)
def test_measurements(cells: list[str], measured: bool) -> None:
    assert bool(measurements(cells)) == measured
