"""MatrixCapsNet (Hinton, Sabour & Frosst 2018)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsConv2d, ClassCaps, FullyConnectedDecoder, PrimaryCaps
from torchcaps.layers.classcaps import Coordinates
from torchcaps.layers.conv import Competition
from torchcaps.layers.pose_norm import PoseScale
from torchcaps.models.base import CapsuleClassifier, ImageClassifier, Prediction, check_extent
from torchcaps.models.registry import register_model
from torchcaps.numerics import check_finite, check_series, check_size, given
from torchcaps.routing import EMRouting, Routing

_SMALLEST = 17  # pixels on a side that leave one position in the last convolutional layer


@register_model(
    "matrixcapsnet",
    "Hinton et al. 2018: A = B = C = D = 32, 316,650 parameters (the paper says 310 K)",
)
@register_model(
    "matrixcapsnet_paper",
    "the same with the paper's routing to the letter: sharp E-steps, costs as they are, poses not normalised",
    routing={"name": "em"},
    pose_norm=None,
)
@register_model(
    "matrixcapsnet_small",
    "Hinton et al. 2018: A = 64, B = 8, C = D = 16, 68,618 parameters (the paper says 68 K)",
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
class MatrixCapsNet(CapsuleClassifier):
    """Convolution, primary capsules, two layers of convolutional capsules, class capsules; matrix poses throughout.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: A, of the first convolution.
        types: B, C and D: types of primary capsules and of the two convolutional layers.
        pose: rows and columns of the poses.
        routing: of the convolutional layers, and of the class capsules unless ``class_routing`` says otherwise;
            default: EM routing in 3 steps with standardised costs and soft E-steps (the preset ``soft``), or with
            scaled masses for fewer than three classes, which leave nothing to standardise over.
        class_routing: of the class capsules.
        competition: which parents compete for a child: all that see it in the ``image``, those of one type at any
            ``position``, or those of one ``window``.
        coordinates: add the children's places to their votes for the class capsules; ``"scaled"``: multiplied by how
            large their poses are.
        decoder_hidden: widths of the decoder's hidden layers; None for no decoder, as in the paper.
        decoder_by_class: whether the decoder is told which class it decodes.
        pose_norm: normalise the poses that go into each routed layer, see :class:`~torchcaps.layers.PoseNorm`; None, as
            published, leaves them, and they fade from layer to layer.
        residual: add the children's poses to the routed ones in the convolutional layers, see
            :class:`~torchcaps.layers.IdentityPath`.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", section 5 and figure 1.

    Example:
        >>> network = tc.models.MatrixCapsNet((1, 20, 20), classes=5, channels=8, types=(4, 4, 4))
        >>> prediction = network(torch.rand(2, 1, 20, 20))
        >>> prediction.activation.shape, prediction.capsules.pose.shape
        (torch.Size([2, 5]), torch.Size([2, 5, 4, 4]))
    """

    newer: ClassVar[Mapping[str, Any]] = {"pose_norm": None}

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (2, 32, 32),
        classes: int = 5,
        channels: int = 32,
        types: Sequence[int] = (32, 32, 32),
        pose: tuple[int, int] = (4, 4),
        routing: Routing | None = None,
        class_routing: Routing | None = None,
        competition: Competition = "image",
        coordinates: Coordinates = True,
        decoder_hidden: Sequence[int] | None = None,
        decoder_by_class: bool = True,
        pose_norm: PoseScale | None = "element",
        residual: bool = False,
    ) -> None:
        super().__init__(image_shape, classes)
        check_size(channels=channels)
        check_series(3, types=types)
        check_series(2, pose=pose)
        check_series(0, **given(decoder_hidden=decoder_hidden))
        self.channels, self.types, self.pose = channels, tuple(types), (pose[0], pose[1])
        self.competition, self.coordinates = competition, coordinates
        self.decoder_hidden = None if decoder_hidden is None else tuple(decoder_hidden)
        self.decoder_by_class = decoder_by_class
        self.pose_norm, self.residual = pose_norm, residual
        if routing is None and class_routing is None and classes < 3:
            class_routing = EMRouting.preset("mass_scaled", sharpness="mean")
        routing = routing or EMRouting.preset("soft")
        first, second, third = self.types
        check_extent("image_shape", self.image_shape, _SMALLEST)
        self.conv = nn.Conv2d(self.image_shape[0], channels, 5, stride=2)
        self.primary_caps = PrimaryCaps(
            channels,
            first,
            self.pose,
            kernel_size=1,
            stride=1,
            squash="none",
            activation="learned",
            bias=False,
            pose_norm=pose_norm,
        )
        routed: dict[str, Any] = {"routing": routing, "competition": competition}
        routed |= {"pose_norm": pose_norm, "residual": residual}
        self.conv_caps1 = CapsConv2d(first, second, self.pose, self.pose, 3, 2, **routed)
        self.conv_caps2 = CapsConv2d(second, third, self.pose, self.pose, 3, 1, **routed)
        self.class_caps = ClassCaps(
            third, classes, self.pose, self.pose, routing=class_routing or routing, coordinates=coordinates
        )
        self.decoder = None
        if self.decoder_hidden is not None:
            size = math.prod(self.pose) * (classes if decoder_by_class else 1)
            self.decoder = FullyConnectedDecoder(size, self.image_shape, self.decoder_hidden, decoder_by_class)

    @property
    def routing(self) -> Routing:
        """The routing of the convolutional layers."""
        return self.conv_caps1.routing

    @property
    def class_routing(self) -> Routing:
        """The routing of the class capsules."""
        return self.class_caps.routing

    def layers_of(self, images: Tensor) -> dict[str, Capsules]:
        """The capsules of each layer below the classes, by name."""
        self._check(images)
        primary = self.primary_caps(F.relu(self.conv(images)))
        first = self.conv_caps1(primary)
        return {"primary_caps": primary, "conv_caps1": first, "conv_caps2": self.conv_caps2(first)}

    def children_of(self, images: Tensor) -> Capsules:
        """The capsules of the last convolutional layer, poses (B, H', W', types, *pose)."""
        return self.layers_of(images)["conv_caps2"]


@register_model(
    "matrixcapsnet_cnn",
    "Hinton et al. 2018: the baseline, two convolutions and a hidden layer, 4.2 M parameters",
)
class MatrixCapsNetTwin(ImageClassifier):
    """Two convolutions, each with max pooling, one hidden layer with dropout, a softmax.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: of the two convolutions, 5 x 5 with padding.
        hidden: width of the hidden layer.
        dropout: share of the hidden layer that is left out in training.

    Source: Hinton, Sabour & Frosst 2018, section 5 (the padding is what gives the 4.2 M parameters that they name; the
    share of dropout they do not give).

    Example:
        >>> network = tc.models.MatrixCapsNetTwin((2, 32, 32), classes=5, channels=(4, 8), hidden=16)
        >>> network(torch.rand(2, 2, 32, 32)).activation.shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int] = (2, 32, 32),
        classes: int = 5,
        channels: Sequence[int] = (32, 64),
        hidden: int = 1024,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(image_shape, classes)
        check_series(2, channels=channels)
        check_size(hidden=hidden)
        check_finite(dropout=dropout)
        self.channels = (channels[0], channels[1])
        self.hidden = hidden
        self.dropout = dropout
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
            nn.Linear(second * positions, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes)
        )

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each class."""
        self._check(images)
        return Prediction(self.head(self.features(images)).softmax(-1), None, None)
