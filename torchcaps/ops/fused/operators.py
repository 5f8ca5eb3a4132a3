"""Routing in fused kernels: the same custom operators for all sets of kernels.

``torch.compile``, ``torch.export`` and autocast see one node for an E-step with its
moments, and one for its gradients. A set of kernels is a module or object with the four
functions of :class:`Kernels`.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from torchcaps.numerics import positive
from torchcaps.ops.derivatives import STORED, Tensors, check_forward_mode, gradients
from torchcaps.ops.fused.call import (
    Call,
    listed,
    readable,
    sizes_of,
    stored_moments,
    stored_scores,
)


class Kernels(Protocol):
    """What a fused backend does. Tensors come contiguous, float32 or wider, of one
    dtype, on one device.

    Example:
        >>> class Nothing(tc.ops.fused.Kernels):
        ...     def prepare(self):
        ...         raise RuntimeError("no kernels here")
        >>> try:
        ...     Nothing().prepare()
        ... except RuntimeError as reason:
        ...     print(reason)
        no kernels here
    """

    def prepare(self) -> None:
        """Makes the kernels ready; a RuntimeError or ImportError says why they cannot
        run here.
        """

    def moments(
        self, call: Call, *, leaky: bool, hard: bool, scatter: bool
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Mass (B, J), sum (B, J, H) and, if wanted, scatter (B, J, H) about the mean:
        one E-step and its sums.

        With the scatter comes the rest (B, J, H): what the mean of the votes is more
        than sum / mass, rounded.
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
        leaky: bool,
        hard: bool,
    ) -> Call:
        """The gradients of every tensor of the call; ``mean`` is sum / mass, (B, J, H),
        and ``rest`` from there.
        """

    def scores(self, call: Call, *, leaky: bool, reduced: bool) -> Tensor:
        """The logits (B, I, J), or reduced, their log-partition over the parents (and
        the leak) (B, I).
        """

    def scores_backward(
        self, call: Call, scores: Tensor, grad: Tensor, *, leaky: bool, reduced: bool
    ) -> Call:
        """The gradients of every tensor of the call; ``scores`` is what :meth:`scores`
        gave.
        """


KERNELS = {
    "native": "torchcaps.ops.fused.passes",
    "triton": "torchcaps.ops.fused.triton_launch",
}
"""The modules that hold the kernels, by backend; imported when first used."""

_CALL = (
    "Tensor children, Tensor transforms, Tensor? coordinates, Tensor? weights, Tensor? "
    "log_partition, Tensor? sites, Tensor[] similarity, str backend"
)
_MOMENTS = (
    f"({_CALL}, bool leaky, bool hard, bool scatter) -> (Tensor, Tensor, Tensor, "
    "Tensor)"
)
_MOMENTS_BACKWARD = (
    f"({_CALL}, bool leaky, bool hard, Tensor mean, Tensor grad_mass, Tensor grad_sum, "
    "Tensor? grad_scatter, Tensor? rest=None) -> Tensor[]"
)
_SCORES = f"({_CALL}, bool leaky, bool reduced) -> Tensor"
_SCORES_BACKWARD = (
    f"({_CALL}, bool leaky, bool reduced, Tensor scores, Tensor grad) -> Tensor[]"
)


def _opened(arguments: Sequence[Any]) -> tuple[Call, str, Sequence[Any]]:
    """The arguments of an operator: the call, the name of the backend, and the rest."""
    count = len(Call._fields)
    *fields, similarity = arguments[:count]
    backend, *options = arguments[count:]
    return Call._make([*fields, tuple(similarity)]), backend, options


def _kernels(backend: str) -> Kernels:
    return cast(Kernels, import_module(KERNELS[backend]))


@cache
def why_not(backend: str) -> str:
    """Why the kernels of a backend cannot run here, with a warning the first time;
    empty if they can.
    """
    try:
        _kernels(backend).prepare()
    except (ImportError, RuntimeError) as error:
        warnings.warn(
            f"slower routing, in plain PyTorch, because: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return str(error)
    return ""


def _moments(*arguments: Any) -> tuple[Tensor, ...]:
    """Mass, sum, scatter and rest; a scatter that was not asked for is empty, and so is
    the rest.
    """
    call, backend, (leaky, hard, scatter) = _opened(arguments)
    results = _kernels(backend).moments(
        call.readable(), leaky=leaky, hard=hard, scatter=scatter
    )
    return tuple(
        call.children.new_empty(0) if tensor is None else tensor for tensor in results
    )


def _moments_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call, _, (_, _, scatter) = _opened(arguments)
    B, _, J, M, _, D = sizes_of(call)
    total = call.children.new_empty(B, J, M * D)
    return (
        total.new_empty(B, J),
        total,
        *(torch.empty_like(total) if scatter else total.new_empty(0) for _ in range(2)),
    )


def _moments_backward(*arguments: Any) -> list[Tensor]:
    """The gradients of the tensors of the call that are there."""
    call, backend, (leaky, hard, *upstream) = _opened(arguments)
    B, _, J, M, _, D = sizes_of(call)
    pieces: list[Any] = [
        None
        if grad is None
        else readable(
            name, grad, (B, J) if name == "grad_mass" else (B, J, M * D), call.children
        )
        for name, grad in zip(
            ("mean", "grad_mass", "grad_sum", "grad_scatter", "rest"),
            upstream,
            strict=False,
        )
    ]
    return (
        _kernels(backend)
        .moments_backward(call.readable(), *pieces, leaky=leaky, hard=hard)
        .flat()
    )


def _scores(*arguments: Any) -> Tensor:
    """The logits, or their log-partition."""
    call, backend, (leaky, reduced) = _opened(arguments)
    return _kernels(backend).scores(call.readable(), leaky=leaky, reduced=reduced)


def _scores_shapes(*arguments: Any) -> Tensor:
    call, _, (_, reduced) = _opened(arguments)
    B, I, J, *_ = sizes_of(call)
    return call.children.new_empty((B, I) if reduced else (B, I, J))


def _scores_backward(*arguments: Any) -> list[Tensor]:
    """The gradients of the tensors of the call that are there."""
    call, backend, (leaky, reduced, scores, grad) = _opened(arguments)
    shape = sizes_of(call)[: 2 if reduced else 3]
    pieces = (
        readable(name, field, shape, call.children)
        for name, field in (("scores", scores), ("grad", grad))
    )
    return (
        _kernels(backend)
        .scores_backward(call.readable(), *pieces, leaky=leaky, reduced=reduced)
        .flat()
    )


def _gradients_shapes(*arguments: Any) -> list[Tensor]:
    return _opened(arguments)[0].gradients().flat()


def _gradients(
    run: Callable[..., list[Tensor]],
    function: Callable[..., Tensors],
    tensors: Tensors,
    sites: Tensor | None,
    upstream: Tensors,
    options: tuple[bool, ...],
) -> Tensors:
    """The gradients of the tensors of a call, in a form that can be differentiated
    again.

    Args:
        run: finds those that are there, from a call and the upstream gradients.
        function: what they are the gradients of, in plain PyTorch, of a call and its
            options.
        tensors: the tensors of the call, as :func:`~torchcaps.ops.fused.call.listed`.
        sites: the sites of the call.
        upstream: the gradients of the results.
        options: the options of the function.
    """

    def work(tensors: Tensors, upstream: Tensors) -> Tensors:
        computed = iter(run(Call.of(tensors, sites), *upstream))
        return [None if tensor is None else next(computed) for tensor in tensors]

    return gradients(
        work,
        lambda *tensors: function(Call.of(tensors, sites), *options),
        tensors,
        upstream,
    )


def moments_gradients(
    tensors: Tensors,
    sites: Tensor | None,
    results: Sequence[Any],
    upstream: Tensors,
    backend: str,
    *options: bool,
) -> Tensors:
    """The gradients of the tensors of a call, from those of its mass, sum and scatter;
    ``results``: these, and rest.
    """
    mass, total, rest = results

    def run(call: Call, *upstream: Tensor | None) -> list[Tensor]:
        mean = total / positive(mass)[..., None]
        slopes: list[Tensor] = _run_moments_backward(
            *call, backend, *options[:2], mean, *upstream, rest
        )
        return slopes

    return _gradients(run, stored_moments, tensors, sites, upstream, options)


def scores_gradients(
    tensors: Tensors,
    sites: Tensor | None,
    results: Sequence[Any],
    upstream: Tensors,
    backend: str,
    *options: bool,
) -> Tensors:
    """The gradients of the tensors of a call, from that of its scores; ``results``:
    these.
    """

    def run(call: Call, grad: Tensor | None) -> list[Tensor]:
        slopes: list[Tensor] = _run_scores_backward(
            *call, backend, *options, *results, grad
        )
        return slopes

    return _gradients(run, stored_scores, tensors, sites, upstream, options)


def _moments_context(
    ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]
) -> None:
    mass, total, _, rest = output
    _save(ctx, inputs, mass, total, rest if inputs[-1] else None)


def _scores_context(ctx: Any, inputs: Sequence[Any], output: Tensor) -> None:
    _save(ctx, inputs, output)


def _save(ctx: Any, arguments: Sequence[Any], *results: Tensor | None) -> None:
    """Keeps the arguments of an operator and what its backward pass needs of its
    results.
    """
    call, backend, options = _opened(arguments)
    ctx.options = (backend, *options)
    ctx.results = len(results)
    ctx.save_for_backward(*results, call.sites, *listed(call))


def _at_arguments(
    ctx: Any, gradients_of: Callable[..., Tensors], upstream: Tensors
) -> Any:
    """The gradients at the places of an operator's arguments."""
    # Read once: a checkpoint gives them out only once.
    saved = ctx.saved_tensors
    results, (sites, *tensors) = saved[: ctx.results], saved[ctx.results :]
    grads = Call.of(gradients_of(tensors, sites, results, upstream, *ctx.options), None)
    *fields, similarity = grads
    return *fields, list(similarity), *(None for _ in ctx.options)


def _moments_gradient(
    ctx: Any, grad_mass: Tensor, grad_sum: Tensor, grad_scatter: Tensor, _: Any
) -> Any:
    scatter = ctx.options[-1]
    return _at_arguments(
        ctx, moments_gradients, (grad_mass, grad_sum, grad_scatter if scatter else None)
    )


def _scores_gradient(ctx: Any, grad: Tensor) -> Any:
    return _at_arguments(ctx, scores_gradients, (grad,))


def _no_gradient(ctx: Any, *upstream: Any) -> Any:
    raise RuntimeError(
        "the gradients of torchcaps::moments_backward and torchcaps::scores_backward "
        "are not written: differentiate torchcaps::moments and torchcaps::scores "
        f"twice, or store the votes: {STORED}"
    )


# The operators live as long as this.
_LIBRARY = torch.library.Library("torchcaps", "FRAGMENT")


def operator(
    name: str,
    schema: str,
    kernel: Callable[..., Any],
    shapes: Callable[..., Any],
    gradient: Callable[..., Any] = _no_gradient,
    context: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """An operator that ``torch.compile``, ``torch.export`` and autograd know.

    It is what ``torch.library.custom_op`` makes, but for the compiler, which that
    imports with the first call (a second): the kernel is kept from being traced only
    where there is a compiler to trace it.
    """
    untraced = torch._disable_dynamo(kernel)
    full_name = f"{_LIBRARY.ns}::{name}"

    def run(*arguments: Any) -> Any:
        check_forward_mode(full_name)
        return (untraced if "torch._dynamo" in sys.modules else kernel)(*arguments)

    _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(full_name, shapes, lib=_LIBRARY)
    torch.library.register_autograd(
        full_name, gradient, setup_context=context, lib=_LIBRARY
    )
    return getattr(torch.ops.torchcaps, name).default


_run_moments_backward = operator(
    "moments_backward", _MOMENTS_BACKWARD, _moments_backward, _gradients_shapes
)
_run_scores_backward = operator(
    "scores_backward", _SCORES_BACKWARD, _scores_backward, _gradients_shapes
)
operator(
    "moments", _MOMENTS, _moments, _moments_shapes, _moments_gradient, _moments_context
)
operator("scores", _SCORES, _scores, _scores_shapes, _scores_gradient, _scores_context)
