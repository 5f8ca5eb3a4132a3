"""Where the children of an image went."""

from collections.abc import Iterator
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from torchcaps_lab.report.canvas import Fill, lay, shorten_lines, show, sized, stacked
from torchcaps_lab.report.exhibit import (
    PNG,
    OfImages,
    Picture,
    pixels,
    register_exhibit,
)
from torchcaps_lab.report.observe import COLUMNS, Observation
from torchcaps_lab.report.places import Extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable


class ShareMaps(NamedTuple):
    """The shares of one class for each image, on the grid of a layer.

    Args:
        layer: the children's name.
        share: (B, H', W'); NaN, and null in JSON, where no window looks.
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps_lab.report.pictures.assignments import ShareMaps
        >>> ShareMaps("primary", torch.rand(2, 6, 6), extent=None).share.shape
        torch.Size([2, 6, 6])
    """

    layer: str
    share: Tensor
    extent: Extent | None


@register_exhibit("assignments", place=120, drawings="assignments.png")
class Assignments(OfImages):
    """Images and, layer by layer, the share of the children that went to the class that
    each image is asked about.

    Attributes:
        pictures: (B, C, H, W).
        titles: one an image.
        targets: the classes, (B,).
        layers: from the children of the classes down.
        even: the share of a class if all got the same:
            :attr:`~torchcaps_lab.report.Observation.even`.

    Maps have one scale, whatever they hold: an even share is white, none of it full
    blue, twice as much or more full red. Where routing decided nothing there are no
    layers, and the text says so.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.assignments import Assignments
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = Assignments.of(
        ...     Observation(
        ...         tc.create_model("capsnet_digits"), Selection(images, images)
        ...     )
        ... )
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
        """Make the exhibit of as many images as there are classes, but at least ten;
        None if no children lie on a grid, unless routing decided nothing, which is said
        here.
        """
        verdict = observation.verdict
        nothing = verdict.of_routing if verdict is not None and verdict.even else ""
        if not observation.maps and not nothing:
            return None
        classes = observation.activation.shape[1]
        chosen = observation.selection.first(max(COLUMNS, classes))
        targets = observation.target[chosen]
        even = observation.even
        return cls(
            title="Routing" if nothing else "Where each part of the image went",
            text=nothing or _meaning(observation),
            pictures=observation.selection.pictures[chosen],
            titles=observation.selection.titles_at(chosen),
            targets=targets,
            layers=tuple(
                ShareMaps(
                    name, maps[chosen, :, :, targets], observation.extents.get(name)
                )
                for name, maps in observation.maps.items()
                if not nothing
            ),
            even=even,
        )

    def draw(self) -> Iterator[Picture]:
        """The images, and below each its maps laid over it, on the one scale; none
        where routing decided nothing.
        """
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        if not self.layers:
            return
        scale = ScalarMappable(Normalize(0, 2 * self.even), "RdBu_r")
        rows: dict[str, Fill] = {
            sized(self.pictures): lambda axes, place: show(axes, self.pictures[place])
        }
        for layer in self.layers:
            rows[layer.layer if len(self.layers) > 1 else "share"] = partial(
                self._overlay, layer, scale
            )
        figure = stacked(self.pictures, list(map(shorten_lines, self.titles)), rows)
        options: dict[str, Any] = {
            "fraction": 0.03,
            "aspect": 30,
            "pad": 0.01,
            "extend": "max",
        }
        bar = figure.colorbar(
            scale,
            ax=figure.axes,
            label=f"share of the children; even: {self.even:.2g}",
            **options,
        )
        bar.set_ticks(
            [part * self.even for part in (0, 0.5, 1, 1.5, 2)],
            labels=["none", "half", "even", "1½", "twice"],
        )
        yield Picture("assignments.png", "Images and maps of the shares", figure)

    def _overlay(
        self, maps: ShareMaps, scale: "ScalarMappable", axes: "Axes", place: int
    ) -> None:
        """The map of an image over it, which is grey and paler, so that colours stand
        out.
        """
        image = self.pictures[place]
        show(axes, 0.25 + pixels(image).mean(2)[None] / 2)
        lay(
            axes,
            scale.to_rgba(maps.share[place].numpy(), alpha=0.8),
            image,
            maps.extent,
        )


def _meaning(observation: Observation) -> str:
    even = observation.even
    text = (
        "At each position, the share of the active child capsules that routing "
        f"assigned to {observation.selection.about}. White is an even split, in which "
        "every class gets "
        f"{even:.2g}{', and no class as much' if observation.leaky else ''}. Redder "
        f"places gave this class more, and full red is {2 * even:.2g} or more. Bluer "
        "places gave it less, and full blue is nothing. Each cell is at the centre "
        "of the region that its children see, which is larger than the cell."
    )
    if len(observation.maps) == 1:
        return text
    return (
        f"{text} The first row of maps shows the children of the classes. Each row "
        "below it passes these shares from parents to their children, on the finer "
        "grid of the layer below. A child went where its parents went. Positions "
        "that no window sees have no colour."
    )
