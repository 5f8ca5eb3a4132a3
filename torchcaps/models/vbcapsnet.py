"""The network of variational Bayes routing (Ribeiro, Leontidis & Kollias 2020)."""

import math
from dataclasses import InitVar

from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsConv2d, ClassCaps
from torchcaps.layers.conv import Competition
from torchcaps.models.base import CapsuleClassifier
from torchcaps.models.registry import register_model
from torchcaps.numerics import Size, ThreeSizes, TwoSizes
from torchcaps.routing import Routing, VariationalBayesRouting
from torchcaps.routing.batch_norm import EarlyBatchNorm2d, EarlyBatchNorm3d
from torchcaps.spec import settings


@register_model(
    "vbcapsnet", "Ribeiro et al. 2020, smallNORB: 64-8-16-16-5, 68,714 parameters"
)
@settings
class VBCapsNet(CapsuleClassifier):
    """Convolution, primary capsules, two layers of convolutional capsules, class
    capsules; variational Bayes routing.

    The layers are those of a small MatrixCapsNet, with batch normalisation behind the
    convolution and, one scale and shift for each type, in the primary capsules. Its
    loss is the cross-entropy of the activations as logits.

    Votes and competition are those of the paper and of the authors' later code; the
    first version of that code multiplied the sums over the rows of a pose with the
    transforms, and normalised within one window. Their class layer adds coordinates,
    :math:`(i + 1) / (10 F)`, to the last elements of the first two rows of a vote; here
    they are those of :func:`~torchcaps.layers.coordinate_addition`, divided by 10.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: the channels of the convolution, 5 x 5 with stride 2.
        types: the number of types of the primary capsules and of the two convolutional
            layers.
        pose: rows and columns of the poses.
        routing: the routing of the classes, and of the convolutional layers; default:
            variational Bayes.
        competition: which parents compete for a child, see
            :class:`~torchcaps.layers.CapsConv2d`.

    Raises:
        ValueError: if ``types`` are not three, or the images are too small.

    Source: Ribeiro, Leontidis & Kollias 2020, "Capsule Routing via Variational Bayes",
    section 5; initial weights: the code released with it.

    Example:
        >>> network = tc.models.VBCapsNet(
        ...     (2, 32, 32), classes=5, channels=8, types=(4, 4, 4)
        ... )
        >>> network(torch.rand(2, 2, 32, 32)).activation.shape
        torch.Size([2, 5])
    """

    any_size = True
    smallest = 17

    image_shape: tuple[int, int, int] = (2, 32, 32)
    classes: int = 5
    channels: Size = 64
    types: ThreeSizes = (8, 16, 16)
    pose: TwoSizes = (4, 4)
    routing: InitVar[Routing | None] = None
    competition: Competition = "image"

    def __post_init__(self, routing: Routing | None) -> None:
        first, second, third = self.types
        pose = self.pose[0], self.pose[1]
        routing = routing or VariationalBayesRouting()

        self.conv = nn.Conv2d(
            self.image_shape[0], self.channels, 5, stride=2, bias=False
        )
        self.norm = EarlyBatchNorm2d(self.channels)
        self.primary_poses = nn.Conv2d(
            self.channels, first * math.prod(self.pose), 1, bias=False
        )
        self.primary_activations = nn.Conv2d(self.channels, first, 1, bias=False)
        self.primary_pose_norm = EarlyBatchNorm3d(first)
        self.primary_activation_norm = EarlyBatchNorm2d(first)
        shape = pose, pose
        self.conv_caps1 = CapsConv2d(
            first, second, *shape, 3, 2, routing=routing, competition=self.competition
        )
        self.conv_caps2 = CapsConv2d(
            second, third, *shape, 3, 1, routing=routing, competition=self.competition
        )
        self.class_caps = ClassCaps(
            third, self.classes, *shape, routing=routing, coordinate_scale=0.1
        )
        self.decoder = None
        self._start_as_published()

    def _start_as_published(self) -> None:
        nn.init.kaiming_uniform_(self.conv.weight)
        for layer in (self.primary_poses, self.primary_activations):
            nn.init.xavier_uniform_(layer.weight)
        size = max(2, math.prod(self.pose))
        for caps, children, parents in (
            (self.conv_caps1, 9 * self.types[0], 9 * self.types[1]),
            (self.conv_caps2, 9 * self.types[1], 9 * self.types[2]),
            (self.class_caps, self.types[2], self.classes),
        ):
            bound = math.sqrt(6 / ((children + parents) * size))
            nn.init.uniform_(caps.weight, -bound, bound)

    def primary_of(self, images: Tensor) -> Capsules:
        """Return the primary capsules, poses (B, H', W', types, *pose)."""
        self._check(images)
        features = F.relu(self.norm(self.conv(images)))
        # [B, types, M D, H', W']
        poses = self.primary_poses(features).unflatten(1, (self.types[0], -1))
        poses = self.primary_pose_norm(poses).permute(0, 3, 4, 1, 2)
        logits = self.primary_activation_norm(self.primary_activations(features))
        return Capsules(poses.unflatten(-1, self.pose), logits.movedim(1, -1).sigmoid())

    def children_of(self, images: Tensor) -> Capsules:
        """Return the capsules of the last convolutional layer, poses (B, H', W', types,
        *pose).
        """
        return self.conv_caps2(self.conv_caps1(self.primary_of(images)))
