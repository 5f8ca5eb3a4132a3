"""How similar a vote is to its parent."""

from typing import NamedTuple

from torch import Tensor


class InnerProduct(NamedTuple):
    r"""Similarity :math:`l_{ij} = \langle \alpha_j, V_{ij} \rangle` of a vote and its parent.

    Args:
        alpha: what the votes are compared with, (B, J, H).
    """

    alpha: Tensor


class Gaussian(NamedTuple):
    r"""Similarity :math:`l_{ij} = \gamma_j - \frac12 \sum_h \beta_{jh} (V_{ijh} - \mu_{jh})^2`.

    Args:
        mean: :math:`\mu`, (B, J, H).
        precision: :math:`\beta`, the inverse variances, (B, J, H).
        log_weight: :math:`\gamma`, everything that does not depend on the vote, (B, J).
    """

    mean: Tensor
    precision: Tensor
    log_weight: Tensor


Similarity = InnerProduct | Gaussian
