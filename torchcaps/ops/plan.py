"""One plan for each E-step: which backend works on the votes, and why; with which
similarity, under which rule.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from torchcaps.numerics import transformed
from torchcaps.ops.backend import SOFTMAX, Rule, VoteSource
from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.competition import OVER_PARENTS
from torchcaps.ops.derivatives import STORED
from torchcaps.ops.fields import check_field
from torchcaps.ops.fused import NativeVotes, TritonVotes, why_not
from torchcaps.ops.naive import NaiveVotes
from torchcaps.ops.similarity import Gaussian, Given, Similarity

if TYPE_CHECKING:
    from torchcaps.ops.votes import Votes

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
votes are not worth. The number for a GPU is a guess, not measured.
"""


FEW_TILES = 2**13
"""Where there are no kernels for a call, votes of at most this many numbers are stored:
that is faster than tiles.
"""


FEW_ROWS, STORED_ROWS = 3, (2**15, 2**20)
"""The votes of vector capsules for Gaussians are stored on a CPU if the batch has at
most ``FEW_ROWS`` rows and the votes have a number of elements between the two
``STORED_ROWS``. The kernels have one row of the batch in each lane of a register, so
most lanes would be empty.
"""


FEW_ROWS_REASON = (
    f"for Gaussians, at most {FEW_ROWS} rows of vectors fill few lanes of the "
    f"{FUSED['cpu']} kernels"
)


_forced: ContextVar[str | None] = ContextVar("torchcaps_backend", default=None)


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Forces a backend inside the ``with`` block, for all votes and layers that were
    not given one of their own.

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
    """Why votes must be stored here, in words; empty if they need not."""
    if transformed():
        return f"forward-mode derivatives and torch.func need stored votes: {STORED}"
    if torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export():
        return (
            "an ONNX file knows only standard operators, and these need stored "
            f"votes: {STORED}"
        )
    return ""


ASKED_FOR = f"asked for by use_backend, backend= or {BACKEND_VARIABLE}"


class Choice(NamedTuple):
    """A backend, and why it was chosen."""

    backend: str
    reason: str


def choose_backend(votes: "Votes", similarity: Similarity | None = None) -> Choice:
    """The backend for one call on these votes, ``votes.moments(similarity)``, and why.

    The first of these that applies:

    1. the backend that was asked for by name: the argument ``backend`` of the votes or
       the layer, else :func:`use_backend`, else the environment variable
       ``TORCHCAPS_BACKEND``;
    2. ``naive``, stored votes, for forward-mode derivatives, ``torch.func`` and export
    to ONNX;
    3. ``naive`` for small votes: at most 256 numbers on a CPU, 2^20 on a GPU; on a CPU
       also those of vector capsules for Gaussians in at most 3 rows, if they are 2^15
       to 2^20 numbers;
    4. the fused kernels of the device, ``native`` or ``triton``, if they can run there
       and know the similarity and the rule;
    5. plain PyTorch: ``chunked``, tile by tile; or ``naive`` for at most 8192 numbers,
       and where an exported program leaves a size open, since it cannot hold a loop
       over tiles.

    ``torch.compile`` fixes the choice when it traces the call.

    Raises:
        ValueError: if a backend that was asked for by name cannot do the call.
    """
    return votes.choose(similarity)


def preferred_backend(votes: "Votes") -> Choice:
    """The backend for these votes, whatever the similarity and the rule of a call."""
    forced = known_backend(votes.backend) if votes.backend else _forced_backend()
    stored = only_stored()
    if forced is not None and forced != "auto":
        choice = Choice(forced, ASKED_FOR)
        return _choice(votes, choice, None, SOFTMAX) if stored else choice
    if stored:
        return Choice("naive", stored)
    device = votes.children.device.type
    few = FEW.get(device, FEW["cpu"])
    if _at_most(math.prod(votes.shape), few):
        return Choice(
            "naive", f"votes of at most {few:,} numbers are stored on {device}"
        )
    fused = FUSED.get(device)
    if fused is None:
        return Choice(
            _without_kernels(votes)[0], f"there are no fused kernels for {device}"
        )
    trouble = _missing(fused)
    if trouble:
        return Choice(
            _without_kernels(votes)[0], f"the {fused} kernels cannot run: {trouble}"
        )
    return Choice(
        fused, f"votes of more than {few:,} numbers are not stored on {device}"
    )


def _without_kernels(
    votes: "Votes", similarity: Similarity | None = None, scatter: bool = False
) -> tuple[str, str]:
    """The backends in plain PyTorch, the faster one for these votes first; ``scatter``:
    if the call computes it.
    """
    numbers = math.prod(votes.shape)
    # An exported program with a size left open cannot hold a loop over tiles; sums
    # under given logits need none.
    tiles = scatter or not isinstance(similarity, Given)
    stored = tiles if _is_open(numbers) else numbers <= FEW_TILES
    return ("naive", "chunked") if stored else ("chunked", "naive")


def _few(votes: "Votes") -> bool:
    """Whether votes of vectors are stored for Gaussians (:data:`FEW_ROWS`): of few
    rows, in a middling number.
    """
    numbers, (least, most) = math.prod(votes.shape), STORED_ROWS
    return (
        not _is_open(numbers)
        and votes.shape[0] <= FEW_ROWS
        and least <= numbers <= most
    )


def left_open(votes: "Votes") -> bool:
    """Whether an exported program leaves a size open, so that it cannot hold a loop
    over tiles.
    """
    return _is_open(math.prod(votes.shape))


class Plan(NamedTuple):
    """One E-step, decided: on which backend, with which similarity, under which rule.

    Args:
        choice: the name of the backend, and why.
        source: the votes on that backend.
        similarity: adjusted by the normaliser; its tensors fit the votes.
        rule: likewise.
    """

    choice: Choice
    source: VoteSource
    similarity: Similarity | None
    rule: Rule


def plan(
    votes: "Votes",
    similarity: Similarity | None = None,
    scatter: bool = False,
    *,
    reads: bool = False,
) -> Plan:
    """The plan of one E-step, made once; in full precision.

    Args:
        votes: of the step, under their normaliser.
        similarity: as it came.
        scatter: whether the step computes the second moment too.
        reads: whether logits or assignments are read; given ones, which take no votes,
            are read on any backend.

    Raises:
        TypeError: if the similarity is none.
        ValueError: if a tensor does not fit the votes, or a backend that was asked for
            by name cannot do it.
    """
    if similarity is not None and not isinstance(similarity, Similarity):
        raise TypeError(
            "similarity must be None or a torchcaps.ops.Similarity, got "
            f"{type(similarity).__name__}: derive it from "
            "that class, declare the axes of its tensors and give it a method "
            "logits(votes)"
        )
    preferred = votes.preferred
    if (
        reads
        and isinstance(similarity, Given)
        and _trouble(preferred.backend, similarity, SOFTMAX)
    ):
        preferred = preferred._replace(reason="given logits are read on any backend")
    normaliser = votes.normaliser
    if normaliser is not OVER_PARENTS:  # which changes nothing
        similarity = normaliser.adjusted(similarity)
    if similarity is not None:
        similarity = votes.fitting(similarity)
    choice = _choice(votes, preferred, similarity, SOFTMAX, scatter)
    source = votes.source_on(choice.backend)
    if normaliser is OVER_PARENTS:
        return Plan(choice, source, similarity, SOFTMAX)
    rule = normaliser.rule(source, similarity)
    partition = rule.log_partition
    if rule.special:
        choice = _choice(votes, preferred, similarity, rule, scatter)
        source = votes.source_on(choice.backend)
    elif partition is None:
        return Plan(choice, source, similarity, rule)
    if rule.scale is not None or rule.offset is not None or rule.mapping is not None:
        rule = votes.fitting(replace(rule, log_partition=None))
    if partition is None:
        return Plan(choice, source, similarity, rule)
    check_field("log_partition", partition, votes.children, votes.shape[2])
    rule = replace(rule, log_partition=votes.by_child(source, partition))
    if similarity is not None and partition.ndim == 3:
        # Logits of another backend than the normaliser's, or of another order of sums,
        # differ by rounding, which their exponential magnifies.
        on = _choice(votes, preferred, similarity, SOFTMAX, scatter).backend
        similarity = Given(votes.source_on(on).logits(similarity))
    return Plan(choice, source, similarity, rule)


def _choice(
    votes: "Votes",
    preferred: Choice,
    similarity: Similarity | None,
    rule: Rule,
    scatter: bool = False,
) -> Choice:
    """The preferred backend, or the first other one that can do this similarity under
    this rule.

    Raises:
        ValueError: if the preferred one cannot, and was asked for by name.
    """
    trouble = _trouble(preferred.backend, similarity, rule)
    asked = preferred.reason == ASKED_FOR
    gaussian = scatter or isinstance(similarity, Gaussian)
    vectors = votes.children.shape[2] <= 1
    if (
        preferred.backend == FUSED["cpu"]
        and not asked
        and gaussian
        and vectors
        and _few(votes)
    ):
        return Choice("naive", FEW_ROWS_REASON)
    if not trouble:
        return preferred
    if asked:
        name = "uniform logits" if similarity is None else type(similarity).__name__
        raise ValueError(f"backend {preferred.backend!r} cannot do {name}: {trouble}")
    others = _without_kernels(votes, similarity, scatter)
    able = next(name for name in others if not _trouble(name, similarity, rule))
    return Choice(able, f"{preferred.backend} cannot do this call: {trouble}")


def _is_open(numbers: int | torch.SymInt) -> bool:
    """Whether an exported program leaves a size open; ``strict=True`` shows it as an
    int.
    """
    if isinstance(numbers, torch.SymInt) or not torch.compiler.is_exporting():
        return isinstance(numbers, torch.SymInt)
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(numbers)


def _at_most(numbers: int | torch.SymInt, most: int) -> bool:
    """Whether there are at most this many numbers; if an exported program leaves a size
    open, whether for all sizes.
    """
    if (type(numbers) is int and not torch.compiler.is_exporting()) or not _is_open(
        numbers
    ):
        return numbers <= most
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(numbers <= most)


@constant
def _forced_backend() -> str:
    named = os.environ.get(BACKEND_VARIABLE)
    return (
        _forced.get()
        or (known_backend(named, BACKEND_VARIABLE) if named else None)
        or "auto"
    )


@constant
def _missing(fused: str) -> str:
    return why_not(fused)


def _trouble(backend: str, similarity: Similarity | None, rule: Rule) -> str:
    """Why a backend cannot do that similarity under that rule here, in words; empty if
    it can.
    """
    stored = "" if backend == "naive" else only_stored()
    return stored or BACKENDS[backend].supports(similarity, rule)
