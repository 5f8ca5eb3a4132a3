"""Maps from the logits of a child to its assignment, in place of the softmax over the
parents.
"""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.ops import AssignmentMap


@dataclass(frozen=True)
class Direct(AssignmentMap):
    """The logits are the assignment: :math:`R_{ij} = l_{ij}`."""

    def assignment(self, logits: Tensor) -> Tensor:
        """The assignments (B, I, J) of logits (B, I, J)."""
        return logits


@dataclass(frozen=True)
class Exponential(AssignmentMap):
    r"""For logits that are normalised already, or need no normalisation: :math:`R_{ij}
    = \exp l_{ij}`.
    """

    def assignment(self, logits: Tensor) -> Tensor:
        """The assignments (B, I, J) of logits (B, I, J)."""
        return logits.exp()
