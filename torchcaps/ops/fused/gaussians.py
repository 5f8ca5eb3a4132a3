"""Gaussians that are fitted to votes, in one pass over what the parents have, forward and back."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchcaps.ops.backend import Moments
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.fused import passes
from torchcaps.ops.fused.call import readable
from torchcaps.ops.gaussians import Gaussians


def fit(mass: Tensor, total: Tensor, scatter: Tensor, floor: float) -> Gaussians:
    """:meth:`~torchcaps.ops.VoteSource.gaussians` by the kernels.

    Raises:
        ValueError: if the moments do not fit each other.
    """
    pieces = (
        readable("mass", mass, total.shape[:2], total),
        readable("sum", total, total.shape, total),
        readable("scatter", scatter, total.shape, total),
    )
    return Gaussians(*_Fitted.apply(*pieces, floor))


class _Fitted(torch.autograd.Function):
    """Mean, variance, precision and the logarithm of the determinant."""

    @staticmethod
    def forward(ctx: Any, mass: Tensor, total: Tensor, scatter: Tensor, floor: float) -> Gaussians:
        found = passes.gaussians(mass, total, scatter, floor)
        ctx.floor = floor
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(mass, total, scatter, found.mean, found.precision)
        return found

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        *moments, mean, precision = passes.read_back(ctx.saved_tensors)

        def work(moments: Sequence[Any], upstream: Tensors) -> Tensors:
            return passes.gaussians_backward(moments, mean, precision, upstream)

        def formula(mass: Tensor, total: Tensor, scatter: Tensor) -> Gaussians:
            stored = Moments(mass, total, scatter)
            return Gaussians.of(stored.mean, stored.variance + ctx.floor)

        return *gradients(work, formula, moments, upstream), None
