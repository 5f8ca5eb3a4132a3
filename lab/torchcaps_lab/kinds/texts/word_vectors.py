"""Word vectors that others trained, in the text formats of GloVe, fastText and
word2vec.
"""

import warnings
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import count
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor

from torchcaps.whole import expanded, opened, seen_from
from torchcaps_lab.kinds.texts.words import RESERVED, Words
from torchcaps_lab.look import number_in

_LONGEST = 2**20
"""Letters of a line: those of a word and 50,000 numbers."""


class Known(NamedTuple):
    """Vectors of the words of a vocabulary that a file has.

    Args:
        numbers: the numbers of these words, int64 (M,).
        vectors: float32 (M, D).
    """

    numbers: Tensor
    vectors: Tensor


def read_vectors(path: str | Path, words: Words) -> Known:
    """Reads the vectors of a vocabulary: a word in each line and its numbers, with
    blanks between.

    A first line of two numbers, as fastText and word2vec write it, states how many
    words there are, and how many numbers each has. Of a word that is there twice, the
    first counts.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no text, a line has fewer numbers than the first or than the
            file states, or something else, or more than a million letters; or no word
            is in the vocabulary.
        UserWarning: as a warning, if there are fewer words than the file states.
    """
    path = expanded(path)
    if not path.is_file():
        raise FileNotFoundError(
            "vectors must be a file of word vectors, there is no "
            f"{path}{seen_from(path)}"
        )
    number_of = {word: number for number, word in enumerate(words.vocabulary, RESERVED)}
    vectors: dict[int, np.ndarray] = {}
    read = _Rows()
    try:
        with (
            opened(path) as file,
            TextIOWrapper(file, encoding="utf-8", newline="\n") as lines,
        ):
            for place, parts in read.of(lines):
                # Words of GloVe may contain blanks.
                number = number_of.get(" ".join(parts[: -read.dim]))
                if number is not None and number not in vectors:
                    vectors[number] = _floats(parts[-read.dim :], place)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be word vectors as text in UTF-8, not a binary file: {error}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if read.stated is not None and read.count < read.stated:
        warnings.warn(
            f"{path} states {read.stated:,} words and has {read.count:,}: it was cut "
            "off",
            stacklevel=2,
        )
    if not vectors:
        raise ValueError(
            f"{path} has none of the {len(words):,} words of the training texts"
        )
    return Known(
        torch.tensor([*vectors]), torch.from_numpy(np.stack([*vectors.values()]))
    )


class _Rows:
    """The words of a file with their numbers, line by line.

    Attributes:
        dim: numbers of each word; 0 before the first.
        stated: words that the file states; None if it states none.
        count: words so far.
    """

    def __init__(self) -> None:
        self.dim = self.count = 0
        self.stated: int | None = None

    def of(self, file: TextIO) -> Iterator[tuple[int, list[str]]]:
        """The number of each line and its parts; a `ValueError` if it is none of a word
        and as many numbers.
        """
        for place in count(1):
            if not (line := file.readline(_LONGEST + 1)):
                return
            if len(line) > _LONGEST:
                raise ValueError(
                    f"line {place} has more than {_LONGEST:,} letters, as no word "
                    "vector has"
                )
            parts = line.rstrip("\r\n ").split(" ")
            if parts == [""]:
                continue
            if place == 1 and len(parts) == 2 and all(map(_is_count, parts)):
                self.stated, self.dim = map(int, parts)
                continue
            self.dim = self.dim or len(parts) - 1
            if not self.dim or len(parts) <= self.dim:
                wanted = self.dim or "some"
                raise ValueError(
                    f"line {place} must be a word and {wanted} numbers, got "
                    f"{line[:60]!r}"
                )
            self.count += 1
            yield place, parts


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _floats(parts: list[str], place: int) -> np.ndarray:
    try:
        numbers = np.array(list(map(number_in, parts)), dtype=np.float32)
    except ValueError:
        numbers = np.array([np.nan], dtype=np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"line {place} must have finite numbers behind the word, got "
            f"{' '.join(parts)[:60]!r}"
        )
    return numbers
