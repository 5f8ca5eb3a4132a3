"""Votes and their dispatcher: what routing algorithms are written against."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.contract import Moments, Rule, Similarity, VoteSource, compute_dtype
from torchcaps.ops.naive import NaiveVotes, dense_votes
from torchcaps.ops.tiles import tile_numbers

BACKENDS: dict[str, Callable[..., VoteSource]] = {"naive": NaiveVotes, "chunked": ChunkedVotes}
BACKEND_VARIABLE = "TORCHCAPS_BACKEND"

_forced: ContextVar[str | None] = ContextVar("torchcaps_backend", default=None)


@contextmanager
def use_backend(name: str | None) -> Iterator[None]:
    """Forces a backend for every vote inside the ``with`` block.

    Args:
        name: ``"naive"``, ``"chunked"``, or ``"auto"``; None changes nothing.

    Raises:
        ValueError: if there is no such backend.
    """
    token = _forced.set(_checked(name) if name is not None else _forced.get())
    try:
        yield
    finally:
        _forced.reset(token)


def _checked(name: str) -> str:
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"backend must be one of {['auto', *BACKENDS]}, got {name!r}")
    return name


def choose_backend(children: Tensor, transforms: Tensor) -> str:
    """The backend for votes of this size: stored where they fit one tile, else formed tile by tile.

    A name given to :func:`use_backend`, or else in the environment variable ``TORCHCAPS_BACKEND``, overrides it.
    """
    forced = _forced.get() or _checked(os.environ.get(BACKEND_VARIABLE) or "auto")
    if forced != "auto":
        return forced
    B, I, M, _ = children.shape
    _, J, _, D = transforms.shape
    return "naive" if B * I * J * M * D <= tile_numbers(children.device) else "chunked"


@dataclass(frozen=True)
class Normaliser:
    r"""Which parents compete for a child: :math:`R_{ij} = \exp(l_{ij} - Z_i)`.

    This one lets all parents of the votes compete. A layer whose parents compete in another way, such as a
    convolution where a child is seen from several windows, passes a subclass with its own :meth:`rule`.

    Args:
        orphan: one more candidate with logit 0 that takes what fits no parent (leaky routing).
        hard: the most similar parent takes all of the child; not differentiable.
    """

    orphan: bool = False
    hard: bool = False

    def rule(self, source: VoteSource, similarity: Similarity | None) -> Rule:
        """The rule for one E-step."""
        return Rule(orphan=self.orphan, hard=self.hard)


@dataclass(frozen=True)
class Votes:
    r"""The votes :math:`V_{ij} = u_i W_{ij} (+ c_i)` of children for parents, formed when needed.

    Args:
        children: poses ``u``, (B, I, P) for vector capsules or (B, I, M, P) for matrix capsules.
        transforms: ``W``, (I, J, P, D), or (1, J, P, D) when all children share them.
        coordinates: added to each vote of a child, (I, H) with H = M * D, or None.
        normaliser: which parents compete for a child.
        backend: ``"naive"``, ``"chunked"``, or None to let :func:`choose_backend` decide.

    Raises:
        ValueError: if shapes do not fit.
    """

    children: Tensor
    transforms: Tensor
    coordinates: Tensor | None = None
    normaliser: Normaliser = Normaliser()
    backend: str | None = None

    def __post_init__(self) -> None:
        if self.children.ndim == 3:
            object.__setattr__(self, "children", self.children.unsqueeze(2))
        _check_shapes(self.children, self.transforms, self.coordinates)

    @property
    def parents(self) -> int:
        """The number of parents J."""
        return self.transforms.shape[1]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, I, J, H): the shape the votes would have if they were stored."""
        B, I, M, _ = self.children.shape
        return B, I, self.parents, M * self.transforms.shape[-1]

    @cached_property
    def source(self) -> VoteSource:
        """The backend at work on these votes."""
        dtype = compute_dtype(self.children, self.transforms)
        coordinates = None if self.coordinates is None else self.coordinates.to(dtype)
        with use_backend(self.backend):
            backend = BACKENDS[choose_backend(self.children, self.transforms)]
        # With gradients even where the first look is without: the backend stays for later ones.
        with _full_precision(self.children), torch.enable_grad():
            return backend(self.children.to(dtype), self.transforms.to(dtype), coordinates)

    def restricted(self, *, orphan: bool = False, hard: bool = False) -> "Votes":
        """The same votes under a normaliser with these changes; the votes themselves are not formed again."""
        votes = replace(self, normaliser=replace(self.normaliser, orphan=orphan, hard=hard))
        votes.__dict__["source"] = self.source
        return votes

    def moments(
        self, similarity: Similarity | None = None, weights: Tensor | None = None, *, scatter: bool = False
    ) -> Moments:
        """One E-step and the sums of the M-step that follows.

        Args:
            similarity: of votes and parents; None before the first step: uniform assignment.
            weights: the child activations ``a``, (B, I); None for ones.
            scatter: whether the second moment is wanted too.

        Returns:
            Mass (B, J), sum (B, J, H) and scatter (B, J, H) or None, float32 at least.
        """
        with _full_precision(self.children):
            rule = self.normaliser.rule(self.source, similarity)
            if weights is not None:
                weights = weights.to(self.source.children.dtype)
            return self.source.moments(similarity, weights, rule, scatter)

    def assignment(self, similarity: Similarity | None = None) -> Tensor:
        """The assignment probabilities (coupling coefficients) ``R_ij``, (B, I, J)."""
        with _full_precision(self.children):
            return self.source.assignment(similarity, self.normaliser.rule(self.source, similarity))

    def dense(self) -> Tensor:
        """All votes, stored, (B, I, J, H): for looking at them."""
        with _full_precision(self.children):
            return dense_votes(self.source.children, self.source.transforms, self.source.coordinates)


def _full_precision(tensor: Tensor) -> torch.autocast:
    """Routing is clustering: its sums run over all children, and do not survive half precision."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def _check_shapes(children: Tensor, transforms: Tensor, coordinates: Tensor | None) -> None:
    if children.ndim != 4:
        raise ValueError(f"children must be (B, I, P) or (B, I, M, P), got shape {tuple(children.shape)}")
    if transforms.ndim != 4:
        raise ValueError(f"transforms must be (I or 1, J, P, D), got shape {tuple(transforms.shape)}")
    _, I, M, P = children.shape
    if transforms.shape[0] not in (1, I):
        raise ValueError(
            f"transforms are for {transforms.shape[0]} children (1 would mean shared by all), but children has {I}"
        )
    if transforms.shape[2] != P:
        raise ValueError(
            f"transforms take child poses of dimension {transforms.shape[2]}, but children have dimension {P}"
        )
    if coordinates is not None and coordinates.shape != (I, M * transforms.shape[3]):
        raise ValueError(
            f"coordinates must be (I, H) = {(I, M * transforms.shape[3])}, got shape {tuple(coordinates.shape)}"
        )
