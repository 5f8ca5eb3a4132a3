"""From class capsules back to an image."""

import math
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, from_pair
from torchcaps.numerics import (
    AnySizes,
    NotNegative,
    Size,
    Sizes,
    class_mask,
    compute_dtype,
    real_dtype,
)
from torchcaps.spec import SuggestsNames, settings

DecoderInput = Literal["masked", "pose", "pose_and_class"]


def mask_capsules(capsules: Capsules, target: Tensor | None = None) -> Tensor:
    """Return the poses, (B, J, *pose), with 0 for all except the chosen classes, even
    where a pose is NaN.

    Args:
        capsules: class capsules.
        target: the classes to keep, as labels (B,), or for several at once as a mask
            (B, J), whose numbers in [0, 1] the poses are multiplied by; None keeps the
            capsule with the largest activation.

    Raises:
        TypeError: if the capsules are poses alone, or the target is not a tensor.
        ValueError: if the target is neither labels nor a mask, or a label is out of
            range.

    Source: Sabour, Frosst & Hinton 2017, section 4.1.
    """
    capsules = from_pair(capsules)
    mask = chosen_classes(capsules, target)
    mask = mask.reshape(*mask.shape, *[1] * (capsules.pose.ndim - mask.ndim))
    dtype = real_dtype("pose", capsules.pose)
    # Not a product with the mask: NaN times 0 is NaN.
    return (capsules.pose.masked_fill(mask == 0, 0.0) * mask).to(dtype)


def chosen_classes(capsules: Capsules, target: Tensor | None = None) -> Tensor:
    """Return the classes that :func:`mask_capsules` keeps, as a mask (B, J) in the
    dtype of the activations.
    """
    capsules = from_pair(capsules)
    if not isinstance(capsules, Capsules):
        raise TypeError(
            "capsules must be Capsules, poses with activations, got "
            f"{type(capsules).__name__}"
        )
    activation = capsules.activation
    return class_mask(activation, activation.argmax(-1) if target is None else target)


@settings
class FullyConnectedDecoder(SuggestsNames, nn.Module):
    """Decode masked class capsules to an image, by fully connected layers with ReLU
    between them and a sigmoid at the end.

    Args:
        in_features: numbers in all class poses together, J x H.
        image_shape: (C, H, W), or the shape of a sequence or a volume.
        hidden: widths of the hidden layers.

    Shape:
        Masked poses (B, J, *pose) to images (B, *image_shape) in [0, 1].

    Raises:
        TypeError: if the poses are not a tensor.
        ValueError: if they have another number of numbers.

    Source: Sabour, Frosst & Hinton 2017, figure 2.

    Example:
        >>> decoder = tc.FullyConnectedDecoder(10 * 16, image_shape=(1, 28, 28))
        >>> classes = tc.Capsules(torch.randn(2, 10, 16), torch.rand(2, 10))
        >>> decoder(tc.mask_capsules(classes, torch.tensor([3, 7]))).shape
        torch.Size([2, 1, 28, 28])
    """

    in_features: Size
    image_shape: Sizes
    hidden: AnySizes = (512, 1024)

    def __post_init__(self) -> None:
        widths = (self.in_features, *self.hidden)
        layers: list[nn.Module] = []
        for before, width in pairwise(widths):
            layers += [nn.Linear(before, width), nn.ReLU()]
        self.layers = nn.Sequential(
            *layers, nn.Linear(widths[-1], math.prod(self.image_shape)), nn.Sigmoid()
        )

    def forward(self, poses: Tensor) -> Tensor:
        """Decode poses to images."""
        real_dtype("poses", poses)
        if poses.ndim < 2 or math.prod(poses.shape[1:]) != self.in_features:
            raise ValueError(
                f"poses must be (B, J, *pose), {self.in_features} numbers for each image, "
                f"got shape {tuple(poses.shape)}"
            )
        return self.layers(poses.flatten(1)).unflatten(1, self.image_shape)


@settings
class PoseInput(SuggestsNames, nn.Module):
    r"""Make the input of a decoder, which draws one class, from the poses of all.

    ================== ======= ==========================================================================
    kind               numbers what a pose dimension means
    ================== ======= ==========================================================================
    ``masked``         J H     all poses, 0 but for the chosen one: each class has dimensions of its own
    ``pose``           H       the chosen pose alone, from which the decoder must also tell the class
    ``pose_and_class`` H + J   how the chosen pose differs from others of its class, and which class it is
    ================== ======= ==========================================================================

    The last one standardises the poses of each class, :math:`(v_j - m_j) / s_j`, with
    running means and standard deviations (J, H). The pose of a class that is present
    has a length near 1, so the poses of one class lie close together and apart from
    those of other classes: unstandardised, a pose would still tell the decoder its
    class.

    Noise limits how much a pose can say: it does not pay to repeat what the class tells
    already, and nearby poses must decode to similar images.

    Args:
        classes: J.
        size: H, the numbers of one pose.
        kind: a row of the table.
        noise: standard deviation of the normal noise that is added to the chosen pose
            in training, after it was standardised, if it is.

    Shape:
        Masked poses (B, J, *pose) to (B, numbers).

    Raises:
        ValueError: if ``kind`` is not in the table, or another argument is out of its
            range.

    Source: ``masked``: Sabour, Frosst & Hinton 2017, section 4.1; ``pose``: Rajasegaran
    et al. 2019 (DeepCaps), section 4, the class-independent decoder;
    ``pose_and_class``, and the noise: ours, after conditional variational autoencoders
    (Kingma et al. 2014).

    Example:
        >>> pose_input = tc.layers.PoseInput(classes=10, size=16, kind="pose_and_class")
        >>> poses = torch.zeros(2, 10, 16)
        >>> poses[:, 3] = torch.randn(2, 16)
        >>> pose_input(poses).shape
        torch.Size([2, 26])
    """

    classes: Size
    size: Size
    kind: DecoderInput = "masked"
    noise: NotNegative = 0.0

    def __post_init__(self) -> None:
        self.mean: Tensor
        self.deviation: Tensor
        self.updates: Tensor
        self.out_features = {
            "masked": self.classes * self.size,
            "pose": self.size,
            "pose_and_class": self.size + self.classes,
        }[self.kind]
        if self.kind == "pose_and_class":
            self.register_buffer("mean", torch.zeros(self.classes, self.size))
            self.register_buffer("deviation", torch.ones(self.classes, self.size))
            self.register_buffer("updates", torch.zeros(self.classes))

    def forward(self, poses: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Return the input of the decoder, (B, numbers).

        Args:
            poses: masked, (B, J, *pose).
            chosen: the classes that were kept, a mask (B, J), which tells the class
                even of a pose that is all 0; None for those whose poses are not.
        """
        dtype = real_dtype("poses", poses)
        expected = (self.classes, self.size)
        if (
            poses.ndim < 3
            or (*poses.shape[1:2], math.prod(poses.shape[2:])) != expected
        ):
            raise ValueError(
                f"poses must be (B, {self.classes}, *pose), {self.size} numbers for each "
                f"class, got shape {tuple(poses.shape)}"
            )
        poses = poses.flatten(2)
        alive = (poses != 0).any(2, keepdim=True)
        chosen = alive if chosen is None else (chosen != 0)[..., None]
        if self.kind == "pose_and_class":
            poses = poses.to(compute_dtype(poses))
            if self.training:
                self._follow(poses.detach(), alive)
            poses = ((poses - self.mean) / self.deviation * chosen).to(dtype)
        if self.training and self.noise:
            poses = poses + self.noise * torch.randn_like(poses) * chosen
        if self.kind == "masked":
            return poses.flatten(1)
        pose = poses.sum(1)  # all others are zero
        if self.kind == "pose":
            return pose
        return torch.cat([pose, chosen.squeeze(2).to(pose)], 1)

    @torch.no_grad()
    def _follow(self, poses: Tensor, alive: Tensor) -> None:
        """Update mean and deviation of the classes in a batch: plain averages at
        first, exponential ones after 50.
        """
        count = alive.sum(0)  # [J, 1]
        share = torch.where(
            count > 0, 1 / (self.updates[:, None] + 1).clamp(max=50), 0.0
        )
        mean = (poses * alive).sum(0) / count.clamp(min=1)
        square = (poses.square() * alive).sum(0) / count.clamp(min=1)
        before = self.deviation.square() + self.mean.square()
        self.mean += share * (mean - self.mean)
        variance = before + share * (square - before) - self.mean.square()
        self.deviation.copy_(variance.clamp(min=1e-8).sqrt())
        self.updates += (count > 0).squeeze(1)

    def shared(self, poses: Tensor, source: Tensor) -> Tensor:
        """Return what the decoder is told besides the class, (B, H), of poses (B,
        *pose) of the classes ``source`` (B,).
        """
        poses = poses.flatten(1)
        if self.kind == "pose_and_class":
            return (poses - self.mean[source]) / self.deviation[source]
        return poses

    def carried(self, poses: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Return poses (B, *pose) of the classes ``source`` (B,) as poses of ``target``
        (B,) with the same :meth:`shared`.

        With ``pose_and_class`` a pose then differs from others of the target's class as
        it did from those of the source's; with the other kinds it stays the same.
        """
        if self.kind != "pose_and_class":
            return poses
        moved = self.mean[target] + self.shared(poses, source) * self.deviation[target]
        return moved.to(real_dtype("poses", poses)).reshape(poses.shape)

    def extra_repr(self) -> str:
        """Return kind and noise."""
        return f"kind={self.kind!r}, noise={self.noise}"


class PoseInputDecoder(nn.Sequential):
    """A decoder behind the :class:`PoseInput` that makes its input."""

    def forward(self, poses: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Decode masked poses, see :meth:`PoseInput.forward`."""
        as_input, decoder = self
        return decoder(as_input(poses, chosen))
