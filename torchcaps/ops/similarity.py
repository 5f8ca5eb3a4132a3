"""How similar a vote is to its parent."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.numerics import resolution
from torchcaps.ops.fields import Fields, axes
from torchcaps.squashing import length


class Similarity(Fields, ABC):
    """The logits :math:`l_{ij}` of votes, which measure how well each fits its parent.

    A similarity of your own is a frozen dataclass that declares the axes of its tensors
    and has a method
    :meth:`logits`::

        @dataclass(frozen=True)
        class Cauchy(Similarity):
            centre: Tensor = axes("BJH")
            width: Tensor = axes("J")

            def logits(self, votes):
                distance = (votes - self.centre[:, None]).square().sum(-1)
                return -torch.log1p(distance / self.width.square())

    It runs on ``naive`` and on ``chunked``, which hands it one tile of votes at a time
    with the parts of its tensors that belong there, forward and backward; the fused
    backends do not take it.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, eq=False)
        ... class Laplace(tc.ops.Similarity):
        ...     centre: torch.Tensor = tc.ops.axes("BJH")
        ...
        ...     def logits(self, votes):
        ...         return -(votes - self.centre[:, None]).abs().sum(-1)
        >>> votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> votes.moments(Laplace(votes.moments().mean)).mean.shape
        torch.Size([2, 3, 5])
    """

    @abstractmethod
    def logits(self, votes: Tensor) -> Tensor:
        """Return the logits (B, I, J) of votes (B, I, J, H): of all of them, or of a
        tile of some rows and children.
        """


@dataclass(frozen=True, eq=False)
class InnerProduct(Similarity):
    r"""Similarity :math:`l_{ij} = \langle \alpha_j, V_{ij} \rangle` of a vote and its
    parent.

    Args:
        alpha: what the votes are compared with, (B, J, H).

    Example:
        >>> from torchcaps.ops import InnerProduct
        >>> votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> start = votes.moments()
        >>> votes.moments(InnerProduct(start.sum)).mass.shape
        torch.Size([2, 3])
    """

    alpha: Tensor = axes("BJH")

    def logits(self, votes: Tensor) -> Tensor:
        """Return the logits (B, I, J) of votes (B, I, J, H)."""
        return torch.einsum("bijh,bjh->bij", votes, self.alpha)


@dataclass(frozen=True, eq=False)
class Gaussian(Similarity):
    r"""Similarity :math:`l_{ij} = \gamma_j - \frac12 \sum_h \beta_{jh} (V_{ijh} -
    \mu_{jh})^2`.

    Args:
        mean: :math:`\mu`, (B, J, H).
        precision: :math:`\beta`, the inverse variances, (B, J, H).
        log_weight: :math:`\gamma`, everything that does not depend on the vote, (B, J).

    Example:
        >>> from torchcaps.ops import Gaussian
        >>> votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> mean = votes.moments().mean
        >>> moments = votes.moments(
        ...     Gaussian(mean, torch.ones_like(mean), torch.zeros(2, 3))
        ... )
        >>> moments.mean.shape
        torch.Size([2, 3, 5])
    """

    mean: Tensor = axes("BJH")
    precision: Tensor = axes("BJH")
    log_weight: Tensor = axes("BJ")

    @classmethod
    def spherical(cls, mean: Tensor, sharpness: float) -> "Gaussian":
        r"""Create equal spheres, as in K-Means: :math:`l_{ij} = -K |V_{ij} - \mu_j|^2`.

        Args:
            mean: :math:`\mu`, (B, J, H).
            sharpness: K; the variance is 1 / (2 K).
        """
        return cls(
            mean, torch.full_like(mean, 2 * sharpness), torch.zeros_like(mean[..., 0])
        )

    @classmethod
    def likelihood(
        cls,
        mean: Tensor,
        variance: Tensor,
        log_prior: Tensor,
        sharpness: float = 1.0,
        log_determinant: Tensor | None = None,
    ) -> "Gaussian":
        r"""Create the similarity :math:`\log \pi_j + s \log \mathcal N(V_{ij}; \mu_j,
        \sigma_j^2)`, but for a constant.

        The logarithm adds up H dimensions, and it does not change when all votes are
        scaled: unlike under an inner product, no weight can learn how sharp the
        assignment is. With s = 1 one M-step leaves it all but hard. With s = 1 / H it
        is the mean over the dimensions that counts.

        Args:
            mean: :math:`\mu`, (B, J, H).
            variance: :math:`\sigma^2`, (B, J, H).
            log_prior: :math:`\log \pi`, or the logarithm of an activation, (B, J).
            sharpness: s, an inverse temperature of the likelihood alone.
            log_determinant: the sum of the logarithms of the variances, (B, J), if it
                is known.
        """
        if log_determinant is None:
            log_determinant = variance.log().sum(-1)
        precision = variance.reciprocal()
        if sharpness != 1:
            precision = precision * sharpness
        log_weight = torch.add(log_prior, log_determinant, alpha=-sharpness / 2)
        return cls(mean, precision, log_weight)

    def logits(self, votes: Tensor) -> Tensor:
        """Return the logits (B, I, J) of votes (B, I, J, H)."""
        distance = (votes - self.mean[:, None]).square()
        return (
            self.log_weight[:, None]
            - torch.einsum("bijh,bjh->bij", distance, self.precision) / 2
        )


@dataclass(frozen=True, eq=False)
class Distance(Similarity):
    r"""Similarity :math:`l_{ij} = -K |V_{ij} - \mu_j|`: the distance itself, and not
    its square as in a Gaussian.

    Votes far away count for more than under a Gaussian. Its gradient has one length, K,
    for all votes but those at :math:`\mu_j`, but for rounding, where it is 0. It runs on
    ``naive`` and ``chunked``.

    Args:
        centre: :math:`\mu`, (B, J, H).
        sharpness: K.

    Example:
        >>> votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> votes.moments(tc.ops.Distance(votes.moments().mean, 2.0)).mean.shape
        torch.Size([2, 3, 5])
    """

    centre: Tensor = axes("BJH")
    sharpness: float = 1.0

    def logits(self, votes: Tensor) -> Tensor:
        """The logits (B, I, J) of votes (B, I, J, H)."""
        distance = length(votes - self.centre[:, None])
        # The mean of a single vote differs from it by rounding, which has a direction.
        rounding = resolution(length(self.centre))[:, None]
        return -self.sharpness * torch.where(distance <= rounding, 0.0, distance)


@dataclass(frozen=True, eq=False)
class Given(Similarity):
    """Logits :math:`l_{ij}` that do not depend on the votes.

    Args:
        values: the logits, (B, I, J), or (I, J) for all rows.

    Example:
        >>> votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> votes.moments(
        ...     tc.ops.Given(torch.zeros(2, 6, 3))
        ... ).mass  # the same share for all
        tensor([[2., 2., 2.],
                [2., 2., 2.]])
    """

    values: Tensor = axes("IJ", "BIJ")

    def logits(self, votes: Tensor) -> Tensor:
        """Return the logits (B, I, J) of votes (B, I, J, H)."""
        return self.values.expand(votes.shape[:3])
