# mypy: allow-untyped-defs, allow-incomplete-defs
r"""What lies between two passes over the children, in Triton: one kernel each.

The passes of :mod:`torchcaps.ops.fused.triton_kernels` leave partial moments, one for
each split of the children. Here they are merged, and made into what the next pass
compares with: a squash, or the M-step of EM routing; and the gradients likewise. In
PyTorch each of these steps is ten to fifty small operations, and on a GPU an operation
costs its launch.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl


@dataclass(frozen=True)
class Block:
    """What a kernel is compiled for.

    Args:
        H: numbers of a vote.
        h: H, up to a power of two.
        j: parents, or pairs of a row and a parent, of a program.
        dtype: the dtype that is computed in.
        tiny: the least mass to divide by.
        standardise: costs are standardised over the parents.
        cost_floor: there is a floor under their deviation.
        constant: c of the squash n^2 / (c + n^2).
    """

    H: int
    h: int
    j: int
    dtype: Any
    tiny: float
    standardise: bool = False
    cost_floor: bool = False
    constant: float = 1.0


AHEAD = tl.constexpr(4)
"""Splits that are read before the first is used."""


@triton.jit
def _positive(mass, T: tl.constexpr):
    """:func:`torchcaps.numerics.positive`."""
    return tl.maximum(mass, T.tiny)


@triton.jit
def _merged(
    mass, first, second, pair, field, valid, all_h, count, splits, T: tl.constexpr
):
    """Mass [j], relative mean [j, h] and scatter [j, h] of all splits (Chan, Golub &
    LeVeque 1983).
    """
    total = tl.load(mass + pair, mask=valid, other=0.0)
    mean = tl.load(first + field, mask=all_h, other=0.0)
    scatter = tl.load(second + field, mask=all_h, other=0.0)
    for first_split in range(1, splits, AHEAD):
        for ahead in tl.static_range(AHEAD):
            split = first_split + ahead
            here = valid & (0 * pair + split < splits)
            whole = all_h & (0 * field + split < splits)
            at = split * count * T.H + field
            plus = tl.load(mass + split * count + pair, mask=here, other=0.0)
            deviation = tl.load(first + at, mask=whole, other=0.0) - mean
            share = plus / _positive(total + plus, T)
            scatter += tl.load(second + at, mask=whole, other=0.0)
            scatter += (total * share)[:, None] * deviation * deviation
            mean += share[:, None] * deviation
            total += plus
    return total, mean, scatter


@triton.jit
def _summed(parts, at, mask, count, splits):
    """The sum of the parts of all splits."""
    total = tl.load(parts + at, mask=mask, other=0.0)
    for first in range(1, splits, AHEAD):
        for ahead in tl.static_range(AHEAD):
            here = mask & (0 * at + first + ahead < splits)
            part = (first + ahead) * count
            total += tl.load(parts + part + at, mask=here, other=0.0)
    return total


@triton.jit
def _pairs_at(pairs, J, T: tl.constexpr):
    """The pairs of a row and a parent of this program, [j], with what is inside; and
    their numbers, [j, h], as the passes have them, and as callers do.
    """
    pair = tl.program_id(0).to(tl.int64) * T.j + tl.arange(0, T.j)
    h = tl.arange(0, T.h)
    valid = pair < pairs
    field = (pair // J * T.H)[:, None] * J + h[None, :] * J + (pair % J)[:, None]
    outer = pair[:, None] * T.H + h[None, :]
    return pair, valid, field, outer, valid[:, None] & (h < T.H)[None, :]


@triton.jit(do_not_specialize=["pairs", "J", "splits"])
def merge_kernel(
    mass,  # of each split, as are all: [splits, B, J]
    first_moment,  # relative means, or sums where there is no scatter: [splits, B, H, J]
    scatter,  # [splits, B, H, J] or None
    origin,  # what means are relative to, [B, H, J]
    mass_out,  # [B, J]
    sum_out,  # [B, J, H], as are the next two
    scatter_out,
    rest_out,  # what the mean is more than sum / mass, rounded
    pairs,
    J,
    splits,
    T: tl.constexpr,
):
    """The moments of all splits."""
    pair, valid, field, outer, inside = _pairs_at(pairs, J, T)
    if scatter is None:
        total = _summed(mass, pair, valid, pairs, splits)
        first = _summed(first_moment, field, inside, pairs.to(tl.int64) * T.H, splits)
        tl.store(mass_out + pair, total, mask=valid)
        tl.store(sum_out + outer, first, mask=inside)
    else:
        total, mean, within = _merged(
            mass,
            first_moment,
            scatter,
            pair,
            field,
            valid,
            inside,
            pairs.to(tl.int64),
            splits,
            T,
        )
        near = tl.load(origin + field, mask=inside, other=0.0)
        first = total[:, None] * (near + mean)
        tl.store(mass_out + pair, total, mask=valid)
        tl.store(sum_out + outer, first, mask=inside)
        tl.store(scatter_out + outer, within, mask=inside)
        rounded = first / _positive(total, T)[:, None] - near
        tl.store(rest_out + outer, mean - rounded, mask=inside)


@triton.jit
def _window_log_partition(
    log_partition,
    first_log_partition,
    place,
    inside,
    row,
    places,
    block: tl.constexpr,
    dtype: tl.constexpr,
):
    """The log-partition of a child over the parents of one window that sees it; -inf
    where none does. Without ``log_partition`` it is that of the first step.
    """
    if log_partition is None:
        value = tl.full([block], first_log_partition, dtype)
        value = tl.where(place >= 0, value, float("-inf"))
    else:
        value = tl.load(
            log_partition + row * places + place,
            mask=inside & (place >= 0),
            other=float("-inf"),
        )
    return value


@triton.jit(do_not_specialize=["rows", "G", "places", "slots"])
def combine_kernel(
    log_partition,  # over the parents of each window, [N, W * I]; None for the first step
    seen,  # where each grid child is in windows, [G, slots]; -1 for nowhere
    combined,  # out: [N, G]
    rows,  # N
    G,
    places,  # W * I
    slots,
    # The log-partition over the parents of one window in the first step
    first_log_partition: tl.constexpr,
    block: tl.constexpr,
    dtype: tl.constexpr,
):
    """The log-partition of each child over the parents of all windows that see it; 0
    where none does.
    """
    child = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = child < rows * G
    row, site = child // G, child % G
    top = tl.full([block], float("-inf"), dtype)
    for slot in range(0, slots):
        place = tl.load(seen + site * slots + slot, mask=inside, other=-1)
        value = _window_log_partition(
            log_partition, first_log_partition, place, inside, row, places, block, dtype
        )
        top = tl.maximum(top, value)
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.full([block], 0.0, dtype)
    for slot in range(0, slots):
        place = tl.load(seen + site * slots + slot, mask=inside, other=-1)
        value = _window_log_partition(
            log_partition, first_log_partition, place, inside, row, places, block, dtype
        )
        total += tl.exp(value - top)
    unseen = total == 0.0
    combination = tl.where(unseen, 0.0, top + tl.log(tl.where(unseen, 1.0, total)))
    tl.store(combined + child, combination, mask=inside)


@triton.jit(do_not_specialize=["pairs", "J", "splits"])
def agreed_kernel(
    parts,  # sums of each split, [splits, B, H, J]
    bias,  # [J, H] or None
    alpha,  # what is added to the poses, [B, H, J], or None
    sums,  # out: what was squashed, [B, H, J], or None
    out,  # out: the poses, [B, J, H], or what the next step compares with, [B, H, J]
    pairs,
    J,
    splits,
    outer_layout: tl.constexpr,  # of the poses
    scale: tl.constexpr,  # of the sums
    T: tl.constexpr,
):
    """The end of a step of routing by agreement."""
    pair, _, field, outer, inside = _pairs_at(pairs, J, T)
    total = _summed(parts, field, inside, pairs.to(tl.int64) * T.H, splits)
    total = total * scale
    if bias is not None:
        at = (pair % J)[:, None] * T.H + tl.arange(0, T.h)[None, :]
        total += tl.load(bias + at, mask=inside, other=0.0)
    if sums is not None:
        tl.store(sums + field, total, mask=inside)
    square = tl.sum(total * total, 1)
    pose = total * (tl.sqrt(square) / (T.constant + square))[:, None]
    if alpha is not None:
        pose += tl.load(alpha + field, mask=inside, other=0.0)
    if outer_layout:
        field = outer
    tl.store(out + field, pose, mask=inside)


@triton.jit(do_not_specialize=["pairs", "J", "splits"])
def agreed_backward_kernel(
    # Of what the next step compared with, of each split, [splits, B, H, J]; or of the
    # poses, [B, J, H]
    parts,
    later,  # what flows through the sum of poses from the steps after that, or None
    sums,  # [B, H, J]
    passed,  # out: what flows on to the steps before, [B, H, J], or None
    grad_sums,  # out: [B, H, J]
    pairs,
    J,
    splits,
    outer_layout: tl.constexpr,  # of the parts
    T: tl.constexpr,
):
    """The gradient of the sums of a step of routing by agreement."""
    _, _, field, outer, inside = _pairs_at(pairs, J, T)
    if outer_layout:
        grad = tl.load(parts + outer, mask=inside, other=0.0)
    else:
        grad = _summed(parts, field, inside, pairs.to(tl.int64) * T.H, splits)
    if later is not None:
        grad += tl.load(later + field, mask=inside, other=0.0)
    if passed is not None:
        tl.store(passed + field, grad, mask=inside)
    total = tl.load(sums + field, mask=inside, other=0.0)
    square = tl.sum(total * total, 1)
    n = tl.sqrt(square)
    part = 1.0 / (T.constant + square)
    slope = 2.0 * T.constant * part * part - part
    along = tl.sum(total * grad, 1) * slope / tl.where(n == 0.0, 1.0, n)
    grad = grad * (n * part)[:, None] + total * along[:, None]
    tl.store(grad_sums + field, grad, mask=inside)


@triton.jit
def _cost(log_determinant, mass, unit_cost, scale, T: tl.constexpr):
    """The cost of each parent, [j], and the size of what it was added up from."""
    half = scale / 2
    cost = (scale * T.H * unit_cost + half * log_determinant) * mass
    terms = T.H * tl.abs(unit_cost) + (T.H + tl.abs(log_determinant)) / 2
    return cost, tl.abs(scale) * terms * mass


@triton.jit
def _deviation(cost, inside, J, floor, T: tl.constexpr):
    """Costs about their mean, their deviation with its floor, and the mean of their
    absolute values.
    """
    centred = tl.where(inside, cost - tl.sum(cost, 0) / J, 0.0)
    square = tl.sum(centred * centred, 0) / J + 1e-8
    size = tl.sum(tl.abs(cost), 0) / J
    if T.cost_floor:
        square += floor * size * (floor * size)
    return centred, tl.sqrt(square), size


EPSILON = tl.constexpr(1.1920928955078125e-07)
RESOLVED = tl.constexpr(5e-5)
"""As :func:`torchcaps.routing.em_costs.standardised` has them."""


@triton.jit
def _rounding(terms, deviation, before, row, J):
    """What rounding is of the costs."""
    size = tl.sum(terms, 0) / J
    rounding = EPSILON * size
    if before is not None:
        share, logit = tl.load(before + row * 2), tl.load(before + row * 2 + 1)
        rounding += tl.minimum(share * deviation, logit * size)
    return rounding


@triton.jit
def _row_at(J, T: tl.constexpr):
    """The row of this program, its parents [j], what is inside, and their numbers, as
    the passes have them, and as callers do.
    """
    row = tl.program_id(0).to(tl.int64)
    j, h = tl.arange(0, T.j), tl.arange(0, T.h)
    inside = j < J
    pair = row * J + j
    field = (row * T.H + h)[None, :] * J + j[:, None]
    outer = pair[:, None] * T.H + h[None, :]
    return row, j, inside, pair, field, outer, inside[:, None] & (h < T.H)[None, :]


@triton.jit
def _logsigmoid(x):
    """The logarithm of the logistic function."""
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit(do_not_specialize=["B", "J", "splits"])
def mixed_kernel(
    mass,  # of each split, [splits, B, J], as are the next two, [splits, B, H, J]
    first_moment,
    scatter,
    origin,  # what means are relative to, [B, H, J]
    unit_cost,  # [J]
    activation_cost,  # [J]
    before,  # what rounding was in the step before, [B, 2], or None
    mass_out,  # out: [B, J]
    mean,  # [B, H, J]
    pose,  # the same as the caller has it, [B, J, H], or None
    rest,  # what rounding took from the mean, [B, H, J]
    precision,  # times the sharpness, [B, H, J]
    logit,  # of the activation, [B, J]
    log_weight,  # of the next E-step, [B, J]
    rounding_out,  # [B, 2]
    numbers,  # of the step: those of :func:`torchcaps.ops.fused.triton_layers.numbers_of`
    B,
    J,
    splits,
    T: tl.constexpr,
):
    """The M-step of EM routing: :class:`torchcaps.routing.EMRouting`."""
    inverse_temperature, floor = tl.load(numbers), tl.load(numbers + 1)
    scale, activation_scale = tl.load(numbers + 2), tl.load(numbers + 3)
    cost_floor, sharpness = tl.load(numbers + 4), tl.load(numbers + 5)
    row, j, inside, pair, field, outer, whole = _row_at(J, T)
    total, common, within = _merged(
        mass,
        first_moment,
        scatter,
        pair,
        field,
        inside,
        whole,
        B.to(tl.int64) * J,
        splits,
        T,
    )
    near = tl.load(origin + field, mask=whole, other=0.0)
    there = (total > T.tiny)[:, None]
    centre = tl.where(there, near + common, 0.0)
    tl.store(mean + field, centre, mask=whole)
    if pose is not None:
        tl.store(pose + outer, centre, mask=whole)
    tl.store(rest + field, tl.where(there, common - (centre - near), 0.0), mask=whole)
    variance = tl.where(there, within / _positive(total, T)[:, None], 0.0) + floor
    tl.store(precision + field, sharpness / variance, mask=whole)
    log_determinant = tl.sum(tl.where(whole, tl.log(variance), 0.0), 1)
    beta = tl.load(unit_cost + j, mask=inside, other=0.0)
    cost, terms = _cost(log_determinant, total, beta, scale, T)
    if T.standardise:
        cost, terms = tl.where(inside, cost, 0.0), tl.where(inside, terms, 0.0)
        centred, deviation, _ = _deviation(cost, inside, J, cost_floor, T)
        rounding = _rounding(terms, deviation, before, row, J)
        divisor = tl.maximum(deviation, rounding / RESOLVED)
        cost = centred / divisor
        tl.store(rounding_out + row * 2, rounding / deviation)
        tl.store(
            rounding_out + row * 2 + 1, tl.abs(inverse_temperature) * rounding / divisor
        )
    raised = tl.load(activation_cost + j, mask=inside, other=0.0) * activation_scale
    logits = inverse_temperature * raised - inverse_temperature * cost
    tl.store(mass_out + pair, total, mask=inside)
    tl.store(logit + pair, logits, mask=inside)
    if log_weight is not None:
        weight = _logsigmoid(logits) - 0.5 * sharpness * log_determinant
        tl.store(log_weight + pair, weight, mask=inside)


@triton.jit(do_not_specialize=["B", "J", "splits"])
def mixed_backward_kernel(
    mass,  # what mixed_kernel gave
    rest,
    precision,
    logit,
    unit_cost,
    before,
    grad_mean,  # of each split, [splits, B, H, J]; None for 0, as are the next four
    grad_pose,  # the same of the caller, [B, J, H]
    grad_precision,  # [splits, B, H, J]
    grad_log_weight,  # [splits, B, J]
    grad_logit,  # [B, J]
    base,  # out: the gradient of the share of a vote at the mean, [B, J]
    grad_sum,  # [B, H, J], of deviations from the mean as it is stored
    grad_scatter,  # [B, H, J]
    grad_unit_cost,  # [B, J]
    grad_activation_cost,  # [B, J]
    numbers,
    B,
    J,
    splits,
    T: tl.constexpr,
):
    """The gradients of the moments, and of the costs."""
    inverse_temperature, floor = tl.load(numbers), tl.load(numbers + 1)
    scale, activation_scale = tl.load(numbers + 2), tl.load(numbers + 3)
    cost_floor, sharpness = tl.load(numbers + 4), tl.load(numbers + 5)
    row, j, inside, pair, field, outer, whole = _row_at(J, T)
    count = B.to(tl.int64) * J
    total = tl.load(mass + pair, mask=inside, other=0.0)
    exact = tl.load(precision + field, mask=whole, other=1.0) / sharpness
    exact = tl.where(whole, exact, 1.0)
    log_determinant = -tl.sum(tl.log(exact), 1)
    logits = tl.load(logit + pair, mask=inside, other=0.0)
    beta = tl.load(unit_cost + j, mask=inside, other=0.0)

    flow = tl.full([T.j], 0.0, T.dtype)
    # The gradient of the logarithm of the determinant.
    slope = tl.full([T.j], 0.0, T.dtype)
    if grad_logit is not None:
        flow += tl.load(grad_logit + pair, mask=inside, other=0.0)
    if grad_log_weight is not None:
        weight = _summed(grad_log_weight, pair, inside, count, splits)
        flow += weight / (1.0 + tl.exp(logits))
        slope -= 0.5 * sharpness * weight
    tl.store(
        grad_activation_cost + pair,
        inverse_temperature * activation_scale * flow,
        mask=inside,
    )
    flow = -inverse_temperature * flow
    if T.standardise:
        cost, terms = _cost(log_determinant, total, beta, scale, T)
        cost, terms = tl.where(inside, cost, 0.0), tl.where(inside, terms, 0.0)
        centred, deviation, size = _deviation(cost, inside, J, cost_floor, T)
        rounding = _rounding(terms, deviation, before, row, J)
        divisor = tl.maximum(deviation, rounding / RESOLVED)
        through = tl.sum(flow * centred, 0) / (divisor * divisor * deviation * J)
        through = tl.where(deviation >= rounding / RESOLVED, through, 0.0)
        flow = tl.where(inside, flow / divisor - through * centred, 0.0)
        flow -= tl.sum(flow, 0) / J
        if T.cost_floor:
            sign = tl.where(cost > 0.0, 1.0, tl.where(cost < 0.0, -1.0, 0.0))
            flow -= through * (cost_floor * cost_floor) * size * sign
    half = scale / 2
    tl.store(grad_unit_cost + pair, flow * total * (scale * T.H), mask=inside)
    slope += flow * total * half
    grad_total = flow * (scale * T.H * beta + half * log_determinant)

    there = (total > T.tiny)[:, None]
    share = tl.where(there, 1.0 / _positive(total, T)[:, None], 0.0)
    # The gradient of the variance.
    spread = slope[:, None] * exact
    if grad_precision is not None:
        steep = _summed(grad_precision, field, whole, count * T.H, splits)
        spread -= sharpness * steep * exact * exact
    spread = tl.where(whole, spread * share, 0.0)
    grad_total -= tl.sum(spread * (1.0 / exact - floor), 1)
    moved = tl.full([T.j, T.h], 0.0, T.dtype)
    if grad_mean is not None:
        moved = _summed(grad_mean, field, whole, count * T.H, splits) * share
    if grad_pose is not None:
        moved += tl.load(grad_pose + outer, mask=whole, other=0.0) * share
    rounded = tl.load(rest + field, mask=whole, other=0.0)
    grad_total -= tl.sum(moved * rounded, 1)
    tl.store(base + pair, grad_total, mask=inside)
    tl.store(grad_sum + field, moved - 2.0 * spread * rounded, mask=whole)
    tl.store(grad_scatter + field, spread, mask=whole)
