"""The handwritten digits that come with scikit-learn."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from torchcaps.numerics import Size
from torchcaps.spec import argument, settings
from torchcaps_lab.data.base import (
    TEST_SEED,
    DataSet,
    register_dataset,
    stratified_split,
)
from torchcaps_lab.data.examples import Examples


@register_dataset("digits")
@settings
class Digits(DataSet):
    """1,797 handwritten digits of 8 x 8 pixels, part of scikit-learn: nothing is
    downloaded.

    The source has no test set. A fifth of each digit is the test set here, and it is
    the same for every `seed`.

    Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
    Machine Learning Repository, 1998.

    Args:
        size: height and width to which the images are scaled, with bilinear
            interpolation.

    Raises:
        ValueError: `validation` is outside [0, 1), or `seed` or `size` is not a whole
            number, or `size` is less than 1.

    Example:
        >>> from torchcaps_lab.data import Digits
        >>> digits = Digits()
        >>> len(digits.train), len(digits.validation), len(digits.test)
        (1295, 143, 359)
        >>> digits.train.inputs.shape
        torch.Size([1295, 1, 8, 8])
    """

    model = "capsnet_digits"

    size: Size = argument(default=8, kw_only=True)

    def load_train(self) -> Examples:
        """Read the four fifths of the digits to train on."""
        digits = _load_digits(self.size)
        return digits.subset(stratified_split(digits.labels, 0.2, TEST_SEED)[0])

    def load_test(self) -> Examples:
        """Read the fifth of the digits to test on."""
        digits = _load_digits(self.size)
        return digits.subset(stratified_split(digits.labels, 0.2, TEST_SEED)[1])


@cache
def _raw_digits() -> Any:
    from sklearn.datasets import load_digits

    return load_digits()


def _load_digits(size: int) -> Examples:
    digits = _raw_digits()
    # The source counts dark points: 0..16.
    images = (torch.from_numpy(digits.images) * 255 / 16).unsqueeze(1)
    images = F.interpolate(images, (size, size), mode="bilinear").round().byte()
    labels = torch.from_numpy(digits.target).to(torch.int64)
    return Examples(images, labels, tuple(str(digit) for digit in range(10)))
