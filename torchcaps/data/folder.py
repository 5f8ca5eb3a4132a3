"""A folder of the user's own images."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.base import (
    TEST_SEED,
    ImageData,
    ImageSet,
    Resize,
    check_share,
    register_dataset,
    stable_split,
    stratified_split,
)
from torchcaps.data.files import ImageFile, image_files, list_folder
from torchcaps.data.manifest import (
    PARTS,
    Changes,
    Entry,
    Manifest,
    copies_lines,
    count_of,
    readable,
    some,
)
from torchcaps.data.picture import (
    BrokenImage,
    check_resize,
    fit_image,
    load_image,
    naming,
    open_image,
    to_tensor,
)
from torchcaps.data.store import GIB, ImageStore, threaded
from torchcaps.data.streams import digest_of

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageFolder", "Resize", "check_resize", "fit_image", "image_files", "load_image"]

_LISTED = 100  # broken files in one error


@dataclass(frozen=True)
class _Read:
    """The images of all parts, and what is said of them."""

    sets: dict[str, ImageSet]
    manifest: Manifest


@register_dataset("folder")
class ImageFolder(ImageData):
    """The images in a folder: one sub-folder per class, named after it.

    Where `root` holds the folders `train` and `test`, those are the splits (with one sub-folder per class
    each), and so is `val` for validation if it is there; `training`, `valid`, `validation` and `testing` are known as
    well, in upper and lower case. With `train` and `val` alone, `val` is what is tested on. Otherwise a share of each
    class is the test set, the same for every `seed`. Which images are put aside depends on their contents, so that it
    hardly changes with the folder; a run keeps the names and digests of its images, and is tested on the same.

    Every file inside a class folder, however deep, whose suffix Pillow can open is an image of that class;
    hidden files and folders are skipped, links are followed. Of moving images the first frame counts. Images are turned
    the way their EXIF orientation says, 16-bit grey is scaled to 8 bit, transparent parts show black. All files are
    read when images are first asked for, those to test on too: a broken one is known before anything is trained.
    `torchcaps check` tells the same beforehand. The images are kept in memory, one byte per pixel and channel, or in
    a file that is mapped into it.

    Args:
        root: the folder.
        size: height and width of the images, one number for both. Default: their own size, which must then
            be the same for all.
        channels: 1 makes every image grey, 3 colour. Default: 1 if the files are all grey, else 3.
        resize: how an image gets to `size`: keep its aspect ratio and `pad` with black, keep it and `crop`
            the centre, or `stretch`.
        test: share of the images that are the test set, the same in every class; not used where `root`
            holds `test`.
        validation: share of the training images put aside for validation, the same in every class; 0 puts
            none aside. Not used where `root` holds `val` beside `test`.
        seed: chooses which images those are; nothing else does.
        skip_broken: leave out what cannot be read, and say so, instead of refusing all.
        memory: GiB of decoded images that are kept in memory; more are decoded once into a file in the folder
            `decoded` of the data sets (the environment variable TORCHCAPS_DATA, else torchcaps in the user's cache
            folder), and read from there.

    Raises:
        FileNotFoundError: there is no `root`.
        NotADirectoryError: `root` is not a folder.
        ValueError: an argument is out of range, the folders are not as above, there are fewer than two
            classes, or a class has no images. Reading the images raises it for files that Pillow cannot
            read and for one of another size where no `size` is given.
    """

    def __init__(
        self,
        root: str,
        size: int | tuple[int, int] | None = None,
        channels: Literal[1, 3] | None = None,
        resize: Resize = "pad",
        test: float = 0.2,
        validation: float = 0.1,
        seed: int = 0,
        skip_broken: bool = False,
        memory: float = 4.0,
    ) -> None:
        super().__init__(validation, seed)
        check_share("test", test)
        check_resize(resize)
        if channels not in (None, 1, 3):
            raise ValueError(f"channels must be 1, 3 or None, got {channels}")
        self.root = Path(root).expanduser()
        self.size = (size, size) if isinstance(size, int) else size
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"size must be at least 1 x 1 pixel, got {size}")
        if not memory >= 0:
            raise ValueError(f"memory must be 0 GiB or more, got {memory}")
        self.channels = channels
        self.resize: Resize = resize
        self.test_share = test
        self.skip_broken = skip_broken
        self.memory = memory
        self._listing = list_folder(self.root)
        self._followed: Manifest | None = None
        self._unrecorded = False
        self._changes = Changes()

    def load_train(self) -> ImageSet:
        """Read the training images, those for validation included unless these have a folder of their own."""
        train, validation = (self._read.sets[part] for part in ("train", "validation"))
        if "validation" in self._listing.parts or not len(validation):
            return train
        return replace(
            train,
            images=torch.cat([train.images, validation.images]),
            labels=torch.cat([train.labels, validation.labels]),
            files=(*(train.files or ()), *(validation.files or ())),
        )

    def load_validation(self) -> ImageSet | None:
        """Read the images in `val`, if that folder is there."""
        return self._read.sets["validation"] if "validation" in self._listing.parts else None

    def load_test(self) -> ImageSet:
        """Read the test images."""
        return self._read.sets["test"]

    def manifest(self) -> Manifest:
        """Which files the images come from, part by part."""
        return self._read.manifest

    def follow(self, manifest: Manifest | None) -> Changes:
        """Keeps to the parts of a manifest; files that are not in it belong to none."""
        self._followed, self._unrecorded = manifest, manifest is None
        for name in ("_read", "_train_and_validation", "test"):
            vars(self).pop(name, None)
        present = [self._entry(file) for file in self._listing.files]
        self._changes = Changes() if manifest is None else manifest.follow(present)[1]
        return self._changes

    def fingerprint(self) -> str:
        """A digest of the contents of the files to train and to validate on, in their order, and how they are read."""
        how = (self.manifest().digest(), self.image_shape, self.resize)
        return hashlib.sha256(repr(how).encode()).hexdigest()

    def notes(self) -> tuple[str, ...]:
        """What was left out and why, where images are from, what changed, and which are in several parts."""
        unknown = ("the run kept no record of its parts: they are those of today's folder",) if self._unrecorded else ()
        return (
            *unknown,
            *self._listing.notes,
            *self._changes.lines(),
            *_left_out_lines(self.manifest().left_out),
            *copies_lines(self.manifest()),
        )

    @cached_property
    def _train_and_validation(self) -> tuple[ImageSet, ImageSet]:
        return self._read.sets["train"], self._read.sets["validation"]

    @cached_property
    def _read(self) -> _Read:
        """All images. Without the broken ones the parts are others: then all is read anew."""
        left_out = dict(self._listing.left_out)
        while True:
            manifest = self._parts(left_out)
            sets, problems = self._decode(manifest)
            if not problems:
                return _Read(sets, manifest)
            if not self.skip_broken:
                raise _all_broken(list(problems.values()), self.root)
            left_out |= {name: problem.why for name, problem in problems.items()}

    def _parts(self, left_out: dict[str, str]) -> Manifest:
        """Which files belong to which part, but for those that are left out."""
        if self._followed is not None:
            present = [self._entry(file) for file in self._listing.files if file.name not in left_out]
            kept = self._followed.follow(present)[0]
            return replace(kept, left_out={**self._followed.left_out, **left_out})
        entries = {
            part: [self._entry(file) for file in files if file.name not in left_out]
            for part, files in self._listing.parts.items()
        }
        divided = _shuffled if self._unrecorded else _divided
        if "all" in entries:
            entries["train"], entries["test"] = divided(entries.pop("all"), self.test_share, TEST_SEED)
        if "validation" not in entries:
            share = self.validation_share
            entries["train"], entries["validation"] = divided(entries["train"], share, self.seed)
        for category in set(self._listing.classes) - {entry.category for entry in entries["train"]}:
            reasons = some([f"{name} ({why})" for name, why in left_out.items() if category in Path(name).parts])
            raise ValueError(f"class {category!r} holds no training image that can be read: {reasons}")
        return Manifest(self._listing.classes, {part: tuple(entries[part]) for part in PARTS}, left_out)

    def _decode(self, manifest: Manifest) -> tuple[dict[str, ImageSet], dict[str, BrokenImage]]:
        """The images of each part, and what is wrong with those that cannot be read, by name."""
        entries = [entry for part in PARTS for entry in manifest.parts[part]]
        shape, first = self._shape(entries)
        store = ImageStore(shape, len(entries) * math.prod(shape) > self.memory * GIB, f"folder {self.resize}")
        label_of = {name: label for label, name in enumerate(manifest.classes)}
        sets: dict[str, ImageSet] = {}
        problems: dict[str, BrokenImage] = {}
        for part in PARTS:
            rows = manifest.parts[part]
            paths = [self._files[entry.name].path for entry in rows]
            picture = partial(self._picture, paths, shape, first)
            images, broken = store.decode([entry.digest for entry in rows], picture)
            problems |= {rows[index].name: problem for index, problem in broken.items()}
            if not problems:
                labels = torch.tensor([label_of[entry.category] for entry in rows], dtype=torch.int64)
                sets[part] = ImageSet(images, labels, manifest.classes, tuple(str(path) for path in paths))
        return sets, problems

    def _picture(self, paths: Sequence[Path], shape: tuple[int, int, int], first: Path, index: int) -> Tensor:
        path = paths[index]
        image = _open(path, shape[0])
        if self.size is None and image.size != shape[:0:-1]:
            raise ValueError(
                f"images must have one size: {first} has {shape[1]} x {shape[2]} pixels "
                f"(height x width) but {path} has {image.height} x {image.width}; pass size to resize them"
            )
        return to_tensor(image, shape, self.resize)

    def _shape(self, entries: Sequence[Entry]) -> tuple[tuple[int, int, int], Path]:
        """The shape of all images, and the first that can be read, whose size it is where none was asked for."""
        paths = [self._files[entry.name].path for entry in entries]
        channels = self.channels or (1 if all(self._seen[entry.name].grey for entry in entries) else 3)
        if self.size is not None:
            return (channels, *self.size), paths[0]
        problems = []
        for path in paths:
            try:
                width, height = _open(path, channels).size
            except BrokenImage as problem:
                problems.append(problem)
            else:
                return (channels, height, width), path
        raise _all_broken(problems, self.root)

    def _entry(self, file: ImageFile) -> Entry:
        return Entry(file.name, file.category, self._seen[file.name].digest)

    @cached_property
    def _files(self) -> dict[str, ImageFile]:
        return {file.name: file for file in self._listing.files}

    @cached_property
    def _seen(self) -> dict[str, "_Seen"]:
        """What each file says before it is decoded."""
        files = self._listing.files
        found = threaded(lambda index: _look(files[index].path), range(len(files)))
        return {file.name: seen for file, seen in zip(files, found, strict=True)}


class _Seen(NamedTuple):
    """What a file says before it is decoded.

    Args:
        digest: of its content.
        grey: whether it says that it is grey; what says nothing is no hindrance.
    """

    digest: str
    grey: bool


def _look(path: Path) -> _Seen:
    from PIL import Image

    try:
        digest = digest_of(path)
        with naming(path), Image.open(path) as image:
            grey = Image.getmodebase(image.mode) == "L"
    except BrokenImage:
        grey = True
    except OSError as error:
        return _Seen(f"unreadable: {error.strerror}", True)
    return _Seen(digest, grey)


def _open(path: Path, channels: int) -> "Image":
    """The whole image; a file that may not be read is as good as broken here."""
    try:
        return open_image(path, channels)
    except OSError as error:
        raise BrokenImage(path, str(error.strerror)) from error


def _divided(entries: Sequence[Entry], share: float, seed: int) -> tuple[list[Entry], list[Entry]]:
    """The rest and what is put aside, by the content of each."""
    rest, aside = stable_split(_labels(entries), [entry.digest for entry in entries], share, seed)
    return [entries[index] for index in rest.tolist()], [entries[index] for index in aside.tolist()]


def _shuffled(entries: Sequence[Entry], share: float, seed: int) -> tuple[list[Entry], list[Entry]]:
    """The rest and what is put aside, as it was done before runs kept a record: by the places of all in the list."""
    rest, aside = stratified_split(_labels(entries), share, seed)
    return [entries[index] for index in rest.tolist()], [entries[index] for index in aside.tolist()]


def _labels(entries: Sequence[Entry]) -> Tensor:
    label_of = {name: label for label, name in enumerate(sorted({entry.category for entry in entries}))}
    return torch.tensor([label_of[entry.category] for entry in entries], dtype=torch.int64)


def _all_broken(problems: Sequence[BrokenImage], root: Path) -> ValueError:
    """All that cannot be read, in one error."""
    more = len(problems) - _LISTED
    return ValueError(
        "\n".join(
            [
                *(readable(str(problem)) for problem in problems[:_LISTED]),
                *([f"and {more:,} more: torchcaps check {root} lists all"] if more > 0 else []),
                f"{count_of(problems, 'file')} cannot be read: mend or remove them, or leave them out with skip_broken "
                "(--data.skip_broken true)",
            ]
        )
    )


def _left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """What was left out, for people, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, why in left_out.items():
        reasons.setdefault(why, []).append(name)
    lines = [f"left out {count_of(names, 'file')}: {why}: {some(names)}" for why, names in reasons.items()]
    more = len(lines) - _LISTED
    return lines[:_LISTED] + ([f"left out more, for {more:,} other reasons"] if more > 0 else [])
