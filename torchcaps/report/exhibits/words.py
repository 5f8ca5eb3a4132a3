"""Texts, each word in the colour of the class that it spoke for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.data.text_set import TextSet
from torchcaps.data.words import UNKNOWN, Words
from torchcaps.models import TextCapsNet, TextClassifier, TextEncoder, TextPooled
from torchcaps.report.exhibits.base import Exhibit, Table, register_exhibit
from torchcaps.report.findings import Findings, evaluating, kept
from torchcaps.report.flow import class_shares
from torchcaps.report.layers import observe_layers

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#e377c2", "#8c564b", "#bcbd22", "#7f7f7f")
"""Of the classes in their order, and from the first again for more of them."""

ROUTED = (TextCapsNet, TextEncoder, TextPooled)
"""The networks that show which class each word spoke for."""

_MOST = 24
"""Texts of an exhibit."""

_SHOWN = 60
"""Words of a text that are shown."""


class _Branch(nn.Module):
    """One of the networks side by side in a :class:`~torchcaps.models.TextCapsNet`, as a network of its own."""

    def __init__(self, model: TextCapsNet, place: int) -> None:
        super().__init__()
        self.model, self.place = model, place

    def forward(self, words: Tensor) -> Capsules:
        return self.model.branches[self.place](*self.model.vectors(words))


def word_shares(model: nn.Module, words: Tensor) -> Tensor | None:
    r"""How much each word spoke for each class, (B, L, E), at most the activation of the class.

    With :math:`s_{ij}` the share of primary capsule i that routing handed on to class j
    (:func:`~torchcaps.report.class_shares`) and :math:`a_i` its activation, a word has the sum of
    :math:`a_i s_{ij}` over the capsules that see it, each divided by how many words it sees; a capsule of features from
    several places counts at each of them with the share of its squared length that comes from there. The word of a
    text that spoke most for a class gets the activation of that class, and the others get as much less as they spoke
    less for it.

    Args:
        model: a network that takes words, left in the mode that it came in.
        words: (B, L).

    Returns:
        None for a network of which that is not known, such as one without capsules.
    """
    found = _shares(model, words)
    return None if found is None else found[0]


def _shares(model: nn.Module, words: Tensor) -> tuple[Tensor, Tensor] | None:
    """What :func:`word_shares` gives, and the activations of the classes, (B, E)."""
    if not isinstance(model, ROUTED):
        return None
    with evaluating(model) as device:
        words = words.to(device)
        total = torch.stack([_of_words(mass, words != 0, *reach) for mass, reach in _given(model, words)]).sum(0)
        activation = model(words).activation
    shares = total / total.amax(1, keepdim=True).clamp_min(1e-30) * activation[:, None]
    return kept(shares), kept(activation)


def _given(model: TextCapsNet | TextEncoder | TextPooled, words: Tensor) -> Iterator[tuple[Tensor, tuple[int, int]]]:
    """What the lowest capsules of each place gave to each class, (B, places, E), and what they see, side by side."""
    if isinstance(model, TextCapsNet):
        for place, reach in enumerate(model.reaches):
            yield _lowest(_Branch(model, place), words).sum(-2), reach
    elif isinstance(model, TextEncoder):
        yield _lowest(model, words).sum(-2), model.reach
    else:  # of each capsule, as much as of its features come from there
        given = _lowest(model, words).split(model.types, 1)
        for width, capsules, places in zip(model.widths, given, model.places_of(words), strict=True):
            yield places.to(capsules).mT @ capsules, (width, 1)


def _lowest(model: nn.Module, words: Tensor) -> Tensor:
    """What each of the lowest routed capsules gave to each class, (B, *sites, E)."""
    layers = observe_layers(model, words)
    name, shares = list(class_shares(layers).items())[-1]
    children = layers[name].children
    assert children is not None
    return shares * children.activation[..., None]


def _of_words(mass: Tensor, there: Tensor, width: int, stride: int) -> Tensor:
    """What places (B, places, E) gave, shared out over the words that each of them sees, (B, L, E)."""
    L = there.shape[1]
    places = torch.arange(mass.shape[1], device=mass.device)[:, None] * stride
    word = torch.arange(L, device=mass.device)
    sees = ((word >= places) & (word < places + width)).to(mass)  # [places, L]
    sees = sees * there[:, None].to(mass)
    sees = sees / sees.sum(-1, keepdim=True).clamp_min(1)
    return sees.transpose(1, 2) @ mass


class ColouredText(NamedTuple):
    """One text.

    Args:
        title: what was said about it.
        pieces: the text in pieces: one for each word, with the blanks behind it.
        labels: the class that each word spoke for most; none without capsules.
        strength: how much, (words,), from 0 to 1.

    Example:
        >>> from torchcaps.report.exhibits import ColouredText
        >>> text = ColouredText("person, 0.91", ("who ", "wrote ", "it"), (1, 1, 0), torch.tensor([0.9, 0.7, 0.1]))
        >>> "".join(text.pieces)
        'who wrote it'
    """

    title: str
    pieces: tuple[str, ...]
    labels: tuple[int, ...]
    strength: Tensor


@register_exhibit("words")
@dataclass(frozen=True, eq=False, kw_only=True)
class ColouredTexts(Exhibit):
    """Texts and, where the network has capsules, what each of their words spoke for.

    Attributes:
        texts: with what was said about them.
        classes: their names.

    Example:
        >>> from torchcaps.report.exhibits import ColouredText, ColouredTexts
        >>> text = ColouredText("person, 0.91", ("who ", "wrote ", "it"), (1, 1, 0), torch.tensor([0.9, 0.7, 0.1]))
        >>> exhibit = ColouredTexts(title="Words", text="", texts=(text,), classes=("place", "person"))
        >>> "wrote" in exhibit.html()
        True
    """

    texts: tuple[ColouredText, ...]
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls, model: TextClassifier, words: Words, texts: Sequence[str], titles: Sequence[str], classes: Sequence[str]
    ) -> "ColouredTexts":
        """Of any texts.

        Args:
            model: the network.
            words: its vocabulary.
            texts: at least one.
            titles: what to say of each.
            classes: the names of its classes.
        """
        readings = words.read(texts)
        shown = [
            _coloured(model, title, text, reading.numbers[:_SHOWN], reading.spans[:_SHOWN])
            if reading.length
            else ColouredText(title, (), (), torch.zeros(0))
            for title, text, reading in zip(titles, texts, readings, strict=True)
        ]
        text = (
            "The colour of a word is that of the class for which it spoke most: to which routing gave the capsules "
            "that saw it. It is strong where no word of the text spoke more for the class, and the class is there."
            if isinstance(model, ROUTED)
            else "Of this network it is not known which word spoke for which class, and so there are no colours."
        )
        return cls(title="What each word spoke for", text=text, texts=tuple(shown), classes=tuple(classes))

    def table(self) -> Table | None:
        """The texts as rows, where there are no colours."""
        if any(one.labels for one in self.texts):
            return None
        return Table([[one.title, "".join(one.pieces)] for one in self.texts])

    def html(self) -> str | None:
        """The texts with coloured words, below the colours of the classes."""
        if self.table() is not None:
            return None
        used = sorted({label for one in self.texts for label in one.labels})
        legend = " ".join(_span(self.classes[label], label, 0.8) for label in used)
        return "\n".join([f"<p>{legend}</p>", *(self._paragraph(one) for one in self.texts)])

    def _paragraph(self, text: ColouredText) -> str:
        words = zip(text.pieces, text.labels, text.strength.tolist(), strict=True)
        body = "".join(_span(piece, label, strength, self.classes[label]) for piece, label, strength in words)
        return f'<p dir="auto"><small>{escape(text.title)}</small><br>{body}</p>'


def _span(text: str, label: int, strength: float, name: str = "") -> str:
    red, green, blue = (int(COLOURS[label % len(COLOURS)][place : place + 2], 16) for place in (1, 3, 5))
    title = f' title="{escape(name)} {strength:.2f}"' if name else ""
    colour = f"rgba({red},{green},{blue},{0.75 * strength:.2f})"
    blank = text[len(text.rstrip()) :]
    return f'<span style="background:{colour};padding:0 .15em"{title}>{escape(text.rstrip())}</span>{blank}'


def _coloured(
    model: TextClassifier, title: str, text: str, numbers: Tensor, spans: Sequence[tuple[int, int]]
) -> ColouredText:
    pieces = _pieces(text, spans)
    shares = word_shares(model, numbers[None])
    if shares is None:
        return ColouredText(title, tuple(pieces), (), torch.zeros(len(pieces)))
    strength, labels = shares[0].max(-1)
    return ColouredText(title, tuple(pieces), tuple(labels.tolist()), strength)


def _pieces(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    """The text cut where its words start; where not all of them are here, dots at the end."""
    starts = [start for start, _ in spans]
    ends = [*starts[1:], spans[-1][1]]
    pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    if len(text[ends[-1] :].strip()):
        pieces[-1] += " …"
    return pieces


@register_exhibit("class_words")
@dataclass(frozen=True, eq=False, kw_only=True)
class ClassWords(Exhibit):
    """One text, how active each class is, and how much each word spoke for each class: for a page in the browser.

    Attributes:
        pieces: the text in pieces: one for each word that was read, with the blanks behind it.
        known: of each word, whether it is in the vocabulary.
        shares: of each word in each class, (words, E): :func:`word_shares`.
        activation: of the classes, (E,).
        said: the most active class.
        colours: of the classes.

    Example:
        >>> from torchcaps.data import Words
        >>> from torchcaps.report.exhibits import ClassWords
        >>> network = tc.create_model("text_encoder", vocabulary=3, classes=2, word_dim=8, types=2)
        >>> shown = ClassWords.of(network, Words(("who", "wrote", "it")), "Who wrote that")
        >>> shown.pieces, shown.known, shown.shares.shape
        (('Who ', 'wrote ', 'that'), (True, True, False), torch.Size([3, 2]))
    """

    pieces: tuple[str, ...]
    known: tuple[bool, ...]
    shares: Tensor
    activation: Tensor
    said: int
    colours: tuple[str, ...]

    @classmethod
    def of(cls, model: TextClassifier, words: Words, text: str) -> "ClassWords | None":
        """None for a network of which it is not known what its words spoke for, see :func:`word_shares`.

        Args:
            model: the network.
            words: its vocabulary.
            text: to be read.

        Raises:
            ValueError: if there are no words in the text.
        """
        (reading,) = words.read([text])
        if not reading.length:
            raise ValueError(f"there are no words in {text!r}: nothing can be said of it")
        found = _shares(model, reading.numbers[None])
        if found is None:
            return None
        shares, activation = found[0][0], found[1][0]
        return cls(
            title="What each word spoke for",
            text="The colour of a word is that of the class for which it spoke most: to which routing gave the "
            "capsules that saw it. It is strong where no word of the text spoke more for the class, and the class is "
            "there. Dotted words are not in the vocabulary.",
            pieces=tuple(_pieces(text, reading.spans)),
            known=tuple((reading.numbers != UNKNOWN).tolist()),
            shares=shares,
            activation=activation,
            said=int(activation.argmax()),
            colours=tuple(COLOURS[label % len(COLOURS)] for label in range(len(activation))),
        )


def exhibits_of_texts(model: TextClassifier, texts: TextSet, findings: Findings) -> Iterator[Exhibit]:
    """What there is to show of a network for texts of one class each: the worst mistakes, and clear cases.

    Args:
        model: the network.
        texts: that were tested on.
        findings: about them.
    """

    def show(title: str, chosen: list[int], text: str) -> ColouredTexts:
        titles = [_title(findings, texts, index) for index in chosen]
        found = ColouredTexts.of(model, texts.words, [texts.texts[index] for index in chosen], titles, texts.classes)
        return ColouredTexts(title=title, text=f"{text} {found.text}", texts=found.texts, classes=found.classes)

    wrong = findings.mistakes(_MOST).tolist()
    count = int((findings.prediction != findings.labels).sum())
    if wrong:
        most = f"The network is wrong about {count} of {len(texts)} texts; the worst are first."
        yield show("The worst mistakes", wrong, most)
    yield show("What each word spoke for", findings.examples(_MOST).tolist(), "The clearest text of each class.")


def _title(findings: Findings, texts: TextSet, index: int) -> str:
    """What was said about a text, and what it is if that is another class."""
    true, said = int(findings.labels[index]), int(findings.prediction[index])
    activation = findings.activation[index]
    name = texts.files[index] if texts.files else str(index)
    wrong = "" if true == said else f", but it is {texts.classes[true]} ({float(activation[true]):.2f})"
    return f"{name}: said {texts.classes[said]} ({float(activation[said]):.2f}){wrong}"
