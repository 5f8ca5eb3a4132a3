"""Tables in text files, read whole: nothing of them is skipped without a word."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps_lab.data.plain_text import decoded
from torchcaps_lab.look import OBJECTS, delimiter_of, rows_of_objects

ANY_LENGTH = 2**31 - 1
"""Letters of a cell that is a text, which may be longer than csv expects."""


class Row(NamedTuple):
    """One row of a table.

    Args:
        line: the line of the file that it ends in, counted from 1.
        cells: its cells as they came, maybe fewer or more than there are columns.
    """

    line: int
    cells: tuple[str, ...]


class Table:
    """A table with a header: cells separated by commas, or by semicolons or tabs where
    the header has no comma; or a JSON object in each line.

    Args:
        path: a .csv, .tsv or .jsonl file, in UTF-8, UTF-16 or Latin-1.
        longest: how many letters a cell may have; default: 131,072, as csv has it.

    Attributes:
        delimiter: what stands between two cells; empty for JSON.
        columns: the names of the columns; none in an empty file.

    Raises:
        ValueError: a line is no JSON object, or a quote in a .csv file is not closed,
            or a cell is longer; names the line.

    Example:
        >>> import tempfile
        >>> from torchcaps_lab.data.tables import Table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "labels.csv"
        ...     _ = path.write_text("file;label\\na.jpg;cat\\nb.jpg\\n")
        ...     table = Table(path)
        >>> table.columns, [table.misfit(row, ["label"]) for row in table.rows()]
        (('file', 'label'), ['', 'it has not as many cells as there are columns, 2'])
    """

    def __init__(self, path: Path, longest: int | None = None) -> None:
        self.path = path
        self._longest = longest
        self._content = decoded(path)
        self.delimiter = delimiter_of(path, self._content.partition("\n")[0])
        header = next(self._all_rows(), None)
        self.columns = () if header is None else header.cells
        self._times = Counter(self.columns)
        self._places: dict[str, int] = {}
        for place, name in enumerate(self.columns):
            self._places.setdefault(name, place)

    def rows(self) -> Iterator[Row]:
        """The rows below the header, without empty ones."""
        rows = self._all_rows()
        next(rows, None)
        return rows

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

    def misfit(self, row: Row, needed: Iterable[str]) -> str:
        """Why a row cannot be used, for people; empty if it can. Empty cells at its end
        do not matter, and neither do missing ones of columns that are not needed.

        Args:
            row: the row.
            needed: names of columns whose cells it must have.
        """
        last = max(map(self._places.__getitem__, needed))
        if len(row.cells) > last and not any(row.cells[len(self.columns) :]):
            return ""
        return f"it has not as many cells as there are columns, {len(self.columns)}"

    def values(self, row: Row, columns: Iterable[str]) -> dict[str, str]:
        """The cells of a row in some columns; empty ones for those that it lacks."""
        places = {name: self._places[name] for name in columns}
        return {
            name: row.cells[place] if place < len(row.cells) else ""
            for name, place in places.items()
        }

    def _all_rows(self) -> Iterator[Row]:
        """The header and the rows."""
        suffix = self.path.suffix.lower()
        if suffix == OBJECTS:
            objects = rows_of_objects(self.path, self._content.split("\n"))
            return (Row(line, cells) for line, cells in enumerate(objects))
        if suffix == ".csv":
            return self._quoted()
        try:
            return iter([*self._quoted()])
        except ValueError:
            # Many such tables do not use quoting: quotes are part of the texts.
            return self._unquoted()

    def _quoted(self) -> Iterator[Row]:
        line = 0
        try:
            for row in self._read(strict=True):
                yield row
                line = row.line
        except csv.Error as error:
            raise ValueError(
                f"{self.path}, after line {line}: {error}; put a cell with a comma or "
                "a quote between quotes, and double its own quotes"
            ) from error

    def _unquoted(self) -> Iterator[Row]:
        return self._read(quoting=csv.QUOTE_NONE)

    def _read(self, **options: Any) -> Iterator[Row]:
        content = StringIO(self._content, newline="")
        reader = csv.reader(content, delimiter=self.delimiter, **options)
        with _cells_of(self._longest):
            for cells in filter(None, reader):
                yield Row(reader.line_num, tuple(cells))


@contextmanager
def _cells_of(longest: int | None) -> Iterator[None]:
    """Reads cells of so many letters; of as many as always for None."""
    limit = csv.field_size_limit()
    csv.field_size_limit(longest or limit)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
