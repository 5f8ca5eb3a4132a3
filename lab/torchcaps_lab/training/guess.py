"""Options of a training that are guessed from what was named alone: a folder, a table
of texts, or a data set.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torchcaps_lab
from torchcaps.spec import meant
from torchcaps_lab.training.reading import merged

STEPS = 30
"""Steps of an epoch that the batch size is chosen for: with fewer, 20 epochs end before
much is learnt.
"""

LEAST_BATCH, LARGEST_BATCH = 4, 128
LOOKED_AT = 64
"""Images whose size and colours are looked at, evenly over all."""

_LONG = 1.5
"""How many times as long as wide images are of which it is said that they are padded.
"""

LARGEST_SIDE = 64
"""Height and width that larger images are brought to."""

_SMALLEST_SIDE = 16
"""Least height and width that ``capsnet_small`` takes, and that colour pictures are
taken for photos with.
"""

ON_BACKBONE = "capsnet_on_backbone", "capsnet_on_backbone_cnn"
"""The network for photos, and its twin."""

PHOTO_BATCH = 32

SCRATCH: dict[str, Any] = {
    "preprocess": {"flip": True, "shift": 4, "erase": 0.25, "standardise": True},
    "optimizer": {"name": "AdamW", "lr": 3e-3, "weight_decay": 0.05},
    "scheduler": {"name": "OneCycleLR", "max_lr": 3e-3},
    "speed": {"channels_last": True},
    "trainer": {"average": 0.98},
}
"""How a network learns photos from nothing. Chosen on photos that were neither trained
nor tested on, as the next.
"""

PRETRAINED: dict[str, Any] = {
    "data": {"size": 144},
    "preprocess": {"flip": True},
    "model_args": {
        "backbone": "timm/efficientnet_lite0",
        "weights": "imagenet",
        "keep_statistics": True,
    },
    "frozen_epochs": 10,
    "optimizer": {"name": "AdamW", "lr": 3e-4, "weight_decay": 0.05},
    "scheduler": {"name": "OneCycleLR", "max_lr": 3e-4},
    "speed": {"channels_last": True},
}
"""How one learns that stands on a pretrained backbone, of crops of 8/9 of that size."""

MASKS: dict[str, Any] = {
    "batch_size": 4,
    "loss": {"name": "LengthCrossEntropy"},
    "optimizer": {"name": "Adam", "lr": 0.01},
    "scheduler": {"name": "OneCycleLR", "max_lr": 0.01},
    "scheduler_interval": "step",
}
"""How a network learns the classes of pixels, from squares of pictures: poses are
normalised over several of them.
"""

LEAST_WATCHED = 30
"""Validation images, or texts, with fewer of which the best epoch is one of chance."""

_TABLES, _TABLES_OF_SERIES = {".csv", ".tsv"}, {".ts", ".arff"}
_TEXTS, _SERIES = (
    {".txt", ".label", ".pos"} | _TABLES,
    {".wav", ".flac", ".ogg"} | _TABLES_OF_SERIES,
)


class Guess(NamedTuple):
    """What was guessed.

    Args:
        options: by name, as in a file.
        why: for people, by the names of options as on a command line.
    """

    options: dict[str, Any]
    why: dict[str, str]

    def over(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The options with those that were given over them, and for people a line for
        each that was not given.
        """
        data = given.get("data")
        named = {
            *given,
            *(f"data.{name}" for name in (data if isinstance(data, Mapping) else ())),
        }
        said = [
            f"guessed: {name} {why}"
            for name, why in self.why.items()
            if name not in named
        ]
        # A schedule holds a learning rate too: whoever names an optimizer means the
        # rate of that.
        own = {
            name: value
            for name, value in self.options.items()
            if name != "scheduler" or "optimizer" not in given
        }
        return merged(own, given), said


def guess(named: str | Path, given: Mapping[str, Any] | None = None) -> Guess:
    """Options for a folder of images, pictures with masks, texts or series, a file of
    the last two, or a data set.

    Args:
        named: the folder, the table or the data set.
        given: options that were given beside it; those of another network go with other
            ones.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        ValueError: if a file is none of texts or series, or a folder is not one of two
            or more classes.
    """
    path = Path(named).expanduser()
    if path.is_file() and path.suffix.lower() not in _TABLES | _TABLES_OF_SERIES:
        raise ValueError(
            f"{path} must be a folder, a table of texts (.csv or .tsv) or a file of "
            "series (.ts or .arff)"
        )
    if not path.exists():
        found = _by_name(str(named))
    elif own := _of_task(path, given or {}):
        found = own
    elif _holds(path, _SERIES):
        found = Guess(
            {"data": {"name": "Series", "root": str(path)}},
            {"data": f"Series, the series in {path}"},
        )
    elif _holds(path, _TEXTS):
        found = _of_texts(path, given or {})
    elif (path / "images").is_dir() and (path / "masks").is_dir():
        found = _of_masks(path, given or {})
    else:
        found = _of_images(path, given or {})
    run = _unused(
        Path("runs") / (path.stem if path.is_file() else path.resolve().name).lower()
    )
    return Guess({**found.options, "run": run}, {**found.why, "run": run})


def _of_task(path: Path, given: Mapping[str, Any]) -> Guess | None:
    """Options of the task that was given, if it has its own for such a path."""
    task = given.get("task")
    if isinstance(task, Mapping):
        task = task.get("name")
    name = getattr(task, "text", task)
    if not isinstance(name, str):
        return None
    from torchcaps_lab.tasks.base import TASKS, list_tasks  # waits for torch

    if name not in list_tasks():
        return None
    kind: Any = TASKS.find(name)
    guessed: Guess | None = kind.guess(path, given)
    return guessed


def _by_name(name: str) -> Guess:
    sets, classes = in_source(Path(torchcaps_lab.__file__).parent / "data", "dataset")
    if "torchcaps_lab.data" in sys.modules or name in {*sets, *classes}:
        from torchcaps_lab.data.base import DATASETS

        sets |= {one: kind.__name__ for one, kind in DATASETS.items()}
        try:
            kind = DATASETS.find(name, "data")
            return Guess(
                {"data": {"name": DATASETS.name_of(kind)}},
                {"data": f"{kind.__name__}, the data set of that name"},
            )
        except ValueError:
            pass
    near = meant(name, list(sets.values()))
    place = "" if Path(name).is_absolute() else f" (looked for in {Path.cwd()})"
    raise FileNotFoundError(
        f"there is no folder {name}{place}, and no data set of that name{near}"
    )


def in_source(room: Path, kind: str) -> tuple[dict[str, str], list[str]]:
    """What the files of a room register of a kind, names and their classes, and all
    classes there: importing torch to say that there is none of a name would take
    seconds.
    """
    text = "\n".join(path.read_text(encoding="utf-8") for path in room.rglob("*.py"))
    starts = [
        *re.finditer(rf'^@register_{kind}\(\s*"(\w+)"|^class (\w+)', text, re.MULTILINE)
    ]
    classes = [start[2] for start in starts if start[2]]
    names = {
        start[1]: next(one[2] for one in starts[place:] if one[2])
        for place, start in enumerate(starts)
        if start[1]
    }
    return names, classes


def _holds(path: Path, kinds: set[str]) -> bool:
    """Whether a path is a file with one of these suffixes, or a folder of some and no
    images.
    """
    suffixes = {
        one.suffix.lower() for one in (path.rglob("*") if path.is_dir() else [path])
    }
    if not suffixes & kinds:
        return False
    from torchcaps_lab.data.picture import image_suffixes  # waits for torch

    return not suffixes & image_suffixes()


def _of_texts(path: Path, given: Mapping[str, Any]) -> Guess:
    """Options for texts; of a table its lines are counted, since few texts have few
    steps in large batches.
    """
    options: dict[str, Any] = {"data": {"name": "Text", "root": str(path)}}
    why = {"data": f"Text, the texts in {path}"}
    if path.is_file():
        with path.open("rb") as lines:
            train = sum(1 for _ in lines) * 4 // 5 * 9 // 10  # others test and validate
        options["batch_size"] = batch_size_for(train)
        why["batch_size"] = (
            f"{options['batch_size']}, for about {train // options['batch_size']} "
            "steps an epoch"
        )
        return _watched(Guess(options, why), given, train // 9)
    return Guess(options, why)


def _watched(found: Guess, given: Mapping[str, Any], validation: int) -> Guess:
    """With the best epoch on the validation images kept, and an end where none is
    better any more, if there are enough of these.

    Args:
        found: the other options.
        given: options that were given, which may leave no validation images.
        validation: about how many there are otherwise.
    """
    share = _as_read(given.get("data")).get("validation")
    if validation < LEAST_WATCHED or share is not None:
        return found
    epochs = found.options.get("epochs", 20)
    patience = max(10, epochs // 3)
    options = {"keep": "best", "stop": "early", "patience": patience}
    why = {
        "keep": "best, the epoch that is best on the validation part",
        "stop": f"early, after {patience} epochs that are not better",
    }
    return Guess({**found.options, **options}, {**found.why, **why})


def _of_images(root: Path, given: Mapping[str, Any]) -> Guess:
    from torchcaps_lab.data.files import ImageFile, list_folder

    listing = list_folder(root)
    images = len(listing.items)
    of_parts = listing.parts.get("train")
    train = (
        (images * 4 // 5 if of_parts is None else len(of_parts)) * 9 // 10
    )  # others test and validate
    why = {
        "data": (
            f"ImageFolder, {images:,} images of {len(listing.classes)} classes in "
            f"{root}"
        )
    }
    files = [
        file.path
        for part in listing.parts.values()
        for file in part
        if isinstance(file, ImageFile)
    ]
    looks = _looked_at(files)
    sizes, colour = looks.sizes, looks.colours > 0
    size = size_for(sizes)
    side = size or min((min(one) for one in sizes), default=LARGEST_SIDE)
    photos = colour and side >= _SMALLEST_SIDE
    options = _of_photos(train, given) if photos else _of_drawings(side, train)
    size = options.get("data", {}).get("size", size)
    found = f"{min(sizes)[0]} x {min(sizes)[1]}" if len(sizes) == 1 else "several sizes"
    why["data.size"] = (
        f"their own, {found}"
        if size is None
        else f"{size}, for images of {found}{_padded(sizes)}"
    )
    data: dict[str, Any] = {
        "name": "ImageFolder",
        "root": str(root),
        **({} if size is None else {"size": size}),
    }
    if colour:
        data["channels"] = 3
        share = (
            ""
            if looks.colours == looks.seen
            else f": {looks.colours} of {looks.seen} that were looked at"
        )
        why["data.channels"] = f"3, colour{share}"
    if looks.levels is not None:
        data["range"] = list(looks.levels)
        why["data.range"] = _of_range(looks)
    steps, on = train // options["batch_size"], options.get("model_args")
    kind = (
        f"on {on['backbone']} with weights {on['weights']}"
        if on
        else f"for images of {side} pixels"
    )
    why |= {
        "model": f"{options['model']}, {kind}",
        "batch_size": f"{options['batch_size']}, for {steps} steps an epoch",
        "epochs": f"{options['epochs']}, {steps * options['epochs']:,} steps",
    }
    for name in ("preprocess", "optimizer") if photos else ():
        why[name] = ", ".join(
            f"{key} {value}" for key, value in options[name].items() if key != "name"
        )
    if "frozen_epochs" in options:
        why["frozen_epochs"] = f"{options['frozen_epochs']}, of the capsules alone"
    apart = listing.parts.get("validation")
    return _watched(
        Guess({**options, "data": data}, why),
        given,
        train // 9 if apart is None else len(apart),
    )


def _of_masks(root: Path, given: Mapping[str, Any]) -> Guess:
    """Options for pictures with masks: squares of three quarters of the smallest side,
    at most 128.
    """
    from torchcaps_lab.data.files import image_files

    files = image_files(root / "images")
    looks = _looked_at(files)
    sizes, colour = looks.sizes, looks.colours > 0
    cut = (
        min(min((min(one) for one in sizes), default=0) * 3 // 4 // 8 * 8, 128) or None
    )
    steps = (
        len(files) * 4 // 5 * 9 // 10 // MASKS["batch_size"]
    )  # others test and validate
    data: dict[str, Any] = {
        "name": "Masks",
        "root": str(root),
        "cut": cut,
        "channels": 3 if colour else 1,
    }
    options = {**MASKS, "data": data, "epochs": epochs_for(steps, 400, (6, 200))}
    said = {
        "data": f"Masks, {len(files)} pictures with masks in {root}",
        "data.cut": f"{cut}, squares to train on",
    }
    if looks.levels is not None:
        data["range"] = list(looks.levels)
        said["data.range"] = _of_range(looks)
    said |= {name: f"{options[name]}" for name in ("batch_size", "epochs")}
    return _watched(Guess(options, said), given, len(files) * 4 // 5 // 10)


def _of_drawings(side: int, train: int) -> dict[str, Any]:
    """Options for images without colours, or too small for photos."""
    batch = batch_size_for(train)
    model = "capsnet_small" if side >= _SMALLEST_SIDE else "capsnet_digits"
    return {
        "model": model,
        "batch_size": batch,
        "epochs": epochs_for(train // batch, 20 * STEPS, (20, 100)),
    }


def _of_photos(train: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options for photos: on a pretrained backbone where there is one, and what was
    given does not speak against it.
    """
    from torchcaps.models.installed import imagenet_installed

    own, size = (
        _as_read(given.get("model_args")),
        _as_read(given.get("data")).get("size", PRETRAINED["data"]["size"]),
    )
    mine = (
        given.get("model") is None
        or getattr(given["model"], "text", given["model"]) in ON_BACKBONE
    )
    fits = mine and isinstance(size, int) and size >= LARGEST_SIDE
    chosen = str(own.get("backbone")).startswith("timm/") and "weights" in own
    if fits and (
        chosen or (not {"backbone", "weights"} & own.keys() and imagenet_installed())
    ):
        more = {
            "data": {"size": size},
            "preprocess": {"crop": size * 8 // 9},
            "model_args": own,
        }
        recipe, steps, least = merged(PRETRAINED, more), 190, 4
    else:
        recipe, steps, least = SCRATCH, 2100, 6
    batch = min(
        batch_size_for(train * STEPS // 2), PHOTO_BATCH
    )  # half the images where there are few
    epochs = epochs_for(train // batch, steps, (least, 150))
    return {"model": ON_BACKBONE[0], **recipe, "batch_size": batch, "epochs": epochs}


def _as_read(options: Any) -> dict[str, Any]:
    """Options by name, none for None, as values; on a command line they are
    :class:`~torchcaps.spec.Typed`.
    """
    return {
        name: getattr(one, "value", one)
        for name, one in (getattr(options, "value", options) or {}).items()
    }


def epochs_for(steps: int, wanted: int, bounds: tuple[int, int]) -> int:
    """Epochs of so many steps that together have about as many as wanted.

    Example:
        >>> from torchcaps_lab.training.guess import epochs_for
        >>> (
        ...     epochs_for(14, 2100, (6, 150)),
        ...     epochs_for(700, 2100, (6, 150)),
        ...     epochs_for(0, 2100, (6, 150)),
        ... )
        (150, 6, 150)
    """
    return min(max(-(-wanted // max(steps, 1)), bounds[0]), bounds[1])


def size_for(sizes: set[tuple[int, int]]) -> int | None:
    """Height and width to bring images of such sizes to; None: they have one that can
    be left as it is.

    Example:
        >>> from torchcaps_lab.training.guess import size_for
        >>> size_for({(32, 32)}), size_for({(32, 32), (30, 40)}), size_for({(400, 300)})
        (None, 32, 64)
    """
    if not sizes or (
        len(sizes) == 1 and 8 <= min(min(sizes)) and max(min(sizes)) <= LARGEST_SIDE
    ):
        return None
    usual = median(min(size) for size in sizes)
    return int(min(max(8 * round(usual / 8), _SMALLEST_SIDE), LARGEST_SIDE))


def batch_size_for(images: int) -> int:
    """The largest power of two with which an epoch of so many training images has 30
    steps, from 4 to 128.

    Example:
        >>> from torchcaps_lab.training.guess import batch_size_for
        >>> [batch_size_for(images) for images in (20, 375, 50_000)]
        [4, 8, 128]
    """
    most = max(images // STEPS, LEAST_BATCH)
    return min(1 << most.bit_length() - 1, LARGEST_BATCH)


class _Looks(NamedTuple):
    """What some files look like.

    Args:
        seen: how many can be read.
        sizes: heights and widths.
        colours: how many have colours.
        levels: the range of pixels, if it is not the usual one.
    """

    seen: int
    sizes: set[tuple[int, int]]
    colours: int
    levels: tuple[float, float] | None


def _looked_at(files: Sequence[Path]) -> _Looks:
    """What some files that can be read look like, evenly over all."""
    from torchcaps_lab.data.bands import channels_of
    from torchcaps_lab.data.doubts import Extent, extent_of, range_for
    from torchcaps_lab.data.picture import BrokenImage, opened, pictured

    sizes, extents = list[tuple[int, int]](), list[Extent]()
    colours = 0
    for path in files[:: -(-len(files) // LOOKED_AT) or 1]:
        try:
            with opened(path) as image:
                width, height = image.size
                if hasattr(image, "draft"):
                    image.draft(
                        "RGB", (LARGEST_SIDE, LARGEST_SIDE)
                    )  # decodes a JPEG file at a fraction of its size
                extent = extent_of(image)
                reduced = pictured(image, extent and range_for([extent])).resize(
                    (16, 16)
                )
                coloured = channels_of(image) in (1, 3)
        except (BrokenImage, OSError, ValueError):
            continue  # the data set says which files cannot be read
        red, green, blue = (band.tobytes() for band in reduced.split())
        sizes.append((height, width))
        extents += [] if extent is None else [extent]
        colours += coloured and not red == green == blue
    deep = len(extents) == len(
        sizes
    )  # of pictures of 8 bit beside them, the range would be another one
    return _Looks(len(sizes), {*sizes}, colours, range_for(extents) if deep else None)


def _of_range(looks: _Looks) -> str:
    from torchcaps_lab.data.doubts import range_text  # waits for torch

    return (
        f"{range_text(looks.levels or (0, 1))}, the values of pixels in "
        f"{looks.seen} images that were looked at"
    )


def _padded(sizes: set[tuple[int, int]]) -> str:
    """What becomes of images that are not square, if the longest is half as long again
    as wide.
    """
    longest = max((max(size) / min(size) for size in sizes), default=1)
    if longest < _LONG:
        return ""
    return (
        f", up to {longest:.1f} times as long as wide, padded with black: "
        "--data.resize crop or stretch does not"
    )


def _unused(folder: Path) -> str:
    """The folder of a run, or with a number after its name, if something is there
    already.
    """
    names = (
        folder,
        *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000)),
    )
    return str(
        next(name for name in names if not name.exists() or not any(name.iterdir()))
    )
