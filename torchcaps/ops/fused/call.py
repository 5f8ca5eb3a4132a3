"""One call of the fused kernels: its tensors, and the same computation in plain PyTorch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchcaps.ops import naive
from torchcaps.ops.backend import Rule
from torchcaps.ops.derivatives import Tensors
from torchcaps.ops.similarity import Gaussian, InnerProduct, Similarity
from torchcaps.ops.windows import in_windows


class Call(NamedTuple):
    """The tensors of one call, or their gradients; a field that the call does not have is None.

    Windows of a convolution share children: there are N images of G children each, and W windows of I of them. A
    layer without windows has W = 1 and I = G. Rows of the batch are ``B = N * W``, row ``n * W + w``.

    Example:
        >>> call = tc.ops.fused.Call(torch.randn(2, 6, 1, 4), torch.randn(6, 3, 4, 5), None, None, None, None, ())
        >>> call.sizes
        (2, 6, 3, 1, 4, 5)
    """

    children: Tensor  # [N, G, M, P]
    transforms: Tensor  # [I or 1, J, P, D]
    coordinates: Tensor | None  # [I, M * D]
    weights: Tensor | None  # [N, G]
    log_partition: Tensor | None  # [N, G]
    sites: Tensor | None  # int32 [W, I]: which of the G children each window has
    similarity: tuple[Tensor, ...]  # (), (alpha,) or (mean, precision, log_weight): [B, J, M * D] each, and [B, J]

    @classmethod
    def of(cls, tensors: Sequence[Any], sites: Tensor | None) -> "Call":
        """From the other tensors, in the order of :attr:`listed`."""
        return cls._make([*tensors[:5], sites, tuple(tensors[5:])])

    @property
    def listed(self) -> list[Tensor | None]:
        """All tensors but the sites, those of the similarity last; None for those that the call does not have."""
        return [*self[:5], *self.similarity]

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """B, I, J, M, P, D."""
        N, G, M, P = self.children.shape
        _, J, _, D = self.transforms.shape
        windows, children = (1, G) if self.sites is None else self.sites.shape
        return N * windows, children, J, M, P, D

    def gradients(self, made: Callable[[Tensor], Tensor] = torch.zeros_like) -> "Call":
        """Tensors for the gradients: zeros, or what ``made`` gives for each tensor."""
        fields = (None if field is None else made(field) for field in self[:5])
        return Call._make([*fields, None, tuple(made(field) for field in self.similarity)])

    def readable(self) -> "Call":
        """The same tensors, contiguous, as the kernels read them.

        Raises:
            ValueError: if one does not fit the children: the kernels would read beyond its memory.
        """
        B, I, J, M, P, D = self.sizes
        children, by_child, by_vote = self.children, self.children.shape[:2], (B, J, M * D)
        partition = self.log_partition
        if children.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"children must be float32 or float64, got {children.dtype}")
        if len(self.similarity) not in (0, 1, 3):
            raise ValueError(f"similarity must have none, one or three tensors, got {len(self.similarity)}")
        return Call(
            children.contiguous(),
            readable("transforms", self.transforms, (1 if self.transforms.shape[0] == 1 else I, J, P, D), children),
            None if self.coordinates is None else readable("coordinates", self.coordinates, (I, M * D), children),
            None if self.weights is None else readable("weights", self.weights, by_child, children),
            None if partition is None else readable("log_partition", partition, by_child, children),
            None if self.sites is None else readable("sites", self.sites, self.sites.shape, children, torch.int32),
            self.similarity
            and tuple(
                [
                    readable(f"similarity[{place}]", field, by_vote if place < 2 else (B, J), children)
                    for place, field in enumerate(self.similarity)
                ]
            ),
        )

    def flat(self) -> list[Tensor]:
        """The tensors of :attr:`listed` that the call has."""
        return [field for field in self.listed if field is not None]


def readable(
    name: str, tensor: Tensor | None, shape: Sequence[int], children: Tensor, dtype: torch.dtype | None = None
) -> Any:
    """The tensor, contiguous, or None if there is none.

    Raises:
        ValueError: if its shape, dtype or device is another one; names the tensor.
    """
    if tensor is None:
        return None
    dtype = dtype or children.dtype
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device != children.device:
        raise ValueError(
            f"{name} must be {dtype} {tuple(shape)} on {children.device}, got {tensor.dtype} {tuple(tensor.shape)} on "
            f"{tensor.device}"
        )
    return tensor.contiguous()


def stored_moments(call: Call, orphan: bool, hard: bool, scatter: bool) -> Tensors:
    """Mass, sum and scatter (or None) of a call, from stored votes: differentiable to any order."""
    votes, similarity = _stored(call)
    weights, partition = (None if field is None else in_windows(field, call.sites) for field in call[3:5])
    return votes.moments(similarity, weights, Rule(orphan, hard, partition), scatter)


def stored_scores(call: Call, orphan: bool, reduced: bool) -> Tensors:
    """The logits of a call, or their normaliser, from stored votes: differentiable to any order."""
    votes, similarity = _stored(call)
    logits = votes.logits(similarity)
    return (naive.logits_partition(logits, orphan) if reduced else logits,)


def _stored(call: Call) -> tuple[naive.NaiveVotes, Similarity | None]:
    """The votes of a call, stored, and its similarity."""
    kinds: dict[int, Callable[..., Similarity | None]] = {0: lambda: None, 1: InnerProduct, 3: Gaussian}
    votes = naive.NaiveVotes(in_windows(call.children, call.sites), call.transforms, call.coordinates)
    return votes, kinds[len(call.similarity)](*call.similarity)
