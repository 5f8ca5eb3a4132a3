"""How much each word of one text spoke for each class, for a page in the browser."""

from torch import Tensor

from torchcaps.models import ClassifierNetwork
from torchcaps_lab.kinds.texts.coloured import pieces_of, shares_and_activation
from torchcaps_lab.kinds.texts.pictures import MEANING
from torchcaps_lab.kinds.texts.words import UNKNOWN, Words
from torchcaps_lab.report.canvas import colour_of
from torchcaps_lab.report.exhibit import Exhibit, register_exhibit


@register_exhibit("class_words")
class ClassWords(Exhibit):
    """One text, how active each class is, and how much each word spoke for each class:
    for a page in the browser.

    Attributes:
        pieces: the text in pieces: one for each word that was read, with the blanks
            behind it.
        known: of each word, whether it is in the vocabulary.
        shares: of each word in each class, (words, E): :func:`word_shares`.
        activation: the activation of the classes, (E,).
        predicted: the most active class.
        colours: the colours of the classes.

    Example:
        >>> from torchcaps_lab.data import Words
        >>> from torchcaps_lab.kinds.texts.class_words import ClassWords
        >>> network = tc.create_model(
        ...     "text_encoder", vocabulary=3, classes=2, word_dim=8, types=2
        ... )
        >>> shown = ClassWords.of(
        ...     network, Words(("who", "wrote", "it")), "Who wrote that"
        ... )
        >>> shown.pieces, shown.known, shown.shares.shape
        (('Who ', 'wrote ', 'that'), (True, True, False), torch.Size([3, 2]))
    """

    pieces: tuple[str, ...]
    known: tuple[bool, ...]
    shares: Tensor
    activation: Tensor
    predicted: int
    colours: tuple[str, ...]

    @classmethod
    def of(
        cls,
        model: ClassifierNetwork,
        words: Words,
        text: str,
    ) -> "ClassWords | None":
        """None for a network of which it is not known what its words spoke for, see
        :func:`word_shares`.

        Args:
            model: the network.
            words: its vocabulary.
            text: to be read.

        Raises:
            ValueError: if there are no words in the text.
        """
        (reading,) = words.read([text])
        if not reading.length:
            raise ValueError(f"there are no words in {text!r}")
        shares_of_words = shares_and_activation(model, reading.numbers[None])
        if shares_of_words is None:
            return None
        shares = shares_of_words[0][0]
        activation = shares_of_words[1][0]
        return cls(
            title="What each word spoke for",
            text=f"{MEANING} Dotted words are not in the vocabulary.",
            pieces=tuple(pieces_of(text, reading.spans)),
            known=tuple((reading.numbers != UNKNOWN).tolist()),
            shares=shares,
            activation=activation,
            predicted=int(activation.argmax()),
            colours=tuple(map(colour_of, range(len(activation)))),
        )
