"""Folded routing in Triton, a step at a time: two batched matrix products, and between
them an operator. :mod:`torchcaps.ops.folded` has the equations, and
:mod:`torchcaps.ops.fused.triton_pooled` the kernels.
"""

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchcaps.ops import folded
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.folded import Folded
from torchcaps.ops.fused.operators import operator

_MOST_NUMBERS = 128
"""Of a pose: more leave no registers for the sums."""


class TritonFolded:
    """Children that fit, with their transforms as the matrix products read them, made
    once for all steps.

    The numbers of the places stand behind those of the poses, P + E in all. There is
    always the number 1, whose sum is the mass.

    Args:
        children: the children; their weights are not used.
    """

    @classmethod
    def of(cls, children: Folded | None) -> "TritonFolded | None":
        """Lay them out; None unless they are vectors in float32 that are not too
        long.
        """
        if children is None or children.transforms.dtype != torch.float32:
            return None
        *_, M, P = children.poses.shape
        return cls(children) if M == 1 and P <= _MOST_NUMBERS else None

    def __init__(self, children: Folded) -> None:
        J, poses, places, _, transforms, place_transforms, *evident, epsilon = children
        evidence, place_evidence = evident
        self.poses = poses.flatten(3)
        self.places = None if places is None or len(places) == 1 else places
        self.epsilon = epsilon
        T, P = poses.shape[2], poses.shape[4]
        E = 1 if places is None else len(places)
        self.sizes = T, P + E
        rows = transforms.expand(T, J, -1, -1)
        if place_transforms is None:
            rows = pad(rows, (0, 0, 0, E))
        else:
            rows = torch.cat([rows, place_transforms], 2)
        # [J, T (P + E), D]
        self.rows = rows.transpose(0, 1).flatten(1, 2)
        self.evidence: Tensor | None = None
        if evidence is not None and place_evidence is not None:
            # [J, 1, T (P + E)]
            both = torch.cat([evidence, place_evidence], 2)
            self.evidence = both.transpose(0, 1).flatten(1)[:, None]

    def moments(
        self, alpha: Tensor | None, weights: Tensor | None, leaky: bool
    ) -> tuple[Tensor, Tensor]:
        """Mass (B, J) and sum (B, J, D) of one step, as
        :func:`torchcaps.ops.folded.moments`.
        """
        query = self._query(alpha).unflatten(2, self.sizes).permute(1, 2, 0, 3)
        arguments = self.poses, self.places, weights, query, leaky, self.epsilon
        sums, _ = _run_pooled(*arguments)
        mass = sums[..., self.poses.shape[-1]].sum(1)
        total = sums.permute(2, 0, 1, 3).flatten(2) @ self.rows
        return mass, total.transpose(0, 1)

    def _query(self, alpha: Tensor | None) -> Tensor:
        """What poses and places are compared with, [J, B, T (P + E)]."""
        rows, evidence = self.rows, self.evidence
        if alpha is None:
            B = len(self.poses)
            if evidence is not None:
                return evidence.expand(-1, B, -1).contiguous()
            return rows.new_zeros(len(rows), B, rows.shape[1])
        if evidence is None:
            return alpha.transpose(0, 1) @ rows.mT
        return torch.baddbmm(evidence, alpha.transpose(0, 1), rows.mT)


def parents_at_once(Q: int) -> int:
    """How many parents a program compares poses of Q numbers with."""
    return min(64, 2**11 >> (max(Q, 16) - 1).bit_length())


def dense(query: Tensor) -> Tensor:
    """A field (B, T, J, Q + E), in any order without gaps, but that the numbers of a
    parent lie beside each other.
    """
    beside = query.stride(-1) == 1
    if beside and query.stride() == torch.empty_like(query).stride():
        return query
    return query.contiguous()


_SCHEMA = (
    "Tensor poses, Tensor? places, Tensor? weights, Tensor query, bool leaky, "
    "float? epsilon"
)


def _kernels() -> Any:
    return import_module("torchcaps.ops.fused.triton_pooled")


def _pooled(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The sums of the poses and of the numbers of the places, (B, T, J, Q + E), and
    what all parents competed with, empty where the backward pass finds it.
    """
    kernels = _kernels()
    results: tuple[Tensor, Tensor] = kernels.pooled(kernels.Pooling(*arguments))
    return results


def _pooled_shapes(*arguments: Any) -> tuple[Tensor, Tensor]:
    poses, _, _, query, *_ = arguments
    B, N, T, Q = poses.shape
    partition = (0,) if query.shape[2] <= parents_at_once(Q) else (2, B, T, N)
    return torch.empty_like(dense(query)), query.new_empty(partition)


def _pooled_backward(*arguments: Any) -> list[Tensor]:
    *inputs, partition, grad = arguments
    kernels = _kernels()
    grads = kernels.pooled_backward(kernels.Pooling(*inputs), partition, grad)
    return [grad for grad in grads if grad is not None]


def _gradients_shapes(*arguments: Any) -> list[Tensor]:
    poses, _, weights, query, *_ = arguments
    rows = [poses.new_empty(poses.shape)]
    if weights is not None:
        rows.append(weights.new_empty(weights.shape))
    return [*rows, torch.empty_like(dense(query))]


def _pooled_context(
    ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]
) -> None:
    ctx.options = inputs[4:]
    ctx.save_for_backward(*inputs[:4], output[1])


def _pooled_gradient(ctx: Any, grad: Tensor, _: Any) -> Any:
    *tensors, partition = ctx.saved_tensors
    options = ctx.options

    def work(tensors: Tensors, upstream: Tensors) -> Tensors:
        grads = _run_pooled_backward(*tensors, *options, partition, *upstream)
        grad_poses, *grad_weights, grad_query = grads
        return grad_poses, None, *(grad_weights or [None]), grad_query

    function = partial(_in_pytorch, *options)
    return *gradients(work, function, tensors, (grad,)), None, None


def _in_pytorch(
    leaky: bool,
    epsilon: float | None,
    poses: Tensor,
    places: Tensor | None,
    weights: Tensor | None,
    query: Tensor,
) -> Tensors:
    """The sums in plain PyTorch, differentiable to any order."""
    Q = poses.shape[-1]
    if places is None:
        places = query.new_ones(1, poses.shape[1])
    sums = folded.pooled(
        poses.to(query.dtype),
        places,
        weights,
        query[..., :Q],
        query[..., Q:],
        leaky=leaky,
        epsilon=epsilon,
    )
    return (torch.cat([field for field in sums if field is not None], -1),)


_run_pooled_backward = operator(
    "pooled_backward",
    f"({_SCHEMA}, Tensor partition, Tensor grad) -> Tensor[]",
    _pooled_backward,
    _gradients_shapes,
)
_run_pooled = operator(
    "pooled",
    f"({_SCHEMA}) -> (Tensor, Tensor)",
    _pooled,
    _pooled_shapes,
    _pooled_gradient,
    _pooled_context,
)
