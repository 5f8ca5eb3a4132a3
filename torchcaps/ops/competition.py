"""Which parents compete for a child."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.ops.backend import Rule, VoteSource
from torchcaps.ops.similarity import Similarity
from torchcaps.ops.windows import Windows


@dataclass(frozen=True)
class Normaliser:
    r"""Which parents compete for a child: :math:`R_{ij} = \exp(l_{ij} - Z_i)`.

    This one lets all parents of the votes compete. A layer whose parents compete in another way, such as a
    convolution where a child is seen from several windows, passes a subclass with its own :meth:`rule`.

    Args:
        orphan: one more candidate with logit 0 that takes what fits no parent (leaky routing).
        hard: the most similar parent takes all of the child; not differentiable.
    """

    orphan: bool = False
    hard: bool = False

    def rule(self, source: VoteSource, similarity: Similarity | None) -> Rule:
        """The rule for one E-step."""
        return Rule(orphan=self.orphan, hard=self.hard)


@dataclass(frozen=True)
class GridWide(Normaliser):
    r"""All parents that see a child compete for it, in whatever window of the grid they are.

    .. math:: Z_{i} = \log \sum_{\text{windows } w \ni i} \sum_j \exp l_{wij}

    so that the assignment probabilities of a child add up to 1 over all types and positions of parents.

    Args:
        windows: of the convolution.
        types: of children, C.

    Source: Hinton, Sabour & Frosst 2018, section 4 and Procedure 1; Gritzman 2019, section 3.3.
    """

    windows: Windows | None = None
    types: int = 1

    def rule(self, source: VoteSource, similarity: Similarity | None) -> Rule:
        """The rule with the normaliser of each child, the same in all windows that see it."""
        if self.hard:
            raise ValueError("hard assignments compete inside one window only: use competition='window'")
        return Rule(log_partition=self.combine(source.log_partition(similarity, orphan=False)))

    def combine(self, partition: Tensor) -> Tensor:
        """From the normalisers over the parents of each window, (B, I, ...), to those over all windows, (N, G, ...).

        A child that no window sees gets 0.
        """
        assert self.windows is not None
        children = self.windows.children(self.types, partition.device)
        field = partition.reshape(-1, children.numel(), *partition.shape[2:])
        index = children.long().view(1, -1, *[1] * (field.ndim - 2)).expand_as(field)
        grid = field.new_full((len(field), self.windows.padded * self.types, *field.shape[2:]), -torch.inf)
        peak = grid.scatter_reduce(1, index, field.detach(), "amax")
        total = torch.zeros_like(grid).scatter_add(1, index, (field - peak.gather(1, index)).exp())
        seen = total > 0
        combined = torch.where(seen, peak + torch.where(seen, total, 1.0).log(), 0.0)
        if self.orphan:
            combined = torch.logaddexp(combined, combined.new_zeros(()))
        return combined
