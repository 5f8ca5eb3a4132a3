"""What the columns of a table are read as, and its rows by it: the same for all kinds of
input.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps_lab.data.classes import composed
from torchcaps_lab.data.columns import (
    LIST,
    NO,
    YES,
    Columns,
    UnclearColumns,
    part_in,
    parts_of,
    quoted,
    which_of,
)
from torchcaps_lab.data.labels import columns_note
from torchcaps_lab.data.listed import Listed
from torchcaps_lab.data.manifest import PARTS, some
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.plain_text import check_text
from torchcaps_lab.data.tables import Table
from torchcaps_lab.look import TABLES, Place

JOINED = "|"
"""What stands between labels that come from columns of their own, or from a list."""

ITEMS = ("file", "text", "series", "wide")
"""The options by which a kind of input names the column that is its own."""


def is_of_others(given: Mapping[str, Any], *own: str) -> bool:
    """Whether the user named a column that another kind of input reads.

    Args:
        given: the options of the data set that the user gave.
        own: those of this kind.
    """
    return any(name in given for name in ITEMS if name not in own)


def tables_of(place: Place) -> dict[str, Path]:
    """Return the tables at a path that hold all examples: as ``all`` the file, or the
    only table in a folder; or the first of each split, that for training before the
    others; none if there are others.

    Args:
        place: the file or the folder.
    """
    tables = tables_beside(place)
    if len(tables) == 1:
        return {"all": tables[0]}
    parts = {part_of_table(path): path for path in tables[::-1]}
    named = {part: parts[part] for part in PARTS if part in parts}
    return named if "train" in named and len(named) > 1 else {}


def tables_beside(place: Place) -> list[Path]:
    """Return the tables directly at a path, without the examples of answers that
    competitions put beside their data.
    """
    return [
        path
        for path in place.top
        if path.suffix.lower() in TABLES
        and (place.is_file or "submission" not in path.stem.lower())
    ]


def labelled_tables(
    tables: Mapping[str, Path], columns: Collection[str]
) -> dict[str, Path]:
    """Return the tables that have some columns, the first of which has them: those to
    test on may lack the labels, as in competitions.
    """
    first = [*tables][:1]
    return {
        part: path
        for part, path in tables.items()
        if part in first or {*columns} <= {*Table(path).columns}
    }


def part_of_table(path: Path) -> str | None:
    """The split that a table is named after, such as ``Vowels_TRAIN.csv``; None if it is
    named after none.
    """
    return part_called(path.stem) or part_called(path.stem.rpartition("_")[2])


class LabelledRow(NamedTuple):
    """A row of a table that has what it needs.

    Args:
        place: the row, for people.
        part: its split; empty where no column says it.
        category: its label, or all its labels.
        group: whom or what it is of; empty where that is not known.
        values: the cells that are read, by column.
    """

    place: str
    part: str
    category: str
    group: str
    values: Mapping[str, str]


class TableForm(NamedTuple):
    """What the columns of a table are read as.

    Args:
        item: the texts, the names of the images, or the names of the series; None if a
            row needs no name.
        labels: their labels; several columns, of yes and no, have a class each.
        delimiter: what stands between the labels of one item, or :data:`LIST`; empty if
            each has one.
        split: which split a row belongs to; None without one.
        group: whom or what an item is of; None without one.
    """

    item: str | None
    labels: tuple[str, ...]
    delimiter: str = ""
    split: str | None = None
    group: str | None = None

    @classmethod
    def stated(cls, item: str | None, options: Mapping[str, Any]) -> "TableForm":
        """The form that the options, or arguments, of a data set state.

        Args:
            item: the column that a kind of input reads.
            options: by name.
        """
        return cls(
            item,
            names_in(options["label"]),
            options.get("delimiter") or "",
            options.get("split"),
            options.get("group"),
        )

    @classmethod
    def of(
        cls,
        columns: Columns,
        item: str | None,
        table: Path,
        given: Mapping[str, Any],
        taken: Collection[str] = (),
    ) -> "TableForm":
        """Choose the columns of a table.

        Args:
            columns: those of the table.
            item: the column that a kind of input reads.
            table: the path, for messages.
            given: the options of the data set that the user gave.
            taken: other columns that the kind reads.

        Raises:
            ValueError: none or several columns may hold the labels or the groups, or
                their cells may hold several labels; names the columns.
        """
        split = given["split"] if "split" in given else _split_of(columns, table)
        if "group" in given:
            group = given["group"]
        else:
            others = (item, *taken)
            rest = [column for column in columns.columns if column.name not in others]
            group = Columns(tuple(rest)).group(str(table))
        labels = names_in(given.get("label", ()))
        if not labels:
            chosen = columns.labels((item, split, group, *taken), str(table))
            labels = tuple(column.name for column in chosen)
        form = cls(item, labels, given.get("delimiter") or "", split, group)
        column = columns.by_name.get(labels[0])
        if len(labels) > 1 or column is None or "delimiter" in given:
            return form
        if column.unclear:
            raise UnclearColumns(
                f"cells of column {column.name!r} of {table} hold {column.unclear!r}, "
                "which may stand between several labels or be part of their names. Add "
                f"--data.delimiter {quoted(column.unclear)} or --data.delimiter null"
            )
        return form._replace(delimiter=column.between)

    @property
    def separator(self) -> str:
        """What stands between the labels of an item in its category; empty if each item
        has one.
        """
        if len(self.labels) > 1 or self.delimiter == LIST:
            return JOINED
        return self.delimiter

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns whose cells are read."""
        return tuple(filter(None, (self.item, *self.labels, self.split, self.group)))

    def divide_labels(self, listed: Listed) -> None:
        """Say what stands between the labels of listed rows. Columns of which each row
        has exactly one hold classes, as in arrays, unless there is a delimiter.

        Args:
            listed: the rows of all tables.
        """
        listed.separator = self.separator
        if len(self.labels) == 1:
            return
        counts = {len(listed.labels_of(item.category)) for item in listed.items}
        several = counts != {1} or bool(self.delimiter)
        if not several:
            listed.separator = ""
        other = f"for several labels: --data.delimiter '{JOINED}'"
        listed.notes += (columns_note(len(self.labels), several, other),)

    def category(self, values: Mapping[str, str]) -> str:
        """The category of an item, by the cells of its row; its labels in one order.

        Raises:
            ValueError: a label holds the sign that stands between labels.
        """
        if len(self.labels) > 1:
            cells = {name: values[name].lower() for name in self.labels}
            for name, cell in cells.items():
                if cell not in YES | NO:
                    raise ValueError(
                        f"column {name!r}, one of several with a class each, must hold "
                        f"yes and no (1 and 0, true and false), got {cell!r}"
                    )
            labels = [name for name, cell in cells.items() if cell in YES]
        elif self.delimiter:
            labels = parts_of(values[self.labels[0]], self.delimiter)
        else:
            return composed(values[self.labels[0]])
        if self.separator == JOINED and any(JOINED in label for label in labels):
            raise ValueError(
                f"labels must not hold {JOINED!r}, got {labels} in column "
                f"{self.labels[0]!r}"
            )
        return self.separator.join(sorted({*map(composed, labels)}))

    def check(self, table: Table, *options: tuple[str, str | None]) -> None:
        """Raise a `ValueError` if a column is not there, or there more than once.

        Args:
            table: the table.
            options: the options of the kind of input with the columns that they name.
        """
        columns = [
            *options,
            *(("label", label) for label in self.labels),
            ("split", self.split),
            ("group", self.group),
        ]
        for option, column in columns:
            if column is not None and column not in table.columns:
                # What a trained network reads is chosen: it reads no labels.
                advice = f": --data.{option} names it" if self.labels else ""
                raise ValueError(
                    f"{option} must be a column of {table.path}, got {column!r}; there "
                    f"are {some(table.columns) or 'none'}{advice}"
                )
        table.check_once(column for _, column in columns if column is not None)

    def rows(
        self, table: Table, listed: Listed, title: str, more: Sequence[str] = ()
    ) -> Iterator[LabelledRow]:
        """The rows of a table that have what they need; tells ``listed`` why others are
        left out.

        Args:
            table: the table, which has the columns.
            listed: what takes notes.
            title: the name of the table.
            more: other columns that are read, whose cells may be missing.

        Raises:
            ValueError: as :meth:`labelled`.
        """
        listed.notes += table.notes
        for row in table.rows(self.needed, more):
            place = f"{title}, row {row.number}"
            labelled = row.misfit or self.labelled(row.values, place)
            if isinstance(labelled, str):
                listed.left_out[place] = labelled
            else:
                yield labelled

    def labelled(self, values: Mapping[str, str], place: str) -> LabelledRow | str:
        """A row with its label, or why it is left out.

        Args:
            values: its cells by column.
            place: what it is called.

        Raises:
            ValueError: a label is no text that can be written, or a column of a class
                does not say yes or no; names the row.
        """
        try:
            category = self.category(values) if self.labels else ""
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if self.labels and not category and not self.separator:
            return "it has no label"
        part = "" if self.split is None else part_in(self.split, values[self.split])
        if part is None:
            return "its split has no known name"
        check_text(category, f"{place}: the label")
        group = "" if self.group is None else composed(values[self.group])
        return LabelledRow(place, part, category, group, values)

    def options(self) -> dict[str, Any]:
        """The options of a data set that say so, without that of the items."""
        labels: Any = self.labels[0] if len(self.labels) == 1 else [*self.labels]
        options = {
            "delimiter": self.delimiter,
            "split": self.split,
            "group": self.group,
        }
        present = {name: value for name, value in options.items() if value}
        return {"label": labels, **present}


def _split_of(columns: Columns, table: Path) -> str | None:
    """The column that says which split a row belongs to; None without one.

    Raises:
        ValueError: several columns may say it, or some cells name no split, or none
            the one to train on.
    """
    splits = columns.of_role("split")
    if not splits:
        return None
    column = splits[0]
    if len(splits) > 1:
        what = "say which split a row belongs to"
        raise which_of(splits, str(table), what, "split", none=True)
    if "train" not in column.splits:
        raise UnclearColumns(
            f"column {column.name!r} of {table} names {' and '.join(sorted(column.splits))}, "
            "and no rows to train on. Add these, or divide all rows anew with "
            "--data.split null"
        )
    if column.unclear:
        raise UnclearColumns(
            f"column {column.name!r} of {table} names splits, but not in these cells: "
            f"{column.unclear}. Rename them to train, val or test, or leave their "
            f"rows out with --data.split {quoted(column.name)}, or divide all rows anew "
            "with --data.split null"
        )
    return column.name


def names_in(option: Any) -> tuple[str, ...]:
    """The names of columns in an option: one, several, or none."""
    if option is None:
        return ()
    return (option,) if isinstance(option, str) else tuple(option)


def columns_again(place: Place, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a data set that name columns which another table has, too.

    Args:
        place: the other table, or its folder.
        options: the options of a data set that was read from a table; of another one
            there are none.
    """
    own = [option for option in ITEMS if options.get(option)]
    if not own:
        return {}
    present = {
        name for path in tables_of(place).values() for name in Table(path).columns
    }
    named = {
        option: options[option]
        for option in (*own, "label", "time", "values")
        if option != "wide" and options.get(option)
    }
    if "wide" in own:
        # Series may be longer or shorter there, which the reader of the network knows.
        named.pop("values", None)
    columns = {
        option: value
        for option, value in named.items()
        if {*names_in(value)} <= present
    }
    if "wide" in own and present:
        columns["wide"] = True
    if "label" in columns:
        columns["delimiter"] = options.get("delimiter")
    return columns


def reasons(options: Mapping[str, Any], columns: Columns) -> dict[str, str]:
    """Reasons for the options that name columns, for people, and the columns that are
    used for nothing.

    Args:
        options: the options of the data set.
        columns: those of the table.
    """
    why: dict[str, str] = {}
    used: list[str] = []
    for option, value in options.items():
        names = names_in(value) if not isinstance(value, bool) else ()
        names = tuple(name for name in names if name in columns.by_name)
        used += names
        if option == "delimiter":
            why[f"data.{option}"] = f"{value!r}, between the labels of one row"
        elif len(names) == 1:
            plural = f"{option.removesuffix('s')}s"
            why[f"data.{option}"] = f"{names[0]}, the column of the {plural}"
        elif names:
            why[f"data.{option}"] = f"{some(names)}, a column for each"
    if unused := columns.unused(used):
        why["columns"] = f"not used: {unused}"
    return why
