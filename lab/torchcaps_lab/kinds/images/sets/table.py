"""Images whose labels stand in a table: one label each, or several."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from torchcaps.spec import argument, settings
from torchcaps.whole import expanded, seen_from
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.classes import composed
from torchcaps_lab.data.columns import (
    LABELS,
    Columns,
    Role,
    UnclearColumns,
    quoted,
)
from torchcaps_lab.data.files import ListedFile
from torchcaps_lab.data.listed import Item, Listed
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.table_form import (
    LabelledRow,
    TableForm,
    labelled_tables,
    part_of_table,
    tables_beside,
)
from torchcaps_lab.data.tables import Cells, Table
from torchcaps_lab.kinds.images.decoding.picture import image_suffixes
from torchcaps_lab.kinds.images.sets.listed import ListedImages
from torchcaps_lab.look import TABLES, NoHeader, Place, is_number, no_header

_TRIED = 20
"""Cells of a column that are tried as names of images."""


_MAY_LABEL: tuple[Role, ...] = ("label", "labels", "flag")
"""The roles of columns that may hold classes."""

_BOXES = ("xmin ymin xmax ymax", "x1 y1 x2 y2", "x y w h", "x y width height")
"""Names of columns that hold the sides of boxes."""


class TableOfImages(NamedTuple):
    """A table that names images and their labels.

    Args:
        table: the table, or a folder with a table for each split.
        form: what its columns are read as; the item is the name of the image.
        columns: what they hold; None if that was not looked at.
    """

    table: Path
    form: TableForm
    columns: Columns | None = None

    @property
    def tables(self) -> dict[str, Path]:
        """The table of each split that has labels; ``all`` if one table has all
        images.
        """
        if self.table.is_file():
            return {"all": self.table}
        return labelled_tables(tables_of_splits(self.table), self.form.needed)

    @property
    def folder(self) -> Path:
        """The folder that all images are in."""
        return self.table.parent if self.table.is_file() else self.table

    def paths(self) -> list[Path]:
        """The images that the table names, and that are there."""
        paths: list[Path] = []
        for path in self.tables.values():
            table = Table(path)
            file = str(self.form.item)
            if file in table.columns:
                rows = table.rows([file])
                names = [row.values[file] for row in rows if not row.misfit]
                images = ImagesByName(path.parent)
                paths += chain.from_iterable(images.of_rows(names))
        return paths

    def options(self) -> dict[str, Any]:
        """The options of the data set."""
        options = {"file": self.form.item, **self.form.options()}
        return {"name": "ImageTable", "root": str(self.table), **options}


class ImagesByName:
    """The images below a folder, by path, by name and by name without suffix; and those
    in each folder below it.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._paths: dict[str, Path | None] = {}
        self._folders: dict[str, list[Path]] = {}
        suffixes = image_suffixes()
        for path in Place(folder).files:
            if path.suffix.lower() in suffixes:
                inside = path.relative_to(folder)
                names = {inside.as_posix(), inside.with_suffix("").as_posix()}
                for name in names | {path.name, path.stem}:
                    # A name that two images share means neither of them.
                    self._paths[name] = None if name in self._paths else path
                for holder in inside.parents:
                    for name in {holder.as_posix(), holder.name}:
                        self._folders.setdefault(name, []).append(path)
        self._alike: dict[str, Path | None] = {}
        for name, image in self._paths.items():
            shared = self._alike.get(_plain(name), image) != image
            self._alike[_plain(name)] = None if shared else image

    def __len__(self) -> int:
        return len(self._paths)

    def get(self, name: str) -> Path | None:
        """The image whose path has most of the end of a cell of a table; None if there
        is none, or several of this name.
        """
        parts = PurePosixPath(_slashes(name)).parts
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        return next(filter(None, map(self._exact, ends)), None)

    def in_folder(self, name: str) -> list[Path]:
        """The images in the folder that a cell of a table names; none if there is no
        such folder.
        """
        return self._folders.get(_slashes(name).rstrip("/"), []) if name else []

    def of_rows(self, names: Sequence[str]) -> list[list[Path]]:
        """The image that each row of a table names, in a list that is empty if there is
        none, or several; or all images of the folder, where no row names an image.

        Folders in the table may differ from those on the disk, so that the end of a
        path counts. It does not where another row names the image, with its folder.
        """
        exact = {name: self._exact(_slashes(name)) for name in names}
        named = {path for path in exact.values() if path is not None}
        by_name = {name: self.get(name) for name in exact if exact[name] is None}
        times = Counter(by_name.values())
        for name, path in by_name.items():
            if path not in named and times[path] == 1:
                exact[name] = path
        if not any(exact.values()):
            return [self.in_folder(name) for name in names]
        return [[*filter(None, [exact[name]])] for name in names]

    def _exact(self, name: str) -> Path | None:
        """The image of that name, or of one alike if there is no other."""
        return self._paths.get(name) or self._alike.get(_plain(name))


def _plain(name: str) -> str:
    """A name by which those are alike that other systems do not tell apart."""
    return composed(name).lower()


def _slashes(name: str) -> str:
    """A path as it is written here, of a path or an address as it is written on any
    system.
    """
    path = name.strip().replace("\\", "/").removeprefix("./")
    if "://" in path:
        return unquote(urlsplit(path).path)
    return path


def table_of_images(
    place: Place, given: Mapping[str, Any] | None = None
) -> TableOfImages | None:
    """Return how a table at a path names images and their labels; None if none does.

    Args:
        place: the table, or a folder that holds one beside the images.
        given: options of the data set that the user gave, which name columns.

    Raises:
        ValueError: a table names images, and none or several of its columns may hold
            the labels; names the columns.
    """
    given = given or {}
    tables = tables_beside(place)
    named = None if place.is_file else _table_of_splits(place.path, given)
    if not tables or (named is not None and len(named.tables) > 1):
        return named
    if named is not None:
        # Those of other splits lack the labels, as in competitions.
        unlabelled = {*tables_of_splits(place.path).values()} - {*named.tables.values()}
        tables = [path for path in tables if path not in unlabelled]
    images = ImagesByName(place.folder)
    read = [_table_of(path, images, given) for path in tables]
    complete = [table for table in read if table is not None]
    return max(complete, key=lambda table: len(table.paths()), default=None)


def other_labels(named: TableOfImages, folders: Mapping[Path, str]) -> list[str]:
    """The columns of a table that may hold classes of images; none if one of them tells
    apart what the class folders do, so that they are the same classes.

    Args:
        named: the table, whose columns were looked at.
        folders: the class of each image by its folder.
    """
    cells = Table(next(iter(named.tables.values()))).cells()
    rows = ImagesByName(named.folder).of_rows(cells.column(str(named.form.item)))
    classes = [{*map(folders.get, paths)} - {None} for paths in rows]
    columns = [] if named.columns is None else named.columns.of_role(*_MAY_LABEL)
    names = [column.name for column in columns]
    for name in names:
        of_rows = zip(classes, cells.column(name), strict=True)
        pairs = {(of_folder, cell) for of_row, cell in of_rows for of_folder in of_row}
        of_folders = {of_folder for of_folder, _ in pairs}
        of_cells = {cell for _, cell in pairs}
        if len(pairs) == len(of_folders) == len(of_cells):
            return []
    return names


def first_unmatched(table: Path, images: ImagesByName) -> str:
    """The first cell of the columns of a table that may name its images, where each row
    has a label and none names an image; empty if the table is no such one.

    Args:
        table: the table.
        images: those below its folder.
    """
    cells = Table(table).cells()
    columns = Columns.of(cells)
    # A table with one row for each class names classes.
    repeated = [
        column
        for column in columns.called(LABELS)
        if column.role in _MAY_LABEL and column.distinct < column.filled
    ]
    tried = [
        cell
        for column in columns.of_role("file", "identifier")
        for cell in filter(None, cells.column(column.name))
    ]
    if not repeated or any(images.get(cell) for cell in tried):
        return ""
    return next(iter(tried), "")


def tables_of_splits(folder: Path) -> dict[str, Path]:
    """Return the table of each split, or in its folder, as Hugging Face has them; that
    for training first.

    Args:
        folder: a folder that may have tables or folders named as splits.
    """
    tables: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        files = [file for file in Place(path).top if file.suffix.lower() in TABLES]
        part = part_called(path.name) if path.is_dir() else part_of_table(path)
        if part is not None and len(files) == 1:
            tables.setdefault(part, files[0])
    return dict(sorted(tables.items(), key=lambda table: table[0] != "train"))


def _table_of_splits(folder: Path, given: Mapping[str, Any]) -> TableOfImages | None:
    """How a table for each split names images, as that for training does."""
    tables = tables_of_splits(folder)
    if "train" not in tables:
        return None
    train = tables["train"]
    read = _table_of(train, ImagesByName(train.parent), given)
    return None if read is None else read._replace(table=folder)


def _table_of(
    path: Path, images: ImagesByName, given: Mapping[str, Any]
) -> TableOfImages | None:
    """How a table names images and their labels; None if no column names images."""
    if not images:
        return None
    try:
        cells = Table(path).cells()
    except NoHeader:
        return None
    if not cells.rows:
        return None
    files = [name for name in cells.columns if _names_images(cells, name, images)]
    files = files or [
        name for name in cells.columns if _names_folders(cells.column(name), images)
    ]
    if not files:
        return None
    file = given.get("file") or _file_column(path, cells, files, images)
    columns = Columns.of(cells, files=(file,))
    if "file" not in given and all(map(is_number, cells.column(file))):
        held = f"images, named by the numbers in column {file!r}"
        columns.check_no_texts(str(path), held, f"--data.file {quoted(file)}")
    if "label" not in given:
        _check_no_boxes(columns, path)
    return TableOfImages(path, TableForm.of(columns, file, path, given), columns)


def _file_column(
    path: Path, cells: Cells, files: Sequence[str], images: ImagesByName
) -> str:
    """The column of the names of the images.

    Raises:
        ValueError: several columns name different images.
    """
    named = [name for name in files if _has_suffix(cells.column(name)[0])]
    # Flags and numbers may also be the names of some images.
    likely = named or [max(files, key=lambda name: len({*cells.column(name)}))]
    named_images = [images.of_rows(cells.column(name)) for name in likely]
    if any(of_column != named_images[0] for of_column in named_images):
        raise UnclearColumns(
            f"several columns of {path} name images: {', '.join(likely)}. Name one with "
            f"--data.file, as in --data.file {quoted(likely[0])}"
        )
    return likely[0]


def _check_no_boxes(columns: Columns, table: Path) -> None:
    """Raise a `ValueError` if a table has the sides of boxes."""
    names = {column.name.strip().lower() for column in columns.columns}
    for sides in _BOXES:
        if {*sides.split()} <= names:
            raise UnclearColumns(
                f"{table} has boxes, in the columns {', '.join(sides.split())}. Boxes "
                "are read in the forms of COCO, YOLO and Pascal VOC. To classify whole "
                "images, name the column of their classes with --data.label"
            )


def _names_images(cells: Cells, column: str, images: ImagesByName) -> bool:
    """Whether at least half of the cells that are tried name an image. Names without a
    suffix, which may be classes or series, must be different ones in most rows, and if
    they are numbers, all must name an image.
    """
    tried = [cell for cell in cells.column(column) if cell][:_TRIED]
    present = [cell for cell in tried if images.get(cell) is not None]
    if all(map(is_number, tried)) and present != tried:
        return False
    if not any(map(_has_suffix, tried)) and 2 * len({*tried}) < len(tried):
        return False
    return bool(tried) and 2 * len(present) >= len(tried)


def _has_suffix(name: str) -> bool:
    """Whether a name ends as that of an image."""
    return Path(_slashes(name)).suffix.lower() in image_suffixes()


def _names_folders(cells: Sequence[str], images: ImagesByName) -> bool:
    """Whether each row may name a folder of images, as that of a patient."""
    there = [cell for cell in cells if images.in_folder(cell)]
    return len({*there}) == len(there) > max(1, len(cells) // 2)


def _is_example(form: TableForm, rows: Iterable[LabelledRow]) -> bool:
    """Whether the names of two columns are an image and its label."""
    label = form.labels[0]
    return _has_suffix(str(form.item)) or label in {row.values[label] for row in rows}


@register_dataset("image_table")
@settings
class ImageTable(ListedImages):
    """Images whose labels stand in a table, a .csv, .tsv or .jsonl file; or in a table
    for each split, ``train.csv``, ``test.csv``, or in its folder,
    ``train/metadata.csv``, ``test/metadata.csv``, as Hugging Face has them.

    A column names the images, by their paths below the folder of the table, or by their
    names, with or without suffix; or folders, such as those of patients, whose images
    have the label of the row and stay together. Labels stand in one column, which may
    hold several of them, or in a column of yes and no (1 and 0, true and false) for
    each class. Images with several labels have masks as labels, and are trained on by
    the task ``several_labels``. Columns of which each row has exactly one hold classes,
    unless there is a ``delimiter``. Rows of images that are not there, and rows without
    a label, are left out with a note.

    Args:
        root: the table, or the folder with the tables or the folders of the splits.
        file: the column of the names of the images, or of their folders.
        label: the column of the labels, or the columns, one for each class.
        delimiter: what stands between the labels of one image, ``[]`` around lists; None:
            each has one.
        split: a column that says which split a row belongs to; default: shares are put
            aside by content, as with :class:`~torchcaps_lab.data.ImageFolder`.
        group: the column of groups, such as persons; a group stays in one split; None
            for none.

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
    delimiter: str | None = None
    split: str | None = argument(default=None)
    group: str | None = argument(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = expanded(self.root)
        has_tables = self.root.is_dir() and tables_of_splits(self.root)
        if not self.root.is_file() and not has_tables:
            raise FileNotFoundError(
                f"root {self.root} must be a table, a .csv, .tsv or .jsonl file, or a "
                "folder with one in each of the folders train, validation and "
                f"test{seen_from(self.root)}"
            )
        self.form = TableForm.stated(self.file, vars(self))
        _ = self.listed  # problems of the table are reported at once

    def list_items(self) -> Listed:
        """The images that the rows name."""
        return list_table(TableOfImages(Path(self.root), self.form))


def list_table(named: TableOfImages) -> Listed:
    """The images that the rows of a table name, also of one that cannot be trained on.

    Raises:
        ValueError: a column is missing, or no row names an image.
    """
    listed = Listed()
    parts: dict[str, list[Any]] = listed.parts
    first: dict[Path, tuple[str, str]] = {}
    for whole, path in named.tables.items():
        table = Table(path)
        named.form.check(table, ("file", named.form.item))
        for part, item in _items(named, table, listed, first):
            parts.setdefault(part or whole, []).append(item)
    if not parts:
        raise ValueError(
            f"no row of {named.table} names an image that is there, with a label"
        )
    listed.find_test("images")
    named.form.divide_labels(listed)
    return listed


def _items(
    named: TableOfImages,
    table: Table,
    listed: Listed,
    first: dict[Path, tuple[str, str]],
) -> Iterator[tuple[str, Item]]:
    """The split, empty where no column says it, and the image of each row; tells
    ``listed`` why rows are left out, and ``first`` which row an image has.
    """
    form = named.form
    file = str(form.item)
    images = ImagesByName(table.path.parent)
    title = table.path.relative_to(named.folder).as_posix()
    rows = [*form.rows(table, listed, title)]
    if images.get(file) is not None and _is_example(form, rows):
        raise no_header(table.path, table.columns, ("file_name", "label"))
    paths_of_rows = images.of_rows([row.values[file] for row in rows])
    by_folder = any(len(paths) > 1 for paths in paths_of_rows)
    for row, paths in zip(rows, paths_of_rows, strict=True):
        if not paths:
            listed.left_out[row.place] = "its image is not there"
        group = row.group or (row.values[file] if by_folder else "")
        for path in paths:
            if path in first:
                listed.left_out[row.place] = "its image has a row before"
                earlier, label = first[path]
                if label != row.category:
                    listed.refused.append(
                        f"{path} must have one label, and has {label!r} by {earlier} "
                        f"and {row.category!r} by {row.place}"
                    )
            else:
                first[path] = row.place, row.category
                name = path.relative_to(named.folder).as_posix()
                yield row.part, ListedFile(name, row.category, path, group=group)
