"""Routing in Triton, on a GPU, or on a CPU under Triton's interpreter: how the kernels
are launched.

The device code, and why tiles are laid out as they are, is in
:mod:`torchcaps.ops.fused.triton_kernels`. Gradients that several programs add to (of
transforms and coordinates, and of children that windows share) are summed by atomic
additions, so their last digits differ from run to run.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.numerics import compute_dtype
from torchcaps.ops.fused import triton_kernels as device
from torchcaps.ops.fused import triton_parents as between
from torchcaps.ops.fused.call import Call, sizes_of


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
    numbers: int | None = None
    parents: int | None = None
    splits: int | None = None


@dataclass(frozen=True)
class Cut:
    """The tile of a kernel, and the registers that it may take.

    Args:
        warps: warps of a program, of 32 lanes each.
        numbers: how many numbers of the votes of one child a lane holds.
        product: how many numbers of a transform a lane takes at a time.
        ahead: whether a child is loaded while the one before it is worked on.
        at_once: how many programs a processor runs at once, by the registers that
            they take.
        registers: the most of a lane, if fewer than the compiler would take fit
            without spilling one; None for no limit. A processor has 65,536, and runs
            as many warps as they last for.
    """

    warps: int
    numbers: int
    product: int = 64
    ahead: bool = False
    at_once: int = 1
    registers: int | None = None


TILES = {
    "vectors": {
        "moments": Cut(8, 32, product=128, ahead=True),
        # A vote is summed in the order of the backward pass, whose product must be small.
        # Rounded otherwise, the votes of one child would lie beside their mean, and the
        # scatter's steep gradients take that for a deviation.
        "scatter": Cut(4, 16, product=32, at_once=4),
        "scores": Cut(4, 16, at_once=3),
        "mean_grads": Cut(4, 16, product=128, at_once=2),
        "backward": Cut(8, 16, product=128),
        "scatter backward": Cut(1, 16, product=32, at_once=8),
        "flow": Cut(8, 32, product=128, ahead=True),
        "passing": Cut(1, 32, product=32, at_once=8),
    },
    "matrices": {
        "moments": Cut(4, 32, product=16, ahead=True, at_once=2),
        "scatter": Cut(8, 16, product=16, at_once=2, registers=128),
        "scores": Cut(4, 16, product=16, at_once=5),
        "mean_grads": Cut(1, 16, product=16, at_once=12),
        "backward": Cut(1, 16, product=16, ahead=True, at_once=8),
        "scatter backward": Cut(1, 16, product=16, ahead=True, at_once=8),
        "flow": Cut(4, 32, product=16, ahead=True, at_once=2),
        "passing": Cut(1, 16, product=16, at_once=12),
    },
}
"""What a program takes, by what a kernel does; ``scatter``: moments with the scatter, and
gradients of them. Nothing spills registers.

As measured on an H200 with DigitCaps and ConvCaps1 (PyTorch 2.11, Triton 3.6), but for
scatter, scores and mean_grads of vectors. Not all that is faster is here: with 64 numbers a lane,
moments of vectors take 0.83 of the time, and spill where there are weights. Passing
gradients on takes one warp, which waits for no other, or so many rows that ``tl.dot``
adds them up.
"""
MOST_WARPS = 8

# The most programs on all processors: more parts take more memory.
ROUNDS = 8
FEWEST_CHILDREN = 16  # of one program
# In the time of so many children a program loads its parents, and sums are merged.
BESIDE = 24
# Parents of a tile, where they are too many for one.
BLOCK = 16
# Partial gradients of a shared transform, to which all programs add for all children
SLOTS = 64
_INTERPRET = (
    "to try them on a CPU, very slowly, set TRITON_INTERPRET=1 before triton is "
    "imported"
)
# Copying ahead through shared memory costs the registers that the sums need.
STAGES = 1


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


DTYPES = {torch.float32: tl.float32, torch.float64: tl.float64}


def tiny(dtype: torch.dtype) -> float:
    """The least mass to divide by, of :func:`torchcaps.numerics.positive`."""
    return float(torch.finfo(dtype).tiny ** 0.5)


def interpreted() -> bool:
    """Whether the kernels, and what they call of Triton's own, run in Triton's
    interpreter.
    """
    return not isinstance(device.moments_kernel, triton.JITFunction) and not isinstance(
        tl.sum, triton.JITFunction
    )


def moments(
    call: Call, *, leaky: bool, hard: bool, scatter: bool, tiling: Tiling | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """One E-step and its sums; see :class:`~torchcaps.ops.fused.operators.Kernels`."""
    work = "scatter" if scatter else "moments"
    launch = Launch(call, tiling, work, leaky=leaky, hard=hard)
    return launch.merged(*launch.moments(scatter))


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
    tiling: Tiling | None = None,
) -> Call:
    """The gradients of every tensor of the call; see
    :class:`~torchcaps.ops.fused.operators.Kernels`.
    """
    work = "backward" if grad_scatter is None else "scatter backward"
    launch = Launch(call, tiling, work, leaky=leaky, hard=hard)
    log_partition, best, tile = launch.competition()
    grads = Gradients(launch)
    grad_partition = grads.log_partition
    if tile.by_row:
        grad_partition = launch.empty(launch.programs.blocks, launch.B, launch.I)
    about: list[Tensor | None] = [None, None, None]
    if grad_scatter is not None:
        fields = mean, rest, grad_scatter
        about = [None if field is None else by_parent(field) for field in fields]
    upstream = *about[:2], None, grad_mass, by_parent(grad_sum), about[2]
    launch(
        device.moments_backward_kernel,
        *launch.votes,
        call.weights,
        log_partition,
        best,
        call.sites,
        *launch.similarity,
        *upstream,
        *grads.votes,
        grads.weights,
        grad_partition,
        *grads.similarity,
        tile=tile,
    )
    # The parents of all blocks compete for it.
    if tile.by_row:
        assert log_partition is not None
        assert grad_partition is not None
        direct = grads.renewed_fields()
        _scores_backward(launch, log_partition, grad_partition.sum(0), grads)
        grads.fields = [
            gradient + following
            for gradient, following in zip(direct, grads.fields, strict=True)
        ]
    return grads.call()


def scores(
    call: Call, *, leaky: bool, reduced: bool, tiling: Tiling | None = None
) -> Tensor:
    """The logits, or their log-partition; see
    :class:`~torchcaps.ops.fused.operators.Kernels`.
    """
    launch = Launch(call, tiling, "scores", leaky=leaky)
    return launch.log_partition() if reduced else launch.logits()


def scores_backward(
    call: Call,
    scores: Tensor,
    grad: Tensor,
    *,
    leaky: bool,
    reduced: bool,
    tiling: Tiling | None = None,
) -> Call:
    """The gradients of every tensor of the call; see
    :class:`~torchcaps.ops.fused.operators.Kernels`.
    """
    work = "scatter backward" if len(call.similarity) > 1 else "backward"
    launch = Launch(call, tiling, work, leaky=leaky)
    grads = Gradients(launch)
    _scores_backward(launch, scores if reduced else None, grad, grads)
    return grads.call()


@dataclass(frozen=True)
class Programs:
    """How the work of a kernel is cut up into programs.

    Args:
        tile: what a program holds.
        warps: warps of a program.
        registers: the most of a lane; None for no limit.
        rows: the tiles that the rows are cut into.
        splits: the parts that the children are cut into.
        blocks: the parts that the parents are cut into.
    """

    tile: device.Tile
    warps: int
    registers: int | None
    rows: int
    splits: int
    blocks: int


def power_of_2(size: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (size - 1).bit_length()


def tile_count(size: int, tile: int) -> int:
    """How many tiles cover a size."""
    return -(-size // tile)


@lru_cache(maxsize=4096)
def cut_up(
    sizes: tuple[int, int, int, int, int, int],
    dtype: torch.dtype,
    work: str,
    tiling: Tiling,
    processors: int,
    *,
    leaky: bool,
    hard: bool,
    shared: bool,
    windows: bool,
) -> Programs:
    """How a call is cut up for a kernel; see :class:`Launch`.

    Args:
        sizes: B, I, J, M, P and D.
        dtype: what is computed in.
        work: of the kernel, a key of :data:`TILES`.
        tiling: what is asked for.
        processors: of the GPU.
        leaky: whether a logit 0 competes with the parents.
        hard: whether the most similar parent takes all.
        shared: whether all children have one transform.
        windows: whether rows are windows, which share children.
    """
    B, I, J, M, P, D = sizes
    cut = TILES["matrices" if M > 1 else "vectors"][work]
    warps, numbers = cut.warps, tiling.numbers or cut.numbers
    m, d, j = power_of_2(M), power_of_2(D), power_of_2(J)
    while 32 * warps * numbers < m * d * j and warps < MOST_WARPS:
        # More warps rather than blocks of parents.
        warps *= 2
    warps = tiling.warps or warps
    pairs = max(1, 32 * warps * numbers // (m * d))
    if j > min(pairs, tiling.parents or pairs):
        j = min(pairs, tiling.parents or BLOCK)
    b = min(pairs // j, power_of_2(max(B, 1)))
    rows, blocks = tile_count(B, b), tile_count(J, j)
    splits = _splits(I, max(1, rows * blocks), cut.at_once * processors)
    tile = device.Tile(
        M,
        P,
        D,
        J,
        DTYPES[dtype],
        m=m,
        d=d,
        p=min(power_of_2(P), max(1, cut.product // d)),
        b=b,
        j=j,
        leaky=leaky,
        hard=hard,
        shared=shared,
        overlap=windows or blocks > 1,
        slots=SLOTS,
        dot=m * b >= 16 and dtype == torch.float32,
        tiny=tiny(dtype),
        ahead=cut.ahead,
    )
    # Numbers of float64 take two registers each
    registers = cut.registers if dtype == torch.float32 else None
    return Programs(tile, warps, registers, rows, tiling.splits or splits, blocks)


def _splits(children: int, programs: int, at_once: int) -> int:
    """The number of parts of the children with which the last program ends first.

    Args:
        children: I.
        programs: how many there are if the children are not split.
        at_once: how many run at once.
    """
    most = min(children // FEWEST_CHILDREN, ROUNDS * at_once // programs)

    def duration(splits: int) -> int:
        rounds = tile_count(programs * splits, at_once)
        return rounds * (tile_count(children, splits) + BESIDE)

    return min(range(1, max(1, most) + 1), key=duration)


class Launch:
    """A call in the layout of the kernels, and how it is cut into programs.

    A tile has as many pairs of a row and a parent as give each lane ``numbers`` numbers
    of the votes of one child (:data:`TILES`): with 16, one pair to a lane where votes
    are 16 long. That leaves room, of 255 registers, for the parents' fields and the
    sums: four times the vote in the scatter's forward pass, seven times in its backward
    pass. Parents fill a tile first, then rows.

    More parents than fit one tile are cut into blocks, small ones that leave room for
    rows. What they compete for is then found first, in a pass of its own: the
    log-partition of each child of each row, (B, I), from one for each block.

    Where the tiles of rows and parents leave processors of a GPU idle, the children are
    split too, and the sums merged.
    """

    def __init__(
        self,
        call: Call,
        tiling: Tiling | None,
        work: str,
        *,
        leaky: bool = False,
        hard: bool = False,
    ) -> None:
        check_device(call.children)
        self.source = call
        self.dtype = compute_dtype(call.children, call.transforms, *call.similarity)
        self.B, self.I, self.J, self.M, self.P, self.D = sizes_of(call)
        self.H, self.G = self.M * self.D, call.children.shape[1]
        self.W = 1 if call.sites is None else len(call.sites)
        self.leaky, self.hard, self.tiling = leaky, hard, tiling or Tiling()
        self._cut(work)
        self.votes = (
            call.children,
            call.transforms.permute(0, 2, 3, 1).contiguous(),
            call.coordinates,
        )
        fields = [
            by_parent(field) if field.ndim == 3 else field for field in call.similarity
        ]
        self.similarity = (*fields, None, None, None)[:3]

    def _cut(self, work: str) -> None:
        """Cuts the call for a kernel that does this work."""
        call = self.source
        self.programs = cut_up(
            (self.B, self.I, self.J, self.M, self.P, self.D),
            self.dtype,
            work,
            self.tiling,
            processors(call.children.device),
            leaky=self.leaky,
            hard=self.hard,
            shared=call.transforms.shape[0] == 1 and self.I > 1,
            windows=call.sites is not None,
        )
        self.tile = self.programs.tile

    def for_work(self, work: str) -> "Launch":
        """The same call, cut for a kernel that does this work."""
        launch = copy(self)
        launch._cut(work)
        return launch

    def alone(self) -> "Launch":
        """The votes, without what a call has beside them."""
        launch = copy(self)
        children, transforms, coordinates, _, _, sites, _ = self.source
        launch.source = Call(children, transforms, coordinates, sites=sites)
        return launch.comparing()

    def comparing(self, *similarity: Tensor) -> "Launch":
        """The same votes, compared with something else."""
        launch = copy(self)
        launch.similarity = (*similarity, None, None, None)[:3]
        return launch

    def __call__(
        self, kernel: Any, *arguments: Tensor | None, tile: device.Tile | None = None
    ) -> None:
        """Runs a kernel over all rows, children and parents."""
        if self.B == 0:
            return
        sizes = (self.B, self.W, self.I, self.G, self.J)
        run(
            kernel,
            (self.programs.rows, self.programs.splits, self.programs.blocks),
            (*arguments, *sizes, tile or self.tile),
            self.source.children.device,
            self.programs.warps,
            self.programs.registers,
        )

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for a result."""
        return self.source.children.new_empty(shape, dtype=dtype or self.dtype)

    def moments(
        self, scatter: bool, log_partition: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Mass, sum (or relative mean), scatter of each split, and what means are
        relative to.

        Args:
            scatter: whether it is wanted.
            log_partition: in place of that of the call.
        """
        mass = self.empty(self.programs.splits, self.B, self.J)
        first = self.empty(self.programs.splits, self.B, self.H, self.J)
        second = torch.empty_like(first) if scatter else None
        partition, best, tile = self.competition()
        gaussian = self.similarity[1] is not None
        origin = self.similarity[0] if gaussian else None
        if scatter and not gaussian:
            origin = self.empty(self.B, self.H, self.J)
        self(
            device.moments_kernel,
            *self.votes,
            self.source.weights,
            partition if log_partition is None else log_partition,
            best,
            self.source.sites,
            *self.similarity,
            mass,
            first,
            second,
            None if gaussian else origin,
            tile=tile,
        )
        return mass, first, second, origin

    def merged(
        self, mass: Tensor, first: Tensor, scatter: Tensor | None, origin: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Mass, sum, scatter and rest of all splits."""
        total = torch.empty_like(mass[0])
        moment = self.empty(self.B, self.J, self.H)
        within = rest = None
        if scatter is not None:
            within, rest = torch.empty_like(moment), torch.empty_like(moment)
        self.parents()(
            between.merge_kernel,
            mass,
            first,
            scatter,
            origin,
            total,
            moment,
            within,
            rest,
            self.B * self.J,
            self.J,
            len(mass),
        )
        return total, moment, within, rest

    def parents(self, **options: Any) -> "Parents":
        """What launches the kernels between passes over the children."""
        return Parents(self, **options)

    def logits(self) -> Tensor:
        """The logits, (B, I, J)."""
        logits = self.empty(self.B, self.I, self.J)
        self._scores(logits, None, None, None)
        return logits

    def log_partition(self) -> Tensor:
        """The log-partition over all parents, (B, I)."""
        parts = self.empty(self.programs.blocks, self.B, self.I)
        self._scores(None, parts, None, None)
        return parts[0] if self.programs.blocks == 1 else parts.logsumexp(0)

    def best(self) -> Tensor:
        """The lowest index of a most similar parent, (B, I)."""
        top = self.empty(self.programs.blocks, self.B, self.I)
        best = self.empty(self.programs.blocks, self.B, self.I, dtype=torch.int32)
        self._scores(None, None, top, best)
        if self.programs.blocks == 1:
            return best[0]
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
        """The log-partition and the choice that a program must be given, and the tile that
        reads them.
        """
        partition = self.source.log_partition
        if self.tile.hard:
            return None, self.best() if self.programs.blocks > 1 else None, self.tile
        if partition is not None or self.programs.blocks == 1:
            return partition, None, self.tile
        return self.log_partition(), None, replace(self.tile, by_row=True)


@lru_cache(maxsize=4096)
def block_of(
    size: int, parents: int, dtype: torch.dtype, options: tuple[tuple[str, Any], ...]
) -> between.Block:
    """What a program between the passes holds.

    Args:
        size: H, the numbers of a vote.
        parents: pairs of a row and a parent.
        dtype: what is computed in.
        options: other options of :class:`torchcaps.ops.fused.triton_parents.Block`.
    """
    return between.Block(
        size, power_of_2(size), parents, DTYPES[dtype], tiny(dtype), **dict(options)
    )


class Parents:
    """Launches kernels of :mod:`torchcaps.ops.fused.triton_parents`.

    Args:
        launch: the launch of the passes between which they lie.
        options: the options of :class:`torchcaps.ops.fused.triton_parents.Block`.
    """

    def __init__(self, launch: Launch, **options: Any) -> None:
        self.launch, self.pairs = launch, launch.B * launch.J
        self.options = options

    def __call__(self, kernel: Any, *arguments: Any) -> None:
        """Runs a kernel over all pairs of a row and a parent."""
        block = self._block(max(1, 256 // power_of_2(self.launch.H)))
        self._run(kernel, tile_count(self.pairs, block.j), arguments, block)

    def by_row(self, kernel: Any, *arguments: Any) -> None:
        """Runs a kernel of which a program has all parents of a row."""
        block = self._block(power_of_2(self.launch.J))
        self._run(kernel, self.launch.B, arguments, block)

    def _block(self, parents: int) -> between.Block:
        options = tuple(self.options.items())
        return block_of(self.launch.H, parents, self.launch.dtype, options)

    def _run(
        self, kernel: Any, programs: int, arguments: Sequence[Any], block: between.Block
    ) -> None:
        if self.pairs == 0:
            return
        device = self.launch.source.children.device
        run(kernel, (programs,), (*arguments, block), device)


class Gradients:
    """The gradients of a call in the layout of the kernels: zeros where programs add,
    else not yet written.
    """

    def __init__(self, launch: Launch) -> None:
        call, tile, dtype = launch.source, launch.tile, launch.dtype
        each = torch.zeros_like if tile.overlap else torch.empty_like
        self.source = call
        self.children = each(call.children, dtype=dtype)
        self.transforms = torch.zeros(
            (tile.slots if tile.shared else launch.I, launch.P, launch.D, launch.J),
            dtype=dtype,
            device=call.children.device,
        )
        self.coordinates = (
            None if call.coordinates is None else torch.zeros_like(call.coordinates)
        )
        self.weights = None if call.weights is None else each(call.weights)
        self.log_partition = None
        # A hard assignment has no use for it.
        if call.log_partition is not None:
            self.log_partition = (torch.zeros_like if tile.hard else each)(
                call.log_partition
            )
        self.fields = empty_fields(launch)
        if tile.hard:
            self.fields = [field.zero_() for field in self.fields]

    @property
    def votes(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The gradients of children, transforms and coordinates."""
        return self.children, self.transforms, self.coordinates

    @property
    def similarity(self) -> tuple[Tensor | None, ...]:
        """The gradients of the similarity's fields, by split."""
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
        return Call(
            self.children.to(self.source.children.dtype),
            self.in_order().to(self.source.transforms.dtype),
            self.coordinates,
            self.weights,
            self.log_partition,
            similarity=tuple(map(_as_called, self.fields)),
        )

    def in_order(self) -> Tensor:
        """The gradient of the transforms, (I or 1, J, P, D)."""
        shared = len(self.transforms) != len(self.source.transforms)
        transforms = self.transforms.sum(0, keepdim=True) if shared else self.transforms
        return transforms.permute(0, 3, 1, 2).contiguous()


def empty_fields(launch: Launch) -> list[Tensor]:
    """Memory for the gradients of what the votes are compared with, by split."""
    return [
        launch.empty(launch.programs.splits, *field.shape)
        for field in launch.similarity
        if field is not None
    ]


def _scores_backward(
    launch: Launch, log_partition: Tensor | None, grad: Tensor, into: Gradients
) -> None:
    """The gradients of the logits, (B, I, J), or of their log-partition, (B, I)."""
    launch(
        device.scores_backward_kernel,
        *launch.votes,
        launch.source.sites,
        *launch.similarity,
        log_partition,
        grad,
        *into.votes,
        *into.similarity,
    )


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


def by_parent(field: Tensor) -> Tensor:
    """A field (B, J, H) of the parents in the layout of the kernels, (B, H, J)."""
    return field.mT.contiguous()


def _as_called(field: Tensor) -> Tensor:
    """The sum of a field of all splits, (splits, B, H, J) to (B, J, H)."""
    total = field[0] if len(field) == 1 else field.sum(0)
    return total.mT.contiguous() if total.ndim == 3 else total


def check_device(tensor: Tensor) -> None:
    """Checks that the kernels can run where the tensor is.

    Raises:
        RuntimeError: if it is not on a GPU, and there is no interpreter.
    """
    if not tensor.is_cuda and not interpreted():
        raise RuntimeError(
            "torchcaps' Triton kernels run on a GPU, but the children are on "
            f"{tensor.device}; {_INTERPRET}"
        )


def run(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Sequence[Any],
    place: torch.device,
    warps: int = 4,
    registers: int | None = None,
) -> None:
    """Launches a kernel: every launch of this library's own goes through here."""
    options = {"num_warps": warps, "num_stages": STAGES}
    if registers is not None and torch.version.hip is None:
        options["maxnreg"] = registers
    on: AbstractContextManager[Any] = nullcontext()
    if place.type == "cuda" and place.index != torch.cuda.current_device():
        on = torch.cuda.device(place)
    with on:
        kernel[grid](*arguments, **options)


@cache
def processors(place: torch.device) -> int:
    """The multiprocessors of a GPU."""
    return (
        torch.cuda.get_device_properties(place).multi_processor_count
        if place.type == "cuda"
        else 1
    )
