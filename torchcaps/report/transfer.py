"""Poses that move from image to image: the class of one, drawn with the pose of another."""

import math

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.layers import PoseInput
from torchcaps.models.base import CapsuleClassifier, in_precision_of
from torchcaps.numerics import check_size
from torchcaps.report.findings import evaluating, kept
from torchcaps.report.poses import check_target


def poses_of(capsules: Capsules, target: Tensor) -> Tensor:
    """The pose of one class of each image, (B, *pose).

    Args:
        capsules: class capsules, poses (B, J, *pose).
        target: labels (B,).

    Raises:
        ValueError: if ``target`` is not one label for each.
    """
    check_target(target, capsules.activation)
    return capsules.pose[torch.arange(len(target), device=target.device), target]


def encoded(model: CapsuleClassifier, images: Tensor, at_once: int = 64) -> Capsules:
    """The class capsules of any number of images (B, C, H, W), prepared for the network, on the CPU.

    Args:
        model: a network, left in the mode that it came in.
        images: at least one.
        at_once: how many are kept in memory.
    """
    with evaluating(model) as device:
        parts = [model.encode(in_precision_of(model, part.to(device))) for part in images.split(at_once)]
    pose, activation = torch.cat([one.pose for one in parts]), torch.cat([one.activation for one in parts])
    return Capsules(kept(pose), kept(activation))


def pose_input(model: CapsuleClassifier) -> PoseInput | None:
    """The part of a network's decoder that picks out what it is told; None if there is none, or it is told all."""
    parts = () if model.decoder is None else model.decoder.modules()
    return next((part for part in parts if isinstance(part, PoseInput)), None)


def carried(model: CapsuleClassifier, poses: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Poses (B, *pose) of classes ``source`` (B,) as poses of the classes ``target`` (B,) that mean the same.

    That takes a decoder that is told poses apart from their class, see :meth:`~torchcaps.layers.PoseInput.carried`;
    for any other the numbers stay what they are.
    """
    part = pose_input(model)
    return poses if part is None else part.carried(poses, source, target)


def draw_poses(model: CapsuleClassifier, poses: Tensor, target: Tensor) -> Tensor:
    """What the decoder draws of poses of any making, each as that of the capsule of one class; all others are masked.

    Args:
        model: a network with a decoder, left in the mode that it came in.
        poses: (B, *pose), or (B, D): matrix poses row by row.
        target: the class of each, labels (B,).

    Returns:
        Images (B, C, H, W).

    Raises:
        ValueError: if ``poses`` or ``target`` do not fit the network.
        RuntimeError: if the network has no decoder.
    """
    shape, B = model.class_caps.out_pose, len(poses)
    if poses.shape[1:] not in (shape, (math.prod(shape),)):
        raise ValueError(f"poses must be (B, {', '.join(map(str, shape))}), got shape {tuple(poses.shape)}")
    activation = poses.new_zeros(B, model.classes)
    check_target(target, activation)
    poses = in_precision_of(model, poses)
    pose = poses.new_zeros(B, model.classes, *shape)
    pose[torch.arange(B, device=poses.device), target] = poses.reshape(B, *shape)
    with evaluating(model):
        return model.decode(Capsules(pose, activation), target)


def transfer(
    model: CapsuleClassifier, content: Capsules, style: Capsules, target: Tensor, style_target: Tensor, steps: int = 1
) -> Tensor:
    r"""Draws the class of one image with the pose of another, in even steps from its own pose.

    .. math:: x_t = \operatorname{decode}_c((1 - t) v_c + t\, v_{s \to c}), \quad t = 1/T, \dots, 1

    with :math:`v_{s \to c}` the style's pose, carried over to the content's class: :func:`carried`.

    That the dimensions of a pose mean the same in all classes takes a decoder that is told them apart from the class:
    ``decoder_input="pose_and_class"``, see :class:`~torchcaps.layers.PoseInput`. One that is told the ``pose`` alone
    draws the style image again, for the pose says its class as well; a ``masked`` one has dimensions of its own for
    each class, and draws the content in some other way, but not in that of the style.

    Args:
        model: a network with a decoder.
        content: class capsules of the images whose class is kept, poses (B, J, *pose).
        style: class capsules of the images whose pose is taken.
        target: the classes of the content, labels (B,).
        style_target: the classes of the style, labels (B,).
        steps: T.

    Returns:
        (B, T, C, H, W); the last of each T has the pose of the style.

    Raises:
        ValueError: if shapes or labels do not fit, or ``steps`` is less than 1.
        RuntimeError: if the network has no decoder.

    Source: a decoder that classes share: Rajasegaran et al. 2019, "DeepCaps", section 3.3; drawn analogies: Kingma et
    al. 2014, "Semi-supervised learning with deep generative models", figure 1.
    """
    check_size(steps=steps)
    own, other = poses_of(content, target), poses_of(style, style_target)
    if own.shape != other.shape:
        raise ValueError(
            f"content and style must be as many, with poses of one shape, got {tuple(own.shape)}, {tuple(other.shape)}"
        )
    end = carried(model, other, style_target, target)
    share = torch.linspace(0, 1, steps + 1, dtype=own.dtype, device=own.device)[1:].view(-1, *[1] * (own.ndim - 1))
    way = own[:, None] + share * (end - own)[:, None]
    return draw_poses(model, way.flatten(0, 1), target.repeat_interleave(steps)).unflatten(0, (-1, steps))
