"""What a decoder draws: reconstructions, and poses that move."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.report.draw.canvas import new_figure, set_title, show, stacked
from torchcaps.report.exhibits.base import pixels
from torchcaps.report.poses import pose_changes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def reconstructions(images: Tensor, reconstructions: Tensor, titles: Sequence[str]) -> "Figure":
    """Images, and below each what a capsule made of it.

    Args:
        images: (N, C, H, W) in [0, 1]; of 2 or more than 3 channels the first is shown.
        reconstructions: (N, C, H, W).
        titles: one an image.

    Raises:
        ValueError: if shapes or numbers differ, or there are no images.
    """
    if images.shape != reconstructions.shape:
        raise ValueError(
            f"reconstructions must have the shape of images, {tuple(images.shape)}, got {tuple(reconstructions.shape)}"
        )
    rows = {
        "image": lambda axes, place: show(axes, images[place]),
        "reconstruction": lambda axes, place: show(axes, reconstructions[place]),
    }
    return stacked(images, titles, rows)


def perturbation_grid(grids: Tensor, values: Tensor, title: str = "") -> "Figure":
    """The image of one capsule as its pose moves: a row for each pose dimension, a column for each value.

    The number behind a row is how far its last image is from its first: the mean absolute difference of their pixels.

    Args:
        grids: (D, V, C, H, W), one image of what :func:`~torchcaps.report.perturb` returns.
        values: (V,), what was added.
        title: above it.

    Raises:
        ValueError: if shapes do not fit.
    """
    if grids.ndim != 5 or values.shape != grids.shape[1:2]:
        raise ValueError(
            f"grids must be (D, V, C, H, W) with values (V,), got shapes {tuple(grids.shape)} and {tuple(values.shape)}"
        )
    D, V = grids.shape[:2]
    mosaic, height, width = _mosaic(grids)
    figure = new_figure(0.44 * V + 1.3, 0.44 * D * height / width + (1.0 if title else 0.7))
    axes = figure.add_subplot()
    axes.imshow(mosaic.numpy(), extent=(0, V, D, 0), aspect=height / width, interpolation="nearest")
    _label(axes, values, pose_changes(grids).tolist())
    if title:
        set_title(axes, title, fontsize=11)
    return figure


def _label(axes: "Axes", values: Tensor, changes: Sequence[float]) -> None:
    """Names the columns by the values, and the rows by the dimension in front and the change behind."""
    V, D = len(values), len(changes)
    signed = [f"{value:+.3g}" if value else "0" for value in values.tolist()]
    axes.set_xticks([place + 0.5 for place in range(V)], signed)
    axes.set_yticks([place + 0.5 for place in range(D)], [str(place) for place in range(D)])
    axes.tick_params(length=0, labelsize=8)
    for place, text in enumerate(["change", *(f"{value:.3f}" for value in changes)]):
        axes.text(V + 0.15, place - 0.5 if place else -0.15, text, fontsize=8, va="center", color="0.3")
    axes.set_xlabel("added to the pose", fontsize=9)
    axes.set_ylabel("pose dimension", fontsize=9)
    for side in axes.spines.values():
        side.set_visible(False)


def _mosaic(tiles: Tensor, side: int = 44) -> tuple[Tensor, float, float]:
    """Images (R, V, C, H, W) as one opaque picture (h, w, 4) on grey, and the height and width of a cell in it.

    Small images are enlarged, pixel by pixel, to about ``side`` pixels.
    """
    R, V, C, H, W = tiles.shape
    enlarge = max(1, round(side / max(H, W)))
    flat = F.interpolate(tiles.detach().cpu().float().reshape(R * V, C, H, W), scale_factor=float(enlarge))
    pictures = torch.stack([pixels(image) for image in flat]).permute(0, 3, 1, 2)
    gap = max(2, round(0.05 * enlarge * max(H, W)))
    pictures = F.pad(pictures, (gap, gap, gap, gap), value=0.6).unflatten(0, (R, V))
    mosaic = pictures.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)
    mosaic = F.pad(mosaic, (0, 1), value=1.0)  # without the alpha, matplotlib goes on with float64 for all of it
    return mosaic, mosaic.shape[0] / R, mosaic.shape[1] / V


def perturbation_atlas(grids: Tensor, values: Tensor, titles: Sequence[str]) -> list["Figure"]:
    """The :func:`perturbation_grid` of several images: a figure for each, because one for all is too tall to read.

    Args:
        grids: (N, D, V, C, H, W), as :func:`~torchcaps.report.perturb` returns it.
        values: (V,).
        titles: one an image.

    Raises:
        ValueError: if shapes or numbers do not fit.
    """
    if len(titles) != len(grids):
        raise ValueError(f"titles must be one for each of {len(grids)} grids, got {len(titles)}")
    return [perturbation_grid(grid, values, title) for grid, title in zip(grids, titles, strict=True)]


def strip(images: Tensor, titles: Sequence[str]) -> "Figure":
    """Images beside each other, wrapped after ten.

    Args:
        images: (N, C, H, W) in [0, 1].
        titles: one an image.

    Raises:
        ValueError: if titles are not as many, or there are no images.
    """
    return stacked(images, titles, {"": lambda axes, place: show(axes, images[place])})
