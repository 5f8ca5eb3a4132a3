"""Words: a vocabulary, and how texts are cut into the numbers that networks read."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torchcaps.numerics import check_size
from torchcaps.optional_imports import needing
from torchcaps_lab.data.manifest import some
from torchcaps_lab.data.plain_text import check_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PADDING = 0
UNKNOWN = 1
RESERVED = 2
"""Numbers of the padding, of words that are not in the vocabulary, and of the first
word of the vocabulary.
"""


_LETTERS_AT_ONCE = 2**20
_LETTERS_OF_A_WORD = 1_000
"""Of a text as many are looked at as at once, or so many for each word that is read."""

_MARKS = ".,;:!?\u2026\"'`\u00b4\u2018\u2019\u201c\u201d\u00ab\u00bb\u3001\u3002"
_UNSEEN = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))


def plain_words(text: str) -> str:
    """The words of a text in lower case, without the marks at their ends: what two
    copies of a text have in common.

    Marks inside a word, and smileys, remain.

    Example:
        >>> from torchcaps_lab.kinds.texts.words import plain_words
        >>> plain_words("It isn't 3.5,  is it? :)")
        "it isn't 3.5 is it )"
    """
    seen = unicodedata.normalize("NFKC", text).translate(_UNSEEN).casefold()
    words = (word.strip(_MARKS) for word in seen.split())
    return " ".join(filter(None, words)) or text


class Reading(NamedTuple):
    """A text as a network reads it.

    Args:
        numbers: the numbers of its words, at most the first ``longest``, int64 (L,).
        spans: where each of these words is in the text: index of its first character,
            and of the one after its last.
        length: how many words the text has, in its first million letters.

    Example:
        >>> from torchcaps_lab.data import Words
        >>> (reading,) = Words(("a", "pose")).read(["A pose moves"])
        >>> reading.numbers.tolist(), reading.length, reading.unknown
        ([2, 3, 1], 3, 1)
        >>> reading.spans
        ((0, 1), (2, 6), (7, 12))
    """

    numbers: Tensor
    spans: tuple[tuple[int, int], ...]
    length: int

    @property
    def unknown(self) -> int:
        """How many of the words that are read are not in the vocabulary."""
        return int((self.numbers == UNKNOWN).sum())


@dataclass(frozen=True)
class Words:
    """A vocabulary with the rules that cut texts into words, to read texts as in
    training.

    A text is converted to a normal form of Unicode (NFKC) and, with ``lower``, to lower
    case. It is split at blanks; each punctuation mark and each Chinese character is a
    separate word. The library tokenizers does all of this.

    Args:
        vocabulary: the words, the first of which has the number 2. 0 pads short texts,
            1 is any other word.
        lower: whether texts are converted to lower case.
        longest: number of words that are read of each text, from its beginning; a note
            gives the number of longer texts. Letters beyond a million, or
            1,000 for each of these words, are never looked at.

    Raises:
        ValueError: a word occurs twice, or ``longest`` is less than 1.

    Example:
        >>> from torchcaps_lab.data import Words
        >>> words = Words.of(["A capsule has a pose.", "A pose moves."], least=2)
        >>> words.vocabulary
        ('a', '.', 'pose')
        >>> words.read(["A pose, a guess"])[0].numbers
        tensor([2, 4, 1, 2, 1])
    """

    vocabulary: tuple[str, ...] = ()
    lower: bool = True
    longest: int = 512

    def __post_init__(self) -> None:
        check_size(longest=self.longest)
        if len(set(self.vocabulary)) < len(self.vocabulary):
            twice = [
                word for word, count in Counter(self.vocabulary).items() if count > 1
            ]
            raise ValueError(
                f"vocabulary must hold each word once, got {some(twice)} more often"
            )

    @classmethod
    def of(
        cls, texts: Sequence[str], most: int | None = None, least: int = 1, **how: Any
    ) -> "Words":
        """Build the vocabulary of some texts, the most frequent words first.

        Args:
            texts: the training texts.
            most: the largest number of words in the vocabulary, the most frequent ones.
            least: the number of times that a word must occur to be in the vocabulary.
            how: ``lower`` and ``longest``.
        """
        cut = cls(**how)
        counts = Counter[str]()
        for text in texts:
            counts.update(cut.split(text))
        ranked = sorted(
            (word for word in counts if counts[word] >= least),
            key=lambda word: (-counts[word], word),
        )
        return cls(tuple(ranked[:most]), **how)

    def __len__(self) -> int:
        return len(self.vocabulary)

    def split(self, text: str) -> list[str]:
        """Return all words of a text, in the form of the vocabulary."""
        check_text(text, "a text")
        normalizer = self._tokenizer.normalizer
        cutter = self._tokenizer.pre_tokenizer
        assert normalizer is not None
        assert cutter is not None
        normal = normalizer.normalize_str(self._beginning(text))
        return [word for word, _ in cutter.pre_tokenize_str(normal)]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """Read texts for a network."""
        for text in texts:
            check_text(text, "a text")
        return [
            Reading(
                torch.tensor(encoding.ids[: self.longest], dtype=torch.int64),
                tuple(encoding.offsets[: self.longest]),
                len(encoding.ids),
            )
            for some_texts in _batches(map(self._beginning, texts))
            for encoding in self._tokenizer.encode_batch(
                some_texts, add_special_tokens=False
            )
        ]

    def _beginning(self, text: str) -> str:
        """As much of a text as may be read: what cuts it into words keeps a hundred
        bytes for each letter of its normal form.
        """
        most = max(_LETTERS_AT_ONCE, _LETTERS_OF_A_WORD * self.longest)
        text = text[:most]
        # The normal form of one letter has up to 18.
        normal = len(unicodedata.normalize("NFKC", text))
        return text if normal <= most else text[: most * len(text) // normal]

    def config(self) -> dict[str, Any]:
        """Return the vocabulary and its settings, ready for JSON."""
        return {**asdict(self), "vocabulary": list(self.vocabulary)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Words":
        """Create it from the result of :meth:`config`.

        Raises:
            ValueError: it is damaged.
        """
        try:
            return cls(
                tuple(map(str, config["vocabulary"])),
                bool(config["lower"]),
                config["longest"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"the words that were saved with the network are damaged: {error!r}"
            ) from error

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        with needing("texts", "torchcaps-lab[text]"):
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        # A bracket is a separate word, so no text has the first two.
        numbers = {"[padding]": PADDING, "[unknown]": UNKNOWN}
        numbers |= {
            word: number for number, word in enumerate(self.vocabulary, RESERVED)
        }
        tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[unknown]"))
        cleaned: Any = normalizers.BertNormalizer(
            strip_accents=False, lowercase=self.lower
        )
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), cleaned])
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in their order, a million letters at once, or one text."""
    batch: list[str] = []
    letters = 0
    for text in texts:
        if batch and letters + len(text) > _LETTERS_AT_ONCE:
            yield batch
            batch = []
            letters = 0
        batch.append(text)
        letters += len(text)
    if batch:
        yield batch


def together(rows: Sequence[Tensor]) -> Tensor:
    """Rows of words, int64 (L,) each, as one tensor (B, longest), padded at the end; at
    least (B, 1).
    """
    if not rows:
        return torch.zeros(0, 1, dtype=torch.int64)
    padded = pad_sequence(list(rows), batch_first=True, padding_value=PADDING)
    return padded if padded.shape[1] else padded.new_zeros(len(rows), 1)
