"""Convolutional capsules: every window of children votes for the parents at its
position.
"""

import math
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from torchcaps.capsules import CapsuleLayer, Capsules, from_pair
from torchcaps.layers.identity_path import IdentityPath
from torchcaps.layers.pose import (
    PerAxis,
    Pose,
    check_map,
    per_axis,
    pose_shapes,
    present,
    start_vote_bias,
    vote_bias_of,
    without_own_transforms,
)
from torchcaps.layers.pose_norm import PoseScale, norm_of
from torchcaps.numerics import NotNegative, check_choice, check_size
from torchcaps.ops import PARENTS, GridWide, Votes, Windows
from torchcaps.ops.plan import known_backend
from torchcaps.routing import EMRouting, LayerShape, Routed, Routing, as_capsules
from torchcaps.routing.base import routing_of
from torchcaps.spec import check, repr_of

Competition = Literal["image", "grid", "window"]


class CapsConvNd(CapsuleLayer):
    r"""Convolutional capsules over a grid of any number of axes.

    The children in a window vote for the parents at its position, :math:`V_{ij} = u_i
    W_{ij}`, through one transform for each place in the window, type of child and type
    of parent; all positions share them.

    Args:
        in_types: types of children at each position.
        out_types: types of parents at each position.
        in_pose: child pose: P for vectors, (M, P) for matrices.
        out_pose: parent pose: D for vectors, (M, D) for matrices.
        kernel_size: the kernel size of the windows; here and below one number, or one
            for each axis.
        stride: between windows.
        padding: positions added on each side; the children there are absent, as under a
            mask.
        routing: any routing, or the name of one. Default: EM routing.
        competition: which of the parents that a child votes for compete for it.
            ``"image"``: all of them (the paper's meaning; ``"grid"`` is the same and
            reads better for a sequence or a volume), which also share it alike at
            first. ``"window"``: those of one window (most ports).
        pose_norm: how to normalise the parents' poses, a row of the table in
            :class:`~torchcaps.layers.PoseNorm`; None for not at all.
        residual: whether to add the children's poses to the routed ones, before they
            are normalised, see :class:`~torchcaps.layers.IdentityPath`; ``in_pose`` and
            ``out_pose`` must then be the same.
        init_std: standard deviation of the transforms' normal initialisation; None for
            sqrt(I / P), with the I children of one window: away from the padding, the
            mean vote of equally active children that agree on nothing then has the
            standard deviation of their poses. For other children, and other routings,
            there is :func:`~torchcaps.layers.preserve_deviation`.
        vote_bias: whether to add a learned bias to the votes, :math:`V_{ij} = u_i
            W_{ij} + b_{ij}`. Without it most routings give the children u and -u the
            same activations.
        backend: one of :data:`~torchcaps.ops.BACKENDS`, ``"auto"``, or None for the
            plan's choice, which :func:`~torchcaps.ops.use_backend` can force.

    Shape:
        Capsules with poses (B, *grid, in_types, *in_pose) and activations (B, *grid,
        in_types) to poses (B, *grid', out_types, *out_pose) and activations (B, *grid',
        out_types).

    Raises:
        TypeError: if the children are no :class:`Capsules`.
        ValueError: if an argument is out of its range or contradicts another, or the
            children do not fit the layer.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", section 4.

    Example:
        >>> layer = tc.CapsConv1d(
        ...     8, 16, in_pose=8, out_pose=8, kernel_size=3, padding=1
        ... )  # CapsConv2d, CapsConv3d
        >>> isinstance(layer, tc.layers.CapsConvNd)
        True
    """

    axes: ClassVar[int]
    """How many axes the grid has."""

    def __init__(
        self,
        in_types: int,
        out_types: int,
        in_pose: Pose,
        out_pose: Pose,
        kernel_size: PerAxis,
        stride: PerAxis = 1,
        padding: PerAxis = 0,
        *,
        routing: Routing | str | None = None,
        competition: Competition = "image",
        pose_norm: PoseScale | None = None,
        residual: bool = False,
        init_std: float | None = 0.3,
        vote_bias: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = per_axis("kernel_size", kernel_size, self.axes, 1)
        self.stride = per_axis("stride", stride, self.axes, 1)
        self.padding = per_axis("padding", padding, self.axes, 0)
        check_size(in_types=in_types, out_types=out_types)
        check(NotNegative | None, init_std, "init_std")
        check_choice("competition", competition, get_args(Competition))
        self.in_types = in_types
        self.out_types = out_types
        self.in_pose, self.out_pose = pose_shapes(in_pose, out_pose)
        self.competition = competition
        self.backend = known_backend(backend)
        places = math.prod(self.kernel_size)
        P, D = self.in_pose[-1], self.out_pose[-1]
        self.weight = nn.Parameter(torch.empty(places, in_types, out_types, P, D))
        shape = LayerShape(places * in_types, out_types, self.in_pose, self.out_pose)
        self.routing = routing_of(shape, routing, EMRouting())
        if self.routing.within_window and competition != "window":
            name = type(self.routing).__name__
            raise ValueError(
                f"competition must be 'window' with {name}, which supports no other, "
                f"got {competition!r}"
            )
        if residual and self.in_pose != self.out_pose:
            raise ValueError(
                f"residual needs poses of one shape: in_pose is {in_pose}, out_pose "
                f"is {out_pose}"
            )
        self.identity_path = IdentityPath(in_types, out_types) if residual else None
        self.pose_norm = norm_of(out_types, out_pose, pose_norm)
        if init_std is None:
            init_std = math.sqrt(places * in_types / P)
        self.bias = vote_bias_of(self, self.routing, vote_bias, self.out_pose)
        nn.init.normal_(self.weight, std=init_std)
        start_vote_bias(self.bias, init_std)
        without_own_transforms(self, self.routing)

    def route(
        self,
        children: Capsules,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
    ) -> Routed:
        """Route as :meth:`forward` does, but also return the votes and the last
        assignment.

        Batch and windows share the first axis of the result, B = N * windows.

        Args:
            children: the children, on a grid.
            mask: the mask, as in :meth:`forward`.
            initial: parents of an earlier call, from which a ``resumable`` routing goes
                on.
        """
        children = from_pair(children)
        windows = self.windows(children)
        children = present(children, mask)
        competes = PARENTS
        if self.competition != "window":
            competes = GridWide(windows=windows, types=self.in_types)
        if mask is None and any(self.padding):
            mask = torch.ones_like(children.activation, dtype=torch.bool)
        votes = Votes(
            windows.pad(children.pose),
            self.weight.flatten(0, 1),
            competition=competes,
            backend=self.backend,
            sites=windows.children(self.in_types, children.pose.device),
            mask=None if mask is None else windows.pad(mask),
        )
        if self.bias is not None:
            votes = votes.with_bias(self.bias.flatten(0, 1))
        activation = windows.pad(children.activation)
        routed: Routed = self.routing(votes, activation, initial=initial)
        return routed

    def forward(
        self,
        children: Capsules,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
    ) -> Capsules:
        """Route the children of each window to the parents at its position.

        Args:
            children: the children, on a grid.
            mask: bool (B, *grid, in_types), False for children that are not there,
                whose numbers are then ignored; None if all are there. For the mask of
                the parents, see :meth:`out_mask`.
            initial: the parents of an earlier call, as in :meth:`route`.
        """
        routed = self.route(children, mask, initial=initial)
        return self.parents(routed, children, mask)

    def parents(
        self, routed: Routed, children: Capsules, mask: Tensor | None = None
    ) -> Capsules:
        """Return the result of :meth:`route` for these children in the form of
        :meth:`forward`.
        """
        children = from_pair(children)
        windows = self.windows(children)
        dtype = torch.promote_types(children.pose.dtype, self.weight.dtype)
        pose, activation = as_capsules(routed, self.out_pose, dtype)
        pose = pose.unflatten(0, (-1, *windows.out))
        activation = activation.unflatten(0, (-1, *windows.out))
        if self.identity_path is not None:
            pose = pose + self.identity_path(present(children, mask), windows).to(dtype)
        return Capsules(
            pose if self.pose_norm is None else self.pose_norm(pose), activation
        )

    def out_mask(self, mask: Tensor) -> Tensor:
        """Return the mask of the parents, True where one has a child: bool (B, *grid,
        in_types) to (B, *grid', out_types).
        """
        windows = self._windows_on(tuple(mask.shape[1:-1]))
        # [B, padded]
        present = windows.pad(mask.any(-1, keepdim=True))
        seen = present[:, windows.sites(mask.device)].any(-1).unflatten(1, windows.out)
        return seen[..., None].expand(*seen.shape, self.out_types)

    def windows(self, children: Capsules) -> Windows:
        """Return the windows over the grid of these children.

        Raises:
            ValueError: if the children do not fit the layer.
        """
        return self._windows_on(
            check_map(from_pair(children), self.in_types, self.in_pose, self.axes)
        )

    def _windows_on(self, grid: tuple[int, ...]) -> Windows:
        return Windows(grid, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        """Return shapes, window and competition."""
        windows = "kernel_size", "stride", "padding"
        settings = repr_of(self, "in_pose", "out_pose", *windows, "competition")
        return f"{self.in_types}, {self.out_types}, {settings}"


class CapsConv1d(CapsConvNd):
    """Convolutional capsules over a sequence: :class:`CapsConvNd` with one axis.

    Shape:
        Capsules with poses (B, L, in_types, *in_pose) and activations (B, L, in_types)
        to poses (B, L', out_types, *out_pose) and activations (B, L', out_types).

    Example:
        >>> layer = tc.CapsConv1d(8, 16, in_pose=8, out_pose=8, kernel_size=3)
        >>> words = tc.Capsules(torch.randn(2, 20, 8, 8), torch.rand(2, 20, 8))
        >>> layer(words).pose.shape
        torch.Size([2, 18, 16, 8])
    """

    axes = 1


class CapsConv2d(CapsConvNd):
    """Convolutional capsules over an image: :class:`CapsConvNd` with two axes.

    Shape:
        Capsules with poses (B, H, W, in_types, *in_pose) and activations (B, H, W,
        in_types) to poses (B, H', W', out_types, *out_pose) and activations (B, H', W',
        out_types).

    Example:
        >>> layer = tc.CapsConv2d(
        ...     8, 16, in_pose=(4, 4), out_pose=(4, 4), kernel_size=3, stride=2
        ... )
        >>> children = tc.Capsules(
        ...     torch.randn(2, 7, 7, 8, 4, 4), torch.rand(2, 7, 7, 8)
        ... )
        >>> layer(children).pose.shape
        torch.Size([2, 3, 3, 16, 4, 4])
    """

    axes = 2


class CapsConv3d(CapsConvNd):
    """Convolutional capsules over a volume: :class:`CapsConvNd` with three axes.

    Shape:
        Capsules with poses (B, D, H, W, in_types, *in_pose) and activations (B, D, H,
        W, in_types) to poses (B, D', H', W', out_types, *out_pose) and activations (B,
        D', H', W', out_types).

    Example:
        >>> layer = tc.CapsConv3d(2, 4, in_pose=4, out_pose=4, kernel_size=3)
        >>> volume = tc.Capsules(
        ...     torch.randn(1, 5, 5, 5, 2, 4), torch.rand(1, 5, 5, 5, 2)
        ... )
        >>> layer(volume).pose.shape
        torch.Size([1, 3, 3, 3, 4, 4])
    """

    axes = 3
