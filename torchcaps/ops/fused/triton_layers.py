"""All steps of a routing in Triton, forward and backward: a few launches each.

Between two passes over the children lies one kernel of
:mod:`torchcaps.ops.fused.triton_parents`, and nothing in PyTorch.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.fused import triton_kernels as device
from torchcaps.ops.fused import triton_parents as between
from torchcaps.ops.fused.call import Agreement, Call, EMOptions, EMSteps
from torchcaps.ops.fused.triton_launch import (
    DTYPES,
    Gradients,
    Launch,
    Parents,
    by_parent,
    empty_fields,
    run,
    tile_count,
)


class Agreed(NamedTuple):
    """What :func:`agreement` gives.

    Args:
        pose: (B, J, H).
        alphas: what the steps but the first compared with, (steps - 1, B, H, J).
        sums: what was squashed, (steps, B, H, J).
    """

    pose: Tensor
    alphas: Tensor
    sums: Tensor


def agreement(call: Call, bias: Tensor | None, settings: Agreement) -> Agreed:
    """All steps of routing by agreement; see :class:`torchcaps.routing.DynamicRouting`.

    Args:
        call: the call of the votes, without similarity, weights and log-partition.
        bias: (J, H) or None.
        settings: the settings of the algorithm.
    """
    steps, constant, accumulate, leaky = settings
    launch = Launch(call, None, "moments", leaky=leaky)
    B, J, H = launch.B, launch.J, launch.H
    sums = launch.empty(steps, B, H, J)
    alphas = launch.empty(steps - 1, B, H, J)
    pose = launch.empty(B, J, H)
    parents = launch.parents(constant=constant)
    for step in range(steps):
        scale = 1.0
        if step:
            _, parts, *_ = launch.comparing(alphas[step - 1]).moments(False)
        elif _flat(call):
            children, transforms, _ = launch.votes
            parts = children.flatten(1) @ transforms.flatten(2).flatten(0, 1)
            parts, scale = parts[None], 1 / (J + leaky)
        else:
            _, parts, *_ = launch.moments(False)
        last = step == steps - 1
        adds = accumulate and step > 0 and not last
        parents(
            between.agreed_kernel,
            parts,
            bias,
            alphas[step - 1] if adds else None,
            sums[step],
            pose if last else alphas[step],
            B * J,
            J,
            len(parts),
            last,
            scale,
        )
    return Agreed(pose, alphas, sums)


def _flat(call: Call) -> bool:
    """Whether the even sums of the votes are one matrix product."""
    children, transforms, coordinates, _, _, sites, _ = call
    vectors = children.shape[2] == 1 and len(transforms) == children.shape[1]
    same = children.dtype == transforms.dtype
    return vectors and same and coordinates is None and sites is None


def agreement_backward(
    call: Call,
    bias: Tensor | None,
    settings: Agreement,
    agreed: Agreed,
    grad_pose: Tensor,
    grad_alpha: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of children, transforms, coordinates and bias.

    Args:
        call: as in :func:`agreement`.
        bias: likewise.
        settings: likewise.
        agreed: what that gave.
        grad_pose: (B, J, H).
        grad_alpha: the gradient of what the last step compared with, (B, H, J), or
            None.
    """
    steps, constant, accumulate, leaky = settings
    launch = Launch(call, None, "flow", leaky=leaky)
    parents = launch.parents(constant=constant)
    grad_sums = torch.empty_like(agreed.sums)
    parts, later = grad_pose[None], None
    for step in reversed(range(steps)):
        passed = (
            torch.empty_like(grad_pose) if accumulate and step < steps - 1 else None
        )
        parents(
            between.agreed_backward_kernel,
            parts,
            later,
            agreed.sums[step],
            passed,
            grad_sums[step],
            launch.B * launch.J,
            launch.J,
            len(parts),
            step == steps - 1,
        )
        later = passed if step < steps - 1 else grad_alpha
        if step:
            compared = launch.comparing(agreed.alphas[step - 1])
            (parts,) = empty_fields(compared)
            compared(
                device.moments_backward_kernel,
                *launch.votes,
                None,
                None,
                None,
                call.sites,
                *compared.similarity,
                None,
                None,
                None,
                None,
                grad_sums[step],
                None,
                None,
                None,
                None,
                None,
                None,
                parts,
                None,
                None,
            )
    grads = _agreed_votes(launch, agreed, grad_sums, leaky)
    grad_bias = None if bias is None else grad_sums.sum((0, 1)).mT.contiguous()
    return (*grads, grad_bias)


def _agreed_votes(
    launch: Launch, agreed: Agreed, grad_sums: Tensor, leaky: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of children, transforms and coordinates: two steps at a time, the
    even one beside the first two.
    """
    launch, steps = launch.for_work("passing"), len(grad_sums)
    # Several passes add to the gradients of the children.
    if steps > 3:
        launch.tile = replace(launch.tile, overlap=True)
    launch.tile = replace(launch.tile, even=1 / (launch.J + leaky))
    grads = Gradients(launch)
    even: Tensor | None = grad_sums[0]
    compared = [(agreed.alphas[k - 1], grad_sums[k]) for k in range(1, steps)]
    while even is not None or compared:
        first, second = (*compared[:2], (None, None), (None, None))[:2]
        launch(
            device.agreement_backward_kernel,
            *launch.votes,
            launch.source.sites,
            even,
            *first,
            *second,
            *grads.votes,
        )
        even, compared = None, compared[2:]
    return grads.children, grads.in_order(), grads.coordinates


def mixture(
    call: Call,
    seen: Tensor | None,
    unit_cost: Tensor,
    activation_cost: Tensor,
    settings: EMOptions,
) -> EMSteps:
    """All steps of EM routing; see :class:`torchcaps.routing.EMRouting`.

    Args:
        call: the call of the votes with their weights, without similarity and
            log-partition.
        seen: where each grid child is in the windows,
            :meth:`torchcaps.ops.Windows.seen`, if all parents that see it compete for
            it; None if those of one window do.
        unit_cost: beta_u, (J,).
        activation_cost: beta_a, (J,).
        settings: the settings of the steps.
    """
    launch = Launch(call, None, "scatter")
    steps = len(settings.inverse_temperatures)
    out = EMSteps.empty(call, seen, steps)
    parents = _parents_between(launch, settings)
    numbers = numbers_of(settings, launch.dtype, call.children.device)
    for step in range(steps):
        compared = launch
        if step:
            before = out.means, out.precisions, out.log_weights
            compared = launch.comparing(*(field[step - 1] for field in before))
        partition = None
        if seen is not None:
            partition = out.partitions[step]
            _combine(compared if step else None, launch, seen, partition)
        moments = compared.moments(True, partition)
        last = step == steps - 1
        parents.by_row(
            between.mixed_kernel,
            *moments,
            unit_cost,
            activation_cost,
            out.roundings[step - 1] if step else None,
            out.masses[step],
            out.means[step],
            out.mean if last else None,
            out.rests[step],
            out.precisions[step],
            out.logit if last else out.logits[step],
            None if last else out.log_weights[step],
            out.roundings[step],
            numbers[step],
            launch.B,
            launch.J,
            len(moments[0]),
        )
    return out


def _parents_between(launch: Launch, settings: EMOptions) -> Parents:
    """What launches the M-steps, and their gradients."""
    cost_floor = settings.cost_floor > 0
    return launch.parents(standardise=settings.standardise, cost_floor=cost_floor)


@lru_cache(maxsize=64)
def numbers_of(settings: EMOptions, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The numbers of each M-step, (steps, 6), on the device: read there, they have the
    digits of float64, where an argument of a kernel has those of float32.
    """
    common = settings.floor, settings.cost_scale, settings.activation_scale
    sharpness = (*settings.sharpness, 1.0)
    rows = [
        (inverse_temperature, *common, settings.cost_floor, sharpness[step])
        for step, inverse_temperature in enumerate(settings.inverse_temperatures)
    ]
    with torch.inference_mode(False):
        return torch.tensor(rows, dtype=dtype, device=device)


def _combine(
    compared: Launch | None, launch: Launch, seen: Tensor, into: Tensor
) -> None:
    """The log-partition of each child over the parents of all windows that see it.

    Args:
        compared: the votes with what they are compared with; None in the first step,
            where all logits are 0.
        launch: the launch of the votes.
        seen: as in :func:`mixture`.
        into: (N, G).
    """
    of_windows = None
    if compared is not None:
        of_windows = compared.for_work("scores").log_partition()
    if not into.numel():
        return
    sizes = *into.shape, launch.W * launch.I, seen.shape[1]
    constants = math.log(launch.J), _CHILDREN, DTYPES[launch.dtype]
    run(
        between.combine_kernel,
        (tile_count(into.numel(), _CHILDREN),),
        (of_windows, seen, into, *sizes, *constants),
        seen.device,
    )


_CHILDREN = 128
"""Of one program that combines log-partitions."""


def mixture_backward(
    call: Call,
    seen: Tensor | None,
    unit_cost: Tensor,
    mixed: EMSteps,
    upstream: Sequence[Tensor | None],
    settings: EMOptions,
) -> tuple[Tensor | None, ...]:
    """The gradients of children, transforms, coordinates, weights, beta_u and beta_a.

    Args:
        call: as in :func:`mixture`.
        seen: likewise.
        unit_cost: likewise.
        mixed: what that gave.
        upstream: the gradients of mean and logit, and of the last mean, precision and
            weight that votes were compared with; None for 0.
        settings: as there.
    """
    launch = Launch(call, None, "scatter backward")
    launch.tile = replace(launch.tile, overlap=True, based=True)  # all steps add
    grads, steps = Gradients(launch.alone()), len(settings.inverse_temperatures)
    mean_grads = mixed.mean.new_zeros((steps, *call.children.shape[:2]))
    costs = launch.empty(2, steps, launch.B, launch.J)
    parents = _parents_between(launch, settings)
    numbers = numbers_of(settings, launch.dtype, call.children.device)
    grad_mean, grad_logit, *compared_with = upstream
    parts: list[Tensor | None] = [None, None, None]
    for step in reversed(range(steps)):
        fields = [launch.empty(launch.B, launch.J)]
        fields += [torch.empty_like(mixed.means[step]) for _ in range(2)]
        last = step == steps - 1
        parents.by_row(
            between.mixed_backward_kernel,
            mixed.masses[step],
            mixed.rests[step],
            mixed.precisions[step],
            mixed.logit if last else mixed.logits[step],
            unit_cost,
            mixed.roundings[step - 1] if step else None,
            parts[0],
            grad_mean if last else None,
            *parts[1:],
            grad_logit if last else None,
            *fields,
            costs[0, step],
            costs[1, step],
            numbers[step],
            launch.B,
            launch.J,
            1 if parts[0] is None else parts[0].shape[0],
        )
        parts = _mixed_pass(launch, seen, grads, mixed, step, mean_grads[step], fields)
        if last and step:
            parts = [*map(_with, parts, compared_with)]
    grad_weights = None if call.weights is None else mean_grads.sum(0)
    grad_costs = [each.sum((0, 1)) for each in costs]  # compilers want no views
    return (
        grads.children,
        grads.in_order(),
        grads.coordinates,
        grad_weights,
        *grad_costs,
    )


def _with(parts: Tensor | None, extra: Tensor | None) -> Tensor | None:
    """A gradient as one more part; None for 0."""
    if parts is None or extra is None:
        return parts
    extra = by_parent(extra) if extra.ndim == 3 else extra
    return torch.cat([parts, extra[None]])


def _mixed_pass(
    launch: Launch,
    seen: Tensor | None,
    grads: Gradients,
    mixed: EMSteps,
    step: int,
    mean_grads: Tensor,
    moments: Sequence[Tensor],
) -> list[Tensor | None]:
    """Adds the gradients of one step, and returns those of what it compared with.

    Args:
        launch: the launch of the votes.
        seen: as in :func:`mixture`.
        grads: added to.
        mixed: what :func:`mixture` gave.
        step: from 0.
        mean_grads: the mean_grads of the children in this step, (N, G), zeros; filled if
            wanted.
        moments: the gradients of those of the step.
    """
    call, mean = launch.source, mixed.means[step]
    partition = None if seen is None else mixed.partitions[step]
    compared, summed = launch, None
    parts: list[Tensor | None] = [None, None, None]
    if step:
        fields = mixed.means, mixed.precisions, mixed.log_weights
        compared = launch.comparing(*(field[step - 1] for field in fields))
        parts[:] = empty_fields(compared)
        if seen is not None:
            first = compared.for_work("mean_grads")
            first.tile = replace(first.tile, overlap=True, based=True)
            first(
                device.mean_grads_kernel,
                *launch.votes,
                partition,
                call.sites,
                *compared.similarity,
                mean,
                None,
                *moments,
                mean_grads,
            )
            summed = mean_grads
    weighed = mean_grads if call.weights is not None and summed is None else None
    compared(
        device.moments_backward_kernel,
        *launch.votes,
        call.weights,
        partition,
        None,
        call.sites,
        *compared.similarity,
        mean,
        None,
        summed,
        *moments,
        *grads.votes,
        weighed,
        None,
        *parts,
    )
    return parts
