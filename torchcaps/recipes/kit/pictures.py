"""The picture that most recipes have."""

from collections.abc import Mapping, Sequence

from torchcaps.explain.draw.charts import bars_across
from torchcaps.recipes.kit.base import Key, Line, Picture


def error_bars(
    lines: Sequence[Line], figures: Mapping[Key, float], title: str, caption: str = "", measure: str = "test error"
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
    there = [line for line in lines if (line.row, measure) in figures or line.published is not None]
    shown = [line for line in there if line.measure == measure]
    units = {line.unit for line in shown}
    if len(units) != 1:
        raise ValueError(f"the lines of {measure!r} must have figures, and one unit, got units {sorted(units)}")
    ours = [figures.get((line.row, measure)) for line in shown]
    figure = bars_across([line.row for line in shown], ours, [line.published for line in shown])
    (unit,), (axes,) = units, figure.axes
    axes.set_xlabel(f"{measure}, {unit}" if unit else measure)
    axes.set_title(title, fontsize=11)
    return Picture(figure, caption or f"{title}: {measure} of each row, ours and the published figure.")
