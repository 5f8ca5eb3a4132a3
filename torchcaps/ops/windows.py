"""The windows of a convolution over a grid of capsules, of one, two, three or more
axes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torchcaps.numerics import check_series, check_sizes, kept_tensor


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over a grid of positions; one number for each axis
    of the grid in every argument.

    Args:
        size: the size of the grid, without padding: (L,) of a sequence, (H, W) of an
            image, (D, H, W) of a volume.
        kernel: the kernel of a window.
        stride: between windows.
        padding: positions added on each side, with children that are not there.

    Attributes:
        extent: the size of the grid with its padding.
        out: how many windows there are along each axis.

    Raises:
        ValueError: if these are no sizes, speak of different numbers of axes, or no
            window fits on the grid.

    Example:
        >>> windows = tc.ops.Windows(
        ...     size=(7, 7), kernel=(3, 3), stride=(2, 2), padding=(0, 0)
        ... )
        >>> windows.out
        (3, 3)
    """

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    extent: tuple[int, ...] = field(init=False, repr=False, compare=False)
    out: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        extents = []
        counts = []
        least = 0
        try:
            axes = zip(self.size, self.padding, self.kernel, self.stride, strict=True)
            for size, padding, kernel, stride in axes:
                extents.append(size + 2 * padding)
                counts.append((extents[-1] - kernel) // stride + 1)
            least = min(*self.kernel, *self.stride, 1 + min(self.padding))
        except (TypeError, ValueError, ZeroDivisionError):
            self._raise()
        if least < 1 or isinstance(sum(counts), float):
            self._raise()
        if min(counts) < 1:
            raise ValueError(
                f"children on a grid of {_times(self.size)} are fewer than a window "
                f"of {_times(self.kernel)} spans (padding {self.padding})"
            )
        object.__setattr__(self, "extent", tuple(extents))
        object.__setattr__(self, "out", tuple(counts))

    def _raise(self) -> None:
        """Raises the ValueError that says which argument is wrong."""
        check_series(0, size=self.size, kernel=self.kernel, stride=self.stride)
        check_sizes(0, padding=self.padding)
        raise ValueError(
            "windows need one number for each axis of the grid in every argument, "
            f"got {self}"
        )

    @property
    def axes(self) -> int:
        """How many axes the grid has."""
        return len(self.size)

    @property
    def padded(self) -> int:
        """The number of positions of the padded grid."""
        return math.prod(self.extent)

    def sites(self, device: torch.device) -> Tensor:
        """The flat position of each place of each window on the padded grid, int64
        (windows, places of one).

        Windows and places are in the order of a loop over the axes, the last one
        innermost.
        """
        sites = torch.zeros(1, 1, dtype=torch.int64, device=device)
        for extent, out, kernel, stride in zip(
            self.extent, self.out, self.kernel, self.stride, strict=True
        ):
            # [out, kernel]
            along = torch.arange(out, device=device)[:, None] * stride
            along = along + torch.arange(kernel, device=device)
            sites = sites[:, None, :, None] * extent + along[None, :, None, :]
            sites = sites.flatten(2).flatten(0, 1)
        return sites

    @kept_tensor
    def children(self, types: int, device: torch.device) -> Tensor:
        """The flat places of the children of each window on the grid of :meth:`pad`,
        int32 (windows, places * C).

        The tensor is kept for the next call with the same windows: it must not be
        written to.
        """
        sites = self.sites(device)[:, :, None] * types + torch.arange(
            types, device=device
        )
        return sites.flatten(1).to(torch.int32)

    @kept_tensor
    def seen(self, types: int, device: torch.device) -> Tensor:
        """Where each child of the grid of :meth:`pad` is in :meth:`children`, flattened,
        int32 (G, places of a window); -1 where no window has it at that place.

        The tensor is kept for the next call with the same windows: it must not be
        written to.
        """
        window = torch.zeros(1, 1, dtype=torch.int64, device=device)
        place = window
        inside = window == 0
        for extent, out, kernel, stride in zip(
            self.extent, self.out, self.kernel, self.stride, strict=True
        ):
            offset = torch.arange(kernel, device=device)
            begin = torch.arange(extent, device=device)[:, None] - offset
            along = begin.div(stride, rounding_mode="floor")
            on_window = (begin == along * stride) & (along >= 0) & (along < out)
            window = _outer(window * out, along, torch.add)
            place = _outer(place * kernel, offset.expand(extent, -1), torch.add)
            inside = _outer(inside, on_window, torch.logical_and)
        flat = (window * math.prod(self.kernel) + place)[:, None] * types
        flat = flat + torch.arange(types, device=device)[:, None]
        return torch.where(inside[:, None], flat, -1).flatten(0, 1).to(torch.int32)

    def pad(self, field: Tensor) -> Tensor:
        """All children on one axis, those of the padding too, 0 or False: (N, *size, C,
        ...) to (N, G, ...).
        """
        if any(self.padding):
            pads = [0, 0] * (field.ndim - 1 - self.axes)
            for padding in reversed(self.padding):
                pads += [padding, padding]
            field = nn.functional.pad(field, pads)
        return field.flatten(1, 1 + self.axes)


def in_windows(field: Tensor, sites: Tensor | None) -> Tensor:
    """What belongs to the children of each window, (N, G, ...) to (B, I, ...)."""
    if sites is None:
        return field
    return (
        field.index_select(1, sites.flatten()).unflatten(1, sites.shape).flatten(0, 1)
    )


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _outer(
    table: Tensor, along: Tensor, join: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Tables (A, B) and (C, D) joined to (A * C, B * D)."""
    joined = join(table[:, None, :, None], along[None, :, None, :])
    return joined.flatten(2).flatten(0, 1)
