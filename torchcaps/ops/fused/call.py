"""One call of the fused kernels: its tensors, the votes that make it, and the same
computation in plain PyTorch.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Moments, VoteSource
from torchcaps.ops.closed_forms import uniform_log_partition, uniform_moments
from torchcaps.ops.competition import Competition, over_parents
from torchcaps.ops.derivatives import Tensors
from torchcaps.ops.similarity import Gaussian, InnerProduct, Similarity
from torchcaps.ops.windows import in_windows


class Call(NamedTuple):
    """The tensors of one call, or their gradients; a field that the call does not have
    is None.

    Windows of a convolution share children: there are N images of G children each, and
    W windows of I of them. A layer without windows has W = 1 and I = G. Rows of the
    batch are ``B = N * W``, row ``n * W + w``.

    Example:
        >>> call = tc.ops.fused.Call(torch.randn(2, 6, 1, 4), torch.randn(6, 3, 4, 5))
        >>> tc.ops.fused.call.sizes_of(call)
        (2, 6, 3, 1, 4, 5)
    """

    children: Tensor  # [N, G, M, P]
    transforms: Tensor  # [I or 1, J, P, D]
    coordinates: Tensor | None = None  # [I, M * D]
    weights: Tensor | None = None  # [N, G]
    log_partition: Tensor | None = None  # [N, G]
    # int32 [W, I]: which of the G children each window has.
    sites: Tensor | None = None
    # (), (alpha,) or (mean, precision, log_weight): [B, J, M * D] each, and [B, J]
    similarity: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, tensors: Sequence[Any], sites: Tensor | None) -> "Call":
        """Make a call from the other tensors, in the order of :func:`listed`."""
        return cls._make((*tensors[:5], sites, tuple(tensors[5:])))

    def gradients(self) -> "Call":
        """Gradients of zeros."""
        zeros = [
            None if field is None else torch.zeros_like(field) for field in listed(self)
        ]
        return Call.of(zeros, None)

    def readable(self) -> "Call":
        """The same tensors, contiguous, as the kernels read them.

        Raises:
            ValueError: if one does not fit the children: the kernels would read beyond
                its memory.
        """
        B, I, J, M, P, D = sizes_of(self)
        children = self.children
        by_child = self.children.shape[:2]
        by_vote = (B, J, M * D)
        if children.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"children must be float32 or float64, got {children.dtype}"
            )
        if len(self.similarity) not in (0, 1, 3):
            raise ValueError(
                "similarity must have none, one or three tensors, got "
                f"{len(self.similarity)}"
            )
        transform_rows = 1 if self.transforms.shape[0] == 1 else I
        shapes = (
            children.shape,
            (transform_rows, J, P, D),
            (I, M * D),
            by_child,
            by_child,
            by_vote,
            by_vote,
            (B, J),
        )
        dtype = children.dtype
        device = children.device
        fields = listed(self)
        for place, (tensor, shape) in enumerate(zip(fields, shapes, strict=False)):
            if tensor is not None:
                if (
                    tensor.shape != shape
                    or tensor.dtype != dtype
                    or tensor.device != device
                ):
                    raise misfit(_NAMES[place], tensor, shape, children)
                fields[place] = tensor.contiguous()
        sites = self.sites
        if sites is not None:
            if sites.dtype != torch.int32 or sites.device != device:
                raise misfit("sites", sites, sites.shape, children, torch.int32)
            sites = sites.contiguous()
        return Call.of(fields, sites)

    def flat(self) -> list[Tensor]:
        """The tensors of :func:`listed` that the call has."""
        return [field for field in listed(self) if field is not None]


def listed(call: Call) -> list[Tensor | None]:
    """All tensors but the sites, those of the similarity last; None for those that the
    call does not have.

    A function, since PyTorch 2.10 cannot compile properties of named tuples.
    """
    return [*call[:5], *call.similarity]


def sizes_of(call: Call) -> tuple[int, int, int, int, int, int]:
    """B, I, J, M, P, D. A function, as :func:`listed`."""
    N, G, M, P = call.children.shape
    _, J, _, D = call.transforms.shape
    windows, children = (1, G) if call.sites is None else call.sites.shape
    return N * windows, children, J, M, P, D


_NAMES = (*Call._fields[:5], "similarity[0]", "similarity[1]", "similarity[2]")


def misfit(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    children: Tensor,
    dtype: torch.dtype | None = None,
) -> ValueError:
    """The error to raise where a tensor has not this shape, or not the dtype and device
    of the children.
    """
    return ValueError(
        f"{name} must be {dtype or children.dtype} {tuple(shape)} on "
        f"{children.device}, got {tensor.dtype} "
        f"{tuple(tensor.shape)} on {tensor.device}"
    )


def readable(name: str, tensor: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    """The tensor, contiguous.

    Raises:
        ValueError: if it has not this shape, or not the dtype and device of the other
            one; names the tensor.
    """
    if (
        tensor.shape != shape
        or tensor.dtype != like.dtype
        or tensor.device != like.device
    ):
        raise misfit(name, tensor, shape, like)
    return tensor.contiguous()


def stored_moments(call: Call, leaky: bool, hard: bool, scatter: bool) -> Tensors:
    """Mass, sum and scatter (or None) of a call, from stored votes: differentiable to
    any order.
    """
    votes, similarity = _stored(call)
    weights, partition = (
        None if field is None else in_windows(field, call.sites)
        for field in (call.weights, call.log_partition)
    )
    competition = Competition(leaky=leaky, hard=hard)
    return votes.moments(similarity, weights, competition, partition, scatter)


def stored_scores(call: Call, leaky: bool, reduced: bool) -> Tensors:
    """The logits of a call, or their log-partition, from stored votes: differentiable to
    any order.
    """
    votes, similarity = _stored(call)
    logits = votes.logits(similarity)
    return (over_parents(logits, leaky) if reduced else logits,)


def _stored(call: Call) -> tuple[naive.NaiveVotes, Similarity | None]:
    """The votes of a call, stored, and its similarity."""
    kinds: dict[int, Callable[..., Similarity | None]] = {
        0: lambda: None,
        1: InnerProduct,
        3: Gaussian,
    }
    votes = naive.NaiveVotes(
        in_windows(call.children, call.sites), call.transforms, call.coordinates
    )
    return votes, kinds[len(call.similarity)](*call.similarity)


class Agreement(NamedTuple):
    """The numbers of routing by agreement, whose steps kernels make all at once; see
    :class:`~torchcaps.routing.DynamicRouting`.

    Args:
        steps: how many, the uniform first one included.
        constant: c of the squash n^2 / (c + n^2).
        accumulate: whether alpha adds up the poses of all steps.
        leaky: whether a logit 0 competes with the parents.
    """

    steps: int
    constant: float
    accumulate: bool
    leaky: bool


class EMOptions(NamedTuple):
    """The numbers of EM routing, whose steps kernels make all at once; see
    :class:`~torchcaps.routing.EMRouting`.

    Args:
        inverse_temperatures: lambda of each step.
        sharpness: the sharpness of each E-step, one fewer.
        floor: added to the variances.
        cost_scale: factor of the cost.
        activation_scale: factor of ``beta_a``.
        standardise: whether costs are standardised over the parents.
        cost_floor: under their deviation, as a share of their mean size.
    """

    inverse_temperatures: tuple[float, ...]
    sharpness: tuple[float, ...]
    floor: float
    cost_scale: float
    activation_scale: float
    standardise: bool
    cost_floor: float


class EMSteps(NamedTuple):
    """The results of all steps of EM routing, of T steps.

    Args:
        mean: after the last step, (B, J, H).
        logit: the logit of the activations, (B, J).
        means: after all steps, (T, B, H, J): fields as the kernels have them.
        precisions: after all steps, times the sharpness, (T, B, H, J).
        log_weights: the logarithms of the weights in the steps before, (T - 1, B, J).
        logits: after the steps before, (T - 1, B, J).
        masses: the masses of all steps, (T, B, J).
        rests: what rounding took from the means, (T, B, H, J).
        roundings: the roundings of the standardised costs, (T, B, 2).
        partitions: the log-partition of each child, (T, N, G), or none of them.
    """

    mean: Tensor
    logit: Tensor
    means: Tensor
    precisions: Tensor
    log_weights: Tensor
    logits: Tensor
    masses: Tensor
    rests: Tensor
    roundings: Tensor
    partitions: Tensor

    @classmethod
    def empty(cls, call: Call, seen: Tensor | None, steps: int) -> "EMSteps":
        """Memory for it."""
        B, _, J, M, _, D = sizes_of(call)
        partition_steps = steps if seen is not None else 0
        new = call.children.new_empty
        return cls(
            mean=new(B, J, M * D),
            logit=new(B, J),
            means=new(steps, B, M * D, J),
            precisions=new(steps, B, M * D, J),
            log_weights=new(steps - 1, B, J),
            logits=new(steps - 1, B, J),
            masses=new(steps, B, J),
            rests=new(steps, B, M * D, J),
            roundings=new(steps, B, 2),
            partitions=new(partition_steps, *call.children.shape[:2]),
        )


class FusedVotes(VoteSource):
    """Votes that exist in registers only; children that windows share are read where
    they lie.

    Each call goes through an operator of :mod:`~torchcaps.ops.fused.operators`, which
    compilers and autograd know.
    """

    indexed = True

    backend: ClassVar[str]
    """The name of the kernels."""

    @property
    def adds_vectors(self) -> bool:
        """Whether the kernels add up votes of vectors evenly in less time than a matrix
        product takes.
        """
        return False

    @classmethod
    def supports(cls, similarity: Similarity | None, competition: Competition) -> str:
        """Inner products and Gaussians under a softmax, with or without a leak, or
        an argmax.
        """
        if similarity is not None and type(similarity) not in (InnerProduct, Gaussian):
            return (
                "the kernels have inner products and Gaussians, not "
                f"{type(similarity).__name__}"
            )
        if competition.replaces_softmax:
            return (
                "the kernels have a softmax and an argmax, not "
                f"{type(competition).__name__}"
            )
        if competition.hard and competition.leaky:
            return "the kernels do not have hard assignments beside a leak"
        return ""

    def moments(
        self,
        similarity: Similarity | None,
        weights: Tensor | None,
        competition: Competition,
        log_partition: Tensor | None,
        scatter: bool,
    ) -> Moments:
        """One E-step and the sums of the M-step that follows."""
        call = self._call(similarity, weights, log_partition)
        if self.empty:
            return naive.stored_moments(
                self, similarity, weights, competition, log_partition, scatter
            )
        hard = competition.hard
        # The log-partition includes the leak.
        leaky = competition.leaky and log_partition is None
        even = similarity is None and self.sites is None and self.coordinates is None
        if even and not (scatter or hard or self.adds_vectors):
            return uniform_moments(
                self.children, self.transforms, weights, leaky, log_partition
            )
        return self._moments(call, leaky, hard, scatter)

    def logits(self, similarity: Similarity | None) -> Tensor:
        """The logits, (B, I, J)."""
        if self.empty:
            return naive.stored(self).logits(similarity)
        return self._scores(self._call(similarity), False, False)

    def log_partition(self, similarity: Similarity | None, leaky: bool) -> Tensor:
        """The log-partition over the parents, (B, I)."""
        if similarity is None:
            B, I, J, *_ = sizes_of(self._call(None))
            return uniform_log_partition(self.children, (B, I), J + leaky)
        if self.empty:
            return over_parents(self.logits(similarity), leaky)
        return self._scores(self._call(similarity), leaky, True)

    def _call(
        self,
        similarity: Similarity | None,
        weights: Tensor | None = None,
        log_partition: Tensor | None = None,
    ) -> Call:
        tensors: tuple[Tensor, ...] = ()
        if isinstance(similarity, InnerProduct):
            tensors = (similarity.alpha,)
        elif isinstance(similarity, Gaussian):
            tensors = (similarity.mean, similarity.precision, similarity.log_weight)
        return Call(
            self.children,
            self.transforms,
            self.coordinates,
            weights,
            log_partition,
            self.sites,
            tensors,
        )

    def _moments(self, call: Call, leaky: bool, hard: bool, scatter: bool) -> Moments:
        """Compute the moments of a call, by the kernels."""
        operator = torch.ops.torchcaps.moments.default
        mass, total, second, _ = operator(*call, self.backend, leaky, hard, scatter)
        return Moments(mass, total, second if scatter else None)

    def _scores(self, call: Call, leaky: bool, reduced: bool) -> Tensor:
        """The logits of a call, (B, I, J), or reduced, their log-partition, (B, I), by the
        kernels.
        """
        operator = torch.ops.torchcaps.scores.default
        scores: Tensor = operator(*call, self.backend, leaky, reduced)
        return scores


class TritonVotes(FusedVotes):
    """Votes in Triton, on a GPU, or on a CPU under Triton's interpreter.

    Example:
        >>> from torchcaps.ops import Competition, InnerProduct
        >>> tc.ops.fused.TritonVotes.supports(
        ...     InnerProduct(torch.randn(2, 3, 5)), Competition()
        ... )  # no reason against it
        ''
    """

    backend = "triton"
