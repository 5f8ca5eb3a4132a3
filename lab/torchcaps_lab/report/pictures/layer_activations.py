"""Where capsules are active, layer by layer."""

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from torchcaps_lab.evaluate.layers import with_types
from torchcaps_lab.report import canvas
from torchcaps_lab.report.exhibit import PNG, OfImages, Picture, register_exhibit
from torchcaps_lab.report.observe import COLUMNS, Observation
from torchcaps_lab.report.places import Extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BARS = 60
_NAMED = 14  # classes whose names all fit below their bars


class ActivationMaps(NamedTuple):
    """Activations of one type of capsule of a layer.

    Args:
        layer: its name.
        type: which type of the layer's; None if it has but one.
        activation: (B, H', W').
        extent: the part of the image that a map covers; None for all of it.

    Example:
        >>> from torchcaps_lab.report.pictures.layer_activations import ActivationMaps
        >>> ActivationMaps(
        ...     "primary", None, torch.rand(2, 6, 6), extent=None
        ... ).activation.shape
        torch.Size([2, 6, 6])
    """

    layer: str
    type: int | None
    activation: Tensor
    extent: Extent | None

    def label(self) -> str:
        """The layer and, of several types, which one."""
        return self.layer if self.type is None else f"{self.layer}\ntype {self.type}"


@register_exhibit("layer_activations", place=90, drawings="layer_activations.png")
class LayerActivations(OfImages):
    """Images and, layer by layer, where one type of capsule is active.

    Attributes:
        pictures: (B, C, H, W), at most ten.
        titles: one an image.
        layers: from the lowest up, of the type that differs most between these images
            and places.
        classes: activations of the classes, (B, E).
        names: the names of the classes, (E,).

    Example:
        >>> from torchcaps_lab.report import Observation, Selection
        >>> from torchcaps_lab.report.pictures.layer_activations import LayerActivations
        >>> images = torch.rand(2, 1, 8, 8)
        >>> exhibit = LayerActivations.of(
        ...     Observation(
        ...         tc.create_model("capsnet_digits"), Selection(images, images)
        ...     )
        ... )
        >>> exhibit.classes.shape, len(exhibit.layers) > 0
        (torch.Size([2, 10]), True)
    """

    pictures: Tensor = field(metadata=PNG)
    titles: tuple[str, ...]
    layers: tuple[ActivationMaps, ...]
    classes: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(cls, observation: Observation) -> "LayerActivations | None":
        """Make the exhibit; None if no capsules lie on a grid."""
        if not observation.grids:
            return None
        chosen = observation.selection.first(COLUMNS)
        layers = []
        for name, capsules in observation.grids.items():
            maps = with_types(capsules.activation[chosen])
            kind = int(maps.flatten(0, -2).std(0).argmax())
            shown = kind if maps.shape[-1] > 1 else None
            layers.append(
                ActivationMaps(
                    name, shown, maps[..., kind], observation.extents.get(name)
                )
            )
        return cls(
            title="Layer by layer",
            text=(
                "Images and, from the lowest layer up, the activation of one type of "
                "capsule at each position. It is the type that differs most between "
                "these images and places. The bars are the activations of the "
                "classes, with the strongest in red."
            ),
            pictures=observation.selection.pictures[chosen],
            titles=observation.selection.titles_at(chosen),
            layers=tuple(layers),
            classes=observation.activation[chosen],
            names=tuple(
                map(observation.selection.name, range(observation.activation.shape[1]))
            ),
        )

    def draw(self) -> Iterator[Picture]:
        """The images, and below each the activations layer by layer, every layer on a
        colour scale of its own.
        """
        N = len(self.pictures)
        height = max(self.pictures.shape[-2] / self.pictures.shape[-1], 0.6)
        titles = list(map(canvas.shorten_lines, self.titles))
        labels = [layer.label() for layer in self.layers]
        rows = 2 + len(labels)
        high = 1.15 * height
        wide = 1.1 * N + 1.6 + canvas.label_room(map(canvas.broken, labels), high)
        above = 0.17 * canvas.line_count(titles)
        figure = canvas.new_figure(wide, high * rows + above + 0.3, "constrained")
        grid = figure.add_gridspec(rows, N)
        for place, axes in enumerate(
            canvas.row_of(figure, grid, 0, range(N), canvas.sized(self.pictures), high)
        ):
            canvas.show(axes, self.pictures[place])
            canvas.set_title(axes, titles[place])
        for row, (label, layer) in enumerate(zip(labels, self.layers, strict=True), 1):
            drawn = canvas.row_of(figure, grid, row, range(N), label, high)
            canvas.heat_maps(
                figure, drawn, layer.activation, self.pictures, layer.extent
            )
        drawn = canvas.row_of(figure, grid, rows - 1, range(N), "classes", high)
        _draw_bars(drawn, self.classes, self.names, 0.7 * height)
        yield Picture(
            "layer_activations.png",
            "Images and the activations of their capsules, layer by layer",
            figure,
        )


def _draw_bars(
    drawn: Sequence["Axes"], classes: Tensor, names: Sequence[str], aspect: float
) -> None:
    """Draw the activations of each image of the classes, the strongest in red; all
    named, or of many the strongest.
    """
    top = max(classes.max().item(), 1e-6)
    every = list(range(len(names)))
    wide = max(map(len, names), default=0) > 2
    for axes, bars in zip(drawn, classes, strict=True):
        best = int(bars.argmax())
        colours = ["C3" if index == best else "0.6" for index in range(len(bars))]
        if len(bars) <= _BARS:
            axes.bar(range(len(bars)), bars.tolist(), color=colours)
        else:  # in one stroke: each bar is a thing of its own for matplotlib
            axes.vlines(
                range(len(bars)), 0, bars.tolist(), colors=colours, linewidth=0.8
            )
        named = every if len(names) <= _NAMED else [best]
        axes.set(ylim=(0, 1.05 * top), box_aspect=aspect)
        upright = 90 if wide and len(named) > 1 else 0
        axes.set_xticks(
            named,
            [canvas.shorten(names[label], 12) for label in named],
            rotation=upright,
            parse_math=False,
        )
        axes.tick_params(labelsize=7, length=2)
        if axes is not drawn[0]:
            axes.set_yticks([])
