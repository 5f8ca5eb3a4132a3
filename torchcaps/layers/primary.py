"""The first capsules of a network: a convolution whose channels are cut into poses."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers.pose import Pose, pose_shape
from torchcaps.layers.pose_norm import PoseNorm, PoseScale
from torchcaps.squash import SQUASHES, length, squash


class PrimaryCaps(nn.Module):
    r"""Primary capsules: ``types`` capsules of pose ``dim`` at every output position of a convolution.

    .. math:: u = \operatorname{squash}(\operatorname{conv}(x)), \quad a = |u|

    or, with ``activation="learned"`` as for matrix capsules, :math:`a = \operatorname{sigmoid}(\operatorname{conv}(x))`
    of a second convolution.

    A capsule is ``dim`` channels of one type at one position (not one channel at ``dim`` positions). With ``routed``
    the convolution's output passes one routing step on its way, as in the code released with the paper: it has no
    bias, its votes are shared out evenly over the types, and each type has a bias of its own inside the squash,
    :math:`u_t = \operatorname{squash}(x_t / \text{types} + \text{bias}_t)`, starting at 0.1.

    Args:
        in_channels: channels of the feature map.
        types: capsule types at each position.
        dim: pose: D for vectors, (M, D) for matrices.
        kernel_size: of the convolution.
        stride: of the convolution.
        padding: of the convolution.
        squash: a row of the table in :func:`~torchcaps.squash.squash`.
        batch_norm: normalise the convolution's output.
        routed: the released code's routing step with a bias.
        activation: ``"length"`` of the pose, or ``"learned"``.
        bias: of the convolutions.
        pose_norm: normalise the poses, see :class:`~torchcaps.layers.PoseNorm`, behind the squash; None leaves them.

    Shape:
        (B, in_channels, H, W) to poses (B, H', W', types, *dim) and activations (B, H', W', types), H' and W' those of
        the convolution.

    Source: Sabour, Frosst & Hinton 2017, section 4, and the code released with it; learned activations: Hinton, Sabour
    & Frosst 2018, section 4.
    """

    def __init__(
        self,
        in_channels: int,
        types: int,
        dim: Pose,
        kernel_size: int = 9,
        stride: int = 2,
        padding: int = 0,
        *,
        squash: str = "sabour",
        batch_norm: bool = False,
        routed: bool = False,
        activation: Literal["length", "learned"] = "length",
        bias: bool = True,
        pose_norm: PoseScale | None = None,
    ) -> None:
        super().__init__()
        if activation not in ("length", "learned"):
            raise ValueError(f"activation must be 'length' or 'learned', got {activation!r}")
        if squash not in SQUASHES:
            raise ValueError(f"squash must be one of {sorted(SQUASHES)}, got {squash!r}")
        self.types = types
        self.dim = pose_shape(dim)
        self.squash = squash
        channels = types * math.prod(self.dim)
        needs_bias = bias and not (routed or batch_norm)
        self.conv = nn.Conv2d(in_channels, channels, kernel_size, stride, padding, bias=needs_bias)
        self.norm = nn.BatchNorm2d(channels) if batch_norm else nn.Identity()
        self.pose_norm = None if pose_norm is None else PoseNorm(types, dim, pose_norm)
        self.bias = nn.Parameter(torch.full((types, *self.dim), 0.1)) if routed else None
        self.activation_conv = (
            nn.Conv2d(in_channels, types, kernel_size, stride, padding, bias=bias) if activation == "learned" else None
        )

    def sites(self, height: int, width: int) -> tuple[int, int, int]:
        """(H', W', types) for a feature map of that size.

        Raises:
            ValueError: if the map is smaller than the kernel.
        """
        size = []
        for axis, extent in enumerate((height, width)):
            kernel, stride, padding = (
                int(option[axis]) for option in (self.conv.kernel_size, self.conv.stride, self.conv.padding)
            )
            if extent + 2 * padding < kernel:
                raise ValueError(
                    f"the feature map is {height}x{width}, smaller than the primary capsules' kernel of {kernel}: "
                    "use larger images or smaller kernels"
                )
            size.append((extent + 2 * padding - kernel) // stride + 1)
        return size[0], size[1], self.types

    def forward(self, features: Tensor) -> Capsules:
        """Convolves, cuts into capsules, squashes.

        Raises:
            ValueError: if ``features`` has the wrong number of axes or channels, or is smaller than the kernel.
        """
        if features.ndim != 4 or features.shape[1] != self.conv.in_channels:
            raise ValueError(f"features must be (B, {self.conv.in_channels}, H, W), got shape {tuple(features.shape)}")
        self.sites(*features.shape[2:])
        pose = self.norm(self.conv(features)).movedim(1, -1).unflatten(-1, (self.types, *self.dim))
        if self.bias is not None:
            pose = pose / self.types + self.bias
        axes = tuple(range(-len(self.dim), 0))
        pose = squash(pose, self.squash, axes)
        if self.activation_conv is None:
            activation = length(pose, axes)
        else:
            activation = self.activation_conv(features).movedim(1, -1).sigmoid()
        capsules = Capsules(pose, activation)
        return capsules if self.pose_norm is None else self.pose_norm(capsules)
