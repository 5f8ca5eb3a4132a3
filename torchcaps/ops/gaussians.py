"""Gaussians that are fitted to the votes of each parent."""

from typing import NamedTuple

from torch import Tensor


class Gaussians(NamedTuple):
    """Gaussians of the parents, whose dimensions are independent.

    Args:
        mean: (B, J, H).
        variance: (B, J, H).
        precision: 1 / variance, (B, J, H).
        log_determinant: the sum of the logarithms of the variances, (B, J).

    Example:
        >>> found = tc.ops.Gaussians.of(torch.zeros(2, 3, 4), torch.full((2, 3, 4), 2.0))
        >>> found.precision[0, 0], found.log_determinant[0]  # 4 log 2
        (tensor([0.5000, 0.5000, 0.5000, 0.5000]), tensor([2.7726, 2.7726, 2.7726]))
    """

    mean: Tensor
    variance: Tensor
    precision: Tensor
    log_determinant: Tensor

    @classmethod
    def of(cls, mean: Tensor, variance: Tensor) -> "Gaussians":
        """With these means and variances."""
        return cls(mean, variance, variance.reciprocal(), variance.log().sum(-1))
