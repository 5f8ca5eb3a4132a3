"""Moments that need no vote at all, because sums change places with the transforms."""

import torch
from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Moments, Rule


def uniform_moments(children: Tensor, transforms: Tensor, weights: Tensor | None, rule: Rule) -> Moments:
    """Mass and sum of the first step: R is 1/J (or what the given normaliser says), the same for all parents."""
    B, I, M, P = children.shape
    _, J, _, D = transforms.shape
    if rule.log_partition is None:
        share = children.new_full((B, I), 1 / (J + rule.orphan))
    else:
        share = (-rule.log_partition).exp()
    if weights is not None:
        share = share * weights
    weighted = children * share[..., None, None]
    if transforms.shape[0] == 1:
        total = torch.einsum("bmp,jpd->bjmd", weighted.sum(1), transforms[0])
    else:
        left = weighted.transpose(1, 2).reshape(B * M, I * P)
        right = transforms.transpose(1, 2).reshape(I * P, J * D)
        total = (left @ right).view(B, M, J, D).transpose(1, 2)
    return Moments(share.sum(1)[:, None].expand(B, J), total.flatten(2), None)


def attention_moments(
    children: Tensor, transforms: Tensor, alpha: Tensor, weights: Tensor | None, rule: Rule
) -> Moments:
    """Inner products with shared transforms: queries ``W_j alpha_j``, keys and values ``u_i``, softmax over j."""
    B, _, M, P = children.shape
    _, J, _, D = transforms.shape
    queries = torch.einsum("bjmd,jpd->bjmp", alpha.view(B, J, M, D), transforms[0]).flatten(2)
    values = children.flatten(2)  # [B, I, M * P]
    share = naive.logits_assignment(values @ queries.mT, rule)
    if weights is not None:
        share = share * weights[..., None]
    pooled = (share.mT @ values).view(B, J, M, P)
    return Moments(share.sum(1), torch.einsum("bjmp,jpd->bjmd", pooled, transforms[0]).flatten(2), None)


def offset_moments(
    children: Tensor, transforms: Tensor, coordinates: Tensor | None, weights: Tensor | None, offset: Tensor
) -> Moments:
    """Mass and sum with the shares ``a_i o_ij`` of an offset (I, J), the same in all rows: one matrix product."""
    B, I, M, P = children.shape
    _, J, _, D = transforms.shape
    weighted = children if weights is None else children * weights[..., None, None]
    if transforms.shape[0] == 1:
        pooled = torch.einsum("bimp,ij->bjmp", weighted, offset)
        total = torch.einsum("bjmp,jpd->bjmd", pooled, transforms[0]).flatten(2)
    else:
        left = weighted.transpose(1, 2).reshape(B * M, I * P)
        right = (transforms * offset[..., None, None]).transpose(1, 2).reshape(I * P, J * D)
        total = (left @ right).view(B, M, J, D).transpose(1, 2).flatten(2)
    mass = offset.sum(0).expand(B, J) if weights is None else weights @ offset
    if coordinates is not None:
        if weights is None:
            total = total + torch.einsum("ij,ih->jh", offset, coordinates)
        else:
            total = total + torch.einsum("bi,ij,ih->bjh", weights, offset, coordinates)
    return Moments(mass, total, None)
