"""Class capsules over a map: transforms shared by all positions, and the positions
added to the votes.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import CapsuleLayer, Capsules, from_pair
from torchcaps.layers.pose import (
    Pose,
    check_axes,
    check_map,
    pose_shapes,
    present,
    start_vote_bias,
    vote_bias_of,
    without_own_transforms,
)
from torchcaps.layers.pose_norm import PoseMagnitude
from torchcaps.numerics import (
    Finite,
    NotNegative,
    check_size,
    compute_dtype,
    kept_tensor,
    product,
)
from torchcaps.ops import Votes
from torchcaps.ops.plan import known_backend
from torchcaps.routing import EMRouting, LayerShape, Routed, Routing, as_capsules
from torchcaps.routing.base import routing_of
from torchcaps.spec import check

Coordinates = bool | Literal["scaled"]


def coordinate_addition(
    *sizes: int,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    r"""Return what coordinate addition adds to the votes of each position, a tensor of
    shape ``sizes``, (\*grid, H).

    The first elements of a vote, one for each axis of the grid, get the position along
    that axis, in (0, 1) times the scale: on an image :math:`((y + \frac12) /
    \text{rows}, (x + \frac12) / \text{columns})`; the others get 0. In a matrix these
    are the first elements of the first row, as in the released code; the paper's text
    names those of the right-hand column.

    Args:
        sizes: the sizes of the grid, one for each axis, and last H, the size of a vote,
            at least the number of axes.
        scale: factor of the coordinates.
        dtype: the dtype of the result.
        device: the device of the result.

    Raises:
        ValueError: if a vote has too few elements.

    Source: Hinton, Sabour & Frosst 2018, section 4; which elements: the code released
    with it, whose coordinates are pixels from the middle of the image, divided by 100.
    """
    *grid, size = sizes
    if size < len(grid):
        raise ValueError(
            f"coordinate addition needs votes of {len(grid)} elements or more, got "
            f"{size}"
        )
    field = torch.zeros(*sizes, dtype=dtype, device=device)
    for axis, extent in enumerate(grid):
        along = (
            scale * (torch.arange(extent, dtype=dtype, device=device) + 0.5) / extent
        )
        field[..., axis] = along.view(-1, *[1] * (len(grid) - 1 - axis))
    return field


@kept_tensor
def _places(
    sizes: tuple[int, ...], scale: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The coordinates of all places of a map, (N, axes), from (*grid, axes)."""
    field = coordinate_addition(*sizes, scale=scale, dtype=dtype, device=device)
    return field.flatten(0, -2)


class ClassCaps(CapsuleLayer):
    """Route all children of a map to the classes, by votes :math:`V_{yxtj} = u_{yxt}
    W_{tj} + c_{yx}`.

    All positions share the transforms, so the layer takes maps of any size; coordinate
    addition puts the position back into the votes. A map is the grid of capsules of an
    image, or with ``axes`` of a sequence or a volume.

    Args:
        in_types: types of children at each position.
        classes: parents.
        in_pose: child pose: P for vectors, (M, P) for matrices.
        out_pose: class pose: D for vectors, (M, D) for matrices.
        routing: any routing, or the name of one; the layer keeps a copy of its own.
            Default: EM routing.
        coordinates: whether to add the positions to the votes: True, as
            :func:`coordinate_addition` gives them; or ``"scaled"``, times the magnitude
            of the children's poses (:class:`~torchcaps.layers.PoseMagnitude`: that of
            the batch in training, a running one in evaluation, without a gradient); or
            False. Unscaled, they drown small poses, such as squashed ones or those that
            have faded from layer to layer, and are drowned by large ones.
        coordinate_scale: a factor of the positions, scaled or not.
        axes: the number of axes of the grid: 1, 2 or 3.
        init_std: standard deviation of the transforms' normal initialisation.
        vote_bias: whether to add a learned bias to the votes, :math:`V_{ij} = u_i
            W_{ij} + b_{ij}`. Without it most routings give the children u and -u the
            same activations.
        backend: one of :data:`~torchcaps.ops.BACKENDS`, ``"auto"``, or None for the
            plan's choice, which :func:`~torchcaps.ops.use_backend` can force.

    Shape:
        Capsules with poses (B, *grid, in_types, *in_pose), the grid (L,), (H, W) or (D,
        H, W), to poses (B, classes, *out_pose) and activations (B, classes).

    Raises:
        TypeError: if the children are no :class:`Capsules`.
        ValueError: if an argument is out of its range or contradicts another, or the
            children do not fit the layer.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", section 4.

    Example:
        >>> layer = tc.ClassCaps(
        ...     16, 5, in_pose=(4, 4), out_pose=(4, 4), routing=tc.create_routing("em")
        ... )
        >>> children = tc.Capsules(
        ...     torch.randn(2, 4, 4, 16, 4, 4), torch.rand(2, 4, 4, 16)
        ... )
        >>> layer(children).activation.shape  # of a map of any size
        torch.Size([2, 5])
    """

    def __init__(
        self,
        in_types: int,
        classes: int,
        in_pose: Pose,
        out_pose: Pose,
        *,
        routing: Routing | str | None = None,
        coordinates: Coordinates = True,
        coordinate_scale: float = 1.0,
        axes: int = 2,
        init_std: float = 0.3,
        vote_bias: bool = False,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        check_size(in_types=in_types, classes=classes)
        check(Finite, coordinate_scale, "coordinate_scale")
        check(NotNegative, init_std, "init_std")
        self.in_types = in_types
        self.in_pose, self.out_pose = pose_shapes(in_pose, out_pose)
        if coordinates not in (True, False, "scaled"):
            raise ValueError(
                f"coordinates must be True, False or 'scaled', got {coordinates!r}"
            )
        self.coordinates = coordinates
        self.coordinate_scale = coordinate_scale
        self.axes = check_axes(axes)
        self.backend = known_backend(backend)
        if coordinates:
            # Raises an error if votes are too small for it.
            coordinate_addition(*[1] * axes, math.prod(self.out_pose))
        self.weight = nn.Parameter(
            torch.empty(in_types, classes, self.in_pose[-1], self.out_pose[-1])
        )
        shape = LayerShape(None, classes, self.in_pose, self.out_pose, types=in_types)
        self.routing = routing_of(shape, routing, EMRouting())
        self.magnitude = PoseMagnitude() if coordinates == "scaled" else None
        self.bias = vote_bias_of(self, self.routing, vote_bias, self.out_pose)
        nn.init.normal_(self.weight, std=init_std)
        start_vote_bias(self.bias, init_std)
        without_own_transforms(self, self.routing)

    @property
    def transforms(self) -> Tensor:
        """Return what poses are multiplied by, (in_types, classes, P, D)."""
        return self.weight

    def route(
        self,
        children: Capsules,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
    ) -> Routed:
        """Route as :meth:`forward` does, but also return the votes and the last
        assignment.

        Args:
            children: the children, on a grid.
            mask: the mask, as in :meth:`forward`.
            initial: parents of an earlier call, from which a ``resumable`` routing goes
                on.
        """
        children = from_pair(children)
        grid = check_map(children, self.in_types, self.in_pose, self.axes)
        places = product(grid)
        if mask is not None:
            children = present(children, mask)
        weight = self.transforms
        offsets = None
        if self.coordinates and places:
            offsets = self._offsets(children, mask)
        flat = children.flatten()
        present_children = None if mask is None else mask.flatten(1)
        votes = Votes(
            flat.pose,
            weight if places else weight[:0],
            offsets,
            backend=self.backend,
            mask=present_children,
            places=places or 1,
        )
        bias = self.bias
        if bias is not None:
            votes = votes.with_bias(bias if places else bias[:0])
        return self.routing(votes, flat.activation, initial=initial)

    def _offsets(self, children: Capsules, mask: Tensor | None) -> Tensor:
        """What is added to the first numbers of all votes of each place, (N, axes)."""
        field = _places(
            (*children.activation.shape[1:-1], self.axes),
            self.coordinate_scale,
            compute_dtype(children.pose, self.weight),
            self.weight.device,
        )
        if self.magnitude is not None:
            field = field * self.magnitude(children.pose, mask)
        return field

    def forward(
        self,
        children: Capsules,
        mask: Tensor | None = None,
        *,
        initial: Routed | None = None,
    ) -> Capsules:
        """Route the children to the classes.

        Args:
            children: the children, on a grid.
            mask: bool (B, *grid, in_types), False for children that are not there,
                whose numbers are then ignored; None if all are there.
            initial: the parents of an earlier call, as in :meth:`route`.
        """
        return self.parents(self.route(children, mask, initial=initial), children)

    def parents(self, routed: Routed, children: Capsules) -> Capsules:
        """Return the result of :meth:`route` for these children in the form of
        :meth:`forward`.
        """
        dtype = torch.promote_types(children[0].dtype, self.weight.dtype)
        return as_capsules(routed, self.out_pose, dtype)

    def extra_repr(self) -> str:
        """Return types, classes and shapes of poses."""
        return (
            f"{self.in_types}, {self.weight.shape[1]}, in_pose={self.in_pose}, "
            f"out_pose={self.out_pose}"
        )
