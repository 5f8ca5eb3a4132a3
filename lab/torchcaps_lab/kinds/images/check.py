"""A report about the images of a folder or a table, before any training on them:
classes, formats, sizes, copies, broken files.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.whole import expanded
from torchcaps_lab.data.counts import class_lines
from torchcaps_lab.data.files import ClassFolders, ListedFile, looked_through
from torchcaps_lab.data.listed import Listed
from torchcaps_lab.data.manifest import (
    PARTS,
    Entry,
    Manifest,
    copies_lines,
    groups_lines,
    lacking_lines,
    left_out_lines,
    names_doubts,
    several_lines,
    some,
)
from torchcaps_lab.kinds.images.alike import first_alike, look_of, pixels_digest
from torchcaps_lab.kinds.images.decoding.bands import Bands, Levels
from torchcaps_lab.kinds.images.decoding.handwriting import orientation
from torchcaps_lab.kinds.images.decoding.picture import BrokenImage, opened, pictured
from torchcaps_lab.kinds.images.decoding.store import threaded
from torchcaps_lab.kinds.images.doubts import (
    Extent,
    extent_of,
    files_doubts,
    frames_lines,
    range_for,
    range_option,
    range_text,
)
from torchcaps_lab.kinds.images.guess import size_for
from torchcaps_lab.kinds.images.sets.files import ImageListing
from torchcaps_lab.kinds.images.sets.table import TableOfImages, list_table
from torchcaps_lab.look import counted

_FREQUENT = 10  # sizes that are listed one by one
_FEW = 10  # images of a class that are hardly enough to learn what it looks like
# Times the images of the smallest class, above which a class counts more than others
_UNEVEN = 5
_THIN = 8  # pixels of the shorter side, or share of the longer one


@dataclass(frozen=True)
class ImagesReport:
    """The result of :func:`check_images`.

    Attributes:
        images: how many images each split has; ``all`` if the source has no splits.
        classes: how many of them each class has, likewise.
        formats: how many images have each format, judging by their content.
        modes: how many have each kind of pixels, by its name in Pillow.
        sizes: how many have each size, height x width.
        extreme: which images are very small, or very long, with their sizes.
        moving: names of images of several frames, the first of which counts.
        turned: how many are turned by their EXIF orientation.
        broken: why files cannot be read, by name.
        left_out: why files are not taken for images of a class, by name.
        copies: for people: which images have the same pixels.
        near_copies: for people: which images are nearly the same as another one.
        folders: for people: what is wrong with the folders of the classes.
        contradictions: for people: which images of the same content are in several
            parts or classes.
        notes: what else a reader of results should know.
        range: the values of pixels of more than 8 bit that should become black and
            white; None for the usual ones.
    """

    images: dict[str, int]
    classes: dict[str, dict[str, int]]
    formats: dict[str, int]
    modes: dict[str, int]
    sizes: dict[str, int]
    extreme: tuple[str, ...]
    moving: tuple[str, ...]
    turned: int
    broken: dict[str, str]
    left_out: dict[str, str]
    copies: tuple[str, ...]
    near_copies: tuple[str, ...]
    folders: tuple[str, ...]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]
    range: Levels | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """What should be repaired, for people: folders, broken files, copies of images
        in several splits or classes.
        """
        broken = [f"{name} ({why})" for name, why in self.broken.items()]
        lines = [f"{counted(len(broken), 'files')} cannot be read: {some(broken)}"]
        return (*self.folders, *(lines if broken else ()), *self.contradictions)

    def json(self) -> dict[str, Any]:
        """The whole report, ready for JSON."""
        return {**asdict(self), "problems": self.problems}

    def advised(self, options: Mapping[str, Any]) -> dict[str, str] | None:
        """Size and range of the images, and whether broken ones and empty class folders
        are left out; None if no image can be read.
        """
        if not self.sizes:
            return None
        advised = {}
        size = options.get("data", {}).get("size")
        if size is None and len(self.sizes) > 1:  # of which some were not looked at
            size = size_for([*Counter(map(_sides, self.sizes)).elements()])
        if size:
            advised["--data.size"] = str(size)
        if self.range:
            advised["--data.range"] = range_option(self.range)
        if self.broken or self.folders:
            advised["--data.skip_broken"] = "true"
        return advised

    def lines(self) -> list[str]:
        """The whole report for people, line by line."""
        lines = [*class_lines(self.images, self.classes, "images")]
        for title, counts in (
            ("formats", self.formats),
            ("pixels", self.modes),
            ("sizes", self.sizes),
        ):
            frequent = [
                f"{name} ({count:,})"
                for name, count in list(counts.items())[:_FREQUENT]
            ]
            more = len(counts) - len(frequent)
            lines.append(
                f"{title}: {', '.join(frequent)}"
                + (f" and {more:,} others" if more else "")
            )
        if self.extreme:
            lines.append(
                f"{counted(len(self.extreme), 'images')} of a side below {_THIN} pixels, or {_THIN} "
                "times as long as wide: "
                f"{some(self.extreme)}"
            )
        lines += frames_lines(self.moving)
        if self.turned:
            lines.append(
                f"{self.turned:,} turned upright, as their EXIF orientation says"
            )
        lines += [
            *left_out_lines(self.left_out),
            *self.copies,
            *self.near_copies,
            *self.notes,
        ]
        return lines + [f"PROBLEM: {problem}" for problem in self.problems]


class _Look(NamedTuple):
    """What was found in a file that was read in full."""

    pixels: str
    look: Tensor
    format: str
    mode: str
    height: int
    width: int
    frames: int
    turned: bool
    extent: Extent | None
    blank: bool
    outside: str

    @property
    def size(self) -> str:
        """Height and width, for people."""
        return f"{self.height} x {self.width}"


def check_folder(
    root: str | Path,
    skip_broken: bool = False,
    group_before: str = "",
    class_folders: ClassFolders | None = None,
) -> ImagesReport:
    """Check the images of a folder, see :func:`check_images`.

    Args:
        root: as of :class:`~torchcaps_lab.data.ImageFolder`.
        skip_broken: likewise.
        group_before: likewise.
        class_folders: likewise.

    Raises:
        FileNotFoundError: there is no `root`.
        NotADirectoryError: `root` is not a folder.
        ValueError: it is unclear which folders are classes, or there are no images in
            them.
    """
    root = expanded(root)
    listing = looked_through(
        ImageListing(root=root, skip_empty=skip_broken, class_folders=class_folders)
    )
    if not listing.items:
        raise ValueError("; ".join(listing.refused))
    listing.group(group_before)
    return check_images(listing, skip_broken=skip_broken)


def check_table(named: TableOfImages, skip_broken: bool = False) -> ImagesReport:
    """Check the images of a table, see :func:`check_images`.

    Args:
        named: the table, and how it names images and labels.
        skip_broken: as of :class:`~torchcaps_lab.data.ImageTable`.

    Raises:
        ValueError: a column is missing, or no row names an image.
    """
    listed = list_table(named)
    listed.classes = listed.trained_labels()
    listed.refused += map(str, listed.class_errors(named.table, "images"))
    return check_images(listed, skip_broken)


def check_images(listing: Listed, skip_broken: bool = False) -> ImagesReport:
    """Reads every image in full, one after the other; only the report is kept.

    Args:
        listing: the files of the images, and the classes.
        skip_broken: whether files that cannot be read are left out, which is no
            problem.
    """
    files: list[Any] = listing.items
    read = [*threaded(lambda index: _look(files[index].path), range(len(files)))]
    # One range is for all images, so none is guessed for some of them.
    deep = all(isinstance(look, str) or look.extent is not None for look in read)
    looks: dict[ListedFile, _Look] = {}
    broken: dict[str, str] = {}
    for file, look in zip(files, read, strict=True):
        if isinstance(look, str):
            broken[file.name] = look
        elif look.outside and not deep:
            broken[file.name] = look.outside
        else:
            looks[file] = look
    parts = {}
    for part, rows in listing.parts.items():
        parts[part] = tuple(
            Entry(file.name, file.category, looks[file].pixels)
            for file in rows
            if file in looks
        )
    manifest = Manifest(listing.classes, parts)
    counts = {}
    for part, entries in parts.items():
        of_class = Counter(
            label for entry in entries for label in listing.labels_of(entry.category)
        )
        counts[part] = {name: of_class[name] for name in listing.classes}
    trained = counts["all"] if "all" in counts else counts["train"]
    levels = range_for(
        look.extent for look in looks.values() if look.extent is not None
    )
    return ImagesReport(
        images={part: len(entries) for part, entries in parts.items()},
        classes=counts,
        formats=_ranked([look.format for look in looks.values()]),
        modes=_ranked([look.mode for look in looks.values()]),
        sizes=_ranked([look.size for look in looks.values()]),
        extreme=tuple(
            f"{file.name} ({look.size})"
            for file, look in looks.items()
            if _is_extreme(look.height, look.width)
        ),
        moving=tuple(file.name for file, look in looks.items() if look.frames > 1),
        turned=sum(look.turned for look in looks.values()),
        broken={} if skip_broken else broken,
        left_out={**listing.left_out, **(broken if skip_broken else {})},
        copies=tuple(several_lines(manifest)),
        near_copies=tuple(_near_copies(looks)),
        folders=tuple(listing.refused),
        contradictions=(
            *copies_lines(manifest),
            *groups_lines({file.name: file.group for file in files}, manifest),
        ),
        notes=(
            *listing.notes,
            *_too_few(trained, [part for part in PARTS[1:] if part not in counts]),
            *_lacking(counts),
            *_uneven(trained),
            *names_doubts(listing.classes),
            *_doubts(looks),
            *_of_range(levels, looks),
        ),
        range=levels if deep else None,
    )


def _sides(size: str) -> tuple[int, int]:
    """Height and width of a size as it is printed."""
    height, _, width = size.partition(" x ")
    return int(height), int(width)


def _look(path: Path) -> _Look | str:
    """What is in a file; or why it cannot be read."""
    try:
        with opened(path) as image:
            kind = image.format or ""
            mode = image.mode
            frames = getattr(image, "n_frames", 1)
            # Before the pixels are decoded, which turns those of TIFF.
            turned = orientation(image) != 1
            extent = extent_of(image)
            levels = None if extent is None else range_for([extent])
            outside = "" if levels is None else _outside(image)
            upright = pictured(image, levels)
            digest = pixels_digest(image if isinstance(image, Bands) else upright)
    except BrokenImage as problem:
        return problem.why
    except OSError as error:
        return str(error.strerror)
    blank = upright.getextrema() in (((0, 0),) * 3, ((255, 255),) * 3)
    return _Look(
        digest,
        look_of(upright),
        kind,
        mode,
        upright.height,
        upright.width,
        frames,
        turned,
        extent,
        blank,
        outside,
    )


def _doubts(looks: dict[ListedFile, _Look]) -> list[str]:
    """Tell people of blank images, and classes that go by facts of their files."""
    blank = [file.name for file, look in looks.items() if look.blank]
    lines = [
        f"{counted(len(blank), 'images')} all black or all white, where transparent parts show "
        f"black: {some(blank)}"
    ]
    facts = {
        "format": [(file.category, look.format) for file, look in looks.items()],
        "kind of pixels": [(file.category, look.mode) for file, look in looks.items()],
        "size": [(file.category, look.size) for file, look in looks.items()],
    }
    return [*(lines if blank else ()), *files_doubts(facts)]


def _of_range(levels: Levels | None, looks: dict[ListedFile, _Look]) -> list[str]:
    """Tell people that pixels of more than 8 bit use another range than they could."""
    if levels is None:
        return []
    deep = [look.extent for look in looks.values() if look.extent is not None]
    used = range_text(
        (min(extent.least for extent in deep), max(extent.most for extent in deep))
    )
    line = f"pixels of more than 8 bit in {counted(len(deep), 'images')} are {used}"
    if shallow := len(looks) - len(deep):
        return [
            f"{line}, beside {shallow:,} of 8 bit: convert them to 8 bit, since a range "
            "counts for all images"
        ]
    return [
        f"{line}: --data.range {range_option(levels)!r} spreads these over all grey "
        "levels"
    ]


def _outside(image: Any) -> str:
    """Why a picture cannot be read without a range; empty if it can."""
    try:
        pictured(image)
    except ValueError as error:
        return str(error)
    return ""


def _too_few(trained: dict[str, int], aside: list[str]) -> list[str]:
    """Tell people of classes with too few images to put any aside for some parts."""
    few = [
        f"{name} ({count})"
        for name, count in trained.items()
        if 0 < count <= len(aside)
    ]
    what = "too few images of a class to put some aside for"
    return [f"{what} {' and '.join(aside)}: {some(few)}"] if few else []


def _uneven(trained: dict[str, int]) -> list[str]:
    """Tell people of classes with few images to learn from, or far fewer than another."""
    shared = {name: count for name, count in trained.items() if count}
    few = [f"{name} ({count})" for name, count in shared.items() if count < _FEW]
    what = f"classes with fewer than {_FEW} images, barely enough to learn from"
    lines = [f"{what}: {some(few)}"] if few else []
    if shared and max(shared.values()) >= _UNEVEN * min(shared.values()):
        most, least = (pick(shared, key=shared.__getitem__) for pick in (max, min))
        lines.append(
            f"{most} has {shared[most]:,} images and {least} {shared[least]:,}: "
            "--sampler balanced draws them equally often, --class_weights balanced "
            "weighs rare ones more"
        )
    return lines


def _is_extreme(height: int, width: int) -> bool:
    short, long = sorted((height, width))
    return short < _THIN or long >= _THIN * short


def _lacking(counts: dict[str, dict[str, int]]) -> list[str]:
    """Tell people which classes lack images to validate or to test on, in a part of
    the source or to put aside. Those that lack images to train on are problems.
    """
    parts = {
        part: [name for name in row if row[name]]
        for part, row in counts.items()
        if part != "train"
    }
    if "test" not in counts:
        whole = counts["all"]
        parts["test"] = [name for name, count in whole.items() if count != 1]
    return lacking_lines([*next(iter(counts.values()))], parts)


def _ranked(names: Sequence[str]) -> dict[str, int]:
    """How often each name occurs, the most frequent first."""
    return dict(Counter(names).most_common())


def _near_copies(looks: dict[ListedFile, _Look]) -> list[str]:
    """Tell people of images that look like another one, of other pixels; each with the
    first of these.
    """
    first_of: dict[str, tuple[str, Tensor]] = {}
    for file, look in looks.items():
        first_of.setdefault(look.pixels, (file.name, look.look))
    if not first_of:
        return []
    names = [name for name, _ in first_of.values()]
    hashes = torch.stack([look for _, look in first_of.values()])
    first = first_alike(hashes, hashes, earlier=True)
    near = [
        f"{names[place]} ~ {name}"
        for name, place in zip(names, first, strict=True)
        if place >= 0
    ]
    line = (
        f"{counted(len(near), 'images')} nearly the same as another one: {some(near)}"
    )
    return [line] if near else []
