"""Capsules over n-grams (Zhao et al. 2018)."""

from dataclasses import InitVar
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import CapsuleLayer, Capsules, Prediction
from torchcaps.layers import CapsConv1d, CapsLinear, PrimaryCaps1d
from torchcaps.models.base import layer_routing
from torchcaps.models.initial import zero_bias
from torchcaps.models.registry import register_model
from torchcaps.numerics import ProperShare, Size, Sizes, strided
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.spec import settings
from torchcaps.squashing import length
from torchcaps_lab.kinds.texts.network import TextClassifier, ahead, start_apart


class _NGramCapsules(CapsuleLayer):
    """Capsules of n-grams, from word vectors to class capsules: n-grams, primary,
    convolutional and class capsules.

    Each layer has a window at every place of a text (n-grams at every ``stride``-th). A
    window may reach beyond the end of the text, where nothing is.

    Args:
        text: the network that it is a branch of, which has all sizes.
        width: the width of the n-grams.
        routing: the routing of both layers.
    """

    def __init__(self, text: "TextCapsNet", width: int, routing: Routing) -> None:
        super().__init__()
        self.width = width
        self.window = text.window
        self.stride = text.stride
        channels = text.channels
        types = text.types
        parts = text.parts
        pose_dim = text.pose_dim
        self.ngrams = nn.Conv1d(text.word_dim, channels, width, self.stride)
        self.primary_caps = PrimaryCaps1d(
            channels, types, pose_dim, 1, 1, squash="half"
        )
        self.conv_caps = CapsConv1d(
            types,
            parts,
            pose_dim,
            pose_dim,
            self.window,
            routing=routing,
            competition="window",
            init_std=None,
        )
        self.class_caps = CapsLinear(
            None,
            text.classes,
            pose_dim,
            pose_dim,
            transforms="shared",
            routing=routing,
            init_std=0.3,
        )
        # The sum over the children of a window, a J-th of each, then has the deviation
        # of one of them.
        nn.init.normal_(
            self.conv_caps.weight, std=parts / (self.window * types * pose_dim) ** 0.5
        )
        nn.init.kaiming_normal_(self.ngrams.weight)
        zero_bias(self.ngrams)
        start_apart(self.primary_caps, channels, pose_dim)

    @property
    def reach(self) -> tuple[int, int]:
        """How many words a primary capsule sees, and how many words lie between one and
        the next.
        """
        return self.width, self.stride

    def forward(self, vectors: Tensor, present: Tensor) -> Capsules:
        """Class capsules of word vectors (B, word_dim, L), those that are there, bool
        (B, L).
        """
        primary = self.primary_caps(self.ngrams(ahead(vectors, self.width)).relu())
        present = strided(present, self.stride)
        children, mask = self._ahead(primary, present)
        parts = self.conv_caps(children, mask)
        B, places, types = parts.activation.shape
        return self.class_caps(parts, present[..., None].expand(B, places, types))

    def _ahead(self, capsules: Capsules, present: Tensor) -> tuple[Capsules, Tensor]:
        """Capsules with room for the last windows behind them, and which of all are
        there.
        """
        pose = F.pad(capsules.pose, (0, 0, 0, 0, 0, self.window - 1))
        activation = F.pad(capsules.activation, (0, 0, 0, self.window - 1))
        present = F.pad(present, (0, self.window - 1))
        return Capsules(pose, activation), present[..., None].expand(activation.shape)


@register_model("text_capsnet", "Zhao et al. 2018, form A: capsules over 3-grams")
@register_model(
    "text_capsnet_b",
    "Zhao et al. 2018, form B: capsules over 3-, 4- and 5-grams",
    widths=(3, 4, 5),
)
@settings
class TextCapsNet(TextClassifier):
    """Capsules over n-grams: form A has one width of them, form B several networks side
    by side and their mean.

    Each network finds n-grams by a convolution, makes primary capsules of them, routes
    these by windows to convolutional capsules, and all of these, with the same
    transforms at every place, to the classes. Leaky routing (``leaky``) lets words
    that speak for no class go nowhere.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        widths: the widths of the n-grams: one for form A, several for form B.
        channels: features of an n-gram.
        types: the number of types of primary capsules.
        parts: types of convolutional capsules.
        pose_dim: the size of the poses of all capsules.
        window: places that convolutional capsules see.
        stride: between n-grams, 2 in the released code.
        dropout: share of the numbers of word vectors that are left out in training.
        hidden_words: share of the words that count as unknown in training.
        routing: the routing of both layers; default: dynamic, leaky, in 3 steps. The
            released code is not leaky.

    Published: form B, with word vectors that others trained (which are not used here),
    TREC 92.8, SUBJ 93.8, MR 82.3, SST-2 86.8 %. The paper's factor of each child's
    activation is left out: the length of a pose has it already. The released code has
    16 types of primary capsules, the same transforms for all children of a window,
    widths of 3 and 4 in form B, and nothing that leaves out or hides words.

    Source: Zhao et al. 2018, "Investigating Capsule Networks with Dynamic Routing for
    Text Classification"; the code released with it.

    Example:
        >>> from torchcaps_lab.kinds.texts import TextCapsNet
        >>> network = TextCapsNet(
        ...     vocabulary=50, classes=6, word_dim=16, channels=8, types=4, parts=4
        ... )
        >>> network(torch.randint(1, 52, (2, 9))).activation.shape
        torch.Size([2, 6])
    """

    vocabulary: int = 1000
    classes: int = 6
    word_dim: int = 300
    widths: Sizes = (3,)
    channels: Size = 32
    types: Size = 32
    parts: Size = 16
    pose_dim: Size = 16
    window: Size = 3
    stride: Size = 1
    dropout: ProperShare = 0.2
    hidden_words: ProperShare = 0.05
    routing: InitVar[Routing | None] = layer_routing(
        "branches.0.class_caps", "The routing of the class capsules."
    )

    def __post_init__(self, routing: Routing | None) -> None:
        routing = routing or DynamicRouting(leaky=True, squash="half")
        self.branches = nn.ModuleList(
            _NGramCapsules(self, width, routing) for width in self.widths
        )

    @property
    def reaches(self) -> tuple[tuple[int, int], ...]:
        """Of each branch, how many words a primary capsule sees, and how many lie
        between one and the next.
        """
        return tuple(cast(_NGramCapsules, branch).reach for branch in self.branches)

    def forward(self, words: Tensor, target: Tensor | None = None) -> Prediction:
        """The class capsules: the poses averaged over the branches, as active as they
        are long.
        """
        vectors, present = self.vectors(words)
        vectors = self.drop(vectors)
        pose = torch.stack(
            [branch(vectors, present).pose for branch in self.branches]
        ).mean(0)
        capsules = Capsules(pose, length(pose))
        return Prediction(capsules.activation, capsules, None)
