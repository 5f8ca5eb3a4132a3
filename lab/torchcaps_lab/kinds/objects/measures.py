"""How well the slots of an image match its objects, whatever the order of the slots."""

import math

import torch
from torch import Tensor

from torchcaps.numerics import resolution

GROUND = 0
"""The label of pixels of no object."""

UNKNOWN = 255
"""The label of pixels of which nothing is known."""


def contingency(true: Tensor, slots: Tensor) -> Tensor:
    """How many pixels each object shares with each slot, (B, K, J), float64 on the CPU:
    not every device has it, and pairs of pixels are too many for float32.

    Args:
        true: the object of each pixel, int64 (B, H, W); 255 counts for nothing.
        slots: the slot of each pixel, int64 (B, H, W).
    """
    true = true.to(slots.device)
    labelled = true != UNKNOWN
    objects = true.where(labelled, 0)
    sizes = len(true), int(objects.max()) + 1, int(slots.max()) + 1
    images = torch.arange(len(true), device=true.device)[:, None, None]
    cells = (images * sizes[1] + objects) * sizes[2] + slots
    counts = torch.bincount(cells[labelled], minlength=math.prod(sizes))
    return counts.view(sizes).cpu().double()


def adjusted_rand_index(true: Tensor, slots: Tensor) -> Tensor:
    r"""The adjusted Rand index of two partitions of the pixels of each image, (B,).

    .. math::
        \frac{\sum_{kj} \binom{n_{kj}}{2} - E}{\frac12 (A + B) - E}, \quad
        A = \sum_k \binom{n_k}{2}, \; B = \sum_j \binom{n_j}{2}, \;
        E = A B \Big/ \binom{n}{2}

    It is 1 for equal partitions, and 0 on average for random ones. An image with one
    object alone, found in one slot alone, has 1.

    Args:
        true: the object of each pixel, int64 (B, H, W); 255 counts for nothing.
        slots: the slot of each pixel, int64 (B, H, W).

    Source: Hubert & Arabie 1985, "Comparing partitions".
    """
    counts = contingency(true, slots)
    both = _pairs(counts).sum((1, 2))
    first = _pairs(counts.sum(2)).sum(1)
    second = _pairs(counts.sum(1)).sum(1)
    expected = first * second / _pairs(counts.sum((1, 2))).clamp_min(1)
    most = (first + second) / 2
    same = most - expected <= resolution(most)
    return torch.where(same, 1.0, (both - expected) / (most - expected).where(~same, 1))


def _pairs(count: Tensor) -> Tensor:
    return count * (count - 1) / 2


def foreground_rand_index(true: Tensor, slots: Tensor) -> Tensor:
    """The adjusted Rand index over the pixels of objects, FG-ARI, (B,).

    It does not say whether the ground is told from the objects, see
    :func:`adjusted_rand_index`.

    Args:
        true: the object of each pixel, int64 (B, H, W): 0 is the ground, 255 counts for
            nothing.
        slots: the slot of each pixel, int64 (B, H, W).

    Source: Greff et al. 2019, "Multi-Object Representation Learning with Iterative
    Variational Inference".
    """
    return adjusted_rand_index(true.where(true != GROUND, UNKNOWN), slots)


def best_overlap(true: Tensor, slots: Tensor) -> Tensor:
    """The intersection over union of each object with the slot that fits it best, mean
    over the objects of an image, mBO, (B,); 1 for an image without objects.

    Args:
        true: the object of each pixel, int64 (B, H, W): 0 is the ground, 255 counts for
            nothing.
        slots: the slot of each pixel, int64 (B, H, W).

    Source: Pont-Tuset et al. 2017, "Multiscale Combinatorial Grouping".
    """
    counts = contingency(true, slots)
    union = counts.sum(2, keepdim=True) + counts.sum(1, keepdim=True) - counts
    overlap = (counts / union.clamp_min(1)).amax(2)[:, 1:]
    present = counts.sum(2)[:, 1:] > 0
    number = present.sum(1)
    mean = (overlap * present).sum(1) / number.clamp_min(1)
    return torch.where(number > 0, mean, 1.0)
