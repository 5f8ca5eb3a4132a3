"""A small data set with two digits in each image, made of the embedded ones: for tests,
and for ``--import``.
"""

from typing import ClassVar

import torch
from torch import Tensor

from torchcaps_lab.data import (
    Batch,
    Composition,
    DataSet,
    Digits,
    Examples,
    Parts,
    random_integers,
)


class SideBySide(Composition):
    """Each digit on the left, with another one, of another class, on the right."""

    def __init__(self, digits: Examples) -> None:
        self.digits = digits

    def image_shape(self, raw: tuple[int, int, int]) -> tuple[int, int, int]:
        """Twice as wide."""
        return raw[0], raw[1], 2 * raw[2]

    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        """Draws the other digit for each."""
        labels = self.digits.labels.to(batch.labels.device)
        draws = random_integers(seed, epoch, batch.indices)
        others = torch.stack(
            [
                self._another(labels, *pair)
                for pair in zip(draws, batch.labels, strict=True)
            ]
        )
        right = self.digits.inputs.to(batch.inputs.device)[others].float() / 255
        nothing = torch.zeros_like(right)
        alone = torch.stack(
            [torch.cat([batch.inputs, nothing], 3), torch.cat([nothing, right], 3)], 1
        )
        both = torch.stack([batch.labels, labels[others]], 1)
        mask = torch.zeros(
            len(both), len(self.digits.classes), dtype=torch.bool, device=both.device
        )
        images = alone.sum(1)
        return Batch(
            images,
            mask.scatter_(1, both, True),
            batch.indices,
            images,
            Parts(both, alone),
        )

    @staticmethod
    def _another(labels: Tensor, draw: Tensor, label: Tensor) -> Tensor:
        candidates = (labels != label).nonzero().squeeze(1)
        return candidates[draw % len(candidates)]


class Pairs(DataSet):
    """Pairs made anew in each epoch of training; always the same ones in the test.

    Args:
        count: of training images, from which 0.2 go to validation.
        validation: share of them.
        seed: of the split.
    """

    task: ClassVar = {"name": "several_labels", "count": 2}

    def __init__(
        self, count: int = 200, validation: float = 0.2, seed: int = 0
    ) -> None:
        super().__init__(validation, seed)
        self.count = count

    def load_train(self) -> Examples:
        """The first of the training digits."""
        return self._pairs(Digits(validation=0).train.subset(torch.arange(self.count)))

    def load_test(self) -> Examples:
        """The first 50 of the test digits."""
        return self._pairs(Digits().test.subset(torch.arange(50)))

    @staticmethod
    def _pairs(digits: Examples) -> Examples:
        return Examples(
            digits.inputs, digits.labels, digits.classes, composition=SideBySide(digits)
        )


class Masks(Pairs):
    """The same, as fixed images with masks and without parts."""

    task: ClassVar = "several_labels"

    def _fixed(self, images: Examples) -> Examples:
        batch = images.__getitems__(list(range(len(images))))
        return Examples(
            (255 * batch.inputs).round().to(torch.uint8), batch.labels, images.classes
        )

    def load_train(self) -> Examples:
        """Bytes."""
        return self._fixed(super().load_train())

    def load_test(self) -> Examples:
        """Bytes."""
        return self._fixed(super().load_test())
