"""The passes of the C++ kernels: tensors in, tensors out;
:mod:`~torchcaps.ops.fused.deferred` has the autograd.

Logits that one pass writes down and others read, and coefficients of gradients, are
laid out as the kernels have them, [blocks, I / 8, J, 8, lanes]: a row of the batch in
each lane, 8 children.
"""

import ctypes
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops.derivatives import Tensors
from torchcaps.ops.fused.call import Agreement, Call, listed, sizes_of
from torchcaps.ops.fused.library import library

_MOMENTS, _SCORES, _FLOW, _PASS_ON = range(4)
_OUTSIDE, _, _KEPT, _NO_MEMORY = range(4)
_TOGETHER = 8
"""Children that are at work together, ``kTogether`` of the C++ source."""

INPUTS = (
    "children",
    "transforms",
    "coordinates",
    "weights",
    "log_partition",
    "parents",
    "precision",
    "log_weight",
)


class Record:
    """A record of the C++ source, field by field: whole numbers, addresses and real
    numbers of 8 bytes each.

    It is packed as bytes: to fill a ``ctypes.Structure`` by names takes longer.

    Args:
        rows: the names of the fields in their order, with blanks between those of one
            row.
        reals: which of them are real numbers.
    """

    def __init__(self, *rows: str, reals: tuple[str, ...] = ()) -> None:
        names = " ".join(rows).split()
        self._places = {name: place for place, name in enumerate(names)}
        self._struct = struct.Struct(
            "=" + "".join(["d" if name in reals else "q" for name in names])
        )

    def pack(self, first: Iterable[float], *named: Iterable[tuple[str, Any]]) -> bytes:
        """The bytes, from the first fields and others by name: a tensor as its address,
        and 0 for what is not there.
        """
        values = [*first]
        places = self._places
        values += [0] * (len(places) - len(values))
        for fields in named:
            for name, field in fields:
                if field is not None:
                    if type(field) in _NUMBERS:
                        values[places[name]] = field
                    else:
                        values[places[name]] = field.data_ptr()
        return self._struct.pack(*values)


_NUMBERS = (int, bool, float)

_GRADIENTS = tuple(f"grad_{name}" for name in INPUTS)

CALL = Record(
    "images grid windows I J M P D shared similarity leaky hard parts threads",
    *INPUTS,
    "sites mass sum scatter mean rest scores reduced",
    *_GRADIENTS,
    "grad_scores logits shares flow adds votes formed terms count",
)
TERM = Record("coefficient constant slope centre rest parents")
AGREEMENT = Record(
    "steps accumulate constant bias sums alphas alpha pose",
    "grad_alpha grad_pose grad_sums grad_bias coefficients room",
    reals=("constant",),
)


class Term(NamedTuple):
    """What a step adds to the gradients of the votes.

    ``dV_ij += coefficient_ij (constant_j + slope_j (V_ij - centre_j - rest_j))``, where
    the difference is formed first: beside a steep slope, float32 has too few digits for
    votes far from 0.

    Args:
        coefficient: [blocks, I / 8, J or 1, 8, lanes].
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


Gradients = list[Any]
"""Those of children, transforms, coordinates, weights, log_partition and the
similarity's tensors, or the first few.
"""


class Flow(NamedTuple):
    """The backward pass of a step, but for children, transforms and coordinates, whose
    share is left as terms.

    Args:
        gradients: the gradients of the tensors of the call; None for those three, and
            for what is not wanted.
        terms: what the parents took of each child, and what flows through the logits.
        flow: the gradients of the logits, if anything flows through them.
    """

    gradients: Gradients
    terms: list[Term]
    flow: Tensor | None


_VOTES = (False, False, False)
"""The gradients of children, transforms and coordinates are wanted later, of
:func:`pass_on`.
"""
_FEW = 4
"""Rows are few that fill at most a fourth of a vector, as ``kFew`` of the C++ source.
"""


def prepare() -> None:
    """Loads the library, compiling it if need be.

    Raises:
        RuntimeError: if that cannot be done here.
    """
    library()


def plain(tensors: Sequence[Tensor | None]) -> list[Any]:
    """The same numbers as the kernels read them, in one piece and with their sign:
    autograd may bring gradients, and hooks what was saved, with other strides or as
    the negative of what lies in memory.
    """
    tensors = list(tensors)
    for place, tensor in enumerate(tensors):
        if tensor is not None and (tensor.is_neg() or not tensor.is_contiguous()):
            tensors[place] = tensor.resolve_neg().contiguous()
    return tensors


def moments(
    call: Call,
    leaky: bool,
    hard: bool,
    scatter: bool,
    parts: int | None = None,
    logits: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """One E-step and its sums; see :class:`~torchcaps.ops.fused.operators.Kernels`.

    Args:
        call: the call of the step.
        leaky: as there.
        hard: as there.
        scatter: as there.
        parts: among how many tasks rows are shared out; None for :func:`row_parts`.
        logits: what :func:`scores` wrote down.
    """
    B, _, J, M, _, D = sizes_of(call)
    total = call.children.new_empty(B, J, M * D)
    mass = total.new_empty(B, J)
    if scatter:
        second = torch.empty_like(total)
        rest = torch.empty_like(total)
    else:
        second, rest = (None, None)
    parts = row_parts(call) if parts is None else parts
    _run(
        _MOMENTS,
        call,
        mass=mass,
        sum=total,
        scatter=second,
        rest=rest,
        leaky=leaky,
        hard=hard,
        logits=logits,
        parts=parts,
    )
    return mass, total, second, rest


def scores(
    call: Call,
    leaky: bool,
    reduced: bool,
    parts: int | None = None,
    logits: Tensor | None = None,
) -> Tensor:
    """The logits (B, I, J), or their log-partition (B, I); ``logits``, if given, is
    filled with the logits.
    """
    B, I, J, *_ = sizes_of(call)
    out = call.children.new_empty((B, I) if reduced else (B, I, J))
    if J == 0:
        return out.fill_(0.0 if leaky else -torch.inf)
    parts = row_parts(call) if parts is None else parts
    _run(
        _SCORES,
        call,
        scores=out,
        leaky=leaky,
        reduced=reduced,
        logits=logits,
        parts=parts,
    )
    return out


def moments_flow(
    call: Call,
    mean: Tensor | None,
    rest: Tensor | None,
    upstream: Sequence[Tensor | None],
    parts: int,
    wanted: Sequence[bool] = (True, True, True),
    logits: Tensor | None = None,
    *,
    passing: bool = True,
    leaky: bool,
    hard: bool,
) -> Flow:
    """The backward pass of :func:`moments`, but for the votes.

    Args:
        call: the call of the step.
        mean: sum / mass, needed with a gradient of the scatter.
        rest: what rounding took from it, from :func:`moments`.
        upstream: the gradients of mass, sum and scatter.
        parts: :func:`row_parts`.
        wanted: the gradients of weights, of log_partition, and of the similarity, or
            not.
        logits: what :func:`scores` wrote down.
        passing: whether terms are wanted.
        leaky: as in :func:`moments`.
        hard: as in :func:`moments`.
    """
    grad_mass, grad_sum, grad_scatter = plain(upstream)
    slope = None if grad_scatter is None else 2 * grad_scatter
    shares = flow = None
    if passing:
        J = sizes_of(call)[2]
        shares = _coefficients(call, parts, J if call.similarity or hard else 1)
        flow = _coefficients(call, parts, J) if call.similarity and not hard else None
    gradients = _empty_gradients(
        (*_VOTES, *wanted, wanted[2], wanted[2]), listed(call), call
    )
    _run(
        _FLOW,
        call,
        **dict(zip(_GRADIENTS, gradients, strict=False)),
        parts=parts,
        mass=grad_mass,
        sum=grad_sum,
        scatter=grad_scatter,
        mean=mean,
        shares=shares,
        flow=flow,
        logits=logits,
        leaky=leaky,
        hard=hard,
    )
    terms = []
    if shares is not None and grad_sum is not None:
        terms.append(
            Term(shares, grad_sum)
            if slope is None
            else Term(shares, grad_sum, slope, mean, rest)
        )
        if flow is not None:
            terms.append(_term_of_logits(call, flow))
    return Flow(gradients, terms, flow)


def scores_flow(
    call: Call,
    scores: Tensor,
    grad: Tensor,
    parts: int,
    compared: bool = True,
    logits: Tensor | None = None,
    into: Tensor | None = None,
    *,
    passing: bool = True,
    leaky: bool,
    reduced: bool,
) -> Flow:
    """The backward pass of :func:`scores`, but for the votes.

    Args:
        call: the call of the scores.
        scores: what :func:`scores` gave.
        grad: the gradient of the scores.
        parts: :func:`row_parts`.
        compared: whether the gradients of the similarity are wanted.
        logits: what :func:`scores` wrote down.
        into: the coefficients of the same logits in a step that left the gradients of
            its similarity to this call: they are added to, and the gradients are those
            of both. None for new coefficients.
        passing: whether a term is wanted.
        leaky: as in :func:`scores`.
        reduced: as in :func:`scores`.
    """
    (grad,) = plain((grad,))
    gradients = _empty_gradients(
        (*_VOTES, True, True, *(compared,) * 3), listed(call), call
    )
    if into is not None or not passing:
        flow = into
    else:
        flow = _coefficients(call, parts, sizes_of(call)[2])
    _run(
        _FLOW,
        call,
        **dict(zip(_GRADIENTS, gradients, strict=False)),
        parts=parts,
        scores=scores,
        grad_scores=grad,
        flow=flow,
        adds=into is not None,
        logits=logits,
        leaky=leaky,
        reduced=reduced,
    )
    with_logits = into is None and flow is not None and call.similarity
    return Flow(gradients, [_term_of_logits(call, flow)] if with_logits else [], flow)


def pass_on(
    call: Call,
    terms: Sequence[Term],
    parts: int,
    wanted: Sequence[bool] = (True, True, True),
) -> Gradients:
    """The gradients of children, transforms and coordinates, those that are wanted,
    from the terms of all steps.
    """
    gradients = _empty_gradients(wanted, call[:3], call)
    packed = []
    for term in terms:
        packed.append(
            TERM.pack(
                (),
                zip(Term._fields, term, strict=True),
                (("parents", term.coefficient.shape[2]),),
            )
        )
    buffer = ctypes.c_char_p(b"".join(packed))
    call = Call(*call[:3], sites=call.sites)
    numbers: dict[str, Any] = {
        "parts": parts,
        "terms": ctypes.cast(buffer, ctypes.c_void_p).value,
        "count": len(terms),
    }
    _run(_PASS_ON, call, **numbers, **dict(zip(_GRADIENTS, gradients, strict=False)))
    return gradients


def agreement_forward(
    call: Call, bias: Tensor | None, settings: Agreement, *, differentiated: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Compute all steps of :class:`~torchcaps.routing.DynamicRouting`.

    Args:
        call: the call of the votes, without a similarity.
        bias: (J, H), or None.
        settings: the settings of the algorithm.
        differentiated: whether a backward pass may follow.

    Returns:
        The poses, and what the last step compared with, None in the first one. For a
        backward pass the sums of all steps, what the steps between compared with, and
        the votes, [I, B, J, D], if their few rows make them worth keeping.
    """
    B, _, J, M, _, D = sizes_of(call)
    pose = call.children.new_empty(B, J, M * D)
    alpha = torch.empty_like(pose) if settings.steps > 1 else None
    sums = alphas = votes = None
    if differentiated:
        sums = pose.new_empty(settings.steps, *pose.shape)
        alphas = pose.new_empty(max(settings.steps - 2, 0), *pose.shape)
        votes = _room_for_votes(call)
    steps = {"bias": bias, "sums": sums, "alphas": alphas, "alpha": alpha, "pose": pose}
    outcome = _run_agreement(
        call, settings, steps, backward=False, parts=row_parts(call), votes=votes
    )
    return pose, alpha, sums, alphas, votes if outcome == _KEPT else None


def _room_for_votes(call: Call) -> Tensor | None:
    """Memory for the votes of a few rows, [I, B, J, D], or None.

    With fewer rows than numbers of a child's pose, the votes are fewer numbers than the
    transforms, so later steps read them in less time than they would form them.
    """
    rows, _, _, P = call.children.shape
    lanes = library().vector_bytes // call.children.element_size()
    if call.sites is not None or rows >= P or rows > lanes // _FEW:
        return None
    I, J, _, D = call.transforms.shape
    return call.children.new_empty(I, rows, J, D)


def agreement_backward(
    call: Call,
    bias: Tensor | None,
    settings: Agreement,
    steps: Sequence[Any],
    upstream: Tensors,
    wanted: Sequence[bool],
) -> Gradients:
    """The gradients of children, transforms, coordinates and the bias, those that are
    wanted.

    Args:
        call: as in :func:`agreement_forward`.
        bias: likewise.
        settings: likewise.
        steps: sums and what the steps between and the last one compared with, from
            there; and the votes, if they were kept.
        upstream: the gradients of the poses, and of what the last step compared with;
            None where none flows.
        wanted: which gradients are.
    """
    sums, alphas, alpha, votes = steps
    grad_pose, grad_alpha = plain(upstream)
    parts = row_parts(call)
    # Votes are read as vectors lie, and hooks may put what was saved anywhere.
    if votes is not None and votes.data_ptr() % 64:
        votes = votes.clone()
    gradients = _empty_gradients(wanted, (*call[:3], bias), call)
    J = sizes_of(call)[2]
    # Two blocks a step of each parent, and the first one.
    several = 2 * (settings.steps - 1) * J + 1
    coefficients = None
    if True in wanted[:3]:
        coefficients = _coefficients(call, parts, several)
    record = {
        "bias": bias,
        "sums": sums,
        "alphas": alphas,
        "alpha": alpha,
        "grad_alpha": grad_alpha,
        "grad_pose": grad_pose,
        "grad_sums": torch.empty_like(sums),
        "grad_bias": gradients[3],
        "coefficients": coefficients,
        "room": 0 if coefficients is None else coefficients.numel() // several * J,
    }
    _run_agreement(
        call,
        settings,
        record,
        backward=True,
        parts=parts,
        votes=votes,
        formed=votes is not None,
        **dict(zip(_GRADIENTS, gradients[:3], strict=False)),
    )
    return gradients


def moments_backward(
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
    """The gradients of every tensor of the call."""
    if 0 in sizes_of(call):
        return call.gradients()
    parts = row_parts(call)
    upstream = (grad_mass, grad_sum, grad_scatter)
    return _all_gradients(
        call,
        moments_flow(call, mean, rest, upstream, parts, leaky=leaky, hard=hard),
        parts,
    )


def scores_backward(
    call: Call, scores: Tensor, grad: Tensor, *, leaky: bool, reduced: bool
) -> Call:
    """The gradients of every tensor of the call."""
    if 0 in sizes_of(call):
        return call.gradients()
    parts = row_parts(call)
    return _all_gradients(
        call,
        scores_flow(call, scores, grad, parts, leaky=leaky, reduced=reduced),
        parts,
    )


def _all_gradients(call: Call, flow: Flow, parts: int) -> Call:
    return Call.of([*pass_on(call, flow.terms, parts), *flow.gradients[3:]], None)


def row_parts(call: Call) -> int:
    """Among how many tasks the rows of windows are shared out, the same in all steps; 0
    without windows.
    """
    if call.sites is None:
        return 0
    return min(len(call.children), torch.get_num_threads())


def empty_logits(call: Call, parts: int) -> Tensor:
    """Memory for the logits of a step, for :func:`scores` to fill."""
    return _coefficients(call, parts, sizes_of(call)[2])


def _coefficients(call: Call, parts: int, parents: int) -> Tensor:
    """Memory for a number of each child and each of so many parents."""
    (B, I, *_), dtype = sizes_of(call), call.children.dtype
    lanes = library().vector_bytes // dtype.itemsize
    width = B if B <= lanes // _FEW else lanes
    shape = -(-B // lanes) + parts, -(-I // _TOGETHER), parents, _TOGETHER, width
    return torch.empty(shape, dtype=dtype)


def _empty_gradients(
    wanted: Sequence[bool], fields: Sequence[Tensor | None], call: Call
) -> Gradients:
    """Memory for the gradients of the fields that are there, if wanted; zeros where
    there are no votes to fill it.
    """
    allocate = torch.zeros_like if 0 in sizes_of(call) else torch.empty_like
    gradients: Gradients = []
    for want, field in zip(wanted, fields, strict=False):
        gradients.append(allocate(field) if want and field is not None else None)
    return gradients


def _term_of_logits(call: Call, flow: Any) -> Term:
    """The gradients of the logits, times the derivatives of the logits by the votes."""
    if len(call.similarity) == 1:
        return Term(flow, call.similarity[0])
    mean, precision, _ = call.similarity
    return Term(flow, None, -precision, mean)


def _run(program: int, call: Call, **fields: Any) -> None:
    """Run one of the four passes on a call with further fields, which live as long as
    it runs.
    """
    record = _packed(call, fields)
    _check(library().torchcaps_run(record, program, _is_double(call)), call)


def _run_agreement(
    call: Call,
    settings: Agreement,
    steps: dict[str, Any],
    *,
    backward: bool,
    **fields: Any,
) -> int:
    """Run all steps of routing by agreement, forward or backward, and return the
    outcome.
    """
    # A leak competes in every pass, so it is a field of the call.
    fields["leaky"] = settings.leaky
    first = settings.steps, settings.accumulate, settings.constant
    outcome = library().torchcaps_agree(
        _packed(call, fields),
        AGREEMENT.pack(first, steps.items()),
        backward,
        _is_double(call),
    )
    return _check(outcome, call)


def _is_double(call: Call) -> bool:
    return call.children.dtype == torch.float64


def _packed(call: Call, fields: dict[str, Any]) -> bytes:
    """The record of a call with tensors as the kernels read them, and of further
    fields.
    """
    children, transforms, coordinates, weights, log_partition, sites, similarity = call
    if not children.is_cpu:
        raise ValueError(
            "the native kernels are for tensors on a CPU, got children on "
            f"{children.device}"
        )
    images, grid, M, P = children.shape
    shared, J, _, D = transforms.shape
    windows, I = (1, grid) if sites is None else sites.shape
    sizes = (
        images,
        grid,
        windows,
        I,
        J,
        M,
        P,
        D,
        shared == 1 and I > 1,
        min(len(similarity), 2),
    )
    inputs = zip(
        INPUTS,
        (children, transforms, coordinates, weights, log_partition, *similarity),
        strict=False,
    )
    return CALL.pack(
        sizes,
        inputs,
        (("sites", sites), ("threads", torch.get_num_threads())),
        fields.items(),
    )


def _check(outcome: int, call: Call) -> int:
    """The outcome of a run, unless it failed."""
    if outcome == _OUTSIDE:
        grid = call.children.shape[1]
        raise IndexError(f"sites must be from 0 to {grid - 1}, got {call.sites}")
    if outcome == _NO_MEMORY:
        B, I, J, M, _, D = sizes_of(call)
        raise MemoryError(
            "no memory for the native kernels to work on votes (B, I, J, H) = "
            f"{(B, I, J, M * D)}"
        )
    return int(outcome)
