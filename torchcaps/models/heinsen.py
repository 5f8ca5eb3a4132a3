"""The network of Heinsen 2019 for smallNORB."""

import math
from dataclasses import InitVar

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.models.base import CapsuleClassifier, check_extent
from torchcaps.models.initial import zero_bias
from torchcaps.models.registry import register_model
from torchcaps.numerics import Size, Sizes, TwoSizes, compute_dtype
from torchcaps.routing import Heinsen2019Routing, Routed, Routing
from torchcaps.routing.batch_norm import EarlyBatchNorm2d
from torchcaps.spec import settings


class SoftmaxCaps(CapsLinear):
    """A layer whose parents' activations add up to 1: the softmax of their logits."""

    def route(
        self,
        children: Capsules | Tensor,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
    ) -> Routed:
        """Route; where the routing gives no logits, they are those of the
        activations.
        """
        routed = super().route(children, mask, initial=initial)
        logit = routed.logit
        if logit is None:
            exact = routed.activation.to(compute_dtype(routed.activation))
            logit = torch.logit(exact, eps=torch.finfo(exact.dtype).eps)
        return routed._replace(
            activation=logit.softmax(-1).to(routed.activation.dtype), logit=None
        )


@register_model("heinsen_smallnorb", "Heinsen 2019, smallNORB: 272 k parameters")
@settings
class HeinsenCapsNet(CapsuleClassifier):
    r"""Convolutions over the image and its coordinates, parts from all places, classes
    from the parts.

    Each position of the last feature map has a matrix capsule of each type, with a
    learned activation. All of them, with the same transforms, vote for the parts, and
    the parts for the classes. The scores of the classes are logits; their activations
    are the shares :math:`\operatorname{softmax}_j`, for
    :class:`~torchcaps.losses.NegativeLogLikelihood`.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: the channels of the convolutions, 3 x 3 without padding, each behind
            batch normalisation and before a Swish.
        strides: the strides of the convolutions.
        parts: types of capsules at each position, and number of parts.
        pose: shape of all poses, (M, D).
        routing: the routing of the classes; default: Heinsen's. One with activations in
            [0, 1]: they become shares by their odds.

    Raises:
        ValueError: if images are too small for the convolutions.

    Source: Heinsen 2019, "An Algorithm for Routing Capsules in All Domains", section
    4.1; the code released with it.

    Example:
        >>> network = tc.models.HeinsenCapsNet(
        ...     (2, 32, 32), classes=5, channels=8, parts=4
        ... )
        >>> network(torch.rand(2, 2, 32, 32)).activation.shape
        torch.Size([2, 5])
    """

    any_size = True

    image_shape: tuple[int, int, int] = (2, 96, 96)
    classes: int = 5
    channels: Size = 64
    strides: Sizes = (1, 2, 1, 2, 1, 2)
    parts: Size = 64
    pose: TwoSizes = (4, 4)
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        self._smallest = 1
        for stride in reversed(self.strides):
            self._smallest = (self._smallest - 1) * stride + 3
        self._reason = f" for strides {self.strides}"
        check_extent("image_shape", self.image_shape, self._smallest, self._reason)

        self.features = nn.Sequential()
        before = self.image_shape[0] + 2
        channels = self.channels
        parts = self.parts
        for stride in self.strides:
            self.features.extend(
                [
                    EarlyBatchNorm2d(before),
                    nn.Conv2d(before, channels, 3, stride),
                    nn.SiLU(),
                ]
            )
            before = channels
        self.activations = nn.Sequential(
            EarlyBatchNorm2d(channels), nn.Conv2d(channels, parts, 1)
        )
        self.poses = nn.Sequential(
            EarlyBatchNorm2d(channels),
            nn.Conv2d(channels, parts * math.prod(self.pose), 1),
        )
        routing = routing or Heinsen2019Routing()
        pose = self.pose[0], self.pose[1]
        self.part_caps = CapsLinear(
            None, parts, pose, pose, transforms="shared", routing=Heinsen2019Routing()
        )
        self.class_caps = SoftmaxCaps(parts, self.classes, pose, pose, routing=routing)
        self.decoder = None
        self._start_as_published()

    def _start_as_published(self) -> None:
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                zero_bias(module)
        for layer in (self.part_caps, self.class_caps):
            nn.init.normal_(layer.weight, std=1 / self.pose[1])

    def children_of(self, images: Tensor) -> Capsules:
        """Return the parts, poses (B, parts, *pose)."""
        return self.part_caps(self.primary_of(images))

    def primary_of(self, images: Tensor) -> Capsules:
        """Return the capsules at each position, poses (B, H', W', parts, *pose)."""
        self._check(images)
        check_extent("images", images.shape, self._smallest, self._reason)
        features = self.features(torch.cat([images, _coordinates(images)], 1))
        pose = (
            self.poses(features).movedim(1, -1).unflatten(-1, (self.parts, *self.pose))
        )
        return Capsules(pose, self.activations(features).movedim(1, -1).sigmoid())


def _coordinates(images: Tensor) -> Tensor:
    """Row and column of each pixel, from -1 to 1, (B, 2, H, W)."""
    B, _, H, W = images.shape
    rows, columns = (
        torch.linspace(-1, 1, extent, dtype=images.dtype, device=images.device)
        for extent in (H, W)
    )
    grid = torch.stack([rows[:, None].expand(H, W), columns.expand(H, W)])
    return grid.expand(B, 2, H, W)
