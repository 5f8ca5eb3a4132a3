"""Which classes are taken for which."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps_lab.evaluate.findings import ClassFigures, Findings, confused_pairs
from torchcaps_lab.report.canvas import new_figure, shorten
from torchcaps_lab.report.exhibit import Exhibit, Picture, Table, register_exhibit
from torchcaps_lab.report.observe import Tested
from torchcaps_lab.report.pictures.present_classes import class_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PAIRS = 20
_NUMBERED = 20  # classes up to which the matrix has room for numbers

CONFUSED = 40
"""Classes that the matrix is drawn of, at most."""


@register_exhibit("confusion", place=40, drawings="confusion_matrix.png")
class Confusion(Exhibit):
    """How often each class was taken for each other.

    Attributes:
        counts: (E, E), rows true, columns predicted.
        classes: their names.
        figures: how well each is recognised.

    Example:
        >>> from torchcaps_lab.evaluate import Findings
        >>> from torchcaps_lab.report.pictures.confusion import Confusion
        >>> activation = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.1, 0.7]])
        >>> findings = Findings(torch.tensor([0, 0, 1]), activation, entropy=None)
        >>> Confusion.of(findings, ["cat", "dog"]).pairs(1)  # true, said, how often
        [(0, 1, 1)]
    """

    counts: Tensor
    classes: tuple[str, ...]
    figures: tuple[ClassFigures, ...] = ()
    what: str = "images"

    @classmethod
    def of(
        cls, findings: Findings, classes: Sequence[str], what: str = "images"
    ) -> "Confusion":
        """Make the exhibit of examples of one class each.

        Args:
            findings: about them.
            classes: the names of the classes.
            what: what they are, such as "images" or "texts".
        """
        exhibit = cls(
            title="Which classes are confused",
            text=(
                f"Each row holds the {what} of one class, and each column the {what} "
                f"with one answer. {what.capitalize()} on the diagonal are right. A "
                "dark cell off the diagonal is a pair of classes that the network "
                "confuses. Colours are stretched so that even a few mistakes show."
            ),
            counts=findings.confusion.cpu(),
            classes=tuple(classes),
            figures=findings.per_class,
            what=what,
        )
        if len(classes) <= CONFUSED:
            return exhibit
        named = [
            f"{classes[true]} for {classes[predicted]} ({count})"
            for true, predicted, count in exhibit.pairs(_PAIRS)
        ]
        most = f" Most often confused: {', '.join(named)}." if named else ""
        note = (
            f" The picture has the {CONFUSED} most confused of the {len(classes)} "
            f"classes.{most}"
        )
        return replace(exhibit, text=exhibit.text + note)

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[Confusion]":
        """Make the exhibit of what a classifier was tested on."""
        yield cls.of(tested.findings, tested.images.classes, tested.images.what)

    def shown(self) -> Tensor:
        """The classes to draw, sorted: all, or of very many those that are most often
        confused with others.
        """
        if len(self.classes) <= CONFUSED:
            return torch.arange(len(self.classes))
        wrong = self.counts - self.counts.diag().diag()
        return (
            (wrong.sum(0) + wrong.sum(1))
            .argsort(descending=True, stable=True)[:CONFUSED]
            .sort()
            .values
        )

    def pairs(self, count: int) -> list[tuple[int, int, int]]:
        """True class, what it was taken for, and how often, of at most ``count`` pairs,
        the most frequent first.
        """
        return confused_pairs(self.counts, count)

    def table(self) -> Table | None:
        """How well each class is recognised."""
        named = {
            name: figures._asdict()
            for name, figures in zip(self.classes, self.figures, strict=False)
        }
        return class_table(named, self.what) if named else None

    def draw(self) -> Iterator[Picture]:
        """The matrix; colours are shares of a row, on a scale that shows small shares
        too.
        """
        from matplotlib.colors import PowerNorm

        shown = self.shown()
        counts = self.counts[shown][:, shown]
        classes = [self.classes[label] for label in shown.tolist()]
        share = counts.double() / self.counts.sum(1)[shown, None].clamp(min=1)
        side = min(max(0.5 * len(classes), 2), 12)
        label = 0.1 * min(max((len(name) for name in classes), default=0), 24)
        figure = new_figure(side + label + 1.8, side + label + 0.9)
        axes = figure.add_subplot()
        picture = axes.imshow(share.numpy(), cmap="Blues", norm=PowerNorm(0.5, 0, 1))
        _name_classes(axes, classes)
        _rule(axes, len(classes))
        if len(classes) <= _NUMBERED:
            _number(axes, counts, share)
        bar = figure.colorbar(
            picture, ax=axes, label="share of the true class", shrink=0.9, fraction=0.05
        )
        bar.set_ticks(
            [0, 0.01, 0.1, 0.25, 0.5, 1],
            labels=["0", "1 %", "10 %", "25 %", "50 %", "100 %"],
        )
        yield Picture("confusion_matrix.png", "Confusion matrix", figure)


def _name_classes(axes: "Axes", classes: Sequence[str]) -> None:
    """Names along both axes; for very many classes, only at regular distances."""
    step = math.ceil(len(classes) / 60)
    places = list(range(0, len(classes), step))
    names = [shorten(classes[place]) for place in places]
    size = 9 if len(classes) <= 30 else 7
    wide = max(map(len, names), default=0) > 3
    axes.set_xticks(
        places, names, rotation=90 if wide else 0, fontsize=size, parse_math=False
    )
    axes.set_yticks(places, names, fontsize=size, parse_math=False)
    axes.set_xlabel("predicted", fontsize=11)
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
            if share[row, column] > 0.4:
                colour = "white"
            else:
                colour = "black" if counts[row, column] else "0.75"
            text = str(int(counts[row, column]))
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                color=colour,
                fontsize=9 if len(text) < 5 else 7,
            )
