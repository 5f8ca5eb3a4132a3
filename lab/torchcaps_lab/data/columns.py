"""What each column of a table holds, looked at once for all kinds of input."""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.tables import Cells
from torchcaps_lab.look import counted, is_number

Role = Literal[
    "text",
    "label",
    "labels",
    "flag",
    "number",
    "numbers",
    "date",
    "file",
    "group",
    "split",
    "identifier",
    "object",
    "constant",
    "empty",
]
"""What a column holds: texts, one label each, several labels each, yes or no, a number
each, a row of numbers each, dates or times, names of files, whom or what a row is of,
which split it belongs to, the name of the row, an object of JSON, the same everywhere,
or nothing.
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

SPLITS = ("split", "set", "subset", "part", "partition", "usage")
"""Usual names of a column that says which split a row belongs to."""

_GROUPS = "group patient person subject participant user speaker author customer client"
GROUPS = frozenset(_GROUPS.split())
"""Usual names of a column that says whom or what a row is of, maybe with ``_id``."""

_IDENTIFIERS = frozenset(
    ("id", "index", "idx", "row", "number", "nr", "no", "uuid", "")
)

_SURE = ("label", "labels", "class", "classes")
"""Names of a column of labels whatever others there are."""

_YES = "1 1.0 true yes t y x ja j wahr oui vrai si sí"
YES = frozenset(_YES.split())
"""How a flag says that a row has a label, in lower case."""

_NO = "0 0.0 false no f n nein falsch non faux"
NO = frozenset(("", *_NO.split()))
"""How it says that a row has not."""

_IN_SPLIT = re.compile(r"(?:is|in)[ _]?(\w+)")
"""The name of a flag that says whether a row is of a split."""

_FLAGS = (
    "1 1.0 0 0.0",
    "true false",
    "yes no",
    "t f",
    "y n",
    "x",
    "ja nein",
    "j n",
    "wahr falsch",
    "oui non",
    "vrai faux",
    "si sí no",
)
"""The cells of flags in lower case, besides empty ones, which are a no."""

_LISTED = re.compile(r"""'([^']*)'|"([^"]*)"|([^][,'"]+)""")
"""A label of a list, with quotation marks or without."""

LIST = "[]"
"""What stands around several labels that are a list, as Python and JSON write it."""

BETWEEN = ("|", ";", ",", " ")
"""What may stand between several labels in one cell."""

_LONGEST = 300
"""Letters of a cell of labels; longer ones are texts."""

_LEAST_GROUPS = 5
"""Groups of which some can be put aside to validate and to test on."""

_FEW = 20
"""Different numbers with fractions that may be classes, such as half stars."""

_FEW_WHOLE = 10
"""Different whole numbers that may be classes wherever they are."""

_LEAST_IN_ROW = 8
"""Numbers in a cell; fewer may be labels."""

_MOST_OTHERS = 0.1
"""Share of the cells of a column of numbers that hold something else, such as ``?``."""

_DATE = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})"
    r"(,?[T ]\d{1,2}:\d{2}.*)?|\d{1,2}:\d{2}(:\d{2})?([.,]\d+)?( ?[AaPp]\.?[Mm]\.?)?"
    r"|(\w{3,9},? )?(\d{1,2}\.? [A-Za-z]{3,9}\.?|[A-Za-z]{3,9}\.? \d{1,2}),? \d{4}.*",
    re.ASCII,
)
_FILE = re.compile(r"\S.*\.(?!\d+$)[A-Za-z]\w{1,4}")
_NUMBER = re.compile(
    r"[-+]?[$€£]? ?(?P<digits>(\d+|\d{1,3}([,. '’]\d{3})+)([.,]\d+)?|[.,]\d+)"
    r"(?P<power>[eE][-+]?\d+)? ?(%|[$€£]|kg|g|mm|cm|m|km|ms|s|h)?",
    re.ASCII,
)
"""A number as people write it, maybe with marks of thousands, a currency or a unit."""


_ALIKE, _SHOWN = 12, 3
"""Columns of one role in a row, and how many of them are shown where there are more."""


class UnclearColumns(ValueError):
    """The error for a table whose columns do not say which of them holds the labels."""


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: its name.
        role: what it holds.
        why: the reason, for people.
        distinct: how many different cells it has, without empty ones.
        filled: how many cells are not empty.
        length: letters of a cell, the mean of those that are not empty.
        between: what stands between several labels in a cell; else empty.
        unclear: what may stand between several labels, or be part of their names; or
            the cells of a column of splits that name none.
        splits: the splits that the cells of a column of splits name.
    """

    name: str
    role: Role
    why: str
    distinct: int
    filled: int
    length: float = 0.0
    between: str = ""
    unclear: str = ""
    splits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Columns:
    """The columns of a table, each with its role.

    Args:
        columns: in their order.

    Example:
        >>> from torchcaps_lab.data.columns import Columns
        >>> from torchcaps_lab.data.tables import Cells
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
            tuple(_column_of(name, cells.column(name), name in files) for name in names)
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
        lines = []
        for role, alike in groupby(self.columns, attrgetter("role")):
            rows = [(column.name or "''", column.why) for column in alike]
            if len(rows) > _ALIKE:
                rows[_SHOWN:] = [("...", f"{len(rows) - _SHOWN:,} more")]
            lines += [f"  {name:<{width}}  {role:<10}  {why}" for name, why in rows]
        return lines

    def unused(self, used: Iterable[str | None]) -> str:
        """Name the columns that are used for nothing, for people; empty if all are.

        Args:
            used: the names of those that are used.
        """
        names = {*used}
        rest = [column for column in self.columns if column.name not in names]
        return some([f"{column.name or repr('')} ({column.role})" for column in rest])

    def group(self, where: str) -> str | None:
        """Return the column that says whom or what a row is of; None without one.

        Args:
            where: the table, for the message.

        Raises:
            ValueError: several columns may say it; names them.
        """
        groups = [
            column
            for column in self.of_role("group")
            if column.distinct >= _LEAST_GROUPS
        ]
        if len(groups) > 1:
            raise which_of(
                groups, where, "may say whom a row is of", "group", none=True
            )
        return groups[0].name if groups else None

    def check_no_texts(self, where: str, held: str, typed: str) -> None:
        """Raise a `ValueError` if a table of something else may also be one of texts.

        Args:
            where: the table.
            held: what it may hold.
            typed: what to type if it does.
        """
        for column in self.of_role("text")[:1]:
            raise UnclearColumns(
                f"{where} may hold {held}, or texts in column {column.name!r}. Add "
                f"{typed} or --data.text {quoted(column.name)}"
            )

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
        rest = [
            column
            for column in self.columns
            if column.name and column.name not in names
        ]
        flags = [
            column
            for column in rest
            if column.role == "flag" and not part_called(column.name)
        ]
        likely = [
            column
            for column in rest
            if column.role in ("label", "labels") and column.distinct > 1
        ]
        numbers = [column for column in rest if column.role == "number"]
        chosen = self._named_labels(rest) or likely + flags or numbers
        if chosen == flags and len(flags) > 1:
            return tuple(flags)
        if not chosen:
            raise UnclearColumns(
                f"{where} has no column of labels: {_described(self.columns)}. "
                "Name one with --data.label"
            )
        if chosen[0].role == "number":
            raise _no_classes(chosen[0], where, likely + flags)
        if len(chosen) > 1:
            raise which_of(chosen, where, "may hold the labels", "label")
        return (chosen[0],)

    def _named_labels(self, rest: Sequence[Column]) -> list[Column]:
        """The columns that are called as labels are, and may hold some."""
        no_labels = ("date", "empty", "constant")
        named = [
            column
            for column in self.called(LABELS)
            if column in rest and column.role not in no_labels
        ]
        sure = [column for column in named if column.name.strip().lower() in _SURE]
        return sure[:1] or named


def part_in(column: str, cell: str) -> str | None:
    """Return the split that a cell of a column names; None if it names none.

    Args:
        column: the name of the column, which may name a split itself.
        cell: the name of a split, or whether a row is of the split of the column.

    Example:
        >>> from torchcaps_lab.data.columns import part_in
        >>> part_in("usage", "Training"), part_in("is_train", "0"), part_in("set", "x")
        ('train', 'test', None)
    """
    part = _part_of_flag(column)
    if part is not None and cell.lower() in YES:
        return part
    if part is not None and cell.lower() in NO:
        return "test" if part == "train" else "train"
    return part_called(cell)


def _part_of_flag(name: str) -> str | None:
    """The split that a flag is called after, as ``is_train`` is."""
    match = _IN_SPLIT.fullmatch(name.strip().lower())
    return None if match is None else part_called(match[1])


def _no_classes(column: Column, where: str, others: Sequence[Column]) -> UnclearColumns:
    """The error for a column of numbers where labels are needed, and for others that
    may hold them.
    """
    if others:
        listed = ", ".join(f"{other.name} ({other.why})" for other in others)
        return UnclearColumns(
            f"column {column.name!r} of {where}, called as labels are, looks like "
            f"measurements: {column.why}. If another column holds the classes, name it "
            f"with --data.label: {listed}. If not, write a class for each range of "
            "values, such as low and high, into a column"
        )
    if column.distinct < column.filled // 2:
        return UnclearColumns(
            f"column {column.name!r} of {where}, which may hold the labels, has "
            f"{column.why}. This package classifies. If they are classes, add "
            f"--data.label {quoted(column.name)}; if they look like measurements, write "
            "a class for each range of values, such as low and high, into a column"
        )
    return measured(f"column {column.name!r} of {where}", column.why)


def which_of(
    columns: Sequence[Column], where: str, what: str, option: str, none: bool = False
) -> UnclearColumns:
    """The error for several columns of which one may be read.

    Args:
        columns: those that may be it.
        where: the table.
        what: what they may say or hold.
        option: the option of the data set that names one.
        none: whether it may name none.
    """
    listed = ", ".join(f"{column.name} ({column.why})" for column in columns)
    name = f"--data.{option}"
    return UnclearColumns(
        f"several columns of {where} {what}: {listed}. Name one with {name}, as in "
        f"{name} {quoted(columns[0].name)}" + f", or none with {name} null" * none
    )


def _described(columns: Iterable[Column]) -> str:
    return "; ".join(
        f"{column.name} is {column.role}, {column.why}" for column in columns
    )


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
    if len(different) < 3 or not all(map(is_quantity, different)):
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


def between_labels(cells: Iterable[str], name: str = "") -> tuple[str, bool]:
    """Return what stands, or may stand, between several labels in cells, and whether
    that is certain; empty if each cell has one label.

    Args:
        cells: the cells of a column that are not empty.
        name: the name of the column in lower case.

    Example:
        >>> from torchcaps_lab.data.columns import between_labels
        >>> between_labels(["sea", "sky", "sea|sky"])
        ('|', True)
        >>> between_labels(["good", "bad", "very good", "very bad"])
        (' ', False)
    """
    different = {*cells}
    if all(cell[0] == "[" and cell[-1] == "]" for cell in different):
        return LIST, True
    if max(map(len, different)) > _LONGEST:
        return "", False
    unclear = ""
    for sign in BETWEEN:
        several = [parts_of(cell, sign) for cell in different if sign in cell]
        single = {cell for cell in different if sign not in cell}
        times = Counter(part for parts in several for part in {*parts})
        names = len(single | times.keys())
        alone = bool(single & times.keys())
        shared = alone or max(times.values(), default=0) > 1
        likely = bool(several)
        if sign == " " and name not in ("tags", "tag"):
            # Names of several words are more usual than several names.
            likely = alone and names < len(different)
            certain = likely and times.keys() <= single
        elif sign == ",":
            certain = alone and names < len(different)
        else:
            certain = shared and names <= len(different)
        if certain:
            return sign, True
        unclear = unclear or (sign if likely else "")
    return unclear, False


def parts_of(cell: str, sign: str) -> list[str]:
    """The labels in a cell, without blanks around them.

    Args:
        cell: the cell.
        sign: what stands between them.

    Example:
        >>> from torchcaps_lab.data.columns import LIST, parts_of
        >>> parts_of("sea | sky", "|"), parts_of("['sea', 'sky']", LIST)
        (['sea', 'sky'], ['sea', 'sky'])
    """
    parts = cell.split(sign)
    if sign == LIST:
        parts = ["".join(groups) for groups in _LISTED.findall(cell)]
    return [part.strip() for part in parts if part.strip()]


def _column_of(name: str, cells: Sequence[str], is_file: bool) -> Column:
    """A column with its role."""
    filled = [cell for cell in cells if cell]
    role, why = _role(name.strip().lower(), cells, filled, is_file)
    length = sum(map(len, filled)) / max(len(filled), 1)
    column = Column(name, role, why, len({*filled}), len(filled), length)
    if role in ("label", "labels"):
        sign, certain = between_labels(filled, name.strip().lower())
        if certain:
            return column._replace(between=sign)
        return column._replace(unclear=sign)
    if role == "split":
        parts = {cell: part_in(name, cell) for cell in cells}
        unnamed = sorted(cell for cell in parts if cell and not parts[cell])
        named = frozenset(filter(None, parts.values()))
        return column._replace(unclear=some(unnamed), splits=named)
    return column


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
    if all(cell[0] == "{" and cell[-1] == "}" for cell in different):
        return "object", "its cells are objects of JSON"
    if name in TEXTS:
        return "text", "by its name"
    parts = {part_called(cell) for cell in different}
    trained, called = "train" in parts, name in SPLITS
    several = len(parts - {None}) > 1
    if (several and (trained or called)) or (trained and called and len(parts) > 1):
        return "split", f"its cells name splits: {some(sorted(different))}"
    if is_file or all(map(_FILE.fullmatch, different)):
        return "file", f"its cells are names of files, such as {filled[0]}"
    if _are_flags({cell.lower() for cell in {*cells}}):
        shown = " and ".join(cell or "empty" for cell in sorted({*cells}))
        part = _part_of_flag(name)
        if part is not None:
            return "split", f"its cells are {shown}, whether a row is of {part}"
        return "flag", f"its cells are {shown}"
    if len({*cells}) == 1 and len(cells) > 1:
        return "constant", f"each cell is {filled[0]:.40}"
    if name.removesuffix("_id").removesuffix(" id") in GROUPS and len(filled) > len(
        different
    ):
        return "group", f"by its name, {values}"
    if all(map(_DATE.fullmatch, different)):
        return "date", f"its cells are dates or times, such as {filled[0]}"
    if name in LABELS:
        return _by_label_name(name, filled, values)
    if all(map(is_quantity, different)):
        return _numeric(name, filled, values)
    if all(map(_is_row_of_numbers, different)):
        return "numbers", f"each cell is a row of numbers, such as {filled[0]:.20}"
    sign, certain = between_labels(different)
    if certain:
        return "labels", f"{sign!r} stands between labels, {values}"
    if len(different) * 2 <= len(filled) and max(map(len, different)) <= 80:
        return "label", values
    if len(different) == len(filled) and all(map(_is_code, different)):
        return "identifier", "each row has its own"
    if are_numbers(filled):
        other = next(cell for cell in filled if not is_quantity(cell))
        return "number", f"{values}, numbers except for a few, such as {other:.40}"
    words = sum(len(cell.split()) for cell in filled) / len(filled)
    return "text", f"{values}, {words:.1f} words each"


def _are_flags(different: Collection[str]) -> bool:
    """Whether different cells are yes and no; a yes alone tells nothing."""
    yes_and_no = any({*different} <= {*words.split(), ""} for words in _FLAGS)
    return yes_and_no and not {*different} <= YES


def _by_label_name(name: str, filled: Sequence[str], values: str) -> tuple[Role, str]:
    """The role of a column that is called as labels are, and why."""
    if why := measurements(filled):
        return "number", why
    sign, certain = between_labels(filled, name)
    if certain and not all(map(is_quantity, filled)):
        return "labels", f"by its name; {sign!r} stands between labels, {values}"
    return "label", f"by its name, {values}"


def _numeric(name: str, filled: Sequence[str], values: str) -> tuple[Role, str]:
    """The role of a column of numbers, and why."""
    different = {*filled}
    own = len(different) == len(filled) > 1
    whole = not any(map(_has_fraction, different))
    if (
        own
        and all(map(str.isdigit, different))
        and (name.rpartition("_")[2] in _IDENTIFIERS or _counts_on(filled))
    ):
        return "identifier", "each row has its own"
    if why := measurements(filled):
        return "number", why
    numbers = [*map(_amount, different)]
    halves = all((2 * number).is_integer() for number in numbers)
    # Classes are few, or count from 0 or 1; ages and years do not.
    codes = whole and min(numbers) in (0, 1) and max(numbers) < 2 * len(numbers)
    repeated = len(different) * 2 <= len(filled)
    if halves and repeated and (codes or len(different) <= _FEW_WHOLE):
        return "label", f"{values}, all numbers"
    return "number", f"{values}, all numbers"


def _counts_on(cells: Sequence[str]) -> bool:
    """Whether whole numbers count the rows."""
    numbers = [*map(_amount, cells)]
    return all(after - before == 1 for before, after in pairwise(numbers))


def is_quantity(cell: str) -> bool:
    """Whether a cell holds a number as people write it, maybe with marks of thousands,
    a decimal comma, a currency or a unit.

    Example:
        >>> from torchcaps_lab.data.columns import is_quantity
        >>> [*map(is_quantity, ["1,234.50", "3,5", "12 %", "-1e3", "4x4", "v2"])]
        [True, True, True, True, False, False]
    """
    return _NUMBER.fullmatch(cell) is not None


def are_numbers(filled: Sequence[str]) -> bool:
    """Whether a column is one of numbers, a few cells of which may hold something else,
    such as ``?``.

    Args:
        filled: its cells that are not empty.
    """
    numbers = sum(map(is_quantity, filled))
    return numbers > 0 and numbers >= (1 - _MOST_OTHERS) * len(filled)


def _amount(cell: str) -> float:
    """The number in a cell; a single sign before three digits marks thousands."""
    match = _NUMBER.fullmatch(cell)
    assert match is not None
    digits = match["digits"]
    head, *rest = re.split(r"[.,](?=\d*$)", digits)
    tail = "".join(rest)
    by_comma = digits.endswith(f",{tail}")
    is_mark = len(tail) == 3 and head != "0" and (by_comma or not head.isdigit())
    whole = re.sub(r"\D", "", f"{head}{tail}" if is_mark else head)
    fraction = "0" if is_mark else tail or "0"
    return float(f"{whole or 0}.{fraction}{match['power'] or ''}")


def _has_fraction(cell: str) -> bool:
    return not _amount(cell).is_integer()


def _is_row_of_numbers(cell: str) -> bool:
    """Whether a cell holds many numbers: the pixels of an image, or a series."""
    numbers = re.split(r"[\s,;|]+", cell.strip("[] "))
    return len(numbers) >= _LEAST_IN_ROW and all(map(is_number, numbers))


def _is_code(cell: str) -> bool:
    """Whether a cell looks like the name of a row: one word with a digit."""
    return not any(map(str.isspace, cell)) and any(map(str.isdigit, cell))


def quoted(name: str) -> str:
    """The name of a column, or a sign, as it is typed on a command line."""
    return shlex.quote(name if name.strip() else f'"{name}"')
