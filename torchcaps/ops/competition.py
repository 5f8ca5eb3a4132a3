"""Which parents compete for a child."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.numerics import check_finite
from torchcaps.ops.backend import AssignmentMap, Rule, VoteSource
from torchcaps.ops.fields import axes
from torchcaps.ops.similarity import Adjusted, Given, Similarity
from torchcaps.ops.windows import Windows


@dataclass(frozen=True, eq=False)
class Normaliser:
    r"""The rule by which parents compete for a child: :math:`R_{ij} = \exp(l_{ij} -
    Z_i)`.

    This one lets all parents of the votes compete. A layer whose parents compete in
    another way, such as a convolution where a child is seen from several windows,
    passes a subclass with its own :meth:`rule`.

    Args:
        orphan: one more candidate with logit 0 that takes what fits no parent (leaky
            routing).
        hard: the most similar parent takes all of the child; not differentiable.
        sharpness: factor of the similarity, an inverse temperature: a number, or one
            for each parent, (J,).
        prior: added to the sharpened similarity, inside the softmax: (I, J) or (B, I,
            J).
        scale: the scale of each pair behind the softmax, with ``offset``: the parent
            takes :math:`a_i (s_{ij} R_{ij} + o_{ij})` of the child; (I, J) or (B, I,
            J). Scale 1 and offset b: a prior behind the softmax (Mazzia et al. 2021).
            Scale :math:`\beta^{use} + \beta^{ign}` and offset :math:`-\beta^{ign}`:
            credit for what is used, less what is ignored (Heinsen 2019).
        offset: (I, J) or (B, I, J).
        mapping: in place of the softmax over the parents.

    Raises:
        TypeError: if a prior, scale or offset is no tensor, or the mapping is no
            :class:`AssignmentMap`.
        ValueError: if the sharpness is no finite number, or there is a mapping with
            ``hard`` or ``orphan``.

    Example:
        >>> from torchcaps.ops import Given, Normaliser
        >>> votes = tc.Votes(
        ...     torch.randn(2, 6, 4),
        ...     torch.randn(6, 3, 4, 5),
        ...     normaliser=Normaliser(orphan=True),
        ... )
        >>> votes.moments(
        ...     Given(torch.zeros(2, 6, 3))
        ... ).mass  # a fourth of each child is left over
        tensor([[1.5000, 1.5000, 1.5000],
                [1.5000, 1.5000, 1.5000]])
    """

    orphan: bool = False
    hard: bool = False
    sharpness: float | Tensor = 1.0
    prior: Tensor | None = None
    scale: Tensor | None = None
    offset: Tensor | None = None
    mapping: AssignmentMap | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sharpness, Tensor) and self.sharpness != 1.0:
            check_finite(sharpness=self.sharpness)
        if self.prior is not None or self.scale is not None or self.offset is not None:
            self._check_tensors()
        if self.mapping is None:
            return
        if not isinstance(self.mapping, AssignmentMap):
            raise TypeError(
                f"mapping must be None or an AssignmentMap, got {self.mapping!r}"
            )
        if self.hard or self.orphan:
            raise ValueError(
                "a mapping takes the place of the softmax: it cannot be hard or have "
                "an orphan"
            )

    def _check_tensors(self) -> None:
        for name in ("prior", "scale", "offset"):
            if getattr(self, name) is not None and not isinstance(
                getattr(self, name), Tensor
            ):
                raise TypeError(
                    f"{name} must be None or a tensor, got {getattr(self, name)!r}"
                )

    @property
    def plain(self) -> bool:
        """Return whether it is a softmax over the parents of the votes, with an orphan
        or without.
        """
        # Asked in each call, and nearly always of this one.
        return self is OVER_PARENTS or (type(self) is Normaliser and self._bare)

    @property
    def _bare(self) -> bool:
        """Whether it is a softmax, of similarities as they are."""
        if self.hard or self.mapping is not None:
            return False
        alone = self.prior is None and self.scale is None and self.offset is None
        return alone and not isinstance(self.sharpness, Tensor) and self.sharpness == 1

    @property
    def plain_over_windows(self) -> bool:
        """Return whether it is a softmax over the parents of all windows that see a
        child.
        """
        return False

    def seen(self, device: torch.device) -> Tensor | None:
        """Where each child is in the windows whose parents all compete for it, as
        :meth:`Windows.seen` has it; None where those of one window compete.
        """
        return None

    def adjusted(self, similarity: Similarity | None) -> Similarity | None:
        """Return the similarity that the parents compete with, sharpened and with the
        prior.
        """
        if similarity is not None and (
            isinstance(self.sharpness, Tensor) or self.sharpness != 1.0
        ):
            similarity = similarity.sharpened(self.sharpness)
        if self.prior is None:
            return similarity
        if similarity is None:
            return Given(self.prior)
        return Adjusted(similarity, prior=self.prior)

    def rule(self, source: VoteSource, similarity: Similarity | None) -> Rule:
        """Return the rule for one E-step.

        Args:
            source: the source of the votes, on a backend that can do the similarity.
            similarity: adjusted already.
        """
        return Rule(self.orphan, self.hard, None, self.scale, self.offset, self.mapping)


@dataclass(frozen=True, eq=False)
class Shares(AssignmentMap):
    """Assignments that are given, whatever the logits are.

    Args:
        values: the assignments, (B, I, J).

    Example:
        >>> from torchcaps.ops.competition import Shares
        >>> Shares(torch.full((2, 6, 3), 0.5)).assignment(torch.randn(2, 6, 3)).unique()
        tensor([0.5000])
    """

    values: Tensor = axes("BIJ")

    def assignment(self, logits: Tensor) -> Tensor:
        """The values."""
        return self.values


@dataclass(frozen=True, eq=False)
class OverChildren(Normaliser):
    r"""Children compete for each parent of one window, and parents do not compete for a
    child.

    .. math:: R_{ij} = \operatorname{softmax}_i l_{ij}, \quad \sum_i R_{ij} = 1

    The assignments of all pairs are formed for it, (B, I, J), but no votes.

    Args:
        present: bool (B, I), False for children that are not there; None if all are.

    Example:
        >>> votes = tc.Votes(
        ...     torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5)
        ... ).over_children()
        >>> votes.moments().mass  # each parent has one child in all
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """

    present: Tensor | None = None

    def rule(self, source: VoteSource, similarity: Similarity | None) -> Rule:
        """The rule with the assignments."""
        logits = source.logits(similarity)
        if (
            self.present is not None
        ):  # a finite number, so that where no child is there nothing is NaN
            logits = logits.masked_fill(
                ~self.present[..., None], torch.finfo(logits.dtype).min
            )
        return Rule(
            scale=self.scale, offset=self.offset, mapping=Shares(logits.softmax(1))
        )


OVER_PARENTS = Normaliser()
"""A softmax over the parents, that of votes that are given no normaliser."""


@dataclass(frozen=True, eq=False)
class GridWide(Normaliser):
    r"""All parents that see a child compete for it, in all windows of the grid.

    .. math:: Z_{i} = \log \sum_{\text{windows } w \ni i} \sum_j \exp l_{wij}

    so that the assignment probabilities of a child add up to 1 over all types and
    positions of parents.

    Args:
        windows: the windows of the convolution.
        types: the number of types of children, C.

    Source: Hinton, Sabour & Frosst 2018, section 4 and Procedure 1; Gritzman 2019,
    section 3.3.

    Example:
        >>> from torchcaps.ops import GridWide, Windows
        >>> windows = Windows((6, 6), (3, 3), (1, 1), (0, 0), (1, 1))
        >>> GridWide(
        ...     windows=windows, types=8
        ... ).windows.out  # parents of all 16 windows compete
        (4, 4)
    """

    windows: Windows | None = None
    types: int = 1

    @property
    def plain_over_windows(self) -> bool:
        """Whether it is a softmax over the parents of all windows that see a child."""
        return type(self) is GridWide and self._bare and not self.orphan

    def seen(self, device: torch.device) -> Tensor | None:
        """Where each child is in the windows."""
        assert self.windows is not None
        return self.windows.seen(self.types, device)

    def rule(self, source: VoteSource, similarity: Similarity | None) -> Rule:
        """The rule with the normaliser of each child, the same in all windows that see
        it.
        """
        if self.hard:
            raise ValueError(
                "hard assignments compete inside one window only: use "
                "competition='window'"
            )
        if self.mapping is not None:
            name = type(self.mapping).__name__
            raise ValueError(
                f"the assignment map {name} is of one window only: use "
                "competition='window'"
            )
        # A rule knows one normaliser a child, so the windows are combined before the
        # step: the votes are passed over twice, and their logits are not stored.
        partition = self.combine(self.partition(source, similarity))
        return Rule(log_partition=partition, scale=self.scale, offset=self.offset)

    def partition(self, source: VoteSource, similarity: Similarity | None) -> Tensor:
        """The normaliser of each child over the parents of one window that compete, (B,
        I).
        """
        return source.log_partition(similarity, orphan=False)

    def combine(self, partition: Tensor) -> Tensor:
        """Combine the normalisers over the parents of each window, (B, I, ...), to
        those over all windows, (N, G, ...).

        A child that no window sees gets 0.
        """
        assert self.windows is not None
        children = self.windows.children(self.types, partition.device)
        field = partition.reshape(-1, children.numel(), *partition.shape[2:])
        index = children.long().view(1, -1, *[1] * (field.ndim - 2)).expand_as(field)
        grid = field.new_full(
            (field.shape[0], self.windows.padded * self.types, *field.shape[2:]),
            -torch.inf,
        )
        # A log-sum-exp by scatter. Its maximum is a constant: shifting the logits
        # changes no derivative.
        peak = grid.scatter_reduce(1, index, field.detach(), "amax")
        # Minus infinity where nobody sees a child, or all parents are infinitely far:
        # the difference from it would be NaN.
        peak = peak.masked_fill(peak == -torch.inf, 0.0)
        total = torch.zeros_like(grid).scatter_add(
            1, index, (field - peak.gather(1, index)).exp()
        )
        # Twice, so that the branch that is not taken has no logarithm of 0, whose
        # gradient would be NaN times 0.
        unseen = total == 0
        combined = torch.where(
            unseen, 0.0, peak + torch.where(unseen, 1.0, total).log()
        )
        if self.orphan:
            combined = torch.logaddexp(combined, combined.new_zeros(()))
        return combined


@dataclass(frozen=True, eq=False)
class PositionWide(GridWide):
    r"""Parents of one type compete for a child over all windows that see it; parents of
    different types do not.

    .. math:: R_{wij} = \exp(l_{wij} - Z_{ij}), \quad Z_{ij} = \log \sum_{\text{windows } w \ni i} \exp l_{wij}

    so that each type of parents shares out the whole child over its positions, or what
    an orphan leaves of it. The logits of all pairs are formed for it, (B, I, J), as
    they are for the assignment itself.

    Args:
        windows: the windows of the convolution.
        types: the number of types of children, C.

    Source: ``update_conv_routing`` of the code released with Hinton, Sabour & Frosst
    2018, from its second step on; in the first it shares a child out over the types of
    each window, 1 / J. (Its ``update_conv_routing_fast`` has the competition of
    :class:`GridWide`.)

    Example:
        >>> from torchcaps.ops import PositionWide, Windows
        >>> windows = Windows((6, 6), (3, 3), (1, 1), (0, 0), (1, 1))
        >>> PositionWide(windows=windows, types=8).types
        8
    """

    def partition(self, source: VoteSource, similarity: Similarity | None) -> Tensor:
        """The logits, (B, I, J): within one window, a type of parents competes only
        with itself.
        """
        return source.logits(similarity)
