"""What all figures are made of: a canvas, images, titles, maps laid over images, rows of pictures."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from torchcaps.report.draw.fonts import measurable
from torchcaps.report.exhibits.base import pixels
from torchcaps.report.places import Extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 10  # pictures in a row

Fill = Callable[["Axes", int], Any]
"""Draws the picture of one image into one pair of axes."""


def new_figure(width: float, height: float, layout: Literal["compressed", "constrained"] = "compressed") -> "Figure":
    """A figure; "constrained" leaves pictures in even columns but may cut off labels beside them."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout=layout)


def shorten(name: str, limit: int = 24) -> str:
    """The name on one line, cut to a number of characters."""
    name = (
        unicodedata.normalize("NFC", " ".join(name.split())).encode(errors="replace").decode()
    )  # names of files may hold undecoded bytes
    return name if len(name) <= limit else name[: limit - 1] + "…"


def shorten_lines(title: str, limit: int = 14) -> str:
    """Each line of a title cut to a number of characters."""
    return "\n".join(shorten(line, limit) for line in title.split("\n"))


def line_count(titles: Sequence[str]) -> int:
    """Lines of the highest title."""
    return 1 + max(title.count("\n") for title in titles)


def show(axes: "Axes", image: Tensor, **options: Any) -> None:
    """Draws an image (C, H, W) without ticks, its pixel (y, x) covering [y, y + 1] by [x, x + 1]."""
    height, width = image.shape[-2:]
    axes.imshow(pixels(image).numpy(), extent=(0, width, height, 0), interpolation="nearest", **options)
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_color("0.8")


def set_title(axes: "Axes", text: str, fontsize: float = 9) -> None:
    """A title as it is written, whatever it means to TeX, on top of the axes: nothing else is there to avoid."""
    axes.set_title(text, y=1.0, fontsize=fontsize, parse_math=False)


def title_width(text: str, fontsize: float = 9) -> float:
    """Width of the widest line in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=fontsize)
    lines = measurable(text).split("\n")
    widths = [text_to_path.get_text_width_height_descent(line, font, False)[0] for line in lines]
    return max(widths) / 72


def label_row(axes: "Axes", text: str, height: float) -> None:
    """A label at the left of a row that is so high, in inches: upright, or lying where that would reach into others."""
    label = axes.set_ylabel(text, fontsize=9)
    if label_room([text], height):
        label.set(rotation=0, ha="right", va="center")


def label_room(labels: Iterable[str], height: float) -> float:
    """The width, in inches, that those of the labels take that lie at the left of rows of this height; 0 for none."""
    return max((width for width in map(title_width, labels) if width > height), default=0.0)


def lay(axes: "Axes", cells: Any, image: Tensor, extent: Extent | None, **options: Any) -> None:
    """Lays a map over an image or beside it, each cell where it belongs."""
    height, width = image.shape[-2:]
    left, right, bottom, top = extent or Extent(0.0, float(width), float(height), 0.0)
    axes.imshow(cells, extent=(left, right, bottom, top), interpolation="nearest", **options)
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])


def frame(axes: "Axes", colour: str = "0.8") -> None:
    """Pale edges around a grey ground."""
    axes.set(xticks=[], yticks=[], facecolor="0.93")
    for side in axes.spines.values():
        side.set_color(colour)


def heat(values: Tensor) -> dict[str, Any]:
    """Colours for activations, from none to the largest."""
    return {"cmap": "magma", "vmin": 0.0, "vmax": max(values.max().item(), 1e-6)}


def stacked(images: Tensor, titles: Sequence[str], rows: Mapping[str, Fill]) -> "Figure":
    """Columns of pictures, wrapped into several rows.

    Args:
        images: (N, C, H, W): one a column, and of their shape are the pictures.
        titles: one a column.
        rows: of a column, from above, by their labels.

    Raises:
        ValueError: if there are no columns, or titles are not as many.
    """
    count, high = len(images), 1.25 * min(images.shape[-2] / images.shape[-1], 1.0)
    if len(titles) != count:
        raise ValueError(f"titles must be one for each of {count} images, got {len(titles)}")
    if not count:
        raise ValueError("images must hold at least one image")
    columns, blocks = min(count, _COLUMNS), math.ceil(count / _COLUMNS)
    height = blocks * (max(high, 0.6) * len(rows) + 0.17 * line_count(titles)) + 0.1
    figure = new_figure(1.25 * columns + 0.5 + label_room(rows, high), height)
    grid = figure.add_gridspec(len(rows) * blocks, columns)
    for place in range(count):
        block, column = divmod(place, columns)
        for row, (label, fill) in enumerate(rows.items()):
            axes = figure.add_subplot(grid[block * len(rows) + row, column])
            fill(axes, place)
            if column == 0:
                label_row(axes, label, high)
            if row == 0:
                set_title(axes, titles[place])
    return figure


def check_maps(images: Tensor, maps: Mapping[str, Tensor]) -> None:
    """Raises a `ValueError` unless there is a map for each image."""
    for part in maps.values():
        if part.ndim != 3 or len(part) != len(images):
            raise ValueError(f"maps must be ({len(images)}, H', W'), one an image, got shape {tuple(part.shape)}")
