"""Residual blocks, of which some networks' features are made."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.routing.batch_norm import EarlyBatchNorm2d


def residual_features(
    in_channels: int,
    widths: Sequence[int],
    blocks: Sequence[int],
    *,
    stride: int = 1,
    projected: bool = False,
) -> nn.Sequential:
    """A 3 x 3 convolution, and stages of residual blocks, of which each but the first
    halves the grid.

    Args:
        in_channels: the channels of the images.
        widths: the channels of each stage.
        blocks: the number of blocks in each stage.
        stride: the stride of the first convolution.
        projected: see :class:`Residual`.
    """
    before = widths[0]
    features = nn.Sequential(
        nn.Conv2d(in_channels, before, 3, stride, padding=1, bias=False),
        EarlyBatchNorm2d(before),
        nn.ReLU(),
    )
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for number in range(count):
            halving = 2 if stage > 0 and number == 0 else 1
            features.append(Residual(before, width, halving, projected))
            before = width
    return features


class Residual(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation, beside a shortcut.

    Where sizes differ, the shortcut is the input thinned out and padded with channels
    of zeros (the paper's A), or, if ``projected``, a 1 x 1 convolution with batch
    normalisation (B).

    Args:
        in_channels: the channels of the input.
        channels: the channels of the result.
        stride: the stride of the first convolution.
        projected: which shortcut it is.

    Shape:
        (B, in_channels, H, W) to (B, channels, H', W').

    Source: He, Zhang, Ren & Sun 2016, "Deep Residual Learning for Image Recognition",
    section 3.
    """

    def __init__(
        self, in_channels: int, channels: int, stride: int = 1, projected: bool = False
    ) -> None:
        super().__init__()
        # Channels of zeros that a padded shortcut adds.
        self.added = channels - in_channels
        self.stride = stride
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm1 = EarlyBatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = EarlyBatchNorm2d(channels)
        self.projection: nn.Sequential | None = None
        if projected and (stride > 1 or self.added):
            self.projection = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, stride, bias=False),
                EarlyBatchNorm2d(channels),
            )

    def forward(self, features: Tensor) -> Tensor:
        """Return the features, changed by a residual."""
        changed = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(features)))))
        return F.relu(changed + self._shortcut(features))

    def _shortcut(self, features: Tensor) -> Tensor:
        if self.projection is not None:
            return self.projection(features)
        if self.stride == 1 and not self.added:
            return features
        thinned = features[:, :, :: self.stride, :: self.stride]
        return F.pad(
            thinned, (0, 0, 0, 0, self.added // 2, self.added - self.added // 2)
        )
