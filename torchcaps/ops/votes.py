"""Votes: what routing algorithms are written against."""

from dataclasses import replace

import torch
from torch import Tensor

from torchcaps.numerics import compute_dtype
from torchcaps.ops.backend import Moments, Rule, VoteSource
from torchcaps.ops.competition import Normaliser
from torchcaps.ops.dispatch import BACKENDS, choose_backend
from torchcaps.ops.naive import dense_votes
from torchcaps.ops.similarity import Similarity


class Votes:
    r"""The votes :math:`V_{ij} = u_i W_{ij} (+ c_i)` of children for parents, formed when needed.

    Args:
        children: poses ``u``, (N, G, P) for vector capsules or (N, G, M, P) for matrix capsules.
        transforms: ``W``, (I, J, P, D), or (1, J, P, D) when all children share them.
        coordinates: added to each vote of a child, (I, H) with H = M * D, or None.
        normaliser: which parents compete for a child.
        backend: one of ``BACKENDS``, or None to let :func:`choose_backend` decide.
        sites: int32 (W, I): the children of each of W windows, as places among the G; the rows of the batch are then
            B = N * W. None: one window with all children, B = N and I = G.

    Raises:
        ValueError: if shapes do not fit.
    """

    def __init__(
        self,
        children: Tensor,
        transforms: Tensor,
        coordinates: Tensor | None = None,
        normaliser: Normaliser | None = None,
        backend: str | None = None,
        sites: Tensor | None = None,
    ) -> None:
        self.children = children.unsqueeze(2) if children.ndim == 3 else children
        self.transforms = transforms
        self.coordinates = coordinates
        self.normaliser = normaliser or Normaliser()
        self.backend = backend
        self.sites = sites
        self._source: VoteSource | None = None
        _check_shapes(self.children, transforms, coordinates, sites)

    @property
    def parents(self) -> int:
        """The number of parents J."""
        return self.transforms.shape[1]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, I, J, H): the shape the votes would have if they were stored."""
        N, I, M, _ = self.children.shape
        windows, I = (1, I) if self.sites is None else self.sites.shape
        return N * windows, I, self.parents, M * self.transforms.shape[-1]

    @property
    def source(self) -> VoteSource:
        """The backend at work on these votes."""
        if self._source is None:
            self._source = self._make_source()
        return self._source

    def _make_source(self) -> VoteSource:
        dtype = compute_dtype(self.children, self.transforms)
        coordinates = None if self.coordinates is None else self.coordinates.to(dtype)
        backend = BACKENDS[choose_backend(self).backend]
        # With gradients even where the first look is without: the backend stays for later ones.
        with _full_precision(self.children), torch.enable_grad():
            children, transforms = self.children.to(dtype), self.transforms.to(dtype)
            if backend.indexed:
                return backend(children, transforms, coordinates, self.sites)
            return backend(in_windows(children, self.sites), transforms, coordinates)

    def restricted(self, *, orphan: bool = False, hard: bool = False) -> "Votes":
        """The same votes under a normaliser with these changes; the votes themselves are not formed again."""
        normaliser = replace(self.normaliser, orphan=orphan, hard=hard)
        votes = Votes(self.children, self.transforms, self.coordinates, normaliser, self.backend, self.sites)
        votes._source = self.source
        return votes

    def moments(
        self, similarity: Similarity | None = None, weights: Tensor | None = None, *, scatter: bool = False
    ) -> Moments:
        """One E-step and the sums of the M-step that follows.

        Args:
            similarity: of votes and parents; None before the first step: uniform assignment.
            weights: the child activations ``a``, (N, G); None for ones.
            scatter: whether the second moment is wanted too.

        Returns:
            Mass (B, J), sum (B, J, H) and scatter (B, J, H) or None, float32 at least.
        """
        with _full_precision(self.children):
            if weights is not None:
                weights = self._for_source(weights.to(self.source.children.dtype))
            return self.source.moments(similarity, weights, self._rule(similarity), scatter)

    def assignment(self, similarity: Similarity | None = None) -> Tensor:
        """The assignment probabilities (coupling coefficients) ``R_ij``, (B, I, J)."""
        with _full_precision(self.children):
            return self.source.assignment(similarity, self._rule(similarity))

    def dense(self) -> Tensor:
        """All votes, stored, (B, I, J, H): for looking at them."""
        source = self.source
        with _full_precision(self.children):
            return dense_votes(in_windows(source.children, source.sites), source.transforms, source.coordinates)

    def _rule(self, similarity: Similarity | None) -> Rule:
        rule = self.normaliser.rule(self.source, similarity)
        if rule.log_partition is None:
            return rule
        return rule._replace(log_partition=self._for_source(rule.log_partition))

    def _for_source(self, field: Tensor) -> Tensor:
        """A number for each child, (N, G), as the backend takes it."""
        return field if self.source.indexed else in_windows(field, self.sites)


def in_windows(field: Tensor, sites: Tensor | None) -> Tensor:
    """What belongs to the children of each window, (N, G, ...) to (B, I, ...)."""
    return field if sites is None else field[:, sites].flatten(0, 1)


def _full_precision(tensor: Tensor) -> torch.autocast:
    """Routing is clustering: its sums run over all children, and do not survive half precision."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


def _check_shapes(children: Tensor, transforms: Tensor, coordinates: Tensor | None, sites: Tensor | None) -> None:
    if children.ndim != 4:
        raise ValueError(f"children must be (N, G, P) or (N, G, M, P), got shape {tuple(children.shape)}")
    if transforms.ndim != 4:
        raise ValueError(f"transforms must be (I or 1, J, P, D), got shape {tuple(transforms.shape)}")
    if sites is not None and (sites.ndim != 2 or sites.dtype != torch.int32):
        raise ValueError(f"sites must be int32 (W, I), got {sites.dtype} {tuple(sites.shape)}")
    _, I, M, P = children.shape
    if sites is not None:
        I = sites.shape[1]
    if transforms.shape[0] not in (1, I):
        raise ValueError(
            f"transforms are for {transforms.shape[0]} children (1 would mean shared by all), but there are {I}"
        )
    if transforms.shape[2] != P:
        raise ValueError(
            f"transforms take child poses of dimension {transforms.shape[2]}, but children have dimension {P}"
        )
    if coordinates is not None and coordinates.shape != (I, M * transforms.shape[3]):
        raise ValueError(
            f"coordinates must be (I, H) = {(I, M * transforms.shape[3])}, got shape {tuple(coordinates.shape)}"
        )
