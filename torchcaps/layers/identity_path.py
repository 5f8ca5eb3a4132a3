"""A residual connection around the routing: children's poses added to those of the
parents.
"""

import math

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, from_pair
from torchcaps.numerics import Size, compute_dtype, full_precision
from torchcaps.ops import Windows
from torchcaps.spec import SuggestsNames, settings


@settings
class IdentityPath(SuggestsNames, nn.Module):
    r"""What a convolution adds to the routed poses of its parents: the poses of their
    children, untransformed.

    .. math:: M_{ws} = M^{\text{routed}}_{ws} + \sum_t c_{ts} \tilde M_{wt}, \quad
        \tilde M_{wt} = \frac{\sum_k a_{wkt} M_{wkt}}{\sum_k a_{wkt}}

    with k the places of window w, t the types of children, s those of parents, and a
    the activations. Where each parent lies at the place of a child (stride 1, as many
    windows as places), :math:`\tilde M_{wt}` is that child instead of a mean. With as
    many types of parents as of children c is the identity; otherwise it is learned, one
    number for each pair of types. Numbers commute with a change of viewpoint, :math:`M
    \to T M`: the path is equivariant.

    Args:
        in_types: types of children.
        out_types: types of parents.

    Raises:
        ValueError: if an argument is not a size.

    Source: Liu et al. 2025, "Capsule networks with residual pose routing" (ResCaps), by
    its abstract and its released code. There the identity replaces the routing: each
    child has one vote, :math:`M W + M`, and no parents to choose from (in the code 1 is
    added to every number of W, and a 1x1 convolution then mixes all numbers of the
    poses, which no change of viewpoint passes through). An identity beside a routing
    that stays, means of windows, and one number for each pair of types are this
    library's.

    Example:
        >>> from torchcaps.ops import Windows
        >>> path = tc.layers.IdentityPath(in_types=8, out_types=16)
        >>> children = tc.Capsules(
        ...     torch.randn(2, 6, 6, 8, 4, 4), torch.rand(2, 6, 6, 8)
        ... )
        >>> path(children, Windows((6, 6), (3, 3), (1, 1), (1, 1))).shape
        torch.Size([2, 6, 6, 16, 4, 4])
    """

    in_types: Size
    out_types: Size

    def __post_init__(self) -> None:
        self.mix = None
        if self.in_types != self.out_types:
            self.mix = nn.Parameter(torch.empty(self.in_types, self.out_types))
            # Keeps the deviation of a pose on average.
            nn.init.normal_(self.mix, std=1 / math.sqrt(self.in_types))

    def forward(self, children: Capsules, windows: Windows) -> Tensor:
        """Return what is added to the parents' poses, (B, *grid', out_types, *pose),
        float32 at least.

        Args:
            children: poses (B, *grid, in_types, *pose), 0 for those that are not there.
            windows: the windows of the convolution.
        """
        children = from_pair(children)
        dtype = compute_dtype(children.pose, self.mix)
        with full_precision(children.pose):
            # [B, *grid, in_types, H]
            pose = children.pose.to(dtype).flatten(2 + windows.axes)
            if windows.out != windows.size or max(windows.stride) > 1:
                pose = self._means(pose, children.activation.to(dtype), windows)
            if self.mix is not None:
                pose = torch.einsum("...th,ts->...sh", pose, self.mix.to(dtype))
        return pose.unflatten(-1, children.pose.shape[children.activation.ndim :])

    def _means(self, pose: Tensor, activation: Tensor, windows: Windows) -> Tensor:
        """The mean of each window's children of each type, (B, *grid', in_types, H)."""
        weight = activation[..., None]
        # [B, children, H + 1]
        both = windows.pad(torch.cat([weight * pose, weight], -1))
        # [windows, places * in_types]
        sites = windows.children(self.in_types, pose.device)
        seen = both.index_select(1, sites.flatten())
        seen = seen.unflatten(1, (len(sites), -1, self.in_types))
        total, mass = seen.sum(2).split([both.shape[-1] - 1, 1], -1)
        return (total / torch.where(mass > 0, mass, 1.0)).unflatten(1, windows.out)

    def extra_repr(self) -> str:
        """Return types, and whether they are mixed."""
        return f"{self.in_types}, {self.out_types}, mixed={self.mix is not None}"
