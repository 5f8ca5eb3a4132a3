"""CapsNet (Sabour, Frosst & Hinton 2017)."""

import math
from collections.abc import Sequence
from dataclasses import InitVar
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules, Prediction
from torchcaps.layers import (
    CapsLinear,
    DecoderInput,
    FullyConnectedDecoder,
    PrimaryCaps,
)
from torchcaps.layers.linear import Transforms
from torchcaps.models.base import CapsuleClassifier, ImageClassifier
from torchcaps.models.initial import cut_normal
from torchcaps.models.registry import register_model
from torchcaps.numerics import AnySizes, NotNegative, Share, Size, ThreeSizes, TwoSizes
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.routing.batch_norm import EarlyBatchNorm2d
from torchcaps.spec import settings


@register_model(
    "capsnet",
    "Sabour et al. 2017, the paper: 6.80 M parameters, 8.22 M with the decoder",
)
@register_model(
    "capsnet_released",
    "Sabour et al. 2017, the released code: biases in the routing, primary capsules "
    "routed once, its initial weights",
    routing={"name": "dynamic", "bias": True},
    routed_primary=True,
    released_start=True,
)
@register_model(
    "capsnet_small",
    "CapsNet for a CPU: smaller kernels, 64 channels, 16 primary types",
    channels=64,
    kernel_size=5,
    stride=2,
    types=16,
    primary_kernel_size=5,
    decoder_hidden=(256, 512),
    init_std=None,
)
@register_model(
    "capsnet_digits",
    "CapsNet for scikit-learn's 8x8 digits: 3x3 kernels, 8 primary types",
    image_shape=(1, 8, 8),
    channels=64,
    kernel_size=3,
    types=8,
    primary_kernel_size=3,
    primary_stride=1,
    decoder_hidden=(128, 256),
    init_std=None,
)
@settings
class CapsNet(CapsuleClassifier):
    """Convolution, primary capsules, one routed layer of class capsules, and a decoder.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: the channels of the first convolution.
        kernel_size: the kernel size of the first convolution.
        stride: the stride of the first convolution.
        types: the number of types of primary capsules at each place.
        primary_dim: how many numbers the pose of a primary capsule has.
        primary_kernel_size: the kernel size of the convolution of primary capsules.
        primary_stride: the stride of the convolution of primary capsules.
        pose_dim: how many numbers the pose of a class capsule has.
        routing: any routing; default: dynamic routing in 3 steps.
        transforms: the transforms of the class capsules: ``full`` or ``shared``.
        squash: the squash of the primary capsules.
        batch_norm: whether to normalise batches in the primary capsules.
        routed_primary: pass the primary capsules through one routing step with a bias,
            as the released code does.
        decoder_hidden: widths of the decoder's hidden layers; None for no decoder.
        init_std: the standard deviation of the transforms; None for the rule of
            :class:`~torchcaps.layers.CapsLinear`.
        stem: widths of further convolutions in front of the first one, of its kernel
            size and with stride 1. With a stem, batch normalisation stands behind every
            convolution below the primary capsules.
        decoder_input: what the decoder gets of the class that it draws: ``masked``,
            ``pose`` or ``pose_and_class``, see :class:`~torchcaps.layers.PoseInput`.
        pose_noise: deviation of the noise on the pose that the decoder is given in
            training.
        released_start: initial weights and biases as in the released code: normal, cut
            at two deviations, of 0.05 in the convolutions in front and 0.1 in that of
            the primary capsules and in the decoder; biases 0.1. With PyTorch's own, the
            bias of routed primary capsules is nearly all that there is of them.

    Source: Sabour, Frosst & Hinton 2017, "Dynamic Routing Between Capsules", section 4;
    the code released with it.

    Example:
        >>> network = tc.create_model("capsnet_digits")
        >>> prediction = network(torch.rand(2, 1, 8, 8))
        >>> (
        ...     prediction.activation.shape,
        ...     prediction.capsules.pose.shape,
        ...     prediction.reconstruction.shape,
        ... )
        (torch.Size([2, 10]), torch.Size([2, 10, 16]), torch.Size([2, 1, 8, 8]))
    """

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: Size = 256
    kernel_size: Size = 9
    stride: Size = 1
    types: Size = 32
    primary_dim: Size = 8
    primary_kernel_size: Size = 9
    primary_stride: Size = 2
    pose_dim: Size = 16
    routing: InitVar[Routing | None] = None
    transforms: Transforms = "full"
    squash: str = "sabour"
    batch_norm: bool = False
    routed_primary: bool = False
    decoder_hidden: AnySizes | None = (512, 1024)
    init_std: float | None = 0.1
    stem: AnySizes = ()
    decoder_input: DecoderInput = "masked"
    pose_noise: NotNegative = 0.0
    released_start: bool = False

    def __post_init__(self, routing: Routing | None) -> None:
        in_channels = self.image_shape[0]
        self.features = _stem(in_channels, self.stem, self.kernel_size)
        self.conv = nn.Conv2d(
            (in_channels, *self.stem)[-1], self.channels, self.kernel_size, self.stride
        )
        self.norm = EarlyBatchNorm2d(self.channels) if self.stem else nn.Identity()
        self.primary_caps = PrimaryCaps(
            self.channels,
            self.types,
            self.primary_dim,
            self.primary_kernel_size,
            self.primary_stride,
            squash=self.squash,
            batch_norm=self.batch_norm,
            routed=self.routed_primary,
        )
        self.class_caps = CapsLinear(
            math.prod(self.primary_caps.sites(*self._grid())),
            self.classes,
            self.primary_dim,
            self.pose_dim,
            transforms=self.transforms,
            routing=routing or DynamicRouting(),
            init_std=self.init_std,
        )
        self.decoder = self._make_decoder(FullyConnectedDecoder, self.decoder_hidden)
        if self.released_start:
            self._start_as_released()

    def _start_as_released(self) -> None:
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                deviation = 0.1
                if layer is self.conv or layer in self.features:
                    deviation = 0.05
                cut_normal(layer.weight, deviation)
                if layer.bias is not None:
                    nn.init.constant_(layer.bias, 0.1)

    def _grid(self) -> tuple[int, ...]:
        """Height and width of the first convolution's output."""
        extents = [
            extent - len(self.stem) * (self.kernel_size - 1)
            for extent in self.image_shape[1:]
        ]
        if min(extents) < self.kernel_size:
            behind = f" behind a stem of {len(self.stem)}" if self.stem else ""
            height, width = self.image_shape[1:]
            raise ValueError(
                f"image_shape {self.image_shape} is smaller than kernel_size "
                f"{self.kernel_size}{behind}: it has {height} x {width} pixels"
            )
        return tuple(
            (extent - self.kernel_size) // self.stride + 1 for extent in extents
        )

    def children_of(self, images: Tensor) -> Capsules:
        """Return the primary capsules, poses (B, H', W', types, primary_dim)."""
        self._check(images)
        return self.primary_caps(F.relu(self.norm(self.conv(self.features(images)))))


def _stem(in_channels: int, widths: Sequence[int], kernel_size: int) -> nn.Sequential:
    """Convolutions, each with batch normalisation and ReLU; nothing for no widths."""
    layers: list[nn.Module] = []
    for before, width in pairwise((in_channels, *widths)):
        layers += [
            nn.Conv2d(before, width, kernel_size),
            EarlyBatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)


@register_model(
    "capsnet_cnn",
    "Sabour et al. 2017: the baseline, three convolutions and two hidden layers, 35.4 "
    "M parameters",
)
@register_model(
    "capsnet_small_cnn",
    "that baseline for a CPU, with about the parameters of capsnet_small",
    channels=(32, 32, 16),
    stride=2,
)
@settings
class CapsNetTwin(ImageClassifier):
    """Three convolutions, two fully connected layers, dropout, a softmax.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: the channels of the three convolutions, 5 x 5 with padding.
        stride: the stride of the first convolution.
        hidden: widths of the two fully connected layers.
        dropout: share of the second of them that is left out in training.

    Source: Sabour, Frosst & Hinton 2017, section 5 (the padding is what gives the 35.4
    M parameters that they name; the share of dropout they do not give).

    Example:
        >>> network = tc.models.CapsNetTwin(
        ...     (1, 16, 16), classes=4, channels=(8, 8, 8), hidden=(16, 16)
        ... )
        >>> network(torch.rand(2, 1, 16, 16)).capsules is None
        True
    """

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: ThreeSizes = (256, 256, 128)
    stride: Size = 1
    hidden: TwoSizes = (328, 192)
    dropout: Share = 0.5

    def __post_init__(self) -> None:
        in_channels, height, width = self.image_shape
        first, second, third = self.channels
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, first, 5, self.stride, padding=2),
            nn.ReLU(),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(second, third, 5, padding=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        positions = math.prod(
            (extent - 1) // self.stride + 1 for extent in (height, width)
        )
        self.head = nn.Sequential(
            nn.Linear(third * positions, self.hidden[0]),
            nn.ReLU(),
            nn.Linear(self.hidden[0], self.hidden[1]),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden[1], self.classes),
        )

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the probability of each class."""
        self._check(images)
        return Prediction(self.head(self.features(images)).softmax(-1))
