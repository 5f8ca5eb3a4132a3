"""Pictures that several recipes share."""

from collections.abc import Mapping, Sequence

from torchcaps.explain import new_figure
from torchcaps.recipes.base import Line, Picture


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
        figures: ours, by (row, measure), as in :class:`~torchcaps.recipes.base.Outcome`.
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
