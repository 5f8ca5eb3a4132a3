"""Votes: what routing algorithms are written against."""

import math
from dataclasses import replace
from numbers import Real
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from torchcaps.numerics import check_size, compute_dtype, full_precision
from torchcaps.ops.backend import (
    SOFTMAX,
    Agreement,
    Gaussians,
    Moments,
    Rule,
    VoteSource,
)
from torchcaps.ops.chunked import any_similarity
from torchcaps.ops.chunked.tiles import tile_numbers
from torchcaps.ops.closed_forms import offset_moments
from torchcaps.ops.competition import OVER_PARENTS, Normaliser, OverChildren
from torchcaps.ops.fields import FieldsType, check_field, check_votes
from torchcaps.ops.naive import NaiveVotes, dense_votes, gram
from torchcaps.ops.plan import BACKENDS, Choice, left_open, plan, preferred_backend
from torchcaps.ops.similarity import Similarity
from torchcaps.ops.windows import in_windows
from torchcaps.squashing import kind_of


class Votes:
    r"""The votes :math:`V_{ij} = u_i W_{ij} (+ c_i)` of children for parents, formed
    when needed.

    Args:
        children: poses ``u``, (N, G, P) for vector capsules or (N, G, M, P) for matrix
            capsules.
        transforms: ``W``, (I, J, P, D), or (1, J, P, D) when all children share them.
        coordinates: added to each vote of a child, (I, H) with H = M * D, or None.
        normaliser: which parents compete for a child.
        backend: one of :data:`BACKENDS`, ``"auto"``, or None to let
            :func:`choose_backend` decide.
        sites: int32 (W, I): the children of each of W windows, as indices into the G
            children; the rows of the batch are then B = N * W. None: one window with
            all children, B = N and I = G.
        mask: bool (N, G), False for children that are not there. Their poses and
            activations may be anything, NaN too: they enter no result and no gradient.

    Attributes:
        shape: (B, I, J, H), the shape the votes would have if they were stored;
            ``sizes`` has it by letter.
        poses: of the children, (N, G, M, P): without what :meth:`with_bias` puts beside
            them.
        dtype: that is computed in, float32 at least.

    Raises:
        TypeError: if something is no tensor, or the normaliser no :class:`Normaliser`.
        ValueError: if a shape, dtype or device does not fit, a tensor is complex, or a
            site lies outside the children.

    Example:
        >>> votes = tc.Votes(
        ...     torch.randn(4, 32, 8), torch.randn(32, 10, 8, 16)
        ... )  # children, transforms
        >>> votes.shape  # examples, children, parents, numbers of a vote
        (4, 32, 10, 16)
        >>> moments = votes.moments()  # every child goes to all parents alike
        >>> moments.mean.shape
        torch.Size([4, 10, 16])
        >>> similarity = tc.ops.InnerProduct(moments.sum)
        >>> votes.assignment(similarity).sum(2).allclose(torch.ones(4, 32))
        True
    """

    __slots__ = (
        "__weakref__",
        "_preferred",
        "_sources",
        "_versions",
        "backend",
        "children",
        "coordinates",
        "dtype",
        "mask",
        "normaliser",
        "poses",
        "shape",
        "sites",
        "sizes",
        "transforms",
    )
    fields: ClassVar[tuple[str, ...]] = __slots__[1:]
    """The attributes that a copy has: those of this class, and of a subclass those that
    it adds.
    """

    def __init__(
        self,
        children: Tensor,
        transforms: Tensor,
        coordinates: Tensor | None = None,
        normaliser: Normaliser | None = None,
        backend: str | None = None,
        sites: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> None:
        if normaliser is not None:
            check_normaliser(normaliser)
        self.children, self.shape = check_votes(
            children, transforms, coordinates, sites, mask
        )
        self.sizes = dict(zip("BIJH", self.shape, strict=True))
        if mask is not None:
            self.children = torch.where(mask[..., None, None], self.children, 0.0)
        self.poses = self.children
        self.transforms = transforms
        self.coordinates = coordinates
        self.normaliser = normaliser or OVER_PARENTS
        self.backend = backend
        self.sites = sites
        self.mask = mask
        self.dtype = compute_dtype(self.children, transforms)
        self._preferred: Choice | None = None
        self._sources: dict[str, VoteSource] = {}
        self._versions = _versions(self.children, transforms)

    @property
    def parents(self) -> int:
        """The number of parents J."""
        return self.shape[2]

    @property
    def source(self) -> VoteSource:
        """The votes on the backend that is preferred for them, whatever the similarity
        and the rule.
        """
        return self.source_on(self.preferred.backend)

    @property
    def preferred(self) -> Choice:
        """The backend that is preferred for these votes, and why."""
        if self._preferred is None:
            self._preferred = preferred_backend(self)
        return self._preferred

    def source_on(self, backend: str) -> VoteSource:
        """The votes on one of :data:`BACKENDS`, made once."""
        source = self._sources.get(backend)
        if source is None:
            source = self._sources[backend] = self._make_source(BACKENDS[backend])
        return source

    def _make_source(self, backend: type[VoteSource]) -> VoteSource:
        coordinates = (
            None if self.coordinates is None else self.coordinates.to(self.dtype)
        )
        if (
            backend.indexed
            and self.children.dtype == self.transforms.dtype == self.dtype
        ):  # nothing to cast or gather
            return backend(self.children, self.transforms, coordinates, self.sites)
        # With gradients even if the first call is without: the source is kept for later
        # ones.
        with full_precision(self.children), torch.enable_grad():
            children, transforms = (
                self.children.to(self.dtype),
                self.transforms.to(self.dtype),
            )
            if backend.indexed:
                return backend(children, transforms, coordinates, self.sites)
            return backend(in_windows(children, self.sites), transforms, coordinates)

    def choose(self, similarity: Similarity | None = None) -> Choice:
        """The backend that ``moments(similarity)`` runs on, and why:
        :func:`~torchcaps.ops.choose_backend`.
        """
        if self._offset_apart(similarity) is not None:
            return self.restricted(offset=None).choose(similarity)
        with full_precision(self.children):
            return plan(self, similarity).choice

    def restricted(self, **changes: Any) -> "Votes":
        """The same votes under the normaliser with these arguments changed:
        ``restricted(orphan=True)``.

        The votes themselves are not formed again.

        Raises:
            TypeError: if a name is not an argument of the normaliser.
        """
        return self.under(replace(self.normaliser, **changes))

    def under(self, normaliser: Normaliser) -> "Votes":
        """The same votes under another normaliser; they are not formed again. A
        `TypeError` if it is none.
        """
        check_normaliser(normaliser)
        _ = self.source  # made before the copy, so that both share it
        return self._copied_under(normaliser)

    def over_children(self) -> "Votes":
        """The same votes, of which the children compete for each parent:
        :class:`~torchcaps.ops.OverChildren`.
        """
        return self.under(
            OverChildren(present=None if self.mask is None else self.gather(self.mask))
        )

    def _copied_under(self, normaliser: Normaliser) -> Self:
        votes = object.__new__(
            type(self)
        )  # what ``copy`` does, which torch.compile traces from PyTorch 2.12 on only
        for name in self.fields:
            setattr(votes, name, getattr(self, name))
        votes.normaliser = normaliser
        return votes

    def with_bias(self, bias: Tensor) -> "Votes":
        """The votes ``V_ij + b_ij`` with a bias for each pair, (I, J, H), or (1, J, H)
        when all children share it.

        Each row of a pose gets M more numbers, a 1 at its own place and 0 elsewhere,
        whose transform is the bias: so backends need not know of it.

        Raises:
            ValueError: if the bias has another shape.
        """
        N, G, M, _ = self.children.shape
        _, J, P, D = self.transforms.shape
        if bias.shape not in ((self.shape[1], J, M * D), (1, J, M * D)):
            raise ValueError(
                f"bias must be (I or 1, J, H) = {(self.shape[1], J, M * D)}, got "
                f"{tuple(bias.shape)}"
            )
        dtype = compute_dtype(self.children, self.transforms, bias)
        ones = torch.eye(M, dtype=dtype, device=self.children.device).expand(N, G, M, M)
        rows = bias.to(dtype).unflatten(-1, (M, D))
        I = max(len(rows), len(self.transforms))
        transforms = torch.cat(
            [self.transforms.to(dtype).expand(I, J, P, D), rows.expand(I, J, M, D)],
            dim=2,
        )
        children = torch.cat([self.children.to(dtype), ones], dim=-1)
        votes = Votes(
            children,
            transforms,
            self.coordinates,
            self.normaliser,
            self.backend,
            self.sites,
            self.mask,
        )
        votes.poses = self.poses
        return votes

    def moments(
        self,
        similarity: Similarity | None = None,
        weights: Tensor | None = None,
        *,
        scatter: bool = False,
    ) -> Moments:
        """One E-step and the sums of the M-step that follows.

        Args:
            similarity: of votes and parents; None before the first step: uniform
                assignment.
            weights: the child activations ``a``, (N, G); None for ones.
            scatter: whether to compute the second moment, about the mean, too.

        Returns:
            Mass (B, J), sum (B, J, H) and scatter (B, J, H) or None, float32 at least.

        Raises:
            TypeError: if the similarity is not a :class:`~torchcaps.ops.Similarity`.
            ValueError: if its tensors, or the weights, do not fit the votes, or a
                backend that was asked for by name cannot do it.
        """
        offset = (
            None
            if scatter or self.normaliser.offset is None
            else self._offset_apart(similarity)
        )
        if offset is not None:
            return self._with_offset(
                self.restricted(offset=None).moments(similarity, weights),
                weights,
                offset,
            )
        with full_precision(self.children):
            _, source, similarity, rule = plan(self, similarity, scatter)
            if weights is not None:
                check_field("weights", weights, self.children)
            if self.mask is not None:
                weights = self.present(weights)
            if weights is not None and not (
                weights.dtype == self.dtype and source.indexed
            ):
                weights = self.by_child(source, weights)
            return source.moments(similarity, weights, rule, scatter)

    def agree(
        self, agreement: Agreement, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None] | None:
        """All steps of routing by agreement at once, where the backend can:
        :meth:`VoteSource.agree`.

        Args:
            agreement: the settings; ``orphan`` is that of the normaliser.
            bias: added before each squash, (J, H), or None.

        Returns:
            The poses (B, J, H), float32 at least, and what the last step compared the
            votes with, None if it was the first; or None alone where the steps must be
            made one by one.

        Raises:
            ValueError: if the number of steps is not a whole number of at least 1, or
                there is no such squash.
        """
        check_size(steps=agreement.steps)
        kind_of(agreement.squash)
        if self.mask is not None or not self.normaliser.plain:
            return None
        with full_precision(self.children):
            source, orphan = self.source, self.normaliser.orphan
            if bias is not None:
                if (
                    bias.shape != self.shape[2:]
                    or torch.promote_types(bias.dtype, self.dtype) != self.dtype
                ):
                    return None
                bias = bias.to(self.dtype)
            return source.agree(
                agreement
                if agreement.orphan == orphan
                else agreement._replace(orphan=orphan),
                bias,
            )

    def gaussians(self, moments: Moments, floor: float) -> Gaussians:
        r"""The Gaussians of the M-step: :math:`\mu_j = S_j / N_j` and :math:`\sigma_j^2
        = Q_j / N_j + \text{floor}`.

        Args:
            moments: of these votes, with the scatter.
            floor: added to the variances.

        Raises:
            ValueError: if the moments hold no scatter, or the floor is no finite number
                of at least 0.
        """
        if not isinstance(floor, Real) or not 0 <= floor < math.inf:
            raise ValueError(
                f"floor must be a finite number of at least 0, got {floor!r}"
            )
        return self.source_on(self.preferred.backend).gaussians(moments, floor)

    def total(self) -> Tensor:
        """The sum of the votes of all children for each parent, unweighted, (B, J, H),
        whatever the normaliser.
        """
        return self.under(Normaliser()).moments().sum * self.parents

    def _offset_apart(self, similarity: Similarity | None) -> Tensor | None:
        """The normaliser's offset, if it is (I, J) and can be added to the sums
        afterwards; else None.
        """
        offset = self.normaliser.offset
        if (
            similarity is None
            or offset is None
            or offset.ndim != 2
            or type(self.source) is NaiveVotes
        ):
            return None
        return offset

    def gram(self, weights: Tensor | None = None) -> Tensor:
        """The second moments of the votes for each parent about 0, ``sum_i a_i V_ij
        V_ij^T``, (B, J, H, H).

        Args:
            weights: the child activations ``a``, (N, G); None for ones.

        Raises:
            ValueError: if the weights do not fit the votes.
        """
        if weights is not None:
            check_field("weights", weights, self.children)
        with full_precision(self.children):
            source = plan(self.under(OVER_PARENTS)).source
            weights = self.present(weights)
            if weights is not None:
                weights = self.gather(weights.to(self.dtype))
            if isinstance(source, NaiveVotes):
                return gram(source.votes, weights)
            if left_open(self):
                return gram(self.dense(), weights)
            children = in_windows(source.children, source.sites)
            tile = any_similarity.Tile(
                None, SOFTMAX, children, source.transforms, source.coordinates, weights
            )
            return any_similarity.gram(tile, tile_numbers(children.device))

    def _with_offset(
        self, moments: Moments, weights: Tensor | None, offset: Tensor
    ) -> Moments:
        """The moments plus what an offset of each pair, (I, J), adds to them, found
        without forming votes.
        """
        with full_precision(self.children):
            source, weights = self.source, self.present(weights)
            (offset,) = self.fitting(Rule(offset=offset)).tensors
            if weights is not None:
                weights = self.gather(weights.to(self.dtype))
            children = in_windows(source.children, source.sites)
            plus = offset_moments(
                children, source.transforms, source.coordinates, weights, offset
            )
            return Moments(moments.mass + plus.mass, moments.sum + plus.sum, None)

    def assignment(self, similarity: Similarity | None = None) -> Tensor:
        """The assignment probabilities (coupling coefficients) ``R_ij``, (B, I, J); 0
        for children that are not there.

        The normaliser's ``scale`` and ``offset``, which act after the softmax, are left
        out.

        Raises:
            RuntimeError: if children or transforms were changed in place since the
                votes were made, as by a step of an optimizer, and the votes are not
                stored.
        """
        if self.normaliser.scale is not None or self.normaliser.offset is not None:
            return self.restricted(scale=None, offset=None).assignment(similarity)
        with full_precision(self.children):
            _, source, similarity, rule = plan(self, similarity, reads=True)
            if self._versions != _versions(
                self.children, self.transforms
            ) and not isinstance(source, NaiveVotes):
                raise RuntimeError(
                    "children or transforms were changed in place since they voted: "
                    "read the assignment before they "
                    "change, as before a step of the optimizer"
                )
            assignment = source.assignment(similarity, rule)
            return (
                assignment
                if self.mask is None
                else assignment * self.gather(self.mask)[..., None]
            )

    def logits(self, similarity: Similarity | None = None) -> Tensor:
        """The logits ``l_ij`` that the parents compete with, (B, I, J)."""
        with full_precision(self.children):
            _, source, similarity, _ = plan(
                self.restricted(mapping=None), similarity, reads=True
            )
            return source.logits(similarity)

    def dense(self) -> Tensor:
        """All votes, (B, I, J, H), stored on any backend: to look at them."""
        source = self.source
        with full_precision(self.children):
            return dense_votes(
                in_windows(source.children, source.sites),
                source.transforms,
                source.coordinates,
            )

    def present(self, weights: Tensor | None) -> Tensor | None:
        """The child activations, (N, G), 0 for children that are not there; None if all
        are 1.
        """
        if self.mask is None:
            return weights
        return (
            self.mask.to(self.children.dtype)
            if weights is None
            else torch.where(self.mask, weights, 0.0)
        )

    @property
    def count(self) -> int | Tensor:
        """The number of children in each row, to divide by: I, or with a mask a tensor
        (B, 1), at least 1.
        """
        return (
            self.shape[1]
            if self.mask is None
            else self.gather(self.mask).sum(1, keepdim=True).clamp(min=1)
        )

    def gather(self, field: Tensor) -> Tensor:
        """A field of all children, (N, G, ...), as one of the children of each window,
        (B, I, ...).
        """
        return in_windows(field, self.sites)

    def fitting(self, fields: FieldsType) -> FieldsType:
        """A similarity or rule whose tensors fit the votes, in the dtype of the
        votes.
        """
        return fields.fitting(self.sizes, self.children.device, self.dtype)

    def by_child(self, source: VoteSource, field: Tensor) -> Tensor:
        """A number for each child, (N, G), as the backend takes it: (N, G) if it is
        ``indexed``, else (B, I).
        """
        field = field.to(self.dtype)
        return field if source.indexed else self.gather(field)


def check_normaliser(normaliser: Any) -> None:
    """Checks that something is a normaliser; a `TypeError` if not."""
    if not isinstance(normaliser, Normaliser):
        raise TypeError(
            f"normaliser must be a torchcaps.ops.Normaliser, got {normaliser!r}"
        )


def _versions(children: Tensor, transforms: Tensor) -> tuple[int, int] | None:
    """How often each was changed in place; None where that is not counted."""
    if (
        torch.compiler.is_compiling()
        or children.is_inference()
        or transforms.is_inference()
    ):
        return None
    return children._version, transforms._version
