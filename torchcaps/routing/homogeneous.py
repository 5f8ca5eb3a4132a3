"""No routing at all (Byerly, Kalganova & Dear 2021): homogeneous vector capsules, added
up with elementwise weights.
"""

import torch
from torch import Tensor, nn

from torchcaps.numerics import Floor, Share, compute_dtype, full_precision
from torchcaps.ops import Votes
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    check_parents,
    register_routing,
    unbound,
)
from torchcaps.routing.batch_norm import BatchStandard
from torchcaps.spec import settings
from torchcaps.squashing import length


@register_routing("homogeneous")
@settings
class HomogeneousRouting(Routing):
    r"""Each parent adds up its children, number by number.

    .. math:: v_j = \operatorname{ReLU} \Big( \operatorname{BN} \Big( \sum_i w_{ij} \odot u_i \Big) + b \Big)

    Children and parents are vectors of the same size, so that no matrix is needed.
    Neither votes nor assignments exist: one matrix product for each number of a pose,
    on any device. The elementwise weights w are its own: its layer has no transforms.
    All parents share the bias b.

    Only where parents have poses of another shape than children, where nothing can be
    elementwise, does it add up the votes that the layer makes.

    The batch normalisation has one mean and variance for each number of a pose, over
    batch and parents, and no gain; in training an example depends on its batch. The
    activation is the length of the pose, the authors' class score.

    Args:
        momentum: share of a batch in the running mean and variance; the authors' is
            0.0003.
        epsilon: the number that is added to the variance.

    Source: Byerly, Kalganova & Dear 2021, "No Routing Needed Between Capsules", section
    3; the code released with it.

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
        self.register_parameter("scale", None)
        self.register_parameter("bias", None)

    def make_parameters(self, shape: LayerShape) -> None:
        """Create the weights w, (I, J, H), of deviation 0.05, and the bias b, (H,),
        which starts at 0; I is 1 where all children share the weights.
        """
        self.scale = None
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

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Add up the children; their activations are not used."""
        if self.bias is None:
            raise unbound(self)
        if self.scale is None:
            pose = self._activated(votes.total())
        else:
            check_parents(self, self.scale, votes, axis=1)
            pose = self._parents(votes.gather(votes.children.flatten(2)), self.scale)
        return Routed(pose, length(pose), votes, None)

    def _parents(self, children: Tensor, weight: Tensor) -> Tensor:
        """The parents v, (B, J, H), of children u, (B, I, H), with weights w."""
        dtype = compute_dtype(children, weight)
        with full_precision(children):
            children = children.to(dtype)
            weight = weight.to(dtype)
            if len(weight) == 1:
                total = children.sum(1, keepdim=True) * weight
            else:
                total = torch.einsum("bih,ijh->bjh", children, weight)
            return self._activated(total)

    def _activated(self, total: Tensor) -> Tensor:
        """The sums (B, J, H) normalised, with the bias, above 0."""
        # On axis 1, where sync_batchnorm's normalisation is too.
        return (self.norm(total.mT).mT + self.bias).relu()
