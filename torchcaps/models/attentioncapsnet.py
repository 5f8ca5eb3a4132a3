"""The network of inverted dot-product attention routing (Tsai, Srivastava, Goh &
Salakhutdinov 2020).
"""

import math
from dataclasses import InitVar

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsConv2d, CapsConvNd, CapsLinear, ClassCaps
from torchcaps.layers.concurrent import concurrent_routing
from torchcaps.models.base import CapsuleClassifier
from torchcaps.models.registry import register_model
from torchcaps.models.residual import residual_features
from torchcaps.numerics import Size, TwoSizes, compute_dtype, dtype_of
from torchcaps.routing import AttentionRouting, Routed, Routing
from torchcaps.routing.base import given_routing
from torchcaps.spec import settings
from torchcaps.squashing import length


@register_model(
    "attentioncapsnet",
    "Tsai et al. 2020, CIFAR-10: residual features, concurrent routing, 1,828,817 "
    "parameters",
)
@settings
class AttentionCapsNet(CapsuleClassifier):
    """Residual features, primary capsules, two layers of convolutional capsules, class
    capsules, one readout.

    The score of a class is one linear readout of its pose, the same for all classes;
    the activations are the softmax of the scores, for
    :class:`~torchcaps.losses.NegativeLogLikelihood`. With more than one round the
    layers are routed side by side, see
    :func:`~torchcaps.layers.concurrent.concurrent_routing`.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: of the first blocks and of those behind, which halve the size.
        blocks: how many of each.
        types: the number of types of capsules in every layer.
        pose: rows and columns of the poses.
        rounds: the number of rounds of concurrent routing; 1 routes layer by layer.
        routing: the routing of all layers; default: attention in one step.

    Raises:
        ValueError: if the images are too small, or there are more rounds than one and
            the routing cannot go on from earlier parents.

    Source: Tsai et al. 2020, "Capsules with Inverted Dot-Product Attention Routing",
    section 4 and the code released with it, whose convolutions scramble places and
    numbers of a pose; here each pose is whole.

    Example:
        >>> network = tc.models.AttentionCapsNet(
        ...     (3, 16, 16), classes=4, channels=(8, 16), blocks=(1, 1), types=4
        ... )
        >>> network(torch.rand(2, 3, 16, 16)).activation.shape
        torch.Size([2, 4])
    """

    smallest = 13

    image_shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    channels: TwoSizes = (64, 128)
    blocks: TwoSizes = (3, 4)
    types: Size = 32
    pose: TwoSizes = (4, 4)
    rounds: Size = 2
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        routing = given_routing(routing, AttentionRouting(steps=1))
        if self.rounds > 1 and not routing.resumable:
            raise ValueError(
                "rounds must be 1, or more for a routing that is resumable, got "
                f"{self.rounds}"
            )
        types = self.types
        pose = self.pose[0], self.pose[1]
        self.features = residual_features(
            self.image_shape[0], self.channels, self.blocks, projected=True
        )
        size = math.prod(self.pose)
        self.primary = nn.Conv2d(self.channels[-1], types * size, 1, bias=False)
        self.primary_norm = nn.LayerNorm(size)
        shape = pose, pose
        self.conv_caps1 = CapsConv2d(
            types, types, *shape, 3, 2, routing=routing, competition="window"
        )
        self.conv_caps2 = CapsConv2d(
            types, types, *shape, 3, 1, routing=routing, competition="window"
        )
        places = math.prod(
            ((extent + 1) // 2 - 3) // 2 - 1 for extent in self.image_shape[1:]
        )
        self.class_caps: CapsLinear = CapsLinear(
            places * types, self.classes, *shape, routing=routing
        )
        self.score = nn.Linear(size, 1)
        # The softmax does not change with it, so its gradient would be
        # rounding.
        self.score.bias.requires_grad_(False)
        self.decoder = None
        for caps, parents, children in (
            (self.conv_caps1, types, 9 * types),
            (self.conv_caps2, types, 9 * types),
            (self.class_caps, self.classes, places * types),
        ):
            nn.init.normal_(caps.weight, std=math.sqrt(parents / (pose[0] * children)))

    @property
    def _layers(self) -> list[CapsLinear | CapsConvNd | ClassCaps]:
        return [self.conv_caps1, self.conv_caps2, self.class_caps]

    def primary_of(self, images: Tensor) -> Capsules:
        """Return the primary capsules, poses (B, H', W', types, *pose)."""
        self._check(images)
        pose = (
            self.primary(self.features(images))
            .movedim(1, -1)
            .unflatten(-1, (self.types, -1))
        )
        pose = self.primary_norm(pose)
        return Capsules(pose.unflatten(-1, self.pose), length(pose))

    def children_of(self, images: Tensor) -> Capsules:
        """Return the capsules that vote for the classes in the last round, poses (B,
        H', W', types, *pose).
        """
        return self._below(self.primary_of(images))

    def _below(self, primary: Capsules) -> Capsules:
        """Those of the round before the last, which the classes of the last see."""
        return concurrent_routing(
            [self.conv_caps1, self.conv_caps2], primary, max(1, self.rounds - 1)
        )[-1]

    def route(self, images: Tensor) -> Routed:
        """Return the last routing of the classes, with the activations of
        :meth:`encode`.
        """
        primary = self.primary_of(images)
        children = self._below(primary)
        routed = self._routed(primary, children)
        return routed._replace(
            activation=self._shares(routed.pose).to(routed.activation.dtype)
        )

    def _routed(self, primary: Capsules, children: Capsules) -> Routed:
        if self.rounds == 1:
            return self.class_caps.route(children)
        before = concurrent_routing(self._layers, primary, self.rounds - 1)[-1]
        initial = Routed(
            before.pose.flatten(2),
            before.activation,
            self.class_caps.votes(children),
            None,
        )
        return self.class_caps.route(children, initial=initial)

    def encode(self, images: Tensor) -> Capsules:
        """Return the class capsules, whose activations add up to 1."""
        capsules = concurrent_routing(
            self._layers, self.primary_of(images), self.rounds
        )[-1]
        shares = self._shares(capsules.pose.flatten(2))
        return Capsules(capsules.pose, shares.to(capsules.activation.dtype))

    def _shares(self, pose: Tensor) -> Tensor:
        """The softmax of the scores of poses (B, E, H)."""
        scores = self.score(pose.to(dtype_of(self.score, pose.dtype))).squeeze(-1)
        return torch.softmax(scores.to(compute_dtype(scores)), -1)
