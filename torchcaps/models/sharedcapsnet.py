"""SharedCapsNet, its convolutional twin (Su Jianlin 2018), and a twin whose classes
need local evidence.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import InitVar

from torch import Tensor, nn

from torchcaps.capsules import Capsules, Prediction
from torchcaps.layers import CapsLinear
from torchcaps.models.base import CapsuleClassifier, ImageClassifier
from torchcaps.models.initial import Affine, glorot
from torchcaps.models.registry import register_model
from torchcaps.numerics import FourSizes, NotNegative, Size
from torchcaps.routing import InnerProductKMeansRouting, Routing
from torchcaps.routing.batch_norm import EarlyBatchNorm2d
from torchcaps.spec import settings
from torchcaps.squashing import length


def _features(
    in_channels: int, channels: Sequence[int], batch_norm: bool
) -> nn.Sequential:
    """Two 3x3 convolutions, average pooling by 2, two 3x3 convolutions; ReLU behind
    each.
    """
    first, second, third, fourth = channels
    return _start_as_published(
        nn.Sequential(
            *_convolution(in_channels, first, batch_norm),
            *_convolution(first, second, batch_norm),
            nn.AvgPool2d(2),
            *_convolution(second, third, batch_norm),
            *_convolution(third, fourth, batch_norm),
        )
    )


def _convolution(
    in_channels: int, channels: int, batch_norm: bool
) -> Iterator[nn.Module]:
    """A 3x3 convolution, batch normalisation if asked for, ReLU."""
    yield nn.Conv2d(in_channels, channels, 3)
    if batch_norm:
        yield EarlyBatchNorm2d(channels)
    yield nn.ReLU()


def _start_as_published(layers: nn.Sequential) -> nn.Sequential:
    """Glorot's uniform weights and no biases, as the published code's Keras has them.

    PyTorch's own weights are smaller, by a factor of 1.7 in a layer with as many
    channels out as in, and little of them is left after pooling over all positions.
    """
    for layer in layers:
        if isinstance(layer, Affine):
            glorot(layer)
    return layers


_SMALL_START = 0.03
"""The deviation of the transforms behind batch normalisation, times the root of the
dimension of the children.
"""


@register_model(
    "sharedcapsnet",
    "Su 2018a/b (kexue.fm 4819, 5112): transforms shared by all positions",
)
@settings
class SharedCapsNet(CapsuleClassifier):
    """Convolutions, then class capsules with transforms shared by all positions: images
    of any size.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: the channels of the four convolutions; the last is the dimension of
            the children's poses.
        pose_dim: dimension of the class capsules' poses.
        batch_norm: whether batch normalisation follows each convolution. The published
            network has none. With it the transforms start small.
        routing: any routing; default: inner-product K-Means in 3 steps.

    Source: Su Jianlin 2018, kexue.fm/archives/4819 and 5112, the network of the
    two-digit experiment.

    Example:
        >>> network = tc.models.SharedCapsNet(
        ...     (1, 28, 28), classes=10, channels=(8, 8, 16, 16)
        ... )
        >>> network(torch.rand(2, 1, 40, 32)).activation.shape  # images of any size
        torch.Size([2, 10])
    """

    any_size = True
    smallest = 14

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: FourSizes = (64, 64, 128, 128)
    pose_dim: Size = 16
    batch_norm: bool = False
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        self.features = _features(self.image_shape[0], self.channels, self.batch_norm)
        self.decoder = None
        self.class_caps = CapsLinear(
            None,
            self.classes,
            self.channels[-1],
            self.pose_dim,
            transforms="shared",
            routing=routing or InnerProductKMeansRouting(),
            # Normalised children are long and many: with transforms of the usual size
            # all lengths start at 1.
            init_std=_SMALL_START / math.sqrt(self.channels[-1])
            if self.batch_norm
            else None,
        )

    def children_of(self, images: Tensor) -> Capsules:
        """Return the last feature map, a child at each position: poses (B, H', W',
        channels).
        """
        self._check(images)
        pose = self.features(images).permute(0, 2, 3, 1)
        return Capsules(pose, length(pose))


@register_model(
    "sharedcapsnet_cnn",
    "Su 2018a (kexue.fm 4819): the same convolutions, pooled; the baseline",
)
@settings
class SharedCapsNetTwin(ImageClassifier):
    """The convolutions of :class:`SharedCapsNet`, global average pooling, one hidden
    layer, a sigmoid for each class.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: the channels of the four convolutions.
        hidden: width of the hidden layer.
        batch_norm: whether batch normalisation follows each convolution. The published
            network has none.

    Source: Su Jianlin 2018, kexue.fm/archives/4819.

    Example:
        >>> network = tc.models.SharedCapsNetTwin(
        ...     (1, 28, 28), classes=10, channels=(8, 8, 16, 16)
        ... )
        >>> network(torch.rand(2, 1, 28, 28)).activation.shape
        torch.Size([2, 10])
    """

    any_size = True
    smallest = 14

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: FourSizes = (64, 64, 128, 128)
    hidden: Size = 128
    batch_norm: bool = False

    def __post_init__(self) -> None:
        self.features = _features(self.image_shape[0], self.channels, self.batch_norm)
        self.head = _start_as_published(
            nn.Sequential(
                nn.Linear(self.channels[-1], self.hidden),
                nn.ReLU(),
                nn.Linear(self.hidden, self.classes),
                nn.Sigmoid(),
            )
        )

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the probability of each class."""
        self._check(images)
        return Prediction(self.head(self.features(images).mean((2, 3))))


@register_model(
    "sharedcapsnet_maps",
    "the same convolutions, a map of evidence for each class, no dense layer",
)
@settings
class SharedCapsNetMaps(ImageClassifier):
    r"""The convolutions of :class:`SharedCapsNet`, a 1x1 convolution to a map for each
    class, pooled over all places.

    With evidence :math:`e_{ij}` of class j at place i of I, its activation is

    .. math:: a_j = \sigma\Big(\frac{1}{s} \log \frac{1}{I} \sum_i \exp(s\, e_{ij})\Big)

    A class needs evidence at a few places only, and no layer mixes places. So this
    plain network, like capsules, has what it takes to find several things at once after
    training on single ones: a fair rival where capsules do that.

    Args:
        image_shape: (C, H, W) of the images; other heights and widths work too.
        classes: number of classes.
        channels: the channels of the four convolutions.
        sharpness: s of the pooling: 0 is the mean over the places, a large value nearly
            their maximum.
        batch_norm: whether batch normalisation follows each convolution.

    Source: ours. Pooling by log-mean-exp: Pinheiro & Collobert 2015, arXiv 1411.6228.

    Example:
        >>> network = tc.models.SharedCapsNetMaps(
        ...     (1, 28, 28), classes=10, channels=(8, 8, 16, 16)
        ... )
        >>> network(torch.rand(2, 1, 40, 32)).activation.shape
        torch.Size([2, 10])
    """

    any_size = True
    smallest = 14

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: FourSizes = (64, 64, 128, 128)
    sharpness: NotNegative = 1.0
    batch_norm: bool = False

    def __post_init__(self) -> None:
        self.features = _features(self.image_shape[0], self.channels, self.batch_norm)
        self.evidence = nn.Conv2d(self.channels[-1], self.classes, 1)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """Return the probability of each class."""
        self._check(images)
        evidence = self.evidence(self.features(images)).flatten(2)  # [B, E, H' W']
        return Prediction(self._pooled(evidence).sigmoid())

    def _pooled(self, evidence: Tensor) -> Tensor:
        if self.sharpness == 0:
            return evidence.mean(2)
        return (
            (self.sharpness * evidence).logsumexp(2) - math.log(evidence.shape[2])
        ) / self.sharpness
