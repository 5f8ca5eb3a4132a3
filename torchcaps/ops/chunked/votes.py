"""Bounded memory in plain PyTorch: votes are formed a tile at a time, used and dropped,
forward and backward.

Four cases, from the cheapest:

* Before the first step all logits are 0, so the sums are a matrix product of children
  and transforms.
* Given logits say how much of a child goes where before it is transformed: a matrix
  product for each parent.
* Inner products and Gaussians work on tiles of votes; backward forms each tile again.
* Any other similarity, or competition, does so too, with autograd inside each tile.
"""

from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Moments, VoteSource
from torchcaps.ops.chunked import any_similarity
from torchcaps.ops.chunked.moments import ChunkedMoments, ChunkedScores, Options
from torchcaps.ops.closed_forms import (
    given_moments,
    uniform_log_partition,
    uniform_moments,
)
from torchcaps.ops.competition import PARENTS, Competition, over_parents
from torchcaps.ops.similarity import Gaussian, Given, InnerProduct, Similarity


class ChunkedVotes(VoteSource):
    """Votes that are never stored: at most one tile of them exists at any time.

    Example:
        >>> votes = tc.Votes(
        ...     torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5), backend="chunked"
        ... )
        >>> isinstance(votes.source, tc.ops.chunked.ChunkedVotes)
        True
    """

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
        if self.empty:
            return naive.stored_moments(
                self, similarity, weights, competition, log_partition, scatter
            )
        if isinstance(similarity, Given) and not scatter:
            shares = competition.shares(self.logits(similarity), log_partition)
            if weights is not None:
                shares = shares * weights[..., None]
            return given_moments(
                self.children, self.transforms, self.coordinates, shares
            )
        hard = competition.hard
        special = competition.replaces_softmax or (hard and competition.leaky)
        if special or not _is_known(similarity):
            tile = self._tile(similarity, weights, competition, log_partition)
            return any_similarity.moments(tile, scatter)
        # The log-partition includes the leak.
        leaky = competition.leaky and log_partition is None
        even = similarity is None and self.coordinates is None
        if even and not (scatter or hard):
            return uniform_moments(
                self.children, self.transforms, weights, leaky, log_partition
            )
        options = Options(leaky, hard)
        fields = (
            self.children,
            self.transforms,
            self.coordinates,
            weights,
            log_partition,
        )
        parents = () if similarity is None else similarity.tensors
        mass, total, second = ChunkedMoments.apply(options, scatter, *fields, *parents)
        return Moments(mass, total, second)

    def log_partition(self, similarity: Similarity | None, leaky: bool) -> Tensor:
        """The log-partition over the parents, (B, I)."""
        if similarity is None:
            B, I, *_ = self.children.shape
            parents = self.transforms.shape[1] + leaky
            return uniform_log_partition(self.children, (B, I), parents)
        if self.empty or isinstance(similarity, Given):
            return over_parents(self.logits(similarity), leaky)
        if not _is_known(similarity):
            tile = self._tile(similarity, None, Competition(leaky=leaky), None)
            return any_similarity.log_partition(tile)
        return self._scores(similarity, reduced=True, leaky=leaky)

    def logits(self, similarity: Similarity | None) -> Tensor:
        """The logits, (B, I, J)."""
        if similarity is None:
            return naive.uniform_logits(self.children, self.transforms)
        if isinstance(similarity, Given):
            return similarity.values.expand(*self.children.shape[:2], -1)
        if self.empty:
            return naive.stored(self).logits(similarity)
        if not _is_known(similarity):
            return any_similarity.logits(self._tile(similarity, None, PARENTS, None))
        return self._scores(similarity, reduced=False)

    def _scores(
        self, similarity: Similarity, reduced: bool, leaky: bool = False
    ) -> Tensor:
        options = Options(leaky, hard=False)
        fields = (self.children, self.transforms, self.coordinates, None, None)
        return ChunkedScores.apply(options, reduced, *fields, *similarity.tensors)

    def _tile(
        self,
        similarity: Similarity | None,
        weights: Tensor | None,
        competition: Competition,
        log_partition: Tensor | None,
    ) -> any_similarity.Tile:
        return any_similarity.Tile(
            similarity,
            competition,
            self.children,
            self.transforms,
            self.coordinates,
            weights,
            log_partition,
        )


def _is_known(similarity: Similarity | None) -> bool:
    """Whether tiles of their own are written for it."""
    return similarity is None or type(similarity) in (InnerProduct, Gaussian)
