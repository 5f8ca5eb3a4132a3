"""What the numbers of a pose mean: move them one at a time and decode."""

import torch
from torch import Tensor

from torchcaps.capsules import Capsules
from torchcaps.models.base import CapsuleClassifier


def default_sweep() -> Tensor:
    """The paper's perturbations: 11 values from -0.25 to 0.25 in steps of 0.05.

    Source: Sabour, Frosst & Hinton 2017, section 5.1.
    """
    return torch.arange(-5, 6) / 20


def perturb(model: CapsuleClassifier, capsules: Capsules, target: Tensor, values: Tensor) -> Tensor:
    r"""Decodes the capsule of one class with each number of its pose moved by each value.

    .. math::
        x_{bdv} = \operatorname{decode}(v_{bj} + \text{values}_v \, e_d), \quad j = \text{target}_b

    All other capsules are masked as in :meth:`~torchcaps.models.CapsuleClassifier.decode`. Matrix poses are flattened,
    row by row, to D numbers.

    Args:
        model: a network with a decoder.
        capsules: its class capsules, poses (B, J, *pose).
        target: the class of each image, labels (B,).
        values: what is added, (V,), in the units of the pose: squashed vector poses are at most 1 long.

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
    return model.decode(repeated, target.repeat_interleave(D * V)).unflatten(0, (B, D, V))


def check_target(target: Tensor, activation: Tensor) -> None:
    """Raises a `ValueError` unless ``target`` is a label of each row of ``activation`` (B, J)."""
    B, J = activation.shape
    check_labels(target, B)
    if B and not 0 <= int(target.min()) <= int(target.max()) < J:
        raise ValueError(f"target must lie in 0..{J - 1}, got labels from {int(target.min())} to {int(target.max())}")


def check_labels(target: Tensor, count: int) -> None:
    """Raises a `ValueError` unless ``target`` is ``count`` integers."""
    if target.shape != (count,) or target.is_floating_point() or target.dtype == torch.bool:
        raise ValueError(f"target must be integer labels ({count},), got {target.dtype} of shape {tuple(target.shape)}")


def pose_changes(grids: Tensor) -> Tensor:
    """How far the last image of each sweep is from the first: the mean absolute difference of their pixels.

    Args:
        grids: (..., D, V, C, H, W), of :func:`perturb`.

    Returns:
        (..., D).
    """
    return (grids[..., -1, :, :, :] - grids[..., 0, :, :, :]).detach().abs().flatten(-3).mean(-1)
