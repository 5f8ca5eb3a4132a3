"""The start and the update of slots, in slot attention and in the slot mixture."""

from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from torchcaps.numerics import cast, transformed
from torchcaps.ops import Votes
from torchcaps.ops.folded import by_matrix_products
from torchcaps.spec import SuggestsNames, Within

Start = Literal["queries", "normal"]
HiddenSize = Annotated[int, Within(0)]

_SEED = 0
"""Of the noise that slots start with in evaluation mode."""


class SlotStart(SuggestsNames, nn.Module):
    r"""The slots before the first step.

    ``queries`` are learned, one for each slot, so their number is fixed. With
    ``normal`` all slots share a learned Gaussian :math:`\mu + \sigma \odot
    \varepsilon`, so there may be any number of them: the noise :math:`\varepsilon` is
    drawn anew for each example in training, and is the same for all examples, and
    always the same, in evaluation.

    Args:
        kind: ``queries`` or ``normal``.
        slots: their number J.
        size: the size of the pose of a slot, H.

    Shape:
        The number of examples B and of slots J to slots (B, J, H).

    Source: Locatello et al. 2020 (``normal``); Jia, Liu & Huang 2023, "Improving
    Object-centric Learning with Query Optimization" (``queries``).

    Example:
        >>> start = tc.routing.SlotStart("normal", slots=5, size=32)
        >>> start(2, 7, torch.float32).shape  # two examples, seven slots
        torch.Size([2, 7, 32])
    """

    def __init__(self, kind: Start, slots: int, size: int) -> None:
        super().__init__()
        self.kind = kind
        if kind == "queries":
            self.queries = nn.Parameter(torch.empty(slots, size))
            nn.init.xavier_uniform_(self.queries)
            return
        self.mean = nn.Parameter(torch.empty(1, size))
        self.log_deviation = nn.Parameter(torch.empty(1, size))
        nn.init.xavier_uniform_(self.mean)
        nn.init.xavier_uniform_(self.log_deviation)
        self.noise: Tensor
        self.register_buffer("noise", kept_noise(slots, size).to(self.mean))

    def forward(self, examples: int, slots: int, dtype: torch.dtype) -> Tensor:
        """Return the slots to start from.

        Raises:
            ValueError: if there are queries for another number of slots.
        """
        if self.kind == "queries":
            if slots != len(self.queries):
                raise ValueError(
                    f"slots must be {len(self.queries)}, the number of learned "
                    f"queries, got {slots}: start='normal' takes any number"
                )
            return self.queries.to(dtype).expand(examples, -1, -1)
        return self.at(self._drawn(examples, slots), dtype)

    def at(self, noise: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the slots of this noise, (..., J, H), of a learned Gaussian."""
        mean = self.mean.to(dtype)
        return mean + self.log_deviation.to(dtype).exp() * noise.to(mean)

    def _drawn(self, examples: int, slots: int) -> Tensor:
        size = self.mean.shape[1]
        if self.training:
            return torch.randn(examples, slots, size, device=self.mean.device)
        noise = self.noise if slots <= len(self.noise) else kept_noise(slots, size)
        return noise[:slots].expand(examples, -1, -1)

    def extra_repr(self) -> str:
        """Return the kind."""
        return self.kind


def kept_noise(slots: int, size: int) -> Tensor:
    """Return normal numbers (J, H), always the same; those of fewer slots are the
    first.
    """
    generator = torch.Generator("cpu").manual_seed(_SEED)
    options: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    # One after the other: of tensors of two sizes the first numbers may differ.
    drawn = [torch.randn(size, generator=generator, **options) for _ in range(slots)]
    return torch.stack(drawn)


class SlotUpdate(SuggestsNames, nn.Module):
    r"""Slots from those of the step before and from what they collected.

    .. math::
        s' = \operatorname{GRU}(u, s), \quad
        s'' = s' + W_2 \operatorname{ReLU}(W_1 \operatorname{LayerNorm}(s') + b_1) + b_2

    Args:
        size: the size of the pose of a slot, H.
        gru: whether there is a GRU cell; without, s' = u.
        hidden: numbers of the hidden layer of the MLP; 0 for no MLP.

    Shape:
        What each slot collected, u (B, J, H), and the slots s (B, J, H) to slots (B, J,
        H).

    Source: Locatello et al. 2020, Algorithm 1, lines 8 and 9.

    Example:
        >>> update = tc.routing.SlotUpdate(32)
        >>> update(torch.randn(2, 5, 32), torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])
    """

    def __init__(self, size: int, gru: bool = True, hidden: int = 128) -> None:
        super().__init__()
        self.cell = nn.GRUCell(size, size) if gru else None
        self.mlp: nn.Sequential | None = None
        if hidden:
            self.mlp = nn.Sequential(
                nn.LayerNorm(size),
                nn.Linear(size, hidden),
                nn.ReLU(),
                nn.Linear(hidden, size),
            )

    def forward(self, collected: Tensor, slots: Tensor) -> Tensor:
        """Return the slots of the next step."""
        if self.cell is None:
            slots = collected
        else:
            if transformed():
                # In torch.func.vmap torch's GRU cell needs both with the mapped axis,
                # which slots that all start alike do not have.
                slots = slots + torch.zeros_like(collected)
            rows = applied(self.cell, collected.flatten(0, 1), slots.flatten(0, 1))
            slots = rows.view_as(slots)
        return slots if self.mlp is None else slots + applied(self.mlp, slots)


def passed_on(first: Tensor, slots: Tensor) -> Tensor:
    """Return the slots with the gradient of the start, as a straight-through estimator
    has it (Jia, Liu & Huang 2023).
    """
    return first + (slots - first).detach()


def projected_votes(
    votes: Votes, norm: nn.LayerNorm, projection: nn.Module, *, folded: bool = False
) -> Votes:
    """Return votes of the same children, normalised and projected alike for all
    parents, (B, I, J, H); their own transforms and coordinates are not used.

    Args:
        votes: the votes of the children.
        norm: their normalisation, flattened.
        projection: the linear map from them to the votes, which no kernel stores. One
            with hooks, or whatever stands in its place, as after quantisation, is
            called once, with the unit vectors and the origin.
        folded: whether the scale and shift of the normalisation become parts of the
            projection, so that inner products keep no normalised child.
    """
    dtype = votes.dtype
    children = votes.children.flatten(2).to(dtype)
    P = children.shape[-1]
    weight, offset = matrix_of(projection, P, children)
    # Matrix products need a normalised copy, which all steps then share.
    many = by_matrix_products(votes.parents, P)
    folded = folded and not many and type(norm) is nn.LayerNorm and not hooked(norm)
    if folded:
        shift = (cast(norm.bias, dtype) @ weight)[None]
        offset = shift if offset is None else offset + shift
        weight = cast(norm.weight, dtype)[:, None] * weight
    else:
        children = applied(norm, children)
    projected = Votes(
        children,
        weight[None, None],
        competition=votes.competition,
        backend=votes.backend,
        sites=votes.sites,
        mask=votes.mask,
        alike=votes.parents,
        epsilon=norm.eps if folded else None,
    )
    if offset is None:
        return projected
    return projected.with_bias(offset.expand(1, votes.parents, -1))


def matrix_of(
    projection: nn.Module, numbers: int, like: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the matrix (P, H) and the bias (1, H) of a linear map, if it has one.

    Args:
        projection: the map.
        numbers: P.
        like: a tensor of the dtype and device.
    """
    if type(projection) is nn.Linear and not hooked(projection):
        matrix = cast(projection.weight, like.dtype).mT
        bias = projection.bias
        return matrix, None if bias is None else cast(bias, like.dtype)[None]
    # What anything else does to the unit vectors, and the origin.
    points = torch.eye(numbers + 1, numbers, dtype=like.dtype, device=like.device)
    rows = applied(projection, points)
    return rows[:numbers] - rows[numbers:], rows[numbers:]


def hooked(module: nn.Module) -> bool:
    """Whether a module has hooks, which must see its calls."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def applied(module: nn.Module, *inputs: Tensor) -> Tensor:
    """Apply a module in the dtype of its inputs."""
    dtype = inputs[0].dtype
    if _all_are(module, dtype):
        result: Tensor = module(*inputs)
        return result
    cast = {name: weight.to(dtype) for name, weight in module.named_parameters()}
    result = torch.func.functional_call(module, cast, inputs)
    return result


def _all_are(module: nn.Module, dtype: torch.dtype) -> bool:
    """Whether all parameters have this dtype: ``module.parameters()`` takes ten times as
    long.
    """
    for weight in module._parameters.values():
        if weight is not None and weight.dtype != dtype:
            return False
    return all(
        part is None or _all_are(part, dtype) for part in module._modules.values()
    )
