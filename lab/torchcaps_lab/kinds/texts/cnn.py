"""The CNN of Kim 2014 over words: the baseline of the capsules over words."""

from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Prediction
from torchcaps.models.registry import register_model
from torchcaps.numerics import ProperShare, Size, Sizes
from torchcaps.spec import settings
from torchcaps_lab.kinds.texts.network import TextClassifier, features_at_places

Output = Literal["softmax", "sigmoid"]


@register_model(
    "text_cnn", "Kim 2014, CNN-rand: windows of 3, 4 and 5 words, max over the text"
)
@settings
class TextCNN(TextClassifier):
    r"""Convolutions over words of several widths, the maximum of each over the text, a
    linear layer.

    .. math::
        c_{kf} = \max_l \operatorname{relu}(w_{kf} \cdot x_{l:l+k} + b_{kf}), \quad a = \sigma(W c + b)

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        widths: the widths of the windows, k.
        channels: features of each width, f.
        output: ``"softmax"``, as published, or ``"sigmoid"``: each class for itself, as
            in the code released with Zhao et al. 2018, where it stands beside capsules.
        dropout: share of the features that are left out in training.
        hidden_words: share of the words that count as unknown in training.

    The published bound of the last layer's weights is left out.

    Source: Kim 2014, "Convolutional Neural Networks for Sentence Classification",
    section 2.

    Example:
        >>> from torchcaps_lab.kinds.texts import TextCNN
        >>> network = TextCNN(vocabulary=50, classes=6, word_dim=16, channels=8)
        >>> network(torch.randint(1, 52, (2, 9))).activation.shape
        torch.Size([2, 6])
    """

    vocabulary: int = 1000
    classes: int = 6
    word_dim: int = 300
    widths: Sizes = (3, 4, 5)
    channels: Size = 100
    output: Output = "sigmoid"
    dropout: ProperShare = 0.5
    hidden_words: ProperShare = 0.05

    def __post_init__(self) -> None:
        self.convolutions = nn.ModuleList(
            nn.Conv1d(self.word_dim, self.channels, width) for width in self.widths
        )
        self.head = nn.Linear(self.channels * len(self.widths), self.classes)

    def forward(self, words: Tensor, target: Tensor | None = None) -> Prediction:
        """The activations of the classes."""
        responses = features_at_places(
            *self.vectors(words), self.convolutions, self.widths
        )
        features = torch.cat([response.amax(2) for response in responses], 1)
        scores = self.head(self.drop(features))
        return Prediction(
            scores.softmax(1) if self.output == "softmax" else scores.sigmoid(),
            None,
            None,
        )
