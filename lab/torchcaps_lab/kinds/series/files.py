"""Readers of series in .ts, .arff and .csv files, and of sounds."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.whole import LARGEST_TABLE, check_file, opened, resolved, seen_from
from torchcaps_lab.data.files import Listing, list_folder
from torchcaps_lab.data.listed import BrokenItem, Item, Listed
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.tables import Table
from torchcaps_lab.kinds.series.sound import Sound
from torchcaps_lab.look import is_junk, is_number, number_in

TABLES = (".ts", ".arff", ".csv")
"""Suffixes of files with many series; of several with one name the first of these is
read.
"""

SOUNDS = {".wav": "audio/wav", ".flac": "audio/flac", ".ogg": "audio/ogg"}
"""Suffixes of sounds, and their kinds for a browser."""


_DENSEST = 128
_ALWAYS = 2**24
"""Samples that are read of each byte of a file, and beside these of any file. Opus,
which packs most densely, puts 64 samples of speech into a byte; silence takes almost
none.
"""

_AT_ONCE = 2**20
"""Samples of all channels together that are decoded at once."""

_OPEN = 2**62
"""From here on libsndfile means that a file states no number of samples."""


_LEAST_POWER = 1e-3
"""Of the channels of a sound, which their mean must keep: that of what two microphones
hear keeps a tenth and more.
"""


class Columns(NamedTuple):
    """The columns of a table that are no channels.

    Args:
        series: says which series a row belongs to.
        label: the class of the series.
        group: who or what it is of; None without one.
    """

    series: str = "series"
    label: str = "label"
    group: str | None = None


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


def list_series(
    root: Path,
    columns: Columns,
    sound: Sound,
    classes: tuple[str, ...] = (),
) -> Listed:
    """The series in a folder or a file, whatever its form; of known ``classes``,
    folders may hold some.
    """
    if root.is_file():
        return Listed(parts={"all": list(table(root, columns, labelled=True))})
    if not root.is_dir():
        raise FileNotFoundError(f"root {root} does not exist{seen_from(root)}")
    parts = _tables(root)
    if parts:
        if not {"train", "test"} <= parts.keys():
            held = ", ".join(path.name for path in parts.values())
            raise ValueError(
                f"{root} must hold files for train and test, got {held}: give one "
                "file as root"
            )
        return Listed(
            parts={
                part: list(table(path, columns, labelled=True))
                for part, path in parts.items()
            }
        )
    if flat := [
        path
        for path in sorted(root.iterdir())
        if path.suffix.lower() in SOUNDS and not is_junk(path)
    ]:
        listed = Listed()
        listed.parts["all"] = _sounds(map(_named, flat), sound, listed)
        return listed
    listing = list_folder(root, _SoundFiles, classes)
    listed = Listed(left_out=listing.left_out, notes=listing.notes)
    for part, files in listing.parts.items():
        named = [
            _Named(file.path, file.name, file.category, _folder_of(file.name, part))
            for file in files
        ]
        listed.parts[part] = _sounds(named, sound, listed)
    return listed


class BrokenSound(BrokenItem):
    """The error for a file that is no sound, or damaged, or silent."""

    thing = "sound"


class _Named(NamedTuple):
    """A file of a sound, and what its place or its name says of it."""

    path: Path
    name: str
    category: str
    group: str


def _sounds(named: Iterable[_Named], sound: Sound, listed: Listed) -> list[SeriesItem]:
    """The sounds that can be read; tells ``listed`` of the others."""
    items = []
    for path, name, category, group in named:
        try:
            values = read_sound(path, sound)
        except (OSError, ValueError) as error:
            listed.broken[name] = BrokenSound.of(path, error)
        else:
            items.append(SeriesItem(name, category, values, str(path), group=group))
    return items


def table(path: Path, columns: Columns, labelled: bool = False) -> Iterator[SeriesItem]:
    """The series of a .ts, .arff or .csv file, which must say their classes if
    ``labelled``.

    Raises:
        ValueError: it holds none, or one that cannot be used; names the file and the
            series.
    """
    if path.suffix.lower() not in TABLES:
        raise ValueError(
            f"{path} must be a {', '.join(TABLES)} file, or a folder of sounds "
            f"({', '.join(SOUNDS)})"
        )
    if path.suffix.lower() == ".csv":
        read = _long_table(path, columns, labelled)
    else:
        read = _archive(path)
    some = False
    for name, label, group, values in read:
        some = True
        title = f"{path}:{name}"
        yield SeriesItem(
            f"{path.name}:{name}", label, _checked(values, title), title, group=group
        )
    if not some:
        raise ValueError(f"{path} holds no series")


def read_sound(path: Path, sound: Sound) -> Tensor:
    """The frames of a sound, (C, L); of several channels their mean is heard.

    Raises:
        ValueError: it cannot be read, or is silent; names the file.
        FileNotFoundError: there is no such file.
    """
    import soundfile

    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}{seen_from(path)}")
    check_file(path, LARGEST_TABLE)
    try:
        with soundfile.SoundFile(path) as file:
            return _checked(
                sound.frames_of(_pieces(file, path.stat().st_size), file.samplerate),
                "it",
            )
    except soundfile.LibsndfileError as error:
        raise ValueError(
            f"{path} is no sound that can be read: {error.error_string}"
        ) from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _pieces(file: Any, size: int) -> Iterator[Tensor]:
    """The samples of a sound, the mean of its channels, a few seconds at once.

    A file states how many it holds: that many must be there, and not more than its
    bytes can hold.

    Raises:
        ValueError: if that is not so, or a sample is no finite number.
    """
    file.seekable = lambda: (
        False
    )  # soundfile seeks to where it is, which fails where a file states a wrong length
    stated = file.frames if file.frames < _OPEN else 0
    most = _DENSEST * size + _ALWAYS
    heard = 0
    power = _Power()
    _check_count(stated, most, size)
    while len(
        samples := file.read(
            max(1, _AT_ONCE // file.channels), dtype="float32", always_2d=True
        )
    ):
        heard += len(samples)
        _check_count(heard, most, size)
        piece = torch.from_numpy(samples).mean(1)
        if not piece.isfinite().all():
            raise ValueError("it holds NaN or infinite samples")
        power = power.plus(samples, piece)
        yield piece
    power.check()
    if heard < stated:
        raise ValueError(
            f"it states {stated:,} samples and holds {heard:,}: it is cut off, or "
            "damaged"
        )


class _Power(NamedTuple):
    """How strong the samples of a sound are.

    Args:
        channels: the sum of their squares, the mean of all channels.
        mean: that of the mean of the channels.
    """

    channels: float = 0.0
    mean: float = 0.0

    def plus(self, samples: Any, mean: Tensor) -> "_Power":
        """With more samples, (L, C), and their mean, (L,)."""
        channels = torch.from_numpy(samples).double().square().mean(1).sum().item()
        return _Power(
            self.channels + channels, self.mean + mean.double().square().sum().item()
        )

    def check(self) -> None:
        """Raise a `ValueError` if the mean is next to nothing of the channels: noise is
        what is left then.
        """
        if self.mean < _LEAST_POWER * self.channels:
            raise ValueError(
                "its channels are of opposite phase: their mean has "
                f"{self.mean / self.channels:.1g} of their power, and is noise; turn "
                "one of them round, or keep one alone"
            )


def _check_count(count: int, most: int, size: int) -> None:
    if count > most:
        raise ValueError(
            f"it states or holds {count:,} samples, of {size:,} bytes at most "
            f"{most:,} are read"
        )


def _tables(root: Path) -> dict[str, Path]:
    """The files of the splits in a folder: NAME_TRAIN.ts, as in the UEA archive, where
    NAME is that of the folder.
    """
    tables: dict[str, Path] = {}
    for path in sorted(
        root.iterdir(),
        key=lambda path_of_table: (_place(path_of_table), path_of_table.name),
    ):
        part = part_called(path.stem.removeprefix(f"{resolved(root).name}_"))
        if _place(path) < len(TABLES) and part is not None:
            tables.setdefault(part, path)
    return tables


def _place(path: Path) -> int:
    if path.suffix.lower() in TABLES:
        return TABLES.index(path.suffix.lower())
    return len(TABLES)


def _named(path: Path) -> _Named:
    """A sound whose name says what it is: LABEL_GROUP_NUMBER.wav."""
    parts = path.stem.split("_")
    if len(parts) != 3:
        raise ValueError(
            f"{path} must be named LABEL_SPEAKER_NUMBER{path.suffix}, or lie in a "
            "folder of its class beside folders "
            "of other classes"
        )
    return _Named(path, path.name, parts[0], parts[1])


class _SoundFiles(Listing):
    """The sounds in a folder of classes."""

    what = "sounds"
    unlabelled = empty_advice = ""
    suffixes = tuple(SOUNDS)


def _folder_of(name: str, part: str) -> str:
    """The folder of a sound within that of its class: its speaker, say; empty for
    none.
    """
    inside = name.split("/")[1 if part == "all" else 2 :]
    return inside[0] if len(inside) > 1 else ""


def _archive(path: Path) -> Iterator[tuple[str, str, str, Tensor]]:
    """Number, label and values of each series of a .ts or .arff file, read by aeon."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of packages that aeon could use and does not need
        from aeon.datasets import load_from_arff_file, load_from_ts_file
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}{seen_from(path)}")
    check_file(path, LARGEST_TABLE)
    try:
        if path.suffix.lower() == ".arff":
            (rows, labels), stated = load_from_arff_file(str(path)), _Stated()
        else:
            (rows, labels), stated = load_from_ts_file(str(path)), _Stated.of(path)
    except Exception as error:  # of several kinds
        raise ValueError(f"{path} cannot be read: {error!r:.400}") from error
    for number, (values, label) in enumerate(zip(rows, labels, strict=True), 1):
        series = torch.as_tensor(values, dtype=torch.float32)
        stated.check(series, str(label), f"{path}:{number}")
        yield str(number), str(label), "", series


class _Stated(NamedTuple):
    """What the header of a .ts file states of each of its series; None for nothing.

    Args:
        channels: how many.
        length: moments of each, where all have as many.
        classes: the labels, in lower case, as aeon reads them.
    """

    channels: int | None = None
    length: int | None = None
    classes: frozenset[str] | None = None

    @classmethod
    def of(cls, path: Path) -> "_Stated":
        """Reads it from the lines before ``@data``."""
        header: dict[str, list[str]] = {}
        with (
            opened(path, LARGEST_TABLE) as file,
            TextIOWrapper(file, encoding="utf-8") as lines,
        ):
            for line in lines:
                key, *values = line.strip().lower().split() or [""]
                if key == "@data":
                    break
                header[key] = values
        equal = header.get("@equallength", ["true"]) == ["true"]
        labelled = header.get("@classlabel", [""])[0] == "true"
        return cls(
            _count_in(header.get("@dimension") or header.get("@dimensions")),
            _count_in(header.get("@serieslength")) if equal else None,
            frozenset(header["@classlabel"][1:]) if labelled else None,
        )

    def check(
        self,
        series: Tensor,
        label: str,
        title: str,
    ) -> None:
        """Raise a `ValueError` that names a series if it is not what the header
        states.
        """
        for quantity, stated, got in (
            ("channels", self.channels, series.shape[0]),
            ("moments", self.length, series.shape[-1]),
        ):
            if stated is not None and stated != got:
                raise ValueError(
                    f"{title} has {got} {quantity}, the header of the file states {stated}"
                )
        if self.classes is not None and label not in self.classes:
            raise ValueError(
                f"{title} is of class {label!r}, the header of the file states "
                f"{sorted(self.classes)}"
            )


def _count_in(values: Sequence[str] | None) -> int | None:
    """The count that a header states, None for none and for 0, which stands for an
    unknown one.
    """
    if values and values[0].isdecimal() and len(values[0]) < 20:
        return int(values[0]) or None
    return None


def _long_table(
    path: Path, columns: Columns, labelled: bool
) -> Iterator[tuple[str, str, str, Tensor]]:
    """Name, label, group and values of each series of a table with a row for each
    moment.
    """
    read = Table(path)
    wanted = (columns.series, columns.label if labelled else None, columns.group)
    needed = [column for column in wanted if column]
    if not {*read.columns} >= {*needed}:
        advice = "the options series, label and group name others"
        raise ValueError(
            f"{path} must have the columns {', '.join(needed)}, got "
            f"{[*read.columns]!r:.400}: {advice}"
        )
    read.check_once(read.columns)
    channels = [name for name in read.columns if name not in columns]
    numbers = _Numbers(channels, decimal_comma=read.delimiter != ",")
    moments: dict[str, list[list[float]]] = {}
    first_rows: dict[str, tuple[str, str]] = {}
    for row in read.rows():
        place = f"{path}:{row.line}"
        if read.misfit(row, needed):
            raise ValueError(
                f"{place} has {len(row.cells)} cells for the {len(read.columns)} columns"
            )
        values = read.values(row, read.columns)
        name = values[columns.series]
        moments.setdefault(name, []).append(numbers.of(values, place))
        group = values.get(columns.group, "") if columns.group else ""
        facts = (values.get(columns.label, ""), group)
        if first_rows.setdefault(name, facts) != facts:
            raise ValueError(
                f"{place}: series {name} is {first_rows[name]} before and {facts} here"
            )
    for name, rows in moments.items():
        yield name, *first_rows[name], torch.tensor(rows, dtype=torch.float32).T


class _Numbers:
    """Reads the channels of the rows of a table.

    Args:
        channels: their columns.
        decimal_comma: whether numbers may have a comma in place of the point, as in the
            tables with semicolons that programs write in many countries.
    """

    def __init__(self, channels: Sequence[str], decimal_comma: bool) -> None:
        self._channels = channels
        self._signs = ".," if decimal_comma else "."
        self._first: dict[str, str] = {}

    def of(self, row: Mapping[str, str], place: str) -> list[float]:
        """The numbers of a row; a `ValueError` that names its place if one is none, or
        if some numbers of the table have a comma and others a point.
        """
        cells = [row[name] for name in self._channels]
        for cell in cells:
            for sign in self._signs:
                if sign in cell:
                    self._first.setdefault(sign, f"{cell} at {place}")
        if len(self._first) > 1:
            raise ValueError(
                "numbers must have either a point or a comma, got "
                + " and ".join(self._first.values())
            )
        point = "," if "," in self._first else "."
        written = [cell.replace(point, ".").strip() for cell in cells]
        try:
            return [number_in(cell) for cell in written]
        except ValueError:
            wrong = {
                name: row[name]
                for name, cell in zip(self._channels, written, strict=True)
                if not is_number(cell)
            }
            raise ValueError(
                f"{place}: every channel must be a number, got {wrong!r:.400}"
            ) from None


def _checked(values: Tensor, title: str) -> Tensor:
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
