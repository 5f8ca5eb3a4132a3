"""Any image data set that Hugging Face ``datasets`` opens: from the hub, from parquet
files, from folders.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

from torchcaps.optional_imports import needing
from torchcaps.spec import settings
from torchcaps.whole import expanded, resolved
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.listed import Item, Listed
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.parts import part_called
from torchcaps_lab.kinds.images.decoding.picture import BrokenImage
from torchcaps_lab.kinds.images.sets.listed import ListedImages
from torchcaps_lab.look import in_order


@dataclass(frozen=True)
class _Row(Item):
    """One row of a split.

    Args:
        name: the split and the number of the row.
        category: the name of its class.
        table: the images of the split, as bytes or paths.
        index: the index of the row.
        folders: where files may be that the table names: that of the data set, and
            those of downloads.
    """

    table: Any
    index: int
    folders: tuple[Path, ...] = ()

    def source(self) -> Path | BytesIO:
        """The file of the image, as bytes or by its path."""
        (image,) = self.table[self.index].values()
        if image is None or (image.get("bytes") is None and not image.get("path")):
            raise BrokenImage(self.name, "there is no image")
        if image.get("bytes") is not None:
            return BytesIO(image["bytes"])
        path = Path(image["path"])
        if not path.is_file():
            raise BrokenImage(self.name, f"{path} is not a regular file")
        # Links in the folder are the user's choice.
        place = Path(os.path.normpath(path.absolute()))
        if not any(place.is_relative_to(folder) for folder in self.folders):
            raise BrokenImage(self.name, f"{path} is outside of the data set")
        return path


@register_dataset("hub")
@settings
class Hub(ListedImages):
    """An image data set by its name on the Hugging Face Hub, or from files of this
    machine: parquet, folders.

    Splits are recognised by their names, like the folders of
    :class:`~torchcaps_lab.data.ImageFolder`; missing ones are put aside in the same
    way. Rows without a label, such as those of test sets with secret labels, are left
    out. Images are read as those of a folder.

    Takes ``pip install 'torchcaps-lab[datasets]'``. No code of the repository is
    executed. Without a network, set the environment variable HF_HUB_OFFLINE=1 to open
    data that were opened before, or are on this machine.

    Args:
        path: a name on the hub, such as ``ylecun/mnist``; a folder with parquet files
            or images; a parquet file; or a folder written by ``save_to_disk`` of
            ``datasets``.
        configuration: the name of the configuration, if the data set has several
            (``name`` of ``load_dataset``).
        image: the column of the images; default: the only such column.
        label: the column of the labels; default: the only column of classes, or the one
            called label.
        revision: the revision of the repository: a branch, a tag or a commit.

    Raises:
        ValueError: an argument is out of range; and, when images are first asked for,
            there is no such data set, column or split, or images cannot be read.
        ConnectionError: the hub cannot be reached.

    Example:
        >>> from torchcaps_lab.data import Hub
        >>> data = Hub("ylecun/mnist", size=28)  # doctest: +SKIP
        >>> data.image_shape  # doctest: +SKIP
        (1, 28, 28)
    """

    path: str
    configuration: str | None = None
    image: str | None = None
    label: str | None = None
    revision: str | None = None

    @cached_property
    def splits(self) -> Mapping[str, Any]:
        """The splits that ``datasets`` opened, by name."""
        with needing("data sets of the hub", "torchcaps-lab[datasets]"):
            import datasets
        path = expanded(self.path)
        try:
            if any(
                (path / name).is_file() for name in ("dataset_dict.json", "state.json")
            ):
                splits = datasets.load_from_disk(str(path))
            elif path.is_file():
                splits = datasets.load_dataset("parquet", data_files=str(path))
            else:
                where = str(path) if path.is_dir() else self.path
                splits = datasets.load_dataset(
                    where, self.configuration, revision=self.revision
                )
        except ConnectionError:
            raise
        except Exception as error:  # datasets raises many types of errors
            raise ValueError(f"datasets cannot open {self.path!r}: {error}") from error
        return splits if isinstance(splits, Mapping) else {"train": splits}

    def list_items(self) -> Listed:
        """The rows of each split, those without a label left out."""
        listed = Listed()
        splits = self.splits  # first, because it says what is missing
        image, label = self._columns()
        for split in splits:
            part = part_called(split)
            if part is None or part in listed.parts:
                listed.left_out[split] = (
                    "it is neither the training, the validation nor the test split"
                )
                continue
            rows, categories = self._rows(split, image, label, listed.left_out)
            if part == "train":
                listed.classes = categories
            if rows:
                listed.parts[part] = rows
        return listed

    def _columns(self) -> tuple[str, str]:
        import datasets

        features = next(iter(self.splits.values())).features
        images, classes = (
            [name for name, feature in features.items() if isinstance(feature, kind)]
            for kind in (datasets.Image, datasets.ClassLabel)
        )
        usual = [name for name in ("label", "labels") if name in features]
        labels = classes if len(classes) == 1 else usual
        image = _column("image", self.image, images, features)
        return image, _column("label", self.label, labels, features)

    def _folders(self) -> tuple[Path, ...]:
        """Where files may be that a table names, each by the name that it was given and
        by that without links.
        """
        import datasets

        home = expanded(self.path)
        config = datasets.config
        places = [Path(config.HF_DATASETS_CACHE), Path(config.HF_CACHE_HOME)]
        places += [home if home.is_dir() else home.parent] if home.exists() else []
        forms = ((place.absolute(), resolved(place)) for place in places)
        return tuple(chain.from_iterable(forms))

    def _rows(
        self,
        split: str,
        image: str,
        label: str,
        left_out: dict[str, str],
    ) -> tuple[list[_Row], tuple[str, ...]]:
        import datasets

        table = self.splits[split]
        labels = table[label][:]
        feature = table.features[label]
        pixels = table.select_columns([image]).cast_column(
            image, datasets.Image(decode=False)
        )
        numbered = isinstance(feature, datasets.ClassLabel)
        names = feature.names if numbered else in_order(map(str, {*labels} - {None}))
        classes = tuple(map(str, names))
        folders = self._folders()
        rows = []
        for index, value in enumerate(labels):
            name = f"{split}/{index}"
            if value is None or value == -1:
                left_out[name] = "it has no label"
            elif numbered and not 0 <= value < len(classes):
                raise ValueError(
                    f"{name} has the label {value}, and there are {len(classes)} classes"
                )
            else:
                category = classes[value] if numbered else str(value)
                rows.append(_Row(name, category, pixels, index, folders))
        return rows, classes


def _column(
    option: str,
    chosen: str | None,
    names: list[str],
    features: Mapping[str, Any],
) -> str:
    """The name of a column: the chosen one, or the only one that was found."""
    if chosen is not None:
        if chosen not in features:
            raise ValueError(
                f"{option} must be a column, one of {some(list(features))}, got "
                f"{chosen!r}"
            )
        return chosen
    if len(names) != 1:
        raise ValueError(
            f"{option} must name the column of the {option}s, one of "
            f"{some(list(features))}: "
            f"{'several' if names else 'none'} could be it"
        )
    return names[0]
