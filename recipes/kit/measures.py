"""What several recipes measure alike: shares, intervals of means, and wrong answers
group by group.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import stdev

import torch
from scipy.stats import t as student
from torch import Tensor

from torchcaps.models import ImageClassifier
from torchcaps_lab.classifier import Classifier

GROUPS = 50
"""Of consecutive images, or users, for intervals: few people wrote the digits of one.
"""


def percent(hits: Tensor) -> float:
    """The mean in percent, of true and false or of shares."""
    return 100 * hits.double().mean().item()


def activations_of(network: ImageClassifier, images: Tensor) -> Tensor:
    """Of the classes, (N, E), in unprepared images, uint8 (N, C, H, W), of any size
    that the network takes.
    """
    channels, height, width = images.shape[1:]
    return Classifier(network, image_shape=(channels, height, width)).activations(
        images
    )


def all_found(activation: Tensor, present: Tensor) -> Tensor:
    """Whether the most active classes, as many as there are, are those present, bool
    (N, E): (N,).
    """
    ranks = activation.argsort(1, descending=True).argsort(1)
    return ((ranks < present.sum(1, keepdim=True)) == present).all(1)


def rank_of(activation: Tensor, labels: Tensor, rivals: Tensor) -> Tensor:
    """How many rivals come before the true class, int64 (N,): 0 if it is the first.

    A rival that is as active comes before it, and so do all of them if a number is NaN:
    a network that tells no class from another must not seem to be right.

    Args:
        activation: (N, E).
        labels: the true classes, (N,).
        rivals: the classes that compete, bool (N, E). The true class is no rival,
            whatever stands there.
    """
    of_true = activation.gather(1, labels[:, None])
    before = ~(activation < of_true) & rivals
    return before.scatter(1, labels[:, None], False).sum(1)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; 0 for one value."""
    return stdev(values) if len(values) > 1 else 0.0


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean, by Student's t; 0 for one value."""
    count = len(values)
    if count < 2:
        return 0.0
    quantile = float(student.ppf(0.975, count - 1))
    return quantile * stdev(values) / math.sqrt(count)


def by_groups(
    wrong: Mapping[str, Tensor], groups: Mapping[str, Tensor] | None = None
) -> dict[str, dict[str, list[int]]]:
    """How many images of each group were wrong, and how many there are.

    Args:
        wrong: whether each image was wrong, bool (N,), by measure.
        groups: the group of each image, int64 (N,), numbered from 0, by measure;
            default: :data:`GROUPS` groups of consecutive images.
    """
    counts: dict[str, dict[str, list[int]]] = {"wrong": {}, "images": {}}
    for measure, mask in wrong.items():
        if groups is None:
            group = torch.arange(len(mask)) * GROUPS // len(mask)
            count = GROUPS
        else:
            group = groups[measure]
            count = int(group.max()) + 1
        counts["wrong"][measure] = torch.bincount(group[mask], minlength=count).tolist()
        counts["images"][measure] = torch.bincount(group, minlength=count).tolist()
    return counts
