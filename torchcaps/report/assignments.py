"""Where the children of an image went: routing, seen from the image."""

import math

import torch
from torch import Tensor

from torchcaps.models.base import CapsuleClassifier
from torchcaps.report.poses import check_target


def assignment_maps(model: CapsuleClassifier, images: Tensor, target: Tensor | None = None) -> Tensor:
    r"""How much of the children at each position of an image went to one class.

    .. math::
        m_{yx} = \frac{\sum_t a_{yxt} R_{yxtj}}{\sum_t a_{yxt}}

    over the types t of children at that position, with j the class, a the children's activations and R the last
    assignment: the share of the active children, in [0, 1]. Added up over all classes it is 1, or less where a routing
    lets children go to no class. Where no child is active at all, all types count the same.

    Args:
        model: a network whose children lie on a grid.
        images: (B, C, H, W).
        target: the class of each image, labels (B,); None for the most active class.

    Returns:
        The maps (B, H', W'), at the positions of the children.

    Raises:
        ValueError: if ``target`` does not fit, or the children do not lie on a grid.
    """
    children = model.children_of(images)
    routed = model.class_caps.route(children)
    if target is None:
        target = routed.activation.argmax(-1)
    check_target(target, routed.activation)
    activation = children.activation
    if activation.ndim not in (3, 4):
        raise ValueError(
            f"children of images must lie on a grid (B, H', W') or (B, H', W', types), got {tuple(activation.shape)}"
        )
    weight = activation if activation.ndim == 4 else activation.unsqueeze(-1)  # [B, H', W', types]
    assignment = routed.assignment
    rows = torch.arange(len(target), device=assignment.device)
    share = assignment[rows, :, target].reshape(weight.shape)
    weight = weight.to(share.dtype)
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, 1.0)
    return (weight * share).sum(-1) / weight.sum(-1)


def assignment_entropy(assignment: Tensor) -> Tensor:
    r"""How undecided routing was, from 0 (each child went to one parent) to 1 (all parents got the same).

    .. math::
        \frac{-1}{I \log J} \sum_{ij} R_{ij} \log R_{ij}

    For routings that let children go to no parent, R is first divided by its sum over the parents. With one parent
    there is nothing to decide: 0.

    Args:
        assignment: R, (B, I, J).

    Returns:
        (B,), no units: nats over log J nats.

    Raises:
        ValueError: if ``assignment`` has another number of axes.

    Assignments that turn hard as the steps grow: Paik, Kwak & Kim 2019, "Capsule Networks Need an Improved Routing
    Algorithm".
    """
    if assignment.ndim != 3:
        raise ValueError(f"assignment must be (B, I, J), got shape {tuple(assignment.shape)}")
    J = assignment.shape[-1]
    if J == 1:
        return assignment.new_zeros(len(assignment))
    share = ratio(assignment, assignment.sum(-1, keepdim=True), 1 / J)
    return (-torch.xlogy(share, share).sum(-1).mean(-1) / math.log(J)).clamp(0, 1)  # rounding may lead out of [0, 1]


def ratio(part: Tensor, whole: Tensor, otherwise: Tensor | float) -> Tensor:
    """``part / whole``, or ``otherwise`` where the whole is 0; its gradients are finite there."""
    there = whole > 0
    return torch.where(there, part / torch.where(there, whole, 1.0), otherwise)


def dead_capsules(activation: Tensor, threshold: float = 0.01) -> float:
    """The share of capsules whose activation stays at or below the threshold for every image.

    Args:
        activation: (N, J), of J capsules for N images.
        threshold: in units of the activation.

    Raises:
        ValueError: if ``activation`` has another number of axes, or no images.
    """
    if activation.ndim != 2 or not len(activation):
        raise ValueError(f"activation must be (N, J) of at least one image, got shape {tuple(activation.shape)}")
    return (activation.amax(0) <= threshold).double().mean().item()
