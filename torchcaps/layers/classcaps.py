"""Class capsules over a map: transforms shared by all positions, and the positions added to the votes."""

import math

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers.pose import Pose, check_map, check_rows, pose_shape
from torchcaps.numerics import compute_dtype
from torchcaps.ops import Votes
from torchcaps.routing import EMRouting, LayerShape, Routed, Routing, as_capsules


def coordinate_addition(
    height: int,
    width: int,
    size: int,
    scale: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    r"""What coordinate addition adds to the votes of each position, (height, width, size).

    The first two elements of a vote get the position's row and column, in (0, 1] times the scale,
    :math:`((y + \frac12) / H, (x + \frac12) / W)`; the others get 0.

    Args:
        height: H of the map.
        width: W of the map.
        size: of a vote, H in the primitive; at least 2.
        scale: of the coordinates.
        dtype: of the result.
        device: of the result.

    Raises:
        ValueError: if a vote has fewer than two elements.

    Source: Hinton, Sabour & Frosst 2018, section 4.
    """
    if size < 2:
        raise ValueError(f"coordinate addition needs votes of 2 elements or more, got {size}")
    field = torch.zeros(height, width, size, dtype=dtype, device=device)
    field[..., 0] = scale * (torch.arange(height, dtype=dtype, device=device)[:, None] + 0.5) / height
    field[..., 1] = scale * (torch.arange(width, dtype=dtype, device=device) + 0.5) / width
    return field


class ClassCaps(nn.Module):
    r"""Every child of a map votes for every class, :math:`V_{yxtj} = u_{yxt} W_{tj} + c_{yx}`.

    The transforms are shared by all positions, so that a map of any size does; the position comes back into the votes
    by coordinate addition.

    Args:
        in_types: types of children at each position.
        classes: parents.
        in_pose: child pose: P for vectors, (M, P) for matrices.
        out_pose: class pose: D for vectors, (M, D) for matrices.
        routing: any routing; the layer keeps a copy of its own. Default: EM routing.
        coordinates: whether to add the positions to the votes.
        coordinate_scale: of the positions.
        init_std: deviation of the transforms' normal initialisation.
        backend: ``"naive"``, ``"chunked"``, or None for the dispatcher's choice.

    Shape:
        Capsules with poses (B, H, W, in_types, *in_pose) to poses (B, classes, *out_pose) and activations (B, classes).

    Raises:
        ValueError: if arguments contradict each other, or the children do not fit them.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", section 4.
    """

    def __init__(
        self,
        in_types: int,
        classes: int,
        in_pose: Pose,
        out_pose: Pose,
        *,
        routing: Routing | None = None,
        coordinates: bool = True,
        coordinate_scale: float = 1.0,
        init_std: float = 0.3,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.in_types = in_types
        self.in_pose, self.out_pose = pose_shape(in_pose), pose_shape(out_pose)
        check_rows(self.in_pose, self.out_pose)
        self.coordinates = coordinates
        self.coordinate_scale = coordinate_scale
        self.backend = backend
        if coordinates:
            coordinate_addition(1, 1, math.prod(self.out_pose))  # so that a vote too small for it is told at once
        self.weight = nn.Parameter(torch.empty(in_types, classes, self.in_pose[-1], self.out_pose[-1]))
        self.routing = (routing or EMRouting()).bind(LayerShape(None, classes, self.in_pose, self.out_pose))
        nn.init.normal_(self.weight, std=init_std)

    def route(self, children: Capsules) -> Routed:
        """Routes and keeps what an observer wants: the votes and the last assignment."""
        check_map(children, self.in_types, self.in_pose)
        _, height, width, types = children.activation.shape
        transforms = self.weight.expand(height * width, *self.weight.shape).flatten(0, 1)
        offsets = None
        if self.coordinates:
            field = coordinate_addition(
                height,
                width,
                math.prod(self.out_pose),
                self.coordinate_scale,
                dtype=compute_dtype(children.pose, self.weight),
                device=self.weight.device,
            )
            offsets = field[:, :, None].expand(-1, -1, types, -1).flatten(0, 2)
        flat = children.flatten()
        return self.routing(Votes(flat.pose, transforms, offsets, backend=self.backend), flat.activation)

    def forward(self, children: Capsules) -> Capsules:
        """Routes the children to the classes."""
        dtype = torch.promote_types(children.pose.dtype, self.weight.dtype)
        return as_capsules(self.route(children), self.out_pose, dtype)

    def extra_repr(self) -> str:
        """Shapes and coordinates."""
        return f"{self.in_types}, {self.weight.shape[1]}, in_pose={self.in_pose}, out_pose={self.out_pose}"
