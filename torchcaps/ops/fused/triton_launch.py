"""Routing in Triton, on a GPU, or on a CPU under Triton's interpreter: how the kernels
are launched.

The device code, and why tiles are laid out as they are, is in
:mod:`torchcaps.ops.fused.triton_kernels`. Gradients that several programs add to (of
transforms and coordinates, and of children that windows share) are summed by atomic
additions, so their last digits differ from run to run.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.numerics import compute_dtype, positive
from torchcaps.ops.derivatives import about_mean
from torchcaps.ops.fused import triton_kernels as device
from torchcaps.ops.fused.call import Call, sizes_of
from torchcaps.ops.naive import dense_votes


@dataclass(frozen=True)
class Tiling:
    """How the work is cut up. What is None follows the rules of :class:`Launch`.

    Args:
        warps: warps of a program, of 32 lanes each.
        numbers: how many numbers of the votes of one child a lane holds.
        parents: the parents of a tile at most, a power of two.
        splits: the parts that the children are cut into, each with programs of its own.
    """

    warps: int | None = None
    numbers: int = 16
    parents: int | None = None
    splits: int | None = None


WARPS, WARPS_BACKWARD = 4, 8
PROGRAMS_PER_PROCESSOR = 8  # two or three run at a time; more even out the end
# Of one program, so that loading the parents and merging the sums stay small beside
# them
FEWEST_CHILDREN = 16
PRODUCT = 64  # transform numbers that a lane takes at a time
BLOCK = 16  # parents, where they are too many for one tile
# Partial gradients of a shared transform, to which all programs add for all children
SLOTS = 64
_INTERPRET = (
    "to try them on a CPU, very slowly, set TRITON_INTERPRET=1 before triton is "
    "imported"
)
STAGES = 1  # copying ahead through shared memory costs the registers that the sums need


def prepare() -> None:
    """Checks that the kernels can run here.

    Raises:
        RuntimeError: if there is neither a GPU nor Triton's interpreter.
    """
    if not torch.cuda.is_available() and not interpreted():
        raise RuntimeError(
            "torchcaps' Triton kernels need a GPU, and torch.cuda.is_available() is "
            f"False; {_INTERPRET}"
        )


def interpreted() -> bool:
    """Whether the kernels, and what they call of Triton's own, run in Triton's
    interpreter.
    """
    return not isinstance(device.moments_kernel, triton.JITFunction) and not isinstance(
        tl.sum, triton.JITFunction
    )


def moments(
    call: Call, *, orphan: bool, hard: bool, scatter: bool, tiling: Tiling | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """One E-step and its sums; see :class:`~torchcaps.ops.fused.operators.Kernels`."""
    launch = Launch(call, tiling, WARPS, orphan=orphan, hard=hard)
    mass = launch.empty(launch.splits, launch.B, launch.J)
    first = launch.empty(launch.splits, launch.B, launch.H, launch.J)
    second = torch.empty_like(first) if scatter else None
    log_partition, best, tile = launch.competition()
    gaussian = len(call.similarity) == 3
    origin = None
    if scatter:  # near the votes
        origin = launch.similarity[0] if gaussian else launch.first_votes()
    launch(
        device.moments_kernel,
        *(
            *launch.votes,
            call.weights,
            log_partition,
            best,
            call.sites,
            *launch.similarity,
        ),
        *(None if gaussian else origin, mass, first, second),
        tile=tile,
    )
    if second is None or origin is None:
        return mass.sum(0), first.sum(0).mT.contiguous(), None, None
    return _merged(mass, first, second, origin)


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
    tiling: Tiling | None = None,
) -> Call:
    """The gradients of every tensor of the call; see
    :class:`~torchcaps.ops.fused.operators.Kernels`.
    """
    if rest is not None and grad_scatter is not None:
        grad_mass, grad_sum = about_mean(mean, rest, grad_mass, grad_sum, grad_scatter)
    launch = Launch(call, tiling, WARPS_BACKWARD, orphan=orphan, hard=hard)
    log_partition, best, tile = launch.competition()
    grads = Gradients(launch)
    grad_partition = grads.log_partition
    if tile.by_row:
        grad_partition = launch.empty(launch.blocks, launch.B, launch.I)
    upstream = (
        None if grad_scatter is None else _by_parent(mean),
        grad_mass.contiguous(),
        _by_parent(grad_sum),
        None if grad_scatter is None else _by_parent(grad_scatter),
    )
    launch(
        device.moments_backward_kernel,
        *(
            *launch.votes,
            call.weights,
            log_partition,
            best,
            call.sites,
            *launch.similarity,
            *upstream,
        ),
        *(*grads.votes, grads.weights, grad_partition, *grads.similarity),
        tile=tile,
    )
    if tile.by_row:  # what the parents of all blocks competed for
        assert log_partition is not None
        assert grad_partition is not None
        direct = grads.renewed_fields()
        _scores_backward(launch, log_partition, grad_partition.sum(0), grads)
        grads.fields = [
            one + other for one, other in zip(direct, grads.fields, strict=True)
        ]
    return grads.call()


def scores(
    call: Call, *, orphan: bool, reduced: bool, tiling: Tiling | None = None
) -> Tensor:
    """The logits, or their normaliser; see
    :class:`~torchcaps.ops.fused.operators.Kernels`.
    """
    launch = Launch(call, tiling, WARPS, orphan=orphan)
    return launch.partition() if reduced else launch.logits()


def scores_backward(
    call: Call,
    scores: Tensor,
    grad: Tensor,
    *,
    orphan: bool,
    reduced: bool,
    tiling: Tiling | None = None,
) -> Call:
    """The gradients of every tensor of the call; see
    :class:`~torchcaps.ops.fused.operators.Kernels`.
    """
    launch = Launch(call, tiling, WARPS_BACKWARD, orphan=orphan)
    grads = Gradients(launch)
    _scores_backward(
        launch, scores.contiguous() if reduced else None, grad.contiguous(), grads
    )
    return grads.call()


class Launch:
    """A call in the layout of the kernels, and how it is cut into programs.

    A tile has as many pairs of a row and a parent as give each lane ``numbers`` numbers
    of the votes of one child: one pair to a lane where votes are 16 long. That is what
    leaves room, of 255 registers, for the parents' fields and the sums: four times the
    vote in the scatter's forward pass, seven times in its backward pass. Parents fill a
    tile first, then rows.

    A program has 4 warps forward, where three such programs share a processor and hide
    each other's waiting, and 8 backward, where more rows to a tile mean fewer atomic
    additions to the gradient of the transforms.

    More parents than fit one tile are cut into blocks, small ones that leave room for
    rows. What they compete for is then found first, in a pass of its own: the
    normaliser of each child of each row, (B, I), from one for each block.

    Where there are too few rows to fill the processors of a GPU, the children are split
    too, and the sums merged.
    """

    def __init__(
        self,
        call: Call,
        tiling: Tiling | None,
        warps: int,
        *,
        orphan: bool = False,
        hard: bool = False,
    ) -> None:
        _check_device(call.children)
        tiling = tiling or Tiling()
        self.source = call
        self.dtype = compute_dtype(call.children, call.transforms, *call.similarity)
        self.warps = tiling.warps or warps
        self.B, self.I, self.J, M, P, D = sizes_of(call)
        self.H, self.G = M * D, call.children.shape[1]
        self.W = 1 if call.sites is None else len(call.sites)

        m, d = triton.next_power_of_2(M), triton.next_power_of_2(D)
        pairs = max(1, 32 * self.warps * tiling.numbers // (m * d))
        j = triton.next_power_of_2(self.J)
        if j > min(pairs, tiling.parents or pairs):
            j = min(pairs, tiling.parents or BLOCK)
        b = min(pairs // j, triton.next_power_of_2(max(self.B, 1)))
        self.blocks = triton.cdiv(self.J, j)
        self.tile = device.Tile(
            *(M, P, D, tl.float64 if self.dtype == torch.float64 else tl.float32),
            m=m,
            d=d,
            p=min(triton.next_power_of_2(P), max(1, PRODUCT // d)),
            b=b,
            j=j,
            orphan=orphan,
            hard=hard,
            shared=call.transforms.shape[0] == 1 and self.I > 1,
            overlap=call.sites is not None or self.blocks > 1,
            slots=SLOTS,
            dot=m * b >= 16 and self.dtype == torch.float32,
        )
        self.programs = triton.cdiv(self.B, self.tile.b)
        self.splits = tiling.splits or self._splits()

        self.votes = (
            call.children,
            call.transforms.permute(0, 2, 3, 1).contiguous(),
            call.coordinates,
        )
        fields = [
            _by_parent(field) if field.ndim == 3 else field for field in call.similarity
        ]
        self.similarity = (*fields, None, None, None)[:3]

    def __call__(
        self, kernel: Any, *arguments: Tensor | None, tile: device.Tile | None = None
    ) -> None:
        """Runs a kernel over all rows, children and parents."""
        if self.B == 0:
            return
        sizes = (self.B, self.W, self.I, self.G, self.J)
        with _on(self.source.children):
            kernel[(self.programs, self.splits, self.blocks)](
                *arguments,
                *sizes,
                tile or self.tile,
                num_warps=self.warps,
                num_stages=STAGES,
            )

    def _splits(self) -> int:
        wanted = PROGRAMS_PER_PROCESSOR * _processors(self.source.children.device)
        return max(
            1,
            min(
                wanted // max(1, self.programs * self.blocks), self.I // FEWEST_CHILDREN
            ),
        )

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for a result."""
        return self.source.children.new_empty(shape, dtype=dtype or self.dtype)

    def first_votes(self) -> Tensor:
        """The first child's votes in each row, (B, H, J)."""
        children, transforms, coordinates = self.source[:3]
        first = (
            children[:, :1]
            if self.source.sites is None
            else children[:, self.source.sites[:, 0]].flatten(0, 1)
        )
        first = first.reshape(self.B, 1, *children.shape[2:]).to(self.dtype)
        votes = dense_votes(
            first,
            transforms[:1].to(self.dtype),
            None if coordinates is None else coordinates[:1],
        )
        return _by_parent(votes[:, 0])

    def logits(self) -> Tensor:
        """The logits, (B, I, J)."""
        logits = self.empty(self.B, self.I, self.J)
        self._scores(logits, None, None, None)
        return logits

    def partition(self) -> Tensor:
        """The normaliser over all parents, (B, I)."""
        parts = self.empty(self.blocks, self.B, self.I)
        self._scores(None, parts, None, None)
        return parts[0] if self.blocks == 1 else parts.logsumexp(0)

    def best(self) -> Tensor:
        """The lowest index of a most similar parent, (B, I)."""
        top = self.empty(self.blocks, self.B, self.I)
        best = self.empty(self.blocks, self.B, self.I, dtype=torch.int32)
        self._scores(None, None, top, best)
        return best.gather(0, top.argmax(0, keepdim=True))[0]

    def _scores(self, *outputs: Tensor | None) -> None:
        self(
            device.scores_kernel,
            *self.votes,
            self.source.sites,
            *self.similarity,
            *outputs,
        )

    def competition(self) -> tuple[Tensor | None, Tensor | None, device.Tile]:
        """The normaliser and the choice that a program must be given, and the tile that
        reads them.
        """
        given = self.source.log_partition
        if self.tile.hard:
            return None, self.best() if self.blocks > 1 else None, self.tile
        if given is not None or self.blocks == 1:
            return given, None, self.tile
        return self.partition(), None, replace(self.tile, by_row=True)


class Gradients:
    """The gradients of a call in the layout of the kernels: zeros where programs add,
    else not yet written.
    """

    def __init__(self, launch: Launch) -> None:
        call, tile, dtype = launch.source, launch.tile, launch.dtype
        _, P, D, J = launch.votes[1].shape
        each = torch.zeros_like if tile.overlap else torch.empty_like
        self.source = call
        self.children = each(call.children, dtype=dtype)
        self.transforms = torch.zeros(
            tile.slots if tile.shared else launch.I,
            P,
            D,
            J,
            dtype=dtype,
            device=call.children.device,
        )
        self.coordinates = (
            None if call.coordinates is None else torch.zeros_like(call.coordinates)
        )
        self.weights = None if call.weights is None else each(call.weights)
        self.log_partition = None
        if call.log_partition is not None:  # a hard assignment has no use for it
            self.log_partition = (torch.zeros_like if tile.hard else each)(
                call.log_partition
            )
        empty = [
            launch.empty(launch.splits, *field.shape)
            for field in launch.similarity
            if field is not None
        ]
        self.fields = [field.zero_() for field in empty] if tile.hard else empty

    @property
    def votes(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Those of children, transforms and coordinates."""
        return self.children, self.transforms, self.coordinates

    @property
    def similarity(self) -> tuple[Tensor | None, ...]:
        """Those of the similarity's fields, by split."""
        return (*self.fields, None, None, None)[:3]

    def renewed_fields(self) -> list[Tensor]:
        """The gradients of the similarity's fields so far; new ones take their
        place.
        """
        fields = self.fields
        self.fields = [torch.empty_like(field) for field in fields]
        return fields

    def call(self) -> Call:
        """In the layout of the call."""
        shared = len(self.transforms) != len(self.source.transforms)
        transforms = self.transforms.sum(0, keepdim=True) if shared else self.transforms
        fields = [field.sum(0) for field in self.fields]
        return Call(
            self.children.to(self.source.children.dtype),
            transforms.permute(0, 3, 1, 2)
            .to(self.source.transforms.dtype)
            .contiguous(),
            self.coordinates,
            self.weights,
            self.log_partition,
            None,
            tuple(
                field.mT.contiguous() if field.ndim == 3 else field for field in fields
            ),
        )


def _scores_backward(
    launch: Launch, partition: Tensor | None, grad: Tensor, into: Gradients
) -> None:
    """The gradients of the logits, (B, I, J), or of their normaliser, (B, I)."""
    launch(
        device.scores_backward_kernel,
        *(*launch.votes, launch.source.sites, *launch.similarity, partition, grad),
        *(*into.votes, *into.similarity),
    )


def _merged(
    mass: Tensor, mean: Tensor, scatter: Tensor, origin: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass, sum, scatter and rest, from mass, mean and scatter of each split (Chan,
    Golub & LeVeque 1983).

    Means are relative to the origin, (B, H, J).
    """
    if len(mass) == 1:
        total, common, within = mass[0], mean[0], scatter[0]
    else:
        total = mass.sum(0)
        common = (mass[:, :, None] * mean).sum(0) / positive(total)[:, None]
        within = scatter.sum(0) + (mass[:, :, None] * (mean - common).square()).sum(0)
    first = total[:, None] * (origin + common)
    rest = common - (first / positive(total)[:, None] - origin)
    return total, first.mT.contiguous(), within.mT.contiguous(), rest.mT.contiguous()


def _mend_interpreter() -> None:
    """Lets ``range`` in a kernel end at a number again: triton 3.6 with numpy 2.4
    (triton-lang/triton issue 9171).
    """
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


if interpreted():
    _mend_interpreter()


def _by_parent(field: Tensor) -> Tensor:
    """A field (B, J, H) of the parents in the layout of the kernels, (B, H, J)."""
    return field.mT.contiguous()


def _check_device(tensor: Tensor) -> None:
    if not tensor.is_cuda and not interpreted():
        raise RuntimeError(
            "torchcaps' Triton kernels run on a GPU, but the children are on "
            f"{tensor.device}; {_INTERPRET}"
        )


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@cache
def _processors(place: torch.device) -> int:
    """The multiprocessors of a GPU."""
    return (
        torch.cuda.get_device_properties(place).multi_processor_count
        if place.type == "cuda"
        else 1
    )
