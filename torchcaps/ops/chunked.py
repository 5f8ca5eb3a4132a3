"""Bounded memory in plain PyTorch: votes are formed a tile at a time, used and dropped, forward and backward.

Three cases, from the cheapest:

* Before the first step all logits are 0, so the first moment is a matrix product of children and transforms.
* Inner products never need the vote itself: ``<alpha_j, u_i W_ij> = <u_i, W_ij alpha_j>`` and
  ``sum_i r_ij u_i W_ij = sum_i (r_ij u_i) W_ij``. With shared transforms this is attention over the children.
* Everything else works on tiles of votes; backward forms each tile again.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchcaps.ops import naive
from torchcaps.ops.contract import (
    InnerProduct,
    Moments,
    Rule,
    Similarity,
    VoteSource,
    positive,
)

# Numbers in one tile: on a CPU it should stay in the caches, elsewhere it has to outweigh the cost of a launch.
CPU_TILE = 2**19
DEVICE_TILE = 2**24


def tile_numbers(device: torch.device) -> int:
    """How many numbers one tile may hold on that device."""
    return CPU_TILE if device.type == "cpu" else DEVICE_TILE


def tile_shape(batch: int, children: int, numbers: int, budget: int) -> tuple[int, int]:
    """How many (batch rows, children) to take at once, at ``numbers`` numbers a pair, to stay within ``budget``.

    The whole batch where that leaves 16 children or more.
    """
    pairs = max(1, budget // max(1, numbers))
    rows = max(1, min(batch, pairs // min(16, max(1, children))))
    return rows, max(1, min(children, pairs // rows))


def slices(length: int, step: int) -> Iterator[slice]:
    """Cuts ``range(length)`` into slices of ``step``."""
    return (slice(start, min(length, start + step)) for start in range(0, length, step))


class ChunkedVotes(VoteSource):
    """Votes that are never stored: at most one tile of them exists at any time."""

    def __init__(
        self,
        children: Tensor,
        transforms: Tensor,
        coordinates: Tensor | None = None,
        budget: int | None = None,
    ) -> None:
        super().__init__(children, transforms, coordinates)
        self.budget = budget or tile_numbers(children.device)

    def moments(self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool) -> Moments:
        """One E-step and the sums of the M-step that follows."""
        contracted = not (scatter or rule.hard or self.coordinates is not None)
        if contracted and similarity is None:
            return self._uniform_moments(weights, rule)
        if contracted and isinstance(similarity, InnerProduct):
            if self.transforms.shape[0] == 1:
                return self._attention_moments(similarity.alpha, weights, rule)
            mass, total = _InnerProductMoments.apply(
                self.children,
                self.transforms,
                similarity.alpha,
                weights,
                rule.log_partition,
                rule.orphan,
                self.budget,
            )
            return Moments(mass, total, None)
        return Moments(
            *_TiledMoments.apply(
                _Static(type(similarity), rule.orphan, rule.hard, scatter, self.budget),
                self.children,
                self.transforms,
                self.coordinates,
                weights,
                rule.log_partition,
                *(similarity or ()),
            )
        )

    def assignment(self, similarity: Similarity | None, rule: Rule) -> Tensor:
        """The assignment probabilities, (B, I, J)."""
        if similarity is None:
            logits = naive.uniform_logits(self.children, self.transforms)
        else:
            logits = self._scores(similarity, reduced=False)
        return naive.logits_assignment(logits, rule)

    def log_partition(self, similarity: Similarity | None, orphan: bool) -> Tensor:
        """The normaliser, (B, I)."""
        if similarity is None:
            parents = self.transforms.shape[1] + orphan
            return self.children.new_full(self.children.shape[:2], math.log(parents))
        return self._scores(similarity, reduced=True, orphan=orphan)

    def _scores(self, similarity: Similarity, reduced: bool, orphan: bool = False) -> Tensor:
        static = _Static(type(similarity), orphan, hard=False, extra=reduced, budget=self.budget)
        return _TiledScores.apply(static, self.children, self.transforms, self.coordinates, None, None, *similarity)

    def _uniform_moments(self, weights: Tensor | None, rule: Rule) -> Moments:
        """First step: R is 1/J (or what the given normaliser says), the same for all parents."""
        B, I, M, P = self.children.shape
        _, J, _, D = self.transforms.shape
        if rule.log_partition is None:
            share = self.children.new_full((B, I), 1 / (J + rule.orphan))
        else:
            share = (-rule.log_partition).exp()
        if weights is not None:
            share = share * weights
        weighted = self.children * share[..., None, None]
        if self.transforms.shape[0] == 1:
            total = torch.einsum("bmp,jpd->bjmd", weighted.sum(1), self.transforms[0])
        else:
            left = weighted.transpose(1, 2).reshape(B * M, I * P)
            right = self.transforms.transpose(1, 2).reshape(I * P, J * D)
            total = (left @ right).view(B, M, J, D).transpose(1, 2)
        return Moments(share.sum(1)[:, None].expand(B, J), total.flatten(2), None)

    def _attention_moments(self, alpha: Tensor, weights: Tensor | None, rule: Rule) -> Moments:
        """Inner products with shared transforms: queries ``W_j alpha_j``, keys and values ``u_i``, softmax over j."""
        B, _, M, P = self.children.shape
        _, J, _, D = self.transforms.shape
        queries = torch.einsum("bjmd,jpd->bjmp", alpha.view(B, J, M, D), self.transforms[0]).flatten(2)
        values = self.children.flatten(2)  # [B, I, M * P]
        share = naive.logits_assignment(values @ queries.mT, rule)
        if weights is not None:
            share = share * weights[..., None]
        pooled = (share.mT @ values).view(B, J, M, P)
        return Moments(share.sum(1), torch.einsum("bjmp,jpd->bjmd", pooled, self.transforms[0]).flatten(2), None)


class _InnerProductMoments(torch.autograd.Function):
    """Mass and sum under an inner-product similarity, contracted through the transforms.

    Inside, the batch is the last axis, where it is long and contiguous; pose rows lie next to it. A tile holds
    (J, children * P, M * B) numbers.
    """

    @staticmethod
    def forward(
        ctx: Any,
        children: Tensor,
        transforms: Tensor,
        alpha: Tensor,
        weights: Tensor | None,
        log_partition: Tensor | None,
        orphan: bool,
        budget: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(children, transforms, alpha, weights, log_partition)
        ctx.orphan, ctx.budget = orphan, budget
        B, I, M, P = children.shape
        _, J, _, D = transforms.shape
        mass, total = children.new_empty(B, J), children.new_empty(B, J, M * D)
        row_step, column_step = tile_shape(B, I, J * M * P, budget)
        for rows in slices(B, row_step):
            parents = _columns(alpha[rows], M)  # [J, D, MB]
            part_mass = parents.new_zeros(J, rows.stop - rows.start)
            part_sum = torch.zeros_like(parents)
            for columns in slices(I, column_step):
                tile = _InnerProductTile(children, transforms, weights, log_partition, rows, columns)
                share = tile.share(tile.logits(tile.project(parents)), orphan)
                part_mass += share.sum(1)
                part_sum.baddbmm_(tile.transforms.mT, tile.spread(share))
            mass[rows] = part_mass.T
            total[rows] = _uncolumns(part_sum, M)
        return mass, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mass: Tensor, grad_sum: Tensor) -> tuple[Tensor | None, ...]:
        children, transforms, alpha, weights, log_partition = ctx.saved_tensors
        B, I, M, P = children.shape
        _, J, _, D = transforms.shape
        grad_children, grad_transforms = torch.empty_like(children), torch.zeros_like(transforms)
        grad_alpha = torch.empty_like(alpha)
        grad_weights = None if weights is None else torch.empty_like(weights)
        grad_partition = None if log_partition is None else torch.empty_like(log_partition)
        row_step, column_step = tile_shape(B, I, 2 * J * M * P, ctx.budget)
        for rows in slices(B, row_step):
            n = rows.stop - rows.start
            both = torch.cat([_columns(alpha[rows], M), _columns(grad_sum[rows], M)], dim=-1)  # [J, D, 2MB]
            upstream = grad_mass[rows].T[:, None]  # [J, 1, B]
            part_alpha = both.new_zeros(J, D, M * n)
            for columns in slices(I, column_step):
                tile = _InnerProductTile(children, transforms, weights, log_partition, rows, columns)
                projected, grad_projected = tile.project(both).view(J, -1, 2, M * n).unbind(2)
                logits = tile.logits(projected)
                assignment = tile.assignment(logits, ctx.orphan)
                grad_share = tile.logits(grad_projected) + upstream  # [J, i, B]
                grad_assignment = grad_share if tile.weights is None else grad_share * tile.weights
                flow = assignment * grad_assignment
                inflow = flow.sum(0)  # [i, B]
                if grad_weights is not None:
                    grad_weights[rows, columns] = (assignment * grad_share).sum(0).T
                if grad_partition is not None:
                    grad_partition[rows, columns] = -inflow.T
                else:
                    flow = flow.addcmul_(assignment, inflow, value=-1)  # now the gradient of the logits
                share = assignment if tile.weights is None else assignment * tile.weights
                grad_tile = tile.gather(projected, flow) + tile.gather(grad_projected, share)
                grad_children[rows, columns] = grad_tile.permute(3, 0, 2, 1)  # [i, P, M, B] -> [B, i, M, P]
                spread = tile.spread(torch.stack([flow, share], dim=2))  # [J, iP, 2MB]
                grad_transforms[columns] += (spread @ both.mT).view(J, -1, P, D).transpose(0, 1)
                part_alpha.baddbmm_(tile.transforms.mT, spread[..., : M * n])
            grad_alpha[rows] = _uncolumns(part_alpha, M)
        return grad_children, grad_transforms, grad_alpha, grad_weights, grad_partition, None, None


class _InnerProductTile:
    """One tile of children (``rows`` of the batch, ``columns`` of the children) in the batch-last layout."""

    def __init__(
        self,
        children: Tensor,
        transforms: Tensor,
        weights: Tensor | None,
        log_partition: Tensor | None,
        rows: slice,
        columns: slice,
    ) -> None:
        self.children = children[rows, columns].permute(1, 3, 2, 0).contiguous()  # [i, P, M, B]
        self.transforms = transforms[columns].transpose(0, 1).flatten(1, 2)  # [J, iP, D]
        self.weights = None if weights is None else weights[rows, columns].T  # [i, B]
        self.log_partition = None if log_partition is None else log_partition[rows, columns].T

    def project(self, parents: Tensor) -> Tensor:
        """``W_ij alpha_j``, (J, iP, *)."""
        return self.transforms @ parents

    def logits(self, projected: Tensor) -> Tensor:
        """``<u_i, W_ij alpha_j>``, (J, i, B)."""
        i, P, M, B = self.children.shape
        return (projected.reshape(-1, i, P, M, B) * self.children).sum((2, 3))

    def assignment(self, logits: Tensor, orphan: bool) -> Tensor:
        """``R_ij``, (J, i, B): the softmax is over the leading axis."""
        partition = self.log_partition
        if partition is None:
            if not orphan:
                return logits.softmax(0)
            partition = torch.logaddexp(logits.logsumexp(0), logits.new_zeros(()))
        return (logits - partition).exp()

    def share(self, logits: Tensor, orphan: bool) -> Tensor:
        """``a_i R_ij``, (J, i, B)."""
        assignment = self.assignment(logits, orphan)
        return assignment if self.weights is None else assignment * self.weights

    def spread(self, factors: Tensor) -> Tensor:
        """``f_ij u_i`` for factors (J, i, B), or for K of them (J, i, K, B): (J, iP, K * M * B)."""
        i, P, M, B = self.children.shape
        factors = factors.reshape(-1, i, 1, factors[0, 0].numel() // B, 1, B)
        out = factors.new_empty(factors.shape[0], i, P, factors.shape[3], M, B)  # this layout, whatever the strides
        return torch.mul(factors, self.children[:, :, None], out=out).view(-1, i * P, factors.shape[3] * M * B)

    def gather(self, projected: Tensor, factors: Tensor) -> Tensor:
        """``sum_j f_ij W_ij alpha_j`` for factors (J, i, B): (i, P, M, B)."""
        i, P, M, B = self.children.shape
        return (projected.reshape(-1, i, P, M, B) * factors[:, :, None, None]).sum(0)


def _columns(parents: Tensor, rows: int) -> Tensor:
    """(B, J, M * D) -> (J, D, M * B)."""
    B, J, _ = parents.shape
    return parents.view(B, J, rows, -1).permute(1, 3, 2, 0).reshape(J, -1, rows * B)


def _uncolumns(parents: Tensor, rows: int) -> Tensor:
    """(J, D, M * B) -> (B, J, M * D)."""
    J, D, _ = parents.shape
    return parents.view(J, D, rows, -1).permute(3, 0, 2, 1).flatten(2)


class _Static(NamedTuple):
    """What the tiled functions need besides tensors; ``extra`` asks for the scatter, or for the reduced scores."""

    similarity: type
    orphan: bool
    hard: bool
    extra: bool
    budget: int


class _Tile(NamedTuple):
    """The inputs of one tile; fields that the call does not have are None."""

    children: Tensor
    transforms: Tensor
    coordinates: Tensor | None
    weights: Tensor | None
    log_partition: Tensor | None
    similarity: tuple[Tensor, ...]

    @classmethod
    def of(cls, fields: Sequence[Tensor | None]) -> "_Tile":
        """From the flat sequence that :meth:`fields` gives."""
        return cls._make([*fields[:5], tuple(fields[5:])])

    def fields(self) -> list[Tensor | None]:
        return [*self[:-1], *self.similarity]

    def detached(self) -> "_Tile":
        """Leaves of a graph of their own."""
        return _Tile.of([_detach(field) for field in self.fields()])

    def tensors(self) -> list[Tensor]:
        return [field for field in self.fields() if field is not None]

    def votes(self) -> Tensor:
        return naive.dense_votes(self.children, self.transforms, self.coordinates)

    def logits(self, votes: Tensor, static: _Static) -> Tensor:
        """``l_ij``, (B, i, J)."""
        if not self.similarity:
            return naive.uniform_logits(self.children, self.transforms)
        return naive.vote_logits(votes, static.similarity(*self.similarity))

    def share(self, votes: Tensor, static: _Static) -> Tensor:
        """``a_i R_ij``, (B, i, J)."""
        rule = Rule(static.orphan, static.hard, self.log_partition)
        assignment = naive.logits_assignment(self.logits(votes, static), rule)
        return assignment if self.weights is None else assignment * self.weights[..., None]


def _grid(inputs: _Tile, budget: int) -> Iterator[tuple[slice, slice]]:
    """All tiles of (batch, children), children on the inner loop."""
    B, I, M, _ = inputs.children.shape
    _, J, _, D = inputs.transforms.shape
    rows, columns = tile_shape(B, I, J * M * D, budget)
    return product(slices(B, rows), slices(I, columns))


def _gradients(
    tensors: Sequence[Tensor | None], budget: int, objective: Callable[[_Tile, slice, slice], Tensor]
) -> list[Tensor | None]:
    """The gradients of the sum of an objective over all tiles: each tile is formed again, with a graph of its own."""
    inputs = _Tile.of(tensors)
    grads = [None if tensor is None else torch.zeros_like(tensor) for tensor in tensors]
    for rows, columns in _grid(inputs, budget):
        tile = _tile(inputs, rows, columns).detached()
        with torch.enable_grad():
            value = objective(tile, rows, columns)
        parts = iter(torch.autograd.grad(value, tile.tensors(), materialize_grads=True))
        for view in _tile(_Tile.of(grads), rows, columns).fields():
            if view is not None:
                view += next(parts)
    return grads


class _TiledScores(torch.autograd.Function):
    """The logits (B, I, J), or reduced to their normaliser over the parents (B, I)."""

    @staticmethod
    def forward(ctx: Any, static: _Static, *tensors: Tensor | None) -> Tensor:
        ctx.static = static
        ctx.save_for_backward(*tensors)
        inputs = _Tile.of(tensors)
        parents = () if static.extra else (inputs.transforms.shape[1],)
        scores = inputs.children.new_empty(*inputs.children.shape[:2], *parents)
        for rows, columns in _grid(inputs, static.budget):
            scores[rows, columns] = _TiledScores.of(_tile(inputs, rows, columns), static)
        return scores

    @staticmethod
    def of(tile: _Tile, static: _Static) -> Tensor:
        logits = tile.logits(tile.votes(), static)
        return naive.logits_partition(logits, static.orphan) if static.extra else logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        def objective(tile: _Tile, rows: slice, columns: slice) -> Tensor:
            return (_TiledScores.of(tile, ctx.static) * grad[rows, columns]).sum()

        return None, *_gradients(ctx.saved_tensors, ctx.static.budget, objective)


def _detach(field: Tensor | None) -> Tensor | None:
    return None if field is None else field.detach().requires_grad_()


def _tile(inputs: _Tile, rows: slice, columns: slice) -> _Tile:
    children, transforms, coordinates, weights, log_partition, similarity = inputs
    return _Tile(
        children[rows, columns],
        transforms if transforms.shape[0] == 1 else transforms[columns],
        None if coordinates is None else coordinates[columns],
        None if weights is None else weights[rows, columns],
        None if log_partition is None else log_partition[rows, columns],
        tuple(field[rows] for field in similarity),
    )


class _TiledMoments(torch.autograd.Function):
    """Moments under any similarity, on tiles of votes.

    Tiles are merged about their own means (Chan, Golub & LeVeque 1983), so the scatter never cancels. Because the
    weighted deviations from the mean sum to zero, the scatter does not depend on the mean to first order: backward
    differentiates ``sum_i r_ij (gN_j + <gS_j, V_ij> + <gQ_j, (V_ij - mean_j)^2>)`` on each tile with the final mean
    held fixed.
    """

    @staticmethod
    def forward(ctx: Any, static: _Static, *tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs = _Tile.of(tensors)
        B, _, M, _ = inputs.children.shape
        _, J, _, D = inputs.transforms.shape
        mass = inputs.children.new_zeros(B, J)
        total = inputs.children.new_zeros(B, J, M * D)
        scatter = torch.zeros_like(total) if static.extra else None
        # Tiles are merged about the first one's means: float32 has the digits for a small deviation, not for a mean.
        shift = torch.zeros_like(total)
        for rows, columns in _grid(inputs, static.budget):
            tile = _tile(inputs, rows, columns)
            votes = tile.votes()
            share = tile.share(votes, static)
            if scatter is None:
                part = naive.weighted_moments(votes, share, None, False)
            else:
                if columns.start == 0:
                    shift[rows] = naive.weighted_moments(votes, share, None, False).mean
                part = naive.weighted_moments(votes - shift[rows][:, None], share, None, True)
                old = Moments(mass[rows], total[rows], None)
                both = old.mass * part.mass / positive(old.mass + part.mass)
                assert part.scatter is not None
                scatter[rows] += part.scatter + both[..., None] * (old.mean - part.mean).square()
            mass[rows] += part.mass
            total[rows] += part.sum
        if scatter is not None:
            total += mass[..., None] * shift
        ctx.static = static
        ctx.save_for_backward(*tensors, Moments(mass, total, None).mean)
        return mass, total, scatter

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_mass: Tensor, grad_sum: Tensor, grad_scatter: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        *tensors, mean = ctx.saved_tensors

        def objective(tile: _Tile, rows: slice, columns: slice) -> Tensor:
            votes = tile.votes()
            worth = torch.einsum("bijh,bjh->bij", votes, grad_sum[rows]) + grad_mass[rows][:, None]
            if grad_scatter is not None:
                deviation = (votes - mean[rows][:, None]).square()
                worth = worth + torch.einsum("bijh,bjh->bij", deviation, grad_scatter[rows])
            return (tile.share(votes, ctx.static) * worth).sum()

        return None, *_gradients(tensors, ctx.static.budget, objective)
