"""Which parts of an image a class took, as maps over the image."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.report.draw.canvas import Fill, check_maps, lay, show, stacked
from torchcaps.report.exhibits.base import pixels
from torchcaps.report.places import Extent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure


def assignment_figure(
    images: Tensor,
    maps: Tensor,
    titles: Sequence[str],
    extent: Extent | None = None,
    even: float | None = None,
) -> "Figure":
    """Images, and below each its assignment map laid over it.

    Args:
        images: (N, C, H, W) in [0, 1].
        maps: (N, H', W'), of :func:`~torchcaps.report.assignment_maps`.
        titles: one an image.
        extent: the part of the image that a map covers, of :func:`~torchcaps.report.map_extent`; None for all of it.
        even: the share that is neither much nor little, :attr:`~torchcaps.report.Observation.even`: red is more, blue
            is less. None for one colour scale from the smallest to the largest share.

    Raises:
        ValueError: if numbers do not fit or there are no images.
    """
    return flow_figure(images, {"share": maps}, titles, {} if extent is None else {"share": extent}, even)


def flow_figure(
    images: Tensor,
    maps: Mapping[str, Tensor],
    titles: Sequence[str],
    extents: Mapping[str, Extent] | None = None,
    even: float | None = None,
) -> "Figure":
    """Images, and below each a row of :func:`assignment_figure` for every layer of children, on one colour scale.

    Args:
        images: (N, C, H, W) in [0, 1].
        maps: (N, H', W') each, of :func:`~torchcaps.report.share_maps`, by the label of the row; NaN stays uncoloured.
        titles: one an image.
        extents: of :func:`~torchcaps.report.layer_extents`, by the same labels; without one, all of the image.
        even: as in :func:`assignment_figure`.

    Raises:
        ValueError: if numbers do not fit or there are no images.
    """
    from matplotlib.cm import ScalarMappable

    check_maps(images, maps)
    values = torch.cat([part.detach().cpu().float().flatten() for part in maps.values()])
    values = values[values.isfinite()]
    values = values if len(values) else torch.zeros(1)
    low, high = _range(values, even)
    scale = ScalarMappable(_scale(low, high, even), "viridis" if even is None else "RdBu_r")
    rows: dict[str, Fill] = {"image": lambda axes, place: show(axes, images[place])}
    rows |= {label: _overlay(images, part, scale, (extents or {}).get(label)) for label, part in maps.items()}
    figure = stacked(images, titles, rows)
    bar = figure.colorbar(scale, ax=figure.axes, label="share of the children", fraction=0.03, aspect=30, pad=0.01)
    if even is not None:
        ticks = [low, (low + even) / 2, even, (even + high) / 2, high]
        bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    return figure


def _overlay(images: Tensor, maps: Tensor, scale: "ScalarMappable", extent: Extent | None) -> Fill:
    """Lays the map of an image over it."""

    def draw(axes: "Axes", place: int) -> None:
        show(axes, 0.25 + pixels(images[place]).mean(2)[None] / 2)  # grey and paler, so that colours stand out
        colours = scale.to_rgba(maps[place].detach().cpu().float().numpy(), alpha=0.8)
        lay(axes, colours, images[place], extent)

    return draw


def _range(maps: Tensor, even: float | None) -> tuple[float, float]:
    """The smallest and the largest share; a fifth to either side of ``even`` at least, so that noise stays pale."""
    low, high = maps.min().item(), maps.max().item()
    return (low, high) if even is None else (min(low, 0.8 * even), max(high, 1.2 * even))


def _scale(low: float, high: float, even: float | None) -> "Normalize":
    """That range, with ``even`` in the middle of the colours."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    return Normalize(low, high) if even is None else TwoSlopeNorm(even, low, high)
