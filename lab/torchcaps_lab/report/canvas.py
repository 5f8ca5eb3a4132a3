"""What all figures are made of: a canvas, images, titles, maps laid over images, rows
of pictures, legible texts.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from torchcaps_lab.report.exhibit import pixels
from torchcaps_lab.report.places import Extent

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 10  # pictures in a row


_FALLBACKS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans Thai",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Arial Unicode MS",
)
"""Fonts for scripts that the default font lacks; those of them that are installed are
used.
"""


COLOURS = (
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#9467bd",
    "#ff7f0e",
    "#17becf",
    "#e377c2",
    "#8c564b",
    "#bcbd22",
    "#7f7f7f",
)


def colour_of(label: int) -> str:
    """The colour of a class, from the first again for more of them."""
    return COLOURS[label % len(COLOURS)]


def class_legend(
    figure: "Figure",
    place: Literal["outside upper right", "outside lower center"],
    colours: Mapping[str, str],
) -> None:
    """A legend of classes by their names, if there are any."""
    from matplotlib.patches import Patch

    patches = {name: Patch(color=colour) for name, colour in colours.items()}
    named_legend(figure, place, patches)


def named_legend(
    figure: "Figure",
    place: Literal["outside upper right", "outside lower center"],
    handles: "Mapping[str, Artist]",
) -> None:
    """A legend of what has the looks of these, by their names, if there are any. Names
    are shown as they are: Matplotlib leaves out ``_x``, and reads formulas in others.
    """
    if not handles:
        return
    legend = figure.legend(
        [*handles.values()],
        ["name"] * len(handles),
        loc=place,
        ncols=10,
        fontsize=8,
        frameon=False,
    )
    for text, name in zip(legend.get_texts(), handles, strict=True):
        text.set(text=name, parse_math=False)


Fill = Callable[["Axes", int], Any]
"""Draws the picture of one image into one pair of axes."""


def new_figure(
    width: float,
    height: float,
    layout: Literal["compressed", "constrained"] = "compressed",
) -> "Figure":
    """A figure; "constrained" leaves pictures in even columns but may cut off labels
    beside them.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout=layout)


def shorten(name: str, limit: int = 24) -> str:
    """The name on one line, cut to a number of characters."""
    name = (
        unicodedata.normalize("NFC", " ".join(name.split()))
        .encode(errors="replace")
        .decode()
    )  # names of files may hold undecoded bytes
    return name if len(name) <= limit else name[: limit - 1] + "…"


def shorten_lines(title: str) -> str:
    """Each line of a title cut to 14 characters."""
    return "\n".join(shorten(line, 14) for line in title.split("\n"))


def line_count(titles: Sequence[str]) -> int:
    """Lines of the highest title."""
    return 1 + max(title.count("\n") for title in titles)


def show(axes: "Axes", image: Tensor, **options: Any) -> None:
    """Draws an image (C, H, W) without ticks, its pixel (y, x) covering [y, y + 1] by
    [x, x + 1].
    """
    lay(axes, pixels(image).numpy(), image, None, **options)


def sized(image: Tensor) -> str:
    """The label of a row of images (..., H, W): how large they are."""
    return f"image\n{image.shape[-1]} x {image.shape[-2]}"


def set_title(axes: "Axes", text: str, fontsize: float = 9) -> None:
    """A title as it is written, whatever it means to TeX, on top of the axes: nothing
    else is there to avoid.
    """
    axes.set_title(text, y=1.0, fontsize=fontsize, parse_math=False)


def title_width(text: str) -> float:
    """Width of the widest line in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=_families(), size=9)
    letters = [letter if _drawn(letter) else "M" for letter in text]
    lines = "".join(letters).split("\n")
    widths = [
        text_to_path.get_text_width_height_descent(line, font, False)[0]
        for line in lines
    ]
    return max(widths) / 72


def label_row(axes: "Axes", text: str, height: float) -> None:
    """A label at the left of a row that is so high, in inches: upright, or lying where
    that would reach into others.
    """
    label = axes.set_ylabel(text, fontsize=9)
    if label_room([text], height):
        label.set(rotation=0, ha="right", va="center")


def label_room(labels: Iterable[str], height: float) -> float:
    """The width, in inches, that those of the labels take that lie at the left of rows
    of this height; 0 for none.
    """
    return max(
        (width for width in map(title_width, labels) if width > height), default=0.0
    )


def lay(
    axes: "Axes", cells: Any, image: Tensor, extent: Extent | None, **options: Any
) -> None:
    """Lays a map over an image or beside it, on a grey ground, each cell where it
    belongs.
    """
    height, width = image.shape[-2:]
    left, right, bottom, top = extent or Extent(0.0, float(width), float(height), 0.0)
    axes.imshow(
        cells, extent=(left, right, bottom, top), interpolation="nearest", **options
    )
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], facecolor="0.93")
    axes.spines[:].set_color("0.8")


def row_of(
    figure: "Figure",
    grid: Any,
    row: int,
    columns: Sequence[int],
    label: str,
    high: float,
) -> list["Axes"]:
    """The axes of some columns of a row of a grid, that is so high in inches, the first
    of them labelled.
    """
    drawn = [figure.add_subplot(grid[row, column]) for column in columns]
    label_row(drawn[0], broken(label), high)
    return drawn


def broken(label: str) -> str:
    """The label in lines: on one it is longer than the row."""
    return label.replace(".children", "\nchildren")


def heat_maps(
    figure: "Figure",
    drawn: list["Axes"],
    maps: Tensor,
    image: Tensor,
    extent: Extent | None,
) -> None:
    """Activations (N, H', W') on a row of axes, from none to the largest, with the
    scale of their colours at its right.

    Args:
        figure: with these axes.
        drawn: of :func:`row_of`.
        maps: one for each of the axes.
        image: as large as the images that they belong to, (C, H, W).
        extent: the part of the image that a map covers; None for all of it.
    """
    scale = {"cmap": "magma", "vmin": 0.0, "vmax": max(maps.max().item(), 1e-6)}
    for axes, cells in zip(drawn, maps, strict=True):
        lay(axes, cells.numpy(), image, extent, **scale)
    bar: dict[str, Any] = {
        "fraction": 0.03,
        "aspect": 10,
        "pad": 0.01,
        "label": "activation",
    }
    figure.colorbar(drawn[0].images[0], ax=drawn, **bar)


def stacked(
    images: Tensor, titles: Sequence[str], rows: Mapping[str, Fill]
) -> "Figure":
    """Columns of pictures, wrapped into several rows.

    Args:
        images: (N, C, H, W): one a column, and of their shape are the pictures.
        titles: one a column.
        rows: of a column, from above, by their labels.

    Raises:
        ValueError: if there are no columns, or titles are not as many.
    """
    count = len(images)
    high = 1.25 * min(images.shape[-2] / images.shape[-1], 1.0)
    if len(titles) != count:
        raise ValueError(
            f"titles must be one for each of {count} images, got {len(titles)}"
        )
    if not count:
        raise ValueError("images must hold at least one image")
    columns = min(count, _COLUMNS)
    blocks = math.ceil(count / _COLUMNS)
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


def strip(images: Tensor, titles: Sequence[str]) -> "Figure":
    """Images (N, C, H, W) in [0, 1] beside each other, wrapped after ten, with a title
    each.
    """
    return stacked(images, titles, {"": lambda axes, place: show(axes, images[place])})


@cache
def _families() -> tuple[str, ...]:
    """The default fonts and behind them, for what they lack, the :data:`_FALLBACKS`
    that are installed.
    """
    from matplotlib import rcParams
    from matplotlib.font_manager import fontManager

    return (
        *rcParams["font.family"],
        *(name for name in _FALLBACKS if name in fontManager.get_font_names()),
    )


@cache
def _characters() -> frozenset[int]:
    """All that those fonts can draw."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    files = (findfont(FontProperties(family=[family])) for family in _families())
    return frozenset().union(*(get_font(file).get_charmap() for file in files))


@cache
def _drawn(character: str) -> bool:
    """Whether a font has a character, and it stands for itself, to the right of the one
    before.
    """
    alone = (
        unicodedata.bidirectional(character) not in ("R", "AL")
        and unicodedata.category(character)[0] != "M"
    )
    return character.isspace() or (alone and ord(character) in _characters())


def make_legible(figure: "Figure", marks: dict[str, str]) -> dict[str, str]:
    """Gives the texts of a figure fonts for many scripts; words that none of them draws
    become marks, "[1]".

    Matplotlib would draw boxes for characters that a font lacks, and it draws from left
    to right, each character for itself: words in scripts that are written otherwise
    become marks too.

    Args:
        figure: before it is drawn.
        marks: the marks of the words so far, by word; new ones are added.

    Returns:
        The words by the marks that stand for them in this figure.
    """
    from matplotlib.text import Text

    used: dict[str, str] = {}

    def mark(match: re.Match[str]) -> str:
        word = match[0]
        if all(map(_drawn, word)):
            return word
        sign = marks.setdefault(word, f"[{len(marks) + 1}]")
        used[sign] = word
        return sign

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label.get_text() for label in axis.get_ticklabels()]
            # An axis writes its labels anew when it is drawn.
            if not all(map(_drawn, "".join(labels))):
                legible = [re.sub(r"\S+", mark, label) for label in labels]
                axis.set_ticks(axis.get_ticklocs(), legible)
    for text in figure.findobj(Text):
        text.set_fontfamily(_families())
        if not all(map(_drawn, text.get_text())):
            text.set_text(re.sub(r"\S+", mark, text.get_text()))
    return used
