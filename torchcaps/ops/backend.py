"""What every backend of the routing primitive takes and returns.

Symbols, as in the capsule papers: batch ``B`` (for a convolution, batch x output
positions), children ``I``, parents ``J``, pose rows ``M`` (1 for vector capsules),
child dimension ``P``, parent dimension ``D``, and the flattened vote size ``H = M *
D``.

The windows of a convolution share children. There are then ``N`` images of ``G``
children each, and ``W`` windows of ``I`` of them, named by ``sites``; the rows of the
batch are ``B = N * W``. Without windows N = B and G = I.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from torchcaps.numerics import quotient
from torchcaps.ops.competition import Competition
from torchcaps.ops.similarity import Similarity


class Moments(NamedTuple):
    r"""What the M-step needs from the votes, with the shares :math:`r_{ij} = a_i
    R_{ij}`.

    Args:
        mass: :math:`N_j = \sum_i r_{ij}`, (B, J).
        sum: :math:`S_j = \sum_i r_{ij} V_{ij}`, (B, J, H).
        scatter: :math:`Q_j = \sum_i r_{ij} (V_{ij} - S_j / N_j)^2`, (B, J, H), or None
            if it was not asked for. It is taken about the mean itself, so it does not
            cancel for votes far from zero.

    Example:
        >>> votes = tc.Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
        >>> moments = votes.moments(scatter=True)
        >>> moments.mass.shape, moments.mean.shape, moments.variance.shape
        (torch.Size([2, 3]), torch.Size([2, 3, 5]), torch.Size([2, 3, 5]))
    """

    mass: Tensor
    sum: Tensor
    scatter: Tensor | None

    @property
    def mean(self) -> Tensor:
        """The mean vote ``sum / mass``, (B, J, H); zero, with zero gradients, for a
        parent that no child chose.

        A mass of at most 1e-19 in float32 (1e-154 in float64) counts as none:
        derivatives there, which grow with 1 / mass, would overflow. Where that matters,
        give ``moments`` larger weights, all times one number.
        """
        return mean_of(self)

    @property
    def variance(self) -> Tensor:
        """The variance ``scatter / mass`` of the votes, (B, J, H); as the mean, zero
        for a parent without children.
        """
        return variance_of(self)


def mean_of(moments: Moments) -> Tensor:
    """``moments.mean`` as a function, since PyTorch 2.10 cannot compile properties of
    named tuples.
    """
    return quotient(moments.sum, moments.mass[..., None])


def variance_of(moments: Moments) -> Tensor:
    """``moments.variance`` as a function, as :func:`mean_of`."""
    if moments.scatter is None:
        raise ValueError(
            "these moments hold no scatter: ask for it with moments(..., scatter=True)"
        )
    return quotient(moments.scatter, moments.mass[..., None])


@dataclass(eq=False)
class VoteSource(ABC):
    """The contract of a backend: the votes of one layer call, and the sums that routing
    needs of them.

    A backend is free to store the votes or to form them again, tile by tile, each time
    it is asked. All its results are differentiable in every tensor that went in. Inputs
    come checked, on one device and in one dtype, float32 or wider.

    Args:
        children: the children's poses ``u``, (N, G, M, P).
        transforms: ``W``, (I, J, P, D), or (1, J, P, D) when all children share them.
        coordinates: added to every vote of a child, (I, H), or None.
        sites: which children each window has, int32 (W, I); only for a backend that is
            ``indexed``.

    Example:
        >>> votes = tc.Votes(
        ...     torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5), backend="naive"
        ... )
        >>> isinstance(votes.source, tc.ops.VoteSource), type(votes.source).__name__
        (True, 'NaiveVotes')
    """

    indexed: ClassVar[bool] = False
    """Whether the backend reads the children of windows where they lie; for others they
    are copied together.
    """

    children: Tensor
    transforms: Tensor
    coordinates: Tensor | None = None
    sites: Tensor | None = None

    @property
    def empty(self) -> bool:
        """Return whether there are no children, parents or numbers in a pose, so that
        all sums are 0. An empty batch does not count as empty.
        """
        sites = () if self.sites is None else self.sites.shape
        return 0 in (*self.children.shape[1:], *self.transforms.shape, *sites)

    @classmethod
    @abstractmethod
    def supports(cls, similarity: Similarity | None, competition: Competition) -> str:
        """Return why this backend cannot compute that similarity under that
        competition, by their types and options; empty if it can.
        """

    @abstractmethod
    def moments(
        self,
        similarity: Similarity | None,
        weights: Tensor | None,
        competition: Competition,
        log_partition: Tensor | None,
        scatter: bool,
    ) -> Moments:
        """Compute one E-step and the sums of the M-step that follows.

        Args:
            similarity: the similarity of votes and parents; None before the first step,
                when all logits are 0.
            weights: the child activations ``a``, (N, G), or None for ones.
            competition: from logits to assignment probabilities.
            log_partition: that of the competition, (N, G) or (B, 1, J), or None. One
                with a leak includes it.
            scatter: whether the second moment is wanted too.
        """

    @abstractmethod
    def logits(self, similarity: Similarity | None) -> Tensor:
        """Return the logits ``l_ij``, (B, I, J)."""

    @abstractmethod
    def log_partition(self, similarity: Similarity | None, leaky: bool) -> Tensor:
        """Return the log-partition ``Z_i`` over the parents of these votes (and the
        leak), (B, I).
        """
