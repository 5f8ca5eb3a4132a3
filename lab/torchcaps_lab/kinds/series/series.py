"""Series with one class each: measurements over time, or sounds, from the user's
files.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from torchcaps.numerics import check_size
from torchcaps.spec import Within, argument, settings
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.files import ClassFolders, found_root
from torchcaps_lab.data.listed import Decoded, Listed, ListedData
from torchcaps_lab.data.manifest import PARTS, Manifest
from torchcaps_lab.data.table_form import TableForm, names_in
from torchcaps_lab.data.transforms.preprocess import Preprocess
from torchcaps_lab.kinds.series.files import holds_sounds, list_series, with_values
from torchcaps_lab.kinds.series.series_set import Scale, SeriesSet, padded
from torchcaps_lab.kinds.series.sound import Bands, Sound
from torchcaps_lab.kinds.series.table import SeriesForm, SeriesItem


@register_dataset("series")
@settings
class Series(ListedData):
    """Series of any length with one class each, in any of these forms:

    - a .ts or .arff file, or a folder NAME that holds NAME_TRAIN.ts and NAME_TEST.ts,
      as in the UEA and UCR archives;
    - a table, a .csv, .tsv or .jsonl file, with a row for each moment: which series it
      belongs to, its label, and a number for each channel; or, if it is ``wide``, with a
      row for each series: its label, and a number for each moment; or a folder with the
      tables ``train.csv`` and ``test.csv``;
    - a folder of sounds (.wav, .flac, .ogg, .opus, .mp3, .aiff): a sub-folder for each
      class, which may hold one for each speaker, or files named
      LABEL_SPEAKER_NUMBER.wav. Sounds become
      :class:`~torchcaps_lab.kinds.series.sound.Sound` frames.

    All series have the same channels. Where it is known whom a series is of, the column
    ``group`` or the speaker, whole groups are put aside for the test and for
    validation, so that nobody who is tested is known from training.

    Args:
        root: the file or the folder; if it does not exist, it is looked for in the
            folder of the data sets (the environment variable TORCHCAPS_DATA, else
            torchcaps in the user's cache folder).
        series: in a table, the column that says which series a row belongs to; or
            several that say it together, such as a person and a trial.
        label: the column of the classes; or several, of yes and no (1 and 0, true and
            false), with a class each.
        group: the column of groups, such as speakers; None for none.
        delimiter: what stands between several labels in one cell, ``[]`` around lists;
            None: each series has one label.
        split: a column that says which split a series belongs to; None for none.
        time: the column that says when a row was measured, in numbers or dates; the
            rows of a series are put in this order, and it is no channel; None: rows are
            in the right order.
        values: the columns of the channels, or in a ``wide`` table of the moments;
            default: all that are nothing else.
        wide: whether each row of a table is a series; columns such as ``x0``, ``x1``,
            ``y0``, ``y1`` are then moments of two channels.
        class_folders: which folders of sounds are the classes where folders hold
            folders, the ``outer`` or the ``inner`` ones; default: the outer ones.
        standardise: each channel by its mean and deviation over all training series
            (``data``), or over the series itself (``each``), which also takes away how
            loud a sound is.
        bands: the number of bands of sounds, at most 1,024.
        highest: frequency of sounds, in Hz.

    Raises:
        FileNotFoundError: there is no `root`.
        ValueError: an argument is out of range, there is nothing of the forms above, a
            series cannot be read, is silent or has other channels than the first, or
            there are fewer than two classes; names the file.

    Example:
        >>> from pathlib import Path
        >>> from torchcaps_lab.data import Series
        >>> rows = [
        ...     f"{k},{'up' if k % 2 else 'down'},{l if k % 2 else -l + k}"
        ...     for k in range(20)
        ...     for l in range(5)
        ... ]
        >>> Path("slopes.csv").write_text(
        ...     "\\n".join(["series,label,height", *rows])
        ... ) > 0
        True
        >>> data = Series("slopes.csv")
        >>> data.classes, data.test.inputs.shape
        (('down', 'up'), torch.Size([4, 2, 5]))
    """

    gives = "series"
    reads = "series"
    model = "series_capsnet"
    shared = ("bands", "highest")

    things = sources = "series"

    root: str | Path
    series: str | Sequence[str] = "series"
    label: str | Sequence[str] = "label"
    group: str | None = None
    delimiter: str | None = argument(default=None, kw_only=True)
    split: str | None = argument(default=None, kw_only=True)
    time: str | None = argument(default=None, kw_only=True)
    values: Sequence[str] = argument(default=(), kw_only=True)
    wide: bool = argument(default=False, kw_only=True)
    class_folders: ClassFolders | None = argument(default=None, kw_only=True)
    standardise: Literal["data", "each"] = "data"
    bands: Bands = 40
    highest: Annotated[float, Within(0, open=True)] = 4000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = found_root(self.root)
        _ = self.listed  # problems of the files are reported at once

    @property
    def sound(self) -> Sound:
        """How sounds become series."""
        return Sound(self.bands, self.highest)

    @property
    def form(self) -> SeriesForm:
        """What the columns of tables are read as."""
        form = TableForm.stated(None, vars(self))
        series = () if self.wide else names_in(self.series)
        return SeriesForm(form, series, self.time, tuple(self.values))

    @property
    def scale(self) -> Scale:
        """The scale of the training series."""
        return SeriesSet.require(self.train).scale

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """The number of channels; a `ValueError` unless ``preprocess`` is empty."""
        self.train.prepared(preprocess)
        return {"in_channels": self.image_shape[0]}

    def list_items(self) -> Listed:
        """The series, which must have the same channels."""
        listed = self.list_series()
        items: list[Any] = listed.items
        for item in items:
            first = items[0]
            if len(item.values) != len(first.values):
                raise ValueError(
                    f"all series must have the same channels: {first.title} has "
                    f"{len(first.values)}, "
                    f"{item.title} has {len(item.values)}"
                )
        self.form.form.divide_labels(listed)
        return listed

    def list_series(self) -> Listed:
        """All series, in any order of the classes; a data set of your own returns
        :meth:`listed_of` here.
        """
        root = Path(self.root)
        known, level = self.named, self.class_folders
        return list_series(root, self.form, self.sound, known, level)

    @staticmethod
    def listed_of(rows: Iterable[tuple[str, str, Tensor, str]]) -> Listed:
        """List series that are in memory.

        Args:
            rows: of each series its name, which must be unique, its class, its values
                (C, L), and whom it is of, empty where that is not known.
        """
        items = [
            SeriesItem(name, category, values, name, group=group)
            for name, category, values, group in rows
        ]
        return Listed(parts={"all": items})

    def _how_read(self) -> tuple[Any, ...]:
        return self.standardise, self.bands, self.highest

    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """The series of each split, in the scale of those for training."""
        items: dict[str, list[SeriesItem]] = {}
        for part in PARTS:
            items[part] = [self._items[entry.name] for entry in manifest.parts[part]]
        # Some are tested on only.
        train_values = [item.values for item in items["train"] or items["test"]]
        form = with_values(Path(self.root), self.form) if self.root else self.form
        sound = self.sound if self.root and holds_sounds(Path(self.root)) else None
        read: Any = {"sound": sound, "form": form.unlabelled()}
        if self.standardise == "data":
            scale = Scale.of(train_values, **read)
        else:
            scale = Scale(**read)
        sets: dict[str, Examples] = {}
        for part, items_of_part in items.items():
            labels = self.targets(manifest.parts[part], manifest.classes)
            values = [item.values for item in items_of_part]
            images = padded(values, len(train_values[0]))
            files = tuple(item.title for item in items_of_part)
            sets[part] = SeriesSet(images, labels, manifest.classes, files, scale=scale)
        return sets, {}


class MadeSeries(Series):
    """Waves of three forms by six makers, each with a pitch and strength of its own,
    for trials and tests.

    Args:
        count: the number of each form by each maker.
        validation: as of :class:`Series`, whole makers.
        seed: likewise.

    Example:
        >>> from torchcaps_lab.data import MadeSeries
        >>> data = MadeSeries(4)
        >>> data.classes, data.image_shape
        (('saw', 'sine', 'square'), (2, 1, 1))
    """

    def __init__(self, count: int = 10, validation: float = 0.2, seed: int = 0) -> None:
        check_size(count=count)
        self.count = count
        super().__init__("", validation=validation, seed=seed)

    def list_series(self) -> Listed:
        """The waves beside noise, 20 to 40 moments each."""
        draw = torch.Generator().manual_seed(0)
        rows = []
        waves = {
            "saw": lambda turn: turn % 1,
            "sine": lambda turn: (6.3 * turn).sin(),
            "square": lambda turn: turn % 1 > 0.5,
        }
        for maker in range(6):
            for number in range(self.count):
                for form, wave in waves.items():
                    length = int(torch.randint(20, 41, (1,), generator=draw))
                    turn = torch.arange(length) * (0.08 + 0.01 * maker) + torch.rand(
                        1, generator=draw
                    )
                    noise = torch.randn(2, length, generator=draw) / 10
                    values = noise + torch.stack(
                        [(1 + maker / 10) * wave(turn), torch.zeros(length)]
                    )
                    name = f"{form}:{maker}:{number}"
                    rows.append((name, form, values, f"maker {maker}"))
        return self.listed_of(rows)
