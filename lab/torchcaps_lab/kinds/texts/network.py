"""What the networks over words have in common."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.layers import PrimaryCaps1d
from torchcaps.models.base import ClassifierNetwork
from torchcaps.numerics import ProperShare, can_be_read, check_size
from torchcaps.spec import check
from torchcaps_lab.kinds.texts.words import PADDING, RESERVED, UNKNOWN

_START = 0.25
"""Word vectors start between this and its negative (Kim 2014, section 3.1)."""


class TextClassifier(ClassifierNetwork):
    """Base of the networks that classify texts, which are rows of words (B, L) for any
    L.

    0 pads a text behind its end, and changes no answer; 1 is a word that is not in the
    vocabulary. Word vectors are learned with the network. In training some words count
    as unknown, so that the vector of unknown words is learned too.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        dropout: share of the numbers of word vectors, or of features, that are left out
            in training.
        hidden_words: share of the words that count as unknown in training.

    Example:
        >>> from torchcaps_lab.kinds.texts import TextClassifier, TextCNN
        >>> network = TextCNN(vocabulary=50, classes=6, word_dim=16, channels=8).eval()
        >>> isinstance(network, TextClassifier)
        True
        >>> words = torch.randint(1, 52, (1, 9))
        >>> padded = torch.nn.functional.pad(words, (0, 5))
        >>> torch.allclose(network(words).activation, network(padded).activation)
        True
    """

    takes = "words"
    any_size = True

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        word_dim: int,
        dropout: float,
        hidden_words: float,
    ) -> None:
        super().__init__(classes)
        check_size(vocabulary=vocabulary, word_dim=word_dim)
        for name, share in (("dropout", dropout), ("hidden_words", hidden_words)):
            check(ProperShare, share, name)
        self.vocabulary = vocabulary
        self.word_dim = word_dim
        self.dropout = dropout
        self.hidden_words = hidden_words
        self.embedding = nn.Embedding(RESERVED + vocabulary, word_dim)
        nn.init.uniform_(self.embedding.weight, -_START, _START)
        self.drop = nn.Dropout(dropout)

    def examples(self, batch: int) -> Tensor:
        """Return texts of at most six words."""
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(
            UNKNOWN, RESERVED + self.vocabulary, (batch, 6), generator=generator
        )
        return words.masked_fill(
            torch.arange(6) > torch.arange(batch)[:, None] + 2, PADDING
        )

    def misfits(self) -> Mapping[str, Tensor]:
        """Return words out of the vocabulary, without a batch, of another type, and
        texts without a place for a word.
        """
        words = self.examples(2)
        return {
            "a number of no word": words.clamp_min(RESERVED + self.vocabulary),
            "a negative number": words - RESERVED - self.vocabulary,
            "words without a batch axis": words[0],
            "words that are no whole numbers": words.float(),
            "texts of length 0": words[:, :0],
        }

    def vectors(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the vectors of words, 0 behind the end of a text, (B, word_dim, L),
        and the mask of words, bool (B, L).

        Raises:
            ValueError: if the words do not fit the network.
        """
        self._check(words)
        present = words != PADDING
        if self.training and self.hidden_words:
            hidden = torch.rand(words.shape, device=words.device) < self.hidden_words
            words = torch.where(hidden & present, UNKNOWN, words)
        return (self.embedding(words) * present[..., None]).movedim(-1, 1), present

    def _check(self, words: Tensor) -> None:
        if not isinstance(words, Tensor):
            raise TypeError(f"words must be a tensor, got {type(words).__name__}")
        if words.ndim != 2 or not words.shape[1]:
            raise ValueError(
                "words must be (B, L), with L at least 1, got shape "
                f"{tuple(words.shape)}"
            )
        if words.dtype != torch.int64:
            raise ValueError(f"words must be whole numbers, int64, got {words.dtype}")
        if words.numel() and can_be_read(words):
            low = int(words.min())
            high = int(words.max())
            if low < 0 or high >= RESERVED + self.vocabulary:
                raise ValueError(
                    f"words must lie in 0..{RESERVED + self.vocabulary - 1}, got "
                    f"{low} to {high}"
                )


def ahead(features: Tensor, width: int) -> Tensor:
    """Features (B, C, L) with zeros behind them: a window of this width at each
    place.
    """
    return F.pad(features, (0, width - 1))


def features_at_places(
    vectors: Tensor,
    present: Tensor,
    convolutions: Iterable[nn.Module],
    widths: Iterable[int],
) -> list[Tensor]:
    """The features at each place of a text, of each width, (B, channels, L), 0 or more;
    0 behind its end.

    Args:
        vectors: the vectors of words, (B, word_dim, L).
        present: where there are words, bool (B, L).
        convolutions: one for each width.
        widths: the widths of the windows.
    """
    pairs = zip(convolutions, widths, strict=True)
    return [
        layer(ahead(vectors, width)).relu() * present[:, None] for layer, width in pairs
    ]


def start_apart(primary: PrimaryCaps1d, inputs: int, pose_dim: int) -> None:
    """Initial weights for poses of length 1 before the squash; with biases as large,
    capsules would be all alike.
    """
    # Of word vectors, and of what kept their deviation.
    deviation = _START / math.sqrt(3)
    std = 1 / (deviation * math.sqrt(inputs * pose_dim))
    nn.init.normal_(primary.conv.weight, std=std)
    nn.init.zeros_(primary.conv.bias)
