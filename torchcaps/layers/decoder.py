"""From class capsules back to an image."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.numerics import check_sizes


def mask_capsules(capsules: Capsules, target: Tensor | None = None) -> Tensor:
    """The poses with all but the chosen classes set to zero, (B, J, *pose).

    Args:
        capsules: class capsules.
        target: the classes to keep, as labels (B,) or as a mask (B, J) for several at once; None keeps the capsule with
            the largest activation.

    Source: Sabour, Frosst & Hinton 2017, section 4.1.
    """
    activation = capsules.activation
    if target is None:
        target = activation.argmax(-1)
    if target.ndim == 1:
        mask = torch.zeros_like(activation).scatter_(1, target[:, None].long(), 1.0)
    elif target.shape == activation.shape:
        mask = target.to(activation.dtype)
    else:
        raise ValueError(
            f"target must be labels (B,) or a mask {tuple(activation.shape)}, got shape {tuple(target.shape)}"
        )
    return capsules.pose * mask.reshape(*mask.shape, *[1] * len(capsules.pose_shape))


class FullyConnectedDecoder(nn.Module):
    """Decodes masked class capsules to an image through fully connected layers, ReLU between them, sigmoid at the end.

    Args:
        in_features: numbers in all class poses together, J x H.
        image_shape: (C, H, W) of the image, any; or that of a sequence or a volume.
        hidden: widths of the hidden layers.
        by_class: whether each class has weights of its own in the first layer, as in the paper. If not, the decoder
            sees the pose of the chosen class alone and not which class it is, so that a pose must say the same in all
            classes; ``in_features`` is then the size H of one pose.

    Shape:
        Masked poses (B, J, *pose) to images (B, C, H, W) in [0, 1].

    Source: Sabour, Frosst & Hinton 2017, figure 2.

    Example:
        >>> decoder = tc.FullyConnectedDecoder(10 * 16, image_shape=(1, 28, 28))
        >>> classes = tc.Capsules(torch.randn(2, 10, 16), torch.rand(2, 10))
        ...
        >>> decoder(tc.mask_capsules(classes, torch.tensor([3, 7]))).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        in_features: int,
        image_shape: Sequence[int],
        hidden: Sequence[int] = (512, 1024),
        by_class: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(in_features=in_features, image_shape=image_shape, hidden=hidden)
        self.by_class = by_class
        self.image_shape = tuple(image_shape)
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(in_features, width), nn.ReLU()]
            in_features = width
        self.layers = nn.Sequential(*layers, nn.Linear(in_features, math.prod(image_shape)), nn.Sigmoid())

    def forward(self, poses: Tensor) -> Tensor:
        """Decodes."""
        if not self.by_class:
            poses = poses.sum(1)  # all others are zero
        return self.layers(poses.flatten(1)).unflatten(1, self.image_shape)
