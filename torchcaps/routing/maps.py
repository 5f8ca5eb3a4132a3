"""Maps from the logits of a child to its assignment, in place of the softmax over the
parents.
"""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.ops import Competition


@dataclass(frozen=True)
class Direct(Competition):
    """The logits are the assignment: :math:`R_{ij} = l_{ij}`."""

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """The assignments (B, I, J) of logits (B, I, J)."""
        return logits


@dataclass(frozen=True)
class Exponential(Competition):
    r"""For logits that are normalised already, or need no normalisation: :math:`R_{ij}
    = \exp l_{ij}`.
    """

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """The assignments (B, I, J) of logits (B, I, J)."""
        return logits.exp()
