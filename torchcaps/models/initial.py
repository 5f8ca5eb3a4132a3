"""Initial weights as the released codes draw them: TensorFlow cuts a normal distribution at two deviations."""

import math

from torch import Tensor, nn

_CUT = 0.87962566103423978
"""The deviation of a normal variable of deviation 1 that is cut at 2."""


def cut_normal(weight: Tensor, deviation: float) -> None:
    """Draws weights anew from a normal distribution of this deviation, cut at two of them."""
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def he_deviation(fan_in: int) -> float:
    """The deviation before the cut, such that it is :math:`\\sqrt{2 / \\text{fan in}}` after it."""
    return math.sqrt(2 / fan_in) / _CUT
