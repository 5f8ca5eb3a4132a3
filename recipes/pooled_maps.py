"""Plain heads that pool the places of a map, each class by itself: rivals of capsules
where several things are found after training on single ones.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from torchcaps.layers import PositionCode
from torchcaps.models import Prediction, SharedCapsNetMaps, register_model
from torchcaps.numerics import Size
from torchcaps.spec import settings

_HEADS = 4


@register_model(
    "maps_top_k", "class maps, each pooled by the mean of its largest values"
)
@settings
class TopKMaps(SharedCapsNetMaps):
    """Class maps with the mean of the k largest values of each.

    Args:
        largest: k.

    Source: Durand et al. 2016, "WELDON", without the smallest values.
    """

    largest: Size = 4

    def _pooled(self, evidence: Tensor) -> Tensor:
        k = min(self.largest, evidence.shape[2])
        return evidence.topk(k, dim=2).values.mean(2)


@register_model("maps_attention", "class maps, each pooled by attention of its own")
@settings
class AttendedMaps(SharedCapsNetMaps):
    """Class maps, and beside each a map whose softmax over the places weights it.

    Source: Ilse et al. 2018, "Attention-based Deep Multiple Instance Learning", with a
    linear attention for each class.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.attention = nn.Conv2d(self.channels[-1], self.classes, 1)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each class."""
        features = self.features(images)
        evidence = self.evidence(features).flatten(2)
        weight = self.attention(features).flatten(2).softmax(2)
        return Prediction((weight * evidence).sum(2).sigmoid(), None, None)


@register_model(
    "maps_queries", "a learned query for each class, which attends to the map"
)
@settings
class ClassQueries(SharedCapsNetMaps):
    """A learned query for each class, which attends to the places of the map in four
    heads, with an MLP behind it: one layer of a transformer's decoder.

    Source: Liu et al. 2021, "Query2Label"; Carion et al. 2020, "DETR".
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        channels = self.channels[-1]
        self.place = PositionCode(channels)
        self.queries = nn.Parameter(torch.randn(self.classes, channels))
        self.key_value = nn.Linear(channels, 2 * channels)
        self.collect = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, 2 * channels),
            nn.ReLU(),
            nn.Linear(2 * channels, channels),
        )
        self.evidence = nn.Conv2d(channels, 1, 1)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each class."""
        places = self.place(self.features(images)).flatten(2).mT  # [B, I, C]
        queries = self.queries.expand(len(images), -1, -1)  # [B, E, C]
        rows = (queries, *self.key_value(places).chunk(2, -1))
        heads = [row.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for row in rows]
        collected = scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        answers = self.norm(queries + self.collect(collected))
        answers = answers + self.mlp(answers)
        evidence = self.evidence(answers.mT[..., None]).flatten(1)
        return Prediction(evidence.sigmoid(), None, None)
