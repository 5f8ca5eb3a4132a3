"""Questions to try a network on that was trained on TREC."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from torchcaps_lab.data.base import create_dataset, test_examples
from torchcaps_lab.data.examples import Examples
from torchcaps_lab.kinds.texts.text_set import TextSet

if TYPE_CHECKING:
    from torchcaps_lab.kinds.texts.reader import TextReader

QUESTIONS = {
    "ABBR": ("What does NASA stand for ?", "What is the abbreviation of Texas ?"),
    "DESC": ("What is a capsule ?", "Why is the sky blue ?", "How do birds fly ?"),
    "ENTY": (
        "What animal has the longest neck ?",
        "What color is a ruby ?",
        "What is the best wine with fish ?",
    ),
    "HUM": (
        "Who wrote Hamlet ?",
        "Who was the first man on the moon ?",
        "What company makes the most cars ?",
    ),
    "LOC": (
        "Where is the Eiffel Tower ?",
        "What is the capital of Peru ?",
        "What country has the most rivers ?",
    ),
    "NUM": (
        "How far is it to the moon ?",
        "When did the war end ?",
        "How many people live in Rome ?",
    ),
}
"""Made-up questions for networks trained on TREC, if TREC is not on this machine."""


def questions(
    name: str,
    reader: "TextReader",
    classes: Sequence[str],
    tell: Any,
) -> Examples | None:
    """Return TREC's test questions, or else made-up ones.

    Args:
        name: the data that the network was trained on.
        reader: the reader of the network.
        classes: the names of its classes.
        tell: is called with the reason if the questions are damaged and not used.

    Returns:
        None for a network that was trained on other data.
    """
    if name != "trec" or {*classes} != {*QUESTIONS}:
        return None
    test = test_examples(partial(create_dataset, "text", root=name), tell)
    if test is not None and test.classes == tuple(classes):
        return reader.fitted(test)
    texts = list[str]()
    labels = list[int]()
    for label_name, written in QUESTIONS.items():
        texts += written
        labels += [classes.index(label_name)] * len(written)
    return TextSet.of(texts, torch.tensor(labels), tuple(classes), reader.words)
