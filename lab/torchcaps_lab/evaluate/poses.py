"""Poses: moved one number at a time, carried from image to image, and drawn."""

import math

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.models.base import CapsuleClassifier, CapsuleNetwork, in_precision_of
from torchcaps.numerics import check_size
from torchcaps_lab.evaluate.findings import evaluating, in_parts, kept
from torchcaps_lab.evaluate.targets import check_target


def default_sweep() -> Tensor:
    """Return the paper's perturbations: 11 values from -0.25 to 0.25 in steps of 0.05.

    Source: Sabour, Frosst & Hinton 2017, section 5.1.
    """
    return torch.arange(-5, 6) / 20


def perturb(
    model: CapsuleClassifier, capsules: Capsules, target: Tensor, values: Tensor
) -> Tensor:
    r"""Decode the capsule of one class with each number of its pose moved by each
    value.

    .. math::
        x_{bdv} = \operatorname{decode}(v_{bj} + \text{values}_v \, e_d), \quad j = \text{target}_b

    All other capsules are masked as in
    :meth:`~torchcaps.models.CapsuleClassifier.decode`. Matrix poses are flattened, row
    by row, to D numbers.

    Args:
        model: a network with a decoder.
        capsules: its class capsules, poses (B, J, *pose).
        target: the class of each image, labels (B,).
        values: what is added, (V,), in the units of the pose: squashed vector poses are
            at most 1 long.

    Returns:
        Images (B, D, V, C, H, W).

    Raises:
        ValueError: if ``target`` or ``values`` do not fit.
        RuntimeError: if the network has no decoder.

    Source: Sabour, Frosst & Hinton 2017, section 5.1 and figure 4.
    """
    check_target(target, capsules.activation)
    if values.ndim != 1:
        raise ValueError(f"values must be (V,), got shape {tuple(values.shape)}")
    pose = capsules.pose.flatten(2)
    (B, _, D), V = pose.shape, len(values)
    directions = torch.eye(D, dtype=pose.dtype, device=pose.device)
    steps = torch.einsum("de,v->dve", directions, values.to(pose))  # [D, V, D]
    moved = pose[:, None, None].repeat(1, D, V, 1, 1)  # [B, D, V, J, D]
    moved[torch.arange(B, device=pose.device), :, :, target] += steps
    poses = moved.flatten(0, 2).unflatten(-1, capsules.pose_shape)
    repeated = Capsules(poses, capsules.activation.repeat_interleave(D * V, 0))
    return model.decode(repeated, target.repeat_interleave(D * V)).unflatten(
        0, (B, D, V)
    )


def pose_changes(grids: Tensor) -> Tensor:
    """How far the last image of each sweep is from the first: the mean absolute
    difference of their pixels.

    Args:
        grids: (..., D, V, C, H, W), of :func:`perturb`.

    Returns:
        (..., D).
    """
    return (
        (grids[..., -1, :, :, :] - grids[..., 0, :, :, :])
        .detach()
        .abs()
        .flatten(-3)
        .mean(-1)
    )


def poses_of(capsules: Capsules, target: Tensor) -> Tensor:
    """Return the pose of one class of each image, (B, *pose).

    Args:
        capsules: class capsules, poses (B, J, *pose).
        target: labels (B,).

    Raises:
        ValueError: if ``target`` is not one label for each.
    """
    check_target(target, capsules.activation)
    return capsules.pose[torch.arange(len(target), device=target.device), target]


def encoded(model: CapsuleNetwork, images: Tensor, at_once: int = 64) -> Capsules:
    """The class capsules of any number of inputs, prepared for the network, on
    the CPU.

    Args:
        model: a network, left in the mode that it came in.
        images: at least one.
        at_once: how many are kept in memory.
    """
    parts = in_parts(model, images, model.encode, at_once)
    return Capsules(*(kept(torch.cat(part)) for part in zip(*parts, strict=True)))


def carried(
    model: CapsuleClassifier, poses: Tensor, source: Tensor, target: Tensor
) -> Tensor:
    """Poses (B, *pose) of classes ``source`` (B,) as poses of the classes ``target``
    (B,) that mean the same.

    That takes a decoder that is told poses apart from their class, see
    :meth:`~torchcaps.layers.PoseInput.carried`; for any other the numbers stay what
    they are.
    """
    part = model.pose_input
    return poses if part is None else part.carried(poses, source, target)


def draw_poses(model: CapsuleClassifier, poses: Tensor, target: Tensor) -> Tensor:
    """Draw any poses with the decoder, each as that of the capsule of one class; all
    others are masked.

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
    shape = model.class_caps.out_pose
    B = len(poses)
    if poses.shape[1:] not in (shape, (math.prod(shape),)):
        raise ValueError(
            f"poses must be (B, {', '.join(map(str, shape))}), got shape "
            f"{tuple(poses.shape)}"
        )
    activation = poses.new_zeros(B, model.classes)
    check_target(target, activation)
    poses = in_precision_of(model, poses)
    pose = poses.new_zeros(B, model.classes, *shape)
    pose[torch.arange(B, device=poses.device), target] = poses.reshape(B, *shape)
    with evaluating(model):
        return model.decode(Capsules(pose, activation), target)


def transfer(
    model: CapsuleClassifier,
    content: Capsules,
    style: Capsules,
    target: Tensor,
    style_target: Tensor,
    steps: int = 1,
) -> Tensor:
    r"""Draw the class of one image with the pose of another, in even steps from its own
    pose.

    .. math:: x_t = \operatorname{decode}_c((1 - t) v_c + t\, v_{s \to c}), \quad t = 1/T, \dots, 1

    with :math:`v_{s \to c}` the style's pose, carried over to the content's class:
    :func:`carried`.

    That the dimensions of a pose mean the same in all classes takes a decoder that is
    told them apart from the class: ``decoder_input="pose_and_class"``, see
    :class:`~torchcaps.layers.PoseInput`. One that is told the ``pose`` alone draws the
    style image again, for the pose says its class as well; a ``masked`` one has
    dimensions of its own for each class, and draws the content in some other way, but
    not in that of the style.

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

    Source: a decoder that classes share: Rajasegaran et al. 2019, "DeepCaps", section
    4; drawn analogies: Kingma et al. 2014, "Semi-supervised learning with deep
    generative models", figure 1.
    """
    check_size(steps=steps)
    content_poses = poses_of(content, target)
    style_poses = poses_of(style, style_target)
    if content_poses.shape != style_poses.shape:
        raise ValueError(
            "content and style must be as many, with poses of one shape, got "
            f"{tuple(content_poses.shape)}, {tuple(style_poses.shape)}"
        )
    end = carried(model, style_poses, style_target, target)
    share = torch.linspace(
        0, 1, steps + 1, dtype=content_poses.dtype, device=content_poses.device
    )[1:].view(-1, *[1] * (content_poses.ndim - 1))
    path = content_poses[:, None] + share * (end - content_poses)[:, None]
    return draw_poses(
        model, path.flatten(0, 1), target.repeat_interleave(steps)
    ).unflatten(0, (-1, steps))
