"""Moments that need no vote at all, because sums change places with the transforms."""

import math
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Moments
from torchcaps.ops.derivatives import Tensors, gradients


def uniform_moments(
    children: Tensor,
    transforms: Tensor,
    weights: Tensor | None,
    leaky: bool,
    log_partition: Tensor | None,
) -> Moments:
    """Mass and sum of the first step: R is 1/J, or what the log-partition says, the
    same for all parents.
    """
    B, I, _, _ = children.shape
    J = transforms.shape[1]
    if log_partition is None:
        share = children.new_full((B, I), 1 / (J + leaky))
    else:
        share = (-log_partition).exp()
    if weights is not None:
        share = share * weights
    weighted = children * share[..., None, None]
    if transforms.shape[0] == 1:
        total = torch.einsum("bmp,jpd->bjmd", weighted.sum(1), transforms[0]).flatten(2)
    else:
        total = _vote_sum(weighted, transforms)
    return Moments(share.sum(1)[:, None].expand(B, J), total, None)


def uniform_log_partition(
    children: Tensor, shape: tuple[int, int], parents: int
) -> Tensor:
    """The log-partition of the first step, (B, I): all logits are 0. A leak counts as
    one more parent.
    """
    return children.new_full(shape, math.log(parents) if parents else -math.inf)


def fixed_sum(
    children: Tensor,
    transforms: Tensor,
    coordinates: Tensor | None,
    weights: Tensor | None,
    shares: Tensor,
) -> Tensor:
    """``sum_i a_i o_ij V_ij`` with shares o (I, J), the same in all rows: one matrix
    product.
    """
    weighted = children if weights is None else children * weights[..., None, None]
    if transforms.shape[0] == 1:
        total = _transformed(
            torch.einsum("bimp,ij->bjmp", weighted, shares), transforms
        )
    else:
        total = _vote_sum(weighted, transforms * shares[..., None, None])
    if coordinates is None:
        return total
    if weights is None:
        return total + torch.einsum("ij,ih->jh", shares, coordinates)
    return total + torch.einsum("bi,ij,ih->bjh", weights, shares, coordinates)


def given_moments(
    children: Tensor, transforms: Tensor, coordinates: Tensor | None, shares: Tensor
) -> Moments:
    """Mass and sum with shares ``r_ij`` (B, I, J) that are known: children are weighted
    before they are transformed.
    """
    if transforms.shape[0] == 1:
        total = _transformed(
            torch.einsum("bij,bimp->bjmp", shares, children), transforms
        )
    else:
        total = _GivenSum.apply(children, transforms, shares)
    if coordinates is not None:
        total = total + torch.einsum("bij,ih->bjh", shares, coordinates)
    return Moments(shares.sum(1), total, None)


class _GivenSum(torch.autograd.Function):
    """``sum_i r_ij u_i W_ij``, one parent at a time, forward and backward: a matrix
    product over all children.
    """

    @staticmethod
    def forward(
        ctx: Any, children: Tensor, transforms: Tensor, shares: Tensor
    ) -> Tensor:
        """The sums, (B, J, M * D)."""
        ctx.save_for_backward(children, transforms, shares)
        B, I, M, P = children.shape
        _, J, _, D = transforms.shape
        total = children.new_empty(B, J, M, D)
        for j in range(J):
            weighted = _rows(children * shares[:, :, j, None, None])
            total[:, j] = (weighted @ transforms[:, j].reshape(I * P, D)).view(B, M, D)
        return total.flatten(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensors:
        """The gradients of the tensors."""
        return gradients(_given_backward, _given_stored, ctx.saved_tensors, (grad,))


def _given_backward(tensors: Any, upstream: Any) -> Tensors:
    """The gradients of the tensors, from that of the sums."""
    (children, transforms, shares), (grad,) = tensors, upstream
    B, I, M, P = children.shape
    _, J, _, D = transforms.shape
    grad_children = torch.zeros_like(children)
    grad_transforms = torch.empty_like(transforms)
    grad_shares = torch.empty_like(shares)
    for j in range(J):
        share = shares[:, :, j, None, None]
        flow = grad[:, j].reshape(B * M, D)
        back = (
            (flow @ transforms[:, j].reshape(I * P, D).T)
            .view(B, M, I, P)
            .transpose(1, 2)
        )
        grad_children.addcmul_(back, share)
        grad_transforms[:, j] = (_rows(children * share).T @ flow).view(I, P, D)
        grad_shares[:, :, j] = (back * children).sum((2, 3))
    return grad_children, grad_transforms, grad_shares


def _given_stored(children: Any, transforms: Any, shares: Any) -> Tensors:
    """The sums of stored votes."""
    return (
        torch.einsum("bij,bijh->bjh", shares, naive.dense_votes(children, transforms)),
    )


def _transformed(pooled: Tensor, transforms: Tensor) -> Tensor:
    """What each parent pooled of the children, (B, J, M, P), under shared transforms:
    (B, J, M * D).
    """
    return torch.einsum("bjmp,jpd->bjmd", pooled, transforms[0]).flatten(2)


def _vote_sum(children: Tensor, transforms: Tensor) -> Tensor:
    """``sum_i u_i W_ij`` by one matrix product, (B, J, M * D)."""
    B, I, M, P = children.shape
    _, J, _, D = transforms.shape
    matrix = transforms.transpose(1, 2).reshape(I * P, J * D)
    return (_rows(children) @ matrix).view(B, M, J, D).transpose(1, 2).flatten(2)


def _rows(children: Tensor) -> Tensor:
    """(B, I, M, P) to (B * M, I * P)."""
    B, I, M, P = children.shape
    return children.transpose(1, 2).reshape(B * M, I * P)
