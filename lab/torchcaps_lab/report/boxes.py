"""Images with boxes on them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from torchcaps_lab.report.canvas import new_figure, set_title, shorten, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIDE = 1.9
"""The side of one of several images, in inches."""

_LEAST = 400
"""Pixels that the longer side of an image alone should have."""


class Boxed(NamedTuple):
    """An image and boxes on it.

    Args:
        image: (C, H, W) in [0, 1].
        boxes: the name of a class and left, top, right, bottom in pixels, one for each
            thing.
        true: likewise, those that should be there.
        title: over it.

    Example:
        >>> from torchcaps_lab.report import Boxed
        >>> image = torch.rand(1, 32, 32)
        >>> figure = Boxed.figure([Boxed(image, [("cat", (2, 4, 20, 30))])], ["cat"])
        >>> len(figure.axes)
        5
    """

    image: Tensor
    boxes: Sequence[tuple[str, Sequence[float]]]
    true: Sequence[tuple[str, Sequence[float]]] = ()
    title: str = ""

    @staticmethod
    def figure(
        images: "Sequence[Boxed]", classes: Sequence[str], columns: int = 5
    ) -> "Figure":
        """Draw images with boxes and the names of their classes; true boxes are dotted
        and white.

        Args:
            images: the images, row by row.
            classes: the names of all classes; each has its colour.
            columns: the number of images in a row.
        """
        rows = -(-len(images) // columns)
        figure = new_figure(_SIDE * columns + 0.2, (_SIDE + 0.2) * rows + 0.2)
        panels = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, image in zip(panels, images, strict=False):
            _draw(axes, image, classes)
            set_title(axes, image.title, fontsize=8)
        for axes in panels[len(images) :]:
            axes.set_axis_off()
        return figure


def boxed_image(boxed: Boxed, classes: Sequence[str]) -> "Figure":
    """One image alone, at its size, or small ones enlarged by a whole number so that
    names can be read.

    Args:
        boxed: the image and its boxes.
        classes: all names; each has its colour.
    """
    from matplotlib.figure import Figure

    height, width = boxed.image.shape[-2:]
    scale = -(-_LEAST // max(height, width))
    figure = Figure((width * scale / 100, height * scale / 100), dpi=100)
    _draw(figure.add_axes((0, 0, 1, 1)), boxed, classes)
    return figure


def _draw(axes: "Axes", boxed: Boxed, classes: Sequence[str]) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    # A dark line below keeps boxes visible on bright images and on things of their
    # colour.
    outlined = [Stroke(linewidth=2.6, foreground="black", alpha=0.6), Normal()]
    show(axes, boxed.image, cmap="gray", vmin=0, vmax=1)
    for _, (left, top, right, bottom) in boxed.true:
        sides = right - left, bottom - top
        axes.add_patch(
            Rectangle(
                (left, top),
                *sides,
                fill=False,
                color="white",
                linestyle=":",
                linewidth=1.2,
                zorder=3,
                path_effects=outlined,
            )
        )
    for name, (left, top, right, bottom) in boxed.boxes:
        colour = f"C{list(classes).index(name) % 10}"
        axes.add_patch(
            Rectangle(
                (left, top),
                right - left,
                bottom - top,
                fill=False,
                color=colour,
                linewidth=1.6,
                path_effects=outlined,
            )
        )
        pale = (
            sum(
                share * part
                for share, part in zip((0.3, 0.59, 0.11), to_rgb(colour), strict=True)
            )
            > 0.42
        )
        ink = "black" if pale else "white"
        style: dict[str, Any] = {
            "fontsize": 8,
            "color": ink,
            "clip_on": True,
            "parse_math": False,
        }
        place = (
            "bottom" if top > 0.08 * boxed.image.shape[-2] else "top"
        )  # above the box, or in it at the upper edge
        axes.text(
            max(left, 0),
            max(top, 0),
            shorten(name),
            va=place,
            bbox={"color": colour, "pad": 0.6},
            **style,
        )
