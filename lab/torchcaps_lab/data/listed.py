"""Images that are listed before they are read: files in a folder, rows of a table."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from torchcaps.numerics import Size
from torchcaps.spec import Within, argument, settings
from torchcaps_lab.data.alike import first_alike, looks_of, pixels_digest, same_content
from torchcaps_lab.data.bands import (
    Bands,
    Levels,
    Range,
    channels_of,
    check_range,
)
from torchcaps_lab.data.base import (
    TEST_SEED,
    DataSet,
    HeldOut,
    Resize,
    stable_split,
    stratified_split,
)
from torchcaps_lab.data.classes import places_of
from torchcaps_lab.data.doubts import image_doubts, names_doubts
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.manifest import (
    PARTS,
    Changes,
    Entry,
    Manifest,
    copies_lines,
    count_of,
    left_out_lines,
    readable,
    some,
    untested_lines,
)
from torchcaps_lab.data.picture import (
    BrokenImage,
    load_handwriting,
    open_image,
    opened,
    to_tensor,
)
from torchcaps_lab.data.preprocess import MOST_PIXELS
from torchcaps_lab.data.store import GIB, ImageStore, threaded
from torchcaps_lab.data.streams import digest_of

if TYPE_CHECKING:
    from io import BytesIO

    from PIL.Image import Image

    from torchcaps_lab.data.picture import Source

PART_NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
"""The names of each split, in lower case."""

Side = Annotated[int, Within(1, MOST_PIXELS)]
"""Pixels on a side of an image."""

_LISTED = 100  # broken images in one error

# Images among which training looks for those that look alike, which takes seconds
_COMPARED = 20_000


def part_called(name: str) -> str | None:
    """The split that a name, in upper or lower case, stands for; None if there is
    none.
    """
    return next(
        (part for part, names in PART_NAMES.items() if name.lower() in names), None
    )


def validation_is_test(tested: str, train: str) -> str:
    """The note for data with validation images but without test images."""
    return (
        f"there are no separate test images: the images in {readable(tested)!r} are "
        f"used as the test, and validation images are taken from {readable(train)!r}"
    )


@dataclass(frozen=True)
class Item(ABC):
    """One thing that is listed.

    Args:
        name: identifies it among all listed ones.
        category: the name of its class; empty where it is not known.
    """

    name: str
    category: str

    @property
    def title(self) -> str:
        """What people call it."""
        return self.name

    @abstractmethod
    def source(self) -> "Source":
        """Its file, its content, or the image itself."""


@dataclass
class Listed:
    """The images of a data set, none of them opened yet.

    Attributes:
        classes: the name of each label.
        parts: the images of each split of the source; ``all`` if it has no splits.
        left_out: other things that were found, by name, and why they were left out.
        notes: what a reader of results should know.
    """

    classes: tuple[str, ...] = ()
    parts: dict[str, list[Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def items(self) -> list[Item]:
        """The images of all parts."""
        return list(chain.from_iterable(self.parts.values()))


def arranged(listed: Listed, named: Mapping[str, str]) -> Listed:
    """The splits to use: without test images, validation images take their place, or a
    share is put aside.
    """
    parts = listed.parts
    if "train" not in parts:
        raise ValueError(
            "there is no split of training images with labels, only "
            f"{some(list(named.values()))}"
        )
    if "test" not in parts and "validation" in parts:
        parts["test"] = parts.pop("validation")
        listed.notes = (validation_is_test(named["validation"], named["train"]),)
    elif "test" not in parts:
        parts["all"] = parts.pop("train")
    return listed


@dataclass(frozen=True)
class _Splits:
    """The images of all splits, and their manifest."""

    sets: dict[str, Examples]
    manifest: Manifest

    @cached_property
    def same(self) -> Mapping[str, str]:
        """The digest that stands for those of files of the same pixels; finding it
        takes a look at every pixel.
        """
        pixels = {
            part: images.inputs
            for part, images in self.sets.items()
            if type(images) is Examples
        }
        return same_content(self.manifest, pixels) if pixels else {}


Decoded = tuple[dict[str, Examples], dict[str, BrokenImage]]
"""The items of each split, and the problems of those that cannot be read, by name."""


@settings
class ListedData(DataSet):
    """Items that are listed one by one before they are read, each with a class;
    subclasses list and read them.

    Args:
        test: share of the items that become the test set, the same in every class and
            for every ``seed``; ignored if the source has a test set; the choice depends
            on their contents, so it barely changes when the source changes.
        classes: the names of the classes in the order of their labels, some of which
            may have no items; default: those of the training items.

    Raises:
        ValueError: there are fewer than two classes, or items of another one.
    """

    thing: ClassVar[str] = "image"
    """The name of an item in messages."""

    in_file: ClassVar[str] = "file"
    """The name of what an item is in, likewise."""

    advice = "leave them out to see the rest"
    """How to see the broken items that an error does not list."""

    skip_broken = False
    """Whether items that cannot be read are left out, with a note, instead of raising
    an error.
    """

    test_share: HeldOut = argument(default=0.2, alias="test", kw_only=True)
    class_names: Sequence[Any] | None = argument(
        default=None, alias="classes", kw_only=True
    )

    def __post_init__(self) -> None:
        self.named = tuple(map(str, self.class_names or ()))
        if len({*self.named}) < len(self.named):
            raise ValueError(f"classes must have different names, got {self.named}")
        self._followed: Manifest | None = None
        self._unrecorded = False
        self._changes = Changes()

    @abstractmethod
    def list_images(self) -> Listed:
        """The list of images, without opening any."""

    @cached_property
    def listed(self) -> Listed:
        """The list of images, made once; their classes are matched by name."""
        listed = self.list_images()
        trained = listed.parts.get("train", listed.parts.get("all", ()))
        listed.classes = (
            self.named or listed.classes or tuple(sorted(self._labels_in(trained)))
        )
        root = getattr(self, "root", "")
        things = f"{self.thing.removesuffix('s')}s"
        if len(listed.classes) < 2:
            holds = f"{root} must hold {things} of" if root else "there must be"
            raise ValueError(f"{holds} two or more classes, got {listed.classes}")
        for part, items in listed.parts.items():
            called = things if part == "all" else f"the {part} {things}"
            names = sorted(self._labels_in(items))
            places_of(names, listed.classes, f"{called} of {root}" if root else called)
        return listed

    def labels_of(self, category: str) -> tuple[str, ...]:
        """The labels that the category of an item stands for: itself, unless an item
        may have several.
        """
        return (category,)

    def targets(self, entries: Sequence[Entry], classes: Sequence[str]) -> Tensor:
        """The labels of items, int64 (N,), or masks, bool (N, E), where an item may
        have several.

        Args:
            entries: the items.
            classes: the names of the labels.
        """
        label_of = {name: label for label, name in enumerate(classes)}
        labels = [label_of[entry.category] for entry in entries]
        return torch.tensor(labels, dtype=torch.int64)

    def group_of(self, category: str) -> str:
        """The group that an item belongs to: the same share of each is put aside."""
        return category

    def _labels_in(self, items: Iterable[Item | Entry]) -> set[str]:
        """The labels of items."""
        labels = set[str]()
        for category in {item.category for item in items}:
            labels.update(self.labels_of(category))
        return labels

    def load_train(self) -> Examples:
        """Read what to train on, including what is for validation unless that has a
        place of its own.
        """
        train, validation = (self._read.sets[part] for part in ("train", "validation"))
        if "validation" in self.listed.parts or not len(validation):
            return train
        return train.joined(validation)

    def load_validation(self) -> Examples | None:
        """Read the images in `val`, if that folder is there."""
        if "validation" in self.listed.parts:
            return self._read.sets["validation"]
        return None

    def load_test(self) -> Examples:
        """Read the test images."""
        return self._read.sets["test"]

    def manifest(self) -> Manifest:
        """Which files the images come from, split by split."""
        return self._read.manifest

    def follow(self, manifest: Manifest | None) -> Changes:
        """Takes over the splits of a manifest; files that are not in it are left
        out.
        """
        self._followed = manifest
        self._unrecorded = manifest is None
        for name in ("_read", "_train_and_validation", "test"):
            vars(self).pop(name, None)
        present = [self._entry(item) for item in self.listed.items]
        self._changes = Changes() if manifest is None else manifest.follow(present)[1]
        return self._changes

    def test_on_all(self) -> None:
        """Makes every file a test image; none is decoded for it."""
        entries = tuple(self._entry(item) for item in self.listed.items)
        self.follow(
            Manifest(
                self.listed.classes,
                {"train": (), "validation": (), "test": entries},
                self.listed.left_out,
            )
        )

    def notes(self) -> tuple[str, ...]:
        """What was left out and why, where test images are from, what changed, copies
        in several splits, lookalikes.
        """
        unknown: tuple[str, ...] = ()
        if self._unrecorded:
            unknown = ("the run kept no record of its split: it is made anew",)
        manifest = self.manifest().merged(self._read.same)
        tested = self._labels_in(manifest.parts["test"])
        return (
            *unknown,
            *self.listed.notes,
            *self._changes.lines(),
            *_left_out_lines(manifest.left_out, self.in_file),
            *untested_lines(
                [name for name in manifest.classes if tested and name not in tested]
            ),
            *copies_lines(manifest, self.thing),
            *names_doubts(manifest.classes),
        )

    def omissions(self) -> tuple[str, ...]:
        """What was left out of the source, and why."""
        return (
            *self.listed.notes,
            *_left_out_lines(self.manifest().left_out, self.in_file),
        )

    @cached_property
    def _train_and_validation(self) -> tuple[Examples, Examples]:
        return self._read.sets["train"], self._read.sets["validation"]

    @cached_property
    def _read(self) -> _Splits:
        """All images. Leaving out broken ones changes the splits, so everything is read
        again then.

        Files of the same pixels are known once they are decoded: what was decoded is
        then divided anew.
        """
        left_out = dict(self.listed.left_out)
        decoded = dict[str, Tensor]()
        same: Mapping[str, str] = {}
        while True:
            manifest = self._parts(left_out, same)
            sets, problems = self._decode(manifest, decoded)
            if not problems:
                read = _Splits(sets, manifest)
                if (
                    self._followed is not None
                    or self._parts(left_out, same := read.same) == manifest
                ):
                    return read
                for part, images in sets.items():
                    decoded |= zip(
                        (entry.name for entry in manifest.parts[part]),
                        images.inputs,
                        strict=True,
                    )
            elif not self.skip_broken:
                raise _all_broken(list(problems.values()), self.advice)
            left_out |= {name: problem.why for name, problem in problems.items()}

    def _parts(self, left_out: dict[str, str], same: Mapping[str, str]) -> Manifest:
        """Which files belong to which split, without those in ``left_out``; files of
        ``same`` content in one.
        """
        if self._followed is not None:
            present = [item for item in self.listed.items if item.name not in left_out]
            followed = self._followed.follow(list(map(self._entry, present)))[0]
            return replace(followed, left_out={**self._followed.left_out, **left_out})
        entries = {}
        for part, items in self.listed.parts.items():
            present = [item for item in items if item.name not in left_out]
            entries[part] = list(map(self._entry, present))
        divided = partial(_divided, None if self._unrecorded else same, self.group_of)
        if "all" in entries:
            entries["train"], entries["test"] = divided(
                entries.pop("all"), self.test_share, TEST_SEED
            )
        if "validation" not in entries:
            share = self.validation_share
            entries["train"], entries["validation"] = divided(
                entries["train"], share, self.seed
            )
        self._check_trained(entries["train"], left_out)
        return Manifest(
            self.listed.classes,
            {part: tuple(entries[part]) for part in PARTS},
            left_out,
        )

    def _check_trained(self, train: Sequence[Entry], left_out: dict[str, str]) -> None:
        """Raise a `ValueError` if there is nothing to train on of a class."""
        trained = {entry.category for entry in train}
        for category in {item.category for item in self.listed.items} - trained:
            reasons = [
                f"{name} ({why})"
                for name, why in left_out.items()
                if category in Path(name).parts
            ]
            because = f": {some(reasons)}" if reasons else ""
            raise ValueError(
                f"class {category!r} holds no training {self.thing} that can be "
                f"read{because}"
            )

    def _entry(self, item: Item) -> Entry:
        return Entry(item.name, item.category, self._digest(item))

    @abstractmethod
    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """The items of each split, and the problems of those that cannot be read, by
        name.

        Args:
            manifest: which items.
            decoded: all of them by name, if they were decoded before.
        """

    def _digest(self, item: Item) -> str:
        """Digest the content of an item."""
        return digest_of(cast("Path | BytesIO", item.source()))

    @cached_property
    def _items(self) -> dict[str, Any]:
        return {item.name: item for item in self.listed.items}


@settings
class ListedImages(ListedData):
    """Images that are listed one by one, each with a class; subclasses list them.

    Args:
        size: height and width of the images, one number for both; default: their own
            size, which must be the same for all.
        channels: 1 makes every image grey, 3 colour; default: 1 if all are grey, and 3
            otherwise; images with other numbers of channels, such as .npy files and
            TIFF files of many bands, keep theirs.
        resize: how images are resized: `pad` keeps the aspect ratio and adds black,
            `crop` keeps it and cuts the centre, `stretch` changes it, and `handwriting`
            cuts out handwriting.
        range: the pixel values that become black and white, such as 0 and 4095 for
            12-bit values in 16-bit files; values beyond them are clipped; default: the
            whole range of the type, 0 to 255 for 8 bits, 0 to 65535 for 16 bits, 0 to 1
            for floating point.
        skip_broken: leave out images that cannot be read, with a note, instead of
            raising an error.
        memory: GiB of decoded images that are kept in memory; larger data are decoded
            once into a file in the folder `decoded` of the data sets (the environment
            variable TORCHCAPS_DATA, or torchcaps in the user's cache folder), and read
            from this file.

    Raises:
        ValueError: an argument is out of range.
    """

    names_alike = "compare them before you trust the test"
    """How to see which images look alike."""

    size: Side | tuple[Side, Side] | None = argument(default=None, kw_only=True)
    channels: Size | None = argument(default=None, kw_only=True)
    resize: Resize = argument(default="pad", kw_only=True)
    levels: Range | None = argument(default=None, alias="range", kw_only=True)
    skip_broken: bool = argument(default=False, kw_only=True)
    memory: float = argument(default=4.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.memory >= 0:
            raise ValueError(f"memory must be 0 GiB or more, got {self.memory}")
        check_range(self.levels)

    @property
    def sides(self) -> tuple[int, int] | None:
        """Height and width to resize to, if any."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def fingerprint(self) -> str:
        """A digest of the training and validation files, in their order, and of how
        they are read.
        """
        how = (
            self.manifest().digest(),
            self.image_shape,
            self.resize,
            *(self.levels or ()),
        )
        return hashlib.sha256(repr(how).encode()).hexdigest()

    def notes(self) -> tuple[str, ...]:
        """Note what all data note, and how many test images look like training images,
        without those of the same pixels.
        """
        train, test = (self._read.sets[part] for part in ("train", "test"))
        if len(train) + len(test) > _COMPARED:
            return self._plain_notes(train)
        parts = self.manifest().merged(self._read.same).parts
        train_digests = {entry.digest for entry in parts["train"]}
        rows = [
            row
            for row, entry in enumerate(parts["test"])
            if entry.digest not in train_digests
        ]
        first_places = first_alike(
            looks_of(test.inputs, rows), looks_of(train.inputs, range(len(train)))
        )
        alike = [place for place in first_places if place >= 0]
        note = (
            f"{count_of(alike, 'test image')} nearly the same as a training "
            f"image; {self.names_alike}"
        )
        return (*self._plain_notes(train), *([note] if alike else []))

    def _plain_notes(self, train: Examples) -> tuple[str, ...]:
        names = [entry.name for entry in self._read.manifest.parts["train"]]
        return (*super().notes(), *image_doubts(train.inputs, names))

    def _decode(self, manifest: Manifest, decoded: Mapping[str, Tensor]) -> Decoded:
        """The images of each split, and the problems of those that cannot be read, by
        name.

        Args:
            manifest: which images.
            decoded: all of them by name, if they were decoded before.
        """
        entries = list(chain.from_iterable(manifest.parts[part] for part in PARTS))
        shape, first = self._shape(entries)
        count = len(entries) + len(decoded)
        how = self.resize if self.levels is None else f"{self.resize} {self.levels}"
        store = ImageStore(shape, count * math.prod(shape) > self.memory * GIB, how)
        sets: dict[str, Examples] = {}
        problems: dict[str, BrokenImage] = {}
        for part in PARTS:
            rows = manifest.parts[part]
            items = [self._items[entry.name] for entry in rows]
            picture: Callable[[int], Any] = partial(self._picture, items, shape, first)
            if decoded:
                picture = [decoded[entry.name] for entry in rows].__getitem__
            images, broken = store.decode([entry.digest for entry in rows], picture)
            problems |= {rows[index].name: problem for index, problem in broken.items()}
            if not problems:
                sets[part] = Examples(
                    images,
                    self.targets(rows, manifest.classes),
                    manifest.classes,
                    tuple(item.title for item in items),
                )
        return sets, problems

    def _picture(
        self,
        items: Sequence[Item],
        shape: tuple[int, int, int],
        first: Item,
        index: int,
    ) -> Tensor:
        item = items[index]
        if self.resize == "handwriting" and self.sides is not None:
            return _handwriting(item, shape, self.levels)
        image = _open(item, shape[0], self.levels)
        if self.sides is None and image.size != shape[:0:-1]:
            raise ValueError(
                f"images must have one size: {first.title} has {shape[1]} x "
                f"{shape[2]} pixels "
                f"(height x width) but {item.title} has {image.height} x "
                f"{image.width}; pass size to resize them"
            )
        if self.resize == "handwriting":
            return _handwriting(item, shape, self.levels)
        return to_tensor(image, shape, self.resize)

    def _shape(self, entries: Sequence[Entry]) -> tuple[tuple[int, int, int], Item]:
        """The shape of all images, and the first image that can be read, whose size is
        taken if ``size`` is None.
        """
        items = [self._items[entry.name] for entry in entries]
        if not items:
            raise ValueError(
                "none of the images that the run was trained and tested on exists "
                "any more"
            )
        channels = self.channels or self._channels([entry.name for entry in entries])
        if self.sides is not None:
            return (channels, *self.sides), items[0]
        problems = []
        for item in items:
            try:
                width, height = _open(item, channels, self.levels).size
            except BrokenImage as problem:
                problems.append(problem)
            else:
                return (channels, height, width), item
        raise _all_broken(problems, self.advice)

    def _channels(self, names: Sequence[str]) -> int:
        """The channels of images: 1 if all are grey, 3 if some are in colour, or those
        that most have.
        """
        counts = Counter(self._seen[name].channels for name in names)
        del counts[0]  # those that cannot be read
        most = max(counts, key=counts.__getitem__, default=1)
        return 3 if most == 1 and 3 in counts else most

    def _digest(self, item: Item) -> str:
        return self._seen[item.name].digest

    @cached_property
    def _seen(self) -> dict[str, "Seen"]:
        """Facts about each image from its file, without decoding it."""
        items = self.listed.items
        files_seen = threaded(
            lambda index: look(items[index].source, items[index].title),
            range(len(items)),
        )
        return {item.name: seen for item, seen in zip(items, files_seen, strict=True)}


class Seen(NamedTuple):
    """Facts about a file, without decoding it.

    Args:
        digest: the digest of its content.
        channels: how many it has; 0 if it is unknown.
    """

    digest: str
    channels: int


def look(source_of: Callable[[], "Source"], title: str) -> Seen:
    """Facts about an image; one that cannot be read is known once it is decoded."""
    from PIL import Image

    digest = "unreadable"
    try:
        source = source_of()
        if isinstance(source, Image.Image | Bands):
            digest = pixels_digest(source)
        else:
            digest = digest_of(source)
        with opened(source, title) as image:
            channels = channels_of(image)
    except BrokenImage:
        channels = 0
    except OSError as error:
        return Seen(f"unreadable: {error.strerror}", 0)
    return Seen(digest, channels)


@contextmanager
def _reading(item: Item) -> Iterator[None]:
    """Turns an `OSError`, such as a missing permission, into a `BrokenImage`."""
    try:
        yield
    except OSError as error:
        raise BrokenImage(item.title, str(error.strerror)) from error


def _open(item: Item, channels: int, levels: Levels | None) -> "Image | Bands":
    """The decoded image."""
    with _reading(item):
        return open_image(item.source(), channels, item.title, levels)


def _handwriting(
    item: Item, shape: tuple[int, int, int], levels: Levels | None
) -> Tensor:
    """The handwriting in an image, found as in pictures that a trained network
    classifies: any ink on any paper.
    """
    with _reading(item):
        return load_handwriting(item.source(), shape, item.title, levels).values


def _divided(
    same: Mapping[str, str] | None,
    group_of: Callable[[str], str],
    entries: Sequence[Entry],
    share: float,
    seed: int,
) -> tuple[list[Entry], list[Entry]]:
    """The rest and the share put aside, chosen by content; None: by index, as it was
    before runs kept a record.
    """
    groups = [group_of(entry.category) for entry in entries]
    number_of = {name: number for number, name in enumerate(sorted({*groups}))}
    labels = torch.tensor([number_of[name] for name in groups], dtype=torch.int64)
    if same is None:
        train_rows, aside = stratified_split(labels, share, seed)
    else:
        digests = [same.get(entry.digest, entry.digest) for entry in entries]
        train_rows, aside = stable_split(labels, digests, share, seed)
    return [entries[index] for index in train_rows.tolist()], [
        entries[index] for index in aside.tolist()
    ]


def _all_broken(problems: Sequence[BrokenImage], advice: str) -> ValueError:
    """One error for all images that cannot be read."""
    more = len(problems) - _LISTED
    return ValueError(
        "\n".join(
            [
                *(readable(str(problem)) for problem in problems[:_LISTED]),
                *([f"and {more:,} more: {advice}"] if more > 0 else []),
                f"{count_of(problems, 'file')} cannot be read: repair or remove them, "
                "or leave them out with "
                "skip_broken (--data.skip_broken true)",
            ]
        )
    )


def _left_out_lines(left_out: Mapping[str, str], thing: str) -> list[str]:
    """The first lines of :func:`left_out_lines`, and how many more there are."""
    lines = left_out_lines(left_out, thing)
    more = len(lines) - _LISTED
    return lines[:_LISTED] + (
        [f"left out more, for {more:,} other reasons"] if more > 0 else []
    )
