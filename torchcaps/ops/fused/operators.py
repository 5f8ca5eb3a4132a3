"""Routing in fused kernels: the same custom operators for all sets of kernels.

``torch.compile``, ``torch.export`` and autocast see one node for an E-step with its moments, and one for its gradients.
A set of kernels is a module or object with the four functions of :class:`Kernels`.
"""

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from torchcaps.numerics import positive
from torchcaps.ops import naive
from torchcaps.ops.backend import Agreement, Moments, Rule, VoteSource
from torchcaps.ops.closed_forms import attention_moments, uniform_moments
from torchcaps.ops.derivatives import STORED, Tensors, check_forward_mode, gradients, only_stored
from torchcaps.ops.fused.agreement import agree
from torchcaps.ops.fused.call import Call, readable, stored_moments, stored_scores
from torchcaps.ops.fused.deferred import Ledger
from torchcaps.ops.fused.gaussians import fit
from torchcaps.ops.gaussians import Gaussians
from torchcaps.ops.similarity import Gaussian, InnerProduct, Similarity
from torchcaps.ops.windows import in_windows
from torchcaps.squash import kind_of


class Kernels(Protocol):
    """What a fused backend does. Tensors come contiguous, float32 or wider, of one dtype, on one device.

    Example:
        >>> class Nothing(tc.ops.fused.Kernels):
        ...     def prepare(self):
        ...         raise RuntimeError("no kernels here")
        ...
        >>> try:
        ...     Nothing().prepare()
        ... except RuntimeError as reason:
        ...     print(reason)
        ...
        no kernels here
    """

    def prepare(self) -> None:
        """Makes the kernels ready; a RuntimeError or ImportError says why they cannot run here."""

    def moments(
        self, call: Call, *, orphan: bool, hard: bool, scatter: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Mass (B, J), sum (B, J, H) and, if wanted, scatter (B, J, H) about the mean: one E-step and its sums.

        With the scatter comes the rest (B, J, H): what the mean of the votes is more than sum / mass, rounded.
        """

    def moments_backward(
        self,
        call: Call,
        mean: Tensor,
        grad_mass: Tensor,
        grad_sum: Tensor,
        grad_scatter: Tensor | None,
        rest: Tensor | None = None,
        *,
        orphan: bool,
        hard: bool,
    ) -> Call:
        """The gradients of every tensor of the call; ``mean`` is sum / mass, (B, J, H), and ``rest`` from there."""

    def scores(self, call: Call, *, orphan: bool, reduced: bool) -> Tensor:
        """The logits (B, I, J), or reduced, their normaliser over the parents (and the orphan) (B, I)."""

    def scores_backward(self, call: Call, scores: Tensor, grad: Tensor, *, orphan: bool, reduced: bool) -> Call:
        """The gradients of every tensor of the call; ``scores`` is what :meth:`scores` gave."""


KERNELS = {"native": "torchcaps.ops.fused.passes", "triton": "torchcaps.ops.fused.triton_launch"}
"""The modules that hold the kernels, by backend; imported when first used."""

_CALL = (
    "Tensor children, Tensor transforms, Tensor? coordinates, Tensor? weights, Tensor? log_partition, Tensor? sites, "
    "Tensor[] similarity, str backend"
)
_MOMENTS = f"({_CALL}, bool orphan, bool hard, bool scatter) -> (Tensor, Tensor, Tensor, Tensor)"
_MOMENTS_BACKWARD = (
    f"({_CALL}, bool orphan, bool hard, Tensor mean, Tensor grad_mass, Tensor grad_sum, Tensor? grad_scatter, "
    "Tensor? rest=None) -> Tensor[]"
)
_SCORES = f"({_CALL}, bool orphan, bool reduced) -> Tensor"
_SCORES_BACKWARD = f"({_CALL}, bool orphan, bool reduced, Tensor scores, Tensor grad) -> Tensor[]"


def _opened(arguments: Sequence[Any]) -> tuple[Call, str, Sequence[Any]]:
    """The arguments of an operator: the call, the name of the backend, and the rest."""
    return Call._make([*arguments[:6], tuple(arguments[6])]), arguments[7], arguments[8:]


def _kernels(backend: str) -> Kernels:
    return cast(Kernels, import_module(KERNELS[backend]))


@cache
def why_not(backend: str) -> str:
    """Why the kernels of a backend cannot run here, with a warning the first time; empty if they can."""
    try:
        _kernels(backend).prepare()
    except (ImportError, RuntimeError) as error:
        warnings.warn(f"slower routing, in plain PyTorch, because: {error}", RuntimeWarning, stacklevel=2)
        return str(error)
    return ""


def _moments(*arguments: Any) -> tuple[Tensor, ...]:
    """Mass, sum, scatter and rest; a scatter that was not asked for is empty, and so is the rest."""
    call, backend, (orphan, hard, scatter) = _opened(arguments)
    found = _kernels(backend).moments(call.readable(), orphan=orphan, hard=hard, scatter=scatter)
    return tuple(call.children.new_empty(0) if tensor is None else tensor for tensor in found)


def _moments_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call, _, (_, _, scatter) = _opened(arguments)
    B, _, J, M, _, D = call.sizes
    total = call.children.new_empty(B, J, M * D)
    return total.new_empty(B, J), total, *(torch.empty_like(total) if scatter else total.new_empty(0) for _ in range(2))


def _moments_backward(*arguments: Any) -> list[Tensor]:
    """The gradients of the tensors of the call that are there."""
    call, backend, (orphan, hard, *upstream) = _opened(arguments)
    B, _, J, M, _, D = call.sizes
    pieces = [
        readable(name, grad, (B, J) if name == "grad_mass" else (B, J, M * D), call.children)
        for name, grad in zip(("mean", "grad_mass", "grad_sum", "grad_scatter", "rest"), upstream, strict=False)
    ]
    return _kernels(backend).moments_backward(call.readable(), *pieces, orphan=orphan, hard=hard).flat()


def _scores(*arguments: Any) -> Tensor:
    """The logits, or their normaliser."""
    call, backend, (orphan, reduced) = _opened(arguments)
    return _kernels(backend).scores(call.readable(), orphan=orphan, reduced=reduced)


def _scores_shapes(*arguments: Any) -> Tensor:
    call, _, (_, reduced) = _opened(arguments)
    B, I, J, *_ = call.sizes
    return call.children.new_empty((B, I) if reduced else (B, I, J))


def _scores_backward(*arguments: Any) -> list[Tensor]:
    """The gradients of the tensors of the call that are there."""
    call, backend, (orphan, reduced, scores, grad) = _opened(arguments)
    shape = call.sizes[: 2 if reduced else 3]
    pieces = (readable(name, field, shape, call.children) for name, field in (("scores", scores), ("grad", grad)))
    return _kernels(backend).scores_backward(call.readable(), *pieces, orphan=orphan, reduced=reduced).flat()


def _gradients_shapes(*arguments: Any) -> list[Tensor]:
    return _opened(arguments)[0].gradients().flat()


def _save(ctx: Any, arguments: Sequence[Any], result: Tensor, rest: Tensor | None = None) -> None:
    """Keeps the arguments of an operator and what its backward pass needs of its results."""
    call, *_ = _opened(arguments)
    ctx.options = arguments[7:]
    ctx.save_for_backward(*call[:6], result, rest, *call.similarity)


def _saved(ctx: Any) -> tuple[list[Any], Any]:
    """What :func:`_save` kept: the call as arguments, and the results."""
    saved = ctx.saved_tensors
    return [*saved[:6], saved[8:]], saved[6:8]


def _gradients(
    ctx: Any,
    backward: Callable[[Call, Any, Tensors], list[Tensor]],
    function: Callable[..., Tensors],
    upstream: Tensors,
) -> Any:
    """The gradients at the places of an operator's arguments.

    Args:
        ctx: of the operator.
        backward: the operator that finds them, of a call, the results that were kept, and the upstream gradients.
        function: what the operator does, in plain PyTorch, of a call and its options.
        upstream: the gradients of its results.
    """
    (*fields, sites, similarity), results = _saved(ctx)  # read once: a checkpoint gives them out only once

    def work(tensors: Tensors, upstream: Tensors) -> list[Tensor | None]:
        found = iter(backward(Call.of(tensors, sites), results, upstream))
        return [None if tensor is None else next(found) for tensor in tensors]

    grads = gradients(
        work, lambda *tensors: function(Call.of(tensors, sites), *ctx.options[1:]), [*fields, *similarity], upstream
    )
    return *grads[:5], None, list(grads[5:]), *(None for _ in ctx.options)


def _moments_context(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    mass, total, _, rest = output
    _save(ctx, inputs, total / positive(mass)[..., None], rest if inputs[-1] else None)


def _moments_gradient(ctx: Any, grad_mass: Tensor, grad_sum: Tensor, grad_scatter: Tensor, _: Any) -> tuple[Any, ...]:
    *options, scatter = ctx.options

    def backward(call: Call, results: Any, upstream: Tensors) -> list[Tensor]:
        mean, rest = results
        return _run_moments_backward(*call, *options, mean, *upstream, rest)

    return _gradients(ctx, backward, stored_moments, (grad_mass, grad_sum, grad_scatter if scatter else None))


def _scores_context(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    _save(ctx, inputs, output)


def _scores_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    def backward(call: Call, results: Any, upstream: Tensors) -> list[Tensor]:
        return _run_scores_backward(*call, *ctx.options, results[0], *upstream)

    return _gradients(ctx, backward, stored_scores, (grad,))


def _no_gradient(ctx: Any, *upstream: Any) -> Any:
    raise RuntimeError(
        "the gradients of torchcaps::moments_backward and torchcaps::scores_backward are not written: "
        f"differentiate torchcaps::moments and torchcaps::scores twice, or store the votes: {STORED}"
    )


_LIBRARY = torch.library.Library("torchcaps", "FRAGMENT")  # the operators live as long as this


def _operator(
    name: str,
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any],
    gradient: Callable[..., Any] = _no_gradient,
    context: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """An operator that ``torch.compile``, ``torch.export`` and autograd know.

    It is what ``torch.library.custom_op`` makes, but for the compiler, which that imports with the first call (a
    second): the kernel is kept from being traced only where there is a compiler to trace it.
    """
    untraced, full_name = torch._disable_dynamo(kernel), f"{_LIBRARY.ns}::{name}"

    def run(*arguments: Any) -> Any:
        check_forward_mode(full_name)
        return (untraced if "torch._dynamo" in sys.modules else kernel)(*arguments)

    _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(full_name, shapes, lib=_LIBRARY)
    torch.library.register_autograd(full_name, gradient, setup_context=context, lib=_LIBRARY)
    return getattr(torch.ops.torchcaps, name).default


_run_moments_backward = _operator("moments_backward", _MOMENTS_BACKWARD, _moments_backward, _gradients_shapes)
_run_scores_backward = _operator("scores_backward", _SCORES_BACKWARD, _scores_backward, _gradients_shapes)
_run_moments = _operator("moments", _MOMENTS, _moments, _moments_shapes, _moments_gradient, _moments_context)
_run_scores = _operator("scores", _SCORES, _scores, _scores_shapes, _scores_gradient, _scores_context)


class FusedVotes(VoteSource):
    """Votes that exist in registers only; children that windows share are read where they lie."""

    indexed = True
    backend: str

    @property
    def adds_vectors(self) -> bool:
        """Whether the kernels add up votes of vectors evenly in less time than a matrix product takes."""
        return False

    @classmethod
    def supports(cls, similarity: Similarity | None, rule: Rule) -> str:
        """Inner products and Gaussians under a softmax, with or without an orphan, or an argmax."""
        if similarity is not None and type(similarity) not in (InnerProduct, Gaussian):
            return f"the kernels have inner products and Gaussians, not {type(similarity).__name__}"
        return f"the kernels do not have {rule.special}" if rule.special else only_stored()

    def moments(self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool) -> Moments:
        """One E-step and the sums of the M-step that follows."""
        if self.empty:
            return naive.stored_moments(self, similarity, weights, rule, scatter)
        without_votes = self.sites is None and self.coordinates is None and not (scatter or rule.hard)
        if without_votes and similarity is None and not self.adds_vectors:
            return uniform_moments(self.children, self.transforms, weights, rule)
        if without_votes and isinstance(similarity, InnerProduct) and self.transforms.shape[0] == 1:
            return attention_moments(self.children, self.transforms, similarity.alpha, weights, rule)
        return self._moments(self._call(similarity, weights, rule.log_partition), rule.orphan, rule.hard, scatter)

    def assignment(self, similarity: Similarity | None, rule: Rule) -> Tensor:
        """The assignment probabilities, (B, I, J)."""
        logits = self.logits(similarity)
        partition = rule.log_partition
        if partition is not None and self.sites is not None:
            rule = Rule(rule.orphan, rule.hard, in_windows(partition, self.sites))
        return naive.logits_assignment(logits, rule)

    def logits(self, similarity: Similarity | None) -> Tensor:
        """The logits, (B, I, J)."""
        if self.empty:
            return naive.stored(self).logits(similarity)
        return self._scores(self._call(similarity), False, False)

    def log_partition(self, similarity: Similarity | None, orphan: bool) -> Tensor:
        """The normaliser, (B, I)."""
        if similarity is None:
            B, I, J, *_ = self._call(None).sizes
            return self.children.new_full((B, I), math.log(J + orphan) if J + orphan else -math.inf)
        if self.empty:
            return naive.logits_partition(self.logits(similarity), orphan)
        return self._scores(self._call(similarity), orphan, True)

    def _moments(self, call: Call, orphan: bool, hard: bool, scatter: bool) -> Moments:
        mass, total, second, _ = _run_moments(*call, self.backend, orphan, hard, scatter)
        return Moments(mass, total, second if scatter else None)

    def _scores(self, call: Call, orphan: bool, reduced: bool) -> Tensor:
        return _run_scores(*call, self.backend, orphan, reduced)

    def _call(
        self, similarity: Similarity | None, weights: Tensor | None = None, log_partition: Tensor | None = None
    ) -> Call:
        fields = (self.children, self.transforms, self.coordinates, weights, log_partition, self.sites)
        return Call(*fields, () if similarity is None else similarity.tensors)


def _plain(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary tensors on a CPU, and no compiler, tracer or mode needs to see an operator."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack():
        return False
    for tensor in tensors:  # a comprehension takes twice as long
        if tensor is not None and (type(tensor) not in _KINDS or not tensor.is_cpu or tensor.is_neg()):
            return False
    return True


_KINDS = (Tensor, torch.nn.Parameter)


class NativeVotes(FusedVotes):
    """In C++, on a CPU.

    Example:
        >>> from torchcaps.ops import InnerProduct, Rule
        >>> tc.ops.fused.NativeVotes.supports(InnerProduct(torch.randn(2, 3, 5)), Rule())  # no reason against it
        ''
    """

    backend = "native"

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(self.children, self.transforms, self.coordinates)

    def _moments(self, call: Call, orphan: bool, hard: bool, scatter: bool) -> Moments:
        if not _plain(*call.listed):
            return super()._moments(call, orphan, hard, scatter)
        return Moments(*self._ledger.moments(call, orphan, hard, scatter))

    def _scores(self, call: Call, orphan: bool, reduced: bool) -> Tensor:
        if not _plain(*call.listed):
            return super()._scores(call, orphan, reduced)
        return self._ledger.scores(call, orphan, reduced)

    def agree(self, agreement: Agreement, bias: Tensor | None) -> tuple[Tensor, Tensor | None] | None:
        """All steps of routing by agreement, of vectors whose transforms are not shared."""
        call, squashes = self._call(None), kind_of(agreement.squash).constant is not None
        if self.empty or not (self.adds_vectors and squashes) or only_stored() or not _plain(*call.listed, bias):
            return None
        return agree(call, bias, agreement)

    def gaussians(self, moments: Moments, floor: float) -> Gaussians:
        """In one pass over the moments."""
        mass, total, scatter = moments
        known = total.dtype in (torch.float32, torch.float64)
        if scatter is None or self.empty or not known or only_stored() or not _plain(*moments):
            return super().gaussians(moments, floor)
        return fit(mass, total, scatter, floor)

    @property
    def adds_vectors(self) -> bool:
        """Unless all children share the transforms: then the children are added up first."""
        return self.children.shape[2] == 1 and self.transforms.shape[0] > 1


class TritonVotes(FusedVotes):
    """In Triton, on a GPU, or on a CPU under Triton's interpreter.

    Example:
        >>> from torchcaps.ops import InnerProduct, Rule
        >>> tc.ops.fused.TritonVotes.supports(InnerProduct(torch.randn(2, 3, 5)), Rule())  # no reason against it
        ''
    """

    backend = "triton"
