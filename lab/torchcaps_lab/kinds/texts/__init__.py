"""Texts, as rows of words."""

from torchcaps_lab.kinds.texts.class_words import ClassWords
from torchcaps_lab.kinds.texts.cnn import TextCNN
from torchcaps_lab.kinds.texts.coloured import word_shares
from torchcaps_lab.kinds.texts.encoder import TextEncoder
from torchcaps_lab.kinds.texts.lists import TextList
from torchcaps_lab.kinds.texts.network import TextClassifier
from torchcaps_lab.kinds.texts.ngram_capsules import TextCapsNet
from torchcaps_lab.kinds.texts.pictures import ColouredTexts
from torchcaps_lab.kinds.texts.pooled import TextPooled
from torchcaps_lab.kinds.texts.questions import MadeQuestions
from torchcaps_lab.kinds.texts.text import Text
from torchcaps_lab.kinds.texts.text_set import TextSet, joined
from torchcaps_lab.kinds.texts.words import Reading, Words

__all__ = ["Text", "TextClassifier", "TextList", "TextSet", "Words", "joined"]
