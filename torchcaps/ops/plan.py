"""Which backend works on votes, and why: a plan from plain facts, made once for all steps
of a routing.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

import torch
from torch.compiler import is_compiling

from torchcaps.numerics import counted, transformed
from torchcaps.ops.backend import VoteSource
from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.competition import Competition
from torchcaps.ops.derivatives import STORED
from torchcaps.ops.fused import NativeVotes, TritonVotes, why_not
from torchcaps.ops.naive import NaiveVotes
from torchcaps.ops.similarity import Gaussian, Given, Similarity

BACKENDS: dict[str, type[VoteSource]] = {
    "naive": NaiveVotes,
    "chunked": ChunkedVotes,
    "native": NativeVotes,
    "triton": TritonVotes,
}


BACKEND_VARIABLE = "TORCHCAPS_BACKEND"


FUSED = {"cpu": "native", "cuda": "triton"}
"""The fused backend of each device."""


FEW = {"cpu": 2**8, "cuda": 2**20}
"""Votes of at most this many numbers are stored. On a CPU the kernels are faster at any
size (exception: :data:`FEW_ROWS`), but they have to be compiled first, which so few
votes are not worth. On an H100, a training step of DigitCaps took 3.4 ms either way
with one image (2^17.5 numbers), and with 128 (2^24.5) 2.9 ms in place of 3.4 (PyTorch
2.11): the number for a GPU lies between.
"""


FEW_TILES = 2**13
"""Where there are no kernels for a call, votes of at most this many numbers are stored:
that is faster than tiles.
"""


FEW_ROWS = 3
STORED_ROWS = (2**15, 2**20)
"""The votes of vector capsules for Gaussians are stored on a CPU if the batch has at
most ``FEW_ROWS`` rows and the votes have a number of elements between the two
``STORED_ROWS``. The kernels have one row of the batch in each lane of a register, so
most lanes would be empty.
"""


FEW_ROWS_REASON = (
    f"for Gaussians, at most {FEW_ROWS} rows of vectors fill few lanes of the "
    f"{FUSED['cpu']} kernels"
)


_tracing_state = torch._C._get_tracing_state
_forced: ContextVar[str | None] = ContextVar("torchcaps_backend", default=None)


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Use one backend inside the ``with`` block, for all votes and layers that name
    none.

    It holds in the current thread only: not in other Python threads, such as those of
    ``nn.DataParallel``. Nor does it hold where ``torch.utils.checkpoint`` runs a
    forward pass again, if the backward pass lies outside the block or, on a GPU, runs
    in a thread of autograd. There a layer's argument ``backend`` counts, or the
    environment variable ``TORCHCAPS_BACKEND``.

    Args:
        name: one of :data:`BACKENDS` (``"naive"``, ``"chunked"``, ``"native"`` on a
            CPU, ``"triton"`` on a GPU), or ``"auto"``; None changes nothing.

    Raises:
        ValueError: if there is no such backend.
    """
    token = _forced.set(known_backend(name) or _forced.get())
    try:
        yield
    finally:
        _forced.reset(token)


def known_backend(name: str | None, argument: str = "backend") -> str | None:
    """The name of a backend, ``"auto"``, or None, checked; ``argument`` is where it
    came from.

    Raises:
        ValueError: if there is no such backend.
    """
    if name is not None and name != "auto" and name not in BACKENDS:
        raise ValueError(
            f"{argument} must be one of {['auto', *BACKENDS]}, got {name!r}"
        )
    return name


def constant(function: Callable[..., str]) -> Callable[..., str]:
    """What ``torch.compiler.assume_constant_result`` does, which would import the
    compiler at once (a second).
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


@constant
def only_stored() -> str:
    """Why votes must be stored here, in words; empty if they need not.

    Raises:
        RuntimeError: in an export by ``torch.onnx.export(dynamo=False)``.
    """
    if transformed():
        return f"forward-mode derivatives and torch.func need stored votes: {STORED}"
    compiling = is_compiling()
    if not compiling and counted():
        return (
            "FlopCounterMode counts the products of stored votes, and none inside "
            f"kernels: {STORED}"
        )
    if not compiling and _tracing_state() is None:
        return ""
    # Asked last, because it takes longer.
    if not torch.onnx.is_in_onnx_export():
        return ""
    if not compiling:
        raise RuntimeError(
            "torch.onnx.export(..., dynamo=False) lacks operators that capsules need: "
            "use torch.onnx.export(..., dynamo=True), or torchcaps export"
        )
    return (
        "an ONNX file knows only standard operators, and these need stored votes: "
        f"{STORED}"
    )


ASKED_FOR = f"asked for by use_backend, backend= or {BACKEND_VARIABLE}"


class Choice(NamedTuple):
    """A backend, and why it was chosen."""

    backend: str
    reason: str


class Facts(NamedTuple):
    """What the choice of a backend depends on.

    Args:
        device: the type of the device of the children, such as ``"cpu"``.
        numbers: how many numbers all votes are, B * I * J * H.
        rows: B, the rows of the batch.
        vectors: whether poses are vectors.
        asked: the backend that was asked for by name, or ``"auto"``.
        stored: why votes must be stored here; empty if they need not.
    """

    device: str
    numbers: int | torch.SymInt
    rows: int | torch.SymInt
    vectors: bool
    asked: str = "auto"
    stored: str = ""


class Plan(NamedTuple):
    """Which backend makes the calls on some votes.

    Args:
        choice: the choice of any call.
        of_gaussians: of a call that compares with Gaussians, or computes a second
            moment.
        others: tried in turn for a call that the backend of choice cannot do; none if
            it was asked for by name.
        others_of_given: the same for sums under given logits.
        stored: why votes must be stored, in words; empty if they need not.
    """

    choice: Choice
    of_gaussians: Choice
    others: tuple[str, ...]
    others_of_given: tuple[str, ...]
    stored: str


def plan(facts: Facts) -> Plan:
    """Chooses the backend for votes; :meth:`Votes.choose_backend` has the
    order.

    Raises:
        ValueError: if votes must be stored, and a backend that does not was asked for
            by name.
    """
    compiling = is_compiling()
    exporting = compiling and torch.compiler.is_exporting()
    exact = type(facts.numbers) is int and not exporting
    is_open = not exact and left_open(facts.numbers)
    few = FEW.get(facts.device, FEW["cpu"])
    small = (
        _for_all_sizes(facts.numbers, few) if is_open else bool(facts.numbers <= few)
    )
    trouble = ""
    fused = FUSED.get(facts.device)
    if fused is not None and not small and facts.asked == "auto" and not facts.stored:
        trouble = _missing(fused)  # they are compiled now
    # A compiler cannot look into the cache, and an open size is no key of it.
    if compiling or not exact:
        return _plan(facts, small, is_open, trouble)
    return _kept_plan(facts, small, is_open, trouble)


def _plan(facts: Facts, small: bool, is_open: bool, trouble: str) -> Plan:
    """The backend for votes of these facts.

    Args:
        facts: the facts of the votes.
        small: whether they are so few that they are stored.
        is_open: whether an exported program leaves a size open.
        trouble: why the kernels of the device cannot run.
    """
    if facts.asked != "auto":
        if facts.stored and facts.asked != "naive":
            raise ValueError(f"backend {facts.asked!r} cannot do this: {facts.stored}")
        return _always(Choice(facts.asked, ASKED_FOR), facts)
    if facts.stored:
        return _always(Choice("naive", facts.stored), facts)
    device = facts.device
    few = FEW.get(facts.device, FEW["cpu"])
    if small:
        reason = f"votes of at most {few:,} numbers are stored on {device}"
        return _always(Choice("naive", reason), facts)
    # An exported program with a size left open cannot hold a loop over tiles; sums
    # under given logits need none.
    tiles_first = ("chunked", "naive")
    stored_first = ("naive", "chunked")
    fallbacks = others_of_given = tiles_first
    if is_open:
        fallbacks = stored_first
    elif facts.numbers <= FEW_TILES:
        fallbacks = others_of_given = stored_first
    fused = FUSED.get(device)
    if fused is None or trouble:
        reason = f"the {fused} kernels cannot run: {trouble}"
        if fused is None:
            reason = f"there are no fused kernels for {device}"
        first, *others = fallbacks
        choice = Choice(first, reason)
        return Plan(choice, choice, tuple(others), tuple(others), facts.stored)
    reason = f"votes of more than {few:,} numbers are not stored on {device}"
    choice = of_gaussians = Choice(fused, reason)
    # The kernels have one row of the batch in each lane of a register: few rows of
    # vectors leave most lanes empty, and Gaussians are the dearer comparison.
    if fused == FUSED["cpu"] and facts.vectors and not is_open:
        least, most = STORED_ROWS
        if facts.rows <= FEW_ROWS and least <= facts.numbers <= most:
            of_gaussians = Choice("naive", FEW_ROWS_REASON)
    return Plan(choice, of_gaussians, fallbacks, others_of_given, facts.stored)


_kept_plan = lru_cache(maxsize=256)(_plan)
"""Kept for the next votes of the same facts."""


def choice_for(
    plan: Plan,
    similarity: Similarity | None,
    competition: Competition,
    *,
    scatter: bool,
    reads: bool,
) -> Choice:
    """The backend of a call: that of the plan, or the first other one that can do it.

    Args:
        plan: the plan for the votes.
        similarity: what they are compared with.
        competition: who competes.
        scatter: whether the second moment is computed too.
        reads: whether logits or assignments are read; given ones, which take no votes,
            are read on any backend.

    Raises:
        ValueError: if none can.
    """
    gaussian = scatter or isinstance(similarity, Gaussian)
    choice = plan.of_gaussians if gaussian else plan.choice
    trouble = BACKENDS[choice.backend].supports(similarity, competition)
    if not trouble:
        return choice
    fallbacks = plan.others
    if isinstance(similarity, Given) and not scatter:
        fallbacks = plan.others_of_given or (("chunked",) if reads else ())
    for name in fallbacks:
        if not BACKENDS[name].supports(similarity, competition):
            return Choice(name, f"{choice.backend} cannot do this call: {trouble}")
    compared = "uniform logits" if similarity is None else type(similarity).__name__
    raise ValueError(f"backend {choice.backend!r} cannot do {compared}: {trouble}")


def _always(choice: Choice, facts: Facts) -> Plan:
    """The plan to take one backend for all calls."""
    return Plan(choice, choice, (), (), facts.stored)


def left_open(numbers: int | torch.SymInt) -> bool:
    """Whether an exported program leaves a size open; ``strict=True`` shows it as an
    int.
    """
    if isinstance(numbers, torch.SymInt) or not torch.compiler.is_exporting():
        return isinstance(numbers, torch.SymInt)
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(numbers)


def _for_all_sizes(numbers: int | torch.SymInt, most: int) -> bool:
    """Whether there are at most this many numbers, whatever an open size is."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(numbers <= most)


@constant
def forced_backend() -> str:
    """The backend that :func:`use_backend` or the environment asks for, or ``"auto"``.

    Raises:
        ValueError: if the environment names none.
    """
    asked = _forced.get()
    if asked:
        return asked
    named = os.environ.get(BACKEND_VARIABLE)
    return known_backend(named, BACKEND_VARIABLE) or "auto" if named else "auto"


@constant
def _missing(fused: str) -> str:
    return why_not(fused)
