r"""Gradients of the votes, passed on once for all steps of a routing.

The gradients of the votes are a sum over the steps, and linear in the votes,

.. math:: dV_{ij} = \sum_t \rho^t_{ij} (A^t_j + B^t_j (V_{ij} - C^t_j)),

with coefficients of each pair and fields of each parent: shares times the gradients of
a sum, gradients of logits times what the votes were compared with. So the backward pass
of a step finds only its coefficients and fields, and writes them into a ledger; the
gradients of children and transforms are found from them once, after the last step.
Autograd knows when that is: every step depends on a token that the votes gave out.

A step whose log-partition was found first needs the same logits twice. They are stored
when the log-partition is found, unless they are many and no gradients will flow, and read
in the step and in both backward passes. What the gradients of the logits mean for the
parents is found once as well, together with those of the log-partition, which come last:
the step depends on a token of theirs.

That is for plain eager mode; where a program is traced or captured, operators do the
same step by step. Either way, gradients that may be differentiated again are those of
the operators.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.numerics import any_batched, needs_plain_ops, positive
from torchcaps.ops.backend import Moments
from torchcaps.ops.fused import passes
from torchcaps.ops.fused.call import Call, FusedVotes, listed, sizes_of
from torchcaps.ops.fused.operators import moments_gradients, scores_gradients

_LOGITS = 2**24
"""The most logits that are stored where there is nothing to differentiate, and memory
should stay small.
"""

_KINDS = (Tensor, torch.nn.Parameter)


def recorded(tensors: Sequence[Tensor | None]) -> bool | None:
    """Whether autograd records what becomes of these tensors; None where they must go
    through an operator.

    An operator is needed for tensor subclasses, for other devices, and under a
    compiler, a tracer, a dispatch mode or ``torch.func``.
    """
    if needs_plain_ops() or torch._C._len_torch_dispatch_stack():
        return None
    differentiated = False
    grad_mode = torch.is_grad_enabled()
    # A comprehension takes twice as long.
    for tensor in tensors:
        if tensor is not None:
            if type(tensor) not in _KINDS or not tensor.is_cpu or tensor.is_neg():
                return None
            differentiated = differentiated or (grad_mode and tensor.requires_grad)
    return differentiated


@dataclass
class _Entry:
    """What the steps have written into the ledger in one backward pass.

    Args:
        call: the call of one of them; all have the same votes.
        parts: among how many tasks the rows are divided.
        terms: the terms of the gradients of the votes.
        left: coefficients of logits that the scores of the same logits have still to
            pass on to the parents, by the name of these scores.
    """

    call: Call
    parts: int
    terms: list[passes.Term] = field(default_factory=list)
    left: dict[object, Tensor] = field(default_factory=dict)


class _Scored(NamedTuple):
    """The logits of one scores pass, for the step with the same similarity.

    Args:
        name: the name of these scores, like no other.
        similarity: what the votes were compared with.
        versions: the versions of these tensors at that time.
        logits: the numbers, if they were stored.
        token: whatever depends on it is differentiated before the scores are; None if
            these will not be differentiated.
    """

    name: object
    similarity: tuple[Tensor, ...]
    versions: list[int]
    logits: Tensor | None
    token: Tensor | None

    def have(self, call: Call) -> bool:
        """Whether this call compares with the same tensors, which were not changed in
        place since.
        """
        same = len(call.similarity) == len(self.similarity) and all(
            map(is_, call.similarity, self.similarity)
        )
        return same and self.versions == _versions(call)


class _Step(NamedTuple):
    """What a step does beside its tensors.

    Args:
        entries: the entries of the ledger.
        parts: among how many tasks the rows of windows are shared out.
        options: the options of the function.
        scores: the name of the scores of the same logits, if there are any.
    """

    entries: dict[int, _Entry]
    parts: int
    options: tuple[Any, ...]
    scores: object = None


@dataclass(eq=False)
class Ledger:
    """What the steps of a routing on one set of votes write down for each other.

    Args:
        token: whatever depends on it is differentiated before the votes are; None where
            nothing is recorded.
        parts: among how many tasks the rows of windows are shared out.
        entries: the entries of the backward passes that are under way, by their number.
        scored: the scores that the next step may use, if there are any.
        logits: memory for logits that no backward pass reads, the same in all steps:
            new memory comes from the system page by page.
    """

    token: Tensor | None
    parts: int
    entries: dict[int, _Entry]
    scored: _Scored | None = None
    logits: Tensor | None = None


@dataclass(eq=False)
class NativeVotes(FusedVotes):
    """Votes in C++, on a CPU.

    Example:
        >>> from torchcaps.ops import Competition, InnerProduct
        >>> tc.ops.fused.NativeVotes.supports(
        ...     InnerProduct(torch.randn(2, 3, 5)), Competition()
        ... )  # no reason against it
        ''
    """

    backend = "native"

    _ledgers: dict[tuple[bool, ...], Ledger] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def _ledger(self) -> Ledger:
        """The ledger of the steps. There is one for each choice of tensors that are
        differentiated, since that may change between two steps.
        """
        children = self.children
        transforms = self.transforms
        coordinates = self.coordinates
        grad_mode = torch.is_grad_enabled()
        added = coordinates is not None and coordinates.requires_grad
        wanted = grad_mode, children.requires_grad, transforms.requires_grad, added
        if wanted in self._ledgers:
            return self._ledgers[wanted]
        entries: dict[int, _Entry] = {}
        token = None
        if grad_mode:
            token = Token.apply(entries, _pass_on, children, transforms, coordinates)
        # One layout for all steps, however many threads there are later.
        parts = 0 if self.sites is None else passes.row_parts(self._call(None))
        ledger = Ledger(token, parts, entries)
        self._ledgers[wanted] = ledger
        return ledger

    @property
    def adds_vectors(self) -> bool:
        """True unless all children share the transforms: then the children are added up
        first.
        """
        return self.children.shape[2] == 1 and self.transforms.shape[0] > 1

    def _moments(self, call: Call, leaky: bool, hard: bool, scatter: bool) -> Moments:
        tensors = listed(call)
        differentiated = recorded(tensors)
        if differentiated is None:
            return super()._moments(call, leaky, hard, scatter)
        ledger = self._ledger
        # Scores serve the next step only: a later one compares with other parents, and
        # the logits, the largest tensor here, are freed.
        scored = ledger.scored
        ledger.scored = None
        name = token = logits = None
        # The same tensors, by identity and version: this step has the logits of the scores
        # pass, and need not form the votes for them again.
        if scored is not None and scored.have(call):
            name = scored.name
            token = scored.token
            # Stored logits are read parent by parent: that takes a log-partition,
            # and finds no argmax.
            if call.log_partition is not None and not hard:
                logits = scored.logits
        options = leaky, hard, scatter
        if not differentiated:
            moments = passes.moments(call.readable(), *options, ledger.parts, logits)
            return Moments(*moments[:3])
        step = _Step(ledger.entries, ledger.parts, options, name)
        moments = _Moments.apply(
            step, ledger.token, token, logits, call.sites, *tensors
        )
        return Moments(*moments)

    def _scores(self, call: Call, leaky: bool, reduced: bool) -> Tensor:
        tensors = listed(call)
        differentiated = recorded(tensors)
        if differentiated is None:
            return super()._scores(call, leaky, reduced)
        # Of inference tensors changes in place are not counted, so that nobody could
        # tell whether stored scores are still theirs.
        if any(tensor.is_inference() for tensor in call.similarity):
            return passes.scores(call.readable(), leaky, reduced)
        ledger = self._ledger
        token = logits = None
        if reduced and len(call.similarity) == 3:
            if differentiated:
                logits = passes.empty_logits(call, ledger.parts)
            elif math.prod(sizes_of(call)[:3]) <= _LOGITS:
                if ledger.logits is None:
                    ledger.logits = passes.empty_logits(call, ledger.parts)
                logits = ledger.logits
        name = object()
        if differentiated:
            step = _Step(ledger.entries, ledger.parts, (leaky, reduced), name)
            scores, token = _Scores.apply(
                step, ledger.token, logits, call.sites, *tensors
            )
        else:
            scores = passes.scores(
                call.readable(), leaky, reduced, ledger.parts, logits
            )
        ledger.scored = _Scored(name, call.similarity, _versions(call), logits, token)
        return scores


def _versions(call: Call) -> list[int]:
    return [tensor._version for tensor in call.similarity]


class Token(torch.autograd.Function):
    """A number without meaning, whose backward pass is that of tensors which all steps
    share.

    Every step takes it as an input. Autograd runs a node after all users of its output:
    so what the steps have left in the ledger is passed on once, after the last of them.
    The number of the backward pass keeps apart those that run at the same time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        ledger: dict[int, Any],
        pass_on: Callable[[Any, Sequence[bool]], Sequence[Tensor | None]],
        like: Tensor,
        *others: Tensor | None,
    ) -> Tensor:
        """The number, of the kind of the first of the tensors."""
        ctx.ledger, ctx.pass_on, ctx.count = ledger, pass_on, 1 + len(others)
        return like.new_empty(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> Any:
        """The gradients of the tensors."""
        left = ctx.ledger.pop(torch._C._current_graph_task_id(), None)
        if left is None:
            return None, None, *(None for _ in range(ctx.count))
        return None, None, *ctx.pass_on(left, ctx.needs_input_grad[2:])


def _pass_on(entry: _Entry, wanted: Sequence[bool]) -> Sequence[Tensor | None]:
    """The gradients of children, transforms and coordinates: one pass over the votes
    adds up the terms of all steps.
    """
    return passes.pass_on(entry.call, entry.terms, entry.parts, wanted)


def _entry(ctx: Any, call: Call) -> _Entry | None:
    """Where a step writes its terms; None if this backward pass does not need the
    gradients of the votes.
    """
    node, _ = ctx.next_functions[0]
    if node is None or not torch._C._will_engine_execute_node(node):
        return None
    entries: dict[int, _Entry] = ctx.step.entries
    return entries.setdefault(
        torch._C._current_graph_task_id(), _Entry(call, ctx.step.parts)
    )


class _Moments(torch.autograd.Function):
    """Mass, sum and scatter of the votes."""

    @staticmethod
    def forward(
        ctx: Any, step: _Step, *arguments: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        _, _, logits, sites, *tensors = arguments
        leaky, hard, scatter = step.options
        call = Call.of(tensors, sites).readable()
        mass, total, second, rest = passes.moments(
            call, leaky, hard, scatter, step.parts, logits
        )
        ctx.step = step
        ctx.save_for_backward(mass, total, rest, logits, sites, *tensors)
        return mass, total, second

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        step = ctx.step
        # Read once: a checkpoint gives them out only once.
        saved = ctx.saved_tensors
        mass, total, rest, logits, sites, *tensors = saved
        leaky, hard, scatter = step.options
        upstream = upstream if scatter else (*upstream[:2], None)
        # What may be differentiated again must not write into the ledger, and no kernel
        # can read several gradients at once.
        if torch.is_grad_enabled() or any_batched(upstream):
            results = mass, total, rest
            return *_BESIDE, *moments_gradients(
                tensors, sites, results, upstream, "native", *step.options
            )
        mass, total, rest, logits, sites, *tensors = passes.plain(saved)
        call = Call.of(tensors, sites)
        mean = total / positive(mass)[..., None] if scatter else None
        entry = _entry(ctx, call)
        # The token passes on the gradients of children, transforms and coordinates.
        _, _, _, weights_need, partition_needs, *similarity_needs = (
            ctx.needs_input_grad[len(_BESIDE) :]
        )
        compared = any(similarity_needs)
        # Where the scores of the same logits are differentiated, too, they pass on both
        # gradients in one pass over the votes: this step leaves its share to them.
        defers = False
        if entry is not None and step.scores is not None and not hard:
            # The functions of the tensors among the arguments: the two tokens first.
            _, (scores_node, _), *_ = ctx.next_functions
            defers = scores_node is not None and (
                torch._C._will_engine_execute_node(scores_node)
            )
        flowing = passes.moments_flow(
            call,
            mean,
            rest,
            upstream,
            step.parts,
            (weights_need, partition_needs, compared and not defers),
            logits,
            passing=entry is not None,
            leaky=leaky,
            hard=hard,
        )
        if entry is not None:
            entry.terms += flowing.terms
            if defers and flowing.flow is not None:
                # The scores pass runs after this step, since the step took its token. It adds its own
                # gradient to this buffer, and differentiates the parents once for both.
                entry.left[step.scores] = flowing.flow
        return *_BESIDE, *flowing.gradients


_BESIDE = (None,) * 5
"""No gradients: of the step, two tokens, logits and sites, before the tensors of the
call.
"""


class _Scores(torch.autograd.Function):
    """The logits of the votes, or their log-partition, and a token of theirs."""

    @staticmethod
    def forward(
        ctx: Any, step: _Step, token: Tensor, *arguments: Any
    ) -> tuple[Tensor, Tensor]:
        (logits, sites, *tensors), (leaky, reduced) = arguments, step.options
        scores = passes.scores(
            Call.of(tensors, sites).readable(), leaky, reduced, step.parts, logits
        )
        ctx.step = step
        ctx.save_for_backward(scores, logits, sites, *tensors)
        return scores, scores.new_empty(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Any:
        step = ctx.step
        leaky, reduced = step.options
        beside = _BESIDE[1:]  # scores take one token
        # Read once: a checkpoint gives them out only once.
        saved = ctx.saved_tensors
        scores, logits, sites, *tensors = saved
        if torch.is_grad_enabled() or any_batched((grad,)):
            slopes = scores_gradients(
                tensors, sites, (scores,), (grad,), "native", leaky, reduced
            )
            return *beside, *slopes
        scores, logits, sites, *tensors = passes.plain(saved)
        call = Call.of(tensors, sites)
        entry = _entry(ctx, call)
        flow = passes.scores_flow(
            call,
            scores,
            grad,
            step.parts,
            # Those of the similarity come after the five others of the call.
            any(ctx.needs_input_grad[len(beside) + 5 :]),
            logits,
            None if entry is None else entry.left.pop(step.scores, None),
            passing=entry is not None,
            leaky=leaky,
            reduced=reduced,
        )
        if entry is not None:
            entry.terms += flow.terms
        return *beside, *flow.gradients
