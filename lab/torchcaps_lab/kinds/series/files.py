"""Readers of series in .ts, .arff and .csv files, and of sounds."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.optional_imports import needing
from torchcaps.whole import (
    LARGEST_TABLE,
    check_file,
    opened,
    resolved,
    seen_from,
    write_whole,
)
from torchcaps_lab.data.files import (
    ClassFolders,
    ListedFile,
    Listing,
    items_in,
    list_folder,
)
from torchcaps_lab.data.listed import BrokenItem, Listed
from torchcaps_lab.data.plain_text import decoded, lines_of
from torchcaps_lab.data.reader import Unread
from torchcaps_lab.data.table_form import part_of_table
from torchcaps_lab.data.tables import Table, may_name
from torchcaps_lab.kinds.series.mp3 import error_of_length
from torchcaps_lab.kinds.series.sound import Sound
from torchcaps_lab.kinds.series.table import (
    BrokenSeries,
    SeriesForm,
    SeriesItem,
    checked,
    series_at,
    series_of_table,
)
from torchcaps_lab.look import TABLES, is_junk, is_number, number_in

FILES = (".ts", ".arff", *TABLES)
"""Suffixes of files with many series; of several with one name the first of these is
read.
"""

SOUNDS = {
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".aiff": "audio/aiff",
    ".aif": "audio/aiff",
}
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


_LEAST_UCR = 8
"""Numbers in a line; fewer are features."""

_LONGEST_LINE = 2**24

_LEAST_POWER = 1e-3
"""Of the channels of a sound, which their mean must keep: that of what two microphones
hear keeps a tenth and more.
"""


def list_series(
    root: Path,
    form: SeriesForm,
    sound: Sound,
    classes: tuple[str, ...],
    class_folders: ClassFolders | None,
) -> Listed:
    """The series in a folder or a file, whatever its form; of known ``classes``,
    folders may hold some. Of folders in folders, ``class_folders`` are the classes.
    """
    if root.is_file():
        listed = Listed()
        listed.parts |= _series_in(root, form, listed)
        return listed
    if not root.is_dir():
        raise FileNotFoundError(f"root {root} does not exist{seen_from(root)}")
    tables = _tables(root)
    if tables:
        return _of_tables(root, tables, form)
    return _of_sounds(root, sound, classes, class_folders)


def holds_sounds(root: Path) -> bool:
    """Whether the series at a path are sounds."""
    return root.is_dir() and not _tables(root)


def _of_tables(root: Path, tables: Mapping[str, Path], form: SeriesForm) -> Listed:
    """The series in the file of each split."""
    if "train" not in tables or len(tables) == 1:
        held = ", ".join(path.name for path in tables.values())
        raise ValueError(
            f"{root} must hold files for train and test, got {held}: give one file as "
            "root"
        )
    # Other tables may have their columns in another order, and longer series.
    named = with_values(root, form)
    listed = Listed()
    for part, path in tables.items():
        read_as = form if part == "train" else named
        (listed.parts[part],) = _series_in(
            path, read_as.without_split(), listed
        ).values()
    return listed


def _of_sounds(
    root: Path,
    sound: Sound,
    classes: tuple[str, ...],
    class_folders: ClassFolders | None,
) -> Listed:
    """The sounds in a folder, whose names say what they are; or in folders of classes,
    with a folder of each speaker in them, say.
    """
    files = [path for path in sorted(root.iterdir()) if not is_junk(path)]
    flat = [_sound_by_name(path) for path in files if path.suffix.lower() in SOUNDS]
    sounds = Listed(parts={"all": flat})
    if not flat:
        sounds = list_folder(
            _SoundFiles(classes, root=root, class_folders=class_folders)
        )
        sounds.parts = {
            part: [_of_speaker(file, part, class_folders) for file in files]
            for part, files in sounds.parts.items()
        }
    return items_in(sounds, partial(_heard, sound), BrokenSound)


class BrokenSound(BrokenItem):
    """The error for a file that is no sound, or damaged, or silent."""

    things = "sounds"


def _heard(sound: Sound, file: ListedFile) -> SeriesItem:
    """The series that a file of a sound becomes."""
    values = read_sound(file.path, sound)
    return SeriesItem(file.name, file.category, values, file.title, group=file.group)


def with_values(root: Path, form: SeriesForm) -> SeriesForm:
    """The form of a table that names its columns of numbers, by which other tables are
    read; the same form where there is no table.

    Args:
        root: the file, or the folder with one for each split.
        form: what the columns of a table are read as.
    """
    table = _table_at(root)
    return form if table is None else form.named(table)


def values_at(root: Path, form: SeriesForm) -> tuple[str, ...]:
    """The columns of numbers that a form reads in a table; those that it names where
    there is no table.
    """
    table = _table_at(root)
    return form.values if table is None else form.values_in(table)


def _table_at(root: Path) -> Table | None:
    """The table at a path, that for training in a folder; None where there is none with
    a header.
    """
    path = root if root.is_file() else _tables(root).get("train", root)
    if path.suffix.lower() not in TABLES or is_ucr(path):
        return None
    return Table(path)


def series_in(path: Path, form: SeriesForm) -> list[SeriesItem | Unread]:
    """The series of a file, whose classes need not be known; an :class:`Unread` in place
    of one that cannot be used.

    Args:
        path: a .ts, .arff, .csv, .tsv or .jsonl file.
        form: what the columns of a table are read as.

    Raises:
        ValueError: it holds none; names the file.
    """
    listed = Listed()
    (items,) = _series_in(path, form.unlabelled(), listed, labelled=False).values()
    titles = {name: f"{path}{name.removeprefix(path.name)}" for name in listed.broken}
    unread = [
        Unread(title, ValueError(f"{title}: {listed.broken[name].why}"))
        for name, title in titles.items()
    ]
    return [*unread, *items]


def _series_in(
    path: Path, form: SeriesForm, listed: Listed, labelled: bool = True
) -> dict[str, list[SeriesItem]]:
    """The series of a file by split, ``all`` where no column says it; tells ``listed``
    why others are left out, or cannot be used. All in a .ts or .arff file must be
    labelled if it is said so.
    """
    suffix = path.suffix.lower()
    if suffix not in FILES:
        raise ValueError(
            f"{path} must be a {', '.join(FILES)} file, or a folder of sounds "
            f"({', '.join(SOUNDS)})"
        )
    if is_ucr(path):
        of_splits = {"all": [*_ucr(path)]}
    elif suffix in TABLES:
        of_splits = series_of_table(path, form, listed)
    else:
        of_splits = {"all": [*_archive(path)]}
        if labelled:
            _check_labelled(path, of_splits["all"])
    if not any(of_splits.values()):
        raise ValueError(f"{path} holds no series")
    parts: dict[str, list[SeriesItem]] = {part: [] for part in of_splits}
    for part, series in of_splits.items():
        for item in series:
            if isinstance(item, BrokenSeries):
                listed.broken[item.name] = item
            else:
                parts[part].append(item)
    return parts


def _check_labelled(path: Path, series: Sequence[SeriesItem | BrokenSeries]) -> None:
    """Raise a `ValueError` that names the first series without a label."""
    for item in series:
        if isinstance(item, SeriesItem) and not item.category:
            raise ValueError(
                f"{item.title} has no label (@classLabel false, or '?' in its place): "
                f"series to train on need one, got {path}"
            )


def read_sound(path: Path, sound: Sound) -> Tensor:
    """The frames of a sound, (C, L); of several channels their mean is heard.

    Raises:
        ValueError: it cannot be read, or is silent; names the file.
        FileNotFoundError: there is no such file.
    """
    with needing("sounds", "torchcaps-lab[series]"):
        import soundfile

    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}{seen_from(path)}")
    check_file(path, LARGEST_TABLE)
    try:
        with soundfile.SoundFile(path) as file:
            fewer = error_of_length(path) if file.format == "MP3" else 0
            pieces = _pieces(file, path.stat().st_size, fewer)
            return checked(sound.frames_of(pieces, file.samplerate), "it")
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".") if path.stat().st_size else "it is empty"
        raise ValueError(f"{path} is no sound that can be read: {why}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def rate_of(path: Path) -> int | None:
    """Return the samples a second that a sound states; None if it cannot be read."""
    with needing("sounds", "torchcaps-lab[series]"):
        import soundfile

    try:
        check_file(path, LARGEST_TABLE)
        return int(soundfile.info(path).samplerate)
    except (OSError, ValueError, soundfile.LibsndfileError):
        return None


def _pieces(file: Any, size: int, fewer: int) -> Iterator[Tensor]:
    """The samples of a sound, the mean of its channels, a few seconds at once.

    A file states how many it holds: that many must be there, or so many ``fewer`` at
    most, and not more than its bytes can hold.

    Raises:
        ValueError: if that is not so, or a sample is no finite number, or their mean is
            next to nothing of the channels: noise is what is left then.
    """
    # soundfile seeks to where it is, which fails where a file states a wrong length.
    file.seekable = lambda: False
    stated = file.frames if file.frames < _OPEN else 0
    most = _DENSEST * size + _ALWAYS
    _check_count(stated, most, size)
    heard = 0
    # The sums of the squares of the channels, their mean, and of their mean.
    power = power_of_mean = 0.0
    at_once = max(1, _AT_ONCE // file.channels)
    while len(samples := file.read(at_once, dtype="float32", always_2d=True)):
        heard += len(samples)
        _check_count(heard, most, size)
        channels = torch.from_numpy(samples)
        piece = channels.mean(1)
        if not piece.isfinite().all():
            raise ValueError("it holds NaN or infinite samples")
        power += channels.double().square().mean(1).sum().item()
        power_of_mean += piece.double().square().sum().item()
        yield piece
    if power_of_mean < _LEAST_POWER * power:
        raise ValueError(
            "its channels are of opposite phase: their mean has "
            f"{power_of_mean / power:.1g} of their power, and is noise; turn one of "
            "them round, or keep one alone"
        )
    if heard < stated - fewer:
        raise ValueError(
            f"it states {stated:,} samples and holds {heard:,}: it is cut off, or "
            "damaged"
        )


def _check_count(count: int, most: int, size: int) -> None:
    if count > most:
        raise ValueError(
            f"it states or holds {count:,} samples, of {size:,} bytes at most "
            f"{most:,} are read"
        )


def _tables(root: Path) -> dict[str, Path]:
    """The files of the splits in a folder: NAME_TRAIN.ts, as in the UEA archive; first
    those whose NAME is that of the folder.
    """
    tables: dict[str, Path] = {}
    own = f"{resolved(root).name}_"
    files = [path for path in root.iterdir() if path.suffix.lower() in FILES]
    for path in sorted(
        files,
        key=lambda path: (
            not path.stem.startswith(own),
            FILES.index(path.suffix.lower()),
            path.name,
        ),
    ):
        part = part_of_table(path)
        if part is not None:
            tables.setdefault(part, path)
    names = {path.stem.rpartition("_")[0] for path in tables.values()}
    return tables if len(names) == 1 else {}


def _sound_by_name(path: Path) -> ListedFile:
    """A sound whose name says what it is: LABEL_GROUP_NUMBER.wav."""
    parts = path.stem.split("_")
    if len(parts) != 3:
        raise ValueError(
            f"{path} must be named LABEL_SPEAKER_NUMBER{path.suffix}, or lie in a "
            "folder of its class beside folders "
            "of other classes"
        )
    return ListedFile(path.name, parts[0], path, group=parts[1])


class _SoundFiles(Listing):
    """The sounds in a folder of classes."""

    what = "sounds"
    holds_groups = True
    suffixes = tuple(SOUNDS)


def _of_speaker(
    file: ListedFile, part: str, class_folders: ClassFolders | None
) -> ListedFile:
    """A sound whose group is the folder within that of its class, such as that of its
    speaker.
    """
    depth = 1 + (part != "all") + (class_folders == "inner")
    inside = file.name.split("/")[depth:]
    return replace(file, group=inside[0] if len(inside) > 1 else "")


def is_ucr(path: Path) -> bool:
    """Whether a file is a table as in the UCR archive: without a header, a series in
    each line, its label first, all of them numbers.
    """
    if path.suffix.lower() != ".tsv":
        return False
    with opened(path) as lines:
        first = lines.readline(_LONGEST_LINE).decode("latin-1").split()
    cells = [cell for cell in first if cell != "NaN"]
    numbers = all(map(is_number, cells))
    return len(cells) > _LEAST_UCR and numbers and not may_name(cells)


def _ucr(path: Path) -> Iterator[SeriesItem | BrokenSeries]:
    """The series of a table as in the UCR archive; those that are shorter than others
    end in NaN.
    """
    for number, line in enumerate(lines_of(path), 1):
        label, *cells = line.split() or [""]
        if not label:
            continue
        while cells and cells[-1] == "NaN":
            cells.pop()
        try:
            values: Tensor | str = torch.tensor([[*map(number_in, cells)]])
        except ValueError as error:
            values = str(error)
        yield series_at(path, number, _ucr_label(label), values)


def _ucr_label(label: str) -> str:
    """A label as it is written everywhere: 1 for 1.0 and 1.000000e+00."""
    if is_number(label) and float(label).is_integer():
        return str(int(float(label)))
    return label


def _archive(path: Path) -> Iterator[SeriesItem | BrokenSeries]:
    """The series of a .ts or .arff file, read by aeon."""
    with (
        needing(".ts and .arff files", "torchcaps-lab[series]"),
        warnings.catch_warnings(),
    ):
        # Of packages that aeon could use and does not need.
        warnings.simplefilter("ignore")
        from aeon.datasets import load_from_arff_file, load_from_ts_file
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}{seen_from(path)}")
    content = decoded(path)
    is_arff = path.suffix.lower() == ".arff"
    stated = _Stated() if is_arff else _Stated.of(content, path)
    with TemporaryDirectory() as folder:
        # aeon takes a file in UTF-8 without a byte order mark.
        plain = Path(folder) / path.name
        write_whole(plain, content)
        try:
            load = load_from_arff_file if is_arff else load_from_ts_file
            rows, labels = load(str(plain))
        except Exception as error:  # of several kinds
            raise ValueError(f"{path} cannot be read: {error!r:.400}") from error
    # aeon has none at all with @classLabel false.
    named = [*map(_archive_label, labels)] or [""] * len(rows)
    for number, (values, label) in enumerate(zip(rows, named, strict=True), 1):
        series = torch.as_tensor(values, dtype=torch.float32)
        stated.check(series, label, f"{path}:{number}")
        yield series_at(path, number, label, series)


def _archive_label(label: object) -> str:
    """A label that aeon read, without quotes; empty for ``?``, an unknown one."""
    text = str(label)
    if text in ("NaN", "?"):  # others are in lower case in a .ts file
        return ""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


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
    def of(cls, content: str, path: Path) -> "_Stated":
        """Reads it from the lines before ``@data``.

        Raises:
            ValueError: two labels differ in case alone; names the file.
        """
        header: dict[str, list[str]] = {}
        for line in content.split("\n"):
            key, *values = line.split() or [""]
            if key.lower() == "@data":
                break
            header[key.lower()] = values
        equal = _is_true(header.get("@equallength", ["true"]))
        labels: list[str] | None = None
        if _is_true(header.get("@classlabel", [""])[:1]):
            labels = header["@classlabel"][1:]
            _check_case(labels, path)
        return cls(
            _count_in(header.get("@dimension") or header.get("@dimensions")),
            _count_in(header.get("@serieslength")) if equal else None,
            None if labels is None else frozenset(map(str.lower, labels)),
        )

    def check(self, series: Tensor, label: str, title: str) -> None:
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
        if label and self.classes is not None and label not in self.classes:
            raise ValueError(
                f"{title} is of class {label!r}, the header of the file states "
                f"{sorted(self.classes)}"
            )


def _is_true(values: Sequence[str]) -> bool:
    """Whether a header states "true", and nothing else."""
    return [value.lower() for value in values] == ["true"]


def _check_case(labels: Sequence[str], path: Path) -> None:
    """Raise a `ValueError` if two labels differ in case alone."""
    spelled: dict[str, str] = {}
    for label in labels:
        other = spelled.setdefault(label.lower(), label)
        if other != label:
            raise ValueError(
                f"{path} has the classes {other!r} and {label!r}, which differ in case "
                "alone: it is read in lower case, so name them differently"
            )


def _count_in(values: Sequence[str] | None) -> int | None:
    """The count that a header states, None for none and for 0, which stands for an
    unknown one.
    """
    if values and values[0].isdecimal() and len(values[0]) < 20:
        return int(values[0]) or None
    return None
