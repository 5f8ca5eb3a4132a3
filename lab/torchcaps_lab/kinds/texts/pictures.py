"""Texts, each word in the colour of the class that it spoke for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.evaluate.findings import Findings
from torchcaps_lab.kinds.texts.coloured import ROUTED, pieces_of, word_shares
from torchcaps_lab.kinds.texts.text_set import TextSet
from torchcaps_lab.kinds.texts.words import Words
from torchcaps_lab.report.canvas import colour_of, new_figure
from torchcaps_lab.report.exhibit import Exhibit, Table, register_exhibit
from torchcaps_lab.report.observe import Tested

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANING = (
    "The colour of a word is that of the class for which it spoke most. It is the "
    "class to which routing assigned the capsules that saw the word. Half the "
    "strength of the legend means an even share of what the class got from the text, "
    "and full strength means twice that or more. All colours are paler if the class "
    "is barely present."
)
"""What the colours say."""

_MOST = 24
"""Texts of an exhibit."""


_SHOWN = 60
"""Words of a text that are shown."""


class ColouredText(NamedTuple):
    """One text.

    Args:
        title: what was said about it.
        pieces: the text in pieces: one for each word, with the blanks behind it.
        labels: the class that each word spoke for most; none without capsules.
        strength: how much, (words,), from 0 to 1.

    Example:
        >>> from torchcaps_lab.kinds.texts.pictures import ColouredText
        >>> text = ColouredText(
        ...     "person, 0.91",
        ...     ("who ", "wrote ", "it"),
        ...     (1, 1, 0),
        ...     torch.tensor([0.9, 0.7, 0.1]),
        ... )
        >>> "".join(text.pieces)
        'who wrote it'
    """

    title: str
    pieces: tuple[str, ...]
    labels: tuple[int, ...]
    strength: Tensor


@register_exhibit("words", place=50)
class ColouredTexts(Exhibit):
    """Texts and, where the network has capsules, what each of their words spoke for.

    Attributes:
        texts: with what was said about them.
        classes: their names.

    Example:
        >>> from torchcaps_lab.kinds.texts.pictures import ColouredText, ColouredTexts
        >>> text = ColouredText(
        ...     "person, 0.91",
        ...     ("who ", "wrote ", "it"),
        ...     (1, 1, 0),
        ...     torch.tensor([0.9, 0.7, 0.1]),
        ... )
        >>> exhibit = ColouredTexts(
        ...     title="Words", text="", texts=(text,), classes=("place", "person")
        ... )
        >>> "wrote" in exhibit.html()
        True
    """

    examples = TextSet

    texts: tuple[ColouredText, ...]
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        model: ClassifierNetwork,
        words: Words,
        texts: Sequence[str],
        titles: Sequence[str],
        classes: Sequence[str],
    ) -> "ColouredTexts":
        """Colour any texts.

        Args:
            model: the network.
            words: its vocabulary.
            texts: at least one.
            titles: what to say of each.
            classes: the names of its classes.
        """
        readings = words.read(texts)
        shown = [
            _coloured(
                model, title, text, reading.numbers[:_SHOWN], reading.spans[:_SHOWN]
            )
            if reading.length
            else ColouredText(title, (), (), torch.zeros(0))
            for title, text, reading in zip(titles, texts, readings, strict=True)
        ]
        text = (
            "This network cannot show which word spoke for which class, so there "
            "are no colours."
        )
        if isinstance(model, ROUTED):
            text = MEANING
        return cls(
            title="What each word spoke for",
            text=text,
            texts=tuple(shown),
            classes=tuple(classes),
        )

    @classmethod
    def of_test(cls, tested: Tested) -> "Iterator[ColouredTexts]":
        """The worst mistakes, and the clearest text of each class."""
        texts = TextSet.require(tested.images)
        findings = tested.findings
        wrong = findings.mistakes(_MOST)
        count = int((findings.prediction != findings.labels).sum())
        if len(wrong):
            most = (
                f"The network is wrong about {count} of {len(texts)} texts. The worst "
                "are first."
            )
            yield replace(
                cls._chosen(tested, texts, wrong, most), title="The worst mistakes"
            )
        yield cls._chosen(
            tested, texts, findings.examples(_MOST), "The clearest text of each class."
        )

    @classmethod
    def _chosen(
        cls,
        tested: Tested,
        texts: TextSet,
        chosen: Tensor,
        why: str,
    ) -> "ColouredTexts":
        places = chosen.tolist()
        titles = [_title(tested.findings, texts, index) for index in places]
        coloured = cls.of(
            tested.model,
            texts.words,
            [texts.texts[index] for index in places],
            titles,
            texts.classes,
        )
        return replace(coloured, text=f"{why} {coloured.text}")

    def table(self) -> Table | None:
        """The texts as rows, where there are no colours."""
        if any(text.labels for text in self.texts):
            return None
        return Table([[text.title, "".join(text.pieces)] for text in self.texts])

    def html(self) -> str | None:
        """The texts with coloured words, below the colours of the classes."""
        if self.table() is not None:
            return None
        used = sorted(set(chain.from_iterable(text.labels for text in self.texts)))
        legend = " ".join(_span(self.classes[label], label, 1.0) for label in used)
        return "\n".join([f"<p>{legend}</p>", *map(self._paragraph, self.texts)])

    def figure(self) -> "Figure":
        """Draw the texts with coloured words, one line each, below a legend of the
        classes.
        """
        letters = max(sum(map(len, text.pieces)) for text in self.texts)
        figure = new_figure(0.085 * letters + 0.3, 0.46 * len(self.texts) + 0.5)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.01, 0, 0.98, 1))
        axes.set_axis_off()
        axes.set(xlim=(-1, letters + 1), ylim=(2 * len(self.texts) + 0.8, -1.2))
        at = 0
        for label, name in enumerate(self.classes):
            at = _word(axes, at, -0.4, f"{name} ", label, 0.8) + 1
        for row, text in enumerate(self.texts):
            axes.text(
                0,
                2 * row + 0.9,
                text.title,
                fontsize=6.5,
                color="0.4",
                va="center",
                parse_math=False,
            )
            at = 0
            words = zip(text.pieces, text.labels, text.strength.tolist(), strict=True)
            for piece, label, strength in words:
                at = _word(axes, at, 2 * row + 1.8, piece, label, strength)
        return figure

    def _paragraph(self, text: ColouredText) -> str:
        words = zip(text.pieces, text.labels, text.strength.tolist(), strict=True)
        body = "".join(
            _span(piece, label, strength, self.classes[label])
            for piece, label, strength in words
        )
        return f'<p dir="auto"><small>{escape(text.title)}</small><br>{body}</p>'


def _span(text: str, label: int, strength: float, name: str = "") -> str:
    red, green, blue = (
        int(colour_of(label)[place : place + 2], 16) for place in (1, 3, 5)
    )
    title = f' title="{escape(name)} {strength:.2f}"' if name else ""
    colour = f"rgba({red},{green},{blue},{0.5 * strength:.2f})"
    blank = text[len(text.rstrip()) :]
    return (
        f'<span style="background:{colour};padding:0 '
        f'.15em"{title}>{escape(text.rstrip())}</span>{blank}'
    )


def _coloured(
    model: ClassifierNetwork,
    title: str,
    text: str,
    numbers: Tensor,
    spans: Sequence[tuple[int, int]],
) -> ColouredText:
    pieces = pieces_of(text, spans)
    shares = word_shares(model, numbers[None])
    if shares is None:
        return ColouredText(title, tuple(pieces), (), torch.zeros(len(pieces)))
    strength, labels = shares[0].max(-1)
    return ColouredText(title, tuple(pieces), tuple(labels.tolist()), strength)


def _title(findings: Findings, texts: TextSet, index: int) -> str:
    """What was said about a text, and what it is if that is another class."""
    true = int(findings.labels[index])
    predicted = int(findings.prediction[index])
    activation = findings.activation[index]
    name = texts.files[index] if texts.files else str(index)
    if true == predicted:
        wrong = ""
    else:
        wrong = f", but it is {texts.classes[true]} ({float(activation[true]):.2f})"
    return f"{name}: answer {texts.classes[predicted]} ({float(activation[predicted]):.2f}){wrong}"


def _word(
    axes: "Axes",
    at: int,
    row: float,
    piece: str,
    label: int,
    strength: float,
) -> int:
    """Writes a word, one letter in each column, and returns the column after it."""
    word = piece.rstrip()
    axes.barh(
        row,
        len(word),
        0.9,
        at,
        align="center",
        color=colour_of(label),
        alpha=0.75 * strength,
    )
    for place, letter in enumerate(word, at):
        axes.text(
            place + 0.5,
            row,
            letter,
            fontsize=8,
            family="monospace",
            ha="center",
            va="center",
            parse_math=False,
        )
    return at + len(piece)
