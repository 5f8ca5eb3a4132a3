"""Where the children of an image went."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from torchcaps.report.exhibits.base import PNG, Exhibit, register_exhibit
from torchcaps.report.flow import maps_of
from torchcaps.report.observe import Observation
from torchcaps.report.places import Extent
from torchcaps.report.selection import COLUMNS


class ShareMaps(NamedTuple):
    """The shares of one class for each image, on the grid of a layer.

    Args:
        layer: the children's name.
        share: (B, H', W'); NaN, and null in JSON, where no window looks.
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps.report.exhibits import ShareMaps
        >>> ShareMaps("primary", torch.rand(2, 6, 6), extent=None).share.shape
        torch.Size([2, 6, 6])
    """

    layer: str
    share: Tensor
    extent: Extent | None


@register_exhibit("assignments")
@dataclass(frozen=True, eq=False, kw_only=True)
class Assignments(Exhibit):
    """Images and, layer by layer, the share of the children that went to the class that each image is asked about.

    Attributes:
        pictures: (B, C, H, W).
        titles: one an image.
        targets: the classes, (B,).
        layers: from the children of the classes down.
        even: the share of a class if all got the same: :attr:`~torchcaps.report.Observation.even`.

    Example:
        >>> from torchcaps.report import Observation, Selection
        >>> from torchcaps.report.exhibits import Assignments
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = Assignments.of(Observation(tc.create_model("capsnet_digits"), Selection(images, images)))
        >>> exhibit.layers[0].share.shape
        torch.Size([2, 4, 4])
    """

    pictures: Tensor = field(metadata=PNG)
    titles: tuple[str, ...]
    targets: Tensor
    layers: tuple[ShareMaps, ...]
    even: float

    @classmethod
    def of(cls, observation: Observation) -> "Assignments | None":
        """Of as many images as there are classes, but at least ten; None if no children lie on a grid."""
        if not observation.maps:
            return None
        classes = observation.activation.shape[1]
        chosen = observation.selection.first(max(COLUMNS, classes))
        targets, even = observation.target[chosen], observation.even
        text = (
            "At each position, the share of the active child capsules that routing assigned to "
            f"{observation.selection.about}. An even split would give every class {even:.2g}"
            f"{', and no class as much' if observation.orphan else ''}: red places spoke for "
            "this class, blue places for others. Each cell lies at the centre of what its children see, and they see "
            "more than the cell."
        )
        if len(observation.maps) > 1:
            text += (
                " The first row of maps is of the children of the classes themselves. Each row below it hands these "
                "shares on, from parents to their children, to the finer grid of the layer below: a child went where "
                "its parents went. Positions that no window sees have no colour."
            )
        return cls(
            title="Where each part of the image went",
            text=text,
            pictures=observation.selection.pictures[chosen],
            titles=observation.selection.titles_at(chosen),
            targets=targets,
            layers=tuple(
                ShareMaps(name, maps_of(maps[chosen], targets), observation.extents.get(name))
                for name, maps in observation.maps.items()
            ),
            even=even,
        )
