"""The twin of CapsNet that reconstructs too: convolutions, and a group of units for
each class.
"""

from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import FullyConnectedDecoder, mask_capsules
from torchcaps.models import Prediction, register_model
from torchcaps.models.capsnet import CapsNetTwin
from torchcaps.numerics import AnySizes, Size, ThreeSizes, TwoSizes
from torchcaps.spec import settings


@register_model(
    "decoding_cnn",
    "Qin et al. 2020: a CNN that decodes the units of the winning class (CNN+CR)",
)
@settings
class DecodingCNN(CapsNetTwin):
    """The baseline of CapsNet, whose last layer has a group of units for each class; a
    decoder sees the winning one.

    The logit of a class is the sum of its units. All other units are 0 for the decoder,
    which is that of CapsNet.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: of the convolutions.
        stride: of the first.
        hidden: widths of the fully connected layers.
        dropout: share of the second of them that is left out in training.
        units: in the group of a class.
        decoder_hidden: widths of the decoder.

    Source: Qin et al. 2020, "CNN+CR"; sizes and the sum recalled.
    """

    channels: ThreeSizes = (32, 32, 16)
    stride: Size = 2
    hidden: TwoSizes = (136, 192)
    units: Size = 16
    decoder_hidden: AnySizes = (256, 512)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.head[-1] = nn.Linear(self.hidden[1], self.classes * self.units)
        self.decoder = FullyConnectedDecoder(
            self.classes * self.units, self.image_shape, self.decoder_hidden
        )

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The probability of each class, and what the units of the most active one, or
        of the target, describe.
        """
        self._check(images)
        groups = self.head(self.features(images)).unflatten(
            1, (self.classes, self.units)
        )
        activation = groups.sum(2).softmax(-1)
        drawn = self.decoder(mask_capsules(Capsules(groups, activation), target))
        return Prediction(activation, None, drawn)
