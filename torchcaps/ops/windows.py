"""The windows of a convolution over a grid of capsules."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over a grid of positions, (height, width) each.

    Args:
        size: of the grid, without padding.
        kernel: of a window.
        stride: between windows.
        padding: positions added on each side, with children that are not there.
        dilation: between the positions of a window.
    """

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def __post_init__(self) -> None:
        if min(self.out) < 1:
            raise ValueError(
                f"children on a grid of {self.size[0]}x{self.size[1]} are fewer than a window of "
                f"{self.kernel[0]}x{self.kernel[1]} spans (padding {self.padding}, dilation {self.dilation})"
            )

    @property
    def out(self) -> tuple[int, int]:
        """How many windows, (H', W')."""
        height, width = (
            (self.size[axis] + 2 * self.padding[axis] - self.dilation[axis] * (self.kernel[axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis in (0, 1)
        )
        return height, width

    def sites(self, device: torch.device) -> Tensor:
        """The flat position of each place of each window on the padded grid, int64 (H' * W', kH * kW)."""
        rows, columns = (
            torch.arange(self.out[axis], device=device)[:, None] * self.stride[axis]
            + torch.arange(self.kernel[axis], device=device) * self.dilation[axis]
            for axis in (0, 1)
        )  # [H', kH], [W', kW]
        width = self.size[1] + 2 * self.padding[1]
        sites = rows[:, None, :, None] * width + columns[None, :, None, :]  # [H', W', kH, kW]
        return sites.flatten(2).flatten(0, 1)

    @property
    def padded(self) -> int:
        """The number of positions of the padded grid."""
        height, width = (self.size[axis] + 2 * self.padding[axis] for axis in (0, 1))
        return height * width

    def children(self, types: int, device: torch.device) -> Tensor:
        """The flat places of the children of each window, int32 (H' * W', kH * kW * C), on a grid as :meth:`pad`s."""
        sites = self.sites(device)[:, :, None] * types + torch.arange(types, device=device)
        return sites.flatten(1).to(torch.int32)

    def pad(self, field: Tensor) -> Tensor:
        """(N, H, W, C, ...) to all children in a row, those of the padding too, (N, G, ...)."""
        vertical, horizontal = self.padding
        if vertical or horizontal:
            pads = [0, 0] * (field.ndim - 3) + [horizontal, horizontal, vertical, vertical]
            field = nn.functional.pad(field, pads)
        return field.flatten(1, 3)
