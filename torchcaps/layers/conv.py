"""Convolutional capsules: every window of children votes for the parents at its position."""

import math
from typing import Literal

import torch
from torch import nn

from torchcaps.capsules import Capsules
from torchcaps.layers.pose import Pose, check_map, check_rows, pose_shape
from torchcaps.layers.pose_norm import PoseNorm, PoseScale
from torchcaps.ops import ImageWide, Normaliser, Votes, Windows
from torchcaps.routing import EMRouting, Routed, Routing, as_capsules

Pair = int | tuple[int, int]
Competition = Literal["image", "window"]


class CapsConv2d(nn.Module):
    r"""Convolutional capsules.

    Each parent takes the votes of the children in its window, :math:`V_{ij} = u_i W_{ij}`, with transforms for each
    place in the window, type of child and type of parent, shared by all positions.

    Args:
        in_types: types of children at each position.
        out_types: types of parents at each position.
        in_pose: child pose: P for vectors, (M, P) for matrices.
        out_pose: parent pose: D for vectors, (M, D) for matrices.
        kernel_size: of the windows.
        stride: between windows.
        padding: positions added on each side; children there have activation 0.
        dilation: between the positions of a window.
        groups: types of children and of parents are cut into that many groups that do not see each other.
        routing: any routing; the layer keeps copies of its own. Default: EM routing.
        competition: which parents compete for a child: all that see it, in the whole ``"image"`` (the paper's meaning),
            or only those of one ``"window"``, each window for itself (as in most ports).
        pose_norm: normalise the parents' poses, see :class:`~torchcaps.layers.PoseNorm`; None leaves them.
        init_std: deviation of the transforms' normal initialisation; None for sqrt(I / P), with I children in a window
            (of a group): the mean vote of children that agree on nothing then has their deviation, at any depth.
        backend: ``"naive"``, ``"chunked"``, or None for the dispatcher's choice.

    Shape:
        Capsules with poses (B, H, W, in_types, *in_pose) and activations (B, H, W, in_types) to poses (B, H', W',
        out_types, *out_pose) and activations (B, H', W', out_types).

    Raises:
        ValueError: if arguments contradict each other, or the children do not fit them.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", section 4.
    """

    def __init__(
        self,
        in_types: int,
        out_types: int,
        in_pose: Pose,
        out_pose: Pose,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        *,
        routing: Routing | None = None,
        competition: Competition = "image",
        pose_norm: PoseScale | None = None,
        init_std: float | None = 0.3,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride = _pair("kernel_size", kernel_size, 1), _pair("stride", stride, 1)
        self.padding, self.dilation = _pair("padding", padding, 0), _pair("dilation", dilation, 1)
        if min(in_types, out_types, groups) < 1:
            raise ValueError(
                f"in_types, out_types and groups must be at least 1, got {in_types}, {out_types} and {groups}"
            )
        if in_types % groups or out_types % groups:
            raise ValueError(f"groups must divide in_types and out_types, got {groups} for {in_types} and {out_types}")
        if competition not in ("image", "window"):
            raise ValueError(f"competition must be 'image' or 'window', got {competition!r}")
        self.in_types, self.out_types, self.groups = in_types, out_types, groups
        self.in_pose, self.out_pose = pose_shape(in_pose), pose_shape(out_pose)
        check_rows(self.in_pose, self.out_pose)
        self.competition = competition
        self.backend = backend
        places = math.prod(self.kernel_size)
        self.weight = nn.Parameter(
            torch.empty(places, in_types, out_types // groups, self.in_pose[-1], self.out_pose[-1])
        )
        template = routing or EMRouting()
        size = math.prod(self.out_pose)
        self.routings = nn.ModuleList(template.bind(out_types // groups, size) for _ in range(groups))
        self.pose_norm = None if pose_norm is None else PoseNorm(out_types, out_pose, pose_norm)
        if init_std is None:
            init_std = math.sqrt(places * in_types // groups / self.in_pose[-1])
        nn.init.normal_(self.weight, std=init_std)

    def route(self, children: Capsules) -> list[Routed]:
        """Routes each group and keeps what an observer wants; batch and windows share the first axis."""
        windows = self._windows(children)
        share = self.in_types // self.groups
        routed = []
        for group, routing in enumerate(self.routings):
            types = slice(group * share, (group + 1) * share)
            pose = windows.pad(children.pose[:, :, :, types])
            activation = windows.pad(children.activation[:, :, :, types])
            normaliser = ImageWide(windows=windows, types=share) if self.competition == "image" else Normaliser()
            transforms = self.weight[:, types].flatten(0, 1)
            sites = windows.children(share, pose.device)
            votes = Votes(pose, transforms, normaliser=normaliser, backend=self.backend, sites=sites)
            routed.append(routing(votes, activation))
        return routed

    def forward(self, children: Capsules) -> Capsules:
        """Routes the children of each window to the parents at its position."""
        out = self._windows(children).out
        dtype = torch.promote_types(children.pose.dtype, self.weight.dtype)
        parts = [as_capsules(routed, self.out_pose, dtype) for routed in self.route(children)]
        pose = torch.cat([part.pose for part in parts], dim=1).unflatten(0, (-1, *out))
        activation = torch.cat([part.activation for part in parts], dim=1).unflatten(0, (-1, *out))
        parents = Capsules(pose, activation)
        return parents if self.pose_norm is None else self.pose_norm(parents)

    @property
    def routing(self) -> Routing:
        """The routing of the first group; the others have the same settings."""
        return self.routings[0]  # type: ignore[return-value]

    def _windows(self, children: Capsules) -> Windows:
        check_map(children, self.in_types, self.in_pose)
        _, height, width, _ = children.activation.shape
        size = (height, width)
        return Windows(size, self.kernel_size, self.stride, self.padding, self.dilation)

    def extra_repr(self) -> str:
        """Shapes, window and competition."""
        return (
            f"{self.in_types}, {self.out_types}, in_pose={self.in_pose}, out_pose={self.out_pose}, "
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, competition={self.competition!r}"
        )


def _pair(argument: str, value: Pair, least: int) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if min(pair) < least:
        raise ValueError(f"{argument} must be at least {least}, got {value}")
    return pair
