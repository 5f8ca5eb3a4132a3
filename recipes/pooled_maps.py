"""Plain heads that pool the places of a map, each class by itself: rivals of capsules
where several things are found after training on single ones.
"""

import torch
from torch import Tensor, nn

from torchcaps.layers import PositionCode
from torchcaps.models import Prediction, SharedCapsNetMaps, register_model
from torchcaps.numerics import Size
from torchcaps.spec import settings


@register_model(
    "sharedcapsnet_top_k", "class maps, each pooled by the mean of its largest values"
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


@register_model(
    "sharedcapsnet_attention_pool", "class maps, each pooled by attention of its own"
)
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
    "sharedcapsnet_queries", "a learned query for each class, which attends to the map"
)
@settings
class ClassQueries(SharedCapsNetMaps):
    """A learned query for each class in one layer of a transformer's decoder.

    Source: Liu et al. 2021, "Query2Label"; Carion et al. 2020, "DETR".
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        channels = self.channels[-1]
        self.place = PositionCode(channels)
        self.queries = nn.Parameter(torch.randn(self.classes, channels))
        self.decoder = nn.TransformerDecoderLayer(
            channels, 4, 2 * channels, dropout=0.0, batch_first=True
        )
        self.evidence = nn.Conv2d(channels, 1, 1)

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each class."""
        places = self.place(self.features(images)).flatten(2).mT
        queries = self.queries.expand(len(images), -1, -1)
        answers = self.decoder(queries, places)  # [B, E, C]
        evidence = self.evidence(answers.mT[..., None]).flatten(1)
        return Prediction(evidence.sigmoid(), None, None)
