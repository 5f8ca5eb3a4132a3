"""Moments under an inner product with transforms of each child's own, without forming votes, tile by tile."""

from typing import Any

import torch
from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Rule
from torchcaps.ops.chunked.tiles import columns_of, slices, tile_shape, uncolumns
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.similarity import InnerProduct


class InnerProductMoments(torch.autograd.Function):
    """Mass and sum under an inner-product similarity: sums change places with the transforms.

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
        orphan: bool,
        budget: int,
    ) -> tuple[Tensor, Tensor]:
        """Mass (B, J) and sum (B, J, M * D)."""
        ctx.save_for_backward(children, transforms, alpha, weights)
        ctx.orphan, ctx.budget = orphan, budget
        B, I, M, P = children.shape
        _, J, _, D = transforms.shape
        mass, total = children.new_empty(B, J), children.new_empty(B, J, M * D)
        row_step, column_step = tile_shape(B, I, J * M * P, budget)
        for rows in slices(B, row_step):
            parents = columns_of(alpha[rows], M)  # [J, D, MB]
            part_mass = parents.new_zeros(J, rows.stop - rows.start)
            part_sum = torch.zeros_like(parents)
            for columns in slices(I, column_step):
                tile = _InnerProductTile(children, transforms, weights, rows, columns)
                share = tile.share(tile.logits(tile.project(parents)), orphan)
                part_mass += share.sum(1)
                part_sum.baddbmm_(tile.transforms.mT, tile.spread(share))
            mass[rows] = part_mass.T
            total[rows] = uncolumns(part_sum, M)
        return mass, total

    @staticmethod
    def backward(ctx: Any, grad_mass: Tensor, grad_sum: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the tensors."""
        orphan, budget = ctx.orphan, ctx.budget

        def work(tensors: Tensors, upstream: Tensors) -> Tensors:
            return _backward(tensors, upstream, orphan, budget)

        def function(children: Tensor, transforms: Tensor, alpha: Tensor, weights: Tensor | None) -> Tensors:
            stored = naive.NaiveVotes(children, transforms)
            return stored.moments(InnerProduct(alpha), weights, Rule(orphan), scatter=False)[:2]

        return *gradients(work, function, ctx.saved_tensors, (grad_mass, grad_sum)), None, None


def _backward(tensors: Any, upstream: Any, orphan: bool, budget: int) -> Tensors:
    """The gradients of children, transforms, alpha and weights, tile by tile."""
    grad_mass, grad_sum = upstream
    children, transforms, alpha, weights = tensors
    B, I, M, P = children.shape
    _, J, _, D = transforms.shape
    grad_children, grad_transforms = torch.empty_like(children), torch.zeros_like(transforms)
    grad_alpha = torch.empty_like(alpha)
    grad_weights = None if weights is None else torch.empty_like(weights)
    row_step, column_step = tile_shape(B, I, 2 * J * M * P, budget)
    for rows in slices(B, row_step):
        n = rows.stop - rows.start
        both = torch.cat([columns_of(alpha[rows], M), columns_of(grad_sum[rows], M)], dim=-1)  # [J, D, 2MB]
        grad_child = grad_mass[rows].T[:, None]  # [J, 1, B]
        part_alpha = both.new_zeros(J, D, M * n)
        for columns in slices(I, column_step):
            tile = _InnerProductTile(children, transforms, weights, rows, columns)
            projected, grad_projected = tile.project(both).view(J, -1, 2, M * n).unbind(2)
            logits = tile.logits(projected)
            assignment = tile.assignment(logits, orphan)
            grad_share = tile.logits(grad_projected) + grad_child  # [J, i, B]
            grad_assignment = grad_share if tile.weights is None else grad_share * tile.weights
            flow = assignment * grad_assignment
            inflow = flow.sum(0)  # [i, B]
            if grad_weights is not None:
                grad_weights[rows, columns] = (assignment * grad_share).sum(0).T
            flow = flow.addcmul_(assignment, inflow, value=-1)  # now the gradient of the logits
            share = assignment if tile.weights is None else assignment * tile.weights
            grad_tile = tile.gather(projected, flow) + tile.gather(grad_projected, share)
            grad_children[rows, columns] = grad_tile.permute(3, 0, 2, 1)  # [i, P, M, B] -> [B, i, M, P]
            spread = tile.spread(torch.stack([flow, share], dim=2))  # [J, iP, 2MB]
            grad_transforms[columns] += (spread @ both.mT).view(J, -1, P, D).transpose(0, 1)
            part_alpha.baddbmm_(tile.transforms.mT, spread[..., : M * n])
        grad_alpha[rows] = uncolumns(part_alpha, M)
    return grad_children, grad_transforms, grad_alpha, grad_weights


class _InnerProductTile:
    """One tile of children (``rows`` of the batch, ``columns`` of the children) in the batch-last layout."""

    def __init__(
        self,
        children: Tensor,
        transforms: Tensor,
        weights: Tensor | None,
        rows: slice,
        columns: slice,
    ) -> None:
        self.children = children[rows, columns].permute(1, 3, 2, 0).contiguous()  # [i, P, M, B]
        self.transforms = transforms[columns].transpose(0, 1).flatten(1, 2)  # [J, iP, D]
        self.weights = None if weights is None else weights[rows, columns].T  # [i, B]

    def project(self, parents: Tensor) -> Tensor:
        """``W_ij alpha_j``, (J, iP, *)."""
        return self.transforms @ parents

    def logits(self, projected: Tensor) -> Tensor:
        """``<u_i, W_ij alpha_j>``, (J, i, B)."""
        i, P, M, B = self.children.shape
        return (projected.reshape(-1, i, P, M, B) * self.children).sum((2, 3))

    def assignment(self, logits: Tensor, orphan: bool) -> Tensor:
        """``R_ij``, (J, i, B): the softmax is over the leading axis."""
        if not orphan:
            return logits.softmax(0)
        return (logits - torch.logaddexp(logits.logsumexp(0), logits.new_zeros(()))).exp()

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
