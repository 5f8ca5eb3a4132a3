"""Routing on tiles of votes, for inner products and Gaussians: formed, used and
dropped, and formed again in backward.

A tile holds ``i`` children of ``B`` rows of the batch. Inside, the batch is the last
axis, where it is long and contiguous, next to the pose rows: votes (i, J, D, M, B),
logits (i, J, B).
"""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.numerics import positive
from torchcaps.ops.chunked.tiles import columns_of, tile_grid, uncolumns
from torchcaps.ops.derivatives import Tensors, about_mean, gradients
from torchcaps.ops.fused.call import (
    Call,
    listed,
    sizes_of,
    stored_moments,
    stored_scores,
)
from torchcaps.ops.similarity import Gaussian, InnerProduct


class Options(NamedTuple):
    """What the functions below need besides tensors."""

    leaky: bool
    hard: bool


def _part(call: Call, rows: slice, columns: slice) -> Call:
    """The views that belong to one tile."""
    children, transforms, coordinates, weights, log_partition, _, similarity = call
    return Call(
        children[rows, columns],
        transforms if transforms.shape[0] == 1 else transforms[columns],
        None if coordinates is None else coordinates[columns],
        None if weights is None else weights[rows, columns],
        None if log_partition is None else log_partition[rows, columns],
        similarity=tuple(field[rows] for field in similarity),
    )


def _split(call: Call, parents: Tensor) -> Tensor:
    """A field of the parents (B, J, M * D) in the layout of the votes, (J, D, M, B)."""
    M = call.children.shape[2]
    return columns_of(parents, M).unflatten(-1, (M, -1)).contiguous()


class TileVotes:
    """The votes of one tile, and what E- and M-step make of them."""

    def __init__(self, call: Call, options: Options) -> None:
        B, i, M, P = call.children.shape
        _, J, _, D = call.transforms.shape
        self.call = call
        self.options = options
        self.children = call.children.permute(1, 3, 2, 0).reshape(i, P, M * B)
        self.transforms = call.transforms.transpose(2, 3).reshape(-1, J * D, P)
        votes = torch.matmul(self.transforms, self.children).view(i, J, D, M, B)
        if call.coordinates is not None:
            votes += call.coordinates.view(i, M, D).mT[:, None, :, :, None]
        self.votes = votes
        self.similarity: InnerProduct | Gaussian | None = None
        match call.similarity:
            case (alpha,):
                self.similarity = InnerProduct(_split(call, alpha))
            case mean, precision, log_weight:
                self.similarity = Gaussian(
                    _split(call, mean), _split(call, precision), log_weight.T
                )

    def logits(self) -> Tensor:
        """``l_ij``, (i, J, B)."""
        match self.similarity:
            case None:
                return self.votes.new_zeros(*self.votes.shape[:2], self.votes.shape[-1])
            case InnerProduct(alpha):
                return (self.votes * alpha).sum((2, 3))
            case Gaussian(mean, precision, log_weight):
                distance = (self.votes - mean).square_().mul_(precision).sum((2, 3))
                return log_weight - distance / 2

    def log_partition(self, logits: Tensor) -> Tensor:
        """The log-partition over the parents (and the leak), (i, B)."""
        partition = logits.logsumexp(1)
        if self.options.leaky:
            return torch.logaddexp(partition, partition.new_zeros(()))
        return partition

    def assignment(self) -> Tensor:
        """``R_ij``, (i, J, B)."""
        logits = self.logits()
        if self.options.hard:
            return torch.zeros_like(logits).scatter(
                1, logits.argmax(1, keepdim=True), 1.0
            )
        if self.call.log_partition is not None:
            return (logits - self.call.log_partition.T[:, None]).exp()
        if self.options.leaky:
            return (logits - self.log_partition(logits)[:, None]).exp()
        return logits.softmax(1)

    def weighted(self, assignment: Tensor) -> Tensor:
        """``a_i R_ij``, (i, J, B)."""
        weights = self.call.weights
        return assignment if weights is None else assignment * weights.T[:, None]

    def logits_backward(
        self, grad_logits: Tensor, grad_votes: Tensor, grads: Call
    ) -> None:
        """Adds what the logits pass on to the gradients of the similarity, and to that
        of the votes.
        """
        grad = grad_logits[:, :, None, None]  # [i, J, 1, 1, B]
        match self.similarity:
            case InnerProduct(alpha):
                (grad_alpha,) = grads.similarity
                grad_alpha.add_(
                    uncolumns((grad * self.votes).sum(0).flatten(2), alpha.shape[2])
                )
                grad_votes.addcmul_(grad, alpha)
            case Gaussian(mean, precision, _):
                grad_mean, grad_precision, grad_log_weight = grads.similarity
                M = mean.shape[2]
                deviation = self.votes - mean
                slope = grad * deviation
                grad_precision.sub_(
                    uncolumns((slope * deviation).sum(0).flatten(2), M) / 2
                )
                slope *= precision
                grad_mean.add_(uncolumns(slope.sum(0).flatten(2), M))
                grad_log_weight.add_(grad_logits.sum(0).T)
                grad_votes -= slope

    def votes_backward(self, grad_votes: Tensor, grads: Call) -> None:
        """Adds what the votes pass on to the gradients of children, transforms and
        coordinates.
        """
        B, i, M, P = self.call.children.shape
        _, J, _, D = self.call.transforms.shape
        flat = grad_votes.reshape(i, J * D, M * B)
        grads.children.add_(
            torch.matmul(self.transforms.mT, flat).view(i, P, M, B).permute(3, 0, 2, 1)
        )
        grad_transforms = torch.bmm(flat, self.children.mT).view(i, J, D, P).mT
        grads.transforms.add_(
            grad_transforms.sum(0) if self.transforms.shape[0] == 1 else grad_transforms
        )
        if grads.coordinates is not None:
            grads.coordinates.add_(grad_votes.sum((1, 4)).mT.reshape(i, M * D))


class ChunkedMoments(torch.autograd.Function):
    """Mass, sum and, if wanted, scatter.

    Tiles are merged about their own means (Chan, Golub & LeVeque 1983), so the scatter
    never cancels. Because the weighted deviations from the mean add up to zero, the
    scatter does not depend on the mean to first order: backward differentiates ``sum_i
    r_ij (gN_j + <gS_j, V_ij> + <gQ_j, (V_ij - mean_j)^2>)`` with the final mean held
    fixed, to more digits than it is stored with.
    """

    @staticmethod
    def forward(
        ctx: Any, options: Options, scatter: bool, *tensors: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mass (B, J), sum and scatter (B, J, M * D)."""
        call = Call.of(tensors, None)
        B, _, J, M, _, D = sizes_of(call)
        mass = call.children.new_empty(B, J)
        total = call.children.new_empty(B, J, M * D)
        if scatter:
            second = torch.empty_like(total)
            remainder = torch.empty_like(total)
        else:
            second, remainder = (None, None)
        for rows, tiles in _by_rows(call, options):
            mass_of_rows, *sums = _scattered(tiles) if scatter else _summed(tiles)
            mass[rows] = mass_of_rows.T
            for field, part in zip((total, second, remainder), sums, strict=False):
                if field is not None:
                    field[rows] = uncolumns(part.flatten(2), M)
        ctx.options = options
        ctx.save_for_backward(*tensors, total / positive(mass)[..., None], remainder)
        return mass, total, second

    @staticmethod
    def backward(
        ctx: Any, grad_mass: Tensor, grad_sum: Tensor, grad_scatter: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors."""
        (*tensors, mean, remainder), options = ctx.saved_tensors, ctx.options

        def work(tensors: Tensors, upstream: Any) -> Tensors:
            grad_mass, grad_sum, grad_scatter = upstream
            if grad_scatter is not None:
                grad_mass, grad_sum = about_mean(mean, remainder, *upstream)
            return _moments_backward(
                tensors, (mean, grad_mass, grad_sum, grad_scatter), options
            )

        def function(*tensors: Tensor | None) -> Tensors:
            call = Call.of(tensors, None)
            scatter = grad_scatter is not None
            return stored_moments(call, options.leaky, options.hard, scatter)

        return (
            None,
            None,
            *gradients(work, function, tensors, (grad_mass, grad_sum, grad_scatter)),
        )


class ChunkedScores(torch.autograd.Function):
    """The logits (B, I, J), or their log-partition over the parents (B, I)."""

    @staticmethod
    def forward(
        ctx: Any, options: Options, reduced: bool, *tensors: Tensor | None
    ) -> Tensor:
        """The scores."""
        ctx.options = options
        ctx.reduced = reduced
        ctx.save_for_backward(*tensors)
        call = Call.of(tensors, None)
        scores = call.children.new_empty(sizes_of(call)[: 2 if reduced else 3])
        for rows, columns in tile_grid(call.children, call.transforms):
            tile = TileVotes(_part(call, rows, columns), options)
            logits = tile.logits()
            if reduced:
                scores[rows, columns] = tile.log_partition(logits).T
            else:
                scores[rows, columns] = logits.permute(2, 0, 1)
        return scores

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors."""
        options = ctx.options
        reduced = ctx.reduced

        def work(tensors: Tensors, upstream: Tensors) -> Tensors:
            (grad,) = upstream
            return _scores_backward(tensors, grad, options, reduced)

        def function(*tensors: Tensor | None) -> Tensors:
            return stored_scores(Call.of(tensors, None), options.leaky, reduced)

        return None, None, *gradients(work, function, ctx.saved_tensors, (grad,))


def _moments_backward(tensors: Tensors, upstream: Any, options: Options) -> Tensors:
    """The gradients of the tensors, from the mean and the gradients of mass, sum and
    scatter.
    """
    mean, grad_mass, grad_sum, grad_scatter = upstream
    call = Call.of(tensors, None)
    grads = call.gradients()
    for rows, columns in tile_grid(call.children, call.transforms):
        part = _part(call, rows, columns)
        out = _part(grads, rows, columns)
        tile = TileVotes(part, options)
        grad_votes = _split(part, grad_sum[rows]).expand_as(tile.votes)
        grad_share = (tile.votes * grad_votes).sum((2, 3)) + grad_mass[rows].T
        if grad_scatter is not None:
            slope = _split(part, grad_scatter[rows])
            deviation = tile.votes - _split(part, mean[rows])
            grad_share += (deviation.square() * slope).sum((2, 3))
            grad_votes = torch.addcmul(grad_votes, deviation, slope, value=2)
        assignment = tile.assignment()
        grad_votes = grad_votes * tile.weighted(assignment)[:, :, None, None]
        if out.weights is not None:
            out.weights.add_((assignment * grad_share).sum(1).T)
        grad_logits = assignment * tile.weighted(grad_share)  # [i, J, B]
        if out.log_partition is not None:
            out.log_partition.sub_(grad_logits.sum(1).T)
        else:
            grad_logits -= assignment * grad_logits.sum(1, keepdim=True)
        if not options.hard:
            tile.logits_backward(grad_logits, grad_votes, out)
        tile.votes_backward(grad_votes, out)
    return listed(grads)


def _scores_backward(
    tensors: Tensors, grad: Any, options: Options, reduced: bool
) -> Tensors:
    """The gradients of the tensors, from that of the logits, or of their
    log-partition.
    """
    call = Call.of(tensors, None)
    grads = call.gradients()
    for rows, columns in tile_grid(call.children, call.transforms):
        out = _part(grads, rows, columns)
        tile = TileVotes(_part(call, rows, columns), options)
        if reduced:
            logits = tile.logits()
            assignment = (logits - tile.log_partition(logits)[:, None]).exp()
            grad_logits = assignment * grad[rows, columns].T[:, None]
        else:
            grad_logits = grad[rows, columns].permute(1, 2, 0)
        grad_votes = torch.zeros_like(tile.votes)
        tile.logits_backward(grad_logits, grad_votes, out)
        tile.votes_backward(grad_votes, out)
    return listed(grads)


def _by_rows(
    call: Call, options: Options
) -> Iterator[tuple[slice, Iterator[TileVotes]]]:
    """For each slice of the batch, its tiles."""
    grid = tile_grid(call.children, call.transforms)
    for rows, of_rows in groupby(grid, itemgetter(0)):
        parts = (_part(call, rows, columns) for _, columns in of_rows)
        yield rows, (TileVotes(part, options) for part in parts)


def _summed(tiles: Iterator[TileVotes]) -> tuple[Tensor, Tensor]:
    """Mass (J, B) and sum (J, D, M, B) over the tiles."""
    mass: Tensor | float = 0.0
    total: Tensor | float = 0.0
    for tile in tiles:
        share = tile.weighted(tile.assignment())
        mass = mass + share.sum(0)
        total = total + tile.votes.mul_(share[:, :, None, None]).sum(0)
    assert isinstance(mass, Tensor)
    assert isinstance(total, Tensor)
    return mass, total


def _scattered(tiles: Iterator[TileVotes]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass (J, B), sum and scatter (J, D, M, B) over the tiles, and what the mean is
    more than sum / mass, rounded.

    All is about the first tile's mean: float32 has the digits for a small deviation,
    not for a large mean.
    """
    shift = mass = mean = scatter = torch.empty(0)
    for number, tile in enumerate(tiles):
        share = tile.weighted(tile.assignment())[:, :, None, None]  # [i, J, 1, 1, B]
        part_mass = share.sum(0)
        divisor = positive(part_mass)
        if number == 0:
            shift = (tile.votes * share).sum(0) / divisor
            mass = torch.zeros_like(part_mass)
            mean = torch.zeros_like(shift)
            scatter = torch.zeros_like(shift)
        votes = tile.votes.sub_(shift)
        part_mean = (votes * share).sum(0) / divisor
        part_scatter = votes.sub_(part_mean).square_().mul_(share).sum(0)
        together = mass + part_mass
        step = (part_mean - mean) * (part_mass / positive(together))
        scatter = scatter + part_scatter + mass * step * (part_mean - mean)
        mean = mean + step
        mass = together
    total = mass * (shift + mean)
    return (
        mass.squeeze(2).squeeze(1),
        total,
        scatter,
        mean - (total / positive(mass) - shift),
    )
