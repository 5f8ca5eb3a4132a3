"""Tables in text files, read whole: nothing of them is skipped without a word."""

import csv
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.whole import parsed_json
from torchcaps_lab.data.classes import composed
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.plain_text import decoded_as
from torchcaps_lab.look import OBJECTS, TABLES, is_number, no_header

SIGNS = (",", ";", "\t", "|")
"""What may stand between two cells."""

MISSING = frozenset(
    ("NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "<NA>", "NaT")
)
"""Cells that R, pandas, Excel and databases write where there is no value."""

_LONGEST = 2**31 - 1
"""Letters of a cell: csv expects at most 131,072, and a text may be longer."""

_LOOKED_AT = 10_000
"""Rows whose cells are looked at, drawn from the whole table."""

_TRIED_ROWS, _TRIED_LETTERS = 100, 200_000
"""The beginning of a table that tells what stands between its cells."""

_MOST_LACKING, _LACKING_EACH = 10_000_000, 64
"""Empty cells in a table of JSON objects: so many, and so many for each value that is
there.
"""

_EXCEL = re.compile(r"\"?sep=(.)\"?\r?\n")
"""The first line by which Excel is told what stands between cells."""

_DECIMALS = re.compile(r"(?<![^,])\s*[-+]?\d+,\d+\s*(?![^,])")
"""Two cells that may be one number with a decimal comma."""

_COMMENTS = re.compile(r"(#[^\n]*\n|\s*\n)+")


class _Row(NamedTuple):
    """The cells of a row as they came, maybe fewer or more than there are columns, and
    the line of the file that it ends in, counted from 1.
    """

    line: int
    cells: tuple[str, ...]


class Row(NamedTuple):
    """One row of a table.

    Args:
        number: its number below the header, from 1, without empty rows.
        line: the line of the file that it ends in, counted from 1.
        values: its cells by column, empty where there is no value.
        misfit: why it cannot be used, for people; empty if it can.
    """

    number: int
    line: int
    values: dict[str, str]
    misfit: str


@dataclass(frozen=True)
class Cells:
    """Rows of a table that are looked at.

    Args:
        columns: the names of the columns, in their order.
        rows: the rows, each as long as there are columns.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @cached_property
    def _places(self) -> dict[str, int]:
        return first_places(self.columns)

    def column(self, name: str) -> list[str]:
        """The cells of a column, empty where there is no value."""
        place = self._places[name]
        return [_value(row[place]) for row in self.rows]


class Table:
    """A table with a header: cells separated by commas, semicolons, tabs or bars; or a
    JSON object in each line.

    Blanks around cells and names of columns do not count, and several of them or a
    line break within a name are one. Lines above the header that
    begin with ``#``, and Excel's ``sep=;``, are no part of the table, and rows without
    a value are none.

    Args:
        path: a .csv, .tsv or .jsonl file, in UTF-8, UTF-16 or Windows-1252.

    Attributes:
        delimiter: what stands between two cells; empty for JSON.
        columns: the names of the columns; none in an empty file.
        notes: what a reader of results should know.

    Raises:
        ValueError: a line is no JSON object, or a quote in a .csv file is not closed,
            or two signs may stand between the cells, or most rows have another number
            of cells than there are columns; names the line, or the signs.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from torchcaps_lab.data.tables import Table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "labels.csv"
        ...     _ = path.write_text("file;label\\na.jpg;cat\\nb.jpg\\nc.jpg;dog\\n")
        ...     table = Table(path)
        >>> table.columns, [row.values["label"] for row in table.rows(["label"])]
        (('file', 'label'), ['cat', '', 'dog'])
        >>> [row.misfit for row in table.rows(["label"])][1]
        'it has not as many cells as there are columns, 2'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content, encoding = decoded_as(path)
        self.notes: tuple[str, ...] = ()
        if encoding == "cp1252":
            self.notes = (f"{path.name} is no UTF-8: it was read as Windows-1252",)
        self._above = 0
        self.delimiter = ""
        if path.suffix.lower() != OBJECTS:
            self.delimiter = self._begin()
        header = next(self._all_rows(), None)
        names = () if header is None else header.cells
        # Excel breaks long names into lines.
        self.columns = tuple(composed(" ".join(name.split())) for name in names)
        written_above = bool(self.delimiter) and len(self.columns) > 1
        if written_above and not may_name(self.columns):
            raise no_header(path, self.columns, ("label", "t0", "t1"))
        if written_above and self._begins_with_label():
            raise no_header(path, self.columns, ("label", "text"))
        self._times = Counter(self.columns)
        self._places = first_places(self.columns)

    def rows(self, needed: Sequence[str], more: Sequence[str] = ()) -> Iterator[Row]:
        """The rows below the header, without empty ones.

        Args:
            needed: columns that are read, in which a row must have cells.
            more: other columns that are read, whose cells may be missing.
        """
        places = {name: self._places[name] for name in (*needed, *more)}
        width = 1 + max((places[name] for name in needed), default=0)
        for number, (line, cells) in enumerate(self._below(), 1):
            values = {
                name: _value(cells[place]) if place < len(cells) else ""
                for name, place in places.items()
            }
            yield Row(number, line, values, self._misfit(cells, width))

    def _below(self) -> Iterator[_Row]:
        """The rows below the header, without empty ones."""
        rows = self._all_rows()
        next(rows, None)
        count = 0
        others = 0
        decimals = 0
        for row in rows:
            if any(map(_value, row.cells)):
                yield row
                count += 1
                alone = len(row.cells) == 1 < len(self.columns)
                if alone or any(row.cells[len(self.columns) :]):
                    others += 1
                    decimals += bool(_DECIMALS.search(",".join(row.cells)))
        if 2 * others > count:
            cells = f"a cell that holds {self.delimiter!r} must stand between quotes"
            if self.delimiter == "," and decimals == others:
                cells += (
                    ". If its numbers have decimal commas, save it with semicolons "
                    "between the cells"
                )
            raise ValueError(
                f"{self.path}: {others:,} of {count:,} rows have not as many cells as "
                f"the first line names columns: {some(self.columns)}. The "
                f"first line must name every column, and {cells}"
            )

    def cells(self) -> Cells:
        """The cells of rows drawn from the whole table, in its order, of those as long
        as the header.
        """
        width = len(self.columns)
        rows = [
            row.cells for row in self._below() if not self._misfit(row.cells, width)
        ]
        if len(rows) > _LOOKED_AT:
            # Not every n-th row: classes may take turns.
            drawn = random.Random(0).sample(range(len(rows)), _LOOKED_AT)
            rows = [rows[place] for place in sorted(drawn)]
        return Cells(self.columns, tuple(row[:width] for row in rows))

    def check_once(self, columns: Iterable[str]) -> None:
        """Raise a `ValueError` if several columns have one of these names.

        Args:
            columns: names of columns that are read.
        """
        for name in columns:
            times = self._times[name]
            if times > 1:
                raise ValueError(
                    f"{self.path} has {times} columns {name!r}: each needs its own name"
                )

    def _begins_with_label(self) -> bool:
        """Whether the only number in the header is in its column again, as the label of
        a text is.
        """
        numbers = [place for place, name in enumerate(self.columns) if is_number(name)]
        if len(numbers) != 1:
            return False
        (place,) = numbers
        return any(
            row.cells[place : place + 1] == (self.columns[place],)
            for row in islice(self._all_rows(), 1, _LOOKED_AT)
        )

    def _misfit(self, cells: Sequence[str], width: int) -> str:
        """Why a row cannot be used, for people; empty if it can. Empty cells at its end
        do not matter, and neither do missing ones beyond ``width``.
        """
        if len(cells) < width or any(cells[len(self.columns) :]):
            return f"it has not as many cells as there are columns, {len(self.columns)}"
        if tuple(map(str.strip, cells)) == self.columns:
            return "it repeats the names of the columns"
        return ""

    def _begin(self) -> str:
        """Cut off what stands above the header, and return the delimiter."""
        content = self._content
        excel = _EXCEL.match(content)
        if excel:
            self._cut(excel.end())
            return excel.group(1)
        comments = _COMMENTS.match(content)
        end = comments.end() if comments else 0
        body = content[end : end + _TRIED_LETTERS]
        whole = len(content) <= end + _TRIED_LETTERS
        usual = TABLES[self.path.suffix.lower()]
        delimiter = _delimiter_of(self.path, usual, body, whole)
        last = content[:end].rstrip().rpartition("\n")[2].lstrip("# ")
        self._cut(end)
        if _width(last, delimiter) == _width(body, delimiter) > 1:
            # The last comment names the columns, as NumPy writes them.
            self._content = f"{last}\n{self._content}"
            self._above -= 1
        return delimiter

    def _cut(self, end: int) -> None:
        self._above = self._content.count("\n", 0, end)
        self._content = self._content[end:]

    def _all_rows(self) -> Iterator[_Row]:
        """The header and the rows."""
        suffix = self.path.suffix.lower()
        if suffix == OBJECTS:
            return (_Row(line, cells) for line, cells in enumerate(self._objects))
        if suffix == ".csv":
            return self._quoted()
        try:
            return iter([*self._quoted()])
        except ValueError:
            # Many such tables do not use quoting: quotes are part of the texts.
            return self._csv_rows(quoting=csv.QUOTE_NONE)

    @cached_property
    def _objects(self) -> list[tuple[str, ...]]:
        return rows_of_objects(self.path, self._content.split("\n"))

    def _quoted(self) -> Iterator[_Row]:
        line = self._above
        try:
            for row in self._csv_rows(strict=True):
                yield row
                line = row.line
        except csv.Error as error:
            raise ValueError(
                f"{self.path}, after line {line}: {error}; put a cell with a "
                f"{self.delimiter!r} or a quote between quotes, and double its own quotes"
            ) from error

    def _csv_rows(self, **options: Any) -> Iterator[_Row]:
        content = StringIO(self._content, newline="")
        reader = csv.reader(
            content, delimiter=self.delimiter, skipinitialspace=True, **options
        )
        with _long_cells():
            for cells in filter(None, reader):
                yield _Row(self._above + reader.line_num, tuple(cells))


def may_name(columns: Sequence[str]) -> bool:
    """Whether cells may be the names of columns: numbers only if they count, or if they
    grow or fall beside other names, as times and wavelengths do.
    """
    numbers = [float(cell) for cell in columns if is_number(cell)]
    if len(numbers) == len(columns):
        places = range(len(columns))
        return [*columns] in [
            [str(place + first) for place in places] for first in (0, 1)
        ]
    steps = [later - earlier for earlier, later in pairwise(numbers)]
    return all(step > 0 for step in steps) or all(step < 0 for step in steps)


def first_places(columns: Sequence[str]) -> dict[str, int]:
    """The place of each column; of the first of those with one name."""
    places: dict[str, int] = {}
    for place, name in enumerate(columns):
        places.setdefault(name, place)
    return places


def rows_of_objects(path: Path, lines: Iterable[str]) -> list[tuple[str, ...]]:
    """The rows of a table of JSON objects, first the names of its columns: those of all
    objects.

    Args:
        path: the table, for the message.
        lines: its lines.

    Raises:
        ValueError: if a line is no JSON object, or nearly all of their cells would be
            empty: a small file would take much time and memory.
    """
    objects: list[dict[str, Any]] = []
    columns: dict[str, None] = {}
    present = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            objects.append(parsed_json(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        columns |= dict.fromkeys(objects[-1])
        present += len(objects[-1])
        if len(objects) * len(columns) > _MOST_LACKING + _LACKING_EACH * present:
            raise ValueError(
                f"{path}, line {number}: the objects lack most of the {len(columns):,} "
                "columns that they have together: leave out those that do not count"
            )
    if not objects:
        return []
    rows = [tuple(_cell(row.get(name)) for name in columns) for row in objects]
    return [tuple(columns), *rows]


def _cell(value: Any) -> str:
    """A value of JSON as the cell of a table."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _value(cell: str) -> str:
    """What a cell holds, without blanks around it; empty where there is no value."""
    cell = cell.strip()
    return "" if cell in MISSING else cell


def _delimiter_of(path: Path, usual: str, beginning: str, whole: bool) -> str:
    """What stands between the cells of a table: the sign by which all rows have as many
    cells as the header, or else the most.

    Args:
        path: the table, for the message.
        usual: what its suffix stands for.
        beginning: the header and the first rows.
        whole: whether this is the whole table.

    Raises:
        ValueError: there are two such signs.
    """
    fitting: dict[str, float] = {}
    for sign in (usual, *SIGNS):
        rows = _tried(beginning, sign)
        rows = rows if whole or len(rows) < 2 else rows[:-1]
        width = len(rows[0]) if rows else 0
        if width > 1:
            fits = [len(row) >= width and not any(row[width:]) for row in rows]
            fitting[sign] = sum(fits) / len(fits)
    certain = [sign for sign, share in fitting.items() if share == 1]
    if len(certain) > 1 and usual == ",":
        raise ValueError(
            f"the cells of {path} may be separated by {certain[0]!r} or by "
            f"{certain[1]!r}: by each, all rows have as many cells as the first line. "
            "Put cells that hold one of these signs between quotes"
        )
    return max(fitting, key=fitting.__getitem__, default=usual)


def _tried(beginning: str, sign: str) -> list[list[str]]:
    """The first rows of a table, if a sign stands between their cells."""
    lines = StringIO(beginning, newline="")
    reader = csv.reader(lines, delimiter=sign, skipinitialspace=True)
    with _long_cells():
        return [*islice(filter(None, reader), _TRIED_ROWS)]


def _width(beginning: str, sign: str) -> int:
    """How many cells the first row has."""
    return max(map(len, _tried(beginning, sign)[:1]), default=0)


@contextmanager
def _long_cells() -> Iterator[None]:
    """Reads cells of any length."""
    limit = csv.field_size_limit(_LONGEST)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
