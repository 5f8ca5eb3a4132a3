"""Checks of what training relies on in a data set."""

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch

from torchcaps_lab.data import DataSet, Examples

__all__ = ["check_dataset"]

SPLITS = ("train", "validation", "test")

DUPLICATES = 0.01
"""The share of a split that may equal images of another split: sources have a few
duplicates.
"""


def check_dataset(source: DataSet | Callable[..., DataSet]) -> None:
    """Assert that a data set has three splits that fit together, and that they depend
    only on its seed.

    All splits have images of one size, and labels or masks of the same classes, and
    they share no images. The same seed gives the same splits; another seed gives other
    validation images and the same test images. It also works without validation images.

    Args:
        source: the data set, or, which checks more, a callable that makes it: its
            class, or a `functools.partial` of that with the arguments that it needs. It
            is called several times, with different ``validation`` and ``seed``.

    Raises:
        AssertionError: if something does not hold; says what.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        data = _make(source, validation=0.2, seed=0)
        sets = _sets(data)
        _check_belonging(data, sets)
        for split, images in sets.items():
            _check_batches(split, images)
        _check_disjoint(sets)
        torch.manual_seed(2)  # the global generator must not matter
        _check_seeds(source, sets, splits=data.load_validation() is None)


def _make(source: DataSet | Callable[..., DataSet], **changes: Any) -> DataSet:
    """The data set with other ``validation`` and ``seed``."""
    if not isinstance(source, DataSet):
        data = source(**changes)
        _require(
            isinstance(data, DataSet),
            f"it must be a DataSet, got {type(data).__name__}",
        )
        return data
    twin = copy.copy(source)
    twin.validation_share = changes["validation"]
    twin.seed = changes["seed"]
    for kind in type(twin).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, cached_property):
                vars(twin).pop(name, None)  # read anew
    return twin


def _sets(data: DataSet) -> dict[str, Examples]:
    return {split: getattr(data, split) for split in SPLITS}


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _check_belonging(data: DataSet, sets: Mapping[str, Examples]) -> None:
    """Asserts that all splits have one size, the same classes, and targets of the same
    form.
    """
    train = sets["train"]
    _require(
        len(train) > 0 and len(sets["test"]) > 0,
        "there must be images to train and to test on",
    )
    _require(
        data.image_shape == train.image_shape,
        f"image_shape is {data.image_shape}, not {train.image_shape}",
    )
    _require(
        data.classes == train.classes,
        f"classes are {data.classes}, in training {train.classes}",
    )
    _require(
        len(set(train.classes)) == len(train.classes) > 0,
        f"classes must have different names: {train.classes}",
    )
    for split, images in sets.items():
        _require(
            images.classes == train.classes,
            f"{split} has the classes {images.classes}, train {train.classes}",
        )
        _require(
            images.image_shape == train.image_shape,
            f"{split} has images {images.image_shape}, train {train.image_shape}",
        )
        _require(
            images.labels.ndim == train.labels.ndim,
            f"{split} has labels of {images.labels.ndim} axes, train of "
            f"{train.labels.ndim}",
        )


def _check_batches(split: str, images: Examples) -> None:
    """Asserts that batches have pixels in [0, 1] of the right shape, labels or masks in
    range, and do not change.
    """
    if not len(images):
        return
    rows = [*range(0, len(images), max(1, len(images) // 16))]
    batch = images.__getitems__(rows)
    again = images.__getitems__(rows)
    count = len(rows)
    classes = len(images.classes)
    labels = batch.labels
    wrong = images.wrong_in(batch)
    _require(not wrong, f"{split}: {wrong}")
    mask = labels.dtype == torch.bool and labels.shape == (count, classes)
    labels_of_rows = images.labelled(labels)
    label = labels.dtype == torch.int64 and labels.shape == images.labels[rows].shape
    _require(
        mask
        or (label and bool(((labels_of_rows >= 0) & (labels_of_rows < classes)).all())),
        f"{split}: labels must be int64 (B,) below {classes} or bool (B, {classes}), "
        f"got {labels.dtype} "
        f"{tuple(labels.shape)} from {int(labels.min())} to {int(labels.max())}",
    )
    _require(
        batch.indices.tolist() == rows,
        f"{split}: indices of a batch are not those requested",
    )
    _require(
        torch.equal(batch.inputs, again.inputs),
        f"{split}: the images differ when fetched again",
    )
    _require(
        torch.equal(labels, again.labels),
        f"{split}: the labels differ when fetched again",
    )


def _check_disjoint(sets: Mapping[str, Examples]) -> None:
    """Asserts that splits share neither images nor files."""
    shown = {split: images.contents() for split, images in sets.items()}
    for split, other_split in (
        ("validation", "train"),
        ("test", "train"),
        ("test", "validation"),
    ):
        files = set(sets[split].files or ()) & set(sets[other_split].files or ())
        _require(
            not files,
            f"{split} and {other_split} share files: {', '.join(sorted(files)[:3])}",
        )
        contents = set(shown[other_split])
        common = sum(content in contents for content in shown[split])
        _require(
            common <= DUPLICATES * len(shown[split]),
            f"{common} of {len(shown[split])} images in {split} are in {other_split} too",
        )


def _check_seeds(
    source: DataSet | Callable[..., DataSet], sets: Mapping[str, Examples], splits: bool
) -> None:
    """Asserts that the seed alone chooses the validation images, if the source has none
    of its own.
    """
    again = _sets(_make(source, validation=0.2, seed=0))
    for split in SPLITS:
        _require(
            _same(sets[split], again[split]),
            f"the same seed gives other {split} images",
        )
    sets_of_other_seed = _sets(_make(source, validation=0.2, seed=1))
    _require(
        _same(sets["test"], sets_of_other_seed["test"]),
        "another seed gives other test images",
    )
    if not splits:
        return
    held_out = sets["validation"]
    _require(len(held_out) > 0, "validation=0.2 puts no images aside")
    if len(sets["train"]) + len(held_out) >= 20:
        _require(
            not _same(held_out, sets_of_other_seed["validation"]),
            "another seed puts the same validation images aside",
        )
    none = _make(source, validation=0.0, seed=0)
    _require(
        len(none.validation) == 0,
        f"validation=0 puts {len(none.validation)} images aside",
    )
    _require(
        len(none.train) == len(sets["train"]) + len(held_out),
        f"training and validation images are {len(sets['train'])} and "
        f"{len(held_out)}, but {len(none.train)} together",
    )
    _require(
        none.validation.image_shape == none.train.image_shape,
        "empty validation has images of another shape",
    )


def _same(first: Examples, second: Examples) -> bool:
    same = first.contents() == second.contents()
    return same and torch.equal(first.labels, second.labels)
