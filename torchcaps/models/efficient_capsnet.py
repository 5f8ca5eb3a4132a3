"""Efficient-CapsNet (Mazzia, Salvetti & Chiaberge 2021)."""

import math
from dataclasses import InitVar
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps.layers import (
    CapsLinear,
    DecoderInput,
    FullyConnectedDecoder,
    PrimaryCaps,
)
from torchcaps.models.base import CapsuleClassifier, check_extent
from torchcaps.models.initial import cut_normal, glorot, he_deviation, zero_bias
from torchcaps.models.registry import register_model
from torchcaps.numerics import (
    AnySizes,
    Finite,
    NotNegative,
    Size,
    Sizes,
    ThreeSizes,
    transformed,
)
from torchcaps.routing import Routing, SelfAttentionRouting
from torchcaps.routing.batch_norm import EarlyBatchNorm2d
from torchcaps.spec import SuggestsNames, settings

Norm = Literal["batch", "instance"]


@register_model(
    "efficient_capsnet",
    "Mazzia et al. 2021, MNIST: 162 k parameters, 1.57 M with the decoder",
)
@register_model(
    "efficient_capsnet_smallnorb",
    "Mazzia et al. 2021, smallNORB: 152 k parameters, 381 k with the decoder",
    image_shape=(2, 48, 48),
    classes=5,
    kernel_sizes=(7, 3, 3, 3),
    strides=(2, 1, 1, 2),
    norm="instance",
    slope=0.3,
    decoder_hidden=None,
    decoder_channels=(64, 128, 128),
)
@register_model(
    "efficient_capsnet_multimnist",
    "Mazzia et al. 2021, MultiMNIST: 155 k parameters, 2.09 M with the decoder",
    image_shape=(1, 36, 36),
    strides=(1, 1, 2, 2),
    primary_kernel_size=5,
    primary_stride=2,
)
@settings
class EfficientCapsNet(CapsuleClassifier):
    """Few convolutions, one small set of primary capsules that see the whole image,
    class capsules by self-attention.

    Behind each convolution stand a (leaky) ReLU and, after it, a normalisation. The
    primary capsules come from a depthwise convolution, each channel of which has a
    kernel of its own, with one place or few.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: the channels of the convolutions; the last is cut into capsules.
        kernel_sizes: the kernel sizes of the convolutions.
        strides: the strides of the convolutions.
        norm: ``batch`` or ``instance`` normalisation.
        slope: the slope of the ReLU below 0.
        primary_dim: dimension of the primary capsules' poses, a divisor of the last of
            ``channels``.
        primary_kernel_size: the kernel size of their depthwise convolution; None for
            one as large as its feature map.
        primary_stride: the stride of that convolution.
        pose_dim: dimension of the class capsules' poses.
        routing: any routing; default: self-attention.
        decoder_hidden: widths of the hidden layers of a fully connected decoder, or
            None.
        decoder_channels: the channels of a convolutional decoder, see
            :class:`UpsamplingDecoder`, or None.
        decoder_input: what the decoder is told of the class that it draws: ``masked``,
            ``pose`` or ``pose_and_class``, see :class:`~torchcaps.layers.PoseInput`.
        pose_noise: deviation of the noise on the pose that the decoder is given in
            training.

    Raises:
        ValueError: if arguments contradict each other, or the images are too small for
            the convolutions.

    Source: Mazzia, Salvetti & Chiaberge 2021, "Efficient-CapsNet: Capsule Network with
    Self-Attention Routing", section 3; kernels, norms and initial weights: the code
    released with it.

    Example:
        >>> network = tc.models.EfficientCapsNet()
        >>> network(torch.rand(2, 1, 28, 28)).capsules.pose.shape
        torch.Size([2, 10, 16])
    """

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: Sizes = (32, 64, 64, 128)
    kernel_sizes: Sizes = (5, 3, 3, 3)
    strides: Sizes = (1, 1, 1, 2)
    norm: Norm = "batch"
    slope: Finite = 0.0
    primary_dim: Size = 8
    primary_kernel_size: Size | None = None
    primary_stride: Size = 1
    pose_dim: Size = 16
    routing: InitVar[Routing | None] = None
    decoder_hidden: AnySizes | None = (512, 1024)
    decoder_channels: AnySizes | None = None
    decoder_input: DecoderInput = "masked"
    pose_noise: NotNegative = 0.0

    def __post_init__(self, routing: Routing | None) -> None:
        self._check_arguments()
        grid = self._grid()
        self.features = self._features()
        self.primary_caps = PrimaryCaps(
            self.channels[-1],
            self.channels[-1] // self.primary_dim,
            self.primary_dim,
            self.primary_kernel_size or grid,
            self.primary_stride,
            squash="exponential",
            groups=self.channels[-1],
        )
        children = math.prod(self.primary_caps.sites(*grid))
        self.class_caps = CapsLinear(
            children,
            self.classes,
            self.primary_dim,
            self.pose_dim,
            routing=routing or SelfAttentionRouting(),
            init_std=he_deviation(self.classes * children * self.primary_dim),
        )
        if self.decoder_channels is None:
            self.decoder = self._make_decoder(
                FullyConnectedDecoder, self.decoder_hidden
            )
        else:
            self.decoder = self._make_decoder(UpsamplingDecoder, self.decoder_channels)
        self._start_as_published()

    def _check_arguments(self) -> None:
        if not len(self.channels) == len(self.kernel_sizes) == len(self.strides):
            raise ValueError(
                "channels, kernel_sizes and strides must be one for each convolution, "
                f"got {self.channels}, {self.kernel_sizes} and {self.strides}"
            )
        if self.channels[-1] % self.primary_dim:
            raise ValueError(
                "primary_dim must be a divisor of the last of channels, "
                f"{self.channels[-1]}, got {self.primary_dim}"
            )
        if self.decoder_hidden is not None and self.decoder_channels is not None:
            raise ValueError(
                "decoder_hidden and decoder_channels are two decoders, one of them "
                f"must be None, got {self.decoder_hidden} and {self.decoder_channels}"
            )

    def _grid(self) -> tuple[int, int]:
        """Height and width of the last convolution's output."""
        smallest = self.primary_kernel_size or 1
        for kernel, stride in zip(
            reversed(self.kernel_sizes), reversed(self.strides), strict=True
        ):
            smallest = (smallest - 1) * stride + kernel
        reason = f" for kernel_sizes {self.kernel_sizes} and strides {self.strides}"
        check_extent("image_shape", self.image_shape, smallest, reason)
        height, width = self.image_shape[1:]
        for kernel, stride in zip(self.kernel_sizes, self.strides, strict=True):
            height, width = (
                (extent - kernel) // stride + 1 for extent in (height, width)
            )
        if self.norm == "instance" and height * width == 1:
            raise ValueError(
                "image_shape must leave the last convolution more than one place under "
                f"norm='instance', which makes a single one 0, got {self.image_shape}"
            )
        return height, width

    def _features(self) -> nn.Sequential:
        layers: list[nn.Module] = []
        before = self.image_shape[0]
        for width, kernel, stride in zip(
            self.channels, self.kernel_sizes, self.strides, strict=True
        ):
            layers += [
                nn.Conv2d(before, width, kernel, stride),
                nn.LeakyReLU(self.slope) if self.slope else nn.ReLU(),
                EarlyBatchNorm2d(width, 1e-3, 0.01)
                if self.norm == "batch"
                else InstanceNorm(width),
            ]
            before = width
        return nn.Sequential(*layers)

    @torch.no_grad()
    def _start_as_published(self) -> None:
        """The initial weights of the released code's Keras: He's normal, in the
        depthwise convolution Glorot's.
        """
        for module in self.features:
            if isinstance(module, nn.Conv2d):
                cut_normal(module.weight, he_deviation(module.weight[0].numel()))
                zero_bias(module)
        kernel = self.primary_caps.conv
        # Fans k k and k k channels.
        bound = math.sqrt(6 / (kernel.weight[0].numel() * (1 + self.channels[-1])))
        nn.init.uniform_(kernel.weight, -bound, bound)
        zero_bias(kernel)
        if self.decoder is not None and self.decoder_hidden is not None:
            *hidden, last = (
                layer
                for layer in self.decoder.modules()
                if isinstance(layer, nn.Linear)
            )
            for layer in hidden:
                cut_normal(layer.weight, he_deviation(layer.in_features))
                zero_bias(layer)
            # Glorot's normal: both fans.
            cut_normal(last.weight, he_deviation(sum(last.weight.shape)))
            zero_bias(last)

    def children_of(self, images: Tensor) -> Capsules:
        """Return the primary capsules, poses (B, H', W', types, primary_dim)."""
        self._check(images)
        return self.primary_caps(self.features(images))


class InstanceNorm(nn.GroupNorm):
    """Normalises each channel of each image by its own mean and (biased) variance; then
    one scale and shift a channel.

    Both start uniform in [-0.05, 0.05], as in the code released with Mazzia, Salvetti &
    Chiaberge 2021.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, eps=1e-3)

    def reset_parameters(self) -> None:
        """Draw scale and shift anew."""
        nn.init.uniform_(self.weight, -0.05, 0.05)
        nn.init.uniform_(self.bias, -0.05, 0.05)

    def forward(self, features: Tensor) -> Tensor:
        """Normalise (B, C, H, W), in whatever order in memory."""
        # torch's kernel for groups of one channel is ten times slower on channels-last
        # maps than two copies.
        normal = super().forward(features.contiguous())
        # A mapped tensor does not know its order in memory.
        if transformed():
            return normal
        last = features.is_contiguous(memory_format=torch.channels_last)
        return normal.contiguous(memory_format=torch.channels_last) if last else normal


@settings
class UpsamplingDecoder(SuggestsNames, nn.Module):
    """Decodes masked class capsules to an image: one linear map, then, for each of
    ``channels``, twice the size.

    A linear layer draws a small map; it is enlarged by 2, bilinearly, and convolved (3
    x 3, no padding, leaky ReLU) once for each of ``channels``, and convolved once more
    to the channels of the image, with a sigmoid. The first map is the smallest one that
    gives the image; what is over is cut off evenly.

    Args:
        in_features: numbers in all class poses together, J x H.
        image_shape: (C, H, W) of the image.
        channels: the channels of the convolutions.

    Shape:
        Masked poses (B, J, H) to images (B, C, H, W) in [0, 1].

    Source: the code released with Mazzia, Salvetti & Chiaberge 2021, its network for
    smallNORB.

    Example:
        >>> decoder = tc.models.UpsamplingDecoder(
        ...     10 * 16, image_shape=(1, 28, 28), channels=(8, 8, 8)
        ... )
        >>> decoder(torch.randn(2, 160)).shape
        torch.Size([2, 1, 28, 28])
    """

    in_features: Size
    image_shape: ThreeSizes
    channels: AnySizes = (64, 128, 128)

    def __post_init__(self) -> None:
        # All doublings: the convolutions make scale n - 2 scale pixels of
        # scale n.
        scale = 2 ** len(self.channels)
        self.first = tuple(
            math.ceil((extent + 2 * scale) / scale) for extent in self.image_shape[1:]
        )
        self.linear = nn.Linear(self.in_features, math.prod(self.first))
        widths = (1, *self.channels, self.image_shape[0])
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, width, 3) for before, width in pairwise(widths)
        )
        for layer in (self.linear, *self.convolutions):
            glorot(layer)

    def forward(self, poses: Tensor) -> Tensor:
        """Decode."""
        image = self.linear(poses.flatten(1)).unflatten(1, (1, *self.first))
        *hidden, last = self.convolutions
        for convolution in hidden:
            image = F.interpolate(
                image, scale_factor=2, mode="bilinear", align_corners=False
            )
            image = F.leaky_relu(convolution(image), 0.2)
        image = last(image).sigmoid()
        top, left = (
            (extent - wanted) // 2
            for extent, wanted in zip(
                image.shape[2:], self.image_shape[1:], strict=True
            )
        )
        return image[
            :, :, top : top + self.image_shape[1], left : left + self.image_shape[2]
        ]
