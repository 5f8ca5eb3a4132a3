"""Reads images: how they are recognised, and how they get to the size of a network."""

import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.models import CapsuleClassifier, ClassifierNetwork
from torchcaps.spec import Given, check, declared, fit
from torchcaps_lab.data.base import DataSet
from torchcaps_lab.data.columns import UnclearColumns
from torchcaps_lab.data.counts import DataReport
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.files import ListedFile, list_folder, looked_through
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.reader import Read, Reader, Report, register_reader
from torchcaps_lab.data.table_form import (
    TableForm,
    is_of_others,
    reasons,
    tables_beside,
)
from torchcaps_lab.data.transforms.preprocess import Preprocess
from torchcaps_lab.kinds.images.check import check_folder, check_table
from torchcaps_lab.kinds.images.decoding.bands import Bands, Levels, Range
from torchcaps_lab.kinds.images.decoding.picture import (
    BLACK,
    Background,
    as_numbers,
    as_picture,
    as_shown,
    as_source,
    at_size,
    colour_of,
    fit_handwriting,
    image_suffixes,
    in_mode,
    load_handwriting,
    open_image,
    opened,
    to_tensor,
)
from torchcaps_lab.kinds.images.decoding.upload import uploaded_picture
from torchcaps_lab.kinds.images.guess import LOOKED_AT, guess_of_images
from torchcaps_lab.kinds.images.samples import image_samples
from torchcaps_lab.kinds.images.sets.arrays import labels_of_images
from torchcaps_lab.kinds.images.sets.files import ImageListing, image_files
from torchcaps_lab.kinds.images.sets.map_style import MapStyle
from torchcaps_lab.kinds.images.sets.table import (
    ImagesByName,
    TableOfImages,
    first_unmatched,
    other_labels,
    table_of_images,
)
from torchcaps_lab.look import (
    Fit,
    Guess,
    Place,
    counted,
    data_asked,
    trained_of,
    value_of,
)

_LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601), as in Pillow."""

_LARGEST = 2**28
"""Most numbers of an image that a saved network may demand."""


_ANY_LABEL = {"label": "", "group": None, "split": None}
"""Options for a table whose images are wanted, whatever its labels are."""


@register_reader("images")
@dataclass(frozen=True)
class ImageReader(Reader):
    """Images of any kind and size: see
    :meth:`torchcaps_lab.classifier.Classifier.predict`.

    Args:
        image_shape: (C, H, W) of those that the network takes, before they are
            prepared.
        resize: how images of another size get there.
        levels: the values of pixels that become black and white; default: the range of
            their kind.
        preprocess: how they are prepared for the network.
        background: the colour behind transparent parts.
    """

    image_shape: tuple[int, int, int]
    resize: Fit = "pad"
    levels: Levels | None = None
    preprocess: Preprocess = field(default_factory=Preprocess)
    background: str = BLACK

    takes = "images"
    items = "images"
    in_program = "MapStyle"
    axes = MappingProxyType({0: "batch"})

    @classmethod
    def sees(cls, place: Place, given: Mapping[str, Any]) -> Guess | None:
        """A folder of class folders, or images whose labels stand in a table."""
        data = data_asked(given)
        if is_of_others(data, "file"):
            return None
        by_folder = "class_folders" in data
        if not by_folder and not {"file", "label"} & data.keys():
            folders = _class_folders(place)
            _check_table_beside(place, folders)
            by_folder = bool(folders)
        named = None if by_folder else table_of_images(place, data)
        if named is not None:
            return _of_table(named, given, tables_beside(place))
        if place.is_file or not place.suffixes & cls.endings():
            return None
        return _of_folder(place.path, given)

    @classmethod
    def of_program(cls, data: Any, labels: Any, given: Mapping[str, Any]) -> Guess:
        """Pairs, or images and labels beside them, as
        :class:`~torchcaps_lab.data.MapStyle` reads them.
        """
        if labels is not None:
            data = _with_labels(data, labels)
        elif hasattr(data, "shape"):
            raise ValueError(
                "the labels are missing: torchcaps.train(images, labels) takes images "
                f"in an array, got one of the shape {tuple(data.shape)} alone; "
                'task="objects" learns without labels'
            )
        return _of_pairs(data, given)

    @classmethod
    def endings(cls) -> set[str]:
        """Those of the images that Pillow and its plug-ins open here."""
        return image_suffixes()

    @classmethod
    def missing(cls, place: Place) -> str:
        """What is missing of a folder of class folders."""
        if place.is_file:
            return super().missing(place)
        try:
            return "; ".join(looked_through(ImageListing(root=place.path)).refused)
        except ValueError as error:
            return str(error)

    @classmethod
    def report(cls, place: Place, seen: Guess | ValueError) -> Report:
        """Every image of the folder or of the table, read in full; or why there can be
        no training, beside what is known of the images of a folder.
        """
        if isinstance(seen, ValueError):
            problem = DataReport(problems=(str(seen),))
            if place.is_file or isinstance(seen, UnclearColumns):
                return problem
            try:
                report = check_folder(place.path)
            except ValueError:
                return problem
            return report if report.problems else replace(report, folders=(str(seen),))
        data = data_asked(seen.options)
        skips = bool(data.get("skip_broken"))
        if data.get("name") != "ImageTable":
            before = data.get("group_before") or ""
            return check_folder(place.path, skips, before, data.get("class_folders"))
        form = TableForm.stated(data["file"], data)
        return check_table(TableOfImages(Path(data["root"]), form), skips)

    @classmethod
    def smaller_side(cls, path: Path) -> int | None:
        """The pixels of the smaller side, as Pillow reads them from the header."""
        try:
            with opened(path) as image:
                return min(image.size)
        except (OSError, ValueError):
            return None

    @classmethod
    def of_network(cls, network: ClassifierNetwork) -> "ImageReader | None":
        """The reader of images in the size that a network takes."""
        if network.takes != cls.takes:
            return None
        return cls.from_config({"image_shape": network.image_shape})

    @classmethod
    def of_data(cls, data: Any, preprocess: Preprocess) -> "ImageReader":
        """Shape and fit of the images of a data set, and the range of their pixels."""
        levels = getattr(data, "levels", None)
        background = getattr(data, "background", BLACK)
        return cls(data.read_shape, data.resize, levels, preprocess, background)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ImageReader":
        """The reader that :meth:`config` describes."""
        channels, height, width = config["image_shape"]
        levels = config.get("range")
        levels = tuple(levels) if isinstance(levels, list) else levels
        check(Range | None, levels, "range")
        resize: Fit = config.get("resize", "pad")
        check(Fit, resize, "resize")
        preprocess = Preprocess.from_config(config.get("preprocess", {}))
        background = config.get("background", BLACK)
        check(Background, background, "background")
        shape = (channels, height, width)
        return cls(shape, resize, levels, preprocess, background)

    def config(self) -> dict[str, Any]:
        """Shape, fit, range of pixels and preprocessing."""
        config: dict[str, Any] = {
            "image_shape": list(self.image_shape),
            "resize": self.resize,
            "preprocess": self.preprocess.config(),
        }
        if self.background != BLACK:
            config["background"] = self.background
        return config if self.levels is None else {**config, "range": list(self.levels)}

    def suited(self, network: ClassifierNetwork) -> "ImageReader":
        """This reader, which pads images for a network of one size."""
        if self.resize == "keep" and not network.any_size:
            return replace(self, resize="pad")
        return self

    def check(self, network: ClassifierNetwork) -> None:
        """Raise a `ValueError` unless images of this shape are prepared to that of the
        network.
        """
        super().check(network)
        self.check_fit(network, self.resize)
        if math.prod(self.image_shape) > _LARGEST:
            raise ValueError(
                f"image_shape must have at most {_LARGEST} numbers, got "
                f"{self.image_shape}"
            )
        seen = self.preprocess.image_shape(self.image_shape)
        taken: Any = network.image_shape
        if seen != taken and not (network.any_size and seen[0] == taken[0]):
            raise ValueError(
                f"image_shape {self.image_shape} is prepared to {seen}, but the "
                f"network takes {taken}"
            )

    def check_fit(self, network: ClassifierNetwork, resize: Fit | None) -> None:
        """Raise a `ValueError` if a network of one size should keep that of images."""
        if resize == "keep" and not network.any_size:
            raise ValueError(
                "resize 'keep' is for networks of any size, and a "
                f"{type(network).__name__} has a fixed size"
            )

    def changed(self, **settings: Any) -> "ImageReader":
        """This reader with other settings; None leaves one as it is."""
        chosen = {name: value for name, value in settings.items() if value is not None}
        if "image_shape" in chosen:
            channels, height, width = chosen["image_shape"]
            chosen["image_shape"] = (channels, height, width)
        check(Fit | None, chosen.get("resize"), "resize")
        return replace(self, **chosen)

    def of_examples(self) -> "ImageReader":
        """This reader without a range: examples are in [0, 1] already."""
        return replace(self, levels=None)

    def complete(self, arguments: dict[str, Any]) -> str:
        """Size, channels, range of the values and the colour behind transparent parts."""
        channels, height, width = self.image_shape
        if arguments.get("range", ()) is None and self.levels is not None:
            arguments["range"] = list(self.levels)
        if arguments.get("background") == BLACK:
            arguments["background"] = self.background
        shape = {"size": (height, width), "channels": channels}
        missing = [name for name in shape if arguments.get(name, ()) is None]
        if not missing:
            return ""
        arguments |= {name: shape[name] for name in missing}
        colour = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
        return (
            f"images of another shape are converted to {height} x {width} pixels, "
            f"{colour}, as the network takes them"
        )

    def facts(self) -> dict[str, str]:
        """Their shape and fit."""
        return {"images": f"{self.image_shape}, resize {self.resize!r}"}

    def unexplored(self, network: ClassifierNetwork) -> str:
        """Why there is nothing to explore: the network has no capsules."""
        return "" if isinstance(network, CapsuleClassifier) else "which has no capsules"

    def read(self, given: Any, resize: Fit | None = None) -> Read:
        """Float32 in [0, 1], of ``image_shape``, or with ``keep`` of its own height and
        width.
        """
        fit = resize or self.resize
        check(Fit, fit, "resize")
        if fit == "handwriting":
            shape, levels = self.image_shape, self.levels
            file = _file(given)
            if file is not None:
                sign = load_handwriting(file.source, shape, file.name, levels)
            else:
                shown = as_shown(given) if levels is None else as_source(given, levels)
                sign = fit_handwriting(shown, shape, levels)
            return sign._replace(values=sign.values.float() / 255)
        return Read(self._pixels(given, fit), "")

    def at_its_size(
        self, mask: Tensor, given: Any, resize: Fit | None = None
    ) -> tuple[Tensor, Tensor]:
        """The classes of pixels and the picture, as large as the picture."""
        fit = resize or self.resize
        read = self.read(given, fit).values
        mask = self.preprocess.undone(mask, *read.shape[1:])
        if fit in ("keep", "handwriting"):
            return mask, read
        picture = self.read(given, "keep").values
        height, width = picture.shape[1:]
        return at_size(mask, height, width, fit), picture

    def _pixels(self, image: Any, fit: Fit) -> Tensor:
        channels = self.image_shape[0]
        how: Any = {"levels": self.levels, "background": self.background}
        file = _file(image)
        if file is not None:
            picture = open_image(file.source, channels, file.name, **how)
        else:
            source = None
            if channels in (1, 3) or not hasattr(image, "shape"):
                source = as_picture(image)
            if source is None:
                behind = colour_of(self.background)
                numbers = _opaque(as_numbers(image, self.levels), channels, behind)
                numbers = _with_channels(numbers, channels)
                if fit == "keep":
                    return numbers
                pixels = numbers.detach().cpu().permute(1, 2, 0).numpy()
                # Interpolation leaves the range at edges.
                return to_tensor(Bands(pixels), self.image_shape, fit).clamp(0, 1)
            picture = in_mode(source, channels, **how)
        if fit == "keep":
            own = (channels, picture.height, picture.width)
            return to_tensor(picture, own, "pad").float() / 255
        return to_tensor(picture, self.image_shape, fit).float() / 255

    def uploaded(self, file: bytes, name: str) -> Tensor:
        """The picture in a file. A black one was drawn in the right size."""
        picture = uploaded_picture(file, name)
        drawn = picture.mode in ("L", "RGB", "RGBA")
        # Fitting a picture may look for ink, and would find none in a black one.
        black = drawn and picture.convert("L").getextrema()[1] == 0
        padded = self.resize == "keep" or black
        deep = picture.mode.startswith(("I", "F"))
        reader = self
        if self.levels is not None and max(self.levels) > 255 and not deep:
            # Such as a drawing, beside images of more than 8 bits.
            reader = self.of_examples()
        return reader.read(picture, "pad" if padded else None).values

    def samples(self, name: str, classifier: Any, tell: Any) -> Examples | None:
        """Test images that are on this machine, or digits."""
        return image_samples(name, classifier, tell)

    def numbers(self, values: Tensor) -> Tensor:
        """Images in [0, 1]."""
        return as_numbers(values, self.levels)

    def collate(self, rows: Sequence[Tensor]) -> Tensor:
        """Images of one shape, (B, C, H, W)."""
        return torch.stack(list(rows))

    def alike(self, first: Tensor, second: Tensor) -> bool:
        """Whether both have one shape."""
        return first.shape == second.shape

    def most(self, row: Tensor, size: int) -> int:
        """As many inputs as have the pixels of ``size`` images of ``image_shape``."""
        return -(-size * math.prod(self.image_shape) // row.numel())

    def fitted(self, examples: Examples) -> Examples:
        """Images of the shape that the network takes, prepared for it."""
        images = super().fitted(examples)
        shape = images.raw_image_shape
        any_size = self.resize == "keep"
        if shape != self.image_shape and not (
            any_size and shape[0] == self.image_shape[0]
        ):
            raise ValueError(
                f"the images are {shape}, the network takes {self.image_shape}"
            )
        return images

    def trial(self, network: ClassifierNetwork, count: int) -> Tensor:
        """Images of noise, unprepared."""
        generator = torch.Generator().manual_seed(0)
        return torch.rand(count, *self.image_shape, generator=generator)

    def inputs_of(self, name: str) -> list[Path]:
        """The named file, or those of a folder, a table or a pattern; a missing file is
        reported when it is read.

        Raises:
            ValueError: a folder holds no images, no file fits a pattern, or the name is
                empty.
        """
        if not name:
            raise ValueError(
                "images must be names of files or folders, got an empty one"
            )
        files = self._files(name)
        if not files:
            raise ValueError(
                f"there are no images in {name}"
                if Path(name).exists()
                else f"no file fits the pattern {name}"
            )
        return files

    def _files(self, name: str) -> list[Path]:
        """The image files that one name stands for."""
        path = Path(name)
        if path.is_dir():
            return self.in_folder(path)
        if not path.exists() and any(sign in name for sign in "*?["):
            fitting = Path(path.anchor).glob(name.removeprefix(path.anchor))
            return sorted(file for file in fitting if file.is_file())
        named = table_of_images(Place(path), _ANY_LABEL) if path.is_file() else None
        return [path] if named is None else named.paths()

    def in_folder(self, folder: Path) -> list[Path]:
        """The images in a folder, as they would be trained on."""
        return image_files(folder)

    def notes(self) -> dict[str, Any]:
        """Shape, fit and range of the images, and what is behind transparent parts."""
        settings_of_reader = self.config()
        del settings_of_reader["preprocess"]
        return {**settings_of_reader, "pixels": "float32 in [0, 1]"}

    def __str__(self) -> str:
        return (
            f"images (batch, {str(self.image_shape)[1:-1]}), float32 in [0, 1]; "
            "preparing them is in it"
        )


def _class_folders(place: Place) -> dict[Path, str]:
    """The class of each image by its folder, if there are class folders beside a table;
    else none.
    """
    if place.is_file or not tables_beside(place):
        return {}
    try:
        listing = looked_through(ImageListing(root=place.path))
    except ValueError:
        return {}
    files = [] if listing.refused else listing.items
    return {file.path: file.category for file in files if isinstance(file, ListedFile)}


def _check_table_beside(place: Place, folders: Mapping[Path, str]) -> None:
    """Raise an `UnclearColumns` if a table may hold other classes of the images in
    class folders, if there are any, or labels of images that are none of them.
    """
    named = None
    by_folder = ["torchcaps", "train", str(place.path)]
    by_folder += ["--data.class_folders", "outer"]
    # A table beside class folders may hold anything.
    with suppress(ValueError):
        if folders:
            named = table_of_images(place, _ANY_LABEL)
    columns = [] if named is None else other_labels(named, folders)
    if named is not None and columns:
        column = columns[0] if len(columns) == 1 else "COLUMN"
        by_table = ["torchcaps", "train", str(named.table), "--data.label", column]
        raise UnclearColumns(
            f"{named.table} names images in the folders "
            f"{some(sorted({*folders.values()}))}, and may hold other classes of them "
            f"than these folders: {some(columns)}. If a column holds the classes: "
            f"{shlex.join(by_table)}; if the folders are the classes: "
            f"{shlex.join(by_folder)}"
        )
    if named is not None or not folders:
        return
    images = ImagesByName(place.path)
    for table in tables_beside(place):
        cell = ""
        with suppress(ValueError):
            cell = first_unmatched(table, images)
        if cell:
            raise UnclearColumns(
                f"{table} holds labels, and names no image below {place.path}: the "
                f"first that was looked for is {cell!r}. Write the names of the files "
                "into the table; or, if the folders are the classes: "
                f"{shlex.join(by_folder)}"
            )


def _with_labels(images: Any, labels: Any) -> Any:
    """Two arrays, of images in a list if they have one shape, or pairs."""
    if not isinstance(images, list):
        return images, labels
    pairs = list(zip(images, labels_of_images(images, labels, "data"), strict=True))
    shapes = {getattr(image, "shape", None) for image in images}
    if None not in shapes and len(shapes) == 1:
        return np.stack(images), labels
    return pairs


def _of_folder(root: Path, given: Mapping[str, Any]) -> Guess:
    data = data_asked(given)
    listing = ImageListing(
        tuple(data.get("classes") or ()),
        root=root,
        skip_empty=bool(data.get("skip_broken")),
        class_folders=data.get("class_folders"),
    )
    # The data set refuses what is none of known classes.
    _ = looked_through(listing) if listing.classes else list_folder(listing)
    count = len(listing.items)
    train = trained_of(count)
    if "train" in listing.parts:
        train = len(listing.parts["train"]) * 9 // 10
    files = [file.path for file in listing.items if isinstance(file, ListedFile)]
    classes = counted(len(listing.classes), "classes")
    summary = f"ImageFolder, {counted(count, 'files')} of {classes} in {root}"
    data = {"name": "ImageFolder", "root": str(root)}
    apart = listing.parts.get("validation")
    validation = None if apart is None else len(apart)
    return guess_of_images(data, summary, files, train, given, validation)


def _of_pairs(data: Any, given: Mapping[str, Any]) -> Guess:
    """Some of the images are asked for, to look at them."""
    source = {"name": ImageReader.in_program, "data": Given(data)}
    taken = declared(MapStyle).arguments
    asked = value_of(given.get("data")) or {}
    known = {name: value for name, value in asked.items() if name in taken}
    pairs = fit(DataSet, {**known, **source}, "data").make()
    counts = {part: len(given_pairs) for part, given_pairs in pairs.given.items()}
    count = counts["train"]
    train = count * 9 // 10 if "test" in counts else trained_of(count)
    return guess_of_images(
        source,
        f"{ImageReader.in_program}, {counted(count, 'images')} with labels",
        pairs.samples(LOOKED_AT),
        train,
        given,
        counts.get("validation"),
    )


def _of_table(
    named: TableOfImages, given: Mapping[str, Any], tables: Sequence[Path]
) -> Guess:
    files = named.paths()
    count = counted(len(files), "images")
    summary = f"ImageTable, {count} with labels in {named.table}"
    options = named.options()
    guess = guess_of_images(options, summary, files, trained_of(len(files)), given)
    assert named.columns is not None
    why = {**guess.why, **reasons(options, named.columns)}
    read = named.tables.values()
    if unread := [path.name for path in tables if path not in read]:
        why["tables"] = f"not read: {some(unread)}"
    guess = guess._replace(seen=tuple(named.columns.lines()), why=why)
    if not named.form.delimiter:
        return guess
    # Photos may show several of the classes, so none is left out of the loss.
    why["task"] = "several_labels, since an image may have several labels"
    return guess._replace(options={**guess.options, "task": {"name": "several_labels"}})


class _File(NamedTuple):
    """A file that holds an image, or what is in it, and its name for messages."""

    source: Path | BytesIO
    name: str


def _file(image: Any) -> _File | None:
    """The file of an image, or its bytes; None if it is no file."""
    if isinstance(image, bytes):
        return _File(BytesIO(image), f"of {len(image):,} bytes")
    if isinstance(image, str | Path):
        return _File(Path(image), str(image))
    return None


def _opaque(image: Tensor, channels: int, behind: Sequence[int]) -> Tensor:
    """An image (C, H, W) in [0, 1] with a colour, in bytes, behind transparent parts."""
    if len(image) != 4 or channels not in (1, 3):
        return image
    colour = image.new_tensor(behind)[:, None, None] / 255
    return image[:3] * image[3:] + colour * (1 - image[3:])


def _with_channels(image: Tensor, channels: int) -> Tensor:
    """Grey as colour, colour as grey; else the channels must be right."""
    count = len(image)
    if count == channels:
        return image
    if (count, channels) == (1, 3):
        return image.expand(3, -1, -1)
    if (count, channels) == (3, 1):
        return (image * image.new_tensor(_LUMA)[:, None, None]).sum(0, keepdim=True)
    raise ValueError(
        f"an image of {count} channels cannot be made into one of {channels}; "
        "arrays are (H, W) or (H, W, C), tensors (C, H, W)"
    )
