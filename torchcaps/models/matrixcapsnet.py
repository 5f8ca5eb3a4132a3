"""MatrixCapsNet (Hinton, Sabour & Frosst 2018)."""

import math
from dataclasses import InitVar
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsConv2d, ClassCaps, FullyConnectedDecoder, PrimaryCaps
from torchcaps.layers.classcaps import Coordinates
from torchcaps.layers.conv import Competition
from torchcaps.layers.pose_norm import PoseScale
from torchcaps.models.base import (
    CapsuleClassifier,
    ImageClassifier,
    Prediction,
    check_extent,
    layer_routing,
    same_padded,
)
from torchcaps.models.registry import register_model
from torchcaps.numerics import AnySizes, Share, Size, ThreeSizes, TwoSizes
from torchcaps.routing import EMRouting, Routing
from torchcaps.spec import settings

_SMALLEST = {False: 17, True: 13}
"""Pixels on a side that leave one position in the last convolutional layer, by whether
the image is padded.
"""


@register_model(
    "matrixcapsnet",
    "Hinton et al. 2018: A = B = C = D = 32, 316,650 parameters (the paper says 310 K)",
)
@register_model(
    "matrixcapsnet_paper",
    "the same with the paper's routing to the letter: sharp E-steps, costs as they "
    "are, poses not normalised",
    routing={"name": "em"},
    pose_norm=None,
)
@register_model(
    "matrixcapsnet_small",
    "Hinton et al. 2018: A = 64, B = 8, C = D = 16, 68,618 parameters (the paper says "
    "68 K)",
    channels=64,
    types=(8, 16, 16),
)
@register_model(
    "matrixcapsnet_cifar10",
    "Hinton et al. 2018: A = 256, B = C = D = 32, for CIFAR-10",
    image_shape=(3, 32, 32),
    classes=10,
    channels=256,
)
@register_model(
    "matrixcapsnet_mnist",
    "Hinton et al. 2018 as ports have it for MNIST: maps of 14, 6 and 4, parents "
    "compete within a window",
    image_shape=(1, 28, 28),
    classes=10,
    same_padding=True,
    routing={
        "name": "em",
        "steps": 3,
        "standardise": True,
        "schedule": "linear",
        "inverse_temperature": 1.0,
    },
    competition="window",
    pose_norm=None,
)
@settings
class MatrixCapsNet(CapsuleClassifier):
    """Convolution, primary capsules, two layers of convolutional capsules, class
    capsules; matrix poses throughout.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: A, the channels of the first convolution.
        types: B, C and D, the numbers of types of primary capsules and of capsules in
            the two convolutional layers.
        pose: rows and columns of the poses.
        routing: the routing of the convolutional layers, and of the class capsules
            unless ``class_routing`` says otherwise; default: EM routing in 3 steps with
            standardised costs and soft E-steps (the preset ``soft``), or with scaled
            masses for fewer than three classes, which leave nothing to standardise
            over.
        class_routing: the routing of the class capsules.
        competition: which parents compete for a child: all that see it in the
            ``image``, or those of one ``window``.
        coordinates: add the children's places to their votes for the class capsules;
            ``"scaled"``: multiplied by how large their poses are.
        decoder_hidden: widths of the decoder's hidden layers; None for no decoder, as
            in the paper.
        pose_norm: normalise the poses that go into each routed layer, see
            :class:`~torchcaps.layers.PoseNorm`; None, as published, leaves them, and
            they fade from layer to layer.
        residual: add the children's poses to the routed ones in the convolutional
            layers, see :class:`~torchcaps.layers.IdentityPath`.
        same_padding: pad the image for the first convolution as TensorFlow's ``SAME``
            does, for maps of half its size.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", sections 4
    and 5, figure 1.

    Example:
        >>> network = tc.models.MatrixCapsNet(
        ...     (1, 20, 20), classes=5, channels=8, types=(4, 4, 4)
        ... )
        >>> prediction = network(torch.rand(2, 1, 20, 20))
        >>> prediction.activation.shape, prediction.capsules.pose.shape
        (torch.Size([2, 5]), torch.Size([2, 5, 4, 4]))
    """

    image_shape: tuple[int, int, int] = (2, 32, 32)
    classes: int = 5
    channels: Size = 32
    types: ThreeSizes = (32, 32, 32)
    pose: TwoSizes = (4, 4)
    routing: InitVar[Routing | None] = layer_routing(
        "conv_caps1", "The routing of the convolutional layers."
    )
    class_routing: InitVar[Routing | None] = layer_routing(
        "class_caps", "The routing of the class capsules."
    )
    competition: Competition = "image"
    coordinates: Coordinates = True
    decoder_hidden: AnySizes | None = None
    pose_norm: PoseScale | None = "element"
    residual: bool = False
    same_padding: bool = False

    def __post_init__(
        self, routing: Routing | None, class_routing: Routing | None
    ) -> None:
        if routing is None and class_routing is None and self.classes < 3:
            class_routing = _for_few_classes()
        routing = routing or EMRouting.preset("soft")
        first, second, third = self.types
        pose = self.pose[0], self.pose[1]
        check_extent("image_shape", self.image_shape, _SMALLEST[self.same_padding])
        self.conv = nn.Conv2d(self.image_shape[0], self.channels, 5, stride=2)
        self.primary_caps = PrimaryCaps(
            self.channels,
            first,
            pose,
            kernel_size=1,
            stride=1,
            squash="none",
            activation="learned",
            bias=False,
            pose_norm=self.pose_norm,
        )
        shape = pose, pose
        routed: dict[str, Any] = {"routing": routing, "competition": self.competition}
        routed |= {"pose_norm": self.pose_norm, "residual": self.residual}
        self.conv_caps1 = CapsConv2d(first, second, *shape, 3, 2, **routed)
        self.conv_caps2 = CapsConv2d(second, third, *shape, 3, 1, **routed)
        self.class_caps = ClassCaps(
            third,
            self.classes,
            *shape,
            routing=class_routing or routing,
            coordinates=self.coordinates,
        )
        self.decoder = None
        if self.decoder_hidden is not None:
            size = math.prod(self.pose) * self.classes
            self.decoder = FullyConnectedDecoder(
                size, self.image_shape, self.decoder_hidden
            )

    def _arguments_for(self, classes: int) -> dict[str, Any]:
        arguments = super()._arguments_for(classes)
        routing = self.class_caps.routing
        standardised = isinstance(routing, EMRouting) and routing.standardise
        if standardised and classes != self.classes and classes < 3:
            arguments["class_routing"] = _for_few_classes()
        return arguments

    def layers_of(self, images: Tensor) -> dict[str, Capsules]:
        """Return the capsules of each layer below the classes, by name."""
        self._check(images)
        if self.same_padding:
            images = same_padded(images, self.conv.kernel_size[0], self.conv.stride[0])
        primary = self.primary_caps(F.relu(self.conv(images)))
        first = self.conv_caps1(primary)
        return {
            "primary_caps": primary,
            "conv_caps1": first,
            "conv_caps2": self.conv_caps2(first),
        }

    def children_of(self, images: Tensor) -> Capsules:
        """Return the capsules of the last convolutional layer, poses (B, H', W', types,
        *pose).
        """
        return self.layers_of(images)["conv_caps2"]


def _for_few_classes() -> EMRouting:
    """The routing of one or two classes, whose standardised costs would always be the
    same.
    """
    return EMRouting.preset("mass_scaled", sharpness="mean")


@register_model(
    "matrixcapsnet_cnn",
    "Hinton et al. 2018: the baseline, two convolutions and a hidden layer, 4.2 M "
    "parameters",
)
@settings
class MatrixCapsNetTwin(ImageClassifier):
    """Two convolutions, each with max pooling, one hidden layer with dropout, a
    softmax.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: the channels of the two convolutions, 5 x 5 with padding.
        hidden: width of the hidden layer.
        dropout: share of the hidden layer that is left out in training.

    Source: Hinton, Sabour & Frosst 2018, section 5 (the padding is what gives the 4.2 M
    parameters that they name; the share of dropout they do not give).

    Example:
        >>> network = tc.models.MatrixCapsNetTwin(
        ...     (2, 32, 32), classes=5, channels=(4, 8), hidden=16
        ... )
        >>> network(torch.rand(2, 2, 32, 32)).activation.shape
        torch.Size([2, 5])
    """

    image_shape: tuple[int, int, int] = (2, 32, 32)
    classes: int = 5
    channels: TwoSizes = (32, 64)
    hidden: Size = 1024
    dropout: Share = 0.5

    def __post_init__(self) -> None:
        in_channels, height, width = self.image_shape
        check_extent("image_shape", self.image_shape, 4, " for two poolings")
        first, second = self.channels
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, first, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        positions = (height // 4) * (width // 4)
        self.head = nn.Sequential(
            nn.Linear(second * positions, self.hidden),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden, self.classes),
        )

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the probability of each class."""
        self._check(images)
        return Prediction(self.head(self.features(images)).softmax(-1))
