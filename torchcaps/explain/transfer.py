"""Poses that move from image to image: the class of one, drawn with the pose of another."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.explain.findings import evaluating
from torchcaps.explain.poses import check_target
from torchcaps.models.base import CapsuleClassifier
from torchcaps.numerics import check_sizes
from torchcaps.squash import length


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


def draw_poses(model: CapsuleClassifier, poses: Tensor, target: Tensor) -> Tensor:
    """What the decoder draws of poses (B, *pose) as those of the classes ``target`` (B,): (B, C, H, W).

    Raises:
        RuntimeError: if the network has no decoder.
    """
    placed = poses.new_zeros(len(poses), model.classes, *poses.shape[1:])
    placed[torch.arange(len(target), device=target.device), target] = poses
    there = poses.new_zeros(len(poses), model.classes)
    with evaluating(model):
        return model.decode(Capsules(placed, there), target)


def between(content: Tensor, style: Tensor, steps: int = 1) -> Tensor:
    r"""The way from one pose to another, in even steps, the last of them at its end.

    .. math:: v_t = |v_c| \frac{d_t}{|d_t|}, \quad d_t = (1 - t) v_c + t \frac{|v_c|}{|v_s|} v_s, \quad t = 1/T \dots 1

    A vector pose keeps the length of the content's, which says only how sure it is that its class is there: what moves
    is the direction. Matrix poses move as they are, :math:`v_t = (1 - t) v_c + t v_s`.

    Args:
        content: where to begin, (B, *pose).
        style: where to end, (B, *pose).
        steps: T.

    Returns:
        (B, T, *pose).

    Raises:
        ValueError: if the shapes differ, or ``steps`` is less than 1.
    """
    check_sizes(steps=steps)
    if content.shape != style.shape:
        raise ValueError(
            f"content and style must be as many poses of one shape, got {tuple(content.shape)}, {tuple(style.shape)}"
        )
    share = torch.linspace(0, 1, steps + 1, dtype=content.dtype, device=content.device)[1:]
    share = share.view(-1, *[1] * (content.ndim - 1))
    content, style = content[:, None], style[:, None]
    if content.ndim > 3:
        return (1 - share) * content + share * style
    long = length(content)[..., None]
    way = (1 - share) * content + share * style * (long / length(style)[..., None].clamp_min(1e-12))
    return way * (long / length(way)[..., None].clamp_min(1e-12))


def transfer(
    model: CapsuleClassifier, content: Capsules, style: Capsules, target: Tensor, style_target: Tensor, steps: int = 1
) -> Tensor:
    """Draws the class of one image with the pose of another, in even steps from its own pose.

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
        steps: T, see :func:`between`.

    Returns:
        (B, T, C, H, W); the last of each T has the pose of the style.

    Raises:
        ValueError: if shapes or labels do not fit.
        RuntimeError: if the network has no decoder.

    Source: the decoder of Rajasegaran et al. 2019, "DeepCaps", section 3.3; drawn analogies: Kingma et al. 2014,
    "Semi-supervised learning with deep generative models", figure 1.
    """
    way = between(poses_of(content, target), poses_of(style, style_target), steps)
    drawn = draw_poses(model, way.flatten(0, 1), target.repeat_interleave(steps))
    return drawn.unflatten(0, (-1, steps))
