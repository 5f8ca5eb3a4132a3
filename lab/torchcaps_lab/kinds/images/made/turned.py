"""Digits seen from other viewpoints."""

import math
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.spec import settings
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.kinds.images.sets.digits import Digits

Viewpoints = Literal["azimuth", "elevation"]
TestViewpoints = Literal["familiar", "novel", "novel_of_same_toys"]


@settings
class TurnedDigits(Digits):
    """Digits for quick trials of the viewpoint experiment: novel ones are turned by 30
    degrees, or 0.7 times as high.

    Args:
        viewpoints: how novel test digits differ: ``azimuth``, turned; ``elevation``,
            lower.
        test_viewpoints: whether the test digits are ``novel`` or ``familiar``, as they
            were in training; ``novel_of_same_toys``: those for training and validation
            are tested, in the novel way.

    Example:
        >>> from torchcaps_lab.data import TurnedDigits
        >>> digits = TurnedDigits("azimuth", "novel")
        >>> digits.test.inputs.shape
        torch.Size([359, 1, 8, 8])
    """

    viewpoints: Viewpoints = "azimuth"
    test_viewpoints: TestViewpoints = "novel"

    def load_test(self) -> Examples:
        """Read the digits to test on, seen from the viewpoints to test on."""
        if self.test_viewpoints == "novel_of_same_toys":
            digits = self.load_train()
        else:
            digits = super().load_test()
        if self.test_viewpoints == "familiar":
            return digits
        return replace(
            digits,
            inputs=turn(digits.inputs, 30)
            if self.viewpoints == "azimuth"
            else lower(digits.inputs),
        )


def turn(images: Tensor, degrees: float) -> Tensor:
    """Images, uint8 (N, C, H, W), turned counterclockwise around their centre; pixels
    from outside are black.
    """
    sine = math.sin(math.radians(degrees))
    cosine = math.cos(math.radians(degrees))
    return _warp(images, [[cosine, -sine, 0.0], [sine, cosine, 0.0]])


def lower(images: Tensor, factor: float = 0.7) -> Tensor:
    """Images, uint8 (N, C, H, W), with their height scaled around the centre by a
    factor; the rest is black.
    """
    return _warp(images, [[1.0, 0.0, 0.0], [0.0, 1 / factor, 0.0]])


def _warp(images: Tensor, source: list[list[float]]) -> Tensor:
    """Images whose pixels come from where ``source`` maps them to, in coordinates from
    -1 to 1, x right and y down.
    """
    grid = F.affine_grid(
        torch.tensor([source]), [1, *images.shape[1:]], align_corners=False
    )
    warped = F.grid_sample(
        images.float(), grid.expand(len(images), -1, -1, -1), align_corners=False
    )
    return warped.round().to(torch.uint8)
