"""The twin of CapsNet that reconstructs too: convolutions, and a group of units for
each class.
"""

from typing import Literal

from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.layers import FullyConnectedDecoder, mask_capsules
from torchcaps.models import CapsNetTwin, Prediction, register_model
from torchcaps.spec import Size, settings
from torchcaps.squashing import length, squash


@register_model(
    "decoding_cnn",
    "Qin et al. 2020: a CNN that decodes the units of the winning class (CNN+CR)",
)
@settings
class DecodingCNN(CapsNetTwin):
    """The baseline of CapsNet, whose last layer has a group of units for each class; a
    decoder sees the winning one.

    With ``softmax`` the logit of a class is the sum of its units. With ``length`` the
    units of each class are squashed, and their length is its activation, as in CapsNet
    without transforms and routing. All other units are 0 for the decoder, which is that
    of CapsNet.

    Args:
        image_shape: (C, H, W) of the images.
        classes: number of classes.
        channels: of the convolutions.
        stride: of the first.
        hidden: widths of the fully connected layers.
        dropout: share of the second of them that is left out in training.
        units: in the group of a class.
        decoder_hidden: widths of the decoder.
        activation: ``softmax`` of the sums of units, or ``length`` of squashed units.

    Source: Qin et al. 2020, "CNN+CR"; sizes and the sum recalled. ``length``: Gu, Tresp
    & Hu, CVPR 2021, whose network has convolutions of other sizes.
    """

    channels: tuple[Size, Size, Size] = (32, 32, 16)
    stride: Size = 2
    hidden: tuple[Size, Size] = (136, 192)
    units: Size = 16
    decoder_hidden: tuple[Size, ...] = (256, 512)
    activation: Literal["softmax", "length"] = "softmax"

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
        units = self._described(groups)
        drawn = self.decoder(mask_capsules(units, target))
        return Prediction(units.activation, None, drawn)

    def _described(self, groups: Tensor) -> Capsules:
        """The units of each class, with the probability of the class."""
        if self.activation == "length":
            pose = squash(groups)
            return Capsules(pose, length(pose))
        return Capsules(groups, groups.sum(2).softmax(-1))
