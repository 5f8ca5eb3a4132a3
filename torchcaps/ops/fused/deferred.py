r"""Gradients of the votes, passed on once for all steps of a routing.

The gradients of the votes are a sum over the steps, and linear in the votes,

.. math:: dV_{ij} = \sum_t \rho^t_{ij} (A^t_j + B^t_j (V_{ij} - C^t_j)),

with coefficients of each pair and fields of each parent: shares times the gradients of a sum, gradients of logits
times what the votes were compared with. So the backward pass of a step finds only its coefficients and fields, and
writes them into a ledger; the gradients of children and transforms are found from them once, after the last step.
Autograd knows when that is: every step depends on a token that the votes gave out.

A step whose normaliser was found first needs the same logits twice. They are stored when the normaliser is found,
unless they are many and no gradients will flow, and read in the step and in both backward passes. What the gradients of
the logits mean for the parents is found once as well, together with those of the normaliser, which come last: the step
depends on a token of theirs.

That is for plain eager mode; where a program is traced or captured, operators do the same step by step.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.numerics import positive
from torchcaps.ops.derivatives import Tensors, gradients, several
from torchcaps.ops.fused import passes
from torchcaps.ops.fused.call import Call, stored_moments, stored_scores

_LOGITS = 2**24
"""The most logits that are stored where there is nothing to differentiate, and memory should stay small."""


@dataclass
class _Entry:
    """What the steps have written into the ledger in one backward pass.

    Args:
        call: of one of them; all have the same votes.
        parts: among how many tasks the rows are divided.
        terms: of the gradients of the votes.
        left: coefficients of logits that the scores of the same logits have still to pass on to the parents, by the
            name of these scores.
    """

    call: Call
    parts: int
    terms: list[passes.Term] = field(default_factory=list)
    left: dict[object, Tensor] = field(default_factory=dict)


class _Scored(NamedTuple):
    """Scores, and what a step with the same logits needs of them.

    Args:
        name: of these scores, like no other.
        similarity: what the votes were compared with.
        versions: of these tensors at that time.
        logits: the numbers, if they were stored.
        token: whatever depends on it is differentiated before the scores are; None if these will not be differentiated.
    """

    name: object
    similarity: tuple[Tensor, ...]
    versions: list[int]
    logits: Tensor | None
    token: Tensor | None

    def have(self, call: Call) -> bool:
        """Whether this call compares with the same tensors, which were not changed in place since."""
        same = len(call.similarity) == len(self.similarity) and all(map(is_, call.similarity, self.similarity))
        return same and self.versions == _versions(call)


class _Written(NamedTuple):
    """What a forward pass stored for the backward pass, if it did.

    Args:
        logits: of the step.
        votes: if there are few.
    """

    logits: Tensor | None = None
    votes: Tensor | None = None


class _Step(NamedTuple):
    """What a step does beside its tensors.

    Args:
        entries: of the ledger.
        parts: among how many tasks the rows of windows are shared out.
        options: of the function.
        scores: the name of the scores of the same logits, if there are any.
    """

    entries: dict[int, _Entry]
    parts: int
    options: tuple[bool, ...]
    scores: object = None


class Ledger:
    """Steps of routing on one set of votes, forward and backward.

    Args:
        children: of the votes.
        transforms: of the votes.
        coordinates: of the votes, or None.
    """

    def __init__(self, children: Tensor, transforms: Tensor, coordinates: Tensor | None) -> None:
        self.votes = children, transforms, coordinates
        self.entries: dict[int, _Entry] = {}
        self._tokens: dict[tuple[bool, ...], Tensor] = {}
        self._parts: int | None = None
        self._scored: _Scored | None = None
        self._kept = passes.Kept(children, transforms)

    def moments(self, call: Call, *options: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mass, sum and scatter; the options are orphan, hard, scatter."""
        scored, self._scored = self._scored, None  # for the next step only
        name = token = logits = None
        if scored is not None and scored.have(call):
            name, token, (_, hard, _) = scored.name, scored.token, options
            # Stored logits are read parent by parent: that takes a known normaliser, and finds no argmax.
            logits = scored.logits if call.log_partition is not None and not hard else None
        step = self._step(call, options, name)
        if not _differentiated(call):
            return _moments(call, _logits(step, logits), self._kept, *options)[:3]
        return _Moments.apply(step, self._kept, self._token(), token, logits, call.sites, *call.listed)

    def scores(self, call: Call, *options: bool) -> Tensor:
        """The logits, or their normaliser; the options are orphan, reduced."""
        name, (_, reduced) = object(), options
        step, differentiated = self._step(call, options, name), _differentiated(call)
        token = logits = None
        if any(tensor.is_inference() for tensor in call.similarity):  # changes in place are not counted
            return _scores(call, None, *options)
        if reduced and len(call.similarity) == 3 and (differentiated or math.prod(call.sizes[:3]) <= _LOGITS):
            logits = passes.empty_logits(call, step.parts).values
        if differentiated:
            scores, token = _Scores.apply(step, self._token(), logits, call.sites, *call.listed)
        else:
            scores = _scores(call, _logits(step, logits), *options)
        self._scored = _Scored(name, call.similarity, _versions(call), logits, token)
        return scores

    def _step(self, call: Call, options: tuple[bool, ...], scores: object) -> _Step:
        if self._parts is None:  # one layout for all steps, however many threads there are later
            self._parts = passes.row_parts(call)
        return _Step(self.entries, self._parts, options, scores)

    def _token(self) -> Tensor:
        """Whatever depends on it is differentiated before the votes are."""
        wanted = tuple(tensor is not None and tensor.requires_grad for tensor in self.votes)
        if wanted not in self._tokens:  # requires_grad may have changed since
            self._tokens[wanted] = _Token.apply(self.entries, *self.votes)
        return self._tokens[wanted]


def _versions(call: Call) -> list[int]:
    return [tensor._version for tensor in call.similarity]


def _differentiated(call: Call) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call.flat())


def _moments(
    call: Call, logits: passes.Logits | None, kept: passes.Kept, orphan: bool, hard: bool, scatter: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    return passes.moments(call.readable(), orphan=orphan, hard=hard, scatter=scatter, logits=logits, kept=kept)


def _scores(call: Call, logits: passes.Logits | None, orphan: bool, reduced: bool) -> Tensor:
    return passes.scores(call.readable(), orphan=orphan, reduced=reduced, logits=logits)


class _Token(torch.autograd.Function):
    """A number without meaning, whose backward pass is that of the votes."""

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
        return None, *passes.pass_on(entry.call, entry.terms, entry.parts, ctx.needs_input_grad[1:])


def _save(
    ctx: Any, step: _Step, written: _Written, arguments: Sequence[Tensor | None], *results: Tensor | None
) -> None:
    """Keeps the sites and tensors of a call, its results, and what was stored."""
    ctx.step = step
    ctx.save_for_backward(*arguments, *results, *written)
    ctx.results = len(results)


def _logits(step: _Step, values: Tensor | None) -> passes.Logits | None:
    return None if values is None else passes.Logits(values, step.parts)


def _gradients(
    ctx: Any,
    flow: Callable[..., passes.Flow],
    work: Callable[..., Call],
    function: Callable[..., Tensors],
    upstream: Tensors,
) -> Any:
    """The gradients at the places of a function's arguments.

    Args:
        ctx: of the function.
        flow: the backward pass but for the votes, from a call, its results, what was stored, and the entry of this
            pass.
        work: all gradients at once, from a call, its results and the upstream gradients.
        function: the forward pass in plain PyTorch, from a call and its options.
        upstream: the gradients of the results.
    """
    sites, *saved = ctx.saved_tensors  # read once: a checkpoint gives them out only once
    last = len(saved) - ctx.results - len(_Written._fields)
    tensors, (*results, logits, votes) = saved[:last], passes.read_back(saved[last:])
    beside = [None] * (len(ctx.needs_input_grad) - len(tensors))  # the arguments that come first

    if torch.is_grad_enabled() or several(upstream):  # it may be differentiated again, or no kernel can read it
        found = gradients(
            lambda tensors, upstream: work(Call.of(tensors, sites).readable(), results, upstream).listed,
            lambda *tensors: function(Call.of(tensors, sites), *ctx.step.options),
            tensors,
            upstream,
        )
        return *beside, *found
    call = Call.of(tensors, sites).readable()
    entry = _entry(ctx, call)
    flowing = flow(call, results, _Written(logits, votes), entry)
    if entry is not None:
        entry.terms += [term for term in (flowing.shares, flowing.logits) if term is not None]
    return *beside, *flowing.gradients


def _entry(ctx: Any, call: Call) -> _Entry | None:
    """Where a step writes its terms; None if this backward pass does not need the gradients of the votes."""
    if not _comes_later(ctx, 0):
        return None
    entries: dict[int, _Entry] = ctx.step.entries
    return entries.setdefault(torch._C._current_graph_task_id(), _Entry(call, ctx.step.parts))


def _comes_later(ctx: Any, place: int) -> bool:
    """Whether what gave out the token at this place among a function's tensors is differentiated in this pass."""
    node, _ = ctx.next_functions[place]
    return node is not None and torch._C._will_engine_execute_node(node)


class _Moments(torch.autograd.Function):
    """Mass, sum and scatter of the votes."""

    @staticmethod
    def forward(ctx: Any, step: _Step, kept: passes.Kept, *arguments: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        _, _, logits, sites, *tensors = arguments
        mass, total, second, rest = _moments(Call.of(tensors, sites), _logits(step, logits), kept, *step.options)
        _save(ctx, step, _Written(logits, kept.votes), (sites, *tensors), mass, total, rest)
        return mass, total, second

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        step = ctx.step
        orphan, hard, scatter = step.options
        grads = upstream if scatter else (*upstream[:2], None)

        def mean(results: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
            mass, total, rest = results
            return total / positive(mass)[..., None], rest

        def flow(call: Call, results: Sequence[Tensor], written: _Written, entry: _Entry | None) -> passes.Flow:
            parts, logits = None if entry is None else entry.parts, _logits(step, written.logits)
            middle, rest = mean(results) if scatter else (None, None)
            defers = entry is not None and step.scores is not None and not hard and _comes_later(ctx, 1)
            wanted = (*ctx.needs_input_grad[9:11], any(ctx.needs_input_grad[11:]) and not defers)
            options = {"orphan": orphan, "hard": hard}
            found = passes.moments_flow(call, middle, rest, grads, parts, wanted, logits, written.votes, **options)
            if entry is not None and defers and found.logits is not None:
                entry.left[step.scores] = found.logits.coefficient
            return found

        def work(call: Call, results: Sequence[Tensor], upstream: Any) -> Call:
            (middle, rest), (mass, total, scatter) = mean(results), upstream
            return passes.moments_backward(call, middle, mass, total, scatter, rest, orphan=orphan, hard=hard)

        return _gradients(ctx, flow, work, stored_moments, grads)


class _Scores(torch.autograd.Function):
    """The logits of the votes, or their normaliser, and a token of theirs."""

    @staticmethod
    def forward(ctx: Any, step: _Step, *arguments: Any) -> tuple[Tensor, Tensor]:
        _, logits, sites, *tensors = arguments
        scores = _scores(Call.of(tensors, sites), _logits(step, logits), *step.options)
        _save(ctx, step, _Written(logits), (sites, *tensors), scores)
        return scores, scores.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        step = ctx.step
        orphan, reduced = step.options

        def flow(call: Call, results: Sequence[Tensor], written: _Written, entry: _Entry | None) -> passes.Flow:
            logits = _logits(step, written.logits)
            (scores,), compared = results, any(ctx.needs_input_grad[9:])
            parts, into = (None, None) if entry is None else (entry.parts, entry.left.pop(step.scores, None))
            options = {"orphan": orphan, "reduced": reduced}
            return passes.scores_flow(call, scores, grad, parts, compared, logits, into, **options)

        def work(call: Call, results: Sequence[Tensor], upstream: Any) -> Call:
            (scores,), (grad,) = results, upstream
            return passes.scores_backward(call, scores, grad, orphan=orphan, reduced=reduced)

        return _gradients(ctx, flow, work, stored_scores, (grad,))
