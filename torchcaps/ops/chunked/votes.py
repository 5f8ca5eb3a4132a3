"""Bounded memory in plain PyTorch: votes are formed a tile at a time, used and dropped, forward and backward.

Three cases, from the cheapest:

* Before the first step all logits are 0, so the first moment is a matrix product of children and transforms.
* Inner products never need the vote itself: ``<alpha_j, u_i W_ij> = <u_i, W_ij alpha_j>`` and
  ``sum_i r_ij u_i W_ij = sum_i (r_ij u_i) W_ij``. With shared transforms this is attention over the children.
* Everything else works on tiles of votes; backward forms each tile again.
"""

import math

from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Moments, Rule, VoteSource
from torchcaps.ops.chunked.inner_product import InnerProductMoments
from torchcaps.ops.chunked.moments import Options, TiledMoments, TiledScores
from torchcaps.ops.chunked.tiles import tile_numbers
from torchcaps.ops.closed_forms import attention_moments, uniform_moments
from torchcaps.ops.similarity import InnerProduct, Similarity


class ChunkedVotes(VoteSource):
    """Votes that are never stored: at most one tile of them exists at any time."""

    def __init__(
        self,
        children: Tensor,
        transforms: Tensor,
        coordinates: Tensor | None = None,
        budget: int | None = None,
    ) -> None:
        super().__init__(children, transforms, coordinates)
        self.budget = budget or tile_numbers(children.device)

    def moments(self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool) -> Moments:
        """One E-step and the sums of the M-step that follows."""
        contracted = not (scatter or rule.hard or self.coordinates is not None)
        if contracted and similarity is None:
            return uniform_moments(self.children, self.transforms, weights, rule)
        if contracted and isinstance(similarity, InnerProduct):
            if self.transforms.shape[0] == 1:
                return attention_moments(self.children, self.transforms, similarity.alpha, weights, rule)
            mass, total = InnerProductMoments.apply(
                self.children,
                self.transforms,
                similarity.alpha,
                weights,
                rule.log_partition,
                rule.orphan,
                self.budget,
            )
            return Moments(mass, total, None)
        options = Options(None if similarity is None else type(similarity), rule.orphan, rule.hard, self.budget)
        mass, total, second = TiledMoments.apply(
            options,
            scatter,
            self.children,
            self.transforms,
            self.coordinates,
            weights,
            rule.log_partition,
            *(similarity or ()),
        )
        return Moments(mass, total, second)

    def assignment(self, similarity: Similarity | None, rule: Rule) -> Tensor:
        """The assignment probabilities, (B, I, J)."""
        if similarity is None:
            logits = naive.uniform_logits(self.children, self.transforms)
        else:
            logits = self._scores(similarity, reduced=False)
        return naive.logits_assignment(logits, rule)

    def log_partition(self, similarity: Similarity | None, orphan: bool) -> Tensor:
        """The normaliser, (B, I)."""
        if similarity is None:
            parents = self.transforms.shape[1] + orphan
            return self.children.new_full(self.children.shape[:2], math.log(parents))
        return self._scores(similarity, reduced=True, orphan=orphan)

    def _scores(self, similarity: Similarity, reduced: bool, orphan: bool = False) -> Tensor:
        options = Options(type(similarity), orphan, hard=False, budget=self.budget)
        return TiledScores.apply(
            options, reduced, self.children, self.transforms, self.coordinates, None, None, *similarity
        )
