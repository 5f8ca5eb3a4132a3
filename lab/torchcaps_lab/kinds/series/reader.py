"""Reads series and sounds: how they are recognised, and brought to one scale."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.data.plain_text import lines_of
from torchcaps_lab.data.reader import (
    Read,
    Reader,
    holds_other_kinds,
    register_reader,
)
from torchcaps_lab.data.view import Preprocess
from torchcaps_lab.kinds.series.files import (
    SOUNDS,
    TABLES,
    Columns,
    SeriesItem,
    read_sound,
    table,
)
from torchcaps_lab.kinds.series.series_set import Scale, SeriesSet, padded
from torchcaps_lab.look import (
    Cells,
    Guess,
    Place,
    cells_of,
    is_number,
    plain_steps,
    trained_of,
    watched,
)

_ARCHIVES = (".ts", ".arff")
"""Files with a series in each line after ``@data``."""

_COLUMNS = Columns()


@register_reader("series")
@dataclass(frozen=True)
class SeriesReader(Reader):
    """Series, as numbers in the scale of the network, and sounds.

    Args:
        scale: the scale of the network.
        channels: the number of channels of its series.
    """

    scale: Scale
    channels: int

    examples = SeriesSet
    takes = "series"
    items = "series"
    axes = MappingProxyType({0: "batch", 2: "length"})

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """Sounds, archives of series, or a table with a row for each moment."""
        if holds_other_kinds(place, cls):
            return None
        archives = place.with_suffix(*_ARCHIVES)
        sounds = place.with_suffix(*SOUNDS)
        tables = [path for path in place.top if _is_long_table(path)]
        if not (archives or sounds or tables):
            _check_folders(place)
            return None
        train = _trained(archives, tables, len(sounds))
        options, why = plain_steps(train)
        data = {"name": "Series", "root": str(place.path)}
        why = {"data": f"Series, the series in {place.path}", **why}
        return watched(Guess({**options, "data": data}, why), given, train // 9)

    @classmethod
    def of_data(cls, data: Any, preprocess: Preprocess) -> "SeriesReader":
        """The scale of the training series."""
        return cls(data.scale, data.image_shape[0])

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SeriesReader":
        """The reader that :meth:`config` describes."""
        scale = Scale.from_config(config["scale"])
        if scale is None:
            raise ValueError("the reader of series has no scale")
        return cls(scale, int(config["channels"]))

    def config(self) -> dict[str, Any]:
        """The scale, and how sounds become series."""
        return {"scale": self.scale.config(), "channels": self.channels}

    def check(self, network: ClassifierNetwork) -> None:
        """Raise a `ValueError` unless the network takes as many channels."""
        super().check(network)
        takes = getattr(network, "in_channels", self.channels)
        if takes != self.channels:
            raise ValueError(
                f"the network takes series of {takes} channels, and what was saved "
                f"with it has {self.channels}"
            )

    def read(self, given: Any, resize: Any = None) -> Read:
        """A series (C, L), float32: of a tensor or an array (C, L), an item of a file,
        or the file of a sound.
        """
        values = given.values if isinstance(given, SeriesItem) else given
        if isinstance(given, str | Path):
            values = read_sound(Path(given), self.scale.sound)
        values = torch.as_tensor(values, dtype=torch.float32)
        if (
            values.ndim != 2
            or len(values) != self.channels
            or not values.shape[1]
            or not values.isfinite().all()
        ):
            of_item = f" of {given}" if isinstance(given, SeriesItem) else ""
            raise ValueError(
                f"a series must be finite numbers ({self.channels}, L), "
                f"{self.channels} channels of L moments, got "
                f"{(*values.shape,)}{of_item}"
            )
        return Read(self.scale(values), "")

    def collate(self, rows: Sequence[Tensor]) -> Tensor:
        """Series of any lengths, (B, C + 1, longest)."""
        return padded(rows, self.channels)

    def fitted(self, examples: Examples) -> Examples:
        """The series in the scale of the network; a `ValueError` if sounds were made
        into other series.
        """
        series = SeriesSet.require(super().fitted(examples))
        if series.scale.sound != self.scale.sound:
            raise ValueError(
                f"the network takes {self.scale.sound}, these are {series.scale.sound}"
            )
        if series.raw_image_shape[0] != self.channels:
            raise ValueError(
                f"the network takes series of {self.channels} channels, these have "
                f"{series.raw_image_shape[0]}"
            )
        return replace(series, scale=self.scale)

    def named(self, names: Sequence[str]) -> Iterable[Any]:
        """All series of files, and the sounds and files of series in folders."""
        for name in names:
            path = Path(name)
            inside = Place(path).with_suffix(*TABLES, *SOUNDS) if path.is_dir() else []
            if path.is_dir() and not inside:
                raise ValueError(
                    f"there are no series in {name}: {', '.join((*TABLES, *SOUNDS))}"
                )
            for file in inside or [path]:
                if file.suffix.lower() in TABLES:
                    yield from table(file, Columns(*self.scale.columns))
                else:
                    yield file

    def notes(self) -> dict[str, Any]:
        """The scale, and how sounds become series."""
        return {"channels": self.channels, "scale": self.scale.config()}

    def __str__(self) -> str:
        return (
            f"series (batch, {self.channels + 1}, length), float32, in the scale "
            "that lies in it; the last is 1"
        )


def _is_long_table(path: Path) -> bool:
    """Whether a .csv file has a row for each moment of each series."""
    cells = cells_of(path, 1) if path.suffix.lower() == ".csv" else None
    return cells is not None and {_COLUMNS.series, _COLUMNS.label} <= {*cells.columns}


def _check_folders(place: Place) -> None:
    """Raise a `ValueError` if folders of classes hold a table of numbers for each
    series.
    """
    inner = [path for path in place.files if path not in place.top]
    if not inner or not place.suffixes <= {".csv", ".tsv"}:
        return
    cells = cells_of(inner[0])
    last = [row[-1].replace(",", ".") for row in cells.rows] if cells else []
    if last and all(is_number(cell) for cell in last if cell):
        raise ValueError(
            f"{place.path} holds a table for each series, such as {inner[0]}. Write all "
            "series into one .csv file with a row for each moment. Its columns 'series' "
            "and 'label' name the series and its class, and the others are channels"
        )


def _trained(archives: Sequence[Path], tables: Sequence[Path], sounds: int) -> int:
    """About how many series are trained on."""
    files = [*archives, *tables]
    train = [path for path in files if part_called(_last_word(path)) == "train"]
    if train:
        return sum(_count(path) for path in train[:1]) * 9 // 10
    return trained_of(sounds or sum(_count(path) for path in files[:1]))


def _last_word(path: Path) -> str:
    """The end of a name such as ``Vowels_TRAIN``."""
    return path.stem.rpartition("_")[2]


def _count(path: Path) -> int:
    """How many series a file holds."""
    if path.suffix.lower() == ".csv":
        cells = cells_of(path, 10_000_000)
        return 0 if cells is None else _different(cells)
    lines = [line for line in lines_of(path) if line.strip()]
    is_head = [line.lstrip().startswith(("@", "#", "%")) for line in lines]
    return len(lines) - sum(is_head)


def _different(cells: Cells) -> int:
    """How many series the rows of a table belong to."""
    return len({*cells.column(_COLUMNS.series)})
