"""A text of any length in a fixed number of capsules, by routing (after Gong et al.
2018).
"""

from dataclasses import InitVar

from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.layers import CapsLinear, PrimaryCaps1d
from torchcaps.models.base import CapsuleNetwork
from torchcaps.models.registry import register_model
from torchcaps.numerics import ProperShare, Size
from torchcaps.routing import DynamicRouting, Routing
from torchcaps.spec import settings
from torchcaps_lab.kinds.texts.network import TextClassifier, ahead, start_apart


@register_model(
    "text_encoder",
    "capsules of words routed to parts, parts to classes; after Gong et al. 2018",
)
@settings
class TextEncoder(TextClassifier, CapsuleNetwork):
    """A text of any length in a fixed number of capsules: all words, with the same
    transforms, vote for parts of it.

    A convolution makes capsules of each word and its neighbours. These are routed to
    parts, whatever their number is, and the parts, each with transforms of its own, to
    the classes.

    Args:
        vocabulary: number of words.
        classes: number of classes.
        word_dim: dimension of the word vectors.
        width: how many words a capsule is made of.
        types: the number of types of capsules of each word.
        parts: how many capsules the text becomes.
        pose_dim: the size of the poses of all capsules.
        dropout: share of the numbers of word vectors that are left out in training.
        hidden_words: share of the words that count as unknown in training.
        routing: the routing of both layers; default: dynamic, leaky, in 3 steps.

    Source: after Gong et al. 2018, "Information Aggregation via Dynamic Routing for
    Sequence Encoding", whose words come from a recurrent network; transforms shared by
    all children: Su 2018.

    Example:
        >>> from torchcaps_lab.kinds.texts import TextEncoder
        >>> network = TextEncoder(vocabulary=50, classes=6, word_dim=16, types=4)
        >>> network(torch.randint(1, 52, (2, 9))).activation.shape
        torch.Size([2, 6])
    """

    vocabulary: int = 1000
    classes: int = 6
    word_dim: int = 300
    width: Size = 3
    types: Size = 8
    parts: Size = 16
    pose_dim: Size = 16
    dropout: ProperShare = 0.2
    hidden_words: ProperShare = 0.05
    routing: InitVar[Routing | None] = None

    def __post_init__(self, routing: Routing | None) -> None:
        parts = self.parts
        pose_dim = self.pose_dim
        routing = routing or DynamicRouting(leaky=True, squash="half")
        self.primary_caps = PrimaryCaps1d(
            self.word_dim, self.types, pose_dim, self.width, 1, squash="half"
        )
        start_apart(self.primary_caps, self.word_dim * self.width, pose_dim)
        # Each part gets a small share of the words: with the usual initial weights it
        # would be too short to learn.
        self.part_caps = CapsLinear(
            None,
            parts,
            pose_dim,
            pose_dim,
            transforms="shared",
            routing=routing,
            init_std=0.5,
        )
        self.class_caps = CapsLinear(
            parts, self.classes, pose_dim, pose_dim, routing=routing
        )

    @property
    def reach(self) -> tuple[int, int]:
        """How many words a primary capsule sees, and how many words lie between one and
        the next.
        """
        return self.width, 1

    def children_of(self, words: Tensor) -> Capsules:
        """The parts, poses (B, parts, pose_dim)."""
        vectors, present = self.vectors(words)
        primary = self.primary_caps(ahead(self.drop(vectors), self.width))
        return self.part_caps(
            primary, present[..., None].expand(primary.activation.shape)
        )
