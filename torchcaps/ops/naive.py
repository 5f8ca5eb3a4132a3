"""The readable reference: forms all votes, stores them, and does to them what the
equations say.
"""

import torch
from torch import Tensor

from torchcaps.numerics import positive
from torchcaps.ops.backend import Moments, VoteSource
from torchcaps.ops.competition import Competition, over_parents
from torchcaps.ops.similarity import Similarity
from torchcaps.ops.windows import in_windows


def dense_votes(
    children: Tensor, transforms: Tensor, coordinates: Tensor | None = None
) -> Tensor:
    """All votes ``V_ij = u_i W_ij (+ c_i)``, (B, I, J, H)."""
    # I = 1 in transforms broadcasts.
    votes = torch.einsum("bimp,ijpd->bijmd", children, transforms).flatten(-2)
    return votes if coordinates is None else votes + coordinates[:, None]


def weighted_moments(
    votes: Tensor, assignment: Tensor, weights: Tensor | None, scatter: bool
) -> Moments:
    """The moments of the votes (B, I, J, H) under an assignment (B, I, J) and child
    activations (B, I).
    """
    share = assignment if weights is None else assignment * weights[..., None]
    mass = share.sum(1)
    if not scatter:
        return Moments(mass, torch.einsum("bij,bijh->bjh", share, votes), None)
    # The mean is rounded: the sums below correct it.
    with torch.no_grad():
        shift = torch.einsum("bij,bijh->bjh", share / positive(mass)[:, None], votes)
    centred = votes - shift[:, None]
    remainder = torch.einsum("bij,bijh->bjh", share, centred)
    second = torch.einsum("bij,bijh->bjh", share, centred.square())
    return Moments(
        mass,
        mass[..., None] * shift + remainder,
        second - remainder.square() / positive(mass)[..., None],
    )


def gram(votes: Tensor, weights: Tensor | None) -> Tensor:
    """``sum_i a_i V_ij V_ij^T`` of the votes (B, I, J, H) and child activations (B, I),
    (B, J, H, H).
    """
    votes = votes.transpose(1, 2)
    if weights is None:
        weighted = votes
    else:
        weighted = votes * weights[:, None, :, None]
    return weighted.mT @ votes


def uniform_logits(children: Tensor, transforms: Tensor) -> Tensor:
    """The logits before the first step, all zero, (B, I, J)."""
    return children.new_zeros(*children.shape[:2], transforms.shape[1])


class NaiveVotes(VoteSource):
    """Votes formed once and kept: B x I x J x H numbers."""

    def __init__(
        self, children: Tensor, transforms: Tensor, coordinates: Tensor | None = None
    ) -> None:
        super().__init__(children, transforms, coordinates)
        self.votes = dense_votes(children, transforms, coordinates)

    def logits(self, similarity: Similarity | None) -> Tensor:
        """The logits, (B, I, J)."""
        if similarity is None:
            return uniform_logits(self.children, self.transforms)
        return similarity.logits(self.votes)

    @classmethod
    def supports(cls, similarity: Similarity | None, competition: Competition) -> str:
        """Everything."""
        return ""

    def moments(
        self,
        similarity: Similarity | None,
        weights: Tensor | None,
        competition: Competition,
        log_partition: Tensor | None,
        scatter: bool,
    ) -> Moments:
        """One E-step and the sums of the M-step that follows."""
        shares = competition.shares(self.logits(similarity), log_partition)
        return weighted_moments(self.votes, shares, weights, scatter)

    def log_partition(self, similarity: Similarity | None, leaky: bool) -> Tensor:
        """The log-partition over the parents, (B, I)."""
        return over_parents(self.logits(similarity), leaky)


def stored(source: VoteSource) -> NaiveVotes:
    """The votes of another backend, stored."""
    return NaiveVotes(
        in_windows(source.children, source.sites), source.transforms, source.coordinates
    )


def stored_moments(
    source: VoteSource,
    similarity: Similarity | None,
    weights: Tensor | None,
    competition: Competition,
    log_partition: Tensor | None,
    scatter: bool,
) -> Moments:
    """The moments of another backend's votes, from stored ones: for votes that are
    ``empty``, as good as any way.
    """
    if weights is not None:
        weights = in_windows(weights, source.sites)
    if log_partition is not None and log_partition.ndim == 2:
        log_partition = in_windows(log_partition, source.sites)
    votes = stored(source)
    return votes.moments(similarity, weights, competition, log_partition, scatter)
