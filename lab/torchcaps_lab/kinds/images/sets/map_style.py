"""Any data set of (image, label) in Python."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from torchcaps.spec import settings
from torchcaps_lab.data.classes import places_of
from torchcaps_lab.data.labels import (
    Label,
    Labels,
    check_names,
    labels_of,
)
from torchcaps_lab.data.listed import Listed
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.pairs import is_two_arrays
from torchcaps_lab.kinds.images.decoding.picture import (
    BrokenImage,
    Levels,
    as_source,
    check_pixels,
)
from torchcaps_lab.kinds.images.sets.arrays import Arrays, Axes, paired
from torchcaps_lab.kinds.images.sets.listed import (
    GivenImage,
    ImageFacts,
    ListedImages,
    look,
)
from torchcaps_lab.look import counted

if TYPE_CHECKING:
    from torchcaps_lab.kinds.images.decoding.picture import Source

_BETWEEN = "|"
"""What stands between several labels of an image in its category."""


@dataclass(frozen=True)
class _Pair(GivenImage):
    """One pair of a data set, by its split and its number, with facts about its file."""

    facts: ImageFacts


@settings
class MapStyle(ListedImages):
    """Pairs of an image and a label that the user has in Python: a list, a data set of
    torchvision, any ``Dataset``.

    Whatever has ``len(data)`` and ``data[index]`` will do. An image is a PIL image, an
    array (H, W) or (H, W, C), a tensor (C, H, W), bytes or floating point in [0, 1], or
    the path of a file; a label is a whole number or the name of a class. Images of any
    sizes are read as those of a folder.

    An image may have several labels, ``(image, ["sea", "sky"])``, or none, ``(image,
    [])``; or a row of 0 and 1, a column for each class. If any image has not exactly one
    label, the labels are masks, and the task is ``several_labels``.

    Two arrays or tensors will do, too, ``(images, labels)``: images (N, H, W), (N, H,
    W, C) or (N, C, H, W), and N labels, N lists of labels, or (N, E) of 0 and 1, a
    column for each class; and so will ``(images, labels, test_images,
    test_labels)`` and ``((images, labels), (test_images, test_labels))``. A note says
    which order of axes was taken.

    Every pair is asked for twice: first for its label, its pixels and its place in the
    split, then to keep it. Random changes of the data set's own are therefore made once
    and kept: leave them, and normalisation, to ``preprocess``. ``tc.train`` looks at
    some pairs before.

    Numbers are labels of ``classes`` of the data set that they come from, if it has
    any; splits are matched by the names of classes.

    Args:
        data: the pairs to train on.
        test_data: the pairs to test on; default: a share of ``data``.
        validation_data: the pairs for validation; default: a share of ``data``.
        axes: the order of the axes of arrays, ``NHW``, ``NHWC`` or ``NCHW``; default:
            the likely one.
        classes: the names of the labels 0, 1, ...; default: ``data.classes``, or else
            the labels themselves.

    Raises:
        TypeError: a data set has no length or no items.
        ValueError: there is no ``data``, an argument is out of range, an item is no
            pair of an image and a label, a label has no name, or the order of axes is
            not clear.

    Example:
        >>> from torchcaps_lab.data import MapStyle
        >>> pairs = [
        ...     (torch.full((1, 8, 8), value / 40), "dark" if value < 20 else "light")
        ...     for value in range(40)
        ... ]
        >>> data = MapStyle(pairs)
        >>> data.classes, len(data.train), len(data.validation), len(data.test)
        (('dark', 'light'), 28, 4, 8)
        >>> MapStyle((torch.rand(40, 8, 8, 3), [0, 1] * 20)).image_shape
        (3, 8, 8)
    """

    data: Any = None
    test_data: Any = None
    validation_data: Any = None
    axes: Axes | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None:
            raise ValueError(
                "MapStyle has the pairs of a program, which no file and no option can "
                "hold: call it in Python with "
                "data=, as in torchcaps.train(data=pairs, run=..., resume=True)"
            )
        data = self.data
        test_data = self.test_data
        if test_data is None:
            data, test_data = _divided(data)
        pairs_of_parts = {
            "train": data,
            "validation": self.validation_data,
            "test": test_data,
        }
        self.given = {
            part: paired(pairs, part, self.axes)
            for part, pairs in pairs_of_parts.items()
            if pairs is not None
        }
        for part, pairs in self.given.items():
            self._check_given(pairs, part)
        self.of_train = _names_of(self.given["train"])
        self.named = self.named or self.of_train
        self._asked = Lock()  # the user's data set may allow one thread only

    def _check_given(self, pairs: Any, part: str) -> None:
        """Raises what the class raises for data that are no pairs, or arrays with values
        out of range, which would be an error for each of their images.
        """
        if isinstance(pairs, Arrays):
            if self.levels is None and not self.skip_broken and pairs.shown_as_image:
                try:
                    check_pixels(pairs.images)
                except ValueError as error:
                    raise ValueError(f"the {part} images: {error}") from None
            return
        if isinstance(pairs, Mapping) and 0 not in pairs:
            names = ", ".join(map(repr, pairs))
            advice = f"(images, labels), such as those under {names}"
        elif hasattr(pairs, "__len__") and hasattr(pairs, "__getitem__"):
            _refuse_texts(pairs, part)
            return
        elif hasattr(pairs, "dataset"):
            advice = "its dataset, of which the training makes batches"
        else:
            advice = "a list of pairs (image, label)"
        raise TypeError(
            f"the {part} data must have a length and items, got "
            f"{type(pairs).__name__}: give {advice}"
        )

    def list_items(self) -> Listed:
        """The pairs of each split, each asked for its labels and for facts about its
        image.
        """
        listed = Listed()
        rows = list(self._rows(listed))
        labels = Labels.of([given for _, given, _ in rows])
        check_names(self.named, labels, _BETWEEN)
        trained = set[Label]()
        for (part, _, pair), of_row in zip(rows, labels.rows, strict=True):
            if part == "train":
                trained.update(of_row)
            names = self._names_in(part)
            category = _BETWEEN.join(_category(label, names) for label in of_row)
            listed.parts[part].append(replace(pair, category=category))
        kinds = {type(label): label for row in labels.rows for label in row}
        if len(kinds) > 1 and not self.named:
            raise ValueError(
                "labels must be all whole numbers or all names, got "
                f"{' and '.join(sorted(map(repr, kinds.values())))}"
            )
        listed.classes = labels.classes(trained)
        listed.separator = _BETWEEN if labels.several else ""
        listed.notes = (*_axes_lines(self.given, self.channels), *labels.notes())
        return listed

    def _rows(self, listed: Listed) -> Iterator[tuple[str, tuple[Label, ...], _Pair]]:
        """The split, the labels, and the pair without a category, one after the other;
        tells ``listed`` which are left out.
        """
        for part, pairs in self.given.items():
            listed.parts[part] = []
            for index in range(len(pairs)):
                name = f"{part}/{index}"
                try:
                    image, labels = _pair(pairs, index, name)
                except BrokenImage as problem:
                    if not self.skip_broken:
                        raise
                    listed.left_out[name] = problem.why
                    continue
                facts = look(partial(_source, image, name, self.levels), name)
                opened = partial(self._image, pairs, index, name)
                yield part, labels, _Pair(name, "", opened, facts)

    def _names_in(self, part: str) -> tuple[str, ...]:
        """The names of the numbers in a split, as the training pairs call them."""
        names = _names_of(self.given[part])
        if not names or names == self.of_train or not self.of_train:
            return self.named
        places = places_of(names, self.of_train, f"the {part} data")
        return tuple(self.named[place] for place in places)

    @cached_property
    def _facts(self) -> dict[str, ImageFacts]:
        items = chain.from_iterable(self.listed.parts.values())
        return {item.name: item.facts for item in items}

    def samples(self, most: int) -> "list[Any]":
        """Return some of the training images that can be read, evenly over all.

        Args:
            most: how many at most.
        """
        pairs = self.given["train"]
        images = list[Any]()
        for index in range(0, len(pairs), -(-len(pairs) // most) or 1):
            with suppress(BrokenImage):
                images.append(self._image(pairs, index, f"train/{index}"))
        return images

    def _image(self, pairs: Any, index: int, name: str) -> "Source":
        with self._asked:
            image = _pair(pairs, index, name)[0]
        return _source(image, name, self.levels)


def _refuse_texts(pairs: Any, part: str) -> None:
    """Raises a `ValueError` for a list of texts, which would be one for each of them."""
    # Not of a data set: asking it for a pair may take long.
    first = pairs[0] if isinstance(pairs, list | tuple) and pairs else None
    text = first[0] if isinstance(first, list | tuple) and first else None
    if isinstance(text, str) and not Path(text).suffix and not Path(text).exists():
        raise ValueError(
            f"the {part} data must be images or paths of images, got {text!r:.60}, "
            "which names no file; torchcaps.train(texts, labels) trains on texts"
        )


def _category(label: Label, names: tuple[str, ...]) -> str:
    """The name of the class of a label."""
    if not names or (isinstance(label, str) and label in names):
        return str(label)
    if isinstance(label, str) or not 0 <= label < len(names):
        raise ValueError(
            f"a label must be a class or its number, one of {len(names)}, "
            f"{some(names)}; got {label!r}"
        )
    return names[label]


def _divided(data: Any) -> tuple[Any, Any]:
    """The data to train on and to test on, of arrays for both."""
    if (
        isinstance(data, tuple)
        and len(data) == 4
        and is_two_arrays(data[:2])
        and is_two_arrays(data[2:])
    ):
        return data[:2], data[2:]
    if isinstance(data, tuple) and len(data) == 2 and all(map(is_two_arrays, data)):
        return data
    return data, None


def _axes_lines(
    pairs_of_parts: Mapping[str, Any], asked_channels: int | None
) -> Iterator[str]:
    """Tell people the order of axes that was taken of arrays."""
    for part, pairs in pairs_of_parts.items():
        if isinstance(pairs, Arrays):
            channels = pairs[0][0].shape[0]
            meaning = "grey" if pairs.axes == "NHW" else counted(channels, "channels")
            if channels == 4 and asked_channels != 4:
                meaning += ", the last of which is opacity unless channels is 4"
            yield (
                f"the axes of the {part} images, {tuple(pairs.images.shape)}, are "
                f"{pairs.axes}: {meaning}"
            )


def _names_of(data: Any) -> tuple[str, ...]:
    """The names of the classes that a data set has, or the one that it is a part of,
    such as by ``random_split``.
    """
    while not hasattr(data, "classes") and hasattr(data, "dataset"):
        data = data.dataset
    names = getattr(data, "classes", None)
    return () if names is None else tuple(map(str, names))


def _pair(data: Any, index: int, name: str) -> tuple[Any, tuple[Label, ...]]:
    """The image and the labels at an index."""
    try:
        pair = data[index]
        if isinstance(pair, Mapping):
            names = ", ".join(map(str, pair))
            raise ValueError(f"got a {type(pair).__name__} of {names}")
        image, label = pair
    except Exception as error:  # of any type: the data set is the user's
        raise BrokenImage(
            name, f"it must be a pair (image, label): {error!r}"
        ) from error
    return image, labels_of(label, name)


def _source(image: Any, name: str, levels: Levels | None) -> "Source":
    """An image of any kind as a PIL image, or as bands, or as the path of its file."""
    if isinstance(image, str | Path):
        return Path(image)
    try:
        return as_source(image, levels)
    except ValueError as error:
        raise BrokenImage(name, str(error)) from error
