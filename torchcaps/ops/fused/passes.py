"""The passes of the C++ kernels: tensors in, tensors out; :mod:`~torchcaps.ops.fused.deferred` has the autograd."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.backend import Agreement, Moments
from torchcaps.ops.derivatives import Tensors
from torchcaps.ops.fused.abi import AGREEMENT, CALL, GAUSSIANS, INPUTS, TERM
from torchcaps.ops.fused.call import Call
from torchcaps.ops.fused.library import library
from torchcaps.ops.fused.memory_pool import MemoryPool
from torchcaps.ops.gaussians import Gaussians
from torchcaps.squash import kind_of

_MOMENTS, _SCORES, _FLOW, _PASS_ON = range(4)
_OUTSIDE, _, _KEPT, _NO_MEMORY = range(4)
_TOGETHER = 8
"""Children that are at work together, ``kTogether`` of the C++ source."""
_GRADIENTS = tuple(f"grad_{name}" for name in INPUTS)


class Logits(NamedTuple):
    """The logits of a step, which one pass writes down and others read.

    Args:
        values: as the kernels have them, [blocks, I / 8, J, 8, lanes]: a row of the batch in each lane, 8 children.
        parts: :func:`row_parts`, which says where the blocks of each task begin.
    """

    values: Tensor
    parts: int


class Term(NamedTuple):
    """What a step adds to the gradients of the votes.

    ``dV_ij += coefficient_ij (constant_j + slope_j (V_ij - centre_j - rest_j))``, where the difference is formed first:
    beside a steep slope, float32 has too few digits for votes far from 0.

    Args:
        coefficient: laid out as :class:`Logits`, [blocks, I / 8, J or 1, 8, lanes].
        constant: [B, J, H], as are the others; None for 0.
        slope: or None for 0.
        centre: beside a slope.
        rest: what rounding took from the centre, or None for 0.
    """

    coefficient: Tensor
    constant: Tensor | None
    slope: Tensor | None = None
    centre: Tensor | None = None
    rest: Tensor | None = None


class Kept:
    """The votes of a batch of few rows: formed in the first pass, read in later ones.

    They are kept where they are fewer numbers than the transforms, and so take less time to read.

    Args:
        children: of the votes.
        transforms: of the votes.
    """

    def __init__(self, children: Tensor, transforms: Tensor) -> None:
        rows, _, M, P = children.shape
        few = M == 1 and rows < P and rows <= _few(children)
        self._wanted = few and not children.is_inference() and not transforms.is_inference()
        self._sources: tuple[Tensor, ...] = (children, transforms) if self._wanted else ()
        self._votes: Tensor | None = None
        self._formed: list[int] | None = None

    def fields(self, call: Call) -> dict[str, Any]:
        """The fields of a pass on this call that say where the votes are, or may be written."""
        if not self._wanted or call.sites is not None:
            return {}
        if self._votes is None:
            children, transforms = self._sources
            rows, I, *_ = children.shape
            self._votes = children.new_empty(I, rows, transforms.shape[1], transforms.shape[-1])
        return {"votes": self._votes, "formed": self._formed == self._versions()}

    @property
    def votes(self) -> Tensor | None:
        """The votes, [I, B, J, D], if they are there."""
        return self._votes if self._formed is not None and self._formed == self._versions() else None

    def note(self, outcome: int) -> None:
        """Notes the outcome of a pass with these :meth:`fields`."""
        if outcome == _KEPT:
            self._formed = self._versions()
        elif self._formed is None:  # these kernels keep none
            self._wanted, self._sources, self._votes = False, (), None

    def _versions(self) -> list[int]:
        """They change when the children or transforms are changed in place."""
        return [source._version for source in self._sources]


Gradients = list[Tensor | None]
"""Those of children, transforms, coordinates, weights, log_partition and the similarity's tensors, or the first few."""


class Flow(NamedTuple):
    """The backward pass of a step, but for children, transforms and coordinates, whose share is left as terms.

    Args:
        gradients: of the tensors of the call; None for those three, and for what is not wanted.
        shares: the term of what the parents took of each child; None for a step without moments.
        logits: the term of the gradients of the logits; None where nothing flows through them.
    """

    gradients: Gradients
    shares: Term | None
    logits: Term | None


_pool = MemoryPool()


def prepare() -> None:
    """Loads the library, compiling it if need be.

    Raises:
        RuntimeError: if that cannot be done here.
    """
    library()


def read_back(saved: Sequence[Tensor | None]) -> list[Any]:
    """What a forward pass saved, as the kernels read it: hooks may give back the same numbers with other strides."""
    return [None if tensor is None else tensor.contiguous() for tensor in saved]


def _aligned(votes: Tensor | None) -> Tensor | None:
    """Votes that were saved, as vectors lie: hooks may put them anywhere."""
    return votes if votes is None or votes.data_ptr() % 64 == 0 else votes.clone()


def moments(
    call: Call, *, orphan: bool, hard: bool, scatter: bool, logits: Logits | None = None, kept: Kept | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """One E-step and its sums, of logits that are written down or not, and of votes that are kept or not.

    See :class:`~torchcaps.ops.fused.operators.Kernels`.
    """
    B, _, J, M, _, D = call.sizes
    mass, total = call.children.new_empty(B, J), call.children.new_empty(B, J, M * D)
    second, rest = (torch.empty_like(total), torch.empty_like(total)) if scatter else (None, None)
    fields = {} if kept is None else kept.fields(call)
    results = {"mass": mass, "sum": total, "scatter": second, "rest": rest}
    outcome = _run(_MOMENTS, call, **results, orphan=orphan, hard=hard, **_read(call, logits), **fields)
    if fields and kept is not None:
        kept.note(outcome)
    return mass, total, second, rest


def scores(call: Call, *, orphan: bool, reduced: bool, logits: Logits | None = None) -> Tensor:
    """The logits (B, I, J), or their normaliser (B, I); ``logits``, if given, is filled with the logits."""
    B, I, J, *_ = call.sizes
    out = call.children.new_empty((B, I) if reduced else (B, I, J))
    if J == 0:
        return out.fill_(0.0 if orphan else -torch.inf)
    _run(_SCORES, call, scores=out, orphan=orphan, reduced=reduced, **_read(call, logits))
    return out


def moments_flow(
    call: Call,
    mean: Tensor | None,
    rest: Tensor | None,
    upstream: Sequence[Tensor | None],
    parts: int | None,
    wanted: Sequence[bool] = (True, True, True),
    logits: Logits | None = None,
    votes: Tensor | None = None,
    *,
    orphan: bool,
    hard: bool,
) -> Flow:
    """The backward pass of :func:`moments`, but for the votes.

    Args:
        call: of the step.
        mean: sum / mass, needed with a gradient of the scatter.
        rest: what rounding took from it, from :func:`moments`.
        upstream: the gradients of mass, sum and scatter.
        parts: :func:`row_parts`; None where no terms are wanted.
        wanted: the gradients of weights, of log_partition, and of the similarity, or not.
        logits: what :func:`scores` wrote down.
        votes: those that :func:`moments` kept, if it did.
        orphan: as in :func:`moments`.
        hard: as in :func:`moments`.
    """
    grad_mass, grad_sum, grad_scatter = (None if grad is None else grad.contiguous() for grad in upstream)
    gradients, votes = _flowing(call, wanted), _aligned(votes)
    shares = _coefficients(call, parts, even=not call.similarity and not hard)
    flow = _coefficients(call, parts) if call.similarity and not hard else None
    slope = None if grad_scatter is None else 2 * grad_scatter
    _run(
        _FLOW,
        call,
        **{"mass": grad_mass, "sum": grad_sum, "scatter": grad_scatter, "mean": mean, "shares": shares, "flow": flow},
        **_gradients_of(gradients),
        **_read(call, logits, parts),
        votes=votes,
        formed=votes is not None,
        orphan=orphan,
        hard=hard,
    )
    if shares is None or grad_sum is None:
        return Flow(gradients, None, None)
    about = () if slope is None else (slope, mean, rest)
    return Flow(gradients, Term(shares, grad_sum, *about), _term_of_logits(call, flow))


def scores_flow(
    call: Call,
    scores: Tensor,
    grad: Tensor,
    parts: int | None,
    compared: bool = True,
    logits: Logits | None = None,
    into: Tensor | None = None,
    *,
    orphan: bool,
    reduced: bool,
) -> Flow:
    """The backward pass of :func:`scores`, but for the votes.

    Args:
        call: of the scores.
        scores: what :func:`scores` gave.
        grad: of the scores.
        parts: :func:`row_parts`; None where no term is wanted.
        compared: whether the gradients of the similarity are wanted.
        logits: what :func:`scores` wrote down.
        into: the coefficients of the same logits in a step that left the gradients of its similarity to this call: they
            are added to, and the gradients are those of both. None for new coefficients.
        orphan: as in :func:`scores`.
        reduced: as in :func:`scores`.
    """
    gradients = _flowing(call, (True, True, compared))
    flow = _coefficients(call, parts) if into is None else into
    _run(
        _FLOW,
        call,
        **{"scores": scores, "grad_scores": grad.contiguous(), "flow": flow, "adds": into is not None},
        **_gradients_of(gradients),
        **_read(call, logits, parts),
        orphan=orphan,
        reduced=reduced,
    )
    return Flow(gradients, None, None if into is not None else _term_of_logits(call, flow))


def pass_on(call: Call, terms: Sequence[Term], parts: int, wanted: Sequence[bool] = (True, True, True)) -> Gradients:
    """The gradients of children, transforms and coordinates, those that are wanted, from the terms of all steps."""
    gradients = _empty_gradients(wanted, call[:3], call)
    kept = b"".join(
        TERM.pack((), zip(Term._fields, term, strict=True), (("parents", term.coefficient.shape[2]),)) for term in terms
    )
    there = ctypes.c_char_p(kept)
    call = Call(*call[:3], None, None, call.sites, ())
    numbers = {"parts": parts, "terms": ctypes.cast(there, ctypes.c_void_p).value, "count": len(terms)}
    _run(_PASS_ON, call, **numbers, **_gradients_of(gradients))
    return gradients


def agreement(call: Call, bias: Tensor | None, settings: Agreement) -> tuple[Tensor, Tensor | None]:
    """All steps of :func:`~torchcaps.routing.dynamic_routing`, with nothing kept for a backward pass.

    Args:
        call: of the votes, without a similarity.
        bias: (J, H), or None.
        settings: of the algorithm.

    Returns:
        The poses, and what the last step compared with; None in the first one.
    """
    pose, alpha = _poses(call, settings.steps > 1)
    record = _agreement_record(settings, bias=bias, alpha=alpha, pose=pose)
    _agree(record, False, call, orphan=settings.orphan, parts=row_parts(call))
    return pose, alpha


def agreement_forward(
    call: Call, bias: Tensor | None, settings: Agreement, kept: Kept
) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """:func:`agreement` before a backward pass: also the sums of all steps, and what the steps between compared with.

    Args:
        call: as in :func:`agreement`.
        bias: likewise.
        settings: likewise.
        kept: the votes, if they are few.
    """
    fields = kept.fields(call)
    pose, alpha = _poses(call, settings.steps > 1)
    sums = pose.new_empty(settings.steps, *pose.shape)
    alphas = pose.new_empty(max(settings.steps - 2, 0), *pose.shape)
    record = _agreement_record(settings, bias=bias, sums=sums, alphas=alphas, alpha=alpha, pose=pose)
    outcome = _agree(record, False, call, orphan=settings.orphan, parts=row_parts(call), **fields)
    if fields:
        kept.note(outcome)
    return pose, alpha, sums, alphas


def agreement_backward(
    call: Call,
    bias: Tensor | None,
    settings: Agreement,
    steps: Sequence[Any],
    upstream: Tensors,
    wanted: Sequence[bool],
) -> Gradients:
    """The gradients of children, transforms, coordinates and the bias, those that are wanted.

    Args:
        call: as in :func:`agreement`.
        bias: likewise.
        settings: likewise.
        steps: sums and what the steps between and the last one compared with, from there; and the votes, if they were
            kept.
        upstream: the gradients of the poses, and of what the last step compared with; None where none flows.
        wanted: which gradients are.
    """
    (sums, alphas, alpha, votes), parts = steps, row_parts(call)
    votes = _aligned(votes)
    made = _empty_gradients(wanted, (*call[:3], bias), call)
    *gradients, grad_bias = made
    room = math.prod(_layout(call, parts))
    passing = any(gradient is not None for gradient in gradients)
    count = 2 * (settings.steps - 1) * room + room // call.sizes[2]
    coefficients = _pool.take((count,), sums.dtype) if passing else None
    pose, last = (None if one is None else one.contiguous() for one in upstream)
    grad_sums = torch.empty_like(sums)
    back = {"grad_alpha": last, "grad_pose": pose, "grad_sums": grad_sums, "grad_bias": grad_bias}
    forward = {"bias": bias, "sums": sums, "alphas": alphas, "alpha": alpha}
    record = _agreement_record(settings, **forward, **back, coefficients=coefficients, room=room)
    fields = {"parts": parts, "votes": votes, "formed": votes is not None}
    _agree(record, True, call, orphan=settings.orphan, **fields, **_gradients_of(gradients))
    return made


def _poses(call: Call, compared: bool) -> tuple[Tensor, Tensor | None]:
    """Memory for the poses, and if wanted for what the last step compares with."""
    B, _, J, M, _, D = call.sizes
    pose = call.children.new_empty(B, J, M * D)
    return pose, torch.empty_like(pose) if compared else None


def _agreement_record(settings: Agreement, **fields: Tensor | int | None) -> bytes:
    constant = kind_of(settings.squash).constant
    assert constant is not None
    return AGREEMENT.pack((settings.steps, settings.accumulate, constant), fields.items())


def gaussians(mass: Tensor, total: Tensor, scatter: Tensor, floor: float) -> Gaussians:
    """Those of :meth:`~torchcaps.ops.VoteSource.gaussians`, from tensors in one piece."""
    found = Gaussians(torch.empty_like(total), torch.empty_like(total), torch.empty_like(total), torch.empty_like(mass))
    _fit(False, (mass, total, scatter), floor=floor, **found._asdict())
    return found


def gaussians_backward(moments: Sequence[Tensor], mean: Tensor, precision: Tensor, upstream: Tensors) -> Gradients:
    """The gradients of mass, sum and scatter.

    Args:
        moments: mass, sum and scatter.
        mean: of the Gaussians.
        precision: likewise.
        upstream: the gradients of mean, variance, precision and the logarithm of the determinant; None for 0.
    """
    found = [torch.empty_like(tensor) for tensor in moments]
    flowing = [None if one is None else one.contiguous() for one in upstream]
    names = ("grad_mean", "grad_variance", "grad_precision", "grad_log_determinant", "grad_mass", "grad_sum")
    gradients = dict(zip((*names, "grad_scatter"), (*flowing, *found), strict=True))
    _fit(True, moments, mean=mean, precision=precision, **gradients)
    return [*found]


def _fit(back: bool, moments: Sequence[Tensor], **fields: Tensor | float | None) -> None:
    """One pass over the fields of all parents."""
    mass, total, _ = moments
    sizes = mass.numel(), total.shape[-1], torch.get_num_threads()
    record = GAUSSIANS.pack(sizes, zip(Moments._fields, moments, strict=True), fields.items())
    library().torchcaps_gaussians(record, back, mass.dtype == torch.float64)


def moments_backward(
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
    """The gradients of every tensor of the call."""
    if 0 in call.sizes:
        return call.gradients()
    parts = row_parts(call)
    upstream = (grad_mass, grad_sum, grad_scatter)
    return _all_gradients(call, moments_flow(call, mean, rest, upstream, parts, orphan=orphan, hard=hard), parts)


def scores_backward(call: Call, scores: Tensor, grad: Tensor, *, orphan: bool, reduced: bool) -> Call:
    """The gradients of every tensor of the call."""
    if 0 in call.sizes:
        return call.gradients()
    parts = row_parts(call)
    return _all_gradients(call, scores_flow(call, scores, grad, parts, orphan=orphan, reduced=reduced), parts)


def _all_gradients(call: Call, flow: Flow, parts: int) -> Call:
    terms = [term for term in (flow.shares, flow.logits) if term is not None]
    return Call.of([*pass_on(call, terms, parts), *flow.gradients[3:]], None)


def row_parts(call: Call) -> int:
    """Among how many tasks the rows of windows are shared out, the same in all steps; 0 without windows."""
    return 0 if call.sites is None else min(len(call.children), torch.get_num_threads())


def empty_logits(call: Call, parts: int) -> Logits:
    """Memory for the logits of a step, for :func:`scores` to fill."""
    return Logits(_pool.take(_layout(call, parts), call.children.dtype), parts)


def _read(call: Call, logits: Logits | None, parts: int | None = None) -> dict[str, Any]:
    """Logits as the kernels take them, and among how many tasks rows are shared out."""
    if logits is not None:
        return {"logits": logits.values, "parts": logits.parts}
    return {"parts": row_parts(call) if parts is None else parts}


def _layout(call: Call, parts: int, even: bool = False) -> tuple[int, ...]:
    """The shape of a number of each child and each parent, or of each child."""
    B, I, J, *_ = call.sizes
    lanes = _lanes(call.children)
    width = B if B <= _few(call.children) else lanes
    return -(-B // lanes) + parts, -(-I // _TOGETHER), 1 if even else J, _TOGETHER, width


def _lanes(tensor: Tensor) -> int:
    """Numbers of a vector of the processor."""
    return int(library().torchcaps_vector_bytes()) // tensor.element_size()


def _few(tensor: Tensor) -> int:
    """Rows that are few, as ``kFew`` of the C++ source."""
    return _lanes(tensor) // 4


def _coefficients(call: Call, parts: int | None, even: bool = False) -> Tensor | None:
    """Memory for a number of each child and each parent, or of each child, if it is wanted."""
    return None if parts is None else _pool.take(_layout(call, parts, even), call.children.dtype)


def _flowing(call: Call, wanted: Sequence[bool] = (True, True, True)) -> Gradients:
    """Memory for the gradients of a call, but for those that :func:`pass_on` finds."""
    fields = (*call[3:5], *call.similarity)
    wanted = (*wanted[:2], *(wanted[2] for _ in call.similarity))
    there = (field if want else None for want, field in zip(wanted, fields, strict=True))
    return [None, None, None, *(None if field is None else torch.empty_like(field) for field in there)]


def _empty_gradients(wanted: Sequence[bool], fields: Sequence[Tensor | None], call: Call) -> Gradients:
    """Memory for the gradients of the fields that are there, if wanted; zeros where there are no votes to fill it."""
    made = torch.zeros_like if 0 in call.sizes else torch.empty_like
    return [made(field) if want and field is not None else None for want, field in zip(wanted, fields, strict=True)]


def _term_of_logits(call: Call, flow: Tensor | None) -> Term | None:
    """The gradients of the logits, times the derivatives of the logits by the votes."""
    if flow is None or not call.similarity:
        return None
    if len(call.similarity) == 1:
        return Term(flow, call.similarity[0])
    mean, precision, _ = call.similarity
    return Term(flow, None, -precision, mean)


def _gradients_of(gradients: Gradients) -> dict[str, Tensor | None]:
    """The gradients by their names in the C++ source."""
    return dict(zip(_GRADIENTS, gradients, strict=False))


def _run(which: int, call: Call, **fields: Tensor | int | None) -> int:
    """Runs one pass on a call with further fields, and returns its outcome."""
    record = _record(call, **fields)
    return _checked(call, library().torchcaps_run(record, which, call.children.dtype == torch.float64))


def _agree(agreement: bytes, back: bool, call: Call, **fields: Tensor | int | None) -> int:
    """Runs all steps of routing by agreement, forward or backward, and returns the outcome."""
    record = _record(call, **fields)
    return _checked(call, library().torchcaps_agree(record, agreement, back, call.children.dtype == torch.float64))


def _record(call: Call, **fields: Tensor | int | None) -> bytes:
    """A call and further fields, as the kernels take them."""
    children, transforms, _, _, _, sites, similarity = call
    if not children.is_cpu:
        raise ValueError(f"the native kernels are for tensors on a CPU, got children on {children.device}")
    images, grid, M, P = children.shape
    shared, J, _, D = transforms.shape
    windows, I = (1, grid) if sites is None else sites.shape
    sizes = images, grid, windows, I, J, M, P, D, shared == 1 and I > 1, min(len(similarity), 2)
    inputs = zip(INPUTS, (*call[:5], *similarity), strict=False)
    return CALL.pack(sizes, inputs, (("sites", sites), ("threads", torch.get_num_threads())), fields.items())


def _checked(call: Call, outcome: int) -> int:
    if outcome == _OUTSIDE:
        raise IndexError(f"sites must be from 0 to {call.children.shape[1] - 1}, got {call.sites}")
    if outcome == _NO_MEMORY:
        B, I, J, M, _, D = call.sizes
        raise MemoryError(f"no memory for the native kernels to work on votes (B, I, J, H) = {(B, I, J, M * D)}")
    return outcome
