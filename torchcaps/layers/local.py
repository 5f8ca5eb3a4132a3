"""Locally constrained capsules: each place routes the types of children in its window,
down, along or up a grid.
"""

import math
from itertools import product
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import CapsuleLayer, Capsules, from_pair
from torchcaps.layers.pose import (
    check_axes,
    check_map,
    start_vote_bias,
    vote_bias_of,
    without_own_transforms,
)
from torchcaps.layers.pose_norm import PoseScale, norm_of
from torchcaps.numerics import check_choice, check_size
from torchcaps.ops import Votes
from torchcaps.ops.plan import known_backend
from torchcaps.routing import DynamicRouting, LayerShape, Routing, as_capsules
from torchcaps.routing.base import routing_of
from torchcaps.spec import repr_of

Resolution = Literal["same", "half", "double"]


class LocalCaps(CapsuleLayer):
    r"""Route the types of children in the window of each place to capsules at that
    place.

    The vote of a type of children for a type of parents is a sum over the window,

    .. math:: V_{ij} = \sum_{k \in \text{window}} W_{ijk} u_{ik},

    and routing decides, at each place alone, which types belong to which: I types of
    children are all that is clustered there, however large the window, and memory does
    not grow with it. ``double`` is deconvolution: each of the parents, which lie twice
    as dense, sees the two children nearest to it along each axis (a transposed
    convolution of kernel 4 and stride 2). A place outside of the grid votes 0.

    Args:
        in_types: the number of types of children at each place, I.
        out_types: the number of types of parents, J.
        in_dim: dimension of the children's poses.
        out_dim: the size of the parents' poses.
        kernel_size: side of a window, odd; of no effect with ``double``.
        resolution: of the parents' grid: that of the children, half of it (rounded up),
            or the double.
        axes: the number of axes of the grid: 1, 2 or 3.
        routing: any routing, or the name of one; default: dynamic routing in 3 steps.
        pose_norm: how to normalise the parents' poses, a row of the table in
            :class:`~torchcaps.layers.PoseNorm`; None for not at all.
        vote_bias: whether to add a learned bias to the votes, :math:`V_{ij} = u_i
            W_{ij} + b_{ij}`. Without it most routings give the children u and -u the
            same activations.
        backend: one of :data:`~torchcaps.ops.BACKENDS`, ``"auto"``, or None for the
            plan's choice.

    Shape:
        Poses (B, *grid, in_types, in_dim) to (B, *grid', out_types, out_dim), and
        activations likewise; those of the children are not used: a child stands for all
        places of a window, which have many.

    Raises:
        TypeError: if the children are no :class:`Capsules`.
        ValueError: if an argument is out of its range, or the children do not fit the
            layer.

    Source: LaLonde & Bagci 2018, "Capsules for Object Segmentation", section 3 (whose
    released code shares W among the types of children).

    Example:
        >>> up = tc.layers.LocalCaps(4, 2, in_dim=8, out_dim=8, resolution="double")
        >>> up(
        ...     tc.Capsules(torch.randn(1, 5, 7, 4, 8), torch.rand(1, 5, 7, 4))
        ... ).pose.shape
        torch.Size([1, 10, 14, 2, 8])
    """

    def __init__(
        self,
        in_types: int,
        out_types: int,
        in_dim: int,
        out_dim: int,
        kernel_size: int = 3,
        resolution: Resolution = "same",
        axes: int = 2,
        *,
        routing: Routing | str | None = None,
        pose_norm: PoseScale | None = None,
        vote_bias: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_size(
            in_types=in_types,
            out_types=out_types,
            in_dim=in_dim,
            out_dim=out_dim,
            kernel_size=kernel_size,
        )
        check_choice("resolution", resolution, get_args(Resolution))
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {kernel_size}")
        self.in_types = in_types
        self.out_types = out_types
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.kernel_size = 2 if resolution == "double" else kernel_size
        self.resolution = resolution
        self.axes = check_axes(axes)
        self.backend = known_backend(backend)
        seen = self.kernel_size**axes * in_dim
        phases = 2**axes if resolution == "double" else 1
        self.weight = nn.Parameter(
            torch.empty(phases, in_types, out_types, seen, out_dim)
        )
        # Poses whose numbers have variance 1, as PoseNorm makes them, give even sums of
        # votes of about unit length: where they are longer, a squash saturates, and
        # nothing but the direction of a pose gets through.
        std = out_types / math.sqrt(out_dim * in_types * seen)
        nn.init.normal_(self.weight, std=std)
        shape = LayerShape(in_types, out_types, (seen,), (out_dim,))
        self.routing = routing_of(shape, routing, DynamicRouting(squash="half"))
        self.bias = vote_bias_of(self, self.routing, vote_bias, (out_dim,))
        start_vote_bias(self.bias, std)
        without_own_transforms(self, self.routing)
        self.pose_norm = norm_of(out_types, out_dim, pose_norm)

    def windows(self, pose: Tensor) -> list[Tensor]:
        """Return the windows of each phase, (B, *grid', in_types, numbers), from poses
        (B, *grid, in_types, in_dim).
        """
        double = self.resolution == "double"
        stride = 2 if self.resolution == "half" else 1
        border = 1 if double else self.kernel_size // 2
        padded = F.pad(pose, (0, 0, 0, 0) + (border, border) * self.axes)
        for axis in range(1, self.axes + 1):
            padded = padded.unfold(axis, self.kernel_size, stride)
        flat = padded.movedim(self.axes + 2, -1).flatten(self.axes + 2)
        if not double:
            return [flat]
        grid = pose.shape[1:-2]
        parts = []
        for phase in product((0, 1), repeat=self.axes):
            part = flat
            for axis, (start, extent) in enumerate(zip(phase, grid, strict=True), 1):
                part = part.narrow(axis, start, extent)
            parts.append(part)
        return parts

    def forward(self, children: Capsules) -> Capsules:
        """Route the children in each window to the parents at its place."""
        children = from_pair(children)
        check_map(children, self.in_types, (self.in_dim,), self.axes)
        parts = []
        for phase, windows in enumerate(self.windows(children.pose)):
            rows = windows.flatten(0, self.axes)
            votes = Votes(rows, self.weight[phase], backend=self.backend)
            if self.bias is not None:
                votes = votes.with_bias(self.bias[phase])
            dtype = torch.promote_types(windows.dtype, self.weight.dtype)
            parents = as_capsules(self.routing(votes, None), (self.out_dim,), dtype)
            places = windows.shape[: self.axes + 1]
            parts.append([field.unflatten(0, places) for field in parents])
        pose, activation = map(self._woven, zip(*parts, strict=True))
        return Capsules(
            pose if self.pose_norm is None else self.pose_norm(pose), activation
        )

    def _woven(self, phases: tuple[Tensor, ...]) -> Tensor:
        """Weave the phases, each (B, *grid, ...), into the grid of the parents."""
        if len(phases) == 1:
            return phases[0]
        axes = self.axes
        # [B, *grid, *phase, ...]
        woven = torch.stack(phases, 1 + axes).unflatten(1 + axes, (2,) * axes)
        order = [place for axis in range(axes) for place in (1 + axis, 1 + axes + axis)]
        woven = woven.permute(0, *order, *range(1 + 2 * axes, woven.ndim))
        for axis in range(1, axes + 1):
            woven = woven.flatten(axis, axis + 1)
        return woven

    def extra_repr(self) -> str:
        """Return types, poses and window."""
        settings = repr_of(
            self, "in_dim", "out_dim", "kernel_size", "resolution", "axes"
        )
        return f"{self.in_types}, {self.out_types}, {settings}"
