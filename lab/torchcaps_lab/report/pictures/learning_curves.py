"""How the training went."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from torchcaps_lab.evaluate.findings import Metrics
from torchcaps_lab.evaluate.hints import titled
from torchcaps_lab.report.canvas import new_figure
from torchcaps_lab.report.exhibit import Exhibit, Picture, register_exhibit
from torchcaps_lab.report.observe import Tested

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPLITS = {"train": "training", "val": "validation", "test": "test"}
_COLOURS = {"training": "C0", "validation": "C1", "test": "C2"}
# What the names of metrics begin with, the title of their panel, and its unit
_HEALTH = {
    "assignment_entropy_": ("entropy of the assignment", "0 hard, 1 even"),
    "dead_capsules_": ("dead capsules", "share of the types"),
}


_MEASURES = 2
"""Most measures of a task that are drawn, where these are not accuracy or error."""

_LEGEND = 5
"""Most curves whose names have room inside of a panel."""


class Curve(NamedTuple):
    """Values over the epochs.

    Example:
        >>> from torchcaps_lab.report.pictures.learning_curves import Curve
        >>> Curve([1.0, 2.0], [0.4, 0.2]).values
        [0.4, 0.2]
    """

    epochs: list[float]
    values: list[float]


class Panel(NamedTuple):
    """Curves of one quantity, by name: of the images they were measured on, or of the
    layer.

    Example:
        >>> from torchcaps_lab.report.pictures.learning_curves import Curve, Panel
        >>> Panel("loss", "", {"train": Curve([1.0, 2.0], [0.5, 0.3])}).quantity
        'loss'
    """

    quantity: str
    unit: str
    curves: dict[str, Curve]


@register_exhibit("learning_curves", place=30, drawings="learning_curves.png")
class LearningCurves(Exhibit):
    """Loss and accuracy (or error) over the epochs, and the health of the routing.

    Attributes:
        panels: the panels of loss and accuracy or error, or what the task measures, for
            training, validation and test images.
        health: of the entropy of the assignments and of dead capsules, for each layer.

    Example:
        >>> from torchcaps_lab.report.pictures.learning_curves import LearningCurves
        >>> metrics = [
        ...     {"epoch": 1.0, "train_loss": 0.5},
        ...     {"epoch": 2.0, "train_loss": 0.3},
        ... ]
        >>> [panel.quantity for panel in LearningCurves.of(metrics).panels]
        ['loss']
    """

    panels: tuple[Panel, ...]
    health: tuple[Panel, ...]

    @classmethod
    def of(cls, metrics: Metrics, what: str = "images") -> "LearningCurves | None":
        """Draw the curves of a row an epoch; None if no row holds anything to draw.

        Args:
            what: what the examples are, such as "images" or "texts".
            metrics: with ``epoch`` and some of ``train_loss``, ``val_loss``,
                ``train_accuracy``, ``val_accuracy``, ``val_error``, ...,
                ``assignment_entropy_<layer>``, ``dead_capsules_<layer>``. What a row
                does not hold is left out.
        """
        panels = _performance(metrics)
        health = _health(metrics)
        if not panels and not health:
            return None
        text = (
            f"These curves show the network after each pass over the training {what}. "
            "If the validation curve gets worse while the training curve still "
            "improves, the network overfits."
        )
        if any(panel.quantity == "entropy of the assignment" for panel in health):
            text += (
                f" The curves below show the health of the routing on a few {what}, "
                "layer by layer. The entropy of the assignments is 1 if all parents "
                "get the same share of each child, and 0 if each child goes to one "
                "parent. A dead type of capsule is not active anywhere in these "
                f"{what}, so it has no use."
            )
        return cls(title="Learning curves", text=text, panels=panels, health=health)

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[LearningCurves | None]":
        """Make the exhibit of what a classifier was tested on."""
        yield cls.of(tested.metrics, tested.images.what)

    def draw(self) -> Iterator[Picture]:
        """Panels in two rows: how good the network is, and how healthy its routing."""
        columns = max(len(self.panels), len(self.health))
        rows = bool(self.panels) + bool(self.health)
        figure = new_figure(
            5 * columns, 3.4 * rows, "constrained" if rows > 1 else "compressed"
        )
        for place, panel in enumerate(self.panels):
            axes = figure.add_subplot(rows, columns, place + 1)
            _draw_curves(axes, panel, _COLOURS, [1.5] * len(panel.curves))
            if panel.quantity != "accuracy" and _spreads(panel):
                axes.set_yscale("log")
        curves = (panel.curves for panel in self.health)
        layers = dict.fromkeys(chain.from_iterable(curves))
        colours = {layer: f"C{(2 + rank) % 10}" for rank, layer in enumerate(layers)}
        for place, panel in enumerate(self.health):
            axes = figure.add_subplot(rows, columns, (rows - 1) * columns + place + 1)
            widths = [
                1.5 * rank for rank in range(len(panel.curves), 0, -1)
            ]  # curves on each other can all be seen
            _draw_curves(axes, panel, colours, widths)
            axes.set_ylim(-0.04, 1.04)
        if len(layers) > _LEGEND:
            from matplotlib.lines import Line2D

            lines = [Line2D([], [], color=colours[layer]) for layer in layers]
            figure.legend(
                lines, layers, loc="outside lower center", ncols=4, frameon=False
            )
        yield Picture(
            "learning_curves.png", "Loss and accuracy over the epochs", figure
        )


def _panel(
    metrics: Metrics, quantity: str, unit: str, columns: Mapping[str, str]
) -> Panel | None:
    """The curves, by name, of these columns of the metrics; None if there are none."""
    curves = {}
    for name, column in columns.items():
        points = [
            (row.get("epoch", at), row[column])
            for at, row in enumerate(metrics)
            if row.get(column) is not None
        ]
        if points:
            curves[name] = Curve(*map(list, zip(*points, strict=True)))
    return Panel(quantity, unit, curves) if curves else None


def _performance(metrics: Metrics) -> tuple[Panel, ...]:
    """The loss, and accuracy or else error, or else what the task measures."""
    of_tasks = _measured(metrics)[:_MEASURES]
    for measured in (("accuracy",), ("error",), of_tasks):
        panels = [_split_panel(metrics, quantity) for quantity in measured]
        if any(panels):
            break
    return tuple(panel for panel in (_split_panel(metrics, "loss"), *panels) if panel)


def _split_panel(metrics: Metrics, quantity: str) -> Panel | None:
    """The curves of one quantity on training, validation and test images."""
    columns = {name: f"{split}_{quantity}" for split, name in _SPLITS.items()}
    return _panel(metrics, quantity, titled(quantity), columns)


def _measured(metrics: Metrics) -> tuple[str, ...]:
    """What was measured on validation images besides losses, such as ``iou``."""
    names = dict.fromkeys(chain.from_iterable(metrics))
    return tuple(
        name.removeprefix("val_")
        for name in names
        if name.startswith("val_") and not name.endswith("loss")
    )


def _health(metrics: Metrics) -> tuple[Panel, ...]:
    """What :class:`~torchcaps_lab.training.RoutingHealth` logged, layer by layer."""
    names = dict.fromkeys(chain.from_iterable(metrics))
    panels = []
    for start, titles in _HEALTH.items():
        of_layers = [name for name in names if name.startswith(start)]
        columns = {name.removeprefix(start): name for name in of_layers}
        panels.append(_panel(metrics, *titles, columns))
    return tuple(panel for panel in panels if panel)


def _draw_curves(
    axes: "Axes", panel: Panel, colours: Mapping[str, str], widths: Sequence[float]
) -> None:
    for (name, curve), width in zip(panel.curves.items(), widths, strict=True):
        marker = "o" if len(curve.values) <= 40 else ""
        line: dict[str, Any] = {
            "color": colours[name],
            "label": name,
            "linewidth": width,
        }
        axes.plot(curve.epochs, curve.values, marker=marker, markersize=3, **line)
    axes.set(ylabel=panel.unit, title=titled(panel.quantity))
    if len(panel.curves) <= _LEGEND:
        axes.legend(frameon=False, loc="best")
    _number_epochs(axes)


def _number_epochs(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(
        MaxNLocator(integer=True, min_n_ticks=1)
    )  # of one epoch there is one tick
    axes.grid(alpha=0.3)


def _spreads(panel: Panel) -> bool:
    """Whether the values are positive and more than a factor of 20 apart."""
    drawn = chain.from_iterable(curve.values for curve in panel.curves.values())
    values = list(filter(math.isfinite, drawn))
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)
