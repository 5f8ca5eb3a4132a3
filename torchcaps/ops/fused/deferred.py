r"""Gradients of the votes, passed on once for all steps of a routing.

What a step has to do with the gradients of the votes is linear in them,

.. math:: dV_{ij} = \sum_t \rho^t_{ij} (A^t_j + B^t_j V_{ij}),

with coefficients of each pair and fields of each parent: shares times the gradients of a sum, gradients of logits
times what the votes were compared with. So the backward pass of a step finds its coefficients and fields alone, and
writes them into a ledger; what they come to for children and transforms is found once, after the last step. Autograd
knows when that is: every step depends on a token that the votes gave out.

That is for plain eager mode; where a program is traced or captured, operators do the same step by step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchcaps.numerics import positive
from torchcaps.ops.derivatives import Tensors, gradients
from torchcaps.ops.fused import native
from torchcaps.ops.fused.call import Call, stored_moments, stored_scores


@dataclass
class _Entry:
    """What the steps have written down in one backward pass.

    Args:
        call: of one of them; all have the same votes.
        parts: among how many tasks rows are shared out.
        terms: of the gradients of the votes.
        logits: the coefficients of logits, by the places of what the votes were compared with; and these tensors, so
            that no others come to lie there.
    """

    call: Call
    parts: int
    terms: list[native.Term] = field(default_factory=list)
    logits: dict[tuple[int, ...], tuple[Tensor, tuple[Tensor, ...]]] = field(default_factory=dict)

    def write(self, call: Call, flow: native.Flow) -> None:
        """Adds the terms of a step."""
        self.terms += [term for term in (flow.shares, flow.logits) if term is not None]
        if flow.logits is not None:
            self.logits[_places(call)] = flow.logits.coefficient, call.similarity

    def known(self, call: Call) -> Tensor | None:
        """The coefficients of the same logits in another step, if there are any."""
        coefficient, _ = self.logits.get(_places(call), (None, ()))
        return coefficient


def _places(call: Call) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in call.similarity)


class Ledger:
    """Steps of routing on one set of votes, forward and backward.

    Args:
        votes: the tensors of the votes: children, transforms, coordinates.
    """

    def __init__(self, *votes: Tensor | None) -> None:
        self.votes = votes
        self.entries: dict[int, _Entry] = {}
        self._tokens: dict[tuple[bool, ...], Tensor] = {}

    def moments(self, call: Call, *options: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mass, sum and scatter; the options are orphan, hard, scatter."""
        if _differentiated(call):
            return _Moments.apply(self, self._given_out(), options, call.sites, *call.listed)
        return _moments(call, *options)

    def scores(self, call: Call, *options: bool) -> Tensor:
        """The logits, or their normaliser; the options are orphan, reduced."""
        if _differentiated(call):
            return _Scores.apply(self, self._given_out(), options, call.sites, *call.listed)
        return _scores(call, *options)

    def _given_out(self) -> Tensor:
        """The token: whatever depends on it is differentiated before the votes are."""
        wanted = tuple(tensor is not None and tensor.requires_grad for tensor in self.votes)
        if wanted not in self._tokens:  # they may have been frozen, or thawed, since
            self._tokens[wanted] = _Token.apply(self.entries, *self.votes)
        return self._tokens[wanted]


def _differentiated(call: Call) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.flat())


def _moments(call: Call, orphan: bool, hard: bool, scatter: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    return native.moments(call.readable(), orphan=orphan, hard=hard, scatter=scatter)


def _scores(call: Call, orphan: bool, reduced: bool) -> Tensor:
    return native.scores(call.readable(), orphan=orphan, reduced=reduced)


class _Token(torch.autograd.Function):
    """A number that nobody needs, and the gradients of the votes."""

    @staticmethod
    def forward(ctx: Any, entries: dict[int, _Entry], *votes: Tensor | None) -> Tensor:
        ctx.entries = entries
        assert votes[0] is not None
        return votes[0].new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        entry = ctx.entries.pop(torch._C._current_graph_task_id(), None)
        if entry is None:
            return None, None, None, None
        return None, *native.pass_on(entry.call, entry.terms, entry.parts, ctx.needs_input_grad[1:])


def _save(ctx: Any, arguments: Sequence[Any], *results: Tensor) -> None:
    ledger, _, ctx.options, sites, *tensors = arguments
    ctx.entries = ledger.entries
    ctx.save_for_backward(sites, *tensors, *results)
    ctx.results = len(results)


def _gradients(
    ctx: Any,
    flow: Callable[..., native.Flow],
    work: Callable[..., Call],
    function: Callable[..., Tensors],
    upstream: Tensors,
) -> Any:
    """The gradients at the places of a function's arguments.

    Args:
        ctx: of the function.
        flow: what the upstream gradients come to but for the votes, of a call, the results, and the entry of this pass.
        work: all gradients at once, of a call, the results and the upstream gradients.
        function: what was done, in plain PyTorch, of a call and its options.
        upstream: the gradients of the results.
    """
    sites, *saved = ctx.saved_tensors  # once: a checkpoint gives them out once
    tensors, results = saved[: len(saved) - ctx.results], saved[len(saved) - ctx.results :]

    if torch.is_grad_enabled():  # somebody may differentiate that again
        found = gradients(
            lambda tensors, upstream: work(Call.of(tensors, sites).readable(), results, upstream).listed,
            lambda *tensors: function(Call.of(tensors, sites), *ctx.options),
            tensors,
            upstream,
        )
        return None, None, None, None, *found
    call = Call.of(tensors, sites).readable()
    entry = _entry(ctx, call)
    flowing = flow(call, results, entry)
    if entry is not None:
        entry.write(call, flowing)
    return None, None, None, None, *flowing.gradients


def _entry(ctx: Any, call: Call) -> _Entry | None:
    """Where a step writes its terms; None if nobody asks for the gradients of the votes in this backward pass."""
    token, _ = ctx.next_functions[0]
    if token is None or not torch._C._will_engine_execute_node(token):
        return None
    entries: dict[int, _Entry] = ctx.entries
    return entries.setdefault(torch._C._current_graph_task_id(), _Entry(call, native.row_parts(call)))


class _Moments(torch.autograd.Function):
    """Mass, sum and scatter of the votes."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        _, _, options, sites, *tensors = arguments
        mass, total, second = _moments(Call.of(tensors, sites), *options)
        _save(ctx, arguments, mass, total)
        return mass, total, second

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        orphan, hard, scatter = ctx.options
        grads = upstream if scatter else (*upstream[:2], None)

        def mean(results: Sequence[Tensor]) -> Tensor:
            mass, total = results
            return total / positive(mass)[..., None]

        def flow(call: Call, results: Sequence[Tensor], entry: _Entry | None) -> native.Flow:
            parts = None if entry is None else entry.parts
            middle = mean(results) if scatter else None
            return native.moments_flow(call, middle, grads, parts, ctx.needs_input_grad[7:9], orphan=orphan, hard=hard)

        def work(call: Call, results: Sequence[Tensor], upstream: Any) -> Call:
            return native.moments_backward(call, mean(results), *upstream, orphan=orphan, hard=hard)

        return _gradients(ctx, flow, work, stored_moments, grads)


class _Scores(torch.autograd.Function):
    """The logits of the votes, or their normaliser."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        _, _, options, sites, *tensors = arguments
        _save(ctx, arguments)
        return _scores(Call.of(tensors, sites), *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        orphan, reduced = ctx.options

        def flow(call: Call, _: Sequence[Tensor], entry: _Entry | None) -> native.Flow:
            parts, into = (None, None) if entry is None else (entry.parts, entry.known(call))
            return native.scores_flow(call, grad, parts, into, orphan=orphan, reduced=reduced)

        def work(call: Call, _: Sequence[Tensor], upstream: Any) -> Call:
            return native.scores_backward(call, grad, *upstream, orphan=orphan, reduced=reduced)

        return _gradients(ctx, flow, work, stored_scores, (grad,))
