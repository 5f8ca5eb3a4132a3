"""From class capsules back to an image."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules
from torchcaps.numerics import check_finite, check_series, check_size, class_mask, compute_dtype, real_dtype
from torchcaps.routing.base import check_choice

DecoderInput = Literal["masked", "pose", "pose_and_class"]


def mask_capsules(capsules: Capsules, target: Tensor | None = None) -> Tensor:
    """The poses with all but the chosen classes set to zero, whatever they were, (B, J, *pose).

    Args:
        capsules: class capsules.
        target: the classes to keep, as labels (B,) or as a mask (B, J) for several at once; None keeps the capsule with
            the largest activation.

    Raises:
        ValueError: if the target is neither, or a label is out of range.

    Source: Sabour, Frosst & Hinton 2017, section 4.1.
    """
    mask = chosen_classes(capsules, target)
    mask = mask.reshape(*mask.shape, *[1] * len(capsules.pose_shape))
    return capsules.pose.masked_fill(mask == 0, 0.0) * mask  # NaN times 0 is NaN


def chosen_classes(capsules: Capsules, target: Tensor | None = None) -> Tensor:
    """The classes that :func:`mask_capsules` keeps, as a mask (B, J) in the dtype of the activations."""
    activation = capsules.activation
    return class_mask(activation, activation.argmax(-1) if target is None else target)


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
        check_size(in_features=in_features)
        check_series(image_shape=image_shape)
        check_series(0, hidden=hidden)
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


class PoseInput(nn.Module):
    r"""What a decoder is told of the class that it draws.

    ================== ======= ==========================================================================
    kind               numbers what a pose dimension means
    ================== ======= ==========================================================================
    ``masked``         J H     all poses, 0 but for the chosen one: each class has dimensions of its own
    ``pose``           H       the chosen pose alone, which has to say as well which class it is of
    ``pose_and_class`` H + J   how the chosen pose differs from others of its class, and which class it is
    ================== ======= ==========================================================================

    The last one standardises the poses of each class, :math:`(v_j - m_j) / s_j`, with running means and deviations
    (J, H). A capsule that is there is about 1 long, and so the poses of a class lie close together, each class in a
    corner of its own: without this the decoder would read the class from the pose, and a pose would carry its class
    along.

    Noise lets a pose say only so much: what the decoder knows from the class need not be told again by the pose, and
    poses near to each other have to draw similar images.

    Args:
        classes: J.
        size: H, the numbers of one pose.
        kind: a row of the table.
        noise: deviation of the normal noise that is added to the chosen pose in training; to the standardised one, if
            it is.

    Shape:
        Masked poses (B, J, *pose) to (B, numbers).

    Raises:
        ValueError: if ``kind`` is not in the table, or ``noise`` is negative.

    Source: ``masked``: Sabour, Frosst & Hinton 2017, section 4.1; ``pose``: Rajasegaran et al. 2019 (DeepCaps), section
    3.3, the class-independent decoder; ``pose_and_class``, and the noise: ours, after conditional variational
    autoencoders (Kingma et al. 2014).

    Example:
        >>> told = tc.layers.PoseInput(classes=10, size=16, kind="pose_and_class")
        >>> poses = torch.zeros(2, 10, 16)
        >>> poses[:, 3] = torch.randn(2, 16)
        >>> told(poses).shape
        torch.Size([2, 26])
    """

    mean: Tensor
    deviation: Tensor
    updates: Tensor

    def __init__(self, classes: int, size: int, kind: DecoderInput = "masked", noise: float = 0.0) -> None:
        super().__init__()
        check_size(classes=classes, size=size)
        check_choice("kind", kind, get_args(DecoderInput))
        check_finite(0, noise=noise)
        self.kind = kind
        self.noise = noise
        self.out_features = {"masked": classes * size, "pose": size, "pose_and_class": size + classes}[kind]
        if kind == "pose_and_class":
            self.register_buffer("mean", torch.zeros(classes, size))
            self.register_buffer("deviation", torch.ones(classes, size))
            self.register_buffer("updates", torch.zeros(classes))

    def forward(self, poses: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Picks out what the decoder is told.

        Args:
            poses: masked, (B, J, *pose).
            chosen: which of them were kept, a mask (B, J); None: those that are not zero. A capsule may be kept whose
                pose is zero, and is of its class all the same.
        """
        dtype, poses = real_dtype("poses", poses), poses.flatten(2)
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
        return pose if self.kind == "pose" else torch.cat([pose, chosen.squeeze(2).to(pose)], 1)

    @torch.no_grad()
    def _follow(self, poses: Tensor, alive: Tensor) -> None:
        """Moves mean and deviation of the classes in a batch towards it: over all batches at first, then over 50."""
        count = alive.sum(0)  # [J, 1]
        share = torch.where(count > 0, 1 / (self.updates[:, None] + 1).clamp(max=50), 0.0)
        mean = (poses * alive).sum(0) / count.clamp(min=1)
        square = (poses.square() * alive).sum(0) / count.clamp(min=1)
        before = self.deviation.square() + self.mean.square()
        self.mean += share * (mean - self.mean)
        variance = before + share * (square - before) - self.mean.square()
        self.deviation.copy_(variance.clamp(min=1e-8).sqrt())
        self.updates += (count > 0).squeeze(1)

    def shared(self, poses: Tensor, source: Tensor) -> Tensor:
        """Of poses (B, *pose) of the classes ``source`` (B,) what the decoder is told beside the class, (B, H)."""
        poses = poses.flatten(1)
        return (poses - self.mean[source]) / self.deviation[source] if self.kind == "pose_and_class" else poses

    def carried(self, poses: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """The poses (B, *pose) of classes ``source`` (B,) as poses of ``target`` (B,) that draw with the same numbers.

        With ``pose_and_class`` what differs from others of the source's class differs likewise from others of the
        target's; with the other kinds the pose stays what it is.
        """
        if self.kind != "pose_and_class":
            return poses
        moved = self.mean[target] + self.shared(poses, source) * self.deviation[target]
        return moved.to(real_dtype("poses", poses)).reshape(poses.shape)

    def extra_repr(self) -> str:
        """Kind and noise."""
        return f"kind={self.kind!r}, noise={self.noise}"


class ToldDecoder(nn.Sequential):
    """A decoder behind the :class:`PoseInput` that picks out what it is told."""

    def forward(self, poses: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Decodes masked poses, see :meth:`PoseInput.forward`."""
        given, decoder = self
        return decoder(given(poses, chosen))


def told(kind: DecoderInput, noise: float, classes: int, size: int, make: Callable[[int], nn.Module]) -> nn.Module:
    """The decoder that ``make`` makes for so many numbers, behind a :class:`PoseInput` where there is a need of one.

    Args:
        kind: of :class:`PoseInput`; what networks call ``decoder_input``.
        noise: likewise; ``pose_noise``.
        classes: J.
        size: H, the numbers of one pose.
        make: from ``in_features`` to a decoder.

    Raises:
        ValueError: if there is no such kind, or the noise is negative; names the arguments as networks do.
    """
    check_choice("decoder_input", kind, get_args(DecoderInput))
    check_finite(0, pose_noise=noise)
    given = PoseInput(classes, size, kind, noise)
    decoder = make(given.out_features)
    return decoder if kind == "masked" and not noise else ToldDecoder(given, decoder)
