"""Any similarity under any rule, tile by tile: autograd inside a tile, nothing kept between forward and backward."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcaps.numerics import positive
from torchcaps.ops import naive
from torchcaps.ops.backend import Moments, Rule
from torchcaps.ops.chunked.tiles import slices, tile_shape
from torchcaps.ops.fields import Fields, axes, cut
from torchcaps.ops.similarity import Similarity


@dataclass(frozen=True, eq=False)
class Tile(Fields):
    """Everything that one call takes, or the part of it for some rows and children."""

    similarity: Similarity | None
    rule: Rule
    children: Tensor = axes("BIMP")
    transforms: Tensor = axes("IJPD")
    coordinates: Tensor | None = axes("IH")
    weights: Tensor | None = axes("BI", default=None)
    mean: Tensor | None = axes("BJH", default=None)  # of the votes, for the scatter

    def logits(self, votes: Tensor | None = None) -> Tensor:
        """``l_ij``, (B, I, J)."""
        if self.similarity is None:
            return naive.uniform_logits(self.children, self.transforms)
        return self.similarity.logits(self.votes() if votes is None else votes)

    def votes(self) -> Tensor:
        """The votes, (B, I, J, H)."""
        return naive.dense_votes(self.children, self.transforms, self.coordinates)

    def shares(self, votes: Tensor) -> Tensor:
        """``r_ij``, (B, I, J)."""
        shares = naive.pair_shares(naive.logits_assignment(self.logits(votes), self.rule), self.rule)
        return shares if self.weights is None else shares * self.weights[..., None]


def _summed(tile: Tile) -> tuple[Tensor, ...]:
    votes = tile.votes()
    shares = tile.shares(votes)
    return shares.sum(1), torch.einsum("bij,bijh->bjh", shares, votes)


def _scattered(tile: Tile) -> tuple[Tensor, ...]:
    assert tile.mean is not None
    votes = tile.votes()
    return (torch.einsum("bij,bijh->bjh", tile.shares(votes), (votes - tile.mean[:, None]).square()),)


def _squared(tile: Tile) -> tuple[Tensor, ...]:
    votes = tile.votes().transpose(1, 2)  # [B, J, I, H]
    weighted = votes if tile.weights is None else votes * tile.weights[:, None, :, None]
    return (weighted.mT @ votes,)


def _scored(tile: Tile) -> tuple[Tensor, ...]:
    return (tile.logits(),)


def _normalised(tile: Tile) -> tuple[Tensor, ...]:
    return (naive.logits_partition(tile.logits(), tile.rule.orphan),)


def moments(tile: Tile, scatter: bool, budget: int) -> Moments:
    """One E-step and the sums of the M-step that follows.

    The weighted deviations from the mean add up to zero, so the scatter does not depend on the mean to first order: it
    is a second walk over the tiles, with the mean of the first held fixed.
    """
    mass, total = _by_tile(_summed, tile, ("BJ", "BJH"), budget)
    if not scatter:
        return Moments(mass, total, None)
    mean = (total / positive(mass)[..., None]).detach()
    (second,) = _by_tile(_scattered, Tile(**{**vars(tile), "mean": mean}), ("BJH",), budget)
    return Moments(mass, total, second)


def gram(tile: Tile, budget: int) -> Tensor:
    """``sum_i a_i V_ij V_ij^T``, (B, J, H, H)."""
    return _by_tile(_squared, tile, ("BJHH",), budget)[0]


def logits(tile: Tile, budget: int) -> Tensor:
    """``l_ij``, (B, I, J)."""
    return _by_tile(_scored, tile, ("BIJ",), budget)[0]


def log_partition(tile: Tile, budget: int) -> Tensor:
    """The normaliser over the parents (and the orphan), (B, I)."""
    return _by_tile(_normalised, tile, ("BI",), budget)[0]


def _by_tile(
    work: Callable[[Tile], tuple[Tensor, ...]], whole: Tile, layouts: tuple[str, ...], budget: int
) -> tuple[Tensor, ...]:
    """What the work gives for each tile, at its place in tensors with these axes, added up where tiles share one."""
    return _ByTile.apply(work, whole, layouts, budget, *whole.tensors)


class _ByTile(torch.autograd.Function):
    """Forward walks over the tiles; backward walks again, and differentiates each tile on its own."""

    @staticmethod
    def forward(
        ctx: Any,
        work: Callable[[Tile], tuple[Tensor, ...]],
        whole: Tile,
        layouts: tuple[str, ...],
        budget: int,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        """The outputs."""
        ctx.work, ctx.whole, ctx.layouts, ctx.budget = work, whole, layouts, budget
        ctx.save_for_backward(*tensors)
        B, I, M, _ = whole.children.shape
        _, J, _, D = whole.transforms.shape
        sizes = {"B": B, "I": I, "J": J, "H": M * D}
        outputs = tuple(whole.children.new_zeros([sizes[letter] for letter in layout]) for layout in layouts)
        for rows, columns in _grid(whole, budget):
            for output, layout, part in zip(outputs, layouts, work(_part(whole, rows, columns)), strict=True):
                cut(output, layout, rows, columns).add_(part)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors."""
        whole = _with_tensors(ctx.whole, ctx.saved_tensors)
        wanted = ctx.needs_input_grad[4:]
        grads = [
            torch.zeros_like(tensor) if needs else None for tensor, needs in zip(whole.tensors, wanted, strict=True)
        ]
        for rows, columns in _grid(whole, ctx.budget):
            part = _part(whole, rows, columns)
            with torch.enable_grad():
                leaves = [
                    tensor.detach().requires_grad_(needs) for tensor, needs in zip(part.tensors, wanted, strict=True)
                ]
                outputs = ctx.work(_with_tensors(part, leaves))
            flowing = [
                (output, cut(gradient, layout, rows, columns))
                for output, layout, gradient in zip(outputs, ctx.layouts, upstream, strict=True)
                if output.requires_grad
            ]
            _add_gradients(flowing, leaves, _placed(whole, grads, rows, columns))
        return None, None, None, None, *grads


def _add_gradients(
    flowing: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> None:
    """Differentiates the outputs of one tile, each with its upstream gradient, and adds the result to ``grads``."""
    places = [(leaf, grad) for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]
    if not flowing or not places:
        return
    outputs, upstream = zip(*flowing, strict=True)
    found = torch.autograd.grad(outputs, [leaf for leaf, _ in places], upstream, allow_unused=True)
    for (_, grad), piece in zip(places, found, strict=True):
        if piece is not None:
            grad.add_(piece)


def _grid(whole: Tile, budget: int) -> Iterator[tuple[slice, slice]]:
    """All tiles of (batch, children), children on the inner loop."""
    B, I, M, _ = whole.children.shape
    _, J, _, D = whole.transforms.shape
    rows, columns = tile_shape(B, I, J * M * D, budget)
    return product(slices(B, rows), slices(I, columns))


def _view(tensor: Tensor, layout: str, rows: slice, columns: slice) -> Tensor:
    """The view of a tensor that belongs to a tile; transforms that all children share stay whole."""
    if layout == "IJPD" and tensor.shape[0] == 1:
        return tensor
    return cut(tensor, layout, rows, columns)


def _part(whole: Tile, rows: slice, columns: slice) -> Tile:
    return whole.map(lambda tensor, layout: _view(tensor, layout, rows, columns))


def _placed(whole: Tile, grads: Sequence[Tensor | None], rows: slice, columns: slice) -> list[Tensor | None]:
    """The views of the gradients that belong to a tile."""
    return [
        None if grad is None else _view(grad, layout, rows, columns)
        for grad, (_, _, layout) in zip(grads, whole.items(), strict=True)
    ]


def _with_tensors(tile: Tile, tensors: Sequence[Tensor]) -> Tile:
    """The same with these tensors, in the order of ``tile.tensors``."""
    following = iter(tensors)
    return tile.map(lambda *_: next(following))
