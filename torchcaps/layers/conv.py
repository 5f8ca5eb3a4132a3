"""Convolutional capsules: every window of children votes for the parents at its position."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers.pose import Pose, check_map, check_rows, pose_shape
from torchcaps.ops import Normaliser, Rule, Similarity, Votes, VoteSource
from torchcaps.routing import EMRouting, Routed, Routing, as_capsules

Pair = int | tuple[int, int]
Competition = Literal["image", "window"]


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution over a grid of positions, (height, width) each.

    Args:
        size: of the grid, without padding.
        kernel: of a window.
        stride: between windows.
        padding: positions added on each side, with children that are not there.
        dilation: between the positions of a window.
    """

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def __post_init__(self) -> None:
        if min(self.out) < 1:
            raise ValueError(
                f"children on a grid of {self.size[0]}x{self.size[1]} are fewer than a window of "
                f"{self.kernel[0]}x{self.kernel[1]} spans (padding {self.padding}, dilation {self.dilation})"
            )

    @property
    def out(self) -> tuple[int, int]:
        """How many windows, (H', W')."""
        height, width = (
            (self.size[axis] + 2 * self.padding[axis] - self.dilation[axis] * (self.kernel[axis] - 1) - 1)
            // self.stride[axis]
            + 1
            for axis in (0, 1)
        )
        return height, width

    def sites(self, device: torch.device) -> Tensor:
        """The flat position of each place of each window on the padded grid, int64 (H' * W', kH * kW)."""
        rows, columns = (
            torch.arange(self.out[axis], device=device)[:, None] * self.stride[axis]
            + torch.arange(self.kernel[axis], device=device) * self.dilation[axis]
            for axis in (0, 1)
        )  # [H', kH], [W', kW]
        width = self.size[1] + 2 * self.padding[1]
        sites = rows[:, None, :, None] * width + columns[None, :, None, :]  # [H', W', kH, kW]
        return sites.flatten(2).flatten(0, 1)

    @property
    def padded(self) -> int:
        """The number of positions of the padded grid."""
        height, width = (self.size[axis] + 2 * self.padding[axis] for axis in (0, 1))
        return height * width

    def children(self, types: int, device: torch.device) -> Tensor:
        """The flat places of the children of each window, int32 (H' * W', kH * kW * C), on a grid as :meth:`pad`s."""
        sites = self.sites(device)[:, :, None] * types + torch.arange(types, device=device)
        return sites.flatten(1).to(torch.int32)

    def pad(self, field: Tensor) -> Tensor:
        """(N, H, W, C, ...) to all children in a row, those of the padding too, (N, G, ...)."""
        vertical, horizontal = self.padding
        if vertical or horizontal:
            pads = [0, 0] * (field.ndim - 3) + [horizontal, horizontal, vertical, vertical]
            field = nn.functional.pad(field, pads)
        return field.flatten(1, 3)


@dataclass(frozen=True)
class ImageWide(Normaliser):
    r"""All parents that see a child compete for it, in whatever window they are.

    .. math:: Z_{i} = \log \sum_{\text{windows } w \ni i} \sum_j \exp l_{wij}

    so that the assignment probabilities of a child add up to 1 over all types and positions of parents.

    Args:
        windows: of the convolution.
        types: of children, C.

    Source: Hinton, Sabour & Frosst 2018, section 4 and Procedure 1; Gritzman 2019, section 3.3.
    """

    windows: Windows | None = None
    types: int = 1

    def rule(self, source: VoteSource, similarity: Similarity | None) -> Rule:
        """The rule with the normaliser of each child, the same in all windows that see it."""
        if self.hard:
            raise ValueError("hard assignments compete inside one window only: use competition='window'")
        return Rule(log_partition=self.combine(source.log_partition(similarity, orphan=False)))

    def combine(self, partition: Tensor) -> Tensor:
        """From the normalisers over the parents of each window, (B, I), to those over all windows, (N, G).

        A child that no window sees gets 0.
        """
        assert self.windows is not None
        children = self.windows.children(self.types, partition.device)
        field = partition.view(-1, children.numel())
        index = children.long().view(1, -1).expand_as(field)
        grid = field.new_full((len(field), self.windows.padded * self.types), -torch.inf)
        peak = grid.scatter_reduce(1, index, field.detach(), "amax")
        total = torch.zeros_like(grid).scatter_add(1, index, (field - peak.gather(1, index)).exp())
        seen = total > 0
        combined = torch.where(seen, peak + torch.where(seen, total, 1.0).log(), 0.0)
        if self.orphan:
            combined = torch.logaddexp(combined, combined.new_zeros(()))
        return combined


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
        init_std: deviation of the transforms' normal initialisation.
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
        init_std: float = 0.3,
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
        return Capsules(pose, activation)

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
