"""Reads series and sounds: how they are recognised, and brought to one scale."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.data.columns import Columns
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.files import found_root
from torchcaps_lab.data.plain_text import decoded, lines_of
from torchcaps_lab.data.reader import (
    Read,
    Reader,
    holds_other_kinds,
    inputs_in,
    register_reader,
)
from torchcaps_lab.data.table_form import (
    is_of_others,
    part_of_table,
    reasons,
    tables_of,
)
from torchcaps_lab.data.tables import Cells, Table
from torchcaps_lab.data.transforms.preprocess import Preprocess
from torchcaps_lab.kinds.series.files import (
    FILES,
    SOUNDS,
    is_ucr,
    rate_of,
    read_sound,
    series_in,
    values_at,
)
from torchcaps_lab.kinds.series.series_set import Scale, SeriesSet, padded
from torchcaps_lab.kinds.series.sound import Sound
from torchcaps_lab.kinds.series.table import (
    SeriesForm,
    SeriesItem,
    floats_of,
    form_of_series,
)
from torchcaps_lab.look import (
    TABLES,
    Guess,
    Place,
    data_asked,
    is_number,
    trained_of,
    watched,
)

_ARCHIVES = (".ts", ".arff")
"""Files with a series in each line after ``@data``."""

_USUAL = (("series", "series"), ("label", "label"))
"""Options of a table that need not be given."""


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
    in_program = "SeriesArrays"
    axes = MappingProxyType({0: "batch", 2: "length"})

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """Sounds, archives of series, or a table with a row for each moment."""
        asked = data_asked(given)
        if is_of_others(asked, "series", "wide") or holds_other_kinds(place, cls):
            return None
        archives = place.with_suffix(*_ARCHIVES)
        # Of other tables without a header, the label may be the last number.
        published = filter(part_of_table, place.with_suffix(".tsv"))
        archives += filter(is_ucr, published)
        sounds = place.with_suffix(*SOUNDS)
        if sounds:
            _check_no_labels(place)
        tables = {} if archives or sounds else tables_of(place)
        if tables:
            table, *_ = tables.values()
            cells = Table(table).cells()
            columns = Columns.of(cells)
            _check_no_sounds(table, cells, columns)
            form = form_of_series(table, cells, columns, asked)
            if form is None:
                return None
            root = table if "all" in tables else place.path
            return _of_table(root, form, cells, columns, given)
        if archives or sounds:
            train = _trained(archives, len(sounds))
            highest, why = _highest(sounds)
            data: dict[str, Any] = {"root": str(place.path), **highest}
            return _guess(data, why, train, given)
        _check_folders(place)
        return None

    @classmethod
    def of_data(cls, data: Any, preprocess: Preprocess) -> "SeriesReader":
        """The scale of the training series."""
        return cls(data.scale, data.image_shape[0])

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SeriesReader":
        """The reader that :meth:`config` describes."""
        return cls(Scale.from_config(config["scale"]), int(config["channels"]))

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
            if self.scale.sound is None:
                raise ValueError(f"the network takes no sounds, got {given}")
            values = read_sound(Path(given), self.scale.sound)
        values = floats_of(values)
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

    def complete(self, arguments: dict[str, Any]) -> str:
        """The columns of the channels, in the order in which the network takes them."""
        if not arguments.get("values", True):
            root = Path(found_root(arguments["root"]))
            arguments["values"] = [*values_at(root, self.scale.form)]
        return ""

    def fitted(self, examples: Examples) -> Examples:
        """The series in the scale of the network; a `ValueError` if sounds were made
        into other series, or the channels are in another order.
        """
        series = SeriesSet.require(super().fitted(examples))
        sound, heard = self.scale.sound, series.scale.sound
        if sound is not None and heard is not None and sound != heard:
            raise ValueError(
                f"the network hears {sound}, and these became {heard}: read them with "
                f"bands {sound.bands} and highest {sound.highest:g} (--data.bands "
                f"{sound.bands} --data.highest {sound.highest:g})"
            )
        if series.raw_image_shape[0] != self.channels:
            raise ValueError(
                f"the network takes series of {self.channels} channels, these have "
                f"{series.raw_image_shape[0]}"
            )
        channels, own = self.scale.form.values, series.scale.form.values
        if channels != own and {*channels} == {*own} and self.scale.form.series:
            raise ValueError(
                f"the network takes the channels {', '.join(channels)}, these are "
                f"{', '.join(own)}: name them in its order with values"
            )
        return replace(series, scale=self.scale)

    def inputs_of(self, name: str) -> Iterable[Any]:
        """All series of a file, or the sounds or the files of series in a folder,
        whichever the network takes.
        """
        path = Path(name)
        inside: list[Path] = []
        if path.is_dir():
            # Beside sounds there may be tables about them.
            suffixes = FILES if self.scale.sound is None else SOUNDS
            inside = Place(path).with_suffix(*suffixes)
            if not inside:
                raise ValueError(
                    f"there are no series in {name}: {', '.join(suffixes)}"
                )
        for file in inside or [path]:
            if file.suffix.lower() in FILES:
                yield from inputs_in(file, partial(series_in, form=self.scale.form))
            else:
                yield file

    def notes(self) -> dict[str, Any]:
        """The scale, and how sounds become series."""
        return {"channels": self.channels, "scale": self.scale.config()}

    def __str__(self) -> str:
        return (
            f"series (batch, {self.channels + 1}, length), float32, in the scale "
            "that its metadata hold; the last channel is 1"
        )


def _of_table(
    root: Path,
    form: SeriesForm,
    cells: Cells,
    columns: Columns,
    given: Mapping[str, Any],
) -> Guess:
    """The options of a training on the series of a table, or of a folder of tables,
    that for training being the one that was looked at.
    """
    count = len(cells.rows)
    if form.series:
        count = len({*zip(*map(cells.column, form.series), strict=True)})
    train = trained_of(count) if root.is_file() else count * 9 // 10
    options = {"root": str(root), **form.options()}
    why = reasons({**options, "values": form.values_in(cells)}, columns)
    guess = _guess(options, why, train, given)
    return guess._replace(seen=tuple(columns.lines()))


def _guess(
    data: Mapping[str, Any],
    why: Mapping[str, str],
    train: int,
    given: Mapping[str, Any],
) -> Guess:
    """The options of a training on about so many series."""
    options, steps = SeriesReader.steps_for(train)
    named = {name: value for name, value in data.items() if (name, value) not in _USUAL}
    root = f"Series, the series in {data['root']}"
    guess = Guess(
        {**options, "data": {"name": "Series", **named}},
        {"data": root, **why, **steps},
    )
    return watched(guess, given, train // 9)


def _highest(sounds: Sequence[Path]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the highest frequency that all sounds hold if it is below the usual one,
    and the reason.
    """
    rates = [*filter(None, map(rate_of, sounds))]
    if not rates or min(rates) >= 2 * Sound.highest:
        return {}, {}
    highest = min(rates) / 2
    sampled = f"as far as {min(rates):,} samples a second reach"
    return {"highest": highest}, {"data.highest": f"{highest:g} Hz, {sampled}"}


def _check_no_labels(place: Place) -> None:
    """Raise a `ValueError` if a table at a place of sounds names these."""
    for table in place.with_suffix(*TABLES):
        try:
            cells = Table(table).cells()
        except ValueError:
            continue  # it is read for nothing else
        _check_no_sounds(table, cells, Columns.of(cells))


def _check_no_sounds(table: Path, cells: Cells, columns: Columns) -> None:
    """Raise a `ValueError` if a table names the files of sounds."""
    for column in columns.of_role("file"):
        sound = Path(cells.column(column.name)[0])
        if sound.suffix.lower() in SOUNDS:
            raise ValueError(
                f"column {column.name!r} of {table} names sounds, such as {sound}. "
                "Sounds are read from a folder for each class: put them into folders "
                f"named as their labels, such as {Path('sounds', 'LABEL', sound.name)}, "
                "then: torchcaps train sounds. If the sounds lie in folders of their "
                "classes already, move the table away"
            )


def _check_folders(place: Place) -> None:
    """Raise a `ValueError` if folders of classes hold a table of numbers for each
    series.
    """
    inner = sorted({*place.files} - {*place.top})
    if not inner or not place.suffixes <= {".csv", ".tsv", ".txt"}:
        return
    if inner[0].suffix.lower() == ".txt":
        last = decoded(inner[0]).replace(",", " ").split()
    else:
        last = [row[-1].replace(",", ".") for row in Table(inner[0]).cells().rows]
    if last and all(is_number(cell) for cell in last if cell):
        raise ValueError(
            f"{place.path} holds a table for each series, such as {inner[0]}. Write all "
            "series into one .csv file with a row for each moment. Its columns 'series' "
            "and 'label' name the series and its class, and the others are channels"
        )


def _trained(archives: Sequence[Path], sounds: int) -> int:
    """About how many series are trained on."""
    train = [path for path in archives if part_of_table(path) == "train"]
    if train and len(archives) > 1:
        return _count(train[0]) * 9 // 10
    return trained_of(sounds or sum(map(_count, archives[:1])))


def _count(path: Path) -> int:
    """How many series an archive holds."""
    lines = [line for line in lines_of(path) if line.strip()]
    is_head = [line.lstrip().startswith(("@", "#", "%")) for line in lines]
    return len(lines) - sum(is_head)
