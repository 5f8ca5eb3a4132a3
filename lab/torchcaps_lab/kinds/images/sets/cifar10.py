"""CIFAR-10 in its binary version."""

import tarfile
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from torchcaps.whole import LARGEST_NOTE, opened, read_bytes, read_text
from torchcaps_lab.data.base import register_dataset
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.published import PublishedData

_ARCHIVE = "cifar-10-binary.tar.gz"
_SHAPE = (3, 32, 32)
# Bytes: the label, then the red, the green and the blue plane.
_RECORD = 1 + 3 * 32 * 32


@register_dataset("cifar10")
class CIFAR10(PublishedData):
    """60,000 colour photographs of 32 x 32 pixels in ten classes, 10,000 of them the
    test set.

    The files of the binary version, data_batch_1.bin to data_batch_5.bin and
    test_batch.bin, are looked for in the folders `cifar10`,
    `cifar10/cifar-10-batches-bin` and `cifar-10-batches-bin` inside `data_dir`, and in
    `data_dir` itself. Where one is missing, the original archive
    cifar-10-binary.tar.gz is looked for there (its MD5 is checked), and where that is
    missing too, it is downloaded to the first. It is read as it is: nothing is unpacked
    to disk.

    Source: A. Krizhevsky, "Learning multiple layers of features from tiny images",
    technical report, University of Toronto, 2009.

    Example:
        >>> from torchcaps_lab.data import CIFAR10
        >>> data = CIFAR10(validation=0.1)  # nothing is read or downloaded yet
        >>> data.train.inputs.shape  # doctest: +SKIP
        torch.Size([45000, 3, 32, 32])
    """

    class_names: ClassVar[tuple[str, ...]] = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )
    folders: ClassVar[tuple[str, ...]] = (
        "cifar10",
        # The archive, unpacked where it lies.
        "cifar10/cifar-10-batches-bin",
        "cifar-10-batches-bin",
    )
    mirrors: ClassVar[tuple[str, ...]] = ("https://www.cs.toronto.edu/~kriz/",)
    digests: ClassVar[dict[str, str]] = {
        _ARCHIVE: "md5:c32a1d4ab5d03f1284b67883e8d87530"
    }

    def load_train(self) -> Examples:
        """Read the training images.

        Raises:
            FileNotFoundError: a file is missing and `download` is False.
            ConnectionError: a file is missing and the archive was not served intact.
            ValueError: a file is broken, the archive is not the one that was published,
                or a file batches.meta.txt next to the batches names other classes.
        """
        return self._load([f"data_batch_{number}.bin" for number in range(1, 6)])

    def load_test(self) -> Examples:
        """Read the test images; raises what `load_train` does."""
        return self._load(["test_batch.bin"])

    def _load(self, names: list[str]) -> Examples:
        paths_of_names = {name: self._find(name) for name in names}
        paths = [path for path in paths_of_names.values() if path is not None]
        if len(paths) == len(names):
            for folder in sorted({path.parent for path in paths}):
                self._check_classes(folder / "batches.meta.txt")
            batches = [
                _read_records(read_bytes(path, self.most), str(path)) for path in paths
            ]
        else:
            missing = " and ".join(
                name for name, path in paths_of_names.items() if path is None
            )
            archive = self._check(
                self._find(_ARCHIVE)
                or self._download(_ARCHIVE, [f"{missing} or {_ARCHIVE}"])
            )
            batches = _read_archive(archive, names)
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return Examples(images, labels, self.class_names)

    def _check_classes(self, meta: Path) -> None:
        if not meta.is_file():
            return
        names = tuple(read_text(meta, LARGEST_NOTE).split())
        if names != self.class_names:
            raise ValueError(
                f"{meta} must name the classes {self.class_names}, got {names}"
            )


def _read_archive(archive: Path, names: list[str]) -> list[tuple[Tensor, Tensor]]:
    """The files of these names in the published archive."""
    paths = [f"cifar-10-batches-bin/{name}" for name in names]
    batches = {}
    # As a stream: going back would decompress all of it anew.
    with opened(archive) as file, tarfile.open(fileobj=file, mode="r|gz") as members:
        for member in members:
            batch = members.extractfile(member) if member.name in paths else None
            if batch is not None:
                batches[member.name] = _read_records(
                    batch.read(), f"{archive}: {member.name}"
                )
    return [batches[path] for path in paths]


def _read_records(content: bytes, source: str) -> tuple[Tensor, Tensor]:
    """The images, uint8 (N, 3, 32, 32), and the labels, int64 (N,), in a file of the
    binary version.
    """
    if not content or len(content) % _RECORD:
        raise ValueError(
            f"{source} must hold records of {_RECORD} bytes, a label and an image, "
            f"got {len(content)} bytes"
        )
    # A copy, because a tensor's memory must be writable.
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(
        -1, _RECORD
    )
    labels = records[:, 0].to(torch.int64)
    if labels.max() > 9:
        raise ValueError(
            f"{source} must hold labels from 0 to 9, got {int(labels.max())}"
        )
    return records[:, 1:].unflatten(1, _SHAPE), labels
