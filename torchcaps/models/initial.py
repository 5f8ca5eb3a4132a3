"""Initial weights as the released codes draw them: TensorFlow cuts a normal
distribution at two deviations.
"""

import math

from torch import Tensor, nn

Affine = nn.Linear | nn.modules.conv._ConvNd

_CUT = 0.87962566103423978
"""The deviation of a normal variable of deviation 1 that is cut at 2."""


def cut_normal(weight: Tensor, deviation: float) -> None:
    """Draw weights anew from a normal distribution of this deviation, cut at two of
    them.
    """
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def he_deviation(fan_in: int) -> float:
    """Return the deviation before the cut, such that it is
    :math:`\\sqrt{2 / \\text{fan in}}` after it.
    """
    return math.sqrt(2 / fan_in) / _CUT


def zero_bias(layer: nn.Module) -> None:
    """Set the biases of a layer to 0, if it has any."""
    assert isinstance(layer, Affine)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def glorot(layer: nn.Module) -> None:
    """Draw Glorot's uniform weights, and set biases to 0, as Keras does."""
    assert isinstance(layer, Affine)
    nn.init.xavier_uniform_(layer.weight)
    zero_bias(layer)
