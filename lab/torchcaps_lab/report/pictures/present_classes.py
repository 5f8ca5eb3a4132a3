"""How well each class is found in images of several classes."""

from collections.abc import Mapping, Sequence

from torchcaps_lab.evaluate.verdict import Verdict
from torchcaps_lab.report.exhibit import Exhibit, Table, register_exhibit
from torchcaps_lab.report.pictures.headline import sentence

Figures = Mapping[str, float | int | None]
"""``images``, ``precision``, ``recall`` and ``f1`` of a class; None where there are no
images to go by.
"""


def class_table(figures: Mapping[str, Figures], examples: str) -> Table:
    """How well each class is recognised, by its name.

    Args:
        figures: the figures of each class.
        examples: what the examples are, such as "images" or "texts".
    """
    rows = []
    for name, row in figures.items():
        shares = [row["precision"], row["recall"], row["f1"]]
        percentages = ["-" if share is None else f"{share:.1%}" for share in shares]
        rows.append([name, f"{row['images']:,}", *percentages])
    return Table(rows, ["class", examples, "precision", "recall", "F1"])


@register_exhibit("present_classes")
class PresentClasses(Exhibit):
    """How well a network finds all classes of images, and each.

    Attributes:
        figures: the figures of each class, by name.
        what: what the examples are, such as "images" or "texts".

    Example:
        >>> from torchcaps_lab.report.pictures.present_classes import PresentClasses
        >>> cat = {"images": 12, "precision": None, "recall": 0.0, "f1": 0.0}
        >>> PresentClasses.of(
        ...     "Pets", ["0.00% of 12 images right in all their classes"], {"cat": cat}
        ... ).table().rows
        [['cat', '12', '-', '0.0%', '0.0%']]
    """

    figures: Mapping[str, Figures]
    what: str = "images"

    @classmethod
    def of(
        cls,
        title: str,
        lines: Sequence[str],
        figures: Mapping[str, Figures],
        verdict: Verdict | None = None,
        what: str = "images",
    ) -> "PresentClasses":
        """Make the exhibit of what was measured.

        Args:
            title: the title of the page.
            lines: what was measured, the most important first.
            figures: the figures of each class, by name.
            verdict: what routing and decoder do; None where that is not known.
            what: what the examples are, such as "images" or "texts".
        """
        recalls = {
            name: row["recall"]
            for name, row in figures.items()
            if row["recall"] is not None
        }
        worst = min(recalls, key=lambda name: recalls[name] or 0.0, default=None)
        sentences = list(map(sentence, lines))
        if worst is not None and recalls[worst] != 1:
            sentences.append(
                f"The worst class is {worst!r}: found in {recalls[worst]:.1%} of its "
                f"{figures[worst]['images']}."
            )
        if verdict is not None:
            sentences += [
                "" if verdict.even else verdict.of_routing,
                verdict.of_decoder,
            ]
        text = " ".join(filter(None, sentences))
        return cls(title=title, text=text, figures=figures, what=what)

    def table(self) -> Table:
        """A row for each class."""
        table = class_table(self.figures, self.what)
        if not any("best_threshold" in row for row in self.figures.values()):
            return table
        rows = [
            [
                *cells,
                _text(row["best_f1"], "{:.1%}"),
                _text(row["best_threshold"], "{:.3f}"),
            ]
            for cells, row in zip(table.rows, self.figures.values(), strict=True)
        ]
        return Table(rows, [*(table.header or ()), "best F1", "at threshold"])


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
