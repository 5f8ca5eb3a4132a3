"""What data sets that are made of others have in common."""

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from torchcaps_lab.data.base import DataSet
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.data.manifest import Changes, Manifest

Part = Literal["train", "validation", "test"]


class MadeOf(DataSet):
    """A data set of images made from another one, with the same files and splits;
    subclasses define :meth:`made`.

    Args:
        data: the other one; which images are put aside for validation is its affair.

    Raises:
        TypeError: ``data`` is no data set.
        ValueError: ``data`` gives texts.
    """

    def __init__(self, data: DataSet) -> None:
        if not isinstance(data, DataSet):
            raise TypeError(f"data must be a data set, such as Digits(), got {data!r}")
        if data.gives != DataSet.gives:
            raise ValueError(
                f"data must give images, {type(data).__name__} gives {data.gives}"
            )
        super().__init__(validation=data.validation_share, seed=data.seed)
        self.data = data

    @abstractmethod
    def made(self, images: Examples, part: Part) -> Examples:
        """The images of a part of this data set, made of those of the other one."""

    def load_train(self) -> Examples:
        """The images to train on, without those for validation."""
        return self.made(self.data.train, "train")

    def load_validation(self) -> Examples:
        """The images to validate on."""
        return self.made(self.data.validation, "validation")

    def load_test(self) -> Examples:
        """The images to test on."""
        return self.made(self.data.test, "test")

    @property
    def called(self) -> str:
        """What people call the other data."""
        return self.data.called

    def manifest(self) -> Manifest | None:
        """Which files the images are made of, split by split."""
        return self.data.manifest()

    def record(self) -> Manifest | None:
        """What tells copies of these files."""
        return self.data.record()

    def follow(self, manifest: Manifest) -> Changes:
        """Takes over the split of a manifest."""
        return self.data.follow(manifest)

    def test_on_all(self) -> None:
        """Makes every file of that data set a test image."""
        self.data.test_on_all()

    def notes(self) -> tuple[str, ...]:
        """The notes of the data set that this one is made of."""
        return self.data.notes()


def check_single(digits: Examples) -> None:
    """Raises a `ValueError` if images show several things each, or are composed
    already.
    """
    if digits.labels.ndim != 1 or digits.composition is not None:
        raise ValueError(
            "digits must be images of one class each, not scenes, pairs or others "
            "with masks as labels"
        )


def by_class(digits: Examples) -> tuple[Tensor, Tensor]:
    """The digits' indices, class by class, int64 (N,), and how many there are of each
    class, (E,); on the CPU.
    """
    labels = digits.labels.cpu()
    return labels.argsort(stable=True), torch.bincount(
        labels, minlength=len(digits.classes)
    )
