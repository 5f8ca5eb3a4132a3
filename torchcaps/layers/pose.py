"""Shapes of poses and of grids of capsules, as layers take them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.numerics import check_series, check_size, check_sizes
from torchcaps.routing import Routing

Pose = int | tuple[int, int]
"""D for vector capsules, (M, D) for matrix capsules."""

PerAxis = int | tuple[int, ...]
"""One number for all axes of a grid, or one for each."""

AXES = {1: "L", 2: "H, W", 3: "D, H, W"}
"""The axes of a grid by their number: a sequence, an image, a volume."""


def pose_shape(argument: str, pose: Pose | tuple[int, ...]) -> tuple[int, ...]:
    """Return (D,) or (M, D).

    Raises:
        ValueError: if it is neither, or a number is less than 1; names the argument.
    """
    if not isinstance(pose, Sequence):
        check_size(**{argument: pose})
        return (int(pose),)
    check_series(**{argument: pose})
    if len(pose) > 2:
        raise ValueError(
            f"{argument} must be D for vectors or (M, D) for matrices, got {pose!r}"
        )
    return tuple(pose)


def pose_shapes(
    in_pose: Pose, out_pose: Pose
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the poses of children and of parents, each (D,) or (M, D).

    Raises:
        ValueError: if one is neither, or they have different rows: a transform acts on
            the columns.
    """
    children = pose_shape("in_pose", in_pose)
    parents = pose_shape("out_pose", out_pose)
    if len(children) != len(parents) or children[:-1] != parents[:-1]:
        raise ValueError(
            f"poses must have the same rows: in_pose is {children}, out_pose is "
            f"{parents}"
        )
    return children, parents


def check_axes(axes: int) -> int:
    """Return the number of axes of a grid, checked.

    Raises:
        ValueError: if it is not 1, 2 or 3.
    """
    if axes not in AXES:
        raise ValueError(f"axes must be one of {list(AXES)}, got {axes!r}")
    return axes


def per_axis(argument: str, value: PerAxis, axes: int, least: int) -> tuple[int, ...]:
    """Return one number for each axis of a grid.

    Raises:
        ValueError: if there are more or fewer, or one is less than ``least``; names the
            argument.
    """
    if not isinstance(value, Sequence):
        check_size(least, **{argument: value})
        return (value,) * axes
    check_sizes(least, **{argument: value})
    numbers = tuple(value)
    if len(numbers) != axes:
        raise ValueError(
            f"{argument} must be one number, or {axes}, one for each axis, got {value}"
        )
    return numbers


def check_map(
    children: Capsules, types: int, pose: tuple[int, ...], axes: int
) -> tuple[int, ...]:
    """Return the size of the grid on which children lie, (B, *grid, types).

    Raises:
        TypeError: if they are no :class:`Capsules`.
        ValueError: if the grid has another number of axes, there are other types or
            poses, or the poses are complex.
    """
    if not isinstance(children, Capsules):
        raise TypeError(
            "children must be Capsules, poses with activations, got "
            f"{type(children).__name__}"
        )
    if children.pose.is_complex():
        raise ValueError(f"children must be real, got {children.pose.dtype}")
    sites = children.activation.shape
    if (
        len(sites) != axes + 2
        or sites[-1] != types
        or children.pose.shape != (*sites, *pose)
    ):
        grid = AXES[axes]
        raise ValueError(
            f"children must have poses (B, {grid}, {types}, "
            f"{', '.join(map(str, pose))}) and activations "
            f"(B, {grid}, {types}), got {tuple(children.pose.shape)} and {tuple(sites)}"
        )
    return tuple(sites[1:-1])


def without_own_transforms(layer: nn.Module, routing: Routing) -> None:
    """Make the transforms, ``weight``, of a layer zeros that are not learned, if its
    routing has transforms.
    """
    if routing.own_transforms:
        fix_weight(layer, torch.zeros_like)


def vote_bias_of(
    layer: nn.Module, routing: Routing, vote_bias: bool, pose: tuple[int, ...]
) -> nn.Parameter | None:
    r"""Return the biases of a layer's votes, :math:`V_{ij} = u_i W_{ij} + b_{ij}`, not
    yet drawn; None without them.

    Votes are linear in the pose of a child, so without a bias a child and its negative,
    -u, vote for opposite poses of equal length, and most routings give their parents
    equal activations. A bias is what one more number in the pose, 1, and one more row
    in the transform would give. It has a number for each number of the vote, so the M
    rows of a matrix pose may have different ones. A layer with biases is not
    equivariant to the poses of its children: for :math:`T u` it has votes :math:`T u W
    + b`.

    Args:
        layer: with transforms ``weight``, (..., P, D); the biases have the same axes
            before the pose.
        routing: the routing of the layer.
        vote_bias: whether there are biases.
        pose: the pose of the parents.

    Raises:
        ValueError: if there should be biases, and the routing has transforms of its
            own.

    Source: Peer, Stabinger & Rodriguez-Sanchez 2019, "Limitations of
    routing-by-agreement based capsule networks", arXiv 1905.08744.
    """
    if not vote_bias:
        return None
    if routing.own_transforms:
        raise ValueError(
            f"vote_bias must be False with {type(routing).__name__}, which forms no "
            "votes by itself"
        )
    weight: Tensor = layer.get_parameter("weight")
    return nn.Parameter(torch.empty(*weight.shape[:-2], math.prod(pose)))


def start_vote_bias(bias: Tensor | None, deviation: float) -> None:
    """Draw the biases of votes, if there are any, from a normal distribution.

    A tenth of the transforms' deviation is enough to tell a child from its negative. A
    bias is the same for all images and for all places: as large as the transforms, it
    drowned the votes of short poses, and two layers did not learn.

    Args:
        bias: the bias of the votes, or None.
        deviation: the deviation of the transforms.
    """
    if bias is not None:
        nn.init.normal_(bias, std=deviation / 10)


def fix_weight(layer: nn.Module, values: Callable[..., Tensor]) -> None:
    """Make the parameter ``weight`` of a layer a :func:`fixed_buffer`.

    Args:
        layer: any with that parameter.
        values: makes the buffer.
    """
    weight = layer.get_parameter("weight").detach()
    del layer.weight
    fixed_buffer(layer, "weight", weight, values)


def fixed_buffer(
    module: nn.Module, name: str, like: Tensor, values: Callable[..., Tensor]
) -> None:
    """Register a buffer that is always the same, and so neither learned nor saved.

    Args:
        module: any.
        name: the name of the buffer.
        like: a tensor of its dtype and device.
        values: makes the buffer, from such a tensor and a ``device``. It is made anew
            whenever a state is loaded: if the network was built on the device "meta",
            the buffer is not initialised before.
    """
    module.register_buffer(name, values(like, device=like.device), persistent=False)
    module.register_load_state_dict_pre_hook(partial(_make_anew, name, values))


def _make_anew(
    name: str,
    values: Callable[..., Tensor],
    module: nn.Module,
    state: dict[str, Tensor],
    prefix: str,
    metadata: Any,
    *_: Any,
) -> None:
    buffer = module.get_buffer(name)
    assigned = metadata.get("assign_to_params_buffers", False) and state
    device = next(iter(state.values())).device if assigned else buffer.device
    setattr(module, name, values(buffer, device=device))


def present(children: Capsules, mask: Tensor | None) -> Capsules:
    """Return the children with poses and activations 0 where the mask, bool (B,
    *sites), is False, even if they are NaN.

    Raises:
        TypeError: if the mask is not a tensor.
        ValueError: if it is not bool, or of another shape.
    """
    if mask is None:
        return children
    if not isinstance(mask, Tensor):
        raise TypeError(f"mask must be a tensor, got {type(mask).__name__}")
    if mask.dtype != torch.bool or mask.shape != children.activation.shape:
        raise ValueError(
            f"mask must be bool {tuple(children.activation.shape)}, one value for each "
            f"child, got {mask.dtype} {tuple(mask.shape)}"
        )
    over_pose = mask.reshape(*mask.shape, *[1] * (children.pose.ndim - mask.ndim))
    return Capsules(
        torch.where(over_pose, children.pose, 0.0),
        torch.where(mask, children.activation, 0.0),
    )
