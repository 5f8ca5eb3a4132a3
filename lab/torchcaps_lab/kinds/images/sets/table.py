"""Images whose labels stand in a table: one label each, or several."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchcaps.spec import argument, settings
from torchcaps.whole import seen_from
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.classes import composed
from torchcaps_lab.data.columns import YES, Columns
from torchcaps_lab.data.files import ListedFile
from torchcaps_lab.data.listed import Item, Listed, parts_of
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.tables import Table
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes
from torchcaps_lab.kinds.images.sets.listed import ListedImages
from torchcaps_lab.look import TABLES, Cells, Place, cells_of, is_number, no_header

_JOINED = "|"
"""What stands between labels that have a column each."""

_TRIED = 20
"""Cells of a column that are tried as names of images."""

ALL_ROWS = 10_000_000


class TableForm(NamedTuple):
    """How a table names images and their labels.

    Args:
        table: the table, or a folder that has a folder with a table for each split.
        file: the column of the names of the images.
        labels: the columns of the labels; several, of yes and no, have a class each.
        delimiter: what stands between the labels of one image; empty if each has one.
        split: the column that says which split a row belongs to; None without one.
        group: the column that says whom or what an image is of; None without one.
        seen: what the columns hold, line by line, for people.
        unused: the columns that are used for nothing, for people.
    """

    table: Path
    file: str
    labels: tuple[str, ...]
    delimiter: str = ""
    split: str | None = None
    group: str | None = None
    seen: tuple[str, ...] = ()
    unused: str = ""

    @property
    def separator(self) -> str:
        """What stands between the labels of an image in its category; empty if each
        image has one.
        """
        return self.delimiter or (_JOINED if len(self.labels) > 1 else "")

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns whose cells are read."""
        return (self.file, *self.labels, *filter(None, [self.split, self.group]))

    def labels_of(self, category: str) -> tuple[str, ...]:
        """The labels that the category of an image stands for."""
        if not self.separator:
            return (category,)
        return tuple(parts_of(category, self.separator))

    def category(self, values: Mapping[str, str]) -> str:
        """The category of an image, by the cells of its row; its labels in one order."""
        if len(self.labels) > 1:
            yes = [name for name in self.labels if values[name].strip().lower() in YES]
            return _JOINED.join(yes)
        cell = values[self.labels[0]].strip()
        if not self.delimiter:
            return cell
        return self.delimiter.join(sorted({*parts_of(cell, self.delimiter)}))

    @property
    def tables(self) -> dict[str, Path]:
        """The table of each split; ``all`` if one table has all images."""
        if self.split_folders:
            return tables_of_splits(self.table)
        return {"all": self.table}

    @property
    def split_folders(self) -> bool:
        """Whether there is a table for each split."""
        return self.table.is_dir()

    @property
    def folder(self) -> Path:
        """The folder that all images are in."""
        return self.table if self.split_folders else self.table.parent

    def paths(self) -> list[Path]:
        """The images that the table names, and that are there."""
        paths: list[Path | None] = []
        for table in self.tables.values():
            cells = cells_of(table, ALL_ROWS)
            if cells is not None and self.file in cells.columns:
                images = ImagesByName(table.parent)
                paths += images.of_rows(cells.column(self.file))
        return [path for path in paths if path is not None]

    def chosen(self, data: Mapping[str, Any]) -> "TableForm":
        """This form with the columns that options of the data set name."""
        label = data.get("label", self.labels)
        return self._replace(
            file=data.get("file", self.file),
            labels=(label,) if isinstance(label, str) else (*label,),
            delimiter=data.get("delimiter", self.delimiter),
            split=data.get("split", self.split),
            group=data.get("group", self.group),
        )

    def arguments(self, place: Place) -> dict[str, Any]:
        """The options of the data set."""
        labels: Any = self.labels[0] if len(self.labels) == 1 else list(self.labels)
        data: dict[str, Any] = {
            "name": "ImageTable",
            "root": str(self.table),
            "file": self.file,
            "label": labels,
        }
        if self.delimiter:
            data["delimiter"] = self.delimiter
        if self.split is not None:
            data["split"] = self.split
        return data

    def reasons(self) -> dict[str, str]:
        """Reasons for these options, for people."""
        why = {
            "data.file": f"{self.file}, the column of the names of the images",
            "data.label": f"{', '.join(self.labels)}, of the labels",
        }
        if self.delimiter:
            why["data.delimiter"] = f"{self.delimiter!r}, between labels of one image"
        if self.split is not None:
            why["data.split"] = f"{self.split}, of the splits"
        if self.unused:
            why["columns"] = f"not used: {self.unused}"
        return why


class ImagesByName:
    """The images below a folder, by path, by name and by name without suffix.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._paths: dict[str, Path | None] = {}
        suffixes = image_suffixes()
        for path in Place(folder).files:
            if path.suffix.lower() in suffixes:
                inside = path.relative_to(folder)
                names = {inside.as_posix(), inside.with_suffix("").as_posix()}
                for name in names | {path.name, path.stem}:
                    # A name that two images share means neither of them.
                    self._paths[name] = None if name in self._paths else path
        self._alike: dict[str, Path | None] = {}
        for name, image in self._paths.items():
            shared = self._alike.get(_plain(name), image) != image
            self._alike[_plain(name)] = None if shared else image

    def get(self, name: str) -> Path | None:
        """The image that a cell of a table names; None if there is none, or several."""
        name = _slashes(name)
        return self._exact(name) or self._exact(name.rpartition("/")[2])

    def of_rows(self, names: Sequence[str]) -> list[Path | None]:
        """The image that each row of a table names; None if there is none, or several.

        Folders in the table may differ from those on the disk, so that the name alone
        counts. It does not where another row names the image, with its folder.
        """
        exact = {name: self._exact(_slashes(name)) for name in names}
        named = {path for path in exact.values() if path is not None}
        by_name = {name: self.get(name) for name in exact if exact[name] is None}
        times = Counter(by_name.values())
        for name, path in by_name.items():
            if path not in named and times[path] == 1:
                exact[name] = path
        return [exact[name] for name in names]

    def _exact(self, name: str) -> Path | None:
        """The image of that name, or of one alike if there is no other."""
        return self._paths.get(name) or self._alike.get(_plain(name))


def _plain(name: str) -> str:
    """A name by which those are alike that other systems do not tell apart."""
    return composed(name).lower()


def _slashes(name: str) -> str:
    """A path as it is written here, of a path as it is written on any system."""
    return name.strip().replace("\\", "/").removeprefix("./")


def table_of_images(
    place: Place, given: Mapping[str, Any] | None = None
) -> TableForm | None:
    """Return how a table at a path names images and their labels; None if none does.

    Args:
        place: the table, or a folder that holds one beside the images.
        given: options of the data set that the user gave, which name columns.

    Raises:
        ValueError: a table names images, and none or several of its columns may hold
            the labels; names the columns.
    """
    given = given or {}
    tables = [path for path in place.top if path.suffix.lower() in TABLES]
    if not tables:
        return None if place.is_file else _form_of_splits(place.path, given)
    images = ImagesByName(place.folder)
    forms = [_form(path, images, given) for path in tables]
    complete = [form for form in forms if form is not None]
    return max(complete, key=lambda form: len(form.paths()), default=None)


def tables_of_splits(folder: Path) -> dict[str, Path]:
    """Return the table in the folder of each split, as Hugging Face has them.

    Args:
        folder: a folder that may have folders named as splits.
    """
    tables: dict[str, Path] = {}
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        part = part_called(inner.name)
        files = [path for path in Place(inner).top if path.suffix.lower() in TABLES]
        if part is not None and len(files) == 1:
            tables[part] = files[0]
    return tables


def _form_of_splits(folder: Path, given: Mapping[str, Any]) -> TableForm | None:
    """How a table for each split names images, as that for training does."""
    tables = tables_of_splits(folder)
    if "train" not in tables:
        return None
    train = tables["train"]
    form = _form(train, ImagesByName(train.parent), given)
    return None if form is None else form._replace(table=folder)


def _form(
    table: Path, images: ImagesByName, given: Mapping[str, Any]
) -> TableForm | None:
    """How a table names images and their labels; None if no column names images."""
    cells = cells_of(table)
    if cells is None or len(cells.columns) < 2 or not cells.rows:
        return None
    files = [name for name in cells.columns if _names_images(cells, name, images)]
    if not files:
        return None
    # Flags and numbers may also be the names of some images.
    likely = max(files, key=lambda name: len({*cells.column(name)}))
    file = given.get("file") or likely
    columns = Columns.of(cells, files=(file,))
    splits = [column.name for column in columns.of_role("split")]
    split = given.get("split", splits[0] if splits else None)
    taken = (file, split, given.get("group"))
    if "label" in given:
        label = given["label"]
        names = (label,) if isinstance(label, str) else tuple(label)
        labels = [columns.by_name[name] for name in names if name in columns.by_name]
    else:
        labels = [*columns.labels(taken, str(table))]
        names = tuple(column.name for column in labels)
    between = labels[0].between if len(labels) == 1 else ""
    return TableForm(
        table,
        file,
        names,
        given.get("delimiter", between),
        split,
        given.get("group"),
        tuple(columns.lines()),
        columns.unused((*taken, *names)),
    )


def _names_images(cells: Cells, column: str, images: ImagesByName) -> bool:
    """Whether at least half of the cells that are tried name an image; numbers, which
    may be flags or classes, only where they are different ones.
    """
    tried = [cell for cell in cells.column(column) if cell][:_TRIED]
    if all(map(is_number, tried)) and 2 * len({*tried}) < len(tried):
        return False
    present = [cell for cell in tried if images.get(cell) is not None]
    return bool(tried) and 2 * len(present) >= len(tried)


def _is_example(form: TableForm, rows: Iterable[Mapping[str, str]]) -> bool:
    """Whether the names of two columns are an image and its label."""
    label = form.labels[0]
    has_suffix = Path(form.file).suffix.lower() in image_suffixes()
    return has_suffix or label.strip() in {row[label].strip() for row in rows}


@dataclass(frozen=True)
class _Row(ListedFile):
    """One image that a row names; its category holds all its labels."""


@register_dataset("image_table")
@settings
class ImageTable(ListedImages):
    """Images whose labels stand in a table, a .csv, .tsv or .jsonl file; or in a table
    in the folder of each split, ``train/metadata.csv``, ``test/metadata.csv``, as
    Hugging Face has them.

    A column names the images, by their paths below the folder of the table, or by their
    names, with or without suffix. Labels stand in one column, which may hold several of
    them, or in a column of yes and no (1 and 0, true and false) for each class. Images
    with several labels have masks as labels, and are trained on by the task
    ``several_labels``. Rows of images that are not there, and rows without a label, are
    left out with a note.

    Args:
        root: the table, or the folder with the folders of the splits.
        file: the column of the names of the images.
        label: the column of the labels, or the columns, one for each class.
        delimiter: what stands between the labels of one image; empty: each has one.
        split: a column that says which split a row belongs to; default: shares are put
            aside by content, as with :class:`~torchcaps_lab.data.ImageFolder`.
        group: the column that says whom or what an image is of, such as a person; whole
            groups are put aside; None for none.

    Raises:
        FileNotFoundError: there is no `root`.
        ValueError: there are no such columns, or no images that the rows name, or fewer
            than two classes, or rows with other labels for one image.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from torchcaps_lab.data import ImageTable
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     rows = ["image,tags"]
        ...     for number in range(8):
        ...         Image.new("L", (8, 8), 20 * number).save(f"{folder}/{number}.png")
        ...         rows.append(f"{number}.png,{'sea' if number % 2 else 'sea sky'}")
        ...     table = Path(folder) / "photos.csv"
        ...     _ = table.write_text("\\n".join(rows))
        ...     data = ImageTable(table, file="image", label="tags", delimiter=" ")
        ...     print(data.classes, data.train.labels[0].dtype)
        ('sea', 'sky') torch.bool
    """

    root: str | Path
    file: str = "file_name"
    label: str | Sequence[str] = "label"
    delimiter: str = ""
    split: str | None = argument(default=None)
    group: str | None = argument(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = Path(self.root).expanduser()
        has_tables = self.root.is_dir() and tables_of_splits(self.root)
        if not self.root.is_file() and not has_tables:
            raise FileNotFoundError(
                f"root {self.root} must be a table, a .csv, .tsv or .jsonl file, or a "
                "folder with one in each of the folders train, validation and "
                f"test{seen_from(self.root)}"
            )
        labels = [self.label] if isinstance(self.label, str) else [*self.label]
        split = None if self.split is None else str(self.split)
        self._form = TableForm(
            self.root, self.file, tuple(labels), self.delimiter, split, self.group
        )
        _ = self.listed  # problems of the table are reported at once

    @property
    def separator(self) -> str:
        """The delimiter, or what joins labels with a column each."""
        return self._form.separator

    def list_images(self) -> Listed:
        """The images that the rows name."""
        return list_table(self._form)


def list_table(form: TableForm) -> Listed:
    """The images that the rows of a table name, also of one that cannot be trained on.

    Raises:
        ValueError: a column is missing, or no row names an image.
    """
    listed = Listed()
    parts: dict[str, list[Any]] = listed.parts
    for whole, path in form.tables.items():
        for part, item in _rows(form, _table(path, form.needed), listed):
            parts.setdefault(part or whole, []).append(item)
    if not parts:
        raise ValueError(
            f"no row of {form.table} names an image that is there, with a label"
        )
    if "train" in parts and "test" not in parts:
        if "validation" in parts:
            parts["test"] = parts.pop("validation")
        else:
            parts["all"] = parts.pop("train")
    return listed


def _table(path: Path, needed: Sequence[str]) -> Table:
    """A table, which has all columns that are needed."""
    table = Table(path)
    columns = {*table.columns}
    for column in needed:
        if column not in columns:
            raise ValueError(
                f"{path} has no column {column!r}, there are {[*table.columns]}"
            )
    table.check_once(needed)
    return table


def _rows(form: TableForm, table: Table, listed: Listed) -> Iterator[tuple[str, Item]]:
    """The split, empty where no column says it, and the image of each row; tells
    ``listed`` why rows are left out.
    """
    images = ImagesByName(table.path.parent)
    title = table.path.relative_to(form.folder).as_posix()
    rows: dict[str, dict[str, str]] = {}
    for number, row in enumerate(table.rows(), 1):
        misfit = table.misfit(row, form.needed)
        if misfit:
            listed.left_out[f"{title}, row {number}"] = misfit
        else:
            rows[f"{title}, row {number}"] = table.values(row, form.needed)
    if images.get(form.file) is not None and _is_example(form, rows.values()):
        raise no_header(table.path, table.columns, ("file_name", "label"))
    first: dict[Path, tuple[str, str]] = {}
    paths = images.of_rows([values[form.file] for values in rows.values()])
    for (place, values), path in zip(rows.items(), paths, strict=True):
        category = form.category(values)
        part = "" if form.split is None else part_called(values[form.split])
        if path is None:
            listed.left_out[place] = "its image is not there"
        elif not category and not form.separator:
            listed.left_out[place] = "it has no label"
        elif part is None:
            listed.left_out[place] = "its split has no known name"
        elif path in first:
            listed.left_out[place] = "its image has a row before"
            earlier, label = first[path]
            if label != category:
                listed.refused.append(
                    f"{path} must have one label, and has {label!r} by {earlier} and "
                    f"{category!r} by {place}"
                )
        else:
            first[path] = place, category
            name = path.relative_to(form.folder).as_posix()
            group = "" if form.group is None else values[form.group].strip()
            yield part, _Row(name, category, path, group=group)
