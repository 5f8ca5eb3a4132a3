"""Readers of texts in folders, tables and lines, and of four published collections."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from torchcaps.whole import is_there
from torchcaps_lab.data.files import (
    ClassFolders,
    ListedFile,
    Listing,
    items_in,
    list_folder,
)
from torchcaps_lab.data.listed import BrokenItem, Item, Listed
from torchcaps_lab.data.plain_text import check_text, decoded, lines_of
from torchcaps_lab.data.reader import Unread, inputs_in
from torchcaps_lab.data.table_form import (
    TableForm,
    part_of_table,
    tables_beside,
    tables_of,
)
from torchcaps_lab.data.tables import Table
from torchcaps_lab.look import TABLES, Place, is_number, no_header


@dataclass(frozen=True)
class TextItem(Item):
    """One text that is listed.

    Args:
        name: its file, or its file and line.
        category: the name of its class.
        text: its content.
    """

    text: str

    def source(self) -> BytesIO:
        """Its content."""
        return BytesIO(self.text.encode())


_STARS = ("very negative", "negative", "neutral", "positive", "very positive")
_SST = {"stsa.binary.": ("negative", "positive"), "stsa.fine.": _STARS}
_LINES = {
    ("rt-polarity.pos", "rt-polarity.neg"): ("positive", "negative"),
    ("subj.subjective", "subj.objective"): ("subjective", "objective"),
}
"""Collections of two files with a text in each line."""


class BrokenText(BrokenItem):
    """The error for a file that is no text."""

    things = "texts"


def list_texts(
    root: Path,
    form: TableForm,
    known: tuple[str, ...],
    class_folders: ClassFolders | None,
) -> Listed:
    """The texts in a folder or a file, whatever its form.

    Args:
        root: the folder or the file.
        form: what the columns of a table are read as.
        known: names of classes, of which folders may hold some.
        class_folders: which folders are the classes where folders hold folders.
    """
    if root.suffix.lower() in TABLES and root.is_file():
        listed = Listed()
        listed.parts |= _table(root, form, listed)
        return listed
    kinds = [
        kind
        for kind in _SST
        if root.name.startswith(kind) or (root / f"{kind}train").is_file()
    ]
    if len(kinds) > 1:
        raise ValueError(
            f"{root} holds {' and '.join(f'{kind}train' for kind in kinds)}: give one "
            "of them as root"
        )
    if kinds:
        return _sst(root if root.is_dir() else root.parent, kinds[0])
    if not root.is_dir():
        raise ValueError(
            f"root {root} must be a folder, or a table of texts: a .csv, .tsv or "
            ".jsonl file"
        )
    if (root / "train_5500.label").is_file():
        return Listed(
            parts={
                "train": _trec(root / "train_5500.label"),
                "test": _trec(root / "TREC_10.label"),
            }
        )
    for files, classes in _LINES.items():
        if (root / files[0]).is_file():
            items = [
                TextItem(name, category, line)
                for file, category in zip(files, classes, strict=True)
                for name, line in _numbered(root / file)
            ]
            return Listed(parts={"all": items})
    place = Place(root)
    tables = tables_of(place)
    if "train" in tables:
        for path in tables_beside(place):
            part = part_of_table(path)
            if part is not None and tables[part] != path:
                raise ValueError(
                    f"{root} holds two tables for {part}, {tables[part].name} and "
                    f"{path.name}: keep one"
                )
        listed = Listed()
        for part, path in tables.items():
            alone = form._replace(split=None)
            listed.parts[part] = _table(path, alone, listed)["all"]
        return listed
    listing = list_folder(_TextFiles(known, root=root, class_folders=class_folders))
    return items_in(listing, _text_in, BrokenText)


def _text_in(file: ListedFile) -> TextItem:
    return TextItem(file.name, file.category, decoded(file.path))


class _TextFiles(Listing):
    """The files with the suffix .txt in a folder of classes."""

    what = "texts"
    suffixes = (".txt",)
    unlabelled = (
        ". Each file is one text. If these hold a text in each line, write the lines of "
        "all into one .csv file with the columns 'text' and 'label'"
    )


def _numbered(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a file with their names."""
    return (
        (f"{path.name}:{number}", line) for number, line in enumerate(lines_of(path), 1)
    )


def _trec(path: Path) -> list[TextItem]:
    """Lines such as ``HUM:desc Who was Galileo ?``, whose class is HUM."""
    rows = ((name, *line.partition(" ")) for name, line in _numbered(path))
    return [
        TextItem(name, label.partition(":")[0], text) for name, label, _, text in rows
    ]


def _sst(folder: Path, kind: str) -> Listed:
    """Lines such as ``1 a stirring , funny film``."""
    numbers = {str(number): name for number, name in enumerate(_SST[kind])}
    parts: dict[str, list[TextItem]] = {}
    left_out: dict[str, str] = {}
    for part, suffix in (("train", "train"), ("validation", "dev"), ("test", "test")):
        parts[part] = []
        for name, line in _numbered(folder / f"{kind}{suffix}"):
            label, _, text = line.partition(" ")
            if not line.strip():
                left_out[name] = "it has no label"
                continue
            if label not in numbers:
                raise ValueError(
                    f"{folder / name} must begin with a label, {', '.join(numbers)}, "
                    f"got {line[:40]!r}"
                )
            parts[part].append(TextItem(name, numbers[label], text))
    return Listed(parts=parts, left_out=left_out)


def _table(path: Path, form: TableForm, listed: Listed) -> dict[str, list[TextItem]]:
    """The rows of a table by split, ``all`` where no column says it; tells ``listed``
    why others are left out.
    """
    table = Table(path)
    form.check(table, ("text", form.item))
    text, label = str(form.item), form.labels[0]
    rows = [*form.rows(table, listed, path.name)]
    if label in {row.category for row in rows} and _is_example(text, label):
        raise no_header(path, table.columns, ("text", "label"))
    parts: dict[str, list[TextItem]] = {"all": []} if form.split is None else {}
    for row in rows:
        if not row.values[text]:
            listed.left_out[row.place] = (
                "it has no text: its cell is empty, or NA, null or the like"
            )
            continue
        written = check_text(row.values[text], f"{path}, {row.place}: {text}")
        item = TextItem(row.place, row.category, written, group=row.group)
        parts.setdefault(row.part or "all", []).append(item)
    return parts


def _is_example(text: str, label: str) -> bool:
    """Whether two cells are hardly the names of their columns."""
    return len(text.split()) > 1 or is_number(label)


def texts_of(path: Path, column: str) -> Iterator["NamedText | Unread"]:
    """The texts of a table, each with the row that it stands in.

    Args:
        path: the table, a .csv, .tsv or .jsonl file.
        column: the column of the texts.
    """
    for row in Table(path).rows([column]):
        place = f"{path}, row {row.number}"
        if row.misfit:
            yield Unread(place, ValueError(f"{place}: {row.misfit}"))
        else:
            yield _placed(place, row.values[column])


class NamedText(str):
    """A text that knows where it was found.

    Attributes:
        place: the file and the line, followed by a colon and a blank; empty for a text
            from the command line.
    """

    place = ""


def named_texts(named: Sequence[str]) -> Iterator[NamedText | Unread]:
    """Texts named on the command line: lines of files, whole .txt files in folders, or
    texts themselves.

    Raises:
        ValueError: a folder holds no texts.
    """
    for name in named:
        path = Path(name)
        may_be_file = path.suffix.lower() in (".txt", *TABLES)
        if name and is_there(path.is_dir):
            files = Place(path).with_suffix(".txt")
            if not files:
                raise ValueError(f"there are no .txt files in {name}")
            for file in files:
                yield from inputs_in(file, _text_of_file)
        elif name and (
            is_there(path.exists) or (may_be_file and len(name.split()) == 1)
        ):
            yield from inputs_in(path, _each_line)
        else:
            yield NamedText(name)


def _text_of_file(path: Path) -> Iterator[NamedText]:
    """The text that a file is."""
    yield _placed(str(path), decoded(path))


def _each_line(path: Path) -> Iterator[NamedText]:
    """The text in each line of a file."""
    if path.suffix.lower() in TABLES:
        warnings.warn(
            f"{path} is read line by line: all columns are parts of the texts",
            stacklevel=2,
        )
    for number, line in enumerate(lines_of(path), 1):
        yield _placed(f"{path}:{number}", line)


def _placed(place: str, content: str) -> NamedText:
    """A text that knows where it was found."""
    text = NamedText(content)
    text.place = f"{place}: "
    return text
