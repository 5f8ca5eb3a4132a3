"""No routing at all (Byerly, Kalganova & Dear 2021): homogeneous vector capsules, added
up with elementwise weights.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from torchcaps.numerics import Floor, Share, compute_dtype, full_precision
from torchcaps.ops import Votes
from torchcaps.routing.base import (
    BatchStandard,
    LayerShape,
    Routed,
    Routing,
    register_routing,
)
from torchcaps.spec import settings
from torchcaps.squashing import length


def homogeneous_routing(
    children: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    r"""Each parent adds up its children, number by number.

    .. math:: v_j = \operatorname{ReLU} \Big( \operatorname{BN} \Big( \sum_i w_{ij} \odot u_i \Big) + b \Big)

    Children and parents are vectors of the same size, so that no matrix is needed.
    Neither votes nor assignments exist: one matrix product for each number of a pose,
    on any device.

    Args:
        children: u, (B, I, H).
        weight: w, (I, J, H), or (1, J, H) when all children share it.
        bias: b, (H,), the same for all parents, or None for 0.
        norm: BN of what comes in, (B, J, H), or None.

    Returns:
        The parents v, (B, J, H).

    Source: Byerly, Kalganova & Dear 2021, "No Routing Needed Between Capsules", section
    3; the code released with it.
    """
    dtype = compute_dtype(children, weight)
    with full_precision(children):
        children, weight = children.to(dtype), weight.to(dtype)
        if len(weight) == 1:
            total = children.sum(1, keepdim=True) * weight
        else:
            total = torch.einsum("bih,ijh->bjh", children, weight)
        return _activated(total, bias, norm)


def _activated(
    total: Tensor, bias: Tensor | None, norm: Callable[[Tensor], Tensor] | None
) -> Tensor:
    if norm is not None:
        total = norm(total)
    return (total if bias is None else total + bias).relu()


@register_routing("homogeneous")
@settings
class HomogeneousRouting(Routing):
    """Module form of :func:`homogeneous_routing`. The elementwise weights are its own:
    its layer has no transforms.

    Only where parents have poses of another shape than children, where nothing can be
    elementwise, does it add up the votes that the layer makes.

    The batch normalisation has one mean and variance for each number of a pose, over
    batch and parents, and no gain; in training an example depends on its batch. The
    activation is the length of the pose, the authors' class score.

    Args:
        momentum: share of a batch in the running mean and variance; the authors' is
            0.0003.
        epsilon: added to the variance.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, 8, 8, routing=tc.routing.HomogeneousRouting()
        ... )  # elementwise weights
        >>> layer(tc.Capsules(torch.randn(4, 32, 8), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 8])
    """

    uses_activation = False

    momentum: Share = 0.1
    epsilon: Floor = 1e-3

    def __post_init__(self) -> None:
        self.norm: BatchStandard | None = None
        self.register_parameter("scale", None)
        self.register_parameter("bias", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """The weights, of deviation 0.05, and a bias that starts at 0."""
        if shape.in_pose == shape.out_pose:
            self.scale = nn.Parameter(
                torch.randn(shape.children or 1, shape.parents, shape.size) * 0.05
            )
        self.bias = nn.Parameter(torch.zeros(shape.size))
        self.norm = BatchStandard(
            shape.size, epsilon=self.epsilon, momentum=self.momentum
        )

    @property
    def own_transforms(self) -> bool:
        """The elementwise weights, where poses have one shape."""
        return self.scale is not None

    def _standardised(self, total: Tensor) -> Tensor:
        """Each number of a pose standardised, (B, J, H): on axis 1, where
        sync_batchnorm's normalisation is too.
        """
        return total if self.norm is None else self.norm(total.mT).mT

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Adds up the children; their activations are not used."""
        if self.scale is None:
            pose = _activated(votes.total(), self.bias, self._standardised)
        else:
            children = votes.gather(votes.children.flatten(2))
            pose = homogeneous_routing(
                children, self.scale, self.bias, self._standardised
            )
        return Routed(pose, length(pose), votes, None)
