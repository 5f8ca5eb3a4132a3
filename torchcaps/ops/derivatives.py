"""What no kernel is written for: second derivatives, those of forward mode and of
``torch.func``, ONNX.

Backends that do not store votes have a backward pass of their own. Its derivatives, and
those of other modes, are left to formulas in plain PyTorch, which store the votes and
are right to any order.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchcaps.numerics import any_batched

Tensors = Sequence[Tensor | None]
Work = Callable[[Tensors, Tensors], Tensors]
Function = Callable[..., Tensors]

STORED = "backend='naive'"
"""How to ask for stored votes, for error messages."""


def check_forward_mode(name: str) -> None:
    """Keeps an operator without forward-mode derivatives from giving zeros for them.

    Raises:
        RuntimeError: anywhere inside forward mode, whichever tensors have tangents:
            ``torch.func.jvp`` has taken them off by the time that the operator runs.
    """
    if forward_ad._current_level >= 0:
        raise RuntimeError(
            f"{name} has no forward-mode derivatives, which need stored votes: {STORED}"
        )


def about_mean(
    mean: Tensor,
    remainder: Tensor,
    grad_mass: Tensor,
    grad_sum: Tensor,
    grad_scatter: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of mass and sum for a backward pass that takes the scatter about a mean
    that is rounded.

    The mean of the votes is ``mean + remainder``. About that, weighted deviations add
    up to 0; about the rounded mean they do not, which matters beside the steep
    gradients of the scatter that tight Gaussians have. So ``grad_scatter ((V - mean -
    remainder)^2 - (V - mean)^2)``, which is linear in V but for the square of the
    remainder, is added to the other two.
    """
    slope = 2 * grad_scatter * remainder
    return grad_mass + (slope * mean).sum(-1), grad_sum - slope


def gradients(
    work: Work, function: Function, tensors: Tensors, upstream: Tensors
) -> Tensors:
    """What a backward pass returns, the gradients of tensors, in a form that can be
    differentiated again.

    Args:
        work: how they are found: from the tensors and the upstream gradients.
        function: what they are the gradients of, in plain PyTorch: from the tensors to
            the outputs.
        tensors: those that went in; None where there is none.
        upstream: the gradients of the outputs; None where none flows.
    """
    again = torch.is_grad_enabled()
    if any_batched(upstream):
        with torch.enable_grad():
            wanted = [
                None
                if tensor is None or not tensor.requires_grad
                else tensor.view_as(tensor)
                for tensor in tensors
            ]
            outputs = function(
                *(
                    tensor if leaf is None else leaf
                    for tensor, leaf in zip(tensors, wanted, strict=True)
                )
            )
        return tuple(differentiated(outputs, upstream, wanted, create_graph=again))
    if not again:  # nobody will differentiate again
        return work(tensors, upstream)
    return _Gradients.apply(work, function, len(tensors), *tensors, *upstream)


class _Gradients(torch.autograd.Function):
    """A backward pass that has a backward pass of its own."""

    @staticmethod
    def forward(
        ctx: Any, work: Work, function: Function, count: int, *fields: Tensor | None
    ) -> Any:
        ctx.function = function
        ctx.count = count
        ctx.save_for_backward(*fields)
        return tuple(work(fields[:count], fields[count:]))

    @staticmethod
    def backward(ctx: Any, *flowing: Tensor | None) -> Any:
        fields = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            leaves = [_leaf(field) for field in fields]
            tensors = leaves[: ctx.count]
            upstream = leaves[ctx.count :]
            first = differentiated(
                ctx.function(*tensors), upstream, tensors, create_graph=True
            )
            second = differentiated(first, flowing, leaves, create_graph=again)
        return None, None, None, *second


def _leaf(field: Tensor | None) -> Tensor | None:
    """The same numbers as an argument of their own, which no other argument depends
    on.
    """
    if field is None:
        return None
    if field.requires_grad:
        return field.view_as(field)
    return field.detach().requires_grad_()


def differentiated(
    outputs: Tensors, upstream: Tensors, tensors: Tensors, create_graph: bool
) -> list[Tensor | None]:
    """The gradients of the tensors, where there are any."""
    flowing = [
        (output, gradient)
        for output, gradient in zip(outputs, upstream, strict=True)
        if output is not None and gradient is not None and output.requires_grad
    ]
    if not flowing:
        return [None for _ in tensors]
    inputs = [tensor for tensor in tensors if tensor is not None]
    outputs, upstream = zip(*flowing, strict=True)
    gradients = iter(
        torch.autograd.grad(
            outputs, inputs, upstream, create_graph=create_graph, allow_unused=True
        )
    )
    return [None if tensor is None else next(gradients) for tensor in tensors]
