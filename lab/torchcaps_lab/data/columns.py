"""What each column of a table holds, looked at once for all kinds of input."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from torchcaps_lab.data.parts import part_called
from torchcaps_lab.look import Cells, counted, is_number

Role = Literal[
    "text",
    "label",
    "labels",
    "flag",
    "number",
    "date",
    "file",
    "group",
    "split",
    "identifier",
    "constant",
    "empty",
]
"""What a column holds: texts, one label each, several labels each, yes or no, numbers,
dates or times, names of files, whom or what a row is of, which split it belongs to, the
name of the row, the same everywhere, or nothing.
"""

LABELS = (
    "label",
    "labels",
    "class",
    "classes",
    "category",
    "categories",
    "tags",
    "tag",
    "sentiment",
    "target",
    "stars",
    "diagnosis",
    "species",
    "breed",
    "y",
)
"""Usual names of a column of labels, the likeliest first."""

TEXTS = ("text", "review", "sentence", "content", "body", "message", "comment")
"""Usual names of a column of texts, the likeliest first."""

SPLITS = ("split", "set", "subset", "part", "partition")
"""Usual names of a column that says which split a row belongs to."""

_GROUPS = "group patient person subject participant user speaker author customer client"
GROUPS = frozenset(_GROUPS.split())
"""Usual names of a column that says whom or what a row is of, maybe with ``_id``."""

_IDENTIFIERS = frozenset(
    ("id", "index", "idx", "row", "number", "nr", "no", "uuid", "")
)

YES = frozenset(("1", "1.0", "true", "yes"))
NO = frozenset(("0", "0.0", "false", "no", ""))
"""How a flag says that a row has a label, and that it does not, in lower case."""

BETWEEN = ("|", ";", ",", " ")
"""What may stand between several labels in one cell."""

_FEW = 20
"""Different numbers with fractions that may be classes, such as half stars."""

_FEW_WHOLE = 10
"""Different whole numbers that may be classes wherever they are."""

_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})"
    r"([T ]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2})?([.,]\d+)?",
    re.ASCII,
)
_FILE = re.compile(r"\S.*\.(?!\d+$)[A-Za-z]\w{1,4}")
_COMMA = re.compile(r"[-+]?\d+,\d+", re.ASCII)


class UnclearColumns(ValueError):
    """The error for a table whose columns do not say which of them holds the labels."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: its name.
        role: what it holds.
        why: the reason, for people.
        distinct: how many different cells it has, without empty ones.
        length: letters of a cell, the mean of those that are not empty.
        between: what stands between several labels in a cell; else empty.
    """

    name: str
    role: Role
    why: str
    distinct: int
    length: float = 0.0
    between: str = ""


@dataclass(frozen=True)
class Columns:
    """The columns of a table, each with its role.

    Args:
        columns: in their order.

    Example:
        >>> from torchcaps_lab.data.columns import Columns
        >>> from torchcaps_lab.look import Cells
        >>> cells = Cells(
        ...     ("headline", "sport", "money"),
        ...     (("Ajax wins again", "1", "0"), ("The bank lost", "0", "1")),
        ... )
        >>> [(column.name, column.role) for column in Columns.of(cells).columns]
        [('headline', 'text'), ('sport', 'flag'), ('money', 'flag')]
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, cells: Cells, files: Collection[str] = ()) -> "Columns":
        """Look at every column.

        Args:
            cells: the beginning of the table.
            files: the columns that are known to name files that are there.
        """
        names = dict.fromkeys(cells.columns)
        return cls(
            tuple(_seen(name, cells.column(name), name in files) for name in names)
        )

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """The columns by name."""
        return {column.name: column for column in self.columns}

    def of_role(self, *roles: Role) -> list[Column]:
        """Return the columns that have one of these roles."""
        return [column for column in self.columns if column.role in roles]

    def called(self, names: Sequence[str]) -> list[Column]:
        """Return the columns with one of these names, in the order of the names."""
        lower = {column.name.strip().lower(): column for column in self.columns[::-1]}
        return [lower[name] for name in names if name in lower]

    def lines(self) -> list[str]:
        """Show people the columns as a small table."""
        width = max((len(column.name) for column in self.columns), default=0)
        return [
            f"  {column.name:<{width}}  {column.role:<10}  {column.why}"
            for column in self.columns
        ]

    def unused(self, used: Iterable[str | None]) -> str:
        """Name the columns that are used for nothing, for people; empty if none is.

        Args:
            used: the names of those that are used.
        """
        names = {*used}
        rest = [column for column in self.columns if column.name not in names]
        return ", ".join(f"{column.name} ({column.role})" for column in rest)

    def labels(self, taken: Iterable[str | None], where: str) -> tuple[Column, ...]:
        """Return the column of labels, or the flags that have a class each.

        Args:
            taken: the names of columns that hold something else.
            where: the table, for the message.

        Raises:
            ValueError: there is none, several columns may be it, or it holds
                measurements; names the columns and what to type.
        """
        names = {*taken}
        rest = [column for column in self.columns if column.name not in names]
        named = [column for column in self.called(LABELS) if column in rest]
        flags = [column for column in rest if column.role == "flag"]
        if not named and len(flags) > 1:
            return tuple(flags)
        likely = [
            column for column in rest if column.role in ("label", "labels", "flag")
        ]
        numbers = [column for column in rest if column.role == "number"]
        texts = [column for column in rest if column.role == "text"]
        chosen = named[:1] or likely or numbers or texts
        if len(chosen) > 1:
            may_be = ", ".join(f"{column.name} ({column.why})" for column in chosen)
            raise UnclearColumns(
                f"the labels of {where} may stand in several columns: {may_be}. Name "
                f"one with --data.label, as in --data.label {_quoted(chosen[0].name)}"
            )
        if not chosen:
            raise UnclearColumns(
                f"{where} has no column of labels: "
                + "; ".join(
                    f"{one.name} is {one.role}, {one.why}" for one in self.columns
                )
                + ". Name one with --data.label"
            )
        if chosen[0].role == "number":
            raise measured(f"column {chosen[0].name!r} of {where}", chosen[0].why)
        return (chosen[0],)


def measured(what: str, why: str) -> UnclearColumns:
    """The error for labels that are measurements.

    Args:
        what: what holds them.
        why: what they look like.
    """
    return UnclearColumns(
        f"the labels in {what} look like measurements: {why}. This package classifies: "
        "write a class for each range of values, such as low and high, into a column, "
        "and name it with --data.label"
    )


def measurements(cells: Sequence[str]) -> str:
    """Tell why cells, taken as labels, look like measurements; empty if they do not.

    Args:
        cells: the cells that are not empty.

    Example:
        >>> from torchcaps_lab.data.columns import measurements
        >>> measurements(["207.31", "99.5", "18.75"])
        '3 different numbers in 3 rows, such as 207.31'
        >>> measurements(["0.5", "1.0", "0.5", "1.0"]), measurements(["3", "8", "4"])
        ('', '')
    """
    different = {*cells}
    if len(different) < 3 or not all(map(_is_number, different)):
        return ""
    fraction = next(filter(_has_fraction, cells), None)
    repeated = len(different) * 2 <= len(cells)
    few = _FEW_WHOLE if fraction is None else (_FEW if repeated else 2)
    if len(different) <= few or (fraction is None and repeated):
        return ""
    return (
        f"{len(different):,} different numbers in {counted(len(cells), 'rows')}, such as "
        f"{fraction or cells[0]}"
    )


def between_labels(cells: Sequence[str]) -> str:
    """Return what stands between several labels in cells; empty if each has one label.

    Args:
        cells: the cells of a column.
    """
    for sign in BETWEEN:
        several = [cell for cell in {*cells} if sign in cell]
        parts = {part.strip() for cell in several for part in cell.split(sign)} - {""}
        single = {cell for cell in cells if cell and sign not in cell}
        # Names of several words have parts that do not stand alone elsewhere.
        if several and parts & single and len(parts | single) < len({*cells}):
            return sign
    return ""


def _seen(name: str, cells: Sequence[str], is_file: bool) -> Column:
    """A column with its role."""
    filled = [cell for cell in cells if cell]
    role, why = _role(name.strip().lower(), cells, filled, is_file)
    between = between_labels(cells) if role == "labels" else ""
    length = sum(map(len, filled)) / max(len(filled), 1)
    return Column(name, role, why, len({*filled}), length, between)


def _role(
    name: str,
    cells: Sequence[str],
    filled: Sequence[str],
    is_file: bool,
) -> tuple[Role, str]:
    """The role of a column, and why."""
    different = {*filled}
    values = f"{counted(len(different), 'values')} in {counted(len(cells), 'rows')}"
    if not filled:
        return "empty", "all cells are empty"
    if name in TEXTS:
        return "text", "by its name"
    parts = {part_called(cell) for cell in filled}
    if None not in parts and "train" in parts and len(parts) > 1:
        return "split", f"its cells name splits: {', '.join(sorted(different))}"
    if is_file or all(map(_FILE.fullmatch, filled)):
        return "file", f"its cells are names of files, such as {filled[0]}"
    if {cell.lower() for cell in cells} <= YES | NO and (
        len({*cells}) > 1 or filled[0].lower() in NO
    ):
        return "flag", f"its cells are {' and '.join(sorted(different))}"
    if len({*cells}) == 1 and len(cells) > 1:
        return "constant", f"each cell is {filled[0]:.40}"
    if name.removesuffix("_id").removesuffix(" id") in GROUPS and len(filled) > len(
        different
    ):
        return "group", f"by its name, {values}"
    if all(map(_DATE.fullmatch, different)):
        return "date", f"its cells are dates or times, such as {filled[0]}"
    if name in LABELS:
        return _by_label_name(cells, filled, values)
    if all(map(_is_number, different)):
        return _numeric(name, filled, values)
    if between_labels(cells):
        return "labels", f"{between_labels(cells)!r} stands between labels, {values}"
    if len(different) * 2 <= len(filled) and max(map(len, different)) <= 80:
        return "label", values
    if len(different) == len(filled) and all(map(_is_code, different)):
        return "identifier", "each row has its own"
    words = sum(len(cell.split()) for cell in filled) / len(filled)
    return "text", f"{values}, {words:.1f} words each"


def _by_label_name(
    cells: Sequence[str], filled: Sequence[str], values: str
) -> tuple[Role, str]:
    """The role of a column that is called as labels are, and why."""
    if between := between_labels(cells):
        return "labels", f"by its name; {between!r} stands between labels, {values}"
    if why := measurements(filled):
        return "number", why
    return "label", f"by its name, {values}"


def _numeric(name: str, filled: Sequence[str], values: str) -> tuple[Role, str]:
    """The role of a column of numbers, and why."""
    own = len({*filled}) == len(filled) > 1
    whole = not any(map(_has_fraction, filled))
    if (
        own
        and whole
        and (name.rpartition("_")[2] in _IDENTIFIERS or _counts_on(filled))
    ):
        return "identifier", "each row has its own"
    if why := measurements(filled):
        return "number", why
    halves = all((2 * _value(cell)).is_integer() for cell in filled)
    if halves and len({*filled}) * 2 <= len(filled):
        return "label", f"{values}, all numbers"
    return "number", f"{values}, all numbers"


def _counts_on(cells: Sequence[str]) -> bool:
    """Whether whole numbers count the rows."""
    numbers = [*map(_value, cells)]
    return all(after - before == 1 for before, after in pairwise(numbers))


def _is_number(cell: str) -> bool:
    return is_number(cell) or _COMMA.fullmatch(cell) is not None


def _value(cell: str) -> float:
    """The number in a cell, with a point or a comma before its fraction."""
    return float(cell.replace(",", "."))


def _has_fraction(cell: str) -> bool:
    return not _value(cell).is_integer()


def _is_code(cell: str) -> bool:
    """Whether a cell looks like the name of a row: one word with a digit."""
    return not any(map(str.isspace, cell)) and any(map(str.isdigit, cell))


def _quoted(name: str) -> str:
    return f"'{name}'" if " " in name else name
