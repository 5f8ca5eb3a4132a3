"""Labelled texts as numbers of words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from torchcaps.numerics import check_size
from torchcaps_lab.data.examples import Batch, Examples, PlainExamples
from torchcaps_lab.kinds.texts.words import PADDING, RESERVED, Words, together

_NAMED = 12
"""Words of a text that are typed to ask about it."""

_NO_WORDS = Words()


@dataclass(frozen=True, eq=False)
class TextSet(PlainExamples):
    """Labelled texts: :class:`Examples` whose inputs are rows of words.

    Batches are as long as the longest text in them: their ``inputs`` are int64 (B, L),
    the numbers of the words, and 0 after the end of a text; so are their ``pictures``.

    Attributes:
        inputs: int64 (N, longest of all), likewise.
        texts: as they were written.
        words: the vocabulary.

    Raises:
        ValueError: a tensor has another type or shape, a label is out of range, or
            ``preprocess`` or ``composition`` is given, which are for images.

    Example:
        >>> from torchcaps_lab.data import TextSet, Words
        >>> words = Words(("who", "wrote", "it"))
        >>> texts = TextSet.of(
        ...     ["Who wrote it?", "Who?"],
        ...     torch.tensor([0, 1]),
        ...     ("long", "short"),
        ...     words,
        ... )
        >>> texts.inputs
        tensor([[2, 3, 4, 1],
                [2, 1, 0, 0]])
    """

    what = "texts"
    larger = "--model text_pooled"
    forgetting = "--model_args.dropout 0.7 --model_args.hidden_words 0.1"

    texts: tuple[str, ...] = ()
    words: Words = _NO_WORDS

    def _check_inputs(self) -> None:
        if self.inputs.dtype != torch.int64 or self.inputs.ndim != 2:
            raise ValueError(
                f"inputs must be int64 (N, L), got {self.inputs.dtype} "
                f"{tuple(self.inputs.shape)}"
            )
        if len(self.texts) != len(self.inputs):
            raise ValueError(
                f"texts must be {len(self.inputs)}, one for each row of words, got "
                f"{len(self.texts)}"
            )

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        labels: Tensor,
        classes: tuple[str, ...],
        words: Words,
        files: tuple[str, ...] | None = None,
    ) -> Self:
        """Converts texts with labels, int64 (N,) or masks, bool (N, E), to numbers of
        words.
        """
        rows = [reading.numbers for reading in words.read(texts)]
        return cls(
            together(rows), labels, classes, files, texts=tuple(texts), words=words
        )

    @property
    def raw_image_shape(self) -> tuple[int, int, int]:
        """One channel, one row, and the length of the rows of words."""
        return 1, 1, self.words.longest

    def contents(self) -> list[bytes]:
        """The texts."""
        return [text.encode() for text in self.texts]

    def wrong_in(self, batch: Batch) -> str:
        """Whether numbers of words are out of range, something but padding follows the
        end of a text, or a text is empty.
        """
        words = batch.inputs
        last = RESERVED + len(self.words) - 1
        if words.dtype != torch.int64 or words.ndim != 2:
            return f"a batch must be int64 (B, L), got {words.dtype}"
        low = int(words.min())
        high = int(words.max())
        if not 0 <= low <= high <= last:
            return f"words go from {low} to {high}, not from 0 to {last}"
        present = (words != PADDING).int()
        if not bool((present.diff(dim=1) <= 0).all()):
            return "there are words after the end of a text"
        return "" if bool(present[:, 0].all()) else "there are texts without words"

    def written(self, index: int) -> str:
        """One of the texts."""
        return self.texts[index]

    def nameable(self) -> str:
        """The first words of the first text."""
        return " ".join(self.texts[0].split()[:_NAMED]).lstrip("-") or "a text"

    def in_words(self, words: Words) -> "TextSet":
        """The same texts in the numbers of another vocabulary."""
        if words == self.words:
            return self
        return TextSet.of(self.texts, self.labels, self.classes, words, self.files)

    def _rows(self, indices: Tensor) -> dict[str, Any]:
        rows = super()._rows(indices)
        texts = tuple(self.texts[index] for index in indices.tolist())
        return {**rows, "texts": texts}

    def _fetch(self, indices: list[int]) -> Batch:
        rows = self._on_device(indices)
        words = self.inputs[rows]
        length = max(1, int((words != PADDING).sum(1).max())) if len(indices) else 1
        words = words[:, :length]
        return Batch(words, self.labels[rows], rows, words)


def joined(texts: Examples, count: int, parts: int = 2, seed: int = 0) -> TextSet:
    """Join texts of different classes, which training never shows together, with masks
    as labels.

    The first part is any of the texts, each further part any text of a class that is
    not in it yet.

    Args:
        texts: a :class:`TextSet`, of one class each.
        count: how many to make.
        parts: texts in each.
        seed: the seed of the choice.

    Raises:
        TypeError: ``texts`` is not a TextSet.
        ValueError: there are fewer classes than ``parts``, or the texts have masks
            already.
    """
    texts = TextSet.require(texts, "texts")
    check_size(count=count, parts=parts)
    if texts.labels.ndim != 1 or len(texts.labels.unique()) < parts:
        raise ValueError(
            f"texts must be of one class each, and of {parts} classes at least"
        )
    generator = torch.Generator().manual_seed(seed)
    masks = torch.zeros(count, len(texts.classes), dtype=torch.bool)
    lines = []
    for mask in masks:
        chosen = []
        for _ in range(parts):
            free = (~mask[texts.labels]).nonzero().squeeze(1)
            place = int(free[torch.randint(len(free), (1,), generator=generator)])
            mask[texts.labels[place]] = True
            chosen.append(texts.texts[place])
        lines.append(" ".join(chosen))
    return TextSet.of(lines, masks, texts.classes, texts.words)
