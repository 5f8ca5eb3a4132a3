"""Bounded memory in plain PyTorch: votes are formed a tile at a time, used and dropped,
forward and backward.

Five cases, from the cheapest:

* Before the first step all logits are 0, so the sums are a matrix product of children
  and transforms.
* Given logits say how much of a child goes where before it is transformed: a matrix
  product for each parent.
* Inner products with shared transforms are attention over the children: ``<alpha_j, u_i
  W_j> = <u_i, W_j alpha_j>`` and ``sum_i r_ij u_i W_j = (sum_i r_ij u_i) W_j``.
* Other inner products, and Gaussians, work on tiles of votes; backward forms each tile
  again.
* Any other similarity, or rule, does so too, with autograd inside each tile.
"""

import math

from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Moments, Rule, VoteSource
from torchcaps.ops.chunked import any_similarity
from torchcaps.ops.chunked.moments import ChunkedMoments, ChunkedScores, Options
from torchcaps.ops.chunked.tiles import tile_numbers
from torchcaps.ops.closed_forms import attention_moments, given_moments, uniform_moments
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

    def __init__(
        self,
        children: Tensor,
        transforms: Tensor,
        coordinates: Tensor | None = None,
        budget: int | None = None,
    ) -> None:
        super().__init__(children, transforms, coordinates)
        self.budget = budget or tile_numbers(children.device)

    @classmethod
    def supports(cls, similarity: Similarity | None, rule: Rule) -> str:
        """Everything."""
        return ""

    def moments(
        self,
        similarity: Similarity | None,
        weights: Tensor | None,
        rule: Rule,
        scatter: bool,
    ) -> Moments:
        """One E-step and the sums of the M-step that follows."""
        if self.empty:
            return naive.stored_moments(self, similarity, weights, rule, scatter)
        if isinstance(similarity, Given) and not scatter:
            shares = self._given_shares(similarity, weights, rule)
            return given_moments(
                self.children, self.transforms, self.coordinates, shares
            )
        if rule.special or not _is_known(similarity):
            return any_similarity.moments(
                self._tile(similarity, weights, rule), scatter, self.budget
            )
        without_votes = not (scatter or rule.hard or self.coordinates is not None)
        if without_votes and similarity is None:
            return uniform_moments(self.children, self.transforms, weights, rule)
        # A given normaliser was made of the logits of tiles of votes: others differ by
        # rounding.
        shared = self.transforms.shape[0] == 1
        if (
            without_votes
            and shared
            and isinstance(similarity, InnerProduct)
            and rule.log_partition is None
        ):
            return attention_moments(
                self.children, self.transforms, similarity.alpha, weights, rule
            )
        options = Options(
            None if similarity is None else type(similarity),
            rule.orphan,
            rule.hard,
            self.budget,
        )
        fields = (
            self.children,
            self.transforms,
            self.coordinates,
            weights,
            rule.log_partition,
        )
        parents = () if similarity is None else similarity.tensors
        mass, total, second = ChunkedMoments.apply(options, scatter, *fields, *parents)
        return Moments(mass, total, second)

    def assignment(self, similarity: Similarity | None, rule: Rule) -> Tensor:
        """The assignment probabilities, (B, I, J)."""
        return naive.logits_assignment(self.logits(similarity), rule)

    def log_partition(self, similarity: Similarity | None, orphan: bool) -> Tensor:
        """The normaliser, (B, I)."""
        if similarity is None:
            parents = self.transforms.shape[1] + orphan
            return self.children.new_full(
                self.children.shape[:2], math.log(parents) if parents else -math.inf
            )
        if self.empty or isinstance(similarity, Given):
            return naive.logits_partition(self.logits(similarity), orphan)
        if not _is_known(similarity):
            return any_similarity.log_partition(
                self._tile(similarity, None, Rule(orphan)), self.budget
            )
        return self._scores(similarity, reduced=True, orphan=orphan)

    def logits(self, similarity: Similarity | None) -> Tensor:
        """The logits, (B, I, J)."""
        if similarity is None:
            return naive.uniform_logits(self.children, self.transforms)
        if isinstance(similarity, Given):
            return similarity.values.expand(*self.children.shape[:2], -1)
        if self.empty:
            return naive.stored(self).logits(similarity)
        if not _is_known(similarity):
            return any_similarity.logits(
                self._tile(similarity, None, Rule()), self.budget
            )
        return self._scores(similarity, reduced=False)

    def _scores(
        self,
        similarity: Similarity,
        reduced: bool,
        orphan: bool = False,
    ) -> Tensor:
        options = Options(type(similarity), orphan, hard=False, budget=self.budget)
        fields = (self.children, self.transforms, self.coordinates, None, None)
        return ChunkedScores.apply(options, reduced, *fields, *similarity.tensors)

    def _given_shares(
        self,
        similarity: Given,
        weights: Tensor | None,
        rule: Rule,
    ) -> Tensor:
        shares = naive.pair_shares(
            naive.logits_assignment(self.logits(similarity), rule), rule
        )
        return shares if weights is None else shares * weights[..., None]

    def _tile(
        self,
        similarity: Similarity | None,
        weights: Tensor | None,
        rule: Rule,
    ) -> any_similarity.Tile:
        return any_similarity.Tile(
            similarity, rule, self.children, self.transforms, self.coordinates, weights
        )


def _is_known(similarity: Similarity | None) -> bool:
    """Whether tiles of their own are written for it."""
    return similarity is None or type(similarity) in (InnerProduct, Gaussian)
