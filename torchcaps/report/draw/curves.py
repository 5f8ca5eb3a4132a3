"""How the training went, in curves."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcaps.report.draw.canvas import new_figure
from torchcaps.report.exhibits.curves import Curve, LearningCurves, Metrics, Panel
from torchcaps.report.exhibits.reliability import ReliabilityCurve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"training": "C0", "validation": "C1", "test": "C2"}


def learning_curves(metrics: Metrics) -> "Figure":
    """Loss and accuracy (or error) over the epochs, for training, validation and test images; below, the routing.

    Args:
        metrics: rows as :meth:`~torchcaps.report.exhibits.LearningCurves.of` takes them.

    Raises:
        ValueError: if no row holds anything to draw.
    """
    exhibit = LearningCurves.of(metrics)
    if exhibit is None:
        raise ValueError("metrics must hold values such as train_loss or val_accuracy, got none")
    return curves_figure(exhibit.panels, exhibit.health)


def curves_figure(panels: Sequence[Panel], health: Sequence[Panel]) -> "Figure":
    """Panels in two rows: how good the network is, and how healthy its routing."""
    columns = max(len(panels), len(health))
    rows = bool(panels) + bool(health)
    figure = new_figure(5 * columns, 3.4 * rows, "constrained" if rows > 1 else "compressed")
    for place, panel in enumerate(panels):
        _draw_performance(figure.add_subplot(rows, columns, place + 1), panel)
    layers = list(dict.fromkeys(layer for panel in health for layer in panel.curves))
    for place, panel in enumerate(health):
        _draw_health(figure.add_subplot(rows, columns, (rows - 1) * columns + place + 1), panel, layers)
    for axes in figure.axes:
        _number_epochs(axes)
    return figure


def reliability_figure(curves: Sequence[ReliabilityCurve]) -> "Figure":
    """How often a network is right against how sure it is, and the diagonal on which both are the same."""
    figure = new_figure(4.6, 4.2)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linestyle=":", label="as sure as right")
    for place, curve in enumerate(curves):
        axes.plot(curve.confidence, curve.accuracy, f"C{place}o-", markersize=4, label=curve.name)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="probability of the class that was said", ylabel="share that is right")
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _draw_performance(axes: "Axes", panel: Panel) -> None:
    for name, curve in panel.curves.items():
        _draw_curve(axes, curve, name, _COLOURS[name])
    if panel.quantity != "accuracy" and _spreads(panel):
        axes.set_yscale("log")
    axes.set(ylabel=panel.unit, title=panel.quantity)
    axes.legend(frameon=False, loc="best")


def _draw_health(axes: "Axes", panel: Panel, layers: Sequence[str]) -> None:
    for rank, (layer, curve) in enumerate(panel.curves.items()):
        width = 1.5 * (len(panel.curves) - rank)  # so that curves that lie on each other can all be seen
        _draw_curve(axes, curve, layer, f"C{(2 + layers.index(layer)) % 10}", width)
    axes.set(ylabel=panel.unit, title=panel.quantity, ylim=(-0.04, 1.04))
    axes.legend(frameon=False, loc="best")


def _draw_curve(axes: "Axes", curve: Curve, name: str, colour: str, width: float = 1.5) -> None:
    marker = "o" if len(curve.values) <= 40 else ""
    axes.plot(curve.epochs, curve.values, color=colour, label=name, marker=marker, markersize=3, linewidth=width)


def _number_epochs(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # of one epoch there is one tick
    axes.grid(alpha=0.3)


def _spreads(panel: Panel) -> bool:
    """Whether the values are positive and more than a factor of 20 apart."""
    values = [value for curve in panel.curves.values() for value in curve.values if math.isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)
