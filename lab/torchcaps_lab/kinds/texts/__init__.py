"""Texts, as rows of words."""

from torchcaps_lab.kinds.texts.class_words import ClassWords
from torchcaps_lab.kinds.texts.coloured import word_shares
from torchcaps_lab.kinds.texts.pictures import ColouredTexts
from torchcaps_lab.kinds.texts.questions import MadeQuestions
from torchcaps_lab.kinds.texts.text import Text
from torchcaps_lab.kinds.texts.text_set import TextSet, joined
from torchcaps_lab.kinds.texts.words import Reading, Words

__all__ = ["Text", "TextSet", "Words", "joined"]
