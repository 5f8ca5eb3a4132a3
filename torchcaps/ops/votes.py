"""Votes: what routing algorithms are written against."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, pad

from torchcaps.numerics import (
    NotNegative,
    as_variables,
    cast,
    compute_dtype,
    full_precision,
)
from torchcaps.ops import folded, fused
from torchcaps.ops.backend import Moments, VoteSource
from torchcaps.ops.chunked import any_similarity
from torchcaps.ops.closed_forms import fixed_sum
from torchcaps.ops.competition import PARENTS, Competition, GridWide, OverChildren
from torchcaps.ops.fields import FieldsType, check_numbers
from torchcaps.ops.folded import Folded
from torchcaps.ops.fused.triton_folded import TritonFolded
from torchcaps.ops.naive import NaiveVotes, dense_votes, gram
from torchcaps.ops.plan import (
    BACKENDS,
    Choice,
    Facts,
    Plan,
    choice_for,
    forced_backend,
    known_backend,
    left_open,
    only_stored,
    plan,
)
from torchcaps.ops.similarity import Gaussian, InnerProduct, Similarity
from torchcaps.ops.vote_checks import alike_transforms, check_child_field, check_votes
from torchcaps.ops.windows import in_windows
from torchcaps.spec import check

_FEW_COORDINATES = 4
"""The most coordinates of a place that fold."""


class Votes:
    r"""The votes :math:`V_{ij} = u_i W_{ij} (+ c_i)` of children for parents, formed
    when needed.

    Args:
        children: poses ``u``, (N, G, P) for vector capsules or (N, G, M, P) for matrix
            capsules.
        transforms: ``W``, (I, J, P, D), or (1, J, P, D) when all children share them;
            with ``places``, (T, J, P, D); with ``alike``, (1, 1, P, D).
        coordinates: added to each vote of a child, (I, H) with H = M * D, or None; or
            (places, K), added to the first K numbers of each vote at a place.
        competition: who competes for a child; by default all parents of these votes.
        backend: one of :data:`BACKENDS`, ``"auto"``, or None to let
            :meth:`choose_backend` decide.
        sites: int32 (W, I): the children of each of W windows, as indices into the G
            children; the rows of the batch are then B = N * W. None: one window with
            all children, B = N and I = G.
        mask: bool (N, G), False for children that are not there. Their poses and
            activations may be anything, NaN too: they enter no result and no gradient.
        places: how many places share the transforms. There are T = I / places types of
            children, and child i is of type i % T. Inner products then need no votes
            (:mod:`torchcaps.ops.folded`).
        alike: how many parents, J, all share one transform; None if each has its own.
        epsilon: votes are formed of standardised poses, as in a layer normalisation
            that adds this to their variances; None forms them of the poses as they are.

    Attributes:
        shape: (B, I, J, H), the shape the votes would have if they were stored;
            ``sizes`` has it by letter.
        dtype: the dtype that is computed in, float32 at least.
        shares_transforms: whether places share transforms, so that inner products may
            need no votes.

    Raises:
        TypeError: if something is not a tensor, or the competition is not a
            :class:`~torchcaps.ops.Competition`.
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
        "_kept",
        "_plan",
        "_versions",
        "alike",
        "backend",
        "children",
        "competition",
        "coordinates",
        "dtype",
        "epsilon",
        "mask",
        "places",
        "shape",
        "shares_transforms",
        "sites",
        "sizes",
        "transforms",
        "vote_bias",
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
        competition: Competition | None = None,
        backend: str | None = None,
        sites: Tensor | None = None,
        mask: Tensor | None = None,
        places: int = 1,
        alike: int | None = None,
        epsilon: float | None = None,
    ) -> None:
        self.alike = transforms if alike is not None else None
        if alike is not None:
            transforms = alike_transforms(transforms, alike)
        if epsilon is not None:
            check(NotNegative, epsilon, "epsilon")
        self.children, self.shape = check_votes(
            children, transforms, coordinates, sites, mask, places
        )
        self.sizes = dict(zip("BIJH", self.shape, strict=True))
        if mask is not None:
            self.children = torch.where(mask[..., None, None], self.children, 0.0)
        self.transforms = transforms
        self.coordinates = coordinates
        self.backend = backend
        self.sites = sites
        self.mask = mask
        self.places = places
        self.shares_transforms = transforms.shape[0] != self.shape[1] and sites is None
        self.vote_bias: Tensor | None = None
        self.epsilon = epsilon
        self.dtype = compute_dtype(self.children, transforms)
        self.competition = PARENTS
        if competition is not None:
            self.competition = self._fitting_competition(competition)
        self._plan: Plan | None = None
        self._kept: dict[tuple[str, bool], Any] = {}
        self._versions: tuple[int, int] | None = None
        # A compiler knows no inference tensors.
        compiling = torch.compiler.is_compiling()
        if not (compiling or self.children.is_inference() or transforms.is_inference()):
            self._versions = self.children._version, transforms._version

    @property
    def parents(self) -> int:
        """Return the number of parents J."""
        return self.shape[2]

    @property
    def poses(self) -> Tensor:
        """Return the poses that votes are formed of, (N, G, M, P)."""
        if self.epsilon is None:
            return self.children
        size = self.children.shape[2:]
        return layer_norm(self.children.to(self.dtype), size, eps=self.epsilon)

    @property
    def source(self) -> VoteSource:
        """Return the votes on the chosen backend, whatever the similarity and the
        competition.
        """
        return self.source_on(self.plan.choice.backend)

    @property
    def plan(self) -> Plan:
        """Which backend makes the calls on these votes: planned with the first one.

        Only forward-mode derivatives, ``torch.func``, an export or a ``FlopCounterMode``
        that begin or end since then change it.
        """
        stored = only_stored()
        if self._plan is None or self._plan.stored != stored:
            asked = known_backend(self.backend) if self.backend else forced_backend()
            facts = Facts(
                self.children.device.type,
                math.prod(self.shape),
                self.shape[0],
                self.children.shape[2] <= 1,
                asked or "auto",
                stored,
            )
            self._plan = plan(facts)
        return self._plan

    def source_on(self, backend: str) -> VoteSource:
        """Return the votes on one of :data:`BACKENDS`, made once."""
        source: VoteSource = self._once(backend, self._make_source)
        return source

    def _make_source(self, backend: str) -> VoteSource:
        kind = BACKENDS[backend]
        if kind.indexed and self._as_formed:
            return kind(self.children, self.transforms, self.coordinates, self.sites)
        with full_precision(self.children):
            children, transforms, coordinates = self._formed()
            if kind.indexed:
                return kind(children, transforms, coordinates, self.sites)
            children = in_windows(children, self.sites)
            return kind(children, transforms, coordinates)

    def _once(self, name: str, make: Callable[[str], Any]) -> Any:
        """What ``make(name)`` returns, kept for later calls on these votes. It has
        gradients even if the first call is without, unless there can be none. While a
        program is traced, calls without gradients keep their own: an exported program
        that turns gradients on around no operation cannot be loaded.
        """
        # Autograd refuses tensors that inference mode made, and a compiler knows none.
        traced = torch.compiler.is_compiling()
        if traced or self._versions is None:
            constant = not torch.is_grad_enabled()
        else:
            constant = torch.is_inference_mode_enabled()
        key = name, constant
        if key not in self._kept:
            with nullcontext() if constant or traced else as_variables():
                self._kept[key] = make(name)
        return self._kept[key]

    @property
    def _as_formed(self) -> bool:
        """Whether backends take the tensors as they are."""
        _, I, _, H = self.shape
        if self.vote_bias is not None or self.epsilon is not None:
            return False
        if self.transforms.shape[0] != 1 and self.transforms.shape[0] != I:
            return False
        coordinates = self.coordinates
        if coordinates is not None and (
            coordinates.shape != (I, H) or coordinates.dtype != self.dtype
        ):
            return False
        return self.children.dtype == self.transforms.dtype == self.dtype

    def _formed(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Children, transforms of all of them, and coordinates, as backends take them.

        A bias becomes a part of the transforms: each row of a pose gets M more numbers,
        a 1 at its own place and 0 elsewhere, whose transform is the bias.
        """
        children = self.poses.to(self.dtype)
        transforms = self._of_each(self.transforms.to(self.dtype))
        N, G, M, _ = children.shape
        D = transforms.shape[-1]
        if self.vote_bias is not None:
            bias = self._of_each(self.vote_bias.to(self.dtype)).unflatten(-1, (M, D))
            I = self._children_apart(transforms, bias)
            rows = transforms, bias
            transforms = torch.cat([field.expand(I, -1, -1, -1) for field in rows], 2)
            ones = torch.eye(M, dtype=self.dtype, device=children.device)
            children = torch.cat([children, ones.expand(N, G, M, M)], -1)
        return children, transforms, self._coordinates()

    def _children_apart(self, *fields: Tensor) -> int:
        """How many children have something of their own in fields (I or 1, ...): 1 if
        all share them, or I.
        """
        # Not ``len``, which makes a number of a size that an export leaves open.
        shared = all(field.shape[0] == 1 for field in fields)
        return 1 if shared else self.shape[1]

    def _coordinates(self) -> Tensor | None:
        """The coordinates of each child, (I, H)."""
        coordinates = self.coordinates
        if coordinates is None:
            return None
        coordinates = coordinates.to(self.dtype)
        _, I, _, H = self.shape
        if coordinates.shape != (I, H):
            coordinates = pad(coordinates, (0, H - coordinates.shape[1]))
            # Not ``len``, which makes a number of a size that an export leaves open.
            coordinates = coordinates.repeat_interleave(I // coordinates.shape[0], 0)
        return coordinates

    def _of_each(self, field: Tensor) -> Tensor:
        """What types of children have, (T, ...), for each child, (I, ...); as it is if
        all share it, or each has its own.
        """
        I = self.shape[1]
        if field.shape[0] == 1 or field.shape[0] == I:
            return field
        each = field.expand(I // len(field), *field.shape)
        return each.flatten(0, 1)

    def folded(self, weights: Tensor | None = None) -> Folded | None:
        """Return the children as folded routing takes them; None where places do not
        share transforms, or more is added to the votes of a child than it can have.

        Args:
            weights: the child activations ``a``, (N, G); None for ones.
        """
        B, I, J, H = self.shape
        T = self.transforms.shape[0]
        coordinates = self.coordinates
        if not self.shares_transforms or not I * J * H * self.children.shape[-1]:
            return None
        # Coordinates of each child's own, not of its place.
        if coordinates is not None and (
            coordinates.requires_grad
            or coordinates.shape[0] * T != I
            or coordinates.shape[1] > _FEW_COORDINATES
        ):
            return None
        # A bias of each child's own, not of its type.
        if self.vote_bias is not None and len(self.vote_bias) not in (1, T):
            return None
        dtype = self.dtype
        N = I // T
        weights = self._folded_weights(weights)
        numbers: Any = None
        rows: Any = None
        options: dict[str, Any] = {"dtype": dtype, "device": self.children.device}
        if self.vote_bias is not None or coordinates is not None:
            numbers = torch.ones(1, N, **options)
            rows = torch.zeros(T, J, 1, H, **options)
        if self.vote_bias is not None:
            rows = cast(self.vote_bias, dtype).expand(T, J, H)[:, :, None]
        if coordinates is not None:
            numbers = torch.cat([numbers, coordinates.detach().to(dtype).T])
            unit = torch.eye(coordinates.shape[1], H, **options)
            rows = torch.cat([rows, unit.expand(T, J, -1, -1)], 2)
        return Folded(
            J,
            cast(self.children, dtype).view(B, N, T, *self.children.shape[2:]),
            numbers,
            weights,
            cast(self.transforms if self.alike is None else self.alike, dtype),
            rows,
            epsilon=self.epsilon,
        )

    def _folded_weights(self, weights: Tensor | None) -> Tensor | None:
        """The activations of the children by place and type, (B, N, T), if there are
        any; 0 where a child is absent.
        """
        if self.mask is not None:
            weights = self.present(weights)
        if weights is None:
            return None
        return cast(weights, self.dtype).unflatten(1, (-1, len(self.transforms)))

    def choose_backend(self, similarity: Similarity | None = None) -> Choice:
        """Return the backend of ``moments(similarity)`` and the reason.

        The first of these that applies:

        1. the backend that was asked for by name: the argument ``backend`` of the votes
           or the layer, else :func:`use_backend`, else the environment variable
           ``TORCHCAPS_BACKEND``;
        2. ``naive``, stored votes, for forward-mode derivatives, ``torch.func``, export
           to ONNX and ``FlopCounterMode``, which counts no operation of a kernel;
        3. ``naive`` for small votes: at most 256 numbers on a CPU, 2^20 on a GPU; on a
           CPU also those of vector capsules for Gaussians in at most 3 rows, if they
           are 2^15 to 2^20 numbers;
        4. the fused kernels of the device, ``native`` or ``triton``, if they can run
           there and know the similarity and the competition;
        5. plain PyTorch: ``chunked``, tile by tile; or ``naive`` for at most 8192
           numbers, and where an exported program leaves a size open, since it cannot
           hold a loop over tiles.

        ``torch.compile`` fixes the choice when it traces the call.

        Raises:
            ValueError: if a backend that was asked for by name cannot do the call.
        """
        return choice_for(
            self.plan, similarity, self.competition, scatter=False, reads=False
        )

    def restricted(self, **changes: Any) -> Self:
        """Return the same votes with these arguments of the competition changed:
        ``restricted(leaky=True)``.

        The votes themselves are not formed again.

        Raises:
            TypeError: if a name is not an argument of the competition.
        """
        return self.under(replace(self.competition, **changes))

    def under(self, competition: Competition) -> Self:
        """Return the same votes under another competition; they are not formed again.

        Raises:
            TypeError: if it is not a :class:`~torchcaps.ops.Competition`.
            ValueError: if it replaces the softmax of parents that compete over several
                windows, which it would leave out.
        """
        competition = self._fitting_competition(competition)
        wide = isinstance(self.competition, GridWide)
        if wide and competition.replaces_softmax:
            raise ValueError(
                f"{type(competition).__name__} is of one window only: use "
                "competition='window'"
            )
        # Made before the copy, so that both share it.
        _ = self.plan
        # As ``copy`` does, which torch.compile traces from PyTorch 2.12 on only.
        votes = object.__new__(type(self))
        for name in self.fields:
            setattr(votes, name, getattr(self, name))
        votes.competition = competition
        return votes

    def over_children(self) -> Self:
        """Return the same votes with children that compete for each parent:
        :class:`~torchcaps.ops.OverChildren`.
        """
        present = None if self.mask is None else self.gather(self.mask)
        return self.under(OverChildren(present=present))

    def _fitting_competition(self, competition: Competition) -> Competition:
        """The competition, with tensors that fit the votes."""
        if competition is PARENTS:
            return PARENTS
        if not isinstance(competition, Competition):
            raise TypeError(
                f"competition must be a torchcaps.ops.Competition, got {competition!r}"
            )
        return self.fitting(competition)

    def _checked(self, similarity: Similarity | None) -> Similarity | None:
        """The similarity, whose tensors fit the votes.

        Raises:
            TypeError: if it is none.
            ValueError: if a tensor does not fit.
        """
        if similarity is None:
            return None
        if not isinstance(similarity, Similarity):
            raise TypeError(
                "similarity must be None or a torchcaps.ops.Similarity, got "
                f"{type(similarity).__name__}: derive it from that class, declare the "
                "axes of its tensors and give it a method logits(votes)"
            )
        return self.fitting(similarity)

    def _source_for(
        self,
        similarity: Similarity | None,
        *,
        scatter: bool = False,
        reads: bool = False,
    ) -> VoteSource:
        """The votes on the backend that makes such a call."""
        choice = choice_for(
            self.plan, similarity, self.competition, scatter=scatter, reads=reads
        )
        return self.source_on(choice.backend)

    def _log_partition(
        self, source: VoteSource, similarity: Similarity | None, *, indexed: bool
    ) -> Tensor | None:
        """The log-partition of the competition, if it has one: of each parent, (B, 1,
        J), or as :meth:`_by_child`.

        It comes from the backend that makes the step: exp(l - Z) magnifies what the
        logits of two backends differ by.
        """
        log_partition = self.competition.log_partition(source, similarity)
        if log_partition is None or log_partition.ndim == 3:
            return log_partition
        check_child_field("log_partition", log_partition, self.children)
        return self._by_child(log_partition, indexed=indexed)

    def _weights(self, weights: Tensor | None, *, indexed: bool) -> Tensor | None:
        """The child activations, (N, G), as :meth:`_by_child`: 0 for absent children;
        None if all are 1.
        """
        if weights is not None:
            check_child_field("weights", weights, self.children)
        weights = self.present(weights)
        return None if weights is None else self._by_child(weights, indexed=indexed)

    def _by_child(self, field: Tensor, *, indexed: bool) -> Tensor:
        """A number for each child, (N, G), as a backend takes it that is ``indexed`` or
        not: (N, G), or of the children of each window, (B, I).
        """
        field = cast(field, self.dtype)
        return field if indexed else self.gather(field)

    def with_bias(self, bias: Tensor) -> "Votes":
        """Return the votes ``V_ij + b_ij`` with a bias for each pair, (I, J, H), or (1,
        J, H) when all children share it; with ``places``, (T, J, H).

        Raises:
            ValueError: if the bias has another shape.
        """
        _, I, J, H = self.shape
        T = I // self.places
        check_numbers("bias", bias, self.children.device)
        if bias.shape[1:] != (J, H) or (len(bias) != 1 and len(bias) != T):
            raise ValueError(
                f"bias must be (T or 1, J, H) = {(T, J, H)}, got {tuple(bias.shape)}"
            )
        votes = self.under(self.competition)
        votes.vote_bias = bias if self.vote_bias is None else self.vote_bias + bias
        votes.dtype = compute_dtype(self.children, self.transforms, bias)
        votes._kept = {}
        return votes

    def moments(
        self,
        similarity: Similarity | None = None,
        weights: Tensor | None = None,
        *,
        scatter: bool = False,
    ) -> Moments:
        """Compute one E-step and the sums of the M-step that follows.

        Args:
            similarity: the similarity of votes and parents; None before the first step:
                uniform assignment.
            weights: the child activations ``a``, (N, G); None for ones.
            scatter: whether to compute the second moment, about the mean, too.

        Returns:
            Mass (B, J), sum (B, J, H) and scatter (B, J, H) or None, float32 at least.

        Raises:
            TypeError: if the similarity is not a :class:`~torchcaps.ops.Similarity`.
            ValueError: if its tensors, or the weights, do not fit the votes, or a
                backend that was asked for by name cannot do it.
        """
        with full_precision(self.children):
            similarity = self._checked(similarity)
            if not scatter:
                moments = self._folded_moments(similarity, weights)
                if moments is not None:
                    return moments
            source = self._source_for(similarity, scatter=scatter)
            indexed = source.indexed
            log_partition = self._log_partition(source, similarity, indexed=indexed)
            weights = self._weights(weights, indexed=indexed)
            return source.moments(
                similarity, weights, self.competition, log_partition, scatter
            )

    def _folded_moments(
        self, similarity: Similarity | None, weights: Tensor | None
    ) -> Moments | None:
        """Mass and sum without votes, for inner products where places share transforms;
        None where that cannot be.
        """
        competition = self.competition
        if not competition.is_softmax:
            return None
        if similarity is not None and type(similarity) is not InnerProduct:
            return None
        backend = self.plan.choice.backend
        if backend == "naive":
            return None
        if weights is not None:
            check_child_field("weights", weights, self.children)
        alpha = None if similarity is None else similarity.alpha
        leaky = competition.leaky
        if backend == "triton":
            prepared = self.folded_on_triton()
            if prepared is not None:
                weights = self._folded_weights(weights)
                return Moments(*prepared.moments(alpha, weights, leaky), None)
            if len(self.transforms) > 1:
                return None
        children = self.folded(weights)
        if children is None:
            return None
        moments = fused.folded.moments if backend == "native" else folded.moments
        return Moments(*moments(children, alpha, leaky), None)

    def folded_on_triton(self) -> TritonFolded | None:
        """The children as the Triton kernels of folded routing take them, made once;
        None where they do not.
        """
        prepared: TritonFolded | None = self._once(
            "folded", lambda _: TritonFolded.of(self.folded())
        )
        return prepared

    def total(self, shares: Tensor | None = None) -> Tensor:
        """Return the sum of the votes of all children for each parent, (B, J, H),
        whatever the competition: ``sum_i o_ij V_ij``.

        Args:
            shares: o, (I, J), the same in all rows; None for ones.

        Raises:
            ValueError: if the shares do not fit the votes.
        """
        if shares is None:
            return self.under(PARENTS).moments().sum * self.parents
        check_numbers("shares", shares, self.children.device)
        if shares.shape != self.shape[1:3]:
            raise ValueError(
                f"shares must be (I, J) = {self.shape[1:3]}, got {tuple(shares.shape)}"
            )
        with full_precision(self.children):
            source = self.source
            return fixed_sum(
                in_windows(source.children, source.sites),
                source.transforms,
                source.coordinates,
                self._weights(None, indexed=False),
                shares.to(self.dtype),
            )

    def gram(self, weights: Tensor | None = None) -> Tensor:
        """Return the second moments of the votes for each parent about 0, ``sum_i a_i
        V_ij V_ij^T``, (B, J, H, H).

        Args:
            weights: the child activations ``a``, (N, G); None for ones.

        Raises:
            ValueError: if the weights do not fit the votes.
        """
        with full_precision(self.children):
            weights = self._weights(weights, indexed=False)
            source = self.source
            if isinstance(source, NaiveVotes):
                return gram(source.votes, weights)
            if left_open(math.prod(self.shape)):
                return gram(self.dense(), weights)
            children = in_windows(source.children, source.sites)
            tile = any_similarity.Tile(
                None, PARENTS, children, source.transforms, source.coordinates, weights
            )
            return any_similarity.gram(tile)

    def assignment(self, similarity: Similarity | None = None) -> Tensor:
        """Return the assignment probabilities (coupling coefficients) ``R_ij``, (B, I,
        J); 0 for absent children.

        Raises:
            RuntimeError: if children or transforms were changed in place since the
                votes were made, as by a step of an optimizer, and the votes are not
                stored.
        """
        with full_precision(self.children):
            similarity = self._checked(similarity)
            source = self._source_for(similarity, reads=True)
            if self._changed() and not isinstance(source, NaiveVotes):
                raise RuntimeError(
                    "children or transforms were changed in place since they voted: "
                    "read the assignment before they "
                    "change, as before a step of the optimizer"
                )
            log_partition = self._log_partition(source, similarity, indexed=False)
            logits = source.logits(similarity)
            assignment = self.competition.shares(logits, log_partition)
            if self.mask is None:
                return assignment
            return assignment * self.gather(self.mask)[..., None]

    def _changed(self) -> bool:
        """Whether children or transforms were changed in place since they voted, where
        that is counted.
        """
        if self._versions is None or torch.compiler.is_compiling():
            return False
        return self._versions != (self.children._version, self.transforms._version)

    def logits(self, similarity: Similarity | None = None) -> Tensor:
        """Return the logits ``l_ij`` that the parents compete with, (B, I, J)."""
        with full_precision(self.children):
            similarity = self._checked(similarity)
            source = self.under(PARENTS)._source_for(similarity, reads=True)
            return source.logits(similarity)

    def dense(self) -> Tensor:
        """Return all votes, (B, I, J, H), stored on any backend, for inspection."""
        source = self.source
        with full_precision(self.children):
            return dense_votes(
                in_windows(source.children, source.sites),
                source.transforms,
                source.coordinates,
            )

    def present(self, weights: Tensor | None) -> Tensor | None:
        """Return the child activations, (N, G), 0 for absent children; None if all are
        1.
        """
        if self.mask is None:
            return weights
        if weights is None:
            return self.mask.to(self.children.dtype)
        return torch.where(self.mask, weights, 0.0)

    @property
    def count(self) -> int | Tensor:
        """Return the number of children in each row, to divide by: I, or with a mask a
        tensor (B, 1); at least 1.
        """
        if self.mask is None:
            return max(self.shape[1], 1)
        return self.gather(self.mask).sum(1, keepdim=True).clamp(min=1)

    def gather(self, field: Tensor) -> Tensor:
        """A field of all children, (N, G, ...), as one of the children of each window,
        (B, I, ...).
        """
        return in_windows(field, self.sites)

    def fitting(self, fields: FieldsType) -> FieldsType:
        """Return a similarity or competition whose tensors fit the votes, in the dtype of the
        votes.
        """
        B, _, J, H = self.shape
        shapes: tuple[tuple[Any, tuple[int, ...]], ...] = ()
        # Routing makes one of these two in each step, and a loop over any fields would
        # take longer than their arithmetic.
        similarity: Any = fields
        if type(fields) is InnerProduct:
            shapes = ((similarity.alpha, (B, J, H)),)
        elif type(fields) is Gaussian:
            shapes = (
                (similarity.mean, (B, J, H)),
                (similarity.precision, (B, J, H)),
                (similarity.log_weight, (B, J)),
            )
        kind = (self.dtype, self.children.device)
        fits = len(shapes) > 0
        for tensor, shape in shapes:
            if not isinstance(tensor, Tensor) or tensor.shape != shape:
                fits = False
            fits = fits and (tensor.dtype, tensor.device) == kind
        if fits:
            return fields
        return fields.fitting(self.sizes, self.children.device, self.dtype)
