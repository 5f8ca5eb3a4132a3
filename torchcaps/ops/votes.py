"""Votes: what routing algorithms are written against.

What votes are made of is checked here, once and for all backends. The checks look at
shapes, dtypes and devices, which costs next to nothing, and at the numbers of ``sites``
alone, once for each tensor: these become addresses in memory.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from typing_extensions import Self

from torchcaps.numerics import as_variables, compute_dtype, full_precision
from torchcaps.ops.backend import SOFTMAX, Moments, Rule, VoteSource
from torchcaps.ops.chunked import any_similarity
from torchcaps.ops.chunked.tiles import tile_numbers
from torchcaps.ops.closed_forms import offset_moments
from torchcaps.ops.competition import OVER_PARENTS, Normaliser, OverChildren
from torchcaps.ops.fields import FieldsType, check_numbers
from torchcaps.ops.naive import NaiveVotes, dense_votes, gram
from torchcaps.ops.plan import (
    BACKENDS,
    Choice,
    Facts,
    Plan,
    forced_backend,
    known_backend,
    left_open,
    only_stored,
    plan,
)
from torchcaps.ops.similarity import Gaussian, Given, InnerProduct, Similarity
from torchcaps.ops.windows import in_windows


class Step(NamedTuple):
    """One E-step, ready to be made.

    Args:
        choice: the backend, and why.
        source: the votes on that backend.
        similarity: adjusted by the normaliser; its tensors fit the votes.
        rule: likewise.
    """

    choice: Choice
    source: VoteSource
    similarity: Similarity | None
    rule: Rule


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
        poses: the poses of the children, (N, G, M, P): without what :meth:`with_bias`
            puts beside them.
        dtype: the dtype that is computed in, float32 at least.

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
        "_plan",
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
        self._plan: Plan | None = None
        self._sources: dict[tuple[str, bool], VoteSource] = {}
        self._versions: tuple[int, int] | None = None
        compiling = torch.compiler.is_compiling()  # which knows no inference tensors
        if not (compiling or self.children.is_inference() or transforms.is_inference()):
            self._versions = self.children._version, transforms._version

    @property
    def parents(self) -> int:
        """Return the number of parents J."""
        return self.shape[2]

    @property
    def source(self) -> VoteSource:
        """Return the votes on the chosen backend, whatever the similarity and the rule."""
        return self.source_on(self.plan.choice.backend)

    @property
    def plan(self) -> Plan:
        """Which backend makes the calls on these votes: planned with the first one.

        Only forward-mode derivatives, ``torch.func`` or an export that begin or end
        since then change it.
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
        # What is made in inference mode, which compilers do not know, can never have
        # gradients.
        compiling = torch.compiler.is_compiling()
        key = backend, not compiling and torch.is_inference_mode_enabled()
        source = self._sources.get(key)
        if source is not None:
            return source
        kind = BACKENDS[backend]
        children = self.children
        transforms = self.transforms
        coordinates = self.coordinates
        dtype = self.dtype
        fits = children.dtype == transforms.dtype == dtype
        if coordinates is not None:
            fits = fits and coordinates.dtype == dtype
        if kind.indexed and fits:
            source = kind(children, transforms, coordinates, self.sites)
        else:
            # With gradients even if the first call is without: the source is kept for
            # later ones.
            with full_precision(children), as_variables():
                children = children.to(dtype)
                transforms = transforms.to(dtype)
                if coordinates is not None:
                    coordinates = coordinates.to(dtype)
                if kind.indexed:
                    source = kind(children, transforms, coordinates, self.sites)
                else:
                    children = in_windows(children, self.sites)
                    source = kind(children, transforms, coordinates)
        self._sources[key] = source
        return source

    def choose(self, similarity: Similarity | None = None) -> Choice:
        """Return the backend of ``moments(similarity)`` and the reason:
        :func:`~torchcaps.ops.choose_backend`.
        """
        if self._offset_apart(similarity) is not None:
            return self.restricted(offset=None).choose(similarity)
        with full_precision(self.children):
            return self._step(similarity).choice

    def restricted(self, **changes: Any) -> "Votes":
        """Return the same votes under the normaliser with these arguments changed:
        ``restricted(orphan=True)``.

        The votes themselves are not formed again.

        Raises:
            TypeError: if a name is not an argument of the normaliser.
        """
        return self.under(replace(self.normaliser, **changes))

    def under(self, normaliser: Normaliser) -> "Votes":
        """Return the same votes under another normaliser; they are not formed again. A
        `TypeError` if it is none.
        """
        check_normaliser(normaliser)
        _ = self.plan  # made before the copy, so that both share it
        return self._copied_under(normaliser)

    def over_children(self) -> "Votes":
        """Return the same votes with children that compete for each parent:
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

    def _step(
        self,
        similarity: Similarity | None,
        scatter: bool = False,
        *,
        reads: bool = False,
    ) -> Step:
        """One E-step: its backend, its similarity and its rule; in full precision.

        Args:
            similarity: as it came.
            scatter: whether the step computes the second moment too.
            reads: whether logits or assignments are read; given ones, which take no
                votes, are read on any backend.

        Raises:
            TypeError: if the similarity is none.
            ValueError: if a tensor does not fit the votes, or a backend that was asked
                for by name cannot do it.
        """
        if similarity is not None and not isinstance(similarity, Similarity):
            raise TypeError(
                "similarity must be None or a torchcaps.ops.Similarity, got "
                f"{type(similarity).__name__}: derive it from that class, declare the "
                "axes of its tensors and give it a method logits(votes)"
            )
        normaliser = self.normaliser
        if normaliser is not OVER_PARENTS:  # which changes nothing
            similarity = normaliser.adjusted(similarity)
        if similarity is not None:
            similarity = self.fitting(similarity)
        choice = self._choice(similarity, SOFTMAX, scatter, reads)
        source = self.source_on(choice.backend)
        step = Step(choice, source, similarity, SOFTMAX)
        if normaliser is OVER_PARENTS:
            return step
        rule = normaliser.rule(source, similarity)
        if rule.special:
            choice = self._choice(similarity, rule, scatter, reads)
            step = step._replace(choice=choice, source=self.source_on(choice.backend))
        return self._under_rule(step, rule, source)

    def _under_rule(
        self,
        step: Step,
        rule: Rule,
        source: VoteSource,
    ) -> Step:
        """The step under a rule whose tensors fit the votes; ``source`` is where the
        normaliser found them.
        """
        similarity = step.similarity
        partition = rule.log_partition
        if (
            rule.scale is not None
            or rule.offset is not None
            or rule.mapping is not None
        ):
            rule = self.fitting(replace(rule, log_partition=None))
        if partition is None:
            return step._replace(rule=rule)
        check_field("log_partition", partition, self.children, self.parents)
        rule = replace(rule, log_partition=self.by_child(step.source, partition))
        if similarity is not None and partition.ndim == 3:
            # Logits of another backend than the normaliser's, or of another order of
            # sums, differ by rounding, which their exponential magnifies.
            similarity = Given(source.logits(similarity))
        return step._replace(similarity=similarity, rule=rule)

    def _choice(
        self,
        similarity: Similarity | None,
        rule: Rule,
        scatter: bool,
        reads: bool,
    ) -> Choice:
        """The backend of the plan for a call, or the first other one that can do this
        similarity under this rule.

        Raises:
            ValueError: if none can.
        """
        plan = self.plan
        gaussian = scatter or isinstance(similarity, Gaussian)
        choice = plan.of_gaussians if gaussian else plan.choice
        trouble = BACKENDS[choice.backend].supports(similarity, rule)
        if not trouble:
            return choice
        fallbacks = plan.others
        if isinstance(similarity, Given) and not scatter:
            fallbacks = plan.others_of_given or (("chunked",) if reads else ())
        for name in fallbacks:
            if not BACKENDS[name].supports(similarity, rule):
                return Choice(name, f"{choice.backend} cannot do this call: {trouble}")
        compared = "uniform logits" if similarity is None else type(similarity).__name__
        raise ValueError(f"backend {choice.backend!r} cannot do {compared}: {trouble}")

    def with_bias(self, bias: Tensor) -> "Votes":
        """Return the votes ``V_ij + b_ij`` with a bias for each pair, (I, J, H), or (1,
        J, H) when all children share it.

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
        if scatter or self.normaliser.offset is None:
            offset = None
        else:
            offset = self._offset_apart(similarity)
        if offset is not None:
            return self._with_offset(
                self.restricted(offset=None).moments(similarity, weights),
                weights,
                offset,
            )
        with full_precision(self.children):
            _, source, similarity, rule = self._step(similarity, scatter)
            if weights is not None:
                check_field("weights", weights, self.children)
            if self.mask is not None:
                weights = self.present(weights)
            if weights is not None and not (
                weights.dtype == self.dtype and source.indexed
            ):
                weights = self.by_child(source, weights)
            return source.moments(similarity, weights, rule, scatter)

    def total(self) -> Tensor:
        """Return the sum of the votes of all children for each parent, unweighted, (B,
        J, H), whatever the normaliser.
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
        """Return the second moments of the votes for each parent about 0, ``sum_i a_i
        V_ij V_ij^T``, (B, J, H, H).

        Args:
            weights: the child activations ``a``, (N, G); None for ones.

        Raises:
            ValueError: if the weights do not fit the votes.
        """
        if weights is not None:
            check_field("weights", weights, self.children)
        with full_precision(self.children):
            source = self.under(OVER_PARENTS)._step(None).source
            weights = self.present(weights)
            if weights is not None:
                weights = self.gather(weights.to(self.dtype))
            if isinstance(source, NaiveVotes):
                return gram(source.votes, weights)
            if left_open(math.prod(self.shape)):
                return gram(self.dense(), weights)
            children = in_windows(source.children, source.sites)
            tile = any_similarity.Tile(
                None, SOFTMAX, children, source.transforms, source.coordinates, weights
            )
            return any_similarity.gram(tile, tile_numbers(children.device))

    def _with_offset(
        self,
        moments: Moments,
        weights: Tensor | None,
        offset: Tensor,
    ) -> Moments:
        """The moments plus what an offset of each pair, (I, J), adds to them, found
        without forming votes.
        """
        with full_precision(self.children):
            source = self.source
            weights = self.present(weights)
            (offset,) = self.fitting(Rule(offset=offset)).tensors
            if weights is not None:
                weights = self.gather(weights.to(self.dtype))
            children = in_windows(source.children, source.sites)
            plus = offset_moments(
                children, source.transforms, source.coordinates, weights, offset
            )
            return Moments(moments.mass + plus.mass, moments.sum + plus.sum, None)

    def assignment(self, similarity: Similarity | None = None) -> Tensor:
        """Return the assignment probabilities (coupling coefficients) ``R_ij``, (B, I,
        J); 0 for absent children.

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
            _, source, similarity, rule = self._step(similarity, reads=True)
            if self._changed() and not isinstance(source, NaiveVotes):
                raise RuntimeError(
                    "children or transforms were changed in place since they voted: "
                    "read the assignment before they "
                    "change, as before a step of the optimizer"
                )
            assignment = source.assignment(similarity, rule)
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
            votes = self.restricted(mapping=None)
            _, source, similarity, _ = votes._step(similarity, reads=True)
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
        """Return a similarity or rule whose tensors fit the votes, in the dtype of the
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


def check_votes(
    children: Any,
    transforms: Any,
    coordinates: Any,
    sites: Any,
    mask: Any,
) -> tuple[Tensor, tuple[int, int, int, int]]:
    """The children as (N, G, M, P), and the shape (B, I, J, H) of their votes, checked.

    Raises:
        TypeError: if something is no tensor.
        ValueError: if a shape, a dtype or a device does not fit, or a site lies outside
            the children.
    """
    arguments = (
        ("children", children),
        ("transforms", transforms),
        ("coordinates", coordinates),
        ("mask", mask),
    )
    for name, tensor in arguments:
        if not isinstance(tensor, Tensor) and (
            tensor is not None or name in ("children", "transforms")
        ):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if tensor is not None and (
            tensor.is_complex() or tensor.device != children.device
        ):
            check_numbers(name, tensor, children.device)
    if children.ndim not in (3, 4):
        raise ValueError(
            "children must be (N, G, P) or (N, G, M, P), got shape "
            f"{tuple(children.shape)}"
        )
    if transforms.ndim != 4:
        raise ValueError(
            f"transforms must be (I or 1, J, P, D), got shape {tuple(transforms.shape)}"
        )
    if children.ndim == 3:
        children = children.unsqueeze(2)
    N, G, M, P = children.shape
    distinct, J, dim, D = transforms.shape
    if sites is None:
        W, I = (1, G)
    else:
        W, I = _checked_sites(sites, children).shape
    if distinct not in (1, I):
        raise ValueError(
            f"transforms are for {distinct} children (1 would mean shared by all), but "
            f"there are {I}"
        )
    if dim != P:
        raise ValueError(
            f"transforms take child poses of dimension {dim}, but children have "
            f"dimension {P}"
        )
    if coordinates is not None and coordinates.shape != (I, M * D):
        raise ValueError(
            f"coordinates must be (I, H) = {(I, M * D)}, got shape "
            f"{tuple(coordinates.shape)}"
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (N, G)):
        raise ValueError(
            f"mask must be bool (N, G) = {(N, G)}, got {mask.dtype} {tuple(mask.shape)}"
        )
    return children, (N * W, I, J, M * D)


def check_field(
    name: str,
    field: Tensor,
    children: Tensor,
    parents: int | None = None,
) -> None:
    """Checks that a field has a number for each child, (N, G), or, if ``parents`` are
    given, for each pair.

    Raises:
        TypeError: if it is no tensor.
        ValueError: if its shape, dtype or device does not fit.
    """
    if not isinstance(field, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(field).__name__}")
    sites = children.shape[:2]
    if field.shape != sites and (parents is None or field.shape != (*sites, parents)):
        pairs = "" if parents is None else f" or (N, G, J) = {(*sites, parents)}"
        raise ValueError(
            f"{name} must be (N, G) = {tuple(sites)}{pairs}, got shape "
            f"{tuple(field.shape)}"
        )
    if field.is_complex() or field.device != children.device:
        check_numbers(name, field, children.device)


def _checked_sites(sites: Any, children: Tensor) -> Tensor:
    if not isinstance(sites, Tensor):
        raise TypeError(f"sites must be a tensor, got {type(sites).__name__}")
    if sites.ndim != 2 or sites.dtype != torch.int32:
        raise ValueError(
            f"sites must be int32 (W, I), got {sites.dtype} {tuple(sites.shape)}"
        )
    check_numbers("sites", sites, children.device)
    if (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or sites.is_meta
        or not sites.numel()
    ):
        return sites  # there are no numbers to look at
    least, largest = _range(sites)
    if least < 0 or largest >= children.shape[1]:
        raise ValueError(
            f"sites must be from 0 to {children.shape[1] - 1}, got {least} to {largest}"
        )
    return sites


_RANGES = WeakTensorKeyDictionary()
"""Of each tensor of sites that was looked at: its version then, its least and its
largest number.
"""


def _range(sites: Tensor) -> tuple[int, int]:
    """The least and the largest site, from the table unless the tensor was changed in
    place since.
    """
    version = None if sites.is_inference() else sites._version
    remembered = _RANGES.get(sites)
    if remembered is None or remembered[0] is None or remembered[0] != version:
        least, largest = sites.aminmax()
        remembered = _RANGES[sites] = (version, int(least), int(largest))
    return remembered[1], remembered[2]


def choose_backend(votes: Votes, similarity: Similarity | None = None) -> Choice:
    """The backend for one call on these votes, ``votes.moments(similarity)``, and why.

    The first of these that applies:

    1. the backend that was asked for by name: the argument ``backend`` of the votes or
       the layer, else :func:`use_backend`, else the environment variable
       ``TORCHCAPS_BACKEND``;
    2. ``naive``, stored votes, for forward-mode derivatives, ``torch.func`` and export
    to ONNX;
    3. ``naive`` for small votes: at most 256 numbers on a CPU, 2^20 on a GPU; on a CPU
       also those of vector capsules for Gaussians in at most 3 rows, if they are 2^15
       to 2^20 numbers;
    4. the fused kernels of the device, ``native`` or ``triton``, if they can run there
       and know the similarity and the rule;
    5. plain PyTorch: ``chunked``, tile by tile; or ``naive`` for at most 8192 numbers,
       and where an exported program leaves a size open, since it cannot hold a loop
       over tiles.

    ``torch.compile`` fixes the choice when it traces the call.

    Raises:
        ValueError: if a backend that was asked for by name cannot do the call.
    """
    return votes.choose(similarity)
