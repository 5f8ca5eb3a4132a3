"""Any similarity under any competition, tile by tile: autograd inside a tile, nothing kept
between forward and backward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.numerics import positive
from torchcaps.ops import naive
from torchcaps.ops.backend import Moments
from torchcaps.ops.chunked.tiles import tile_grid
from torchcaps.ops.competition import Competition, over_parents
from torchcaps.ops.derivatives import Tensors, differentiated, gradients
from torchcaps.ops.fields import Fields, axes, cut
from torchcaps.ops.similarity import Similarity


@dataclass(frozen=True, eq=False)
class Tile(Fields):
    """Everything that one call takes, or the part of it for some rows and children."""

    similarity: Similarity | None
    competition: Competition
    children: Tensor = axes("BIMP")
    transforms: Tensor = axes("IJPD")
    coordinates: Tensor | None = axes("IH")
    weights: Tensor | None = axes("BI", default=None)
    # Of each child, or of each parent: K is 1.
    log_partition: Tensor | None = axes("BI", "BKJ", default=None)
    # Of the votes, or near it, for the scatter.
    mean: Tensor | None = axes("BJH", default=None)

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
        shares = self.competition.shares(self.logits(votes), self.log_partition)
        return shares if self.weights is None else shares * self.weights[..., None]


Work = Callable[[Tile], tuple[Tensor, ...]]


def _summed(tile: Tile) -> tuple[Tensor, ...]:
    votes = tile.votes()
    shares = tile.shares(votes)
    return shares.sum(1), torch.einsum("bij,bijh->bjh", shares, votes)


def _scattered(tile: Tile) -> tuple[Tensor, ...]:
    assert tile.mean is not None
    votes = tile.votes()
    shares = tile.shares(votes)
    deviations = votes - tile.mean[:, None]
    remainder = torch.einsum("bij,bijh->bjh", shares, deviations)
    return torch.einsum("bij,bijh->bjh", shares, deviations.square()), remainder


def _squared(tile: Tile) -> tuple[Tensor, ...]:
    return (naive.gram(tile.votes(), tile.weights),)


def _scored(tile: Tile) -> tuple[Tensor, ...]:
    return (tile.logits(),)


def _normalised(tile: Tile) -> tuple[Tensor, ...]:
    return (over_parents(tile.logits(), tile.competition.leaky),)


def moments(tile: Tile, scatter: bool) -> Moments:
    """One E-step and the sums of the M-step that follows.

    The scatter is a second walk over the tiles, about the mean of the first, held
    fixed; what that mean was rounded by is made good as in
    :func:`naive.weighted_moments`.
    """
    mass, total = _by_tile(_summed, tile, ("BJ", "BJH"))
    if not scatter:
        return Moments(mass, total, None)
    mean = (total / positive(mass)[..., None]).detach()
    about_mean = Tile(**{**vars(tile), "mean": mean})
    second, remainder = _by_tile(_scattered, about_mean, ("BJH", "BJH"))
    return Moments(mass, total, second - remainder.square() / positive(mass)[..., None])


def gram(tile: Tile) -> Tensor:
    """``sum_i a_i V_ij V_ij^T``, (B, J, H, H)."""
    return _by_tile(_squared, tile, ("BJHH",))[0]


def logits(tile: Tile) -> Tensor:
    """``l_ij``, (B, I, J)."""
    return _by_tile(_scored, tile, ("BIJ",))[0]


def log_partition(tile: Tile) -> Tensor:
    """The log-partition over the parents (and the leak), (B, I)."""
    return _by_tile(_normalised, tile, ("BI",))[0]


class _Call(NamedTuple):
    """What the function below needs besides tensors."""

    work: Work
    whole: Tile
    layouts: tuple[str, ...]


def _by_tile(work: Work, tile: Tile, layouts: tuple[str, ...]) -> tuple[Tensor, ...]:
    """What the work gives for each tile, at its place in tensors with these axes, added
    up where tiles share one.
    """
    return _ByTile.apply(_Call(work, tile, layouts), *tile.tensors)


class _ByTile(torch.autograd.Function):
    """Forward walks over the tiles; backward walks again, and differentiates each tile
    on its own.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs."""
        ctx.call = call
        ctx.save_for_backward(*tensors)
        work, all_votes, layouts = call
        B, I, M, _ = all_votes.children.shape
        _, J, _, D = all_votes.transforms.shape
        sizes = {"B": B, "I": I, "J": J, "H": M * D}
        outputs = tuple(
            all_votes.children.new_zeros([sizes[letter] for letter in layout])
            for layout in layouts
        )
        for rows, columns in tile_grid(all_votes.children, all_votes.transforms):
            for output, layout, part in zip(
                outputs, layouts, work(_part(all_votes, rows, columns)), strict=True
            ):
                cut(output, layout, rows, columns).add_(part)
        return outputs

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors."""
        call = ctx.call
        wanted = ctx.needs_input_grad[1:]

        def work(tensors: Tensors, upstream: Tensors) -> Tensors:
            return _backward(call, tensors, upstream, wanted)

        def function(*tensors: Tensor | None) -> Tensors:
            return call.work(call.whole.with_tensors(tensors))

        return None, *gradients(work, function, ctx.saved_tensors, upstream)


def _backward(
    call: _Call, tensors: Any, upstream: Any, wanted: Sequence[bool]
) -> Tensors:
    """The gradients of the tensors that are wanted, tile by tile."""
    tile = call.whole.with_tensors(tensors)
    grads = [
        torch.zeros_like(tensor) if needs else None
        for tensor, needs in zip(tile.tensors, wanted, strict=True)
    ]
    for rows, columns in tile_grid(tile.children, tile.transforms):
        part = _part(tile, rows, columns)
        with torch.enable_grad():
            leaves = [
                tensor.detach().requires_grad_(needs)
                for tensor, needs in zip(part.tensors, wanted, strict=True)
            ]
            outputs = call.work(part.with_tensors(leaves))
        of_part = [
            cut(gradient, layout, rows, columns)
            for layout, gradient in zip(call.layouts, upstream, strict=True)
        ]
        asked = [
            leaf if needs else None for leaf, needs in zip(leaves, wanted, strict=True)
        ]
        pieces = differentiated(outputs, of_part, asked, create_graph=False)
        for grad, piece in zip(
            _placed(tile, grads, rows, columns), pieces, strict=True
        ):
            if grad is not None and piece is not None:
                grad.add_(piece)
    return grads


def _view(tensor: Tensor, layout: str, rows: slice, columns: slice) -> Tensor:
    """The view of a tensor that belongs to a tile; transforms that all children share
    stay whole.
    """
    if layout == "IJPD" and tensor.shape[0] == 1:
        return tensor
    return cut(tensor, layout, rows, columns)


def _part(tile: Tile, rows: slice, columns: slice) -> Tile:
    return tile.map(lambda tensor, layout: _view(tensor, layout, rows, columns))


def _placed(
    tile: Tile, grads: Sequence[Tensor | None], rows: slice, columns: slice
) -> list[Tensor | None]:
    """The views of the gradients that belong to a tile."""
    return [
        None if grad is None else _view(grad, layout, rows, columns)
        for grad, (_, _, layout) in zip(grads, tile.items(), strict=True)
    ]
