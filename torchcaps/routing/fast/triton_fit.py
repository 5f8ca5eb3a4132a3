"""The test whether Triton can make all steps of a routing at once, and its kernels."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from torch import Tensor

from torchcaps.numerics import transformed
from torchcaps.ops import VoteSource

_WHOLE = 2**11
"""Numbers of the parents of one row, powers of two, for which one tile holds them all in
every kernel: only then are all steps made at once.
"""


def layers() -> Any:
    """Return the module of the kernels, which imports Triton."""
    return import_module("torchcaps.ops.fused.triton_layers")


def all_at_once(votes: VoteSource) -> bool:
    """Whether all steps of a routing can be made at once."""
    if votes.empty or transformed():
        return False
    numbers = 1
    for size in (votes.children.shape[2], *votes.transforms.shape[1::2]):
        numbers *= 1 << (size - 1).bit_length()
    return numbers <= _WHOLE


def like(places: Sequence[int]) -> Callable[..., list[Tensor]]:
    """Return the shapes of the gradients of the arguments at these places."""

    def shapes(*arguments: Any) -> list[Tensor]:
        present = [arguments[place] for place in places if arguments[place] is not None]
        return [tensor.new_empty(tensor.shape) for tensor in present]

    return shapes
