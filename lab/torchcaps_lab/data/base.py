"""The common parts of all data sets: images with labels, three splits, a name and a
folder on disk.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from torchcaps.numerics import ProperShare
from torchcaps.spec import Within, argument, check, settings
from torchcaps.whole import expanded, resolved
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.manifest import (
    Changes,
    Manifest,
    copies_lines,
    repeated_lines,
    several_lines,
)
from torchcaps_lab.data.transforms.preprocess import MOVES, Preprocess
from torchcaps_lab.kinds import SharedRegistry
from torchcaps_lab.look import Fit

# Test sets that are drawn here (not given by a source) use this seed, never the user's:
# runs with different seeds are then measured on the same images.
TEST_SEED = 0

_LEAST_SIDE = 17
"""Least height and width that the usual network, ``capsnet``, takes."""


@settings
class DataSet(ABC):
    """A data set with its training, validation and test images, each read when first
    asked for.

    Attributes:
        task: the default task of networks that are trained on it: the name of a task in
            `torchcaps_lab.tasks`, or its name and arguments, such as `{"name":
            "several_labels", "count": 2}`.
        resize: how images of another size are brought to that of the data set; saved
            with a network.
        validation_share: the argument ``validation``; the attribute of that name are
            the images.
        gives: what it consists of, such as `images` or `words`; networks must take
            that, see :attr:`torchcaps.models.ClassifierNetwork.takes`.
        reads: the registered name of the reader that reads new inputs as those of this
            data set.
        model: the default network, by its registered name.
        shared: the arguments that say how examples were written, which hold for other
            data that a network is tested on, too.

    Args:
        validation: share of the training images that is used for validation, the same
            in every class; 0 uses none.
        seed: seed for the choice of these images.

    Raises:
        ValueError: `validation` is outside [0, 1), or `seed` is not a whole number.

    Example:
        >>> from torchcaps_lab.data import Digits, DataSet, Examples
        >>> class Inverted(DataSet):
        ...     def load_train(self):
        ...         return self._inverted(Digits(validation=0).train)
        ...
        ...     def load_test(self):
        ...         return self._inverted(Digits().test)
        ...
        ...     def _inverted(self, digits):
        ...         return Examples(255 - digits.inputs, digits.labels, digits.classes)
        >>> len(Inverted(validation=0.1).train), len(Inverted().classes)
        (1295, 10)
    """

    task: ClassVar[str | Mapping[str, Any]] = "classification"

    things: ClassVar[str] = "images"
    """What its examples are called in messages."""

    gives: ClassVar[str] = "images"

    reads: ClassVar[str] = "images"

    model: ClassVar[str] = "capsnet"

    shared: ClassVar[tuple[str, ...]] = ()

    validation_share: ProperShare = argument(
        default=0.1, alias="validation", kw_only=True
    )
    # What torch takes.
    seed: Annotated[int, Within(-(2**63))] = argument(default=0, kw_only=True)

    @property
    def resize(self) -> Fit:
        """How images of another size are brought to that of the data set."""
        return "pad"

    @abstractmethod
    def load_train(self) -> Examples:
        """Read the training images, those for validation included."""

    @abstractmethod
    def load_test(self) -> Examples:
        """Read the test images."""

    def load_validation(self) -> Examples | None:
        """Read the validation images of a source that has its own; None has them split
        off training.
        """
        return None

    @property
    def train(self) -> Examples:
        """Return the images to train on."""
        return self._train_and_validation[0]

    @property
    def validation(self) -> Examples:
        """Return the images to choose settings on; empty without a validation share."""
        return self._train_and_validation[1]

    @cached_property
    def test(self) -> Examples:
        """The images to report results on. Only touching this reads them."""
        return self.load_test()

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the name of each label."""
        return self.train.classes

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of every image."""
        return self.train.image_shape

    def default_model(self) -> str:
        """The network that is trained on it, unless another is chosen: a smaller one
        for images that the usual one's kernels do not fit into.
        """
        if self.model == DataSet.model and min(self.image_shape[1:]) < _LEAST_SIDE:
            return "capsnet_digits"
        return self.model

    def default_task(self) -> str | Mapping[str, Any]:
        """The task of networks that are trained on it, unless another is chosen."""
        return self.task

    def arguments(self, preprocess: Preprocess) -> dict[str, Any]:
        """Arguments of a network for it, besides the number of classes; a `ValueError`
        if it cannot be prepared so, or if that would move pixels away from their labels.
        """
        moved = [name for name in (*MOVES, "rescale") if getattr(preprocess, name)]
        labels = self.train[0].labels if moved and len(self.train) else None
        if labels is not None and labels.ndim > 2 and len(self.train.labelled(labels)):
            raise ValueError(
                f"preprocess.{moved[0]} would move pixels away from their labels: cut, "
                "of Masks, moves both"
            )
        return {"image_shape": preprocess.image_shape(self.image_shape)}

    def named_rows(
        self, extra: Mapping[str, Any]
    ) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
        """Return what weights have a row for each of, by the argument of networks that
        counts them: the names here, and those of a saved network.

        Args:
            extra: what was kept with that network.
        """
        return {"classes": (self.classes, extra.get("classes") or ())}

    def begin(self, network: nn.Module) -> None:  # noqa: B027  # most know nothing
        """Gives a network, before it is trained, what is known beforehand, such as word
        vectors that others trained.
        """

    @property
    def read_shape(self) -> tuple[int, int, int]:
        """The shape that new images are read in, before they are prepared."""
        return self.image_shape

    def fingerprint(self) -> str:
        """Return a digest of the training and validation images, their labels and the
        names of classes, in their order.

        Training is resumed on the same images only if this is the same. Test images are
        not read for it.
        """
        return mixed_digest(self.train.digest(), self.validation.digest())

    def manifest(self) -> Manifest | None:
        """Return the files of the images, split by split; None if they are not the
        user's own files.
        """
        return None

    def follow(self, manifest: Manifest) -> Changes:
        """Take over the split of a manifest, whatever files were added since, and
        return the changes; a `ValueError` if the images are not files.
        """
        raise ValueError(
            f"{type(self).__name__} has no files, and the run was trained on files"
        )

    def test_on_all(self) -> None:
        """Make every file a test image.

        Raises:
            ValueError: the images are not files.
        """
        raise ValueError(
            "only folders and lists of images can all be tested on, "
            f"{type(self).__name__} has splits of its own"
        )

    def notes(self) -> tuple[str, ...]:
        """Return notes for a reader of results, such as the files that were left out
        and why; a sentence each.
        """
        return ()

    def record(self) -> Manifest | None:
        """Return what tells copies: the examples split by split, those of the same
        content with one digest; None if they are not the user's own.
        """
        return self.manifest()

    def copies(self) -> tuple[str, ...]:
        """Return which examples are there more than once, a sentence each."""
        return self._lines_of_record(several_lines)

    def repeated(self) -> tuple[str, ...]:
        """Return those of the notes that name a split without examples of its own, which
        measures nothing new.
        """
        return self._lines_of_record(repeated_lines)

    def contradictions(self) -> tuple[str, ...]:
        """Return those of the notes that should be repaired before a training: examples
        of the same content in several splits or classes.
        """
        return self._lines_of_record(copies_lines)

    def _lines_of_record(
        self, lines: Callable[[Manifest, str], list[str]]
    ) -> tuple[str, ...]:
        record = self.record()
        return () if record is None else tuple(lines(record, self.things))

    @property
    def called(self) -> str:
        """What people call the data: the folder or the file that they are in, or else
        the name of the data set.
        """
        place = getattr(self, "root", None) or getattr(self, "path", None)
        return resolved(Path(place)).name if place else type(self).__name__

    def omissions(self) -> tuple[str, ...]:
        """Return those of the notes that name what was found and left out."""
        return ()

    @cached_property
    def _train_and_validation(self) -> tuple[Examples, Examples]:
        train = self.load_train()
        validation = self.load_validation()
        if validation is not None:
            return train, validation.in_classes(train.classes, "the validation images")
        train_rows, held_out = stratified_split(
            train.labels, self.validation_share, self.seed
        )
        return train.subset(train_rows), train.subset(held_out)


def count_aside(share: float, count: int) -> int:
    """How many of so many are put aside: the share, but at least one, and not all; none
    if the share is 0.
    """
    return min(max(round(share * count), 1), count - 1) if share else 0


def stratified_split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Put aside the same share of every class, at random.

    Args:
        labels: int64 (N,); or masks, bool (N, E), of which :func:`share_of_labels` puts
            the same share of every label aside. Images with a label for each pixel,
            (N, H, W), count as one class.
        share: how much of each class to put aside, in [0, 1). Unless it is 0, every
            class of two or more keeps at least one on each side; a class of one is
            never put aside.
        seed: the only thing that the choice depends on, besides the labels.

    Returns:
        The indices of the rest and of those put aside, int64, each in ascending order.

    Raises:
        ValueError: `share` is outside [0, 1).
    """
    check(ProperShare, share, "share")
    generator = torch.Generator().manual_seed(seed)
    if labels.ndim == 2:
        order = torch.randperm(len(labels), generator=generator)
        return _two_parts(share_of_labels(labels, order, share))
    if labels.ndim > 2:
        labels = torch.zeros(len(labels), dtype=torch.int64)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=generator)
        held_out[members[order[: count_aside(share, len(members))]]] = True
    return _two_parts(held_out)


def _two_parts(held_out: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of the rest and of those put aside, of bool (N,)."""
    return (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)


def share_of_labels(labels: Tensor, order: Tensor, share: float) -> Tensor:
    """Put aside the same share of every label, where one may have several.

    The label that the fewest undecided have is next: of these, the share of the label
    that is still missing is put aside, and the others are kept. First come those that
    another label would miss, last those whose other labels have all that they want.

    Args:
        labels: the labels of each, bool (N, E). Those without any count as one more
            label.
        order: int64 (N,); among equals, those that come first here are put aside.
        share: how much of each label to put aside, in [0, 1). Unless it is 0, a label
            of two or more should be on both sides; one of one is never put aside.

    Returns:
        Whether each is put aside, bool (N,).

    Source: Sechidis, Tsoumakas & Vlahavas 2011, "On the Stratification of Multi-Label
    Data", algorithm 1 (iterative stratification), with two subsets and a fixed order in
    place of chance.
    """
    masks = torch.cat([labels, ~labels.any(1, keepdim=True)], 1)[order]
    counts = masks.sum(0)
    wanted = torch.tensor([count_aside(share, count) for count in counts.tolist()])
    held_out = torch.zeros(len(masks), dtype=torch.bool)
    undecided = torch.ones_like(held_out)
    while undecided.any():
        left = masks[undecided].sum(0)
        label = left.masked_fill(left == 0, len(masks) + 1).argmin()
        members = masks[:, label] & undecided
        missing = wanted - masks[held_out].sum(0)
        undecided &= ~members
        # Labels that find too few elsewhere.
        urgent = masks[undecided].sum(0) < missing
        rows = members.nonzero().squeeze(1)
        worth = (masks[rows] & urgent).sum(1) - (masks[rows] & (missing <= 0)).sum(1)
        chosen = rows[worth.argsort(descending=True, stable=True)]
        held_out[chosen[: max(int(missing[label]), 0)]] = True
    return torch.zeros_like(held_out).index_put((order,), held_out)


def group_of(name: str, before: str) -> str:
    """Return whom or what a file is of, by its name.

    Args:
        name: the name, with its folders.
        before: what the group ends at in the name of the file; ``/`` for the name of
            its folder; empty for no group.

    Example:
        >>> from torchcaps_lab.data.base import group_of
        >>> group_of("cats/tom_01.png", "_"), group_of("cats/tom/01.png", "/")
        ('tom', 'tom')
    """
    path = PurePosixPath(name)
    if before == "/":
        return path.parent.name
    return path.stem.partition(before)[0] if before else ""


def stable_split(
    labels: Tensor,
    digests: Sequence[str],
    share: float,
    seed: int,
    groups: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Put aside the same share of every class: the images whose digests, mixed with the
    seed, are the smallest.

    Where an image goes depends on its content and, at the edge, on how many others of
    its class come before it: adding an image moves at most one other of its class.
    Copies of an image stay together if both sides keep images.

    Args:
        labels: int64 (N,); or masks, bool (N, E), see :func:`share_of_labels`.
        digests: the digests of the images' contents.
        share: how much of each class to put aside, in [0, 1). Unless it is 0, every
            class of two or more keeps at least one on each side; a class of one is
            never put aside.
        seed: the seed of the choice.
        groups: whom or what each image is of, empty where that is not known. Groups
            stay whole, and the share counts groups of each class.

    Returns:
        The indices of the rest and of those put aside, int64, each in ascending order.

    Raises:
        ValueError: `share` is outside [0, 1).
    """
    check(ProperShare, share, "share")
    if labels.ndim == 2 or groups is not None:
        keys = digests
        if groups is not None:
            pairs = zip(groups, digests, strict=True)
            keys = [group or digest for group, digest in pairs]
        elif len({*digests}) == 1:
            # Copies of one image can only be on both sides.
            keys = [f"{digest} {place}" for place, digest in enumerate(digests)]
        return _two_parts(_whole_units(labels, keys, share, seed))
    scores = [_score(digest, seed) for digest in digests]
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    of_class: dict[int, list[int]] = {}
    for index, label in enumerate(labels.tolist()):
        of_class.setdefault(label, []).append(index)
    for indices in of_class.values():
        members = sorted(indices, key=scores.__getitem__)
        end = count = count_aside(share, len(members))
        while (
            0 < end < len(members)
            and digests[members[end - 1]] == digests[members[end]]
        ):
            end += 1
        held_out[members[: count if end == len(members) else end]] = True
    return _two_parts(held_out)


def _whole_units(
    labels: Tensor, keys: Sequence[str], share: float, seed: int
) -> Tensor:
    """Put aside the same share of every label, and all that have one key or none of
    them: bool (N,).
    """
    if labels.ndim == 1:
        labels = labels[:, None] == labels.unique()
    place_of = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    places = torch.tensor([place_of[key] for key in keys], dtype=torch.int64)
    masks = torch.zeros(len(place_of), labels.shape[1], dtype=torch.int64)
    masks.index_add_(0, places, labels.long())
    scores = [_score(key, seed) for key in place_of]
    order = torch.tensor(
        sorted(range(len(scores)), key=scores.__getitem__), dtype=torch.int64
    )
    return share_of_labels(masks > 0, order, share)[places]


def _score(key: str, seed: int) -> bytes:
    """A number that decides which come first, the same for equal contents."""
    return hashlib.sha256(f"{seed} {key}".encode()).digest()


def mixed_digest(*digests: str) -> str:
    """One SHA-256, in hexadecimal, of several digests; their order counts."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def find_data_dir(data_dir: str | Path | None) -> Path:
    """Return the folder of the data sets: the argument, else $TORCHCAPS_DATA, else
    torchcaps in the user's cache.

    Raises:
        ValueError: the argument is not a path.
    """
    if data_dir is not None and not isinstance(data_dir, str | os.PathLike):
        raise ValueError(
            f"data_dir must be the path of a folder, or None, got {data_dir!r}"
        )
    chosen = data_dir or os.environ.get("TORCHCAPS_DATA")
    if chosen:
        return expanded(chosen)
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torchcaps"


DATASETS = SharedRegistry("data set", DataSet)
"""The data sets that :func:`create_dataset` knows."""

register_dataset = DATASETS.register
"""Decorate a `DataSet` so that `create_dataset` knows it as `name`; a name taken is
a `ValueError`.
"""


def list_datasets() -> list[str]:
    """The names that `create_dataset` knows, sorted."""
    return sorted(DATASETS)


def create_dataset(name: str, **kwargs: Any) -> DataSet:
    """Build the data set `name` with the arguments of its class; an unknown name is a
    `ValueError`.
    """
    return DATASETS.find(name)(**kwargs)


Tell = Callable[[str], object]
"""Takes a line of text for people."""


def test_examples(opened: Callable[[], DataSet], tell: Tell) -> Examples | None:
    """The test examples of a data set; None if they are not on this machine, or
    damaged.

    Args:
        opened: makes the data set.
        tell: is called with the reason if they are damaged.
    """
    try:
        return opened().test
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        tell(f"test images that are damaged are not used: {error}")
        return None
