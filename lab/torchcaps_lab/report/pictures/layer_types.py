"""Where the types of capsules of each layer are active in one image."""

from collections.abc import Iterator
from dataclasses import field
from typing import NamedTuple

from torch import Tensor

from torchcaps_lab.report.canvas import heat_maps, new_figure, row_of, set_title, shorten_lines, show
from torchcaps_lab.report.exhibit import PNG, OfImages, Picture, register_exhibit
from torchcaps_lab.report.layers import with_types
from torchcaps_lab.report.observe import Observation
from torchcaps_lab.report.places import Extent

_TYPES = 8  # of each layer that are shown


class TypeMaps(NamedTuple):
    """Activations of the most active types of capsules of a layer, for one image.

    Args:
        layer: its name.
        types: which of the layer's, the most active first.
        activation: (H', W', types).
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps_lab.report.pictures.layer_types import TypeMaps
        >>> TypeMaps.of("primary", torch.rand(6, 6, 32), extent=None).activation.shape
        torch.Size([6, 6, 8])
    """

    layer: str
    types: list[int]
    activation: Tensor
    extent: Extent | None

    @classmethod
    def of(cls, layer: str, activation: Tensor, extent: Extent | None) -> "TypeMaps":
        """The most active of all types, of activations (H', W', types)."""
        peak = activation.flatten(0, 1).amax(0)
        types = peak.argsort(descending=True, stable=True)[:_TYPES].tolist()
        return cls(layer, types, activation[..., types], extent)


@register_exhibit("layer_types", place=100, drawings="layer_types.png")
class LayerTypes(OfImages):
    """One image and, layer by layer, where its most active types of capsules are active.

    Attributes:
        picture: (C, H, W).
        image_title: of the image.
        layers: from the lowest up.

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.layer_types import LayerTypes
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = LayerTypes.of(Observation(tc.create_model("capsnet_digits"), Selection(images, images)))
        >>> exhibit.picture.shape
        torch.Size([1, 8, 8])
    """

    picture: Tensor = field(metadata=PNG)
    image_title: str
    layers: tuple[TypeMaps, ...]

    @classmethod
    def of(cls, observation: Observation) -> "LayerTypes | None":
        """None if no layer on a grid has several types."""
        place = observation.selection.example
        maps = {name: with_types(capsules.activation)[place] for name, capsules in observation.grids.items()}
        if not any(part.shape[-1] > 1 for part in maps.values()):
            return None
        return cls(
            title="Types of capsules",
            text="For one image, where the most active types of each layer are active. A type that found something "
            "answers in few places.",
            picture=observation.selection.pictures[place],
            image_title=observation.selection.title(place),
            layers=tuple(TypeMaps.of(name, part, observation.extents.get(name)) for name, part in maps.items()),
        )

    def draw(self) -> Iterator[Picture]:
        """The image, and layer by layer a row of maps."""
        columns = 1 + max(len(layer.types) for layer in self.layers)
        height = self.picture.shape[-2] / self.picture.shape[-1]
        figure = new_figure(1.15 * columns + 1.4, (1.15 * height + 0.4) * len(self.layers) + 0.2, "constrained")
        grid = figure.add_gridspec(len(self.layers), columns)
        axes = figure.add_subplot(grid[0, 0])
        show(axes, self.picture)
        set_title(axes, shorten_lines(self.image_title))
        for row, layer in enumerate(self.layers):
            drawn = row_of(figure, grid, row, range(1, 1 + len(layer.types)), layer.layer, 1.15 * height)
            heat_maps(figure, drawn, layer.activation.movedim(-1, 0), self.picture, layer.extent)
            for axes, kind in zip(drawn, layer.types, strict=True):
                set_title(axes, f"type {kind}", fontsize=8)
        yield Picture("layer_types.png", "The most active types of capsules of one image, layer by layer", figure)
