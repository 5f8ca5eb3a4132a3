"""Word vectors that others trained, in the text formats of GloVe, fastText and word2vec."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps_lab.data.files import seen_from
from torchcaps_lab.data.words import RESERVED, Words


class Known(NamedTuple):
    """Vectors of the words of a vocabulary that a file has.

    Args:
        numbers: of these words, int64 (M,).
        vectors: float32 (M, D).
    """

    numbers: Tensor
    vectors: Tensor


def read_vectors(path: str | Path, words: Words) -> Known:
    """Reads the vectors of a vocabulary: a word in each line and its numbers, with blanks between.

    A first line of two numbers, as fastText and word2vec write it, is skipped. Of a word that is there twice, the first
    counts.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no text, a line has fewer numbers than the first or something else, or no word is in the
            vocabulary.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"vectors must be a file of word vectors, there is no {path}{seen_from(path)}")
    number_of = {word: number for number, word in enumerate(words.vocabulary, RESERVED)}
    found: dict[int, np.ndarray] = {}
    dim = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for place, line in enumerate(lines, 1):
                parts = line.rstrip("\r\n ").split(" ")
                if parts == [""] or (place == 1 and len(parts) == 2 and all(map(str.isdecimal, parts))):
                    continue
                dim = dim or len(parts) - 1
                number = number_of.get(" ".join(parts[:-dim])) if dim else None  # words of GloVe may contain blanks
                if not dim or len(parts) <= dim:
                    raise ValueError(f"line {place} must be a word and {dim or 'some'} numbers, got {line[:60]!r}")
                if number is not None and number not in found:
                    found[number] = _floats(parts[-dim:], place)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be word vectors as text in UTF-8, not a binary file: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not found:
        raise ValueError(f"{path} has none of the {len(words):,} words of the training texts")
    return Known(torch.tensor([*found]), torch.from_numpy(np.stack([*found.values()])))


def _floats(parts: list[str], place: int) -> np.ndarray:
    try:
        numbers = np.array(parts, dtype=np.float32)
    except ValueError:
        numbers = np.array([np.nan], dtype=np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"line {place} must have finite numbers behind the word, got {' '.join(parts)[:60]!r}")
    return numbers
