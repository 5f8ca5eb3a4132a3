"""Networks over words: capsules over n-grams (Zhao et al. 2018), the CNN of Kim 2014, and a routing encoder."""

import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsConv1d, CapsLinear, PrimaryCaps1d
from torchcaps.models.base import CapsuleClassifier, ImageClassifier, Prediction
from torchcaps.models.registry import register_model
from torchcaps.numerics import check_series, check_sizes
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.routing.base import check_choice
from torchcaps.squash import length

PADDING, UNKNOWN, RESERVED = 0, 1, 2
"""As in :mod:`torchcaps.data.text`: padding, unknown words, and the first word of the vocabulary."""

_START = 0.25
"""Word vectors start between this and its negative (Kim 2014, section 3.1)."""


class TextClassifier(ImageClassifier):
    """Base of the networks that classify texts: rows of words in place of images, (B, L) for any L.

    0 stands behind the end of a text, wherever it is in a batch, and changes no answer; 1 is a word that is not in the
    vocabulary. Word vectors are learned with the network. In training some words count as unknown, so that there is
    a vector to be had for those.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        dropout: share of the numbers of word vectors, or of features, that are left out in training.
        hidden_words: share of the words that count as unknown in training.

    Example:
        >>> network = tc.models.TextCNN(vocabulary=50, classes=6, word_dim=16, channels=8).eval()
        >>> isinstance(network, tc.models.TextClassifier)
        True
        >>> words = torch.randint(1, 52, (1, 9))
        >>> padded = torch.nn.functional.pad(words, (0, 5))
        >>> torch.allclose(network(words).activation, network(padded).activation)
        True
    """

    takes = "words"
    any_size = True

    def __init__(self, vocabulary: int, classes: int, word_dim: int, dropout: float, hidden_words: float) -> None:
        super().__init__((1, 1, 1), classes)
        check_sizes(vocabulary=vocabulary, word_dim=word_dim)
        for name, share in (("dropout", dropout), ("hidden_words", hidden_words)):
            if not 0 <= share < 1:
                raise ValueError(f"{name} must be a share in [0, 1), got {share}")
        self.vocabulary = vocabulary
        self.word_dim = word_dim
        self.dropout = dropout
        self.hidden_words = hidden_words
        self.embedding = nn.Embedding(RESERVED + vocabulary, word_dim)
        nn.init.uniform_(self.embedding.weight, -_START, _START)
        self.drop = nn.Dropout(dropout)

    def examples(self, batch: int) -> Tensor:
        """Texts of six words and less."""
        generator = torch.Generator().manual_seed(0)
        words = torch.randint(UNKNOWN, RESERVED + self.vocabulary, (batch, 6), generator=generator)
        return words.masked_fill(torch.arange(6) > torch.arange(batch)[:, None] + 2, PADDING)

    def vectors(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of words, 0 behind the end of a text, (B, word_dim, L), and where there are words, bool (B, L).

        Raises:
            ValueError: if the words do not fit the network.
        """
        self._check(words)
        there = words != PADDING
        if self.training and self.hidden_words:
            hidden = torch.rand(words.shape, device=words.device) < self.hidden_words
            words = torch.where(hidden & there, UNKNOWN, words)
        return (self.embedding(words) * there[..., None]).movedim(-1, 1), there

    def _check(self, images: Tensor) -> None:
        if images.ndim != 2 or not images.shape[1]:
            raise ValueError(f"words must be (B, L), with L at least 1, got shape {tuple(images.shape)}")
        if images.dtype != torch.int64:
            raise ValueError(f"words must be whole numbers, int64, got {images.dtype}")
        if images.device.type == "cpu" and not torch.compiler.is_compiling() and images.numel():
            low, high = int(images.min()), int(images.max())
            if low < 0 or high >= RESERVED + self.vocabulary:
                raise ValueError(f"words must lie in 0..{RESERVED + self.vocabulary - 1}, got {low} to {high}")


def _ahead(features: Tensor, width: int) -> Tensor:
    """Features (B, C, L) with zeros behind them: a window of this width at each place."""
    return F.pad(features, (0, width - 1))


def _start(primary: PrimaryCaps1d, inputs: int, pose_dim: int) -> None:
    """Capsules that differ, with poses of length 1 before the squash: biases as large as these would make all alike."""
    deviation = _START / math.sqrt(3)  # of word vectors, and of what kept their deviation
    nn.init.normal_(primary.conv.weight, std=1 / (deviation * math.sqrt(inputs * pose_dim)))
    nn.init.zeros_(primary.conv.bias)


@register_model("text_cnn", "Kim 2014, CNN-rand: windows of 3, 4 and 5 words, max over the text")
class TextCNN(TextClassifier):
    r"""Convolutions over words of several widths, the maximum of each over the text, a linear layer.

    .. math::
        c_{kf} = \max_l \operatorname{relu}(w_{kf} \cdot x_{l:l+k} + b_{kf}), \quad a = \sigma(W c + b)

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        widths: of the windows, k.
        channels: features of each width, f.
        output: ``"softmax"``, as published, or ``"sigmoid"``: each class for itself, as in the code released with Zhao
            et al. 2018, where it stands beside capsules.
        dropout: share of the features that are left out in training.
        hidden_words: share of the words that count as unknown in training.

    The published bound of the last layer's weights is left out.

    Source: Kim 2014, "Convolutional Neural Networks for Sentence Classification", section 2.

    Example:
        >>> network = tc.models.TextCNN(vocabulary=50, classes=6, word_dim=16, channels=8)
        >>> network(torch.randint(1, 52, (2, 9))).activation.shape
        torch.Size([2, 6])
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        classes: int = 6,
        word_dim: int = 300,
        widths: Sequence[int] = (3, 4, 5),
        channels: int = 100,
        output: Literal["softmax", "sigmoid"] = "sigmoid",
        dropout: float = 0.5,
        hidden_words: float = 0.05,
    ) -> None:
        super().__init__(vocabulary, classes, word_dim, dropout, hidden_words)
        check_series(widths=widths)
        check_sizes(channels=channels)
        self.widths = tuple(widths)
        self.channels = channels
        self.output = check_choice("output", output, ("softmax", "sigmoid"))
        self.convolutions = nn.ModuleList(nn.Conv1d(word_dim, channels, width) for width in self.widths)
        self.head = nn.Linear(channels * len(self.widths), classes)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The activations of the classes."""
        vectors, there = self.vectors(images)
        seen = [
            layer(_ahead(vectors, width)).relu() for layer, width in zip(self.convolutions, self.widths, strict=True)
        ]
        features = torch.cat([(one * there[:, None]).amax(2) for one in seen], 1)
        scores = self.head(self.drop(features))
        return Prediction(scores.softmax(1) if self.output == "softmax" else scores.sigmoid(), None, None)


class NGramCapsules(nn.Module):
    """From word vectors to class capsules: n-grams, primary, convolutional and class capsules.

    Each layer has a window at every place of a text (n-grams at every ``stride``-th), which may look at what is behind
    its end: that is not there.

    Args:
        word_dim: dimension of the word vectors.
        width: of the n-grams.
        classes: number of classes.
        channels: features of an n-gram.
        types: of primary capsules.
        parts: types of convolutional capsules.
        pose_dim: of all capsules.
        window: of the convolutional capsules.
        stride: between n-grams.
        routing: of both layers.
    """

    def __init__(
        self,
        word_dim: int,
        width: int,
        classes: int,
        *,
        channels: int,
        types: int,
        parts: int,
        pose_dim: int,
        window: int,
        stride: int,
        routing: Routing,
    ) -> None:
        super().__init__()
        self.width, self.window, self.stride = width, window, stride
        self.ngrams = nn.Conv1d(word_dim, channels, width, stride)
        self.primary_caps = PrimaryCaps1d(channels, types, pose_dim, 1, 1, squash="half")
        self.conv_caps = CapsConv1d(
            types, parts, pose_dim, pose_dim, window, routing=routing, competition="window", init_std=None
        )
        self.class_caps = CapsLinear(
            None, classes, pose_dim, pose_dim, transforms="shared", routing=routing, init_std=0.3
        )
        # The sum over the children of a window, each a J-th, then has the deviation of one of them.
        nn.init.normal_(self.conv_caps.weight, std=parts / (window * types * pose_dim) ** 0.5)
        nn.init.kaiming_normal_(self.ngrams.weight)
        assert self.ngrams.bias is not None
        nn.init.zeros_(self.ngrams.bias)
        _start(self.primary_caps, channels, pose_dim)

    @property
    def reach(self) -> tuple[int, int]:
        """How many words a primary capsule sees, and how many words lie between one and the next."""
        return self.width, self.stride

    def forward(self, vectors: Tensor, there: Tensor) -> Capsules:
        """Class capsules of word vectors (B, word_dim, L), those that are there, bool (B, L)."""
        primary = self.primary_caps(self.ngrams(_ahead(vectors, self.width)).relu())
        children, mask = self._ahead(primary, there[:, :: self.stride])
        parts = self.conv_caps(children, mask)
        B, places, types = parts.activation.shape
        return self.class_caps(parts, there[:, :: self.stride, None].expand(B, places, types))

    def _ahead(self, capsules: Capsules, there: Tensor) -> tuple[Capsules, Tensor]:
        """Capsules with room for the last windows behind them, and which of all are there."""
        pose = F.pad(capsules.pose, (0, 0, 0, 0, 0, self.window - 1))
        activation = F.pad(capsules.activation, (0, 0, 0, self.window - 1))
        there = F.pad(there, (0, self.window - 1))
        return Capsules(pose, activation), there[..., None].expand(activation.shape)


@register_model("text_capsnet", "Zhao et al. 2018, form A: capsules over 3-grams")
@register_model("text_capsnet_b", "Zhao et al. 2018, form B: capsules over 3-, 4- and 5-grams", widths=(3, 4, 5))
class TextCapsNet(TextClassifier):
    """Capsules over n-grams: form A has one width of them, form B several networks side by side and their mean.

    Each network finds n-grams by a convolution, makes primary capsules of them, routes these by windows to
    convolutional capsules, and all of these, with the same transforms at every place, to the classes. Leaky routing
    (``orphan``) lets words that speak for no class go nowhere.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        widths: of the n-grams: one for form A, several for form B.
        channels: features of an n-gram.
        types: of primary capsules.
        parts: types of convolutional capsules.
        pose_dim: of all capsules.
        window: places that convolutional capsules see.
        stride: between n-grams, 2 in the released code.
        dropout: share of the numbers of word vectors that are left out in training.
        hidden_words: share of the words that count as unknown in training.
        routing: of both layers; default: dynamic, leaky, in 3 steps. The released code is not leaky.

    Published: form B, with word vectors that others trained (which are not used here), TREC 92.8, SUBJ 93.8, MR 82.3,
    SST-2 86.8 %. The paper's factor of each child's activation is left out: the length of a pose has it already.

    Source: Zhao et al. 2018, "Investigating Capsule Networks with Dynamic Routing for Text Classification"; the code
    released with it.

    Example:
        >>> network = tc.models.TextCapsNet(vocabulary=50, classes=6, word_dim=16, channels=8, types=4, parts=4)
        >>> network(torch.randint(1, 52, (2, 9))).activation.shape
        torch.Size([2, 6])
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        classes: int = 6,
        word_dim: int = 300,
        widths: Sequence[int] = (3,),
        channels: int = 32,
        types: int = 32,
        parts: int = 16,
        pose_dim: int = 16,
        window: int = 3,
        stride: int = 1,
        dropout: float = 0.2,
        hidden_words: float = 0.05,
        routing: Routing | None = None,
    ) -> None:
        super().__init__(vocabulary, classes, word_dim, dropout, hidden_words)
        sizes = {"channels": channels, "types": types, "parts": parts, "pose_dim": pose_dim}
        sizes |= {"window": window, "stride": stride}
        check_series(widths=widths)
        check_sizes(**sizes)
        self.widths = tuple(widths)
        self.channels, self.types, self.parts, self.pose_dim = channels, types, parts, pose_dim
        self.window, self.stride = window, stride
        routing = routing or DynamicRouting(orphan=True, squash="half")
        self.branches = nn.ModuleList(
            NGramCapsules(word_dim, width, classes, routing=routing, **sizes) for width in self.widths
        )

    @property
    def routing(self) -> Routing:
        """The routing of the class capsules."""
        return cast(NGramCapsules, self.branches[0]).class_caps.routing

    @property
    def reaches(self) -> tuple[tuple[int, int], ...]:
        """Of each branch, how many words a primary capsule sees, and how many lie between one and the next."""
        return tuple(cast(NGramCapsules, branch).reach for branch in self.branches)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The class capsules: the poses averaged over the branches, as active as they are long."""
        vectors, there = self.vectors(images)
        vectors = self.drop(vectors)
        pose = torch.stack([branch(vectors, there).pose for branch in self.branches]).mean(0)
        capsules = Capsules(pose, length(pose))
        return Prediction(capsules.activation, capsules, None)


@register_model("text_encoder", "capsules of words routed to parts, parts to classes; after Gong et al. 2018")
class TextEncoder(TextClassifier, CapsuleClassifier):
    """A text of any length in a fixed number of capsules: all words, with the same transforms, vote for parts of it.

    A convolution makes capsules of each word and its neighbours. These are routed to parts, whatever their number is,
    and the parts, each with transforms of its own, to the classes.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        width: how many words a capsule is made of.
        types: of capsules of each word.
        parts: how many capsules the text becomes.
        pose_dim: of all capsules.
        dropout: share of the numbers of word vectors that are left out in training.
        hidden_words: share of the words that count as unknown in training.
        routing: of both layers; default: dynamic, leaky, in 3 steps.

    Source: after Gong et al. 2018, "Information Aggregation via Dynamic Routing for Sequence Encoding", whose words
    come from a recurrent network; transforms shared by all children: Su 2018.

    Example:
        >>> network = tc.models.TextEncoder(vocabulary=50, classes=6, word_dim=16, types=4)
        >>> network(torch.randint(1, 52, (2, 9))).activation.shape
        torch.Size([2, 6])
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        classes: int = 6,
        word_dim: int = 300,
        width: int = 3,
        types: int = 8,
        parts: int = 16,
        pose_dim: int = 16,
        dropout: float = 0.2,
        hidden_words: float = 0.05,
        routing: Routing | None = None,
    ) -> None:
        super().__init__(vocabulary, classes, word_dim, dropout, hidden_words)
        check_sizes(width=width, types=types, parts=parts, pose_dim=pose_dim)
        self.width, self.types, self.parts, self.pose_dim = width, types, parts, pose_dim
        routing = routing or DynamicRouting(orphan=True, squash="half")
        self.primary_caps = PrimaryCaps1d(word_dim, types, pose_dim, width, 1, squash="half")
        _start(self.primary_caps, word_dim * width, pose_dim)
        # Each of the parts gets a small share of the words: from a usual start they would be too short to learn.
        self.part_caps = CapsLinear(None, parts, pose_dim, pose_dim, transforms="shared", routing=routing, init_std=0.5)
        self.class_caps = CapsLinear(parts, classes, pose_dim, pose_dim, routing=routing)
        self.decoder = None

    @property
    def reach(self) -> tuple[int, int]:
        """How many words a primary capsule sees, and how many words lie between one and the next."""
        return self.width, 1

    def children_of(self, images: Tensor) -> Capsules:
        """The parts, poses (B, parts, pose_dim)."""
        vectors, there = self.vectors(images)
        primary = self.primary_caps(_ahead(self.drop(vectors), self.width))
        return self.part_caps(primary, there[..., None].expand(primary.activation.shape))


@register_model(
    "text_pooled", "capsules of the features of Kim 2014, each the maximum over the text, routed to the classes"
)
class TextPooled(TextClassifier, CapsuleClassifier):
    r"""The n-grams that tell most, as capsules: of each feature its maximum over the text, and routing to the classes.

    A convolution of each width has ``types`` kinds of n-grams, each with ``dim`` features f. A text has one capsule of
    each kind t, whose pose says how strongly each feature is there, wherever that is,

    .. math:: u_{tf} = \max_l \operatorname{relu}(w_{tf} \cdot x_{l:l+k} + b_{tf}), \quad V_{tj} = u_t W_{tj},

    and these go to the classes, each with transforms of its own. So a text of any length is a fixed number of capsules,
    and what is telling once is not averaged away by all other words.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        widths: of the n-grams, k.
        types: of capsules, for each width.
        dim: features of a capsule.
        pose_dim: of the class capsules.
        dropout: share of the features that are left out in training.
        hidden_words: share of the words that count as unknown in training.
        routing: to the classes; default: dynamic, leaky, in 3 steps.

    Source: ours; the features are those of Kim 2014, "Convolutional Neural Networks for Sentence Classification",
    section 2, the leaky routing to classes that of Zhao et al. 2018.

    Example:
        >>> network = tc.models.TextPooled(vocabulary=50, classes=6, word_dim=16, types=4, dim=4)
        >>> network(torch.randint(1, 52, (2, 9))).capsules.pose.shape
        torch.Size([2, 6, 16])
    """

    def __init__(
        self,
        vocabulary: int = 1000,
        classes: int = 6,
        word_dim: int = 300,
        widths: Sequence[int] = (3, 4, 5),
        types: int = 10,
        dim: int = 10,
        pose_dim: int = 16,
        dropout: float = 0.5,
        hidden_words: float = 0.05,
        routing: Routing | None = None,
    ) -> None:
        super().__init__(vocabulary, classes, word_dim, dropout, hidden_words)
        check_sizes(widths=widths, types=types, dim=dim, pose_dim=pose_dim)
        self.widths = tuple(widths)
        self.types, self.dim, self.pose_dim = types, dim, pose_dim
        self.convolutions = nn.ModuleList(nn.Conv1d(word_dim, types * dim, width) for width in self.widths)
        routing = routing or DynamicRouting(orphan=True, squash="half")
        self.class_caps = CapsLinear(types * len(self.widths), classes, dim, pose_dim, routing=routing)
        self.decoder = None

    def children_of(self, images: Tensor) -> Capsules:
        """A capsule of each kind of n-gram, those of the first width first, poses (B, widths x types, dim)."""
        features = torch.cat([seen.amax(2) for seen in self._seen(images)], 1)
        pose = self.drop(features).unflatten(1, (-1, self.dim))
        return Capsules(pose, length(pose))

    def places_of(self, words: Tensor) -> list[Tensor]:
        """Where each capsule comes from: of each width, the share of its squared length from each place, (B, types, L).

        A capsule whose features are nowhere in the text has zeros.
        """
        found = []
        for seen in self._seen(words):
            most, place = seen.max(2, keepdim=True)
            squared = torch.zeros_like(seen).scatter(2, place, most.square()).unflatten(1, (-1, self.dim)).sum(2)
            found.append(squared / squared.sum(2, keepdim=True).clamp_min(torch.finfo(squared.dtype).tiny))
        return found

    def _seen(self, words: Tensor) -> list[Tensor]:
        """The features at each place of a text, of each width, (B, types x dim, L); 0 behind its end."""
        vectors, there = self.vectors(words)
        return [
            layer(_ahead(vectors, width)).relu() * there[:, None]
            for layer, width in zip(self.convolutions, self.widths, strict=True)
        ]
