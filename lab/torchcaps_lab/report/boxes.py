"""Images with boxes on them."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from torchcaps_lab.report.canvas import new_figure, set_title, shorten, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Boxed(NamedTuple):
    """An image and boxes on it.

    Args:
        image: (C, H, W) in [0, 1].
        boxes: by the names of their classes: left, top, right, bottom in pixels.
        true: likewise, those that should be there.
        title: over it.
    """

    image: Tensor
    boxes: Mapping[str, Sequence[float]]
    true: Mapping[str, Sequence[float]] = MappingProxyType({})
    title: str = ""


def boxes_figure(images: Sequence[Boxed], classes: Sequence[str], columns: int = 5, side: float = 1.9) -> "Figure":
    """Images with boxes and the names of their classes; true boxes are dotted and white.

    Args:
        images: in the order of rows.
        classes: all names; each has its colour.
        columns: of the grid.
        side: of an image, in inches.
    """
    from matplotlib.patches import Rectangle

    rows = -(-len(images) // columns)
    figure = new_figure(side * columns + 0.2, (side + 0.2) * rows + 0.2)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, one in zip(panels, images, strict=False):
        show(axes, one.image, cmap="gray", vmin=0, vmax=1)
        set_title(axes, one.title, fontsize=8)
        for left, top, right, bottom in one.true.values():
            sides = right - left, bottom - top
            axes.add_patch(Rectangle((left, top), *sides, fill=False, color="white", linestyle=":", linewidth=0.8))
        for name, (left, top, right, bottom) in one.boxes.items():
            colour = f"C{list(classes).index(name) % 10}"
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, color=colour, linewidth=1.4))
            said = {"fontsize": 8, "color": "white", "clip_on": True, "parse_math": False}
            axes.text(left, top, shorten(name), va="bottom", bbox={"color": colour, "pad": 0.6}, **said)
    for axes in panels[len(images) :]:
        axes.set_axis_off()
    return figure
