"""Any data set of (image, label) in Python."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from torchcaps.spec import argument, settings
from torchcaps_lab.data.listed import Item, Listed, ListedImages, Seen, arranged, look
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.picture import BrokenImage, as_shown

if TYPE_CHECKING:
    from torchcaps_lab.data.picture import Source


@dataclass(frozen=True)
class _Pair(Item):
    """One pair of a data set.

    Args:
        name: the split and the number of the pair.
        category: the name of its class.
        image: gives the image, of any kind.
        seen: facts about it.
    """

    image: Callable[[], Any]
    seen: Seen

    def source(self) -> "Source":
        """The image, or its file."""
        return _source(self.image(), self.name)


@settings
class MapStyle(ListedImages):
    """Pairs of an image and a label that the user has in Python: a list, a data set of torchvision, any ``Dataset``.

    Whatever has ``len(data)`` and ``data[index]`` will do. An image is a PIL image, an array (H, W) or (H, W, C), a
    tensor (C, H, W), bytes or floating point in [0, 1], or the path of a file; a label is a whole number or the name of
    a class. Images of any sizes are read as those of a folder.

    Every pair is asked for twice: first for its label, its pixels and its place in the split, then to keep it. Random
    changes of the data set's own are therefore made once and kept: leave them, and normalisation, to ``preprocess``.

    Args:
        data: the pairs to train on.
        test_data: those to test on; without them a share of ``data`` is put aside.
        validation_data: those for validation, likewise.
        classes: the names of the labels 0, 1, ...; default: ``data.classes``, or else the labels themselves.

    Raises:
        TypeError: a data set has no length or no items.
        ValueError: there is no ``data``, an argument is out of range, an item is no pair of an image and a label, or a
            label has no name.

    Example:
        >>> from torchcaps_lab.data import MapStyle
        >>> pairs = [(torch.full((1, 8, 8), value / 40), "dark" if value < 20 else "light") for value in range(40)]
        >>> data = MapStyle(pairs)
        >>> data.classes, len(data.train), len(data.validation), len(data.test)
        (('dark', 'light'), 28, 4, 8)
    """

    data: Any = None
    test_data: Any = None
    validation_data: Any = None
    class_names: Sequence[Any] | None = argument(default=None, alias="classes")

    def __post_init__(self) -> None:
        super().__post_init__()
        names = _names_of(self.data) if self.class_names is None else self.class_names
        self.named = () if names is None else tuple(map(str, names))
        if self.data is None:
            raise ValueError(
                "MapStyle has the pairs of a program, which no file and no option can hold: call it in Python with "
                "data=, as in torchcaps.train(data=pairs, run=..., resume=True)"
            )
        given = {"train": self.data, "validation": self.validation_data, "test": self.test_data}
        self.given = {part: pairs for part, pairs in given.items() if pairs is not None}
        for part, pairs in self.given.items():
            if not (hasattr(pairs, "__len__") and hasattr(pairs, "__getitem__")):
                raise TypeError(f"the {part} data must have a length and items, got {type(pairs).__name__}")
        self._asked = Lock()  # the user's data set may allow one thread only

    def list_images(self) -> Listed:
        """The pairs of each split, each asked for its label and for facts about its image."""
        listed, labels = Listed(), set[int | str]()
        for part, pairs in self.given.items():
            rows = listed.parts.setdefault(part, [])
            for index in range(len(pairs)):
                name = f"{part}/{index}"
                try:
                    image, label = _pair(pairs, index, name)
                except BrokenImage as problem:
                    if not self.skip_broken:
                        raise
                    listed.left_out[name] = problem.why
                    continue
                labels.add(label)
                seen = look(partial(_source, image, name), name)
                rows.append(_Pair(name, self._category(label), partial(self._image, pairs, index, name), seen))
        if len({type(label) for label in labels}) > 1 and not self.named:
            raise ValueError(f"labels must be all whole numbers or all names, got {some(sorted(map(str, labels)))}")
        listed.classes = self.named or tuple(map(str, sorted(labels)))
        return arranged(listed, {part: part for part in listed.parts})

    @cached_property
    def _seen(self) -> dict[str, Seen]:
        return {item.name: item.seen for rows in self.listed.parts.values() for item in rows}

    def _image(self, pairs: Any, index: int, name: str) -> Any:
        with self._asked:
            return _pair(pairs, index, name)[0]

    def _category(self, label: int | str) -> str:
        """The name of the class of a label."""
        names = self.named
        if not names or (isinstance(label, str) and label in names):
            return str(label)
        if isinstance(label, str) or not 0 <= label < len(names):
            raise ValueError(
                f"a label must be a class or its number, one of {len(names)}, {some(names)}; got {label!r}"
            )
        return names[label]


def _names_of(data: Any) -> Sequence[Any] | None:
    """The names of the classes that a data set has, or the one that it is a part of, such as by ``random_split``."""
    while not hasattr(data, "classes") and hasattr(data, "dataset"):
        data = data.dataset
    return getattr(data, "classes", None)


def _pair(data: Any, index: int, name: str) -> tuple[Any, int | str]:
    """The image and the label at an index."""
    try:
        image, label = data[index]
    except Exception as error:  # of any type: the data set is the user's
        raise BrokenImage(name, f"it must be a pair (image, label): {error!r}") from error
    if isinstance(label, str):
        return image, label
    try:
        return image, operator.index(label)
    except TypeError:
        raise ValueError(f"the label of {name} must be a whole number or the name of a class, got {label!r}") from None


def _source(image: Any, name: str) -> "Source":
    """An image of any kind as a PIL image, or as the path of its file."""
    if isinstance(image, str | Path):
        return Path(image)
    try:
        return as_shown(image)
    except ValueError as error:
        raise BrokenImage(name, str(error)) from error
