# mypy: allow-untyped-defs, allow-incomplete-defs
r"""Routing in Triton: the device code. :mod:`torchcaps.ops.fused.triton_launch`
launches it.

A program holds a tile of ``b`` rows of the batch and ``j`` parents, keeps the parents'
fields and its sums in registers, and walks over the children, one at a time: it forms
their votes ``[d, m, b, j]``, compares them, takes the softmax over the parents, and
adds up.

Layout. Triton gives lanes and warps to the last axes of a tile first. With one pair of
row and parent to a lane, the axes of a vote are all in registers: similarities need no
exchange between lanes, the softmax a shuffle over the parents, and only the gradient of
the transforms, summed over the rows, passes through shared memory. Two habits keep the
compiler to that layout:

- Parents come last in memory: fields ``[B, H, J]``, transforms ``[I, P, D, J]``. Fields
  are loaded as a matrix ``[d m, b j]`` and reshaped; of a load with four axes, or of
  one with the numbers of a vote beside each other, the compiler would choose another
  layout, and keep it: with Triton 3.6 that spills registers.
- The number of parents is a constant, ``T.J``, so that offsets between the numbers of
  a field or a transform are parts of instructions. Addresses must not look like
  multiples of 4 numbers, though: the compiler would give each lane 4 neighbouring
  parents for a wider load, outside the loop, and split the votes over lanes to make up
  for it. So each has ``J - T.J`` added: 0, which the compiler cannot know.

Votes are sums of P products in plain multiply-adds, not ``tl.dot``: with P of 4 to 16 a
tensor core would idle on padding, and TF32 has 3 digits: the logits, and deviations
from the means, need all that float32 has. The gradient of the transforms does go
through ``tl.dot``, in float32 (``ieee``): it is summed over the rows of a tile, which
lie on different warps, and so takes half the instructions.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

# The compiler shall not know factors of these numbers.
SIZES = ["B", "W", "I", "G", "J"]


@dataclass(frozen=True)
class Tile:
    """What a kernel is compiled for: the sizes of a vote, those of the tile, and the
    branches taken.

    Args:
        M: pose rows.
        P: child dimension.
        D: parent dimension.
        J: how many parents there are.
        dtype: what is computed in, ``tl.float32`` or ``tl.float64``.
        m: M, up to a power of two, as are all sizes of a tile.
        d: D.
        p: how much of P is multiplied at a time.
        b: rows of the batch.
        j: parents.
        leaky: one more candidate, with logit 0.
        hard: the most similar parent takes all.
        shared: one transform for all children.
        by_row: the log-partition given is one for each row and child, (B, I), not for each
            grid child, (N, G).
        overlap: more than one program adds to the gradient of a grid child.
        slots: how many partial gradients a shared transform has, to keep programs from
            queueing for one.
        dot: the rows of a tile are enough for ``tl.dot`` to sum the transforms'
            gradient over them.
        tiny: the least mass to divide by, :func:`torchcaps.numerics.positive`.
        based: the gradient of the mass is that of the share of a vote at the mean.
        even: what each parent gets of a child in an even step.
        ahead: poses and transforms of a child are loaded while the one before it is
            worked on.
    """

    M: int
    P: int
    D: int
    J: int
    dtype: Any
    m: int
    d: int
    p: int
    b: int
    j: int
    leaky: bool = False
    hard: bool = False
    shared: bool = False
    by_row: bool = False
    overlap: bool = False
    slots: int = 1
    dot: bool = False
    tiny: float = 1e-19
    based: bool = False
    even: float = 1.0
    ahead: bool = False


@triton.jit
def _rows(T: tl.constexpr):
    """The rows of this program, [b]; 64 bits, as all offsets are made from them."""
    return tl.program_id(0).to(tl.int64) * T.b + tl.arange(0, T.b)


@triton.jit
def _parents(T: tl.constexpr):
    """The parents of this program, [j]."""
    return tl.program_id(2) * T.j + tl.arange(0, T.j)


@triton.jit
def _children(I):
    """The first and the last child of this program."""
    share = tl.cdiv(I, tl.num_programs(1))
    first = tl.program_id(1) * share
    return first, tl.minimum(first + share, I)


@triton.jit
def _grid_child(sites, i, rows, B, W, I, G):
    """Where child i of each row lies among the N x G children, [b]."""
    if sites is None:
        return rows * G + i
    else:
        site = tl.load(sites + (rows % W) * I + i, mask=rows < B, other=0)
        return (rows // W) * G + site


@triton.jit
def _field_at(B, J, T: tl.constexpr, anew: tl.constexpr = False):
    """Offsets into a field [B, H, J], and what is inside it, [d m, b j].

    ``anew`` has them added up in another order: of equal sums, the compiler would keep
    those of the loads before a loop in registers for the stores after it.
    """
    h = tl.arange(0, T.d * T.m)
    d, m = h // T.m, h % T.m
    h = (m * T.D + d)[:, None]
    pair = tl.arange(0, T.b * T.j)
    row = tl.program_id(0).to(tl.int64) * T.b + pair // T.j
    j = tl.program_id(2) * T.j + pair % T.j
    if anew:
        at = (row[None, :] * (T.M * T.D) + h) * J + j[None, :]
    else:
        at = (row * (T.M * T.D * T.J) + j + (J - T.J))[None, :] + h * T.J
    inside = ((d < T.D) & (m < T.M))[:, None] & ((row < B) & (j < T.J))[None, :]
    return at, inside


@triton.jit
def _load_field(field, B, J, T: tl.constexpr):
    """The part [d, m, b, j] of a field [B, H, J] of the parents; 0 outside."""
    at, inside = _field_at(B, J, T)
    return tl.reshape(tl.load(field + at, mask=inside, other=0.0), [T.d, T.m, T.b, T.j])


@triton.jit
def _store_field(field, value, B, J, T: tl.constexpr, anew: tl.constexpr = False):
    """Writes the part [d, m, b, j] of a field of this program's children, [splits, B,
    H, J].
    """
    at, inside = _field_at(B, J, T, anew)
    field += tl.program_id(1).to(tl.int64) * B * (T.M * T.D * T.J)
    tl.store(field + at, tl.reshape(value, [T.d * T.m, T.b * T.j]), mask=inside)


@triton.jit
def _pair_at(B, J, T: tl.constexpr):
    """Offsets into numbers for each row and parent, [B, J], and what is inside, [b,
    j].
    """
    rows, parents = _rows(T)[:, None], _parents(T)[None, :]
    return rows * T.J + parents + (J - T.J), (rows < B) & (parents < T.J)


@triton.jit
def _load_pair(field, B, J, T: tl.constexpr):
    """The part [b, j] of a number for each row and parent, [B, J]; 0 outside."""
    at, inside = _pair_at(B, J, T)
    return tl.load(field + at, mask=inside, other=0.0)


@triton.jit
def _store_pair(field, value, B, J, T: tl.constexpr):
    """Writes the part [b, j] of a number of this program's children, [splits, B, J]."""
    at, inside = _pair_at(B, J, T)
    field += tl.program_id(1).to(tl.int64) * B * T.J
    tl.store(field + at, value, mask=inside)


@triton.jit
def _pose_at(child, inside, start, T: tl.constexpr):
    """Offsets of the poses of one child a row, and what is inside them, [p, m, b]."""
    p = start + tl.arange(0, T.p)
    m = tl.arange(0, T.m)
    at = (child * (T.M * T.P))[None, None, :] + (m[None, :] * T.P + p[:, None])[
        :, :, None
    ]
    return at, ((p < T.P)[:, None] & (m < T.M)[None, :])[:, :, None] & inside[
        None, None, :
    ]


@triton.jit
def _transform_at(i, start, J, T: tl.constexpr):
    """Offsets of transform i, and what is inside it, [p, d, j]."""
    p = start + tl.arange(0, T.p)
    d = tl.arange(0, T.d)
    j = _parents(T)
    first = tl.cast(i, tl.int64) * (T.P * T.D * T.J) + (J - T.J)
    at = (p[:, None] * T.D + d[None, :])[:, :, None] * T.J + (first + j)[None, None, :]
    return at, ((p < T.P)[:, None] & (d < T.D)[None, :])[:, :, None] & (j < T.J)[
        None, None, :
    ]


@triton.jit
def _coordinate_at(i, T: tl.constexpr):
    """Offsets of the coordinates of child i, and what is inside them, [d, m]."""
    d, m = tl.arange(0, T.d), tl.arange(0, T.m)
    at = tl.cast(i, tl.int64) * (T.M * T.D) + m[None, :] * T.D + d[:, None]
    return at, (d < T.D)[:, None] & (m < T.M)[None, :]


@triton.jit
def _factors(children, transforms, child, i, start, B, J, T: tl.constexpr):
    """The poses of one child a row, [p, m, b], and its transform, [p, d, j], from some
    number of P on.
    """
    at, mask = _pose_at(child, _rows(T) < B, start, T)
    pose = tl.load(children + at, mask=mask, other=0.0)
    at, mask = _transform_at(0 if T.shared else i, start, J, T)
    return pose, tl.load(transforms + at, mask=mask, other=0.0)


@triton.jit
def _read(children, transforms, sites, i, B, W, I, G, J, T: tl.constexpr):
    """Where child i of each row lies among the N x G children, and the first factors of
    its votes.
    """
    child = _grid_child(sites, i, _rows(T), B, W, I, G)
    pose, transform = _factors(children, transforms, child, i, 0, B, J, T)
    return child, pose, transform


@triton.jit
def _product(pose, transform, T: tl.constexpr):
    """The part of u W from some numbers of P, [d, m, b, j]: summed in registers."""
    pose, transform = pose.to(T.dtype), transform.to(T.dtype)
    return tl.sum(pose[:, None, :, :, None] * transform[:, :, None, None, :], 0)


@triton.jit
def _votes_from(
    pose, transform, children, transforms, coordinates, child, i, B, J, T: tl.constexpr
):
    """The votes V = u W (+ c) of one child a row, [d, m, b, j], whose first factors
    are loaded; 0 outside, the rows' coordinates apart.
    """
    votes = _product(pose, transform, T)
    for start in range(T.p, T.P, T.p):
        pose, transform = _factors(children, transforms, child, i, start, B, J, T)
        votes += _product(pose, transform, T)
    if coordinates is not None:
        at, mask = _coordinate_at(i, T)
        votes += tl.load(coordinates + at, mask=mask, other=0.0)[:, :, None, None]
    return votes


@triton.jit
def _votes(children, transforms, coordinates, child, i, B, J, T: tl.constexpr):
    """The votes of one child a row, [d, m, b, j]."""
    pose, transform = _factors(children, transforms, child, i, 0, B, J, T)
    return _votes_from(
        pose, transform, children, transforms, coordinates, child, i, B, J, T
    )


@triton.jit
def _inner(x, y):
    """The sum over h = (d, m) of the product, [b, j]."""
    return tl.sum(tl.sum(x * y, 0), 0)


@triton.jit
def _logits(votes, centre, precision, log_weight, T: tl.constexpr):
    """The similarity of votes and parents, [b, j]; -inf outside the parents."""
    if precision is not None:
        deviation = votes - centre
        logits = log_weight - 0.5 * _inner(deviation * precision, deviation)
    elif centre is not None:
        logits = _inner(votes, centre)
    else:
        logits = tl.full([T.b, T.j], 0.0, T.dtype)
    return tl.where((_parents(T) < T.J)[None, :], logits, float("-inf"))


@triton.jit
def _top_and_sum(logits, T: tl.constexpr):
    """The largest logit of each row, and the sum of exponentials relative to it,
    [b].
    """
    top = tl.max(logits, 1)
    # Of all blocks of parents, the first has the leak.
    if T.leaky:
        first = tl.program_id(2) == 0
        top = tl.where(first, tl.maximum(top, 0.0), top)
        return top, tl.sum(tl.exp(logits - top[:, None]), 1) + tl.where(
            first, tl.exp(-top), 0.0
        )
    else:
        return top, tl.sum(tl.exp(logits - top[:, None]), 1)


@triton.jit
def _assignment(logits, best, log_partition, at, child, B, T: tl.constexpr):
    """The assignment probabilities R of one child a row, [b, j].

    ``at`` is where a table (B, I) has this child, ``child`` where a table (N, G) has
    it.
    """
    parents = _parents(T)
    inside = _rows(T) < B
    if T.hard:
        if best is None:
            choice = tl.argmax(logits, 1)
        else:
            choice = tl.load(best + at, mask=inside, other=0)
        return ((parents[None, :] == choice[:, None]) & (parents < T.J)[None, :]).to(
            T.dtype
        )
    elif log_partition is not None:
        partition = tl.load(
            log_partition + (at if T.by_row else child), mask=inside, other=0.0
        )
        return tl.exp(logits - partition[:, None])
    else:
        top, total = _top_and_sum(logits, T)
        return tl.exp(logits - top[:, None]) / total[:, None]


@triton.jit
def _add(field, at, value, mask, atomic: tl.constexpr):
    """Adds to zeros where other programs do the same, or writes."""
    if atomic:
        tl.atomic_add(field + at, value, mask=mask, sem="relaxed")
    else:
        tl.store(field + at, value, mask=mask)


@triton.jit
def _votes_backward(
    slope,
    children,
    transforms,
    child,
    i,
    grad_children,
    grad_transforms,
    grad_coordinates,
    B,
    J,
    T: tl.constexpr,
):
    """Passes the gradient of the votes, [d, m, b, j], on to children, transforms and
    coordinates.
    """
    inside = _rows(T) < B
    slot = tl.program_id(0) % T.slots if T.shared else i
    for start in range(0, T.P, T.p):
        pose_at, pose_mask = _pose_at(child, inside, start, T)
        at, mask = _transform_at(0 if T.shared else i, start, J, T)
        transform = tl.load(transforms + at, mask=mask, other=0.0).to(T.dtype)
        grad_pose = tl.sum(
            tl.sum(slope[None] * transform[:, :, None, None, :], 1), 3
        )  # [p, m, b]
        _add(grad_children, pose_at, grad_pose, pose_mask, T.overlap)
        pose = tl.load(children + pose_at, mask=pose_mask, other=0.0).to(T.dtype)
        if T.dot:
            flat = tl.reshape(tl.permute(slope, (1, 2, 0, 3)), [T.m * T.b, T.d * T.j])
            grad_transform = tl.dot(
                tl.reshape(pose, [T.p, T.m * T.b]), flat, input_precision="ieee"
            )
            grad_transform = tl.reshape(grad_transform, [T.p, T.d, T.j])
        else:
            grad_transform = tl.sum(
                tl.sum(slope[None] * pose[:, None, :, :, None], 2), 2
            )  # [p, d, j]
        at, mask = _transform_at(slot, start, J, T)
        _add(grad_transforms, at, grad_transform, mask, True)
    if grad_coordinates is not None:
        at, mask = _coordinate_at(i, T)
        _add(grad_coordinates, at, tl.sum(tl.sum(slope, 3), 2), mask, True)


@triton.jit
def _sums(T: tl.constexpr):
    """Sums over the children: of shares, [b, j], of votes times these, and of their
    squares, [d, m, b, j].
    """
    first = tl.full([T.d, T.m, T.b, T.j], 0.0, T.dtype)
    return tl.full([T.b, T.j], 0.0, T.dtype), first, first


@triton.jit(do_not_specialize=SIZES)
def moments_kernel(
    children,  # [N, G, M, P]
    transforms,  # [I or 1, P, D, J]
    coordinates,  # [I, H] or None, as are all below
    weights,  # [N, G]
    log_partition,  # [N, G] or [B, I]
    # [B, I], the choice of a hard assignment, where a program does not see all parents
    best,
    sites,  # [W, I]
    centre,  # alpha or the Gaussian's mean, [B, H, J]
    precision,  # [B, H, J]
    log_weight,  # [B, J]
    mass,  # out: [splits, B, J]
    # Out: the sum, or the relative mean if the scatter is wanted, [splits, B, H, J]
    first_moment,
    scatter,  # out: [splits, B, H, J] or None
    # Out: what the mean is relative to, if the scatter is wanted and there is no
    # Gaussian's mean, [B, H, J]: the votes of the first child
    origin,
    B,
    W,
    I,
    G,
    J,
    T: tl.constexpr,
):
    """One E-step and its sums, of the programs' own share of the children.

    The scatter is that of weighted Welford: the mean moves by the child's share of the
    mass so far, and what is added is the product of the deviations from the old and the
    new mean. The mean is kept relative to an origin near the votes: float32 has the
    digits for a small deviation, not for a large mean.
    """
    rows = _rows(T)
    alpha = _load_field(centre, B, J, T) if centre is not None else None
    beta = _load_field(precision, B, J, T) if precision is not None else None
    gamma = _load_pair(log_weight, B, J, T) if precision is not None else None
    shift = alpha
    if origin is not None:
        child = _grid_child(sites, 0, rows, B, W, I, G)
        shift = _votes(children, transforms, coordinates, child, 0, B, J, T)
        if tl.program_id(1) == 0:
            _store_field(origin, shift, B, J, T)
    zeroth, first, second = _sums(T)
    begin, end = _children(I)
    child, pose, transform = _read(children, transforms, sites, begin, B, W, I, G, J, T)
    for i in range(begin, end):
        read = tl.minimum(i + 1, end - 1) if T.ahead else i
        next_child, next_pose, next_transform = _read(
            children, transforms, sites, read, B, W, I, G, J, T
        )
        if not T.ahead:
            child, pose, transform = next_child, next_pose, next_transform
        votes = _votes_from(
            pose, transform, children, transforms, coordinates, child, i, B, J, T
        )
        logits = _logits(votes, alpha, beta, gamma, T)
        share = _assignment(logits, best, log_partition, rows * I + i, child, B, T)
        if weights is not None:
            share *= tl.load(weights + child, mask=rows < B, other=0.0)[:, None]
        zeroth += share
        if scatter is not None:
            step = share / tl.maximum(zeroth, T.tiny)
            votes -= shift
            deviation = votes - first
            first += step[None, None] * deviation
            second += share[None, None] * deviation * (votes - first)
        else:
            first += share[None, None] * votes
        if T.ahead:
            child, pose, transform = next_child, next_pose, next_transform
    _store_pair(mass, zeroth, B, J, T)
    _store_field(first_moment, first, B, J, T)
    if scatter is not None:
        _store_field(scatter, second, B, J, T)


@triton.jit(do_not_specialize=SIZES)
def scores_kernel(
    children,  # the inputs are those of moments_kernel
    transforms,
    coordinates,
    sites,
    centre,
    precision,
    log_weight,
    logits_out,  # [B, I, J] or None
    partition_out,  # the log-partition over this block of parents, [blocks, B, I] or None
    top_out,  # the largest logit of this block of parents, [blocks, B, I], or None, and
    best_out,  # the lowest index of a parent that has it, [blocks, B, I]
    B,
    W,
    I,
    G,
    J,
    T: tl.constexpr,
):
    """The logits, or what a log-partition over all parents is made of."""
    rows, parents = _rows(T), _parents(T)
    inside = rows < B
    alpha = _load_field(centre, B, J, T) if centre is not None else None
    beta = _load_field(precision, B, J, T) if precision is not None else None
    gamma = _load_pair(log_weight, B, J, T) if precision is not None else None
    block = tl.program_id(2) * (B.to(tl.int64) * I)
    begin, end = _children(I)
    for i in range(begin, end):
        child = _grid_child(sites, i, rows, B, W, I, G)
        votes = _votes(children, transforms, coordinates, child, i, B, J, T)
        logits = _logits(votes, alpha, beta, gamma, T)
        at = rows * I + i
        if logits_out is not None:
            mask = inside[:, None] & (parents < T.J)[None, :]
            place = at[:, None] * T.J + parents[None, :] + (J - T.J)
            tl.store(logits_out + place, logits, mask=mask)
        if partition_out is not None:
            top, total = _top_and_sum(logits, T)
            tl.store(partition_out + block + at, top + tl.log(total), mask=inside)
        if best_out is not None:
            tl.store(top_out + block + at, tl.max(logits, 1), mask=inside)
            tl.store(
                best_out + block + at,
                tl.argmax(logits, 1) + tl.program_id(2) * T.j,
                mask=inside,
            )


@triton.jit
def _similarity_backward(
    grad_logits, votes, alpha, beta, first, second, T: tl.constexpr
):
    """What the gradient of the logits, [b, j], passes on to the votes, and adds to the
    sums over the children.
    """
    grad_logits = grad_logits[None, None]
    if beta is not None:
        deviation = votes - alpha
        slope = grad_logits * deviation
        return -slope * beta, first + slope, second + slope * deviation
    elif alpha is not None:
        return grad_logits * alpha, first + grad_logits * votes, second
    else:
        return tl.full([T.d, T.m, T.b, T.j], 0.0, T.dtype), first, second


@triton.jit
def _store_similarity(
    beta,
    zeroth,
    first,
    second,
    grad_centre,
    grad_precision,
    grad_log_weight,
    B,
    J,
    T: tl.constexpr,
):
    """The gradients of the similarity's fields from the sums of
    :func:`_similarity_backward`.
    """
    if grad_precision is not None:
        _store_field(grad_centre, first * beta, B, J, T, True)
        _store_field(grad_precision, -0.5 * second, B, J, T, True)
        _store_pair(grad_log_weight, zeroth, B, J, T)
    elif grad_centre is not None:
        _store_field(grad_centre, first, B, J, T, True)


@triton.jit
def _staggered(I):
    """The first and the last child of this program, and between them where it starts:
    neighbours do at different ones, not to queue for their gradients. In 32 bits, as
    gradients leave few registers.
    """
    begin, end = _children(I)
    begin, end = begin.to(tl.int32), end.to(tl.int32)
    return begin, end, begin + tl.program_id(0) * 7 % tl.maximum(end - begin, 1)


@triton.jit
def _grad_share(votes, base, slope_sum, slope_scatter, final, scatter):
    """The gradient of a share of a child, [b, j], and the slope of that by
    its vote, [d, m, b, j]; ``scatter`` is None if there is none.
    """
    if scatter is not None:
        deviation = votes - final
        scaled = deviation * slope_scatter
        grad_share = base + _inner(deviation, slope_sum + scaled)
        return grad_share, slope_sum + 2.0 * scaled
    else:
        return base + _inner(votes, slope_sum), slope_sum


@triton.jit
def _upstream(mean, rest, grad_mass, grad_sum, grad_scatter, B, J, T: tl.constexpr):
    """The gradient of the share of a vote at the mean, [b, j], or at 0 without a scatter;
    the gradients of sum and scatter, and the mean, [d, m, b, j].

    The mean of the votes is ``mean + rest``: see
    :func:`~torchcaps.ops.derivatives.about_mean`.
    """
    base = tl.full([T.b, T.j], 0.0, T.dtype)
    if grad_mass is not None:
        base = _load_pair(grad_mass, B, J, T)
    slope_sum = _load_field(grad_sum, B, J, T)
    if grad_scatter is not None:
        slope_scatter = _load_field(grad_scatter, B, J, T)
        final = _load_field(mean, B, J, T)
        if not T.based:
            base += _inner(final, slope_sum)
        if rest is not None:
            slope_sum -= 2.0 * slope_scatter * _load_field(rest, B, J, T)
        return base, slope_sum, slope_scatter, final
    else:
        # Triton 3.6 returns no None.
        return base, slope_sum, slope_sum, slope_sum


@triton.jit
def _weighted(assignment, grad_share, weights, grad_weights, child, B, T: tl.constexpr):
    """The share of a child that each parent takes, [b, j]; adds the gradient of the
    child's weight.
    """
    if weights is None:
        return assignment
    else:
        inside = _rows(T) < B
        if grad_weights is not None:
            _add(
                grad_weights,
                child,
                tl.sum(assignment * grad_share, 1),
                inside,
                T.overlap,
            )
        return assignment * tl.load(weights + child, mask=inside, other=0.0)[:, None]


@triton.jit
def _logits_backward(
    share,
    grad_share,
    assignment,
    log_partition,
    grad_log_partition,
    mean_grads,
    child,
    at,
    B,
    I,
    T: tl.constexpr,
):
    """The gradient of the logits, [b, j], where the parents of the tile compete, or the
    mean of theirs over all who do is known; else that under the given log-partition.
    """
    inside = _rows(T) < B
    # Softmax backward: dl_j = r_j (g_j - sum_k R_k g_k). The sum is over all who compete:
    # from mean_grads_kernel, from this tile, or left to the caller, since the gradient of
    # the log-partition is minus this sum.
    if mean_grads is not None:
        common = tl.load(mean_grads + child, mask=inside, other=0.0)
        grad_logits = share * (grad_share - common[:, None])
    else:
        grad_logits = share * grad_share
        total = tl.sum(grad_logits, 1)
        if log_partition is None:
            grad_logits -= assignment * total[:, None]
        elif T.by_row:
            block = tl.program_id(2) * (B.to(tl.int64) * I)
            tl.store(grad_log_partition + block + at, -total, mask=inside)
        else:
            _add(grad_log_partition, child, -total, inside, T.overlap)
    return grad_logits


@triton.jit(do_not_specialize=SIZES)
def moments_backward_kernel(
    children,  # the inputs are those of moments_kernel
    transforms,
    coordinates,
    weights,
    log_partition,
    best,
    sites,
    centre,
    precision,
    log_weight,
    mean,  # the final mean, [B, H, J], or None
    rest,  # what rounding took from it, [B, H, J], or None
    # sum_wj R_wij g_wij over all parents that compete for a child, [N, G], if it is known
    mean_grads,
    grad_mass,  # [B, J], or None for 0
    grad_sum,  # [B, H, J]
    grad_scatter,  # [B, H, J] or None
    # Out, as are all below: [N, G, M, P]; None where votes need no gradients
    grad_children,
    grad_transforms,  # [I or slots, P, D, J], added to
    grad_coordinates,  # [I, H], added to
    grad_weights,  # [N, G]
    grad_log_partition,  # [N, G] or [blocks, B, I]
    grad_centre,  # [splits, B, H, J]
    grad_precision,  # [splits, B, H, J]
    grad_log_weight,  # [splits, B, J]
    B,
    W,
    I,
    G,
    J,
    T: tl.constexpr,
):
    r"""The gradients of ``sum_ij r_ij (gN_j + <gS_j, V_ij> + <gQ_j, (V_ij -
    mean_j)^2>)``, the mean held fixed.

    The scatter does not depend on the mean to first order, as the weighted deviations
    from it add up to zero.
    """
    rows = _rows(T)
    alpha = _load_field(centre, B, J, T) if centre is not None else None
    beta = _load_field(precision, B, J, T) if precision is not None else None
    gamma = _load_pair(log_weight, B, J, T) if precision is not None else None
    base, slope_sum, slope_scatter, final = _upstream(
        mean, rest, grad_mass, grad_sum, grad_scatter, B, J, T
    )
    zeroth, first, second = _sums(T)
    begin, end, i = _staggered(I)
    child, pose, transform = _read(children, transforms, sites, i, B, W, I, G, J, T)
    for _ in range(0, end - begin):
        at = rows * I + i
        later = tl.where(i + 1 < end, i + 1, begin)
        next_child, next_pose, next_transform = _read(
            children, transforms, sites, later if T.ahead else i, B, W, I, G, J, T
        )
        if not T.ahead:
            child, pose, transform = next_child, next_pose, next_transform
        votes = _votes_from(
            pose, transform, children, transforms, coordinates, child, i, B, J, T
        )
        logits = _logits(votes, alpha, beta, gamma, T)
        assignment = _assignment(logits, best, log_partition, at, child, B, T)
        grad_share, slope = _grad_share(
            votes, base, slope_sum, slope_scatter, final, grad_scatter
        )
        share = _weighted(assignment, grad_share, weights, grad_weights, child, B, T)
        slope = share[None, None] * slope
        if not T.hard and (centre is not None or grad_log_partition is not None):
            grad_logits = _logits_backward(
                share,
                grad_share,
                assignment,
                log_partition,
                grad_log_partition,
                mean_grads,
                child,
                at,
                B,
                I,
                T,
            )
            passed, first, second = _similarity_backward(
                grad_logits, votes, alpha, beta, first, second, T
            )
            zeroth += grad_logits
            slope += passed
        if grad_children is not None:
            _votes_backward(
                slope,
                children,
                transforms,
                child,
                i,
                grad_children,
                grad_transforms,
                grad_coordinates,
                B,
                J,
                T,
            )
        i = later
        if T.ahead:
            child, pose, transform = next_child, next_pose, next_transform
    _store_similarity(
        beta,
        zeroth,
        first,
        second,
        grad_centre,
        grad_precision,
        grad_log_weight,
        B,
        J,
        T,
    )


@triton.jit(do_not_specialize=SIZES)
def scores_backward_kernel(
    children,  # the inputs are those of moments_kernel
    transforms,
    coordinates,
    sites,
    centre,
    precision,
    log_weight,
    log_partition,  # [B, I], or None: of the logits themselves
    grad,  # of the log-partition, [B, I], or of the logits, [B, I, J]
    grad_children,  # out: those of moments_backward_kernel
    grad_transforms,
    grad_coordinates,
    grad_centre,
    grad_precision,
    grad_log_weight,
    B,
    W,
    I,
    G,
    J,
    T: tl.constexpr,
):
    """The gradients of the logits, or of their log-partition."""
    rows, parents = _rows(T), _parents(T)
    inside = rows < B
    alpha = _load_field(centre, B, J, T) if centre is not None else None
    beta = _load_field(precision, B, J, T) if precision is not None else None
    gamma = _load_pair(log_weight, B, J, T) if precision is not None else None
    zeroth, first, second = _sums(T)
    begin, end, start = _staggered(I)
    for step in range(0, end - begin):
        i = tl.where(start + step < end, start + step, start + step - (end - begin))
        at = rows * I + i
        child = _grid_child(sites, i, rows, B, W, I, G)
        votes = _votes(children, transforms, coordinates, child, i, B, J, T)
        if log_partition is not None:
            logits = _logits(votes, alpha, beta, gamma, T)
            partition = tl.load(log_partition + at, mask=inside, other=0.0)
            grad_logits = (
                tl.exp(logits - partition[:, None])
                * tl.load(grad + at, mask=inside, other=0.0)[:, None]
            )
        else:
            mask = inside[:, None] & (parents < T.J)[None, :]
            place = at[:, None] * T.J + parents[None, :] + (J - T.J)
            grad_logits = tl.load(grad + place, mask=mask, other=0.0)
        slope, first, second = _similarity_backward(
            grad_logits, votes, alpha, beta, first, second, T
        )
        zeroth += grad_logits
        _votes_backward(
            slope,
            children,
            transforms,
            child,
            i,
            grad_children,
            grad_transforms,
            grad_coordinates,
            B,
            J,
            T,
        )
    _store_similarity(
        beta,
        zeroth,
        first,
        second,
        grad_centre,
        grad_precision,
        grad_log_weight,
        B,
        J,
        T,
    )


@triton.jit(do_not_specialize=SIZES)
def mean_grads_kernel(
    children,  # the inputs are those of moments_backward_kernel
    transforms,
    coordinates,
    log_partition,
    sites,
    centre,
    precision,
    log_weight,
    mean,
    rest,
    grad_mass,
    grad_sum,
    grad_scatter,
    mean_grads,  # out: [N, G], added to
    B,
    W,
    I,
    G,
    J,
    T: tl.constexpr,
):
    """The mean gradient of the shares over all parents that compete for a child,
    ``sum_wj R_wij g_wij``.
    """
    rows = _rows(T)
    alpha = _load_field(centre, B, J, T)
    beta = _load_field(precision, B, J, T)
    gamma = _load_pair(log_weight, B, J, T)
    base, slope_sum, slope_scatter, final = _upstream(
        mean, rest, grad_mass, grad_sum, grad_scatter, B, J, T
    )
    begin, end, start = _staggered(I)
    for step in range(0, end - begin):
        i = tl.where(start + step < end, start + step, start + step - (end - begin))
        child = _grid_child(sites, i, rows, B, W, I, G)
        votes = _votes(children, transforms, coordinates, child, i, B, J, T)
        logits = _logits(votes, alpha, beta, gamma, T)
        assignment = _assignment(logits, None, log_partition, 0, child, B, T)
        grad_share, _ = _grad_share(
            votes, base, slope_sum, slope_scatter, final, grad_scatter
        )
        _add(mean_grads, child, tl.sum(assignment * grad_share, 1), rows < B, T.overlap)


@triton.jit
def _agreement_slope(votes, alpha, slope_sum, T: tl.constexpr):
    """The gradient of the votes of one child by one step of routing by agreement, [d,
    m, b, j].
    """
    logits = _logits(votes, alpha, None, None, T)
    top, total = _top_and_sum(logits, T)
    assignment = tl.exp(logits - top[:, None]) / total[:, None]
    grad_logits = assignment * _inner(votes, slope_sum)
    grad_logits -= assignment * tl.sum(grad_logits, 1)[:, None]
    return assignment[None, None] * slope_sum + grad_logits[None, None] * alpha


@triton.jit(do_not_specialize=SIZES)
def agreement_backward_kernel(
    children,  # the inputs are those of moments_backward_kernel
    transforms,
    coordinates,
    sites,
    even,  # the gradient of the sum of the even first step, [B, H, J], or None
    alpha,  # what one step compared with, [B, H, J], or None
    grad_sum,  # and the gradient of its sum
    other_alpha,  # the same of another step
    other_grad_sum,
    grad_children,  # out: those of moments_backward_kernel
    grad_transforms,
    grad_coordinates,
    B,
    W,
    I,
    G,
    J,
    T: tl.constexpr,
):
    """What steps of routing by agreement pass on to children, transforms and
    coordinates, once for all of them.
    """
    rows = _rows(T)
    constant = tl.full([T.d, T.m, T.b, T.j], 0.0, T.dtype)
    if even is not None:
        constant = _load_field(even, B, J, T) * T.even
    if alpha is not None:
        centre, slope_sum = _load_field(alpha, B, J, T), _load_field(grad_sum, B, J, T)
    if other_alpha is not None:
        other_centre = _load_field(other_alpha, B, J, T)
        other_slope = _load_field(other_grad_sum, B, J, T)
    begin, end, start = _staggered(I)
    for step in range(0, end - begin):
        i = tl.where(start + step < end, start + step, start + step - (end - begin))
        child = _grid_child(sites, i, rows, B, W, I, G)
        slope = constant
        if alpha is not None:
            votes = _votes(children, transforms, coordinates, child, i, B, J, T)
            slope += _agreement_slope(votes, centre, slope_sum, T)
            if other_alpha is not None:
                slope += _agreement_slope(votes, other_centre, other_slope, T)
        _votes_backward(
            slope,
            children,
            transforms,
            child,
            i,
            grad_children,
            grad_transforms,
            grad_coordinates,
            B,
            J,
            T,
        )
