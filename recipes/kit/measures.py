"""What several recipes measure alike: shares, intervals of means, and wrong answers group by group."""

import math
from collections.abc import Mapping, Sequence
from statistics import stdev

import torch
from scipy.stats import t as student
from torch import Tensor

GROUPS = 50
"""Of consecutive images, or users, for intervals: few people wrote the digits of one."""


def percent(hits: Tensor) -> float:
    """The mean in percent, of true and false or of shares."""
    return 100 * hits.double().mean().item()


def deviation(values: Sequence[float]) -> float:
    """The standard deviation; 0 for one value."""
    return stdev(values) if len(values) > 1 else 0.0


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of a mean, by Student's t; 0 for one value."""
    if len(values) < 2:
        return 0.0
    return float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))


def by_groups(
    wrong: Mapping[str, Tensor], groups: Mapping[str, Tensor] | None = None
) -> dict[str, dict[str, list[int]]]:
    """How many images of each group were wrong, and how many there are.

    Args:
        wrong: which images were, bool (N,), by measure.
        groups: their groups, int64 (N,), numbered from 0; default: :data:`GROUPS` of consecutive images.
    """
    counts: dict[str, dict[str, list[int]]] = {"wrong": {}, "images": {}}
    for name, one in wrong.items():
        group = torch.arange(len(one)) * GROUPS // len(one) if groups is None else groups[name]
        count = GROUPS if groups is None else int(group.max()) + 1
        counts["wrong"][name] = torch.bincount(group[one], minlength=count).tolist()
        counts["images"][name] = torch.bincount(group, minlength=count).tolist()
    return counts
