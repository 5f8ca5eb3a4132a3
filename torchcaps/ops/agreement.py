"""Routing by agreement, one step after the other."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor

from torchcaps.ops.backend import Agreement
from torchcaps.ops.similarity import InnerProduct
from torchcaps.squash import squash

Total = Callable[[InnerProduct | None], Tensor]
"""The sums of the votes, (B, J, H), assigned by a similarity, or uniformly."""


def step_by_step(
    total: Total, agreement: Agreement, bias: Tensor | None, alpha: Tensor | None = None, constant: bool = False
) -> tuple[Tensor, Tensor | None]:
    """The poses (B, J, H), and what the last step compared the votes with; None if its assignment was uniform.

    Args:
        total: of the votes.
        agreement: what is to be done.
        bias: added before each squash, (J, H), or None.
        alpha: what the first step compares with; None for a uniform one.
        constant: no gradient flows through what the last step compares with.
    """
    pose: Tensor | None = None
    for step in range(agreement.steps):
        with torch.no_grad() if constant and step < agreement.steps - 1 else nullcontext():
            if pose is not None:
                alpha = after(pose, alpha, agreement.accumulate)
            if alpha is not None and constant:
                alpha = alpha.detach()
            found = total(None if alpha is None else InnerProduct(alpha))
            pose = squash(found if bias is None else found + bias, agreement.squash)
    assert pose is not None
    return pose, alpha


def after(pose: Tensor, alpha: Tensor | None, accumulate: bool) -> Tensor:
    """What the next step compares the votes with."""
    return pose if alpha is None or not accumulate else alpha + pose
