"""What a network gets right and wrong, in pictures."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from torchcaps.report.draw.canvas import line_count, new_figure, set_title, shorten, show, title_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUMBERED = 20  # classes up to which a confusion matrix has room for numbers


def confusion_matrix(counts: Tensor, classes: Sequence[str], totals: Tensor | None = None) -> "Figure":
    """How often each class was taken for each other.

    Colours are shares of a row, on a scale that shows small shares too.

    Args:
        counts: (E, E), rows true, columns predicted.
        classes: their names.
        totals: images of each class, (E,), where some were taken for classes that are not here; default: the sums of
            the rows.

    Raises:
        ValueError: if ``counts`` does not fit ``classes``.
    """
    from matplotlib.colors import PowerNorm

    E = len(classes)
    if counts.shape != (E, E):
        raise ValueError(f"counts must be (E, E) = {(E, E)}, got shape {tuple(counts.shape)}")
    counts = counts.cpu()
    totals = counts.sum(1) if totals is None else totals.cpu()
    share = counts.double() / totals[:, None].clamp(min=1)
    side = min(max(0.5 * E, 2), 12)
    label = 0.1 * min(max((len(name) for name in classes), default=0), 24)
    figure = new_figure(side + label + 1.8, side + label + 0.9)
    axes = figure.add_subplot()
    picture = axes.imshow(share.numpy(), cmap="Blues", norm=PowerNorm(0.5, 0, 1))
    _name_classes(axes, classes)
    _rule(axes, E)
    if E <= _NUMBERED:
        _number(axes, counts, share)
    bar = figure.colorbar(picture, ax=axes, label="share of the true class", shrink=0.9, fraction=0.05)
    bar.set_ticks([0, 0.01, 0.1, 0.25, 0.5, 1], labels=["0", "1 %", "10 %", "25 %", "50 %", "100 %"])
    return figure


def _name_classes(axes: "Axes", classes: Sequence[str]) -> None:
    """Names along both axes; for very many classes, only at regular distances."""
    step = math.ceil(len(classes) / 60)
    places = list(range(0, len(classes), step))
    names = [shorten(classes[place]) for place in places]
    size = 9 if len(classes) <= 30 else 7
    wide = max(map(len, names), default=0) > 3
    axes.set_xticks(places, names, rotation=90 if wide else 0, fontsize=size, parse_math=False)
    axes.set_yticks(places, names, fontsize=size, parse_math=False)
    axes.set_xlabel("said", fontsize=11)
    axes.set_ylabel("true", fontsize=11)


def _rule(axes: "Axes", count: int) -> None:
    """Thin lines between the cells of a matrix."""
    for place in range(1, count):
        for line in (axes.axhline, axes.axvline):
            line(place - 0.5, color="white", linewidth=min(1.0, 20 / count))


def _number(axes: "Axes", counts: Tensor, share: Tensor) -> None:
    """The count in each cell, legible on its colour."""
    for row in range(len(counts)):
        for column in range(len(counts)):
            colour = "white" if share[row, column] > 0.4 else "black" if counts[row, column] else "0.75"
            text = str(int(counts[row, column]))
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9 if len(text) < 5 else 7)


def worst_mistakes(images: Tensor, titles: Sequence[str]) -> "Figure":
    """Images with what was said about each.

    Args:
        images: (N, C, H, W) in [0, 1].
        titles: one an image, such as :func:`mistake_title` makes.

    Raises:
        ValueError: if numbers differ or there are no images.
    """
    count = len(images)
    if len(titles) != count or not count:
        raise ValueError(f"titles must be one for each image, of one at least, got {len(titles)} for {count}")
    cell = max(1.7, max(map(title_width, titles)) + 0.15)
    columns = min(count, max(1, int(10.5 / cell)))
    rows = math.ceil(count / columns)
    high = min(1.5, cell * images.shape[-2] / images.shape[-1])
    figure = new_figure(cell * columns + 0.2, rows * (high + 0.16 * line_count(titles)), "constrained")
    grid = figure.add_gridspec(rows, columns)
    for place, title in enumerate(titles):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        show(axes, images[place])
        set_title(axes, title)
    return figure


def mistake_title(true: str, said: str, said_activation: float, true_activation: float) -> str:
    """Such as "true 4 → said 9 (0.81 / 0.12)", broken into lines that fit above a small picture."""
    activations = f"({said_activation:.2f} / {true_activation:.2f})"
    if len(true) + len(said) <= 8:
        return f"true {true} → said {said}\n{activations}"
    return f"true {shorten(true)}\n→ said {shorten(said, 22)}\n{activations}"
