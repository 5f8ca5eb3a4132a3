"""How the work is cut into tiles, and the layout inside one."""

from collections.abc import Iterator
from itertools import product

from torch import Tensor

CPU_TILE = 2**19
DEVICE_TILE = 2**24
"""Numbers in one tile: on a CPU it should stay in the caches, elsewhere it has to
outweigh the cost of a launch.
"""


def tile_shape(batch: int, children: int, numbers: int, most: int) -> tuple[int, int]:
    """How many (batch rows, children) to take at once, at ``numbers`` numbers a pair,
    for a tile of at most ``most`` numbers.

    The whole batch where that leaves 16 children or more.
    """
    pairs = max(1, most // max(1, numbers))
    rows = max(1, min(batch, pairs // min(16, max(1, children))))
    return rows, max(1, min(children, pairs // rows))


def slices(length: int, step: int) -> Iterator[slice]:
    """Cuts ``range(length)`` into slices of ``step``."""
    return (slice(start, min(length, start + step)) for start in range(0, length, step))


def tile_grid(children: Tensor, transforms: Tensor) -> Iterator[tuple[slice, slice]]:
    """All tiles of votes, as slices of (batch rows, children), the children on the
    inner loop.
    """
    B, I, M, _ = children.shape
    _, J, _, D = transforms.shape
    most = CPU_TILE if children.device.type == "cpu" else DEVICE_TILE
    rows, columns = tile_shape(B, I, J * M * D, most)
    return product(slices(B, rows), slices(I, columns))


def columns_of(parents: Tensor, rows: int) -> Tensor:
    """(B, J, M * D) -> (J, D, M * B), the batch last."""
    B, J, _ = parents.shape
    return parents.reshape(B, J, rows, -1).permute(1, 3, 2, 0).reshape(J, -1, rows * B)


def uncolumns(parents: Tensor, rows: int) -> Tensor:
    """(J, D, M * B) -> (B, J, M * D)."""
    J, D, _ = parents.shape
    return parents.view(J, D, rows, -1).permute(3, 0, 2, 1).flatten(2)
