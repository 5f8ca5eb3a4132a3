"""Networks over series: capsules over time, and their convolutional twin."""

import math
from collections.abc import Mapping
from dataclasses import InitVar
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, Prediction
from torchcaps.layers import ClassCaps, PrimaryCaps1d
from torchcaps.models.base import CapsuleNetwork, ClassifierNetwork, check_batch
from torchcaps.models.registry import register_model
from torchcaps.numerics import ProperShare, Size, Sizes, strided
from torchcaps.routing import EuclideanKMeansRouting, Routed, Routing
from torchcaps.routing.batch_norm import EarlyBatchNorm1d
from torchcaps.spec import settings


class MomentNorm(nn.Module):
    """Batch normalisation of features (B, C, L) over the moments that are there, bool
    (B, L); elsewhere 0.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = EarlyBatchNorm1d(channels)

    def forward(self, features: Tensor, present: Tensor) -> Tensor:
        """The normalised features: padding neither counts among the statistics nor is
        anything after it.
        """
        if not self.training:
            return self.norm(features) * present[:, None]
        rows: Tensor = self.norm(features.movedim(1, -1)[present])
        normalised = rows.new_zeros(*present.shape, rows.shape[-1])
        normalised[present] = rows
        return normalised.movedim(-1, 1)


@settings
class SeriesClassifier(ClassifierNetwork):
    """Base of the networks that classify series: (B, C, L) for any L in place of
    series.

    One more channel, the last, may say which moments are there, 1, and which pad a
    short series behind its end, 0; these change no answer. Convolutions over time, each
    followed by batch normalisation over the moments that are there and ReLU, make the
    features of both networks.

    Args:
        in_channels: the channels of a series, C.
        classes: number of classes.
        channels: the channels of the convolutions, one after the other.
        strides: the strides of each.
        kernel_size: the kernel size of all, an odd number of moments.
        dropout: share of the features that are left out in training.

    Example:
        >>> from torchcaps_lab.kinds.series import SeriesClassifier, SeriesCNN
        >>> network = SeriesCNN(
        ...     in_channels=3, classes=5, channels=(8, 8), strides=(1, 2)
        ... ).eval()
        >>> isinstance(network, SeriesClassifier)
        True
        >>> series = torch.cat([torch.randn(1, 3, 9), torch.ones(1, 1, 9)], 1)
        >>> padded = torch.nn.functional.pad(series, (0, 5))
        >>> torch.allclose(
        ...     network(series).activation, network(padded).activation, atol=1e-6
        ... )
        True
    """

    takes = "series"
    any_size = True

    in_channels: Size = 1
    classes: int = 10
    channels: Sizes = (64, 64, 64)
    strides: Sizes = (1, 2, 2)
    kernel_size: Size = 5
    dropout: ProperShare = 0.2

    def __post_init__(self) -> None:
        if len(self.strides) != (count := len(self.channels)):
            raise ValueError(
                f"strides must be {count} whole numbers, one for each of channels, "
                f"got {self.strides}"
            )
        if self.kernel_size % 2 == 0:
            raise ValueError(
                "kernel_size must be odd, so that a window has a middle, got "
                f"{self.kernel_size}"
            )
        sizes = zip(
            pairwise((self.in_channels, *self.channels)), self.strides, strict=True
        )
        self.convolutions = nn.ModuleList(
            nn.Conv1d(
                *channels, self.kernel_size, stride, self.kernel_size // 2, bias=False
            )
            for channels, stride in sizes
        )
        self.norms = nn.ModuleList(map(MomentNorm, self.channels))
        self.drop = nn.Dropout(self.dropout)

    @property
    def stride(self) -> int:
        """How many moments lie between the middles of what two neighbouring features
        see.
        """
        return math.prod(self.strides)

    def examples(self, batch: int) -> Tensor:
        """Series of 9 to 12 features."""
        generator = torch.Generator().manual_seed(0)
        length = 12 * self.stride
        series = torch.randn(batch, self.in_channels, length, generator=generator)
        last = (torch.arange(batch)[:, None, None] + 8) * self.stride
        present = torch.arange(length) <= last
        return torch.cat([series * present, present.to(series)], 1)

    def misfits(self) -> Mapping[str, Tensor]:
        """Return series of other channels, without a batch, of another type, and with
        numbers that are not finite.
        """
        series = self.examples(2)
        broken = series.clone()
        broken[1, 0, 0] = torch.nan
        return {
            "more channels": torch.cat([series, series], 1),
            "series without a batch axis": series[0],
            "whole numbers": series.long(),
            "series that hold nan": broken,
        }

    def features(self, series: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, channels, L'), 0 behind the end of a series, and which are
        there, bool (B, L').

        Raises:
            ValueError: if the series do not fit the network, or are not finite.
        """
        self._check(series)
        features = series
        B, _, L = series.shape  # len() would fix the size of a batch in an export
        present = series.new_ones(B, L, dtype=torch.bool)
        if series.shape[1] > self.in_channels:
            features = series[:, :-1]
            present = series[:, -1] > 0
        features = features * present[:, None]
        for convolution, norm, stride in zip(
            self.convolutions, self.norms, self.strides, strict=True
        ):
            present = strided(present, stride)
            features = norm(convolution(features), present).relu()
        return self.drop(features), present

    def _check(self, series: Tensor) -> None:
        C = self.in_channels
        check_batch(
            self,
            "series",
            series,
            lambda shape: len(shape) == 3 and shape[1] in (C, C + 1) and shape[2] != 0,
            f"(B, {C}, L), or (B, {C + 1}, L) with a last channel that says which "
            "moments are there, with L at least 1",
        )


@register_model(
    "series_capsnet",
    "ours: convolutions over time, primary capsules, routing to the classes",
)
@settings
class SeriesCapsNet(SeriesClassifier, CapsuleNetwork):
    r"""Capsules over time: at every moment ``types`` capsules, routed to the classes.

    .. math:: u_{lt} = \operatorname{squash}(W_t x_l), \quad V_{ltj} = u_{lt} W_{tj}

    All moments share the transforms, so a series of any length is routed, and the
    assignment says which moment spoke for which class.

    Args:
        in_channels: the channels of a series, C.
        classes: number of classes.
        channels: the channels of the convolutions, one after the other.
        strides: the strides of each.
        kernel_size: the kernel size of all, an odd number of moments.
        dropout: share of the features that are left out in training.
        types: the number of types of capsules at each moment.
        dim: the numbers of their poses.
        pose_dim: the size of the poses of the class capsules.
        routing: the routing of the class capsules; default: Euclidean K-Means in 3
            steps, whose parents are means of votes: a sum would grow with the length of
            a series.

    Source: ours; shared transforms: Su 2018.

    Example:
        >>> from torchcaps_lab.kinds.series import SeriesCapsNet
        >>> network = SeriesCapsNet(in_channels=3, classes=5)
        >>> network(torch.randn(2, 3, 40)).capsules.pose.shape
        torch.Size([2, 5, 16])
    """

    types: Size = 8
    dim: Size = 8
    pose_dim: Size = 16
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        super().__post_init__()
        self.primary_caps = PrimaryCaps1d(
            self.channels[-1], self.types, self.dim, 1, 1, squash="half"
        )
        self.class_caps = ClassCaps(
            self.types,
            self.classes,
            self.dim,
            self.pose_dim,
            axes=1,
            coordinates=False,
            routing=routing or EuclideanKMeansRouting(),
        )

    def children_of(self, series: Tensor) -> Capsules:
        """The capsules of all moments, poses (B, L', types, dim)."""
        return self._children(series)[0]

    def _children(self, series: Tensor) -> tuple[Capsules, Tensor]:
        features, present = self.features(series)
        capsules = self.primary_caps(features)
        return capsules, present[..., None].expand(capsules.activation.shape)

    def encode(self, series: Tensor) -> Capsules:
        """The class capsules of series."""
        return self.class_caps(*self._children(series))

    def route(self, series: Tensor) -> Routed:
        """The routing of the class capsules."""
        return self.class_caps.route(*self._children(series))


@register_model(
    "series_cnn",
    "ours: the convolutions of series_capsnet, averaged over time; the baseline",
)
@settings
class SeriesCNN(SeriesClassifier):
    """The convolutions of :class:`SeriesCapsNet`, the mean over the moments that are
    there, a hidden layer.

    Args:
        in_channels: the channels of a series, C.
        classes: number of classes.
        channels: the channels of the convolutions, one after the other.
        strides: the strides of each.
        kernel_size: the kernel size of all, an odd number of moments.
        dropout: share of the features that are left out in training.
        hidden: width of the hidden layer.

    Source: after Wang, Yan & Oates 2017, "Time series classification from scratch with
    deep neural networks".

    Example:
        >>> from torchcaps_lab.kinds.series import SeriesCNN
        >>> network = SeriesCNN(in_channels=3, classes=5)
        >>> network(torch.randn(2, 3, 40)).activation.shape
        torch.Size([2, 5])
    """

    hidden: Size = 192

    def __post_init__(self) -> None:
        super().__post_init__()
        self.hidden_layer = nn.Linear(self.channels[-1], self.hidden)
        self.head = nn.Linear(self.hidden, self.classes)

    def forward(self, series: Tensor, target: Tensor | None = None) -> Prediction:
        """The activations of the classes."""
        features, present = self.features(series)
        mean = features.sum(2) / present.sum(1, keepdim=True).clamp_min(1)
        return Prediction(
            self.head(self.hidden_layer(mean).relu()).softmax(1), None, None
        )
