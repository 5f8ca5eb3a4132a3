"""Capsules of the maxima of features over a text, routed to the classes."""

from dataclasses import InitVar

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear
from torchcaps.models.base import CapsuleNetwork
from torchcaps.models.registry import register_model
from torchcaps.numerics import ProperShare, Size, Sizes
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.spec import settings
from torchcaps.squashing import length
from torchcaps_lab.kinds.texts.network import TextClassifier, features_at_places


@register_model(
    "text_pooled",
    "capsules of the features of Kim 2014, each the maximum over the text, routed to "
    "the classes",
)
@settings
class TextPooled(TextClassifier, CapsuleNetwork):
    r"""The n-grams that tell most, as capsules: of each feature its maximum over the
    text, and routing to the classes.

    A convolution of each width has ``types`` kinds of n-grams, each with ``dim``
    features f. A text has one capsule of each kind t, whose pose says how strongly each
    feature is there, wherever that is,

    .. math:: u_{tf} = \max_l \operatorname{relu}(w_{tf} \cdot x_{l:l+k} + b_{tf}), \quad V_{tj} = u_t W_{tj},

    and these go to the classes, each with transforms of its own. So a text of any
    length is a fixed number of capsules, and what is telling once is not averaged away
    by all other words.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        widths: the widths of the n-grams, k.
        types: the number of types of capsules, for each width.
        dim: features of a capsule.
        pose_dim: the size of the poses of the class capsules.
        dropout: share of the features that are left out in training.
        hidden_words: share of the words that count as unknown in training.
        routing: to the classes; default: dynamic, leaky, in 3 steps.

    Source: ours; the features are those of Kim 2014, "Convolutional Neural Networks for
    Sentence Classification", section 2, the leaky routing to classes that of Zhao et
    al. 2018.

    Example:
        >>> from torchcaps_lab.kinds.texts import TextPooled
        >>> network = TextPooled(vocabulary=50, classes=6, word_dim=16, types=4, dim=4)
        >>> network(torch.randint(1, 52, (2, 9))).capsules.pose.shape
        torch.Size([2, 6, 16])
    """

    vocabulary: int = 1000
    classes: int = 6
    word_dim: int = 300
    widths: Sizes = (3, 4, 5)
    types: Size = 10
    dim: Size = 10
    pose_dim: Size = 16
    dropout: ProperShare = 0.5
    hidden_words: ProperShare = 0.05
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        features = self.types * self.dim
        self.convolutions = nn.ModuleList(
            nn.Conv1d(self.word_dim, features, width) for width in self.widths
        )
        routing = routing or DynamicRouting(leaky=True, squash="half")
        self.class_caps = CapsLinear(
            self.types * len(self.widths),
            self.classes,
            self.dim,
            self.pose_dim,
            routing=routing,
        )

    def children_of(self, words: Tensor) -> Capsules:
        """A capsule of each kind of n-gram, those of the first width first, poses (B,
        widths x types, dim).
        """
        features = torch.cat(
            [response.amax(2) for response in self._features_at_places(words)], 1
        )
        pose = self.drop(features).unflatten(1, (-1, self.dim))
        return Capsules(pose, length(pose))

    def places_of(self, words: Tensor) -> list[Tensor]:
        """Where each capsule comes from: of each width, the share of its squared length
        from each place, (B, types, L).

        A capsule whose features are nowhere in the text has zeros.
        """
        places_of_types = []
        for response in self._features_at_places(words):
            most, place = response.max(2, keepdim=True)
            squares = torch.zeros_like(response).scatter(2, place, most.square())
            squared = squares.unflatten(1, (-1, self.dim)).sum(2)
            least = torch.finfo(squared.dtype).tiny
            whole = squared.sum(2, keepdim=True).clamp_min(least)
            places_of_types.append(squared / whole)
        return places_of_types

    def _features_at_places(self, words: Tensor) -> list[Tensor]:
        """The features at each place of a text, of each width, (B, types x dim, L); 0
        behind its end.
        """
        return features_at_places(*self.vectors(words), self.convolutions, self.widths)
