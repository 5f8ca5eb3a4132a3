"""The first capsules of a network: a convolution whose channels are cut into poses."""

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import CapsuleLayer, Capsules
from torchcaps.layers.pose import AXES, PerAxis, Pose, per_axis, pose_shape
from torchcaps.layers.pose_norm import PoseScale, norm_of
from torchcaps.numerics import check_choice, check_size
from torchcaps.routing.batch_norm import (
    EarlyBatchNorm1d,
    EarlyBatchNorm2d,
    EarlyBatchNorm3d,
)
from torchcaps.squashing import kind_of, length, squash

_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_NORMS = {1: EarlyBatchNorm1d, 2: EarlyBatchNorm2d, 3: EarlyBatchNorm3d}


class _OnePlace(nn.Module):
    """A mixin for depthwise convolutions without padding: where the result has one
    place, it is a product and a sum.
    """

    def forward(self: Any, features: Tensor) -> Tensor:
        """The convolution, for a single place ten times as fast as torch's on a CPU."""
        windows = zip(features.shape[2:], self.kernel_size, self.stride, strict=True)
        if any(extent - kernel >= stride for extent, kernel, stride in windows):
            return super().forward(features)
        window = (slice(None), slice(None), *map(slice, self.kernel_size))
        seen = features[window]
        axes = tuple(range(2, features.ndim))
        place = (seen * self.weight.squeeze(1).to(seen.dtype)).sum(axes, keepdim=True)
        if self.bias is None:
            return place
        return place + self.bias.view(-1, *[1] * len(axes))


class _Depthwise1d(_OnePlace, nn.Conv1d):
    """The depthwise convolution of a sequence."""


class _Depthwise2d(_OnePlace, nn.Conv2d):
    """The depthwise convolution of an image."""


class _Depthwise3d(_OnePlace, nn.Conv3d):
    """The depthwise convolution of a volume."""


_DEPTHWISE = {1: _Depthwise1d, 2: _Depthwise2d, 3: _Depthwise3d}


class PrimaryCapsNd(CapsuleLayer):
    r"""Primary capsules: ``types`` capsules of pose ``dim`` at every output position of
    a convolution over any axes.

    .. math:: u = \operatorname{squash}(\operatorname{conv}(x)), \quad a = |u|

    or, with ``activation="learned"`` as for matrix capsules, :math:`a =
    \operatorname{sigmoid}(\operatorname{conv}(x))` of a second convolution.

    A capsule is ``dim`` channels of one type at one position (not one channel at
    ``dim`` positions). With ``routed`` the output of the convolution, then without
    bias, goes through one step of routing, as in the code released with the paper: each
    vote is divided evenly among the types, and each type has a bias inside the squash,
    :math:`u_t = \operatorname{squash}(x_t / \text{types} + \text{bias}_t)`, initially
    0.1.

    Args:
        in_channels: channels of the feature map.
        types: capsule types at each position.
        dim: pose: D for vectors, (M, D) for matrices.
        kernel_size: the kernel size of the convolution; here and below one number, or
            one for each axis.
        stride: the stride of the convolution.
        padding: the padding of the convolution.
        squash: a row of the table in :func:`~torchcaps.squash`.
        batch_norm: whether to batch-normalise the convolution's output, which then has
            no bias of its own.
        routed: whether to add the released code's routing step with a bias.
        activation: ``"length"`` of the squashed pose, or ``"learned"``.
        bias: whether the convolutions have a bias.
        pose_norm: how to normalise the squashed poses, a row of the table in
            :class:`~torchcaps.layers.PoseNorm`; None for not at all.
        groups: the groups of the channels in the convolution of the poses;
            ``in_channels`` of them make it depthwise.

    Shape:
        (B, in_channels, *grid) to poses (B, *grid', types, *dim) and activations (B,
        *grid', types), grid' that of the convolution.

    Raises:
        ValueError: if an argument is out of its range or contradicts another.

    Source: Sabour, Frosst & Hinton 2017, section 4, and the code released with it;
    learned activations: Hinton, Sabour & Frosst 2018, section 4.

    Example:
        >>> primary = tc.PrimaryCaps1d(
        ...     in_channels=32, types=4, dim=8
        ... )  # or PrimaryCaps, PrimaryCaps3d
        >>> isinstance(primary, tc.layers.PrimaryCapsNd)
        True
    """

    axes: ClassVar[int]
    """How many axes the grid has."""

    def __init__(
        self,
        in_channels: int,
        types: int,
        dim: Pose,
        kernel_size: PerAxis = 9,
        stride: PerAxis = 2,
        padding: PerAxis = 0,
        *,
        squash: str = "sabour",
        batch_norm: bool = False,
        routed: bool = False,
        activation: Literal["length", "learned"] = "length",
        bias: bool = True,
        pose_norm: PoseScale | None = None,
        groups: int = 1,
    ) -> None:
        super().__init__()
        check_choice("activation", activation, ("length", "learned"))
        check_size(in_channels=in_channels, types=types, groups=groups)
        self.types = types
        self.dim = pose_shape("dim", dim)
        kind_of(squash)
        self.squash = squash
        channels = types * math.prod(self.dim)
        needs_bias = bias and not (routed or batch_norm)
        options = (
            per_axis("kernel_size", kernel_size, self.axes, 1),
            per_axis("stride", stride, self.axes, 1),
            per_axis("padding", padding, self.axes, 0),
        )
        convolution: Any = _CONVOLUTIONS[self.axes]
        depthwise = groups == in_channels == channels and not any(options[2])
        of_poses: Any = _DEPTHWISE[self.axes] if depthwise else convolution
        self.conv = of_poses(
            in_channels, channels, *options, groups=groups, bias=needs_bias
        )
        self.norm = _NORMS[self.axes](channels) if batch_norm else nn.Identity()
        self.pose_norm = norm_of(types, dim, pose_norm)
        self.bias = (
            nn.Parameter(torch.full((types, *self.dim), 0.1)) if routed else None
        )
        self.activation_conv = (
            convolution(in_channels, types, *options, bias=bias)
            if activation == "learned"
            else None
        )

    def sites(self, *grid: int) -> tuple[int, ...]:
        """Return (*grid', types) for a feature map of that size, (H', W', types) for
        one of (H, W).

        Raises:
            ValueError: if the map has another number of axes, or is smaller than the
                kernel.
        """
        if len(grid) != self.axes:
            raise ValueError(
                f"sites takes the {self.axes} sizes of a feature map "
                f"({AXES[self.axes]}), got {grid}"
            )
        out = []
        for extent, kernel, stride, padding in zip(
            grid,
            self.conv.kernel_size,
            self.conv.stride,
            self.conv.padding,
            strict=True,
        ):
            if extent + 2 * padding < kernel:
                raise ValueError(
                    f"the feature map is {'x'.join(map(str, grid))}, smaller than the "
                    "primary capsules' kernel of "
                    f"{kernel}: use larger images or smaller kernels"
                )
            out.append((extent + 2 * padding - kernel) // stride + 1)
        return *out, self.types

    def forward(self, features: Tensor) -> Capsules:
        """Convolve, cut into capsules, squash.

        Raises:
            TypeError: if ``features`` is not a tensor.
            ValueError: if it has the wrong number of axes or channels, or is smaller
                than the kernel.
        """
        if not isinstance(features, Tensor):
            raise TypeError(f"features must be a tensor, got {type(features).__name__}")
        if features.ndim != 2 + self.axes or features.shape[1] != self.conv.in_channels:
            raise ValueError(
                f"features must be (B, {self.conv.in_channels}, {AXES[self.axes]}), "
                f"got shape {tuple(features.shape)}"
            )
        self.sites(*features.shape[2:])  # raises an error if there is none
        channels = self.norm(self.conv(features)).movedim(1, -1)
        # [B, *grid', types, *dim]
        pose = channels.unflatten(-1, (self.types, *self.dim)).contiguous()
        if self.bias is not None:
            pose = pose / self.types + self.bias
        axes = tuple(range(-len(self.dim), 0))
        pose = squash(pose, self.squash, axes)
        if self.activation_conv is None:
            activation = length(pose, axes)
        else:
            activation = self.activation_conv(features).movedim(1, -1).sigmoid()
        return Capsules(
            pose if self.pose_norm is None else self.pose_norm(pose), activation
        )


class PrimaryCaps1d(PrimaryCapsNd):
    """Primary capsules over a sequence: :class:`PrimaryCapsNd` with one axis.

    Shape:
        (B, in_channels, L) to poses (B, L', types, *dim) and activations (B, L',
        types).

    Example:
        >>> primary = tc.PrimaryCaps1d(
        ...     in_channels=32, types=4, dim=8, kernel_size=3, stride=1
        ... )
        >>> primary(torch.randn(2, 32, 20)).pose.shape  # of sequences
        torch.Size([2, 18, 4, 8])
    """

    axes = 1


class PrimaryCaps(PrimaryCapsNd):
    """Primary capsules over an image: :class:`PrimaryCapsNd` with two axes.

    Shape:
        (B, in_channels, H, W) to poses (B, H', W', types, *dim) and activations (B, H',
        W', types).

    Example:
        >>> primary = tc.PrimaryCaps(
        ...     in_channels=64, types=8, dim=8, kernel_size=5, stride=2
        ... )
        >>> capsules = primary(torch.randn(2, 64, 15, 15))
        >>> capsules.pose.shape, capsules.activation.shape
        (torch.Size([2, 6, 6, 8, 8]), torch.Size([2, 6, 6, 8]))
        >>> matrices = tc.PrimaryCaps(
        ...     64, types=8, dim=(4, 4), kernel_size=1, stride=1, activation="learned"
        ... )
        >>> matrices(torch.randn(2, 64, 6, 6)).pose.shape
        torch.Size([2, 6, 6, 8, 4, 4])
    """

    axes = 2


class PrimaryCaps3d(PrimaryCapsNd):
    """Primary capsules over a volume: :class:`PrimaryCapsNd` with three axes.

    Shape:
        (B, in_channels, D, H, W) to poses (B, D', H', W', types, *dim) and activations
        (B, D', H', W', types).

    Example:
        >>> primary = tc.PrimaryCaps3d(
        ...     in_channels=4, types=2, dim=8, kernel_size=3, stride=2
        ... )
        >>> primary(torch.randn(2, 4, 9, 9, 9)).pose.shape  # of volumes
        torch.Size([2, 4, 4, 4, 2, 8])
    """

    axes = 3
