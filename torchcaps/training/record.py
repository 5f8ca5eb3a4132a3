"""Which images a run was trained, validated and tested on: kept with it, so that the folder may change."""

import torch

from torchcaps.data import ImageData, ImageSet, Manifest
from torchcaps.training.folder import RunFolder


def follow_record(folder: RunFolder, data: ImageData) -> tuple[str, ...]:
    """Keeps data to the parts that a run has recorded, if it has; gives what changed since, for people.

    Raises:
        ValueError: the record is damaged, or that of other data.
    """
    path = folder.record
    if path.is_file() and folder.config.is_file():
        return data.follow(Manifest.read(path)).lines()
    return data.follow(None).lines() if folder.config.is_file() else ()


def write_record(folder: RunFolder, data: ImageData) -> None:
    """Keeps the parts of data in the folder of a run, where they are files."""
    manifest = data.manifest()
    if manifest is not None:
        manifest.write(folder.record)


def images_apart(folder: RunFolder, data: ImageData, split: str) -> tuple[ImageSet, tuple[str, ...]]:
    """Images of data that are not those of the run; test images without those that the run was trained on.

    Returns:
        The images, and for people, what was left out.
    """
    images: ImageSet = getattr(data, split)
    manifest, path = data.manifest(), folder.record
    if split != "test" or manifest is None or not path.is_file():
        return images, ()
    known = {entry.digest for entry in Manifest.read(path).parts["train"]}
    rows = [row for row, entry in enumerate(manifest.parts[split]) if entry.digest not in known]
    if len(rows) == len(images):
        return images, ()
    line = f"{len(images) - len(rows):,} of {len(images):,} test images left out: the run was trained on them"
    return images.subset(torch.tensor(rows, dtype=torch.int64)), (line,)
