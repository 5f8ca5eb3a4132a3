"""Where capsules are active and what their poses are, layer by layer."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.report.draw.canvas import (
    check_maps,
    frame,
    heat,
    label_room,
    label_row,
    lay,
    line_count,
    new_figure,
    set_title,
    show,
)
from torchcaps.report.exhibits.layers import TypeMaps
from torchcaps.report.places import Extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


def activation_figure(
    images: Tensor,
    maps: Mapping[str, Tensor],
    titles: Sequence[str],
    extents: Mapping[str, Extent] | None = None,
    classes: Tensor | None = None,
) -> "Figure":
    """Images, and below each the activations of its capsules layer by layer, every layer on a colour scale of its own.

    Args:
        images: (N, C, H, W) in [0, 1]; at most ten look well.
        maps: activations (N, H', W') by the label of the row, such as those of one type of each layer.
        titles: one an image.
        extents: the part of the image that each map covers, by the same labels; without one, all of it.
        classes: activations of the class capsules (N, E), as bars in the last row.

    Raises:
        ValueError: if numbers do not fit or there are no images.
    """
    check_maps(images, maps)
    if len(titles) != len(images) or not len(images):
        raise ValueError(f"titles must be one for each image, of one at least, got {len(titles)} for {len(images)}")
    N, height = len(images), max(images.shape[-2] / images.shape[-1], 0.6)
    rows, high = 1 + len(maps) + (classes is not None), 1.15 * height
    wide, above = 1.1 * N + 1.6 + label_room(map(_broken, maps), high), 0.17 * line_count(titles)
    figure = new_figure(wide, high * rows + above + 0.3, "constrained")
    grid = figure.add_gridspec(rows, N)
    for place, axes in enumerate(_row(figure, grid, 0, range(N), "image", high)):
        show(axes, images[place])
        set_title(axes, titles[place])
    for row, (label, part) in enumerate(maps.items(), 1):
        part = part.detach().cpu().float()
        drawn = _row(figure, grid, row, range(N), label, high)
        for place, axes in enumerate(drawn):
            lay(axes, part[place].numpy(), images[place], (extents or {}).get(label), **heat(part))
            frame(axes)
        _heat_bar(figure, drawn)
    if classes is not None:
        drawn = _row(figure, grid, rows - 1, range(N), "classes", high)
        _draw_bars(drawn, classes.detach().cpu().float(), 0.7 * height)
    return figure


def _row(figure: "Figure", grid: Any, row: int, columns: Sequence[int], label: str, high: float) -> list["Axes"]:
    """The axes of some columns of a row of a grid, that is so high in inches, the first of them labelled."""
    drawn = [figure.add_subplot(grid[row, column]) for column in columns]
    label_row(drawn[0], _broken(label), high)
    return drawn


def _broken(label: str) -> str:
    """The label in lines: on one it is longer than the row."""
    return label.replace(".children", "\nchildren")


def _heat_bar(figure: "Figure", drawn: list["Axes"]) -> None:
    figure.colorbar(drawn[0].images[0], ax=drawn, fraction=0.03, aspect=10, pad=0.01, label="activation")


_BARS = 60


def _draw_bars(drawn: Sequence["Axes"], classes: Tensor, aspect: float) -> None:
    """Of each image the activations of the classes, the strongest in red and numbered."""
    top = max(classes.max().item(), 1e-6)
    for axes, bars in zip(drawn, classes, strict=True):
        best = int(bars.argmax())
        colours = ["C3" if index == best else "0.6" for index in range(len(bars))]
        if len(bars) <= _BARS:
            axes.bar(range(len(bars)), bars.tolist(), color=colours)
        else:  # in one stroke: each bar is a thing of its own for matplotlib
            axes.vlines(range(len(bars)), 0, bars.tolist(), colors=colours, linewidth=0.8)
        axes.set(xticks=[best], ylim=(0, 1.05 * top), box_aspect=aspect)
        axes.tick_params(labelsize=8, length=2)
        if axes is not drawn[0]:
            axes.set_yticks([])


def types_figure(
    image: Tensor,
    activations: Mapping[str, Tensor],
    title: str = "",
    extents: Mapping[str, Extent] | None = None,
    count: int = 8,
) -> "Figure":
    """One image and, layer by layer, where its most active types of capsules are active.

    Args:
        image: (C, H, W) in [0, 1].
        activations: (H', W', types) by layer.
        title: above the image.
        extents: the part of the image that each map covers; without one, all of it.
        count: how many types of each layer, those with the largest activations.

    Raises:
        ValueError: if activations have another number of axes.
    """
    for label, part in activations.items():
        if part.ndim != 3:
            raise ValueError(f"activations of {label} must be (H', W', types), got shape {tuple(part.shape)}")
    layers = [
        TypeMaps.of(label, part.detach().cpu().float(), (extents or {}).get(label), count)
        for label, part in activations.items()
    ]
    return type_maps_figure(image, layers, title)


def type_maps_figure(image: Tensor, layers: Sequence[TypeMaps], title: str) -> "Figure":
    """:func:`types_figure` of types that were chosen already."""
    columns = 1 + max(len(layer.types) for layer in layers)
    height = image.shape[-2] / image.shape[-1]
    figure = new_figure(1.15 * columns + 1.4, (1.15 * height + 0.4) * len(layers) + 0.2, "constrained")
    grid = figure.add_gridspec(len(layers), columns)
    axes = figure.add_subplot(grid[0, 0])
    show(axes, image)
    set_title(axes, title)
    for row, layer in enumerate(layers):
        drawn = _row(figure, grid, row, range(1, 1 + len(layer.types)), layer.layer, 1.15 * height)
        for axes, kind, cells in zip(drawn, layer.types, layer.activation.unbind(-1), strict=True):
            lay(axes, cells.numpy(), image, layer.extent, **heat(layer.activation))
            frame(axes)
            set_title(axes, f"type {kind}", fontsize=8)
        _heat_bar(figure, drawn)
    return figure


def pose_figure(
    image: Tensor,
    poses: Mapping[str, Tensor],
    titles: Mapping[str, str] | None = None,
    extents: Mapping[str, Extent] | None = None,
) -> "Figure":
    """One image and, layer by layer, the numbers of the pose of one type of capsule at every position.

    Args:
        image: (C, H, W) in [0, 1].
        poses: (H', W', M, D) of matrix or (H', W', D) of vector capsules, by layer.
        titles: of the layers, by the same labels; else the labels.
        extents: the part of the image that each map covers; without one, all of it.

    Raises:
        ValueError: if poses have another number of axes.
    """
    blocks = {}
    for label, pose in poses.items():
        if pose.ndim not in (3, 4):
            raise ValueError(f"poses of {label} must be (H', W', M, D) or (H', W', D), got shape {tuple(pose.shape)}")
        blocks[label] = _pose_block(pose.detach().cpu().float())
    rows = max(block.shape[0] for block in blocks.values())
    widths = [1.6, *(0.62 * block.shape[1] + 0.9 for block in blocks.values())]
    figure = new_figure(sum(widths), max(0.7 * rows * image.shape[-2] / image.shape[-1], 1.6) + 0.5, "constrained")
    parts = figure.subfigures(1, len(widths), width_ratios=widths, squeeze=False)[0]
    axes = parts[0].add_subplot()
    show(axes, image)
    for part, (label, block) in zip(parts[1:], blocks.items(), strict=True):
        part.suptitle((titles or {}).get(label, label), fontsize=9, parse_math=False)
        _draw_block(part, block, image, (extents or {}).get(label))
    return figure


def _pose_block(pose: Tensor) -> Tensor:
    """Maps of a pose's numbers in rows and columns, (rows, columns, H', W'); those of vectors in rows of four."""
    if pose.ndim == 4:
        return pose.permute(2, 3, 0, 1)
    columns = min(4, pose.shape[-1])
    missing = -pose.shape[-1] % columns
    return F.pad(pose, (0, missing), value=torch.nan).permute(2, 0, 1).unflatten(0, (-1, columns))


def _draw_block(part: "SubFigure", block: Tensor, image: Tensor, extent: Extent | None) -> None:
    """The maps of one layer's poses on one colour scale."""
    rows, columns = block.shape[:2]
    largest = max(block.nan_to_num().abs().max().item(), 1e-6)
    scale = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    for place, cells in enumerate(block.flatten(0, 1), 1):
        axes = part.add_subplot(rows, columns, place)
        if cells.isnan().all():
            axes.set_axis_off()
            continue
        lay(axes, cells.numpy(), image, extent, **scale)
        frame(axes)
    bar = part.colorbar(part.axes[0].images[0], ax=part.axes, fraction=0.05, aspect=25, pad=0.02)
    bar.set_label("pose", fontsize=8)
    bar.ax.tick_params(labelsize=7)
