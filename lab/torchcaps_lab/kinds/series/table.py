"""Tables of series: a row for each moment, or a row for each series."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain, combinations, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps_lab.data.columns import (
    Column,
    Columns,
    UnclearColumns,
    are_numbers,
    is_quantity,
    quoted,
)
from torchcaps_lab.data.listed import BrokenItem, Item, Listed
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.table_form import LabelledRow, TableForm, names_in
from torchcaps_lab.data.tables import Cells, Table
from torchcaps_lab.kinds.series.moments import Moment, dates_begin_with, moment_of
from torchcaps_lab.look import is_number, number_in

_NAMES = (
    "series sequence recording trial sample episode session run segment window case"
)
_SERIES = tuple(_NAMES.split())
"""Usual names of a column that says which series a row belongs to, maybe with ``_id``,
the likeliest first.
"""

_MOMENTS = (
    "time timestamp datetime date t step timestep time_step frame moment tick second "
    "seconds sec ms minute hour day"
)
_TIMES = tuple(_MOMENTS.split())
"""Usual names of a column that says when a row was measured, and of the moments in a
row, the likeliest first.
"""

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+", re.ASCII)
"""A number whose commas may mark thousands."""

_LEAST_WIDE = 8
"""Numbered columns that may be the moments of a series."""

_NUMBERED = re.compile(r"(.*?)[ _.\-]?(\d+)(?: *[(\[][^()\[\]]*[)\]])?", re.ASCII)
"""The name of a moment: of its channel, its number and maybe a unit in brackets."""


@dataclass(frozen=True)
class SeriesItem(Item):
    """One series that is listed.

    Args:
        name: its file, or its file and number.
        category: the name of its class; empty where it is not known.
        values: (C, L).
        where: its place, for people.
    """

    values: Tensor
    where: str

    @property
    def title(self) -> str:
        """What people call it."""
        return self.where

    def __str__(self) -> str:
        return self.title

    def source(self) -> BytesIO:
        """Its content."""
        return BytesIO(
            repr((*self.values.shape,)).encode() + self.values.numpy().tobytes()
        )


class BrokenSeries(BrokenItem):
    """The error for a series with gaps, or with too few moments."""

    things = "series"


def series_at(
    path: Path, place: int | str, category: str, values: Tensor | str, group: str = ""
) -> SeriesItem | BrokenSeries:
    """One of the series in a file, or why it cannot be used.

    Args:
        path: the file.
        place: its number, or what names it there.
        category: the name of its class.
        values: (C, L), or why there are none.
        group: whom or what it is of; empty where that is not known.
    """
    name = f"{path.name}:{place}"
    if isinstance(values, str):
        return BrokenSeries(name, values)
    try:
        values = checked(values, "it")
    except ValueError as error:
        return BrokenSeries(name, str(error))
    return SeriesItem(name, category, values, f"{path}:{place}", group=group)


class SeriesForm(NamedTuple):
    """What the columns of a table of series are read as.

    Args:
        form: the labels, splits and groups of the series.
        series: the columns that together say which series a row belongs to; none if
            each row is a series.
        time: when a row was measured: the rows of a series are put in this order; None:
            they are in it.
        values: in a long table the channels, in a wide one the moments; all columns
            that are nothing else if there are none.
        numbered: the channels of a wide table all of whose numbered columns are its
            moments, however many a table has of them; in place of ``values``.
    """

    form: TableForm = TableForm(None, ("label",))
    series: tuple[str, ...] = ("series",)
    time: str | None = None
    values: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()

    def unlabelled(self) -> "SeriesForm":
        """This form without what is known of series that are trained on alone."""
        return self._replace(form=TableForm(None, ()))

    def without_split(self) -> "SeriesForm":
        """This form for a table of one split."""
        return self._replace(form=self.form._replace(split=None))

    def values_in(self, table: Table | Cells) -> tuple[str, ...]:
        """The columns of numbers in a table."""
        if self.numbered:
            matches = filter(None, map(_NUMBERED.fullmatch, table.columns))
            return tuple(match[0] for match in matches if match[1] in self.numbered)
        rest = {*self.series, *self.form.needed, self.time}
        return self.values or tuple(name for name in table.columns if name not in rest)

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels, as far as they are known."""
        if self.series:
            return self.values
        return self.numbered or (*_channels_of(self.values),)

    def named(self, table: Table | Cells) -> "SeriesForm":
        """This form with the names of the columns of numbers that it has in a table, by
        which other tables are read.
        """
        values = self.values_in(table)
        named = self._replace(values=values)
        if self.series:
            return named
        numbered = self._replace(values=(), numbered=(*_channels_of(values),))
        return numbered if {*numbered.values_in(table)} == {*values} else named

    def options(self) -> dict[str, Any]:
        """The options of the data set."""
        series: Any = self.series[0] if len(self.series) == 1 else [*self.series]
        own = {"series": series} if series else {"wide": True}
        more = {"time": self.time, "values": [*self.values]}
        present = {name: value for name, value in more.items() if value}
        return own | self.form.options() | present

    def config(self) -> dict[str, Any]:
        """All that reading series without labels needs, ready for JSON."""
        read = self._asdict()
        del read["form"]
        return read

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SeriesForm":
        """What :meth:`config` was made of."""
        series, values = tuple(config["series"]), tuple(config["values"])
        numbered = tuple(config["numbered"])
        return cls(TableForm(None, ()), series, config["time"], values, numbered)


def series_of_table(
    path: Path, form: SeriesForm, listed: Listed
) -> dict[str, list[SeriesItem | BrokenSeries]]:
    """The series of a table by split, ``all`` where no column says it; tells ``listed``
    why others are left out.

    Raises:
        ValueError: a column is missing, or which rows are of one series is not clear;
            names the row or the series.
    """
    table = Table(path)
    named = [("series", name) for name in form.series]
    named += [("values", name) for name in form.values]
    form.form.check(table, *named, ("time", form.time))
    table.check_once(table.columns)
    if not form.values_in(table):
        wanted = f" with the numbers of {' and '.join(form.numbered)}" * bool(
            form.numbered
        )
        raise ValueError(
            f"{path} has no columns{wanted}; there are {some(table.columns) or 'none'}"
        )
    parts: dict[str, list[SeriesItem | BrokenSeries]] = {}
    if not form.form.split:
        parts["all"] = []
    read = _long if form.series else _wide
    for row, values in read(table, form, listed):
        item = series_at(path, row.place, row.category, values, row.group)
        parts.setdefault(row.part or "all", []).append(item)
    if form.series and form.time is None and not form.values:
        every = [
            item.values
            for item in chain.from_iterable(parts.values())
            if isinstance(item, SeriesItem)
        ]
        _check_no_time(path, form.values_in(table), every)
    return parts


def _check_no_time(
    path: Path, channels: Sequence[str], series: Sequence[Tensor]
) -> None:
    """Raise a `ValueError` if one of the channels is called as times are, or grows in
    equal steps in every series, beside others that do not.
    """
    counted = [
        name
        for place, name in enumerate(channels)
        if all(_grows_evenly(values[place]) for values in series)
    ]
    if len(counted) == len(channels):
        counted = []
    times = [name for name in channels if name.strip().lower() in _TIMES] or counted
    if times:
        others = [name for name in channels if name != times[0]]
        raise ValueError(
            f"column {times[0]!r} of {path} may say when a row was measured, and would "
            f"be a channel. Add --data.time {quoted(times[0])}, or name the channels, "
            f"as in --data.values {quoted(json.dumps(others, ensure_ascii=False))}"
        )


def _grows_evenly(numbers: Tensor) -> bool:
    """Whether three or more numbers grow in equal steps."""
    if len(numbers) < 3:
        return False
    steps = numbers.double().diff()
    rounding = 4 * torch.finfo(numbers.dtype).eps * float(numbers.abs().max())
    alike = torch.allclose(steps, steps.mean(), rtol=1e-3, atol=rounding)
    return bool(steps.min() > rounding) and alike


def _wide(
    table: Table, form: SeriesForm, listed: Listed
) -> Iterator[tuple[LabelledRow, Tensor | str]]:
    """Each row as a series, of the moments until its last one; or why it is none."""
    moments = form.values_in(table)
    channels = [*_channels_of(moments).values()]
    numbers = _Numbers(thousands=table.delimiter == ",")
    for row in form.form.rows(table, listed, table.path.name, moments):
        length = len(channels[0])
        while length and not any(
            row.values[columns[length - 1]] for columns in channels
        ):
            length -= 1
        present = [name for columns in channels for name in columns[:length]]
        cells = {name: row.values[name] for name in present}
        row = row._replace(place=row.place.removeprefix(f"{table.path.name}, "))
        try:
            values = torch.tensor(numbers.of(cells, f"{table.path}, {row.place}"))
        except _NoNumber as error:
            yield row, str(error)
        else:
            yield row, values.view(len(channels), length)
    numbers.check()


def _channels_of(names: Sequence[str]) -> dict[str, list[str]]:
    """The columns of each channel of a wide table, by the numbers at their ends, in the
    order of the channels' names: one channel without a name if they are not numbered
    alike.
    """
    channels: dict[str, dict[int, str]] = {}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            return {"": [*names]}
        channels.setdefault(match[1], {})[int(match[2])] = name
    moments = {tuple(sorted(channel)) for channel in channels.values()}
    if len(moments) > 1:
        return {"": [*names]}
    return {
        name: [channel[key] for key in sorted(channel)]
        for name, channel in sorted(channels.items())
    }


def _long(
    table: Table, form: SeriesForm, listed: Listed
) -> Iterator[tuple[LabelledRow, Tensor | str]]:
    """The series of a table with a row for each moment, or why they are none."""
    channels = form.values_in(table)
    thousands = table.delimiter == ","
    numbers = _Numbers(thousands)
    steady = (*form.series, *form.form.needed)
    needed = (*steady, *names_in(form.time))
    moments: dict[str, list[tuple[Moment, list[float]]]] = {}
    facts: dict[str, tuple[str, ...]] = {}
    wrong: dict[str, str] = {}
    for row in table.rows(needed, channels):
        place, values = f"{table.path}:{row.line}", row.values
        if row.misfit:
            raise ValueError(f"{place} cannot be used: {row.misfit}")
        if lacking := [column for column in form.series if not values[column]]:
            raise ValueError(
                f"{place}: every row must name its series, got an empty cell in column "
                f"{lacking[0]!r}"
            )
        name = series_name(values[column] for column in form.series)
        before = moments.setdefault(name, [])
        when: Moment = (len(before), len(before))
        try:
            if form.time is not None:
                cell = values[form.time]
                if is_quantity(cell) and not (thousands and _THOUSANDS.fullmatch(cell)):
                    cell = cell.replace(",", ".")
                when = _moment(cell, form.time)
            cells = {channel: values[channel] for channel in channels}
            before.append((when, numbers.of(cells, place)))
        except _NoNumber as error:
            wrong.setdefault(name, f"line {row.line}: {error}")
        fact = tuple(values[column] for column in steady)
        if facts.setdefault(name, fact) != fact:
            raise ValueError(
                f"{place}: series {name} is {facts[name]} before and {fact} here, by "
                f"the columns {steady}"
            )
    numbers.check()
    times_of = [[when for when, _ in rows] for rows in moments.values()]
    first = dates_begin_with(times_of, f"column {form.time!r} of {table.path}")
    for name, fact in facts.items():
        rows = moments[name]
        rows.sort(key=lambda row: row[0][first] or 0.0)
        times = [when[first] for when, _ in rows]
        if len({*times}) < len(times):
            raise ValueError(
                f"{table.path}: series {name} has several rows of one {form.time}: "
                f"another column may tell the series apart, or --data.time null"
            )
        cells = dict(zip(steady, fact, strict=True))
        labelled = form.form.labelled(cells, name)
        if isinstance(labelled, str):
            listed.left_out[f"{table.path.name}:{name}"] = labelled
        else:
            values_of_rows = [numbers for _, numbers in rows]
            yield labelled, wrong.get(name) or torch.tensor(values_of_rows).T


def series_name(cells: Iterable[str]) -> str:
    """The name of a series, of the cells that say which it is."""
    return " / ".join(cells)


class _NoNumber(ValueError):
    """The error for a cell of a series that holds no number."""


def _moment(cell: str, column: str) -> Moment:
    """When a row was measured."""
    try:
        return moment_of(cell)
    except ValueError:
        raise _NoNumber(
            f"{column} must be a number, or a time such as 2024-01-31 12:00, got "
            f"{cell[:40]!r}: with --data.time null, the rows are in their order"
        ) from None


class _Numbers:
    """Reads the numbers of a table, which may have a decimal comma in place of the
    point, as programs write them in many countries.

    Args:
        thousands: whether a comma before three digits may also mark thousands, as in
            tables with commas between cells.
    """

    def __init__(self, thousands: bool) -> None:
        self._thousands = thousands
        self._first: dict[str, str] = {}
        self._unclear = ""

    def of(self, row: Mapping[str, str], place: str) -> list[float]:
        """The numbers of a row by column; a `ValueError` if one is none, or if some
        numbers of the table have a comma and others a point, which names its place.
        """
        cells = [*row.values()]
        for cell in cells:
            if "." in cell or "," in cell:
                self._note(cell, place)
        if len(self._first) > 1:
            raise ValueError(
                "numbers must have either a point or a comma, got "
                + " and ".join(self._first.values())
            )
        point = "." if "." in self._first else ","
        written = [cell.replace(point, ".").strip() for cell in cells]
        try:
            return [number_in(cell) for cell in written]
        except ValueError:
            wrong = [
                f"{row[name][:40]!r} in {name}"
                for name, cell in zip(row, written, strict=True)
                if not is_number(cell)
            ]
            raise _NoNumber(
                f"every channel must be a number, got {some(wrong)}"
            ) from None

    def _note(self, cell: str, place: str) -> None:
        """Keep the first number with each sign."""
        if self._thousands and _THOUSANDS.fullmatch(cell):
            self._unclear = self._unclear or f"{cell} at {place}"
            return
        for sign in ".,":
            if sign in cell and sign not in self._first and is_quantity(cell):
                self._first[sign] = f"{cell} at {place}"

    def check(self) -> None:
        """Raise a `ValueError` if numbers of the table have commas that may all mark
        thousands.
        """
        if self._unclear and "," not in self._first:
            raise ValueError(
                f"the comma of {self._unclear} may be a decimal one or mark thousands: "
                "write a point, or nothing"
            )


def floats_of(values: Any) -> Tensor:
    """Numbers of any kind in float32; an array may run backwards through its memory."""
    if isinstance(values, np.ndarray):
        values = values.copy()
    return torch.as_tensor(values, dtype=torch.float32)


def checked(values: Tensor, title: str) -> Tensor:
    """A series as it came; a `ValueError` that names it if it has too few moments, or
    numbers that are not finite.
    """
    if values.ndim != 2 or not values.shape[0] or values.shape[1] < 2:
        raise ValueError(
            f"{title} must have one or more channels and two or more moments, got "
            f"{(*values.shape,)}"
        )
    if not values.isfinite().all():
        channel, moment = (~values.isfinite()).nonzero()[0].tolist()
        raise ValueError(
            f"{title} holds NaN or infinite numbers, first in channel {channel} at "
            f"moment {moment}"
        )
    return values.contiguous()


def form_of_series(
    table: Path, cells: Cells, columns: Columns, given: Mapping[str, Any]
) -> SeriesForm | None:
    """Choose the columns of a table of series; None if it is none.

    Args:
        table: the path, for messages.
        cells: its cells.
        columns: what its columns hold.
        given: the options of the data set that the user gave.

    Raises:
        ValueError: it may hold something else, or which column has the labels is not
            clear; names the columns and what to type.
    """
    if given.get("wide"):
        return _wide_form(table, cells, columns, given)
    if columns.of_role("file") and "series" not in given:
        return None
    form = _long_form(table, cells, columns, given)
    return form or _numbered_form(table, cells, columns, given)


def _long_form(
    table: Path, cells: Cells, columns: Columns, given: Mapping[str, Any]
) -> SeriesForm | None:
    """How the rows of a table are the moments of series; None if they are not."""
    grouping, series = _series_of(cells, columns, given)
    if not series:
        _check_unnamed(table, cells, columns)
        return None
    values = names_in(given.get("values")) or grouping.values(series)
    steady = grouping.steady(series)
    # Whom the series are of may be part of their names.
    of_series = Columns(
        tuple(
            column
            for column in Columns.of(grouping.first_rows(series)).columns
            if column.name not in series or column.role == "group"
        )
    )
    if "series" not in given:
        labels = of_series.of_role("label", "labels", "flag")
        if not values or not any(column.name in steady for column in labels):
            return None
        typed = f"--data.series {quoted(series[0])}"
        columns.check_no_texts(str(table), "series", typed)
    time = grouping.time
    if time is None and not {"time", "values"} & given.keys():
        time = grouping.counted(values, series)
        values = tuple(name for name in values if name != time)
    taken = [name for name in cells.columns if name not in steady]
    form = SeriesForm(TableForm.of(of_series, None, table, given, taken), series, time)
    return form if form.values_in(cells) == values else form._replace(values=values)


def _series_of(
    cells: Cells, columns: Columns, given: Mapping[str, Any]
) -> "tuple[_Grouping, tuple[str, ...]]":
    """The columns that say when a row was measured and which series it belongs to; none
    if no columns tell series apart.
    """
    times = [given["time"]] if "time" in given else [*_time_columns(columns), None]
    groupings = [_Grouping(cells, columns, time) for time in times]
    if "series" in given:
        series = names_in(given["series"])
        moving = [
            grouping
            for grouping in groupings
            if grouping.time and grouping.time not in grouping.steady(series)
        ]
        apart = [grouping for grouping in moving if grouping.is_apart(series)]
        return [*apart, *moving, groupings[-1]][0], series
    with_series = ((grouping, grouping.series()) for grouping in groupings)
    return next((pair for pair in with_series if pair[1]), (groupings[-1], ()))


class _Grouping:
    """Which rows of a table are of one series.

    Args:
        cells: the cells of the table.
        columns: what its columns hold.
        time: the column that says when a row was measured; None without one.
    """

    def __init__(self, cells: Cells, columns: Columns, time: str | None) -> None:
        self.cells = cells
        self.columns = columns
        self.time = time

    def series(self) -> tuple[str, ...]:
        """The column that tells series apart, or two that do it together: other columns
        that may do it are the same in all rows of a series. None if there are none.
        """
        likely = [
            column
            for column in [*self.columns.called(_SERIES), *self.columns.columns]
            if self._may_name(column)
        ]
        names = [*dict.fromkeys(column.name for column in likely)]
        in_order = [name for name in self.cells.columns if name in names]
        for series in chain(((name,) for name in names), combinations(in_order, 2)):
            if self.is_apart(series) and {*names} <= {*self.steady(series)}:
                return series
        return ()

    def named(self, series: Sequence[str]) -> list[str]:
        """The series of each row."""
        cells = (self.cells.column(name) for name in series)
        return [*map(series_name, zip(*cells, strict=True))]

    def steady(self, series: Sequence[str]) -> list[str]:
        """The columns that have one cell in each series."""
        names = self.named(series)
        return [
            column
            for column in self.columns.by_name
            if len({*zip(names, self.cells.column(column), strict=True)})
            == len({*names})
        ]

    def values(self, series: Sequence[str]) -> tuple[str, ...]:
        """The columns of numbers that change within series."""
        steady = {*self.steady(series), self.time}
        return tuple(
            column.name
            for column in self.columns.of_role("number", "label", "flag")
            if column.name not in steady and _is_numeric(self.cells, column.name)
        )

    def counted(self, values: Sequence[str], series: Sequence[str]) -> str | None:
        """The first column that counts the rows of each series in equal steps, beside
        others; None if none does.
        """
        names = self.named(series)
        for name in values[: -1 if len(values) == 1 else None]:
            rows: dict[str, list[str]] = {}
            for series_of_row, cell in zip(names, self.cells.column(name), strict=True):
                rows.setdefault(series_of_row, []).append(cell)
            if all(map(_is_even, rows.values())):
                return name
        return None

    def first_rows(self, series: Sequence[str]) -> Cells:
        """The first row of each series."""
        names = self.named(series)
        rows = dict(zip(names[::-1], self.cells.rows[::-1], strict=True))
        return Cells(
            self.cells.columns, tuple(rows[name] for name in dict.fromkeys(names))
        )

    def _may_name(self, column: Column) -> bool:
        """Whether a column is called as those that tell series apart are, and has
        several rows of each.
        """
        name = column.name.strip().lower()
        called = column.role == "group" or re.search(r"(^|[ _])id$", name)
        plain = re.sub(r"[ _]id$", "", name)
        repeats = 2 * column.distinct <= len(self.cells.rows)
        return repeats and column.distinct > 1 and bool(called or plain in _SERIES)

    def is_apart(self, series: Sequence[str]) -> bool:
        """Whether no series has two rows of one time; without times, whether its rows
        stand together.
        """
        names = self.named(series)
        if self.time is not None:
            rows = [*zip(names, self.cells.column(self.time), strict=True)]
            return len({*rows}) == len(rows)
        starts = [name for name, before in pairwise(names) if name != before]
        return len(starts) + 1 == len({*names})


def _time_columns(columns: Columns) -> list[str]:
    """The columns that may say when a row was measured, the likeliest first."""
    usable = [*columns.called(_TIMES), *columns.of_role("date")]
    held = ("number", "date", "label", "identifier", "flag")
    return [*dict.fromkeys(column.name for column in usable if column.role in held)]


def _is_numeric(cells: Cells, name: str) -> bool:
    return are_numbers([*filter(None, cells.column(name))])


def _is_even(cells: Sequence[str]) -> bool:
    """Whether numbers grow in equal steps, also those with a decimal comma."""
    cells = [cell.replace(",", ".") for cell in cells]
    if not all(map(is_number, cells)):
        return False
    return _grows_evenly(torch.tensor([*map(number_in, cells)], dtype=torch.float64))


def _wide_form(
    table: Path, cells: Cells, columns: Columns, given: Mapping[str, Any]
) -> SeriesForm:
    """How each row of a table is a series."""
    numbered = [name for stem in _numbered(cells).values() for name in stem]
    numbers = [column.name for column in columns.of_role("number")]
    if "label" in given:
        # A moment may have few values in all series, or one, such as a start at 0.
        others = {*names_in(given["label"]), given.get("group"), given.get("split")}
        numbers = [
            column.name
            for column in columns.of_role("number", "label", "flag", "constant")
            if column.name not in others and _is_numeric(cells, column.name)
        ]
    values = names_in(given.get("values")) or tuple(numbered or numbers)
    form = TableForm.of(columns, None, table, given, values)
    return SeriesForm(form, (), None, values)


def _check_unnamed(table: Path, cells: Cells, columns: Columns) -> None:
    """Raise a `ValueError` if dates and rows that belong together look like series, and
    no column is called as their names are.
    """
    repeated = [
        column.name
        for column in columns.columns
        if 1 < column.distinct <= len(cells.rows) // 2
    ]
    for dated, name in product(columns.of_role("date"), repeated):
        grouping = _Grouping(cells, columns, dated.name)
        if not grouping.is_apart([name]) or not grouping.values([name]):
            continue
        of_series = Columns.of(grouping.first_rows([name]))
        steady = {*grouping.steady([name])} - {name}
        labels = [
            column.name
            for column in of_series.of_role("label")
            if column.name in steady
        ]
        if labels:
            options = ["--data.series", name, "--data.time", dated.name]
            command = ["torchcaps", "train", str(table), *options]
            raise UnclearColumns(
                f"{table} may hold series: {dated.name!r} has other dates in the rows "
                f"of each {name!r}. If so: {shlex.join(command)} --data.label "
                f"{quoted(labels[0])}"
            )


def _numbered_form(
    table: Path, cells: Cells, columns: Columns, given: Mapping[str, Any]
) -> SeriesForm | None:
    """How each row is a series, if numbered columns are called as moments are.

    Raises:
        ValueError: many columns have numbers and other names, so that they may be
            moments, features or pixels; or there are also texts.
    """
    numbered = _numbered(cells)
    if not numbered or columns.of_role("text"):
        return None
    if {*numbered} <= {*_TIMES, *(f"{name}s" for name in _TIMES)}:
        return _wide_form(table, cells, columns, given)
    (first, *_, last), *_ = numbered.values()
    raise UnclearColumns(
        f"the columns {first} to {last} of {table} may be the moments of a series in "
        "each row, or features, or the pixels of images. For series: torchcaps train "
        f"{quoted(str(table))} --data.wide true. For features: "
        "torchcaps.sklearn.CapsNetClassifier. For pixels: torchcaps.train(images, "
        "labels)"
    )


def _numbered(cells: Cells) -> dict[str, list[str]]:
    """The columns of numbers whose names end in numbers, by the rest of their names in
    lower case; without those of few. Empty ones after them are moments that no series
    of this table reaches.
    """
    stems: dict[str, list[str]] = {}
    empty: dict[str, list[str]] = {}
    for name in dict.fromkeys(cells.columns):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            continue
        stem = match[1].lower()
        if not any(cells.column(name)):
            empty.setdefault(stem, []).append(name)
        elif _is_numeric(cells, name):
            stems.setdefault(stem, []).append(name)
            empty.pop(stem, None)
    return {
        stem: names + empty.get(stem, [])
        for stem, names in stems.items()
        if len(names) >= _LEAST_WIDE
    }
