"""What lies at a path that somebody named, and the options of a training that follow
from it.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchcaps.whole import (
    CONFIG_FILE,
    RUN_FILE,
    WEIGHTS_FILE,
    expanded,
    opened,
    resolved,
)

STEPS = 30
"""Steps of an epoch that the batch size is chosen for: with fewer, 20 epochs end before
much is learnt.
"""

LEAST_BATCH, LARGEST_BATCH = 4, 128

LEAST_WATCHED = 30
"""Validation examples with fewer of which the best epoch is one of chance."""

_NAMES = (
    "classes",
    "delimiter",
    "file",
    "group",
    "group_before",
    "label",
    "series",
    "split",
    "text",
    "time",
    "values",
    "wide",
)
"""Options of data sets that name classes or columns, or what stands between names."""

_EPOCHS = 20
"""Epochs of a training for which none are guessed."""

OBJECTS = ".jsonl"
"""The suffix of a table whose rows are JSON objects, one a line."""

TABLES = {".csv": ",", ".tsv": "\t", OBJECTS: ""}
"""The suffixes of tables, and what usually separates their cells."""

_JUNK = (
    "thumbs.db",
    "desktop.ini",
    "__macosx",
    "@eadir",
    "$recycle.bin",
    "system volume information",
    "lost+found",
)
"""Files that operating systems leave in folders, besides hidden ones."""

_UNREAD = {
    (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"): (
        "unpack this archive, and name the folder"
    ),
    (".xlsx", ".xls", ".ods", ".numbers"): (
        "save this spreadsheet as .csv, and name that file"
    ),
    (".parquet",): (
        "save this table as .csv, and name that file; if it holds images, add --data "
        "Hub --data.path and the file or its folder"
    ),
    (".arrow",): (
        "if this is a data set of Hugging Face, open it in Python with "
        "datasets.load_from_disk, save each split with to_parquet, and name the folder "
        "of these with --data Hub --data.path"
    ),
    (".feather",): "save this table as .csv, and name that file",
    (".json",): (
        "a .json file is read if it is as of COCO and names images by their paths "
        "below a folder; save a table as .jsonl, with an object of JSON in each line"
    ),
    (".xml",): (
        "boxes in .xml files are read if there is one for each image, as of Pascal VOC; "
        "save those of other programs, such as CVAT, as of COCO"
    ),
    (".txt",): "if this is a table, give it the suffix .csv or .tsv",
    (".csv", ".tsv", ".jsonl"): (
        "a table is read if a column holds texts, or names images below its folder"
    ),
    (".data", ".dat"): "save this table as .csv, with the names of its columns first",
    (".dcm", ".nii", ".nrrd", ".mha", ".mhd", ".svs", ".czi", ".svg"): (
        "save this image as .png, .tif or .npy"
    ),
    ("",): "give the file its suffix, such as .png or .txt",
    (".m4a", ".aac", ".wma", ".amr"): "save this sound as .wav, .flac, .ogg or .mp3",
    (".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg"): (
        "this is a video: save frames of it as images"
    ),
    (".npy", ".npz", ".mat", ".h5", ".hdf5"): (
        "load these arrays in Python, and train with torchcaps.train(inputs, labels)"
    ),
    (".pkl", ".pickle", ".pt", ".pth", ".joblib"): (
        "loading this file may execute code in it, so it is not read. If you trust it, "
        "load it in Python, and train with torchcaps.train(inputs, labels)"
    ),
}
"""What to do with files that are not read, by their suffixes."""

_SHOWN = 40
"""Letters of a cell that an error shows."""

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that are not shown and change what is: they end a line, move the cursor of
a terminal, or turn the direction of the text that follows.
"""

_CELLS = 8
"""Cells of a line that an error shows."""


Resize = Literal["pad", "crop", "stretch", "handwriting"]
"""How images get to another size: keep the aspect ratio and pad with black, keep it and
crop, or stretch; or cut out what was written by hand, see
:func:`~torchcaps_lab.kinds.images.decoding.handwriting.read_handwriting`.
"""

Fit = Literal["pad", "crop", "stretch", "handwriting", "keep"]
"""The same for images that a trained network classifies; ``keep``, for networks of any
size, leaves their size.
"""


class Guess(NamedTuple):
    """What a reader recognised at a path: the options of a training that reads it.

    Args:
        options: the options by name, as in a file of options.
        why: a reason for people, by the names of options as on a command line.
        reader: the registered name of the reader that recognised it.
        seen: what was looked at, line by line, for people.
    """

    options: dict[str, Any]
    why: dict[str, str]
    reader: str = ""
    seen: tuple[str, ...] = ()


def counted(count: int, plural: str) -> str:
    """A number of things as text, with the singular for one.

    Args:
        count: how many there are.
        plural: what they are, such as "images", "classes" or "series".

    Example:
        >>> from torchcaps_lab.look import counted
        >>> counted(1, "classes"), counted(1, "series"), counted(2000, "images")
        ('1 class', '1 series', '2,000 images')
    """
    return f"{count:,} {singular(plural) if count == 1 else plural}"


def singular(plural: str) -> str:
    """The word for one of them."""
    for many, single in (
        ("series", "series"),
        ("classes", "class"),
        ("copies", "copy"),
    ):
        if plural.endswith(many):
            return plural.removesuffix(many) + single
    return plural.removesuffix("s")


def advice_on(path: Path) -> str:
    """What to do with a file that is not read, by its suffix; empty for most."""
    ending = path.suffix.lower()
    return next((advice for names, advice in _UNREAD.items() if ending in names), "")


def is_junk(path: Path) -> bool:
    """Whether a path is hidden, or a file that operating systems leave in folders."""
    return path.name.startswith(".") or path.name.lower() in _JUNK


_RUN = ("metrics.csv", "summary.json", "checkpoints", "data.json", ".lock")
"""What the folder of a run may hold beside its options."""


def is_written(folder: Path) -> bool:
    """Whether torchcaps wrote a folder: a run, a report, a saved network, or a folder of
    such alone, as ``runs`` is.
    """
    if (folder / RUN_FILE).is_file():
        return any((folder / name).exists() for name in _RUN)
    if (folder / "exhibits.json").is_file():
        return (folder / "index.html").is_file()
    if (folder / WEIGHTS_FILE).is_file():
        return (folder / CONFIG_FILE).is_file()
    written = False
    try:
        # The first picture ends the search: folders of data may hold a million.
        for path in folder.iterdir():
            if not is_junk(path):
                written = (path / RUN_FILE).is_file() and is_written(path)
                if not written:
                    break
    except OSError:
        return False
    return written


def _may_hold_data(folder: Path) -> bool:
    return not is_junk(folder) and not is_written(folder)


class Place:
    """A file or folder that somebody named, looked at once for all readers.

    Args:
        path: the file or the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = expanded(path)

    @cached_property
    def is_file(self) -> bool:
        """Whether it is one file."""
        return self.path.is_file()

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """All files below the folder, sorted, without hidden ones and what torchcaps
        wrote; or the file.
        """
        if self.is_file:
            return (self.path,)
        return tuple(sorted(self._below(self.path)))

    def _below(self, folder: Path) -> Iterator[Path]:
        """The files in a folder that is not torchcaps' own, however deep; links are
        followed, each folder is read once.
        """
        root = resolved(folder)
        read = {root}
        for name, inner, files in os.walk(folder, followlinks=True):
            inside = Path(name)
            own = [folder for folder in inner if _may_hold_data(inside / folder)]
            real = {resolved(inside / folder): folder for folder in own}
            new = {path for path in real if not root.is_relative_to(path)} - read
            read |= new
            inner[:] = [real[path] for path in sorted(new)]
            for file in files:
                path = inside / file
                if not is_junk(path) and path.is_file():
                    yield path

    @cached_property
    def suffixes(self) -> frozenset[str]:
        """The suffixes of the files, in lower case."""
        return frozenset([path.suffix.lower() for path in self.files])

    @cached_property
    def top(self) -> tuple[Path, ...]:
        """The files directly in the folder, or the file."""
        folder = self.folder
        return tuple([path for path in self.files if path.parent == folder])

    @property
    def folder(self) -> Path:
        """The folder, or that of the file."""
        return self.path.parent if self.is_file else self.path

    def with_suffix(self, *suffixes: str) -> list[Path]:
        """The files with one of these suffixes, which are in lower case."""
        return [path for path in self.files if path.suffix.lower() in suffixes]

    def inner(self, *names: str) -> Path | None:
        """The first folder in it that has one of these names; None if there is none."""
        for name in names:
            if (self.path / name).is_dir():
                return self.path / name
        return None


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def number_in(text: str) -> float:
    """Return the number that a text states: a decimal one in the digits 0 to 9.

    Python's ``float`` takes more: ``1_0`` for ten, ``nan``, ``inf``, blanks and the
    digits of any script.

    Raises:
        ValueError: it is none, or too large for float64.

    Example:
        >>> from torchcaps_lab.look import number_in
        >>> number_in("-1.5e-3")
        -0.0015
        >>> number_in("1_0")
        Traceback (most recent call last):
        ValueError: expected a number, got '1_0'
    """
    if _NUMBER.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    raise ValueError(f"expected a number, got {text[:_SHOWN]!r}")


def is_number(cell: str) -> bool:
    """Whether a cell of a table holds a number."""
    return _NUMBER.fullmatch(cell) is not None


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of classes in the order in which people count: numbers by their
    value, then other names.

    Example:
        >>> from torchcaps_lab.look import in_order
        >>> in_order(["cat", "10", "2"])
        ('2', '10', 'cat')
    """
    return tuple(
        sorted(
            names,
            key=lambda name: (
                (0, float(name), name) if is_number(name) else (1, 0, name)
            ),
        )
    )


class NoHeader(ValueError):
    """The error for a table whose first line does not name its columns."""


def no_header(path: Path, header: Sequence[str], columns: Sequence[str]) -> NoHeader:
    """The error for a table whose first line is an example.

    Args:
        path: the table.
        header: the cells of its first line.
        columns: names that its columns could have, the first ones.
    """
    line = ", ".join(cell[:_SHOWN] for cell in header[:_CELLS])
    line += f" and {len(header) - _CELLS:,} more" if len(header) > _CELLS else ""
    return NoHeader(
        f"the first line of {path} must name its columns, but looks like an example: "
        f"{line}. Write a line above it, such as {','.join(columns)}"
    )


def lines_in(path: Path) -> int:
    """The number of lines of a file."""
    with opened(path) as lines:
        return sum(1 for _ in lines)


def trained_of(count: int) -> int:
    """How many of so many examples are trained on, where a fifth is put aside to test
    on, and a tenth of the others to validate.
    """
    return count * 4 // 5 * 9 // 10


def batch_size_for(examples: int) -> int:
    """The largest power of two with which an epoch of so many training examples has 30
    steps, from 4 to 128.

    Example:
        >>> from torchcaps_lab.look import batch_size_for
        >>> [batch_size_for(examples) for examples in (70, 300, 50_000)]
        [4, 8, 128]
    """
    most = max(examples // STEPS, LEAST_BATCH)
    return min(1 << most.bit_length() - 1, LARGEST_BATCH)


def epochs_for(steps: int, wanted: int, bounds: tuple[int, int]) -> int:
    """Epochs of so many steps that together have about as many as wanted.

    Example:
        >>> from torchcaps_lab.look import epochs_for
        >>> (
        ...     epochs_for(14, 2100, (6, 150)),
        ...     epochs_for(700, 2100, (6, 150)),
        ...     epochs_for(0, 2100, (6, 150)),
        ... )
        (150, 6, 150)
    """
    return min(max(-(-wanted // max(steps, 1)), bounds[0]), bounds[1])


def plain_steps(train: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a batch size and a number of epochs for networks that learn from nothing.

    Args:
        train: how many training examples there are, about.

    Returns:
        The options, and a reason for each.
    """
    batch = batch_size_for(train)
    steps = train // batch
    epochs = epochs_for(steps, 20 * STEPS, (20, 100))
    options = {"batch_size": batch, "epochs": epochs}
    why = {
        "batch_size": f"{batch}, for about {counted(steps, 'steps')} an epoch",
        "epochs": f"{epochs}, about {steps * epochs:,} steps",
    }
    return options, why


def watched(guess: Guess, given: Mapping[str, Any], validation: int) -> Guess:
    """Return the guess with the best epoch on the validation part kept, and an end
    where none is better any more, if there are enough examples to tell.

    Args:
        guess: the other options.
        given: options that were given, which may leave nothing to validate on.
        validation: about how many examples there are otherwise.
    """
    share = values_of(given.get("data")).get("validation")
    if validation < LEAST_WATCHED or share is not None:
        return guess
    patience = max(10, guess.options.get("epochs", _EPOCHS) // 3)
    options = {"keep": "best", "patience": patience}
    why = {
        "keep": "best, the epoch that is best on the validation part",
        "patience": f"{patience}: it ends after so many epochs that are not better",
    }
    return guess._replace(
        options={**guess.options, **options}, why={**guess.why, **why}
    )


def value_of(option: Any) -> Any:
    """The value of an option that may have been typed on a command line."""
    value = getattr(option, "value", option)
    return [*map(value_of, value)] if isinstance(value, list) else value


def name_in(option: Any) -> str | None:
    """The name in an option that is a name, or a name and arguments; as it was typed.

    Example:
        >>> from torchcaps_lab.look import name_in
        >>> name_in("em"), name_in({"name": "em", "steps": 2}), name_in(None)
        ('em', 'em', None)
    """
    value = value_of(option)
    if isinstance(value, Mapping):
        return name_in(value.get("name"))
    return None if value is None else str(getattr(option, "text", value))


def values_of(options: Any) -> Mapping[str, Any]:
    """Options by name as values; none for None."""
    return {
        name: value_of(option) for name, option in (value_of(options) or {}).items()
    }


def data_asked(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of the data set among those of a training, as values, before it is
    known which data set it is.

    Example:
        >>> from torchcaps_lab.look import data_asked
        >>> from torchcaps_lab.options.reading import typed
        >>> data_asked({"data": {"label": typed("1"), "skip_broken": typed("yes")}})
        {'label': '1', 'skip_broken': True}
    """
    data = value_of(options.get("data")) or {}
    return {
        name: _as_text(option) if name in _NAMES else value_of(option)
        for name, option in data.items()
    }


def _as_text(option: Any) -> Any:
    """An option that is a text or a list of texts, which may look like numbers; None
    stays None.
    """
    value = getattr(option, "value", option)
    if isinstance(value, list | tuple):
        return [*map(_as_text, value)]
    return None if value is None else str(getattr(option, "text", value))
