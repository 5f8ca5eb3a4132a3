"""A residual network whose classes are self-routed capsules (Hahn, Pyeon & Kim
2019).
"""

import math
from dataclasses import InitVar

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsConv2d, CapsLinear
from torchcaps.layers.pose import fix_weight
from torchcaps.models.base import CapsuleClassifier
from torchcaps.models.registry import register_model
from torchcaps.models.residual import residual_features
from torchcaps.numerics import Size
from torchcaps.routing import Routing, SelfRouting
from torchcaps.routing.batch_norm import EarlyBatchNorm2d
from torchcaps.spec import settings


@register_model(
    "self_routing_resnet20",
    "Hahn et al. 2019, CIFAR-10: ResNet-20 with 32 capsules of 16, 931,664 parameters",
)
@settings
class SelfRoutingResNet(CapsuleClassifier):
    """Residual blocks, primary capsules from two convolutions, convolutional capsules
    if any, class capsules.

    The classes of the published network have activations but no poses, and so no
    transforms. Here the pose of a class is the mean of its children's poses, weighted
    by their shares, which takes no transforms either. The loss is the
    :class:`~torchcaps.losses.NegativeLogLikelihood` of the activations.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: the channels of the first convolution and its blocks; twice and four
            times as many follow, at half and a quarter of the size.
        blocks: the number of blocks of two convolutions, at each of the three sizes: 3
            is ResNet-20.
        types: the number of types of capsules at each position.
        pose_dim: dimension of their poses.
        depth: 1 routes the primary capsules to the classes; each one more is a layer of
            convolutional capsules between.
        routing: the routing of all layers; default: self-routing.

    Source: Hahn, Pyeon & Kim 2019, "Self-Routing Capsule Networks", section 4; the code
    released with it.

    Example:
        >>> network = tc.models.SelfRoutingResNet(
        ...     (3, 16, 16), classes=4, channels=4, blocks=1, types=4
        ... )
        >>> network(torch.rand(2, 3, 16, 16)).activation.shape
        torch.Size([2, 4])
    """

    image_shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    channels: Size = 16
    blocks: Size = 3
    types: Size = 32
    pose_dim: Size = 16
    depth: Size = 1
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        channels = self.channels
        types = self.types
        pose_dim = self.pose_dim
        routing = routing or SelfRouting()

        widths = [channels, 2 * channels, 4 * channels]
        self.features = residual_features(
            self.image_shape[0], widths, [self.blocks] * 3
        )
        last = widths[-1]
        self.activations = nn.Conv2d(last, types, 3, padding=1, bias=False)
        self.activation_norm = EarlyBatchNorm2d(types)
        self.poses = nn.Conv2d(last, types * pose_dim, 3, padding=1, bias=False)
        self.pose_norm = EarlyBatchNorm2d(types * pose_dim)
        sizes = types, types, pose_dim, pose_dim
        self.conv_caps = nn.ModuleList(
            CapsConv2d(
                *sizes,
                kernel_size=3,
                stride=2 if number == 0 else 1,
                padding=1,
                routing=routing,
                competition="window",
                init_std=None,
            )
            for number in range(self.depth - 1)
        )
        self.conv_norms = nn.ModuleList(
            EarlyBatchNorm2d(types * pose_dim) for _ in self.conv_caps
        )
        places = math.prod(
            _halved(extent, 2 if self.depth == 1 else 3)
            for extent in self.image_shape[1:]
        )
        self.class_caps = CapsLinear(
            places * types,
            self.classes,
            pose_dim,
            pose_dim,
            transforms="shared",
            routing=routing,
        )
        fix_weight(self.class_caps, _identities)
        self.decoder = None
        self._start_as_published()

    def _start_as_published(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight)
        for layer in self.conv_caps:
            assert isinstance(layer, CapsConv2d)
            bound = math.sqrt(6 / (self.types * self.pose_dim**2))
            nn.init.uniform_(layer.weight, -bound, bound)

    def children_of(self, images: Tensor) -> Capsules:
        """Return the capsules that vote for the classes, poses (B, H', W', types,
        pose_dim).
        """
        self._check(images)
        features = self.features(images)
        activation = (
            self.activation_norm(self.activations(features)).movedim(1, -1).sigmoid()
        )
        capsules = Capsules(
            self._as_poses(self.pose_norm(self.poses(features))), activation
        )
        for layer, norm in zip(self.conv_caps, self.conv_norms, strict=True):
            capsules = layer(capsules)
            pose = self._as_poses(norm(capsules.pose.flatten(3).movedim(-1, 1)))
            capsules = Capsules(pose, capsules.activation)
        return capsules

    def _as_poses(self, channels: Tensor) -> Tensor:
        return channels.movedim(1, -1).unflatten(-1, (self.types, self.pose_dim))


def _identities(transforms: Tensor, device: torch.device) -> Tensor:
    same = torch.eye(transforms.shape[-1], dtype=transforms.dtype, device=device)
    return same.expand_as(transforms).clone()


def _halved(extent: int, times: int) -> int:
    """A size after this number of convolutions of stride 2 with padding."""
    for _ in range(times):
        extent = (extent + 1) // 2
    return extent
