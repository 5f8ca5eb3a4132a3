"""Slots: exchangeable capsules that share out the features of an image among
themselves.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps.capsules import CapsuleLayer, Capsules, from_pair
from torchcaps.layers.initial import FirstBatchLinear, check_channels
from torchcaps.layers.pose import present
from torchcaps.numerics import Size, check_size, dtype_of
from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, Routed, Routing, SlotAttentionRouting
from torchcaps.routing.base import as_capsules, routing_of
from torchcaps.spec import SuggestsNames, repr_of, settings


@settings
class PositionCode(SuggestsNames, nn.Module):
    r"""Add to each place of a map a linear map of where it is.

    .. math:: x_{yx} + W \, (y,\, x,\, 1 - y,\, 1 - x) + b, \quad x, y \in [0, 1]

    Features of a convolution do not say where they are, and slots do not know which
    features are neighbours. With this code, slots can tell equal objects in different
    places apart. Maps may have any size: the coordinates go from edge to edge.

    Args:
        channels: the channels of the maps.

    Shape:
        Maps (B, C, H, W) to the same shape.

    Raises:
        ValueError: if the maps do not fit.

    Source: Locatello et al. 2020, appendix E.2, the soft position embedding.

    Example:
        >>> tc.PositionCode(32)(torch.zeros(2, 32, 7, 9)).shape
        torch.Size([2, 32, 7, 9])
    """

    channels: Size

    def __post_init__(self) -> None:
        self.linear = nn.Linear(4, self.channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the maps with their code."""
        if maps.ndim != 4 or maps.shape[1] != self.channels:
            raise ValueError(
                f"maps must be (B, {self.channels}, H, W), got {tuple(maps.shape)}"
            )
        # The weight of a quantized layer is a method.
        dtype = dtype_of(self.linear, maps.dtype)
        places = positions(maps.shape[2], maps.shape[3], dtype, maps.device)
        return maps + self.linear(places).movedim(-1, 0)

    def extra_repr(self) -> str:
        """Return the number of channels."""
        return f"{self.channels}"


def positions(
    rows: int,
    columns: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """Return the coordinates y, x, 1 - y and 1 - x of each place of a grid, (H, W, 4),
    from 0 to 1.
    """
    wide = torch.promote_types(dtype, torch.float32)
    options: dict[str, Any] = {"dtype": wide, "device": device}
    y = torch.linspace(0, 1, rows, **options)[:, None].expand(rows, columns)
    x = torch.linspace(0, 1, columns, **options)[None].expand(rows, columns)
    return torch.stack([y, x, 1 - y, 1 - x], -1).to(dtype)


class Slots(CapsuleLayer):
    """Divide any number of features among slots, each of which collects one object, or
    none.

    No slot is meant for a particular object. All share their weights, and differ by
    where they start. The assignment of the features to the slots,
    ``route(features).assignment``, is the attention map of the slots.

    Args:
        slots: their number J.
        dim: numbers of the pose of a slot.
        features: numbers of a feature. None takes features of any size: the first batch
            sets it, and a linear layer maps them to ``dim`` numbers. Pass one batch
            through before an optimizer is made.
        routing: an object or a name, such as ``"slot_mixture"``. Default: slot attention
            in 3 steps from a learned Gaussian, which takes any number of slots.

    Shape:
        Features (B, I, D), maps (B, D, H, W), or capsules, to :class:`Capsules` with
        poses (B, J, dim) and activations (B, J); with routings made for slots these are
        the shares of the features.

    Raises:
        TypeError: if the features are neither a tensor nor :class:`Capsules`.
        ValueError: if an argument is not a size, or the features have another number of
            axes or of channels.

    Source: Locatello et al. 2020, "Object-Centric Learning with Slot Attention".

    Example:
        >>> slots = tc.Slots(7, dim=64)
        >>> maps = tc.PositionCode(32)(torch.randn(2, 32, 8, 8))
        >>> slots(maps).pose.shape
        torch.Size([2, 7, 64])
        >>> slots(maps, slots=9).pose.shape  # more objects than in training
        torch.Size([2, 9, 64])
        >>> slots.route(maps).assignment.shape
        torch.Size([2, 64, 7])
    """

    def __init__(
        self,
        slots: int,
        dim: int = 64,
        *,
        features: int | None = None,
        routing: Routing | str | None = None,
    ) -> None:
        super().__init__()
        check_size(slots=slots, dim=dim)
        if features is not None:
            check_size(features=features)
        self.slots = slots
        self.dim = dim
        self.features = features
        self.project: nn.Module = (
            FirstBatchLinear(dim) if features is None else nn.Identity()
        )
        shape = LayerShape(None, slots, (features or dim,), (dim,))
        default = SlotAttentionRouting(start="normal")
        self.routing = routing_of(shape, routing, default)
        if not self.routing.own_transforms:
            raise ValueError(
                "routing must have transforms that all slots share, such as 'slots' "
                f"and 'slot_mixture', got {type(self.routing).__name__}"
            )

    def votes(
        self,
        features: Capsules | Tensor,
        mask: Tensor | None = None,
        *,
        slots: int | None = None,
    ) -> Votes:
        """Return the features as children of this many slots; the routing forms the
        votes.
        """
        rows, _, mask = _rows(features, mask)
        return self._votes(rows, mask, slots)

    def _votes(self, rows: Tensor, mask: Tensor | None, slots: int | None) -> Votes:
        """The features (B, I, D) as children."""
        if slots is not None:
            check_size(slots=slots)
        if self.features is None:
            check_channels(self.project, rows)
        elif rows.shape[-1] != self.features:
            raise ValueError(
                f"features must have {self.features} numbers each, got {rows.shape[-1]}"
            )
        children = self.project(rows)
        # Not used: one number in memory.
        transforms = children.new_zeros(()).expand(
            1, slots or self.slots, children.shape[-1], self.dim
        )
        return Votes(children, transforms, mask=mask)

    def route(
        self,
        features: Capsules | Tensor,
        mask: Tensor | None = None,
        *,
        slots: int | None = None,
        initial: Routed | None = None,
    ) -> Routed:
        """Route as :meth:`forward` does, but also return the votes and the last
        assignment.
        """
        rows, activation, mask = _rows(features, mask)
        votes = self._votes(rows, mask, slots)
        routed: Routed = self.routing(votes, activation, initial=initial)
        return routed

    def forward(
        self,
        features: Capsules | Tensor,
        mask: Tensor | None = None,
        *,
        slots: int | None = None,
        initial: Routed | None = None,
    ) -> Capsules:
        """Return the slots of these features.

        Args:
            features: the features of each image; capsules count by their activations.
            mask: bool (B, I) for features (B, I, D), (B, H, W) or (B, H * W) for maps,
                and (B, *sites) for capsules: False for features that are not there.
                None if all are.
            slots: how many; None for as many as the layer was made for. A routing with
                weights of each slot, such as learned queries, takes no other number.
            initial: slots to go on from, such as those of the frame before.
        """
        routed = self.route(features, mask, slots=slots, initial=initial)
        return as_capsules(routed, (self.dim,), self._dtype(features))

    def _dtype(self, features: Capsules | Tensor) -> torch.dtype:
        """The dtype of the slots: the wider one of the features' and the weights'."""
        features = from_pair(features)
        pose = features.pose if isinstance(features, Capsules) else features
        return torch.promote_types(pose.dtype, dtype_of(self.routing, pose.dtype))

    def extra_repr(self) -> str:
        """Return the number of slots and the size of their poses."""
        return repr_of(self, "slots", "dim", "features")


def _rows(
    features: Capsules | Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The numbers of each feature (B, I, D), the activations (B, I) of capsules, and the
    mask (B, I).
    """
    features = from_pair(features)
    if isinstance(features, Capsules):
        capsules = present(features, mask).flatten()
        mask = None if mask is None else mask.flatten(1)
        return capsules.pose.flatten(2), capsules.activation, mask
    if not isinstance(features, Tensor):
        raise TypeError(
            f"features must be a tensor or Capsules, got {type(features).__name__}"
        )
    if features.ndim not in (3, 4) or not features.is_floating_point():
        raise ValueError(
            "features must be (B, I, D) or maps (B, D, H, W), in floating point, got "
            f"{features.dtype} {tuple(features.shape)}"
        )
    flat = isinstance(mask, Tensor) and mask.ndim == 2
    rows = features if features.ndim == 3 else features.movedim(1, -1)
    rows = rows.flatten(1, -2) if flat else rows
    if not math.prod(rows.shape[1:]):
        raise ValueError(
            f"features must be at least one, got none: {tuple(features.shape)}"
        )
    if mask is not None:
        # Else NaN in features that are not there would reach gradients.
        rows = present(Capsules(rows, rows[..., 0]), mask).pose
        mask = mask.flatten(1)
    return rows.flatten(1, -2), None, mask
