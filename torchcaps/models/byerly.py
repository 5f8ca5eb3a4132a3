"""Convolutions with branches of homogeneous vector capsules, and no routing (Byerly,
Kalganova & Dear 2021).
"""

from collections.abc import Sequence
from dataclasses import InitVar
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.models.base import CapsuleClassifier, check_extent
from torchcaps.models.registry import register_model
from torchcaps.numerics import Size, Sizes, compute_dtype
from torchcaps.routing import HomogeneousRouting, Routed, Routing
from torchcaps.routing.batch_norm import BatchStandard, EarlyBatchNorm2d
from torchcaps.spec import settings
from torchcaps.squashing import length

CapsulesFrom = Literal["positions", "maps"]

_EPSILON = 1e-3


@register_model(
    "byerly",
    "Byerly et al. 2021, the code of that year: a capsule of all channels at each "
    "position, 1,513,683 parameters",
)
@register_model(
    "byerly_maps",
    "Byerly et al. 2021, as first published: a capsule of the map of each channel, "
    "1,514,187 parameters",
    capsules_from="maps",
)
@settings
class ByerlyCapsNet(CapsuleClassifier):
    r"""3x3 convolutions in a row, a branch of class capsules behind every third, and
    one score of all branches.

    Branch b has class capsules :math:`v^b_j` with no routing, see
    :class:`~torchcaps.routing.HomogeneousRouting`; their lengths are merged,

    .. math:: z_j = \sum_b \operatorname{BN}_b(w_b |v^b_j|), \quad a_j = \operatorname{softmax}_j(z)

    for :class:`~torchcaps.losses.NegativeLogLikelihood`. The normalisation takes away
    the size of the weights w, as it does in the authors' code, and leaves their signs.
    Their offset behind it, one a branch, would add the same to all classes and change
    nothing: it is left out. The network's class capsules are those of the last branch,
    with the merged activations.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: the channels of the first convolution.
        growth: how many channels each convolution has more than the one before.
        stages: convolutions in front of each branch, behind the branch before.
        capsules_from: ``"positions"``, a capsule of the channels at each position, or
            ``"maps"``, one of all positions of each channel.
        momentum: share of a batch in the running means and variances of all
            normalisations. The authors' is 0.0003, for 150,000 steps; after few steps
            these would still be near their initial values.
        routing: the routing of all branches; default: none.

    Raises:
        ValueError: if the images are too small: convolutions are not padded.

    Source: Byerly, Kalganova & Dear 2021, "No Routing Needed Between Capsules", section
    4, and the code released with
    it: that of 2020 for ``byerly_maps``, whose scores are sums of the capsules' numbers
    where these are lengths, as in the code of 2021. The reconstruction that the latter
    can add is not built. Trained by the authors with Adam at 0.001, less by 2 % each
    epoch, batches of 120, for 300 epochs, and tested with an average of the weights
    (0.999).

    Example:
        >>> network = tc.models.ByerlyCapsNet(
        ...     (1, 28, 28), classes=10, channels=8, growth=4
        ... )
        >>> network(torch.rand(2, 1, 28, 28)).activation.shape
        torch.Size([2, 10])
    """

    image_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: Size = 32
    growth: Size = 16
    stages: Sizes = (3, 3, 3)
    capsules_from: CapsulesFrom = "positions"
    momentum: float = 0.1
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        check_extent(
            "image_shape",
            self.image_shape,
            2 * sum(self.stages) + 1,
            f" for stages {self.stages}",
        )
        routing = routing or HomogeneousRouting(
            momentum=self.momentum, epsilon=_EPSILON
        )
        self.convolutions = nn.ModuleList()
        branches = []
        before = self.image_shape[0]
        place = 0
        for count in self.stages:
            widths = [
                self.channels + self.growth * number
                for number in range(place, place + count)
            ]
            place += count
            self.convolutions.append(_convolutions(before, widths, self.momentum))
            before = widths[-1]
            children, dim = self._children(before, place)
            branches.append(
                CapsLinear(children, self.classes, dim, dim, routing=routing)
            )
        for number, branch in enumerate(branches[:-1], 1):
            self.add_module(f"branch{number}", branch)
        self.class_caps: CapsLinear = branches[-1]
        self.branch_weight = nn.Parameter(torch.ones(len(branches)))
        self.merge_norm = BatchStandard(
            len(branches), epsilon=_EPSILON, momentum=self.momentum
        )
        self.decoder = None

    def _children(self, channels: int, convolutions: int) -> tuple[int, int]:
        """How many capsules a branch behind this number of convolutions sees, and of
        how many numbers.
        """
        positions = (self.image_shape[1] - 2 * convolutions) * (
            self.image_shape[2] - 2 * convolutions
        )
        if self.capsules_from == "positions":
            return (positions, channels)
        return (channels, positions)

    def children_of_branches(self, images: Tensor) -> list[Capsules]:
        """Return the children of each branch, poses (B, I, dim), as many numbers as
        ``capsules_from`` says.
        """
        self._check(images)
        children = []
        features = images
        for stage in self.convolutions:
            features = stage(features)
            pose = features.flatten(2)  # [B, channels, positions]
            if self.capsules_from == "positions":
                pose = pose.transpose(1, 2)
            children.append(Capsules(pose, length(pose)))
        return children

    def children_of(self, images: Tensor) -> Capsules:
        """Return the children of the last branch."""
        return self.children_of_branches(images)[-1]

    @property
    def branches(self) -> list[CapsLinear]:
        """The class capsules of each branch; the last are ``class_caps``."""
        return [
            *(
                getattr(self, f"branch{number}")
                for number in range(1, len(self.stages))
            ),
            self.class_caps,
        ]

    def route(self, images: Tensor) -> Routed:
        """Return the routing of the last branch, with the activations of all."""
        scores, last = self._scores_before(images)
        routed = self.class_caps.route(last)
        return routed._replace(activation=self._merged([*scores, routed.activation]))

    def encode(self, images: Tensor) -> Capsules:
        """Return the class capsules of the last branch, with the activations of all,
        which add up to 1.
        """
        scores, last = self._scores_before(images)
        capsules = self.class_caps(last)
        return Capsules(capsules.pose, self._merged([*scores, capsules.activation]))

    def _scores_before(self, images: Tensor) -> tuple[list[Tensor], Capsules]:
        """The lengths of the class capsules, (B, E), of all branches but the last, and
        the children of that.
        """
        *children, last = self.children_of_branches(images)
        branches = zip(self.branches[:-1], children, strict=True)
        return [branch(capsules).activation for branch, capsules in branches], last

    def _merged(self, scores: Sequence[Tensor]) -> Tensor:
        """The shares of the classes, (B, E), from the scores of each branch."""
        stacked = torch.stack(list(scores), 1)  # [B, branches, E]
        weighted = stacked.to(compute_dtype(stacked)) * self.branch_weight[:, None]
        shares = self.merge_norm(weighted).sum(1).softmax(1)
        return shares.to(scores[-1].dtype)


class ShiftedNorm(nn.Module):
    """Normalises each channel over the batch and adds a number of its own: batch
    normalisation without a gain.

    :class:`torch.nn.BatchNorm2d` with a bias and no weight cannot be differentiated on
    a GPU: kernels there take both or neither.

    Args:
        channels: the channels of the maps (B, C, H, W).
        momentum: share of a batch in the running mean and variance.
    """

    def __init__(self, channels: int, momentum: float) -> None:
        super().__init__()
        # A module of any kind: sync_batchnorm puts one of its own in this place.
        self.standard: nn.Module = EarlyBatchNorm2d(
            channels, _EPSILON, momentum, affine=False
        )
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Return the same shape and dtype."""
        return self.standard(features) + self.bias.to(features.dtype)[:, None, None]


def _convolutions(
    in_channels: int, widths: Sequence[int], momentum: float
) -> nn.Sequential:
    """Convolutions, each with batch normalisation without a gain, and ReLU; they start
    as in the code of 2021.
    """
    layers: list[nn.Module] = []
    for before, width in pairwise((in_channels, *widths)):
        convolution = nn.Conv2d(before, width, 3, bias=False)
        nn.init.normal_(convolution.weight, std=0.05)
        layers += [convolution, ShiftedNorm(width, momentum), nn.ReLU()]
    return nn.Sequential(*layers)
