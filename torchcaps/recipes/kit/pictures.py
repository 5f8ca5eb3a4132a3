"""Pictures that several recipes share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from torchcaps.explain.figures import new_figure, shorten
from torchcaps.recipes.kit.base import Line, Picture

__all__ = ["Cell", "error_bars", "image_grid", "new_figure", "shorten"]


class Cell(NamedTuple):
    """An image in a grid.

    Args:
        image: grey (H, W) or coloured (H, W, 3), in [0, 1].
        title: over it.
        colour: of the title.
    """

    image: Tensor
    title: str = ""
    colour: str = "black"


def image_grid(rows: Sequence[tuple[str, Sequence[Cell]]], caption: str, height: float = 1.4) -> Picture:
    """Images in rows that are named at the left.

    Args:
        rows: the name of each and its images, as many in all.
        caption: under them.
        height: of a row, in inches.
    """
    columns = len(rows[0][1])
    figure = new_figure(1.1 * columns + 1.6, height * len(rows) + 0.5)
    for line, (name, cells) in zip(figure.subplots(len(rows), columns, squeeze=False), rows, strict=True):
        for axes, cell in zip(line, cells, strict=True):
            axes.imshow(cell.image.numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set_title(cell.title, fontsize=8, color=cell.colour)
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    return Picture(figure, caption)


def error_bars(
    lines: Sequence[Line],
    figures: Mapping[tuple[str, str], float],
    title: str,
    caption: str = "",
    measure: str = "test error",
) -> Picture:
    """Bars of one measure, ours and the published figure beside each other, a pair for each row that has either.

    The rows stand from top to bottom in the order of the lines; the axis is linear and begins at 0, its unit is that
    of the lines. A row that has only one of the two figures shows one bar.

    Args:
        lines: of the recipe; those of other measures are left out.
        figures: ours, by (row, measure), as in :class:`~torchcaps.recipes.kit.base.Outcome`.
        title: over the bars.
        caption: under them; default: one made of the title.
        measure: which of the lines' measures.

    Raises:
        ValueError: if no line of this measure has a figure, or their units differ.
    """
    shown = [
        line
        for line in lines
        if line.measure == measure and ((line.row, measure) in figures or line.published is not None)
    ]
    units = {line.unit for line in shown}
    if len(units) != 1:
        raise ValueError(f"the lines of {measure!r} must have figures, and one unit, got units {sorted(units)}")
    figure = new_figure(7.5, 1.5 + 0.5 * len(shown))
    axes = figure.add_subplot()
    ours = [figures.get((line.row, measure)) for line in shown]
    published = [line.published for line in shown]
    for label, values, offset, colour, digits in (
        ("ours", ours, -0.2, "C0", ".2f"),
        ("published", published, 0.2, "0.7", "g"),
    ):
        there = [(place, value) for place, value in enumerate(values) if value is not None]
        bars = axes.barh(
            [place + offset for place, _ in there], [value for _, value in there], 0.4, label=label, color=colour
        )
        axes.bar_label(bars, labels=[f"{value:{digits}}" for _, value in there], fontsize=8, padding=2)
    axes.set_yticks(range(len(shown)), [line.row for line in shown], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    unit = next(iter(units))
    axes.set_xlabel(f"{measure}, {unit}" if unit else measure)
    axes.set_title(title, fontsize=11)
    axes.legend(fontsize=8, loc="best", frameon=False)
    return Picture(figure, caption or f"{title}: {measure} of each row, ours and the published figure.")
