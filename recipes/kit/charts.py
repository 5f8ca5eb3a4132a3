"""Charts of experiments: bars beside each other, images in rows, curves over what was
changed.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.kit.measures import deviation, half_interval
from torchcaps_lab.report import new_figure, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


_SHORT = 20
"""Letters of a label that fit below a panel on one line."""


class Cell(NamedTuple):
    """An image in a grid.

    Args:
        image: the image, grey (H, W) or coloured (H, W, 3), in [0, 1].
        title: the text over the image.
        colour: the colour of the title.
    """

    image: Tensor
    title: str = ""
    colour: str = "black"


def image_grid(rows: Mapping[str, Sequence[Cell]], height: float = 1.4) -> "Figure":
    """Images in rows.

    Args:
        rows: the images of each row, by the label at its left, as many in all rows.
        height: the height of a row, in inches.
    """
    columns = len(next(iter(rows.values())))
    labels = max(1.6, 0.075 * max(map(len, rows)))
    figure = new_figure(1.1 * columns + labels, height * len(rows) + 0.5)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, cells) in zip(grid, rows.items(), strict=True):
        for axes, cell in zip(line, cells, strict=True):
            axes.imshow(cell.image.numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set_title(cell.title, fontsize=8, color=cell.colour)
            axes.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    return figure


def bars_across(
    labels: Sequence[str],
    ours: Sequence[float | None],
    published: Sequence[float | None],
) -> "Figure":
    """Pairs of bars from left to right, ours and the published figure; one that is None
    is left out.
    """
    figure = new_figure(7.5, 1.5 + 0.5 * len(labels))
    axes = figure.add_subplot()
    for name, values, offset, colour, digits in (
        ("ours", ours, -0.2, "C0", ".2f"),
        ("published", published, 0.2, "0.7", "g"),
    ):
        heights = {
            place + offset: value
            for place, value in enumerate(values)
            if value is not None
        }
        bars = axes.barh(
            list(heights), list(heights.values()), 0.4, label=name, color=colour
        )
        texts = [f"{value:{digits}}" for value in heights.values()]
        axes.bar_label(bars, labels=texts, fontsize=8, padding=2)
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, loc="best", frameon=False)
    return figure


def bars_upwards(
    axes: "Axes",
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    digits: int = 0,
    **colours: str,
) -> None:
    """Groups of bars beside each other.

    Args:
        axes: the axes to draw in.
        labels: the labels of the groups.
        series: the values of each series, one for each group, by name.
        digits: the number of digits after the point in the figures over the bars.
        colours: the colours of some of the series, by name.
    """
    width = 0.8 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        left = [place - 0.4 + (number + 0.5) * width for place in range(len(labels))]
        bars = axes.bar(left, values, width, label=name, color=colours.get(name))
        axes.bar_label(bars, fmt=f"%.{digits}f", fontsize=8)
    axes.set_xticks(range(len(labels)), labels, fontsize=9)
    axes.margins(y=0.12)


def tiles(grid: Tensor) -> Tensor:
    """Images (D, V, C, H, W) in rows and columns with grey lines between, as one
    picture (h, w, 3).

    Args:
        grid: the images, with values in [0, 1] and one channel, or three.
    """
    D, V, channels = grid.shape[:3]
    rgb = grid.clamp(0, 1)
    if channels == 1:
        rgb = rgb.expand(D, V, 3, *grid.shape[3:])
    framed = F.pad(rgb, (0, 1, 0, 1), value=0.5)
    return framed.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)


def transfer_grid(grid: Tensor, title: str) -> "Figure":
    """Contents down, styles across, and what was drawn of each pair.

    Args:
        grid: the images, (1 + contents, 1 + styles, C, H, W), with one channel or
            three; the first row holds the styles and the first column the contents.
        title: the text above the grid.
    """
    D, V = grid.shape[:2]
    figure = new_figure(0.7 * V + 0.4, 0.7 * D + 0.6)
    axes = figure.add_subplot()
    axes.imshow(tiles(grid).numpy(), extent=(0, V, D, 0), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.axhline(1, color="C1", linewidth=2)
    axes.axvline(1, color="C1", linewidth=2)
    axes.set_xlabel("style: the image whose pose is taken", fontsize=9)
    axes.xaxis.set_label_position("top")
    axes.set_ylabel("content: the image whose class is drawn", fontsize=9)
    axes.spines[:].set_visible(False)
    axes.set_title(shorten(title, 80), fontsize=11)
    return figure


def bars_under_images(
    images: Mapping[str, Tensor], series: Mapping[str, Sequence[float]], quantity: str
) -> "Figure":
    """Groups of bars from 0 to 100 %, with an image (H, W) of each group over it.

    Args:
        images: an image for each group, by the label of the group.
        series: the values of each series, one for each group, by name.
        quantity: the label of the vertical axis, with the unit.
    """
    # The number above each bar takes a quarter of an inch.
    bars = 0.28 * len(images) * (len(series) + 1)
    width = max(1.8 * len(images), bars + 1.5, 6.5)
    figure = new_figure(width, 5.2, "constrained")
    grid = figure.add_gridspec(2, len(images), height_ratios=(1.0, 2.6))
    for place, (name, image) in enumerate(images.items()):
        axes = figure.add_subplot(grid[0, place])
        axes.imshow(image.numpy(), cmap="gray")
        axes.set_title(name, fontsize=9)
        axes.set_axis_off()
    axes = figure.add_subplot(grid[1, :])
    bars_upwards(axes, list(images), series)
    axes.set_ylim(0, 108)
    axes.set_ylabel(quantity)
    figure.legend(fontsize=8, ncols=2, loc="outside lower center", frameon=False)
    return figure


class Dots(NamedTuple):
    """One measure of some rows, a panel of :func:`dot_panels`.

    Args:
        label: the label of the axis, with the unit.
        values: the value of each row; None where there is none.
        spreads: the length of the bar to either side of each value.
        log: whether the axis is logarithmic, for values above 0.
    """

    label: str
    values: Sequence[float | None]
    spreads: Sequence[float]
    log: bool = False

    @classmethod
    def over(
        cls,
        label: str,
        figures: Sequence[Mapping[tuple[str, str], float]],
        keys: Sequence[tuple[str, str]],
        spread: Callable[[Sequence[float]], float] = deviation,
    ) -> "Dots":
        """Means and spreads over the seeds, given the figures of each, of a row and
        measure for each dot.
        """
        means: list[float | None] = []
        spreads = []
        for key in keys:
            values = [of_seed[key] for of_seed in figures if key in of_seed]
            means.append(mean(values) if values else None)
            spreads.append(spread(values))
        return cls(label, means, spreads)

    @classmethod
    def above(
        cls,
        reference: str,
        figures: Sequence[Mapping[tuple[str, str], float]],
        rows: Sequence[str],
        measure: str,
    ) -> "Dots":
        """How far the rows are above a reference row with the same seeds, with 95 % of
        Student's t over these.
        """
        means: list[float | None] = []
        spreads = []
        for row in rows:
            keys = {(row, measure), (reference, measure)}
            differences = [
                of_seed[row, measure] - of_seed[reference, measure]
                for of_seed in figures
                if keys <= of_seed.keys()
            ]
            shown = differences and row != reference
            means.append(mean(differences) if shown else None)
            spreads.append(half_interval(differences))
        return cls(f"points more than\n{reference}", means, spreads)


def plain_ticks(axis: "Axis") -> None:
    """Ticks 1, 2, 5, 10, ... of a logarithmic axis, as numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set(
        major_locator=LogLocator(subs=(1, 2, 5)),
        major_formatter="{x:g}",
        minor_locator=NullLocator(),
    )


def dot_panels(rows: Sequence[str], panels: Sequence[Dots]) -> "Figure":
    """Panels beside each other with one dot for each row, the rows from top to bottom,
    the same in all panels.
    """
    figure = new_figure(1.6 + 1.9 * len(panels), 1.0 + 0.24 * len(rows))
    first: Axes | None = None
    for place, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place, sharey=first)
        values = []
        places = []
        spreads = []
        for row, value in enumerate(panel.values):
            if value is not None:
                values.append(value)
                places.append(row)
                spreads.append(panel.spreads[row])
        axes.errorbar(
            values,
            places,
            xerr=spreads,
            fmt="o",
            markersize=4,
            color="C0",
            ecolor="0.6",
            linewidth=1,
        )
        if panel.log:
            axes.set_xscale("log")
            plain_ticks(axes.xaxis)
        label = panel.label
        if len(label) > _SHORT:
            label = label.replace(", ", ",\n")
        axes.set_xlabel(label, fontsize=9)
        axes.tick_params(axis="x", labelsize=8, which="both")
        axes.grid(alpha=0.3)
        if first is None:
            axes.set_yticks(range(len(rows)), rows, fontsize=9)
            axes.set_ylim(len(rows) - 0.5, -0.5)
            first = axes
        else:
            axes.tick_params(axis="y", labelleft=False)
    return figure


class Factor(NamedTuple):
    """One number that is changed while the others stay.

    Args:
        label: the name of the factor with its unit, for an axis.
        values: the values on the curve.
        trained: the values that training showed, lowest and highest.
        tested: the values of a test, lowest and highest.
    """

    label: str
    values: tuple[float, ...]
    trained: tuple[float, float]
    tested: tuple[float, float]


def factor_curves(
    factors: Mapping[str, Factor],
    curves: Mapping[str, Mapping[str, Sequence[float]]],
    rows: Sequence[str],
) -> "Figure":
    """Accuracy in percent against up to four factors, one panel each.

    Args:
        factors: the factors, by name.
        curves: the accuracies of each row, for each factor.
        rows: the networks.
    """
    figure = new_figure(9.0, 6.4)
    figure.suptitle("Accuracy when one factor is changed")
    for place, (name, factor) in enumerate(factors.items(), 1):
        axes = figure.add_subplot(2, 2, place)
        low, high = factor.trained
        axes.axvspan(*factor.tested, color="0.9", zorder=0, label="affine test")
        axes.axvspan(
            low,
            high,
            color="C2",
            alpha=0.25,
            linewidth=3 * (low == high),
            zorder=1,
            label="in training",
        )
        for row in rows:
            axes.plot(
                factor.values, curves[name][row], marker="o", markersize=3, label=row
            )
        axes.set(xlabel=factor.label, ylabel="accuracy, %", ylim=(0, 103))
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def two_colours(images: Tensor) -> Tensor:
    """Two grey images (2, H, W) as the red and the green channel of one, (H, W, 3)."""
    red, green = images.clamp(0, 1)
    return torch.stack([red, green, torch.zeros_like(red)], -1)
