"""Who competes for a child: how logits become the shares of the parents."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from torchcaps.ops.fields import Fields, axes
from torchcaps.ops.similarity import Similarity
from torchcaps.ops.windows import Windows

if TYPE_CHECKING:
    from torchcaps.ops.backend import VoteSource


@dataclass(frozen=True, eq=False)
class Competition(Fields):
    r"""Share a child among the parents that compete for it:
    :math:`R_{ij} = \exp(l_{ij} - Z_i)` with :math:`Z_i = \log \sum_j \exp l_{ij}`.

    With this class all parents of the votes compete. A subclass may count others in, by
    its :meth:`log_partition`, as in a convolution where several windows see a child, or
    replace the softmax, by its :meth:`shares`. Your own is a frozen dataclass that
    declares the axes of its tensors, like a :class:`~torchcaps.ops.Similarity`. With
    its own :meth:`shares` it runs on ``naive`` and ``chunked``, which pass it one tile
    at a time.

    Args:
        leaky: one more candidate with logit 0, "none of these parents" (leaky routing,
            the code released with Sabour et al. 2017); its share of the child is
            dropped.
        hard: all of the child goes to its most similar parent, or to nobody where a
            leak has a larger logit. The lowest index wins a tie. Backends round
            logits differently, so they may differ between parents with the same votes.
            Not differentiable.

    Raises:
        ValueError: if a class with :meth:`shares` of its own is hard or has a leak.

    Example:
        >>> from torchcaps.ops import Competition, Given
        >>> votes = tc.Votes(
        ...     torch.randn(2, 6, 4),
        ...     torch.randn(6, 3, 4, 5),
        ...     competition=Competition(leaky=True),
        ... )
        >>> votes.moments(
        ...     Given(torch.zeros(2, 6, 3))
        ... ).mass  # a fourth of each child is left over
        tensor([[1.5000, 1.5000, 1.5000],
                [1.5000, 1.5000, 1.5000]])
    """

    leaky: bool = field(default=False, kw_only=True)
    hard: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.replaces_softmax and (self.hard or self.leaky):
            raise ValueError(
                f"{type(self).__name__} replaces the softmax: it cannot be hard or have "
                "a leak"
            )

    replaces_softmax: ClassVar[bool] = False
    """Whether the class has :meth:`shares` of its own."""

    @property
    def is_softmax(self) -> bool:
        """Whether this is the softmax over the parents of one place, perhaps with a
        leak, and nothing else.
        """
        return type(self) is Competition and not self.hard

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Notes whether the softmax is replaced."""
        super().__init_subclass__(**kwargs)
        cls.replaces_softmax = cls.shares is not Competition.shares

    def log_partition(
        self, source: "VoteSource", similarity: Similarity | None
    ) -> Tensor | None:
        """Return Z where others compete than the parents of these votes, for
        :meth:`shares`; None where they alone do.

        Args:
            source: the votes, on the backend that makes the step.
            similarity: what they are compared with.

        Returns:
            Of each child, (N, G) as in :class:`~torchcaps.ops.Votes`; or (B, 1, J) of
            each parent, for a class with :meth:`shares` of its own.
        """
        return None

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """Return the assignment ``R_ij`` of logits, (B, I, J): of all, or of some rows
        and children.

        Args:
            logits: (B, I, J).
            log_partition: that of :meth:`log_partition`, (B, I) or (B, 1, J).
        """
        if self.hard:
            best = logits.argmax(-1, keepdim=True)
            chosen = torch.zeros_like(logits).scatter(-1, best, 1.0)
            return chosen * (logits >= 0) if self.leaky else chosen
        if log_partition is None:
            if not self.leaky:
                return logits.softmax(-1)
            log_partition = over_parents(logits, leaky=True)
        return (logits - log_partition[..., None]).exp()


PARENTS = Competition()
"""A softmax over the parents, that of votes that are given no competition."""


def over_parents(logits: Tensor, leaky: bool) -> Tensor:
    """The log-partition ``Z_i`` over the parents (and the leak), (B, I)."""
    if leaky:
        logits = torch.cat([logits, logits.new_zeros(*logits.shape[:-1], 1)], dim=-1)
    return logits.logsumexp(-1)


@dataclass(frozen=True, eq=False)
class OverChildren(Competition):
    r"""Children compete for each parent of one window, and parents do not compete for a
    child.

    .. math:: R_{ij} = \operatorname{softmax}_i l_{ij}, \quad \sum_i R_{ij} = 1

    The logits of all pairs are formed for it, (B, I, J), but no votes.

    Args:
        present: (B, I), 0 or False for children that are not there; None if all are.

    Example:
        >>> votes = tc.Votes(
        ...     torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5)
        ... ).over_children()
        >>> votes.moments().mass.allclose(torch.ones(2, 3))  # one child in all
        True
    """

    present: Tensor | None = axes("BI", default=None)

    def log_partition(
        self, source: "VoteSource", similarity: Similarity | None
    ) -> Tensor:
        """Return Z over the children, (B, 1, J)."""
        logits = self._of_present(source.logits(similarity))
        return logits.logsumexp(1, keepdim=True)

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """Return the assignment of logits (B, I, J)."""
        assert log_partition is not None
        return (self._of_present(logits) - log_partition).exp()

    def _of_present(self, logits: Tensor) -> Tensor:
        if self.present is None:
            return logits
        # A finite number, so that where no child is there nothing is NaN.
        absent = (self.present == 0)[..., None]
        return logits.masked_fill(absent, torch.finfo(logits.dtype).min)


@dataclass(frozen=True, eq=False)
class GridWide(Competition):
    r"""All parents that see a child compete for it, in all windows of the grid.

    .. math:: Z_{i} = \log \sum_{\text{windows } w \ni i} \sum_j \exp l_{wij}

    so that the assignment probabilities of a child add up to 1 over all types and
    positions of parents.

    Args:
        windows: the windows of the convolution.
        types: the number of types of children, C.

    Raises:
        ValueError: if assignments are hard.

    Source: Hinton, Sabour & Frosst 2018, section 4 and Procedure 1, and
    ``update_conv_routing_fast`` of the code released with it; Gritzman 2019, section
    3.3.

    Example:
        >>> from torchcaps.ops import GridWide, Windows
        >>> windows = Windows((6, 6), (3, 3), (1, 1), (0, 0))
        >>> GridWide(
        ...     windows=windows, types=8
        ... ).windows.out  # parents of all 16 windows compete
        (4, 4)
    """

    windows: Windows
    types: int = 1

    def __post_init__(self) -> None:
        if self.hard:
            raise ValueError(
                "hard assignments compete inside one window only: use "
                "competition='window'"
            )

    def seen(self, device: torch.device) -> Tensor:
        """Return where each child is in the windows: :meth:`Windows.seen`."""
        return self.windows.seen(self.types, device)

    def log_partition(
        self, source: "VoteSource", similarity: Similarity | None
    ) -> Tensor:
        """Return Z over the parents of all windows that see a child, (N, G); 0 for a
        child that none sees.

        The votes are passed over twice, and their logits need not be stored.
        """
        of_windows = source.log_partition(similarity, leaky=False)
        children = self.windows.children(self.types, of_windows.device)
        field = of_windows.reshape(-1, children.numel())
        index = children.long().view(1, -1).expand_as(field)
        grid = field.new_full(
            (field.shape[0], self.windows.padded * self.types), -math.inf
        )
        # A log-sum-exp by scatter. Its maximum is a constant: shifting the logits
        # changes no derivative.
        peak = grid.scatter_reduce(1, index, field.detach(), "amax")
        # Minus infinity where nobody sees a child, or all parents are infinitely far:
        # the difference from it would be NaN.
        peak = peak.masked_fill(peak == -math.inf, 0.0)
        total = torch.zeros_like(grid).scatter_add(
            1, index, (field - peak.gather(1, index)).exp()
        )
        # Twice, so that the branch that is not taken has no logarithm of 0, whose
        # gradient would be NaN times 0.
        unseen = total == 0
        combined = torch.where(
            unseen, 0.0, peak + torch.where(unseen, 1.0, total).log()
        )
        if self.leaky:
            combined = torch.logaddexp(combined, combined.new_zeros(()))
        return combined
