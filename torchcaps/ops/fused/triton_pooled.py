# mypy: allow-untyped-defs, allow-incomplete-defs
"""The sums of one folded step in Triton (:mod:`torchcaps.ops.folded` has the
equations): the device code, and how it is launched.

A program has one type of children of one example, a part of its places, and a block of
parents. It walks over the places, a few at a time: their poses ``u``, [n, q], are
compared with the queries, [q, j], the softmax is taken over the parents, and the sums,
[q, j], stay in registers. Neither shares nor logits reach memory. Where all parents are
in one block, each pass is one kernel. Else a kernel before it finds what the blocks
have in common: forward, the largest logit and the sum of exponentials of each child;
backward, the mean gradient of its shares.

Programs add to nothing that another one writes: sums of parts are added up afterwards,
so results do not differ from run to run.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.ops.fused import triton_launch
from torchcaps.ops.fused.triton_folded import dense, parents_at_once

SIZES = ["B", "N", "T", "J", "stride_b", "stride_t", "stride_j"]


@dataclass(frozen=True)
class Tile:
    """What a kernel is compiled for.

    Args:
        Q: numbers of a pose.
        E: numbers of a place; the first is 1.
        n: places of a step, a power of two, as are all sizes of a tile.
        q: Q.
        e: E.
        j: parents.
        leaky: one more candidate, with logit 0.
        epsilon: of the standardisation of poses; None for none.
    """

    Q: int
    E: int
    n: int
    q: int
    e: int
    j: int
    leaky: bool
    epsilon: float | None


@triton.jit
def _compared(u, field):
    """Inner products of poses [n, q] with a field [q, j], [n, j]."""
    return tl.dot(u, field, input_precision="ieee")  # TF32 has three digits


@triton.jit
def _added_up(u, shares):
    """The sums of poses [n, q] by shares [n, j], [q, j]."""
    return tl.dot(tl.trans(u), shares, input_precision="ieee")


@triton.jit
def _handed_back(shares, field):
    """The sums of a field [q, j] by shares [n, j], [n, q]."""
    return tl.dot(shares, tl.trans(field), input_precision="ieee")


@triton.jit
def _compared_places(x, field):
    """:func:`_compared` of the few numbers of a place, [n, e] and [e, j]."""
    return tl.sum(x[:, :, None] * field[None, :, :], 1)


@triton.jit
def _added_up_places(x, shares):
    """:func:`_added_up` of the few numbers of a place, [e, j]."""
    return tl.sum(x[:, :, None] * shares[:, None, :], 0)


@triton.jit
def _parents(first, K: tl.constexpr):
    """The parents of a block, [j]."""
    return first + tl.arange(0, K.j)


@triton.jit
def _at(first, T, J, stride_b, stride_t, stride_j, K: tl.constexpr):
    """Where the numbers of the parents of a block begin in a field (B, T, J, Q + E) of
    this example and type, [j].
    """
    row = tl.program_id(0).to(tl.int64)
    start = (row // T) * stride_b + (row % T) * stride_t
    return start + _parents(first, K).to(tl.int64) * stride_j


@triton.jit
def _field(field, first, T, J, stride_b, stride_t, stride_j, K: tl.constexpr):
    """The parts [q, j] and [e, j] of a field (B, T, J, Q + E); 0 outside."""
    at = field + _at(first, T, J, stride_b, stride_t, stride_j, K)[None, :]
    inside = (_parents(first, K) < J)[None, :]
    q, e = tl.arange(0, K.q)[:, None], tl.arange(0, K.e)[:, None]
    of_poses = tl.load(at + q, mask=inside & (q < K.Q), other=0.0)
    return of_poses, tl.load(at + K.Q + e, mask=inside & (e < K.E), other=0.0)


@triton.jit
def _store_field(
    field,
    of_poses,
    of_places,
    first,
    B,
    T,
    J,
    stride_b,
    stride_t,
    stride_j,
    K: tl.constexpr,
):
    """Writes the parts [q, j] and [e, j] of a field of this part of the places, [parts,
    ...].
    """
    part = tl.program_id(1) * (B.to(tl.int64) * T * J * (K.Q + K.E))
    at = field + part + _at(first, T, J, stride_b, stride_t, stride_j, K)[None, :]
    inside = (_parents(first, K) < J)[None, :]
    q, e = tl.arange(0, K.q)[:, None], tl.arange(0, K.e)[:, None]
    tl.store(at + q, of_poses, mask=inside & (q < K.Q))
    tl.store(at + K.Q + e, of_places, mask=inside & (e < K.E))


@triton.jit
def _part(N, K: tl.constexpr):
    """The first and the last place of this program: whole steps of it."""
    steps = tl.cdiv(tl.cdiv(N, K.n), tl.num_programs(1))
    first = tl.program_id(1) * steps * K.n
    return first, tl.minimum(first + steps * K.n, N)


@triton.jit
def _child_at(n, N, T):
    """Where the children of this type at places n are among [B, N, T], [n]."""
    row = tl.program_id(0).to(tl.int64)
    return ((row // T) * N + n) * T + row % T


@triton.jit
def _poses(poses, n, N, T, K: tl.constexpr):
    """The poses of the children at places n, [n, q], standardised if they are to be,
    and what they were divided by to the power of -1, [n].
    """
    q = tl.arange(0, K.q)[None, :]
    at = _child_at(n, N, T)[:, None] * K.Q + q
    u = tl.load(poses + at, mask=(n < N)[:, None] & (q < K.Q), other=0.0).to(tl.float32)
    if K.epsilon is not None:
        u = tl.where(q < K.Q, u - (tl.sum(u, 1) / K.Q)[:, None], 0.0)
        scale = 1.0 / tl.sqrt(tl.sum(u * u, 1) / K.Q + K.epsilon)
        return u * scale[:, None], scale
    else:
        return u, tl.full([K.n], 1.0, tl.float32)


@triton.jit
def _numbers(places, n, N, K: tl.constexpr):
    """The numbers of places n, [n, e]: 1 if there are no others."""
    if places is not None:
        e = tl.arange(0, K.e)[None, :]
        inside = (n < N)[:, None] & (e < K.E)
        return tl.load(places + e * N + n[:, None], mask=inside, other=0.0)
    else:
        return tl.full([K.n, K.e], 1.0, tl.float32)


@triton.jit
def _logits(u, x, query, place_query, first, J, K: tl.constexpr):
    """The logits of the children of a step, [n, j]; -inf outside the parents."""
    logits = _compared(u, query) + _compared_places(x, place_query)
    return tl.where((_parents(first, K) < J)[None, :], logits, float("-inf"))


@triton.jit
def _competition(logits, n, N, rows, partition, K: tl.constexpr):
    """The assignment probabilities R, [n, j]: from what all parents compete with, if it
    is given, [2, B, T, N], else of the parents of the tile.
    """
    if partition is not None:
        at = tl.program_id(0).to(tl.int64) * N + n
        top = tl.load(partition + at, mask=n < N, other=0.0)
        total = tl.load(partition + rows * N + at, mask=n < N, other=1.0)
    else:
        top = tl.max(logits, 1)
        if K.leaky:
            top = tl.maximum(top, 0.0)
        total = tl.sum(tl.exp(logits - top[:, None]), 1)
        if K.leaky:
            total += tl.exp(-top)
    return tl.exp(logits - top[:, None]) / total[:, None]


@triton.jit
def _weights(weights, n, N, T, K: tl.constexpr):
    """The weights of the children at places n, [n]; 0 outside."""
    if weights is not None:
        at = _child_at(n, N, T)
        return tl.load(weights + at, mask=n < N, other=0.0)
    else:
        return tl.where(n < N, 1.0, 0.0).to(tl.float32)


@triton.jit(do_not_specialize=SIZES)
def partition_kernel(
    poses,  # [B, N, T, Q], as are those below
    places,  # [E, N] or None: 1
    queries,  # (B, T, J, Q + E), with these strides
    partition,  # out: the largest logits and the sums of exponentials, [2, B, T, N]
    B,
    N,
    T,
    J,
    stride_b,
    stride_t,
    stride_j,
    K: tl.constexpr,
):
    """What all parents compete with, over all blocks of them."""
    row = tl.program_id(0).to(tl.int64)
    begin, end = _part(N, K)
    for start in range(begin, end, K.n):
        n = start + tl.arange(0, K.n)
        u, _ = _poses(poses, n, N, T, K)
        x = _numbers(places, n, N, K)
        top = tl.full([K.n], 0.0 if K.leaky else float("-inf"), tl.float32)
        total = tl.full([K.n], 1.0 if K.leaky else 0.0, tl.float32)
        for first in range(0, J, K.j):
            query, place_query = _field(
                queries, first, T, J, stride_b, stride_t, stride_j, K
            )
            logits = _logits(u, x, query, place_query, first, J, K)
            larger = tl.maximum(top, tl.max(logits, 1))
            total *= tl.exp(top - larger)
            total += tl.sum(tl.exp(logits - larger[:, None]), 1)
            top = larger
        tl.store(partition + row * N + n, top, mask=n < N)
        offset = (B.to(tl.int64) * T) * N
        tl.store(partition + offset + row * N + n, total, mask=n < N)


@triton.jit(do_not_specialize=SIZES)
def sums_kernel(
    poses,  # the inputs are those of partition_kernel
    places,
    weights,  # [B, N, T] or None for 1
    queries,
    partition,  # from there; None where a block has all parents
    sums,  # out: [parts, ...], each as the queries lie
    B,
    N,
    T,
    J,
    stride_b,
    stride_t,
    stride_j,
    K: tl.constexpr,
):
    """The sums of the poses and of the numbers of the places."""
    first = tl.program_id(2) * K.j
    rows = B.to(tl.int64) * T
    query, place_query = _field(queries, first, T, J, stride_b, stride_t, stride_j, K)
    total = tl.full([K.q, K.j], 0.0, tl.float32)
    place_total = tl.full([K.e, K.j], 0.0, tl.float32)
    begin, end = _part(N, K)
    for start in range(begin, end, K.n):
        n = start + tl.arange(0, K.n)
        u, _ = _poses(poses, n, N, T, K)
        x = _numbers(places, n, N, K)
        logits = _logits(u, x, query, place_query, first, J, K)
        shares = _competition(logits, n, N, rows, partition, K)
        shares *= _weights(weights, n, N, T, K)[:, None]
        total += _added_up(u, shares)
        place_total += _added_up_places(x, shares)
    _store_field(
        sums, total, place_total, first, B, T, J, stride_b, stride_t, stride_j, K
    )


@triton.jit
def _store_children(grad_poses, grad, u, scale, n, N, T, K: tl.constexpr):
    """Writes the gradients of the poses of the children at places n from those of the
    poses as they are compared, [n, q].
    """
    q = tl.arange(0, K.q)[None, :]
    if K.epsilon is not None:
        grad -= (tl.sum(grad, 1) / K.Q)[:, None]
        grad -= u * (tl.sum(grad * u, 1) / K.Q)[:, None]
        grad *= scale[:, None]
    at = _child_at(n, N, T)[:, None] * K.Q + q
    grad = grad.to(grad_poses.dtype.element_ty)
    tl.store(grad_poses + at, grad, mask=(n < N)[:, None] & (q < K.Q))


@triton.jit(do_not_specialize=SIZES)
def children_backward_kernel(
    poses,  # the inputs are those of sums_kernel
    places,
    weights,
    queries,
    partition,
    grad_sums,  # as the queries lie
    grad_poses,  # out
    grad_weights,  # out: the mean gradients of the shares of a child, [B, N, T]
    B,
    N,
    T,
    J,
    stride_b,
    stride_t,
    stride_j,
    K: tl.constexpr,
):
    """The gradients of poses and weights, over all blocks of parents."""
    rows = B.to(tl.int64) * T
    begin, end = _part(N, K)
    for start in range(begin, end, K.n):
        n = start + tl.arange(0, K.n)
        u, scale = _poses(poses, n, N, T, K)
        x = _numbers(places, n, N, K)
        weight = _weights(weights, n, N, T, K)
        mean = tl.full([K.n], 0.0, tl.float32)
        for first in range(0, J, K.j):
            query, place_query = _field(
                queries, first, T, J, stride_b, stride_t, stride_j, K
            )
            slope, place_slope = _field(
                grad_sums, first, T, J, stride_b, stride_t, stride_j, K
            )
            logits = _logits(u, x, query, place_query, first, J, K)
            shares = _competition(logits, n, N, rows, partition, K)
            grad_shares = _compared(u, slope) + _compared_places(x, place_slope)
            mean += tl.sum(shares * grad_shares, 1)
        grad = tl.full([K.n, K.q], 0.0, tl.float32)
        for first in range(0, J, K.j):
            query, place_query = _field(
                queries, first, T, J, stride_b, stride_t, stride_j, K
            )
            slope, place_slope = _field(
                grad_sums, first, T, J, stride_b, stride_t, stride_j, K
            )
            logits = _logits(u, x, query, place_query, first, J, K)
            shares = _competition(logits, n, N, rows, partition, K) * weight[:, None]
            grad_shares = _compared(u, slope) + _compared_places(x, place_slope)
            grad_logits = shares * (grad_shares - mean[:, None])
            grad += _handed_back(shares, slope)
            grad += _handed_back(grad_logits, query)
        _store_children(grad_poses, grad, u, scale, n, N, T, K)
        tl.store(grad_weights + _child_at(n, N, T), mean, mask=n < N)


@triton.jit(do_not_specialize=SIZES)
def backward_kernel(
    poses,  # the inputs are those of children_backward_kernel
    places,
    weights,
    queries,
    partition,
    grad_sums,
    means,  # from there, [B, N, T]; None where a block has all parents
    grad_poses,  # out: where a block has all parents, else None
    grad_weights,  # likewise; or None
    grad_queries,  # out: [parts, ...], each as the queries lie
    B,
    N,
    T,
    J,
    stride_b,
    stride_t,
    stride_j,
    K: tl.constexpr,
):
    """The gradients of the queries; and of poses and weights, where a block has all
    parents.
    """
    first = tl.program_id(2) * K.j
    rows = B.to(tl.int64) * T
    query, place_query = _field(queries, first, T, J, stride_b, stride_t, stride_j, K)
    slope, place_slope = _field(grad_sums, first, T, J, stride_b, stride_t, stride_j, K)
    total = tl.full([K.q, K.j], 0.0, tl.float32)
    place_total = tl.full([K.e, K.j], 0.0, tl.float32)
    begin, end = _part(N, K)
    for start in range(begin, end, K.n):
        n = start + tl.arange(0, K.n)
        u, scale = _poses(poses, n, N, T, K)
        x = _numbers(places, n, N, K)
        logits = _logits(u, x, query, place_query, first, J, K)
        shares = _competition(logits, n, N, rows, partition, K)
        grad_shares = _compared(u, slope) + _compared_places(x, place_slope)
        if means is not None:
            mean = tl.load(means + _child_at(n, N, T), mask=n < N, other=0.0)
        else:
            mean = tl.sum(shares * grad_shares, 1)
        shares *= _weights(weights, n, N, T, K)[:, None]
        grad_logits = shares * (grad_shares - mean[:, None])
        total += _added_up(u, grad_logits)
        place_total += _added_up_places(x, grad_logits)
        if grad_poses is not None:
            grad = _handed_back(shares, slope)
            grad += _handed_back(grad_logits, query)
            _store_children(grad_poses, grad, u, scale, n, N, T, K)
        if grad_weights is not None:
            tl.store(grad_weights + _child_at(n, N, T), mean, mask=n < N)
    _store_field(
        grad_queries,
        total,
        place_total,
        first,
        B,
        T,
        J,
        stride_b,
        stride_t,
        stride_j,
        K,
    )


class Pooling:
    """A call in the layout of the kernels, and how it is cut into programs.

    Args:
        poses: (B, N, T, Q), of float32 or narrower; the others have float32.
        places: (E, N), the first of which is 1; or None for no others.
        weights: (B, N, T) or None.
        query: (B, T, J, Q + E).
        leaky: whether a logit 0 competes with the parents.
        epsilon: of the standardisation of poses; None for none.
    """

    def __init__(
        self,
        poses: Tensor,
        places: Tensor | None,
        weights: Tensor | None,
        query: Tensor,
        leaky: bool,
        epsilon: float | None,
    ) -> None:
        triton_launch.check_device(poses)
        self.poses = poses.contiguous()
        self.places = None if places is None else places.contiguous()
        self.weights = None if weights is None else weights.contiguous()
        self.query = dense(query)
        self.B, self.N, self.T, Q = poses.shape
        self.J = query.shape[2]
        E = query.shape[3] - Q
        self.tile = tile_of(self.N, self.J, Q, E, leaky, epsilon)
        self.blocks = triton_launch.tile_count(self.J, self.tile.j)
        steps = triton_launch.tile_count(self.N, self.tile.n)
        programs = max(1, self.B * self.T * self.blocks)
        wanted = PROGRAMS * triton_launch.processors(poses.device)
        self.parts = max(1, min(steps, triton_launch.tile_count(wanted, programs)))

    def __call__(self, kernel: Any, blocks: int, *arguments: Any) -> None:
        """Runs a kernel over all examples, types and places."""
        if not self.B * self.T:
            return
        sizes = self.B, self.N, self.T, self.J, *self.query.stride()[:3]
        grid = self.B * self.T, self.parts, blocks
        arguments = (*arguments, *sizes, self.tile)
        triton_launch.run(kernel, grid, arguments, self.poses.device, WARPS)

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """The tensors."""
        return self.poses, self.places, self.weights, self.query

    def partition(self) -> Tensor:
        """The largest logit of each child and the sum of exponentials, (2, B, T, N);
        empty where a block has all parents.
        """
        if self.blocks == 1:
            return self.query.new_empty(0)
        partition = self.query.new_empty(2, self.B, self.T, self.N)
        self(partition_kernel, 1, self.poses, self.places, self.query, partition)
        return partition

    def empty_parts(self) -> Tensor:
        """Memory for a field as the queries lie, by part."""
        return self.query.new_empty(self.parts, self.query.numel())

    def sum_of_parts(self, parts: Tensor) -> Tensor:
        """The field of all parts, (B, T, J, Q + E)."""
        whole = parts[0] if self.parts == 1 else parts.sum(0)
        return whole.as_strided(self.query.shape, self.query.stride())


def laid_out(field: Tensor, like: Tensor) -> Tensor:
    """A field as another one lies in memory."""
    if field.stride() == like.stride():
        return field
    return torch.empty_like(like).copy_(field)


LEAST = 16
"""Of each size of a tile: ``tl.dot`` takes no less."""
MOST_PLACES = 64
PRODUCTS = 2**7
"""Multiply-adds of a lane in one product: with more, registers spill."""
WARPS = 8
PROGRAMS = 4
"""Of a multiprocessor, at least, if there are so many places."""


@lru_cache(maxsize=1024)
def tile_of(N: int, J: int, Q: int, E: int, leaky: bool, epsilon: float | None) -> Tile:
    """The tile of a call; see :class:`Pooling`."""
    q, n, j = (max(LEAST, triton_launch.power_of_2(size)) for size in (Q, N, J))
    j = min(j, parents_at_once(Q))
    n = min(n, MOST_PLACES, 32 * WARPS * PRODUCTS // (q * j))
    return Tile(Q, E, n, q, triton_launch.power_of_2(E), j, leaky, epsilon)


def pooled(pooling: Pooling) -> tuple[Tensor, Tensor]:
    """The sums, (B, T, J, Q + E), and :meth:`Pooling.partition`."""
    partition = pooling.partition()
    given = partition if pooling.blocks > 1 else None
    parts = pooling.empty_parts()
    pooling(sums_kernel, pooling.blocks, *pooling.inputs, given, parts)
    return pooling.sum_of_parts(parts), partition


def pooled_backward(
    pooling: Pooling, partition: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of poses, weights and query.

    Args:
        pooling: the call.
        partition: what :func:`pooled` gave.
        grad: that of the sums, (B, T, J, Q + E).
    """
    grad = laid_out(grad, pooling.query)
    grad_poses = torch.empty_like(pooling.poses)
    blocks, inputs = pooling.blocks, pooling.inputs
    means = None
    if blocks > 1 or pooling.weights is not None:
        means = pooling.query.new_empty(pooling.poses.shape[:3])
    parts = pooling.empty_parts()
    if blocks > 1:
        given = *inputs, partition, grad
        pooling(children_backward_kernel, 1, *given, grad_poses, means)
        pooling(backward_kernel, blocks, *given, means, None, None, parts)
    else:
        given = *inputs, None, grad
        pooling(backward_kernel, 1, *given, None, grad_poses, means, parts)
    grad_weights = None if pooling.weights is None else means
    return grad_poses, grad_weights, pooling.sum_of_parts(parts)
