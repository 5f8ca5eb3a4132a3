"""The record of the images that a run was trained, validated and tested on, so that the
folder may change.
"""

import shlex
from collections.abc import Sequence

import torch

from torchcaps_lab.data import DataSet, Examples, Manifest
from torchcaps_lab.data.manifest import PARTS, some
from torchcaps_lab.run_folder import RunFolder


def follow_record(folder: RunFolder, data: DataSet) -> tuple[str, ...]:
    """Applies the splits that a run has recorded, if any; returns notes on what changed
    since.

    Raises:
        ValueError: the record is damaged or missing, or belongs to other data.
    """
    if not folder.config.is_file():
        return ()
    if folder.record.exists():
        changes = data.follow(Manifest.read(folder.record))
        if not changes.classes:
            return changes.lines()
        return *changes.lines(), with_new_classes(
            folder, str(getattr(data, "root", "DATA")), changes.classes
        )
    if data.manifest() is not None:
        raise ValueError(
            f"{folder.record} is missing: it must name the files that the run was "
            "trained, validated and tested on"
        )
    return ()


def with_new_classes(folder: RunFolder, root: str, classes: Sequence[str]) -> str:
    """Return how to train on classes that the network of a run does not have."""
    command = shlex.join(["torchcaps", "train", root, "--from", str(folder.path)])
    are = "is a class" if len(classes) == 1 else "are classes"
    return f"{some(classes)} {are} new to this network; to train on all: {command}"


def write_record(folder: RunFolder, data: DataSet) -> None:
    """Records the splits of data in the folder of a run, if the images are files."""
    manifest = data.manifest()
    if manifest is not None:
        manifest.write(folder.record)


def images_apart(
    folder: RunFolder, data: DataSet, split: str
) -> tuple[Examples, tuple[str, ...]]:
    """Images of other data than those of the run; test images without those that the
    run was trained on.

    Args:
        folder: the folder of the run.
        data: the other data.
        split: ``train``, ``validation``, ``test``, or ``all``: all files of the data,
            as test images.

    Returns:
        The images, and notes on what was left out.

    Raises:
        ValueError: if ``all`` are wanted of data that are not files.
    """
    if every := split == "all":
        data.test_on_all()
        split = "test"
    images: Examples = getattr(data, split)
    notes = data.omissions() if every else _of_how_many(data, split, images.what)
    manifest = data.manifest()
    path = folder.record
    if split != "test" or manifest is None or not path.is_file():
        return images, notes
    train_digests = {entry.digest for entry in Manifest.read(path).parts["train"]}
    rows = [
        row
        for row, entry in enumerate(manifest.parts[split])
        if entry.digest not in train_digests
    ]
    if len(rows) == len(images):
        return images, notes
    line = (
        f"{len(images) - len(rows):,} of {len(images):,} test {images.what} left "
        "out: the run was trained on them"
    )
    return images.subset(torch.tensor(rows, dtype=torch.int64)), (*notes, line)


def _of_how_many(data: DataSet, split: str, examples: str) -> tuple[str, ...]:
    """A note, if the split is only a share of the files."""
    manifest = data.manifest()
    if manifest is None:
        return ()
    part, every = (
        len(manifest.parts[split]),
        sum(len(manifest.parts[part]) for part in PARTS),
    )
    if part == every:
        return ()
    return (
        f"{part:,} of {every:,} {examples} are in the {split} split of this data; --split "
        "all takes every one",
    )
