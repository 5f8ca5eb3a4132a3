"""The Triton kernels against the readable reference in float64: on a GPU, or in
Triton's interpreter.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

if (
    not torch.cuda.is_available()
):  # before anything imports triton, as torch._dynamo does
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from ops_cases import close

from torchcaps import CapsConv2d, Capsules, ClassCaps, create_routing, use_backend
from torchcaps.ops import BACKENDS, Competition, Gaussian, InnerProduct, naive
from torchcaps.ops.competition import over_parents
from torchcaps.ops.fused import Call, triton_launch
from torchcaps.ops.fused.triton_launch import Tiling
from torchcaps.testing import check_backend
from torchcaps.testing.backends import PROBLEMS

THOROUGH = pytest.mark.thorough
WINDOWS = [
    [0, 1, 2],
    [1, 2, 3],
    [3, 1, 0],
]  # of 5 children: three are shared by windows, one is in none


@pytest.fixture(params=["cuda" if torch.cuda.is_available() else "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@dataclass(frozen=True)
class Case:
    """One call: what is given, and what is asked for."""

    similarity: str = "gaussian"  # none, inner, gaussian
    partition: str = "own"  # own, leaky, given
    windows: bool = False
    shared: bool = False
    coordinates: bool = False
    weights: bool = False
    scatter: bool = False
    hard: bool = False
    sizes: tuple[int, int, int, int, int] = (2, 3, 3, 2, 3)  # N, J, M, P, D

    def __str__(self) -> str:
        flags = [
            name
            for name in (
                "windows",
                "shared",
                "coordinates",
                "weights",
                "scatter",
                "hard",
            )
            if getattr(self, name)
        ]
        return "-".join(
            [self.similarity, self.partition, *flags, "x".join(map(str, self.sizes))]
        )

    def call(
        self, device: str, dtype: torch.dtype = torch.float32, seed: int = 0
    ) -> Call:
        N, J, M, P, D = self.sizes
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device, dtype)

        sites = (
            torch.tensor(WINDOWS, dtype=torch.int32, device=device)
            if self.windows
            else None
        )
        G, I, B = (5, 3, 3 * N) if self.windows else (3, 3, N)
        similarity: tuple[Tensor, ...] = ()
        if self.similarity == "inner":
            similarity = (normal(B, J, M * D) / 2,)
        if self.similarity == "gaussian":
            similarity = (normal(B, J, M * D), normal(B, J, M * D).exp(), normal(B, J))
        return Call(
            normal(N, G, M, P),
            normal(1 if self.shared else I, J, P, D) / 2,
            normal(I, M * D) if self.coordinates else None,
            normal(N, G).sigmoid() if self.weights else None,
            2 + normal(N, G) if self.partition == "given" else None,
            sites,
            similarity,
        )


def covering(**fixed: Any) -> list[Case]:
    """Every similarity with every competition, with and without windows; the other
    options in turns.
    """
    cases = []
    for number, (similarity, partition, windows) in enumerate(
        product(("none", "inner", "gaussian"), ("own", "leaky", "given"), (False, True))
    ):
        bits = (number * 11 + number // 2) % 16
        flags = {
            name: bool(bits >> k & 1)
            for k, name in enumerate(("shared", "coordinates", "weights", "scatter"))
        }
        sizes = ((2, 3, 3, 2, 3), (1, 5, 1, 5, 4), (3, 1, 2, 1, 1), (2, 4, 4, 4, 4))[
            number % 4
        ]
        cases.append(
            Case(
                **{"sizes": sizes, **flags, **fixed},
                similarity=similarity,
                partition=partition,
                windows=windows,
            )
        )
    return cases


def representative(cases: list[Case]) -> list[Any]:
    """The cases, of which each run of the tests has the last."""
    return [*(pytest.param(case, marks=THOROUGH) for case in cases[:-1]), cases[-1]]


def gathered(table: Tensor | None, sites: Tensor | None) -> Tensor | None:
    """The children of each window, copied together: (N, G, ...) to (B, I, ...)."""
    return (
        table
        if table is None or sites is None
        else table[:, sites.long()].flatten(0, 1)
    )


def leaves(call: Call) -> Call:
    """The tensors in float64, with gradients."""
    fields = [
        None if field is None else field.double().requires_grad_() for field in call[:5]
    ]
    return Call(
        *fields,
        call.sites,
        tuple(field.double().requires_grad_() for field in call.similarity),
    )


def expected_logits(call: Call) -> tuple[Tensor, Tensor]:
    """The votes and their similarities."""
    children = gathered(call.children, call.sites)
    assert children is not None
    votes = naive.dense_votes(children, call.transforms, call.coordinates)
    if not call.similarity:
        return votes, votes.sum(-1) * 0
    kind = InnerProduct if len(call.similarity) == 1 else Gaussian
    return votes, kind(*call.similarity).logits(votes)


def upstream(tensor: Tensor, seed: int) -> Tensor:
    """A fixed gradient for one output."""
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)).to(
        tensor
    )


def named(call: Call) -> dict[str, Tensor]:
    """The tensors of a call by name."""
    fields = {
        name: field
        for name, field in zip(Call._fields[:5], call[:5], strict=True)
        if field is not None
    }
    return fields | {f"similarity{k}": field for k, field in enumerate(call.similarity)}


def gradients(outputs: dict[str, Tensor], call: Call) -> dict[str, Tensor]:
    """What autograd makes of the fixed gradients."""
    objective = sum(
        (output * upstream(output, k)).sum()
        for k, output in enumerate(outputs.values())
    )
    actual = torch.autograd.grad(
        objective, list(named(call).values()), materialize_grads=True, allow_unused=True
    )
    return dict(zip(named(call), actual, strict=True))


def check_moments(
    case: Case,
    device: str,
    tiling: Tiling | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    call = case.call(device, dtype)
    leaky = case.partition == "leaky"
    mass, total, scatter, _ = triton_launch.moments(
        call, leaky=leaky, hard=case.hard, scatter=case.scatter, tiling=tiling
    )
    actual = {"mass": mass, "sum": total} | (
        {} if scatter is None else {"scatter": scatter}
    )
    reference = leaves(call)
    votes, logits = expected_logits(reference)
    competition = Competition(leaky=leaky, hard=case.hard)
    assignment = competition.shares(
        logits, gathered(reference.log_partition, call.sites)
    )
    moments = naive.weighted_moments(
        votes, assignment, gathered(reference.weights, call.sites), case.scatter
    )
    expected = {
        name: moment for name, moment in moments._asdict().items() if moment is not None
    }
    close(actual, expected, 1e-5)

    grads = [upstream(output, k).to(mass) for k, output in enumerate(expected.values())]
    result = triton_launch.moments_backward(
        call,
        moments.mean.detach().to(mass),
        *(*grads, None, None)[:3],
        leaky=leaky,
        hard=case.hard,
        tiling=tiling,
    )
    close(named(result), gradients(expected, reference), 1e-4)
    for name, field in named(call).items():
        assert named(result)[name].dtype == field.dtype, name


@pytest.mark.parametrize("case", representative(covering()), ids=str)
@pytest.mark.usefixtures("poisoned")
def test_moments(case: Case, device: str) -> None:
    check_moments(case, device)


@pytest.mark.thorough
@pytest.mark.parametrize("partition", ["own", "given"])
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.usefixtures("poisoned")
def test_hard_moments(partition: str, blocks: bool, device: str) -> None:
    case = Case(
        partition=partition,
        hard=True,
        weights=True,
        scatter=True,
        sizes=(2, 5, 2, 2, 2),
    )
    check_moments(case, device, Tiling(parents=2) if blocks else None)


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_the_lowest_index_wins_a_tie(hard: bool, blocks: bool, device: str) -> None:
    call = Case("none", sizes=(2, 5, 1, 2, 2)).call(device)
    tiling = Tiling(parents=2) if blocks else None
    mass, *_ = triton_launch.moments(
        call, leaky=False, hard=hard, scatter=False, tiling=tiling
    )
    share = torch.tensor([1.0, 0, 0, 0, 0]) if hard else torch.full((5,), 0.2)
    torch.testing.assert_close(mass.cpu(), 3 * share.expand(2, 5))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "case",
    [
        Case(partition="leaky", weights=True, scatter=True, sizes=(2, 5, 2, 2, 2)),
        Case("inner", windows=True, coordinates=True, sizes=(1, 3, 1, 3, 2)),
        Case(
            partition="given",
            windows=True,
            weights=True,
            scatter=True,
            sizes=(1, 3, 1, 2, 2),
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("poisoned")
def test_blocks_of_parents_and_splits_of_children(case: Case, device: str) -> None:
    check_moments(case, device, Tiling(parents=2, splits=2))


@pytest.mark.thorough
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.usefixtures("poisoned")
def test_several_tiles_of_rows(scatter: bool, splits: int, device: str) -> None:
    tiling = Tiling(warps=1, numbers=2, splits=splits)
    assert (
        triton_launch.Launch(
            Case(sizes=(7, 3, 1, 2, 4)).call(device), tiling, "moments"
        ).programs.rows
        > 1
    )
    check_moments(
        Case(weights=True, scatter=scatter, sizes=(7, 3, 1, 2, 4)), device, tiling
    )


@pytest.mark.thorough
def test_tiles_large_enough_for_a_dot(device: str) -> None:
    case = Case(windows=True, weights=True, scatter=True, sizes=(2, 3, 4, 3, 2))
    assert triton_launch.Launch(case.call(device), None, "backward").tile.dot
    check_moments(case, device)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_it_is(dtype: torch.dtype, device: str) -> None:
    wide = Case("inner", sizes=(2, 3, 2, 3, 2)).call(device)
    narrow = wide._replace(
        children=wide.children.to(dtype), transforms=wide.transforms.to(dtype)
    )
    rounded = wide._replace(
        children=narrow.children.float(), transforms=narrow.transforms.float()
    )
    options = {"leaky": False, "hard": False}
    mass, total, *_ = triton_launch.moments(narrow, scatter=False, **options)
    expected = triton_launch.moments(rounded, scatter=False, **options)
    assert mass.dtype == total.dtype == torch.float32
    torch.testing.assert_close((mass, total), expected[:2])
    gradients_of_narrow = triton_launch.moments_backward(
        narrow, total, mass, total, None, **options
    )
    assert (
        gradients_of_narrow.children.dtype
        == gradients_of_narrow.transforms.dtype
        == dtype
    )
    exact = triton_launch.moments_backward(rounded, total, mass, total, None, **options)
    close(
        {"children": gradients_of_narrow.children}, {"children": exact.children}, 1e-2
    )


@pytest.mark.thorough
def test_double_precision(device: str) -> None:
    call = Case(scatter=True).call(device, torch.float64)
    mass, _, scatter, _ = triton_launch.moments(
        call, leaky=False, hard=False, scatter=True
    )
    votes, logits = expected_logits(call)
    expected = naive.weighted_moments(votes, logits.softmax(-1), None, True)
    torch.testing.assert_close(
        (mass, scatter), (expected.mass, expected.scatter), rtol=1e-12, atol=1e-12
    )


@pytest.mark.thorough
@pytest.mark.parametrize("splits", [1, 3])
def test_scatter_does_not_cancel(splits: int, device: str) -> None:
    """Votes at 100, spread by 0.01."""
    I = 40
    children = torch.full((1, I, 1, 1), 100.0) + 0.01 * torch.randn(
        1, I, 1, 1, generator=torch.manual_seed(0)
    )
    call = Call(children.to(device), torch.ones(1, 2, 1, 1, device=device))
    _, total, scatter, _ = triton_launch.moments(
        call, leaky=False, hard=False, scatter=True, tiling=Tiling(splits=splits)
    )
    exact = children.double().flatten()
    expected = (exact - exact.mean()).square().sum() / 2
    assert scatter is not None
    torch.testing.assert_close(
        scatter.cpu().double(), expected.expand(1, 2, 1), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(
        total.cpu().double(), exact.sum().div(2).expand(1, 2, 1), rtol=1e-6, atol=0
    )


@pytest.mark.thorough
def test_a_parent_without_mass_has_zero_moments_and_finite_gradients(
    device: str,
) -> None:
    call = Case(weights=True, scatter=True).call(device)
    assert call.weights is not None
    call.weights.zero_()
    mass, total, scatter, _ = triton_launch.moments(
        call, leaky=False, hard=False, scatter=True
    )
    assert scatter is not None
    for moment in (mass, total, scatter):
        assert (moment == 0).all()
    gradients_found = triton_launch.moments_backward(
        call, total, mass + 1, total + 1, scatter + 1, leaky=False, hard=False
    )
    assert all(field.isfinite().all() for field in named(gradients_found).values())


def check_scores(
    case: Case, device: str, reduced: bool, tiling: Tiling | None = None
) -> None:
    call = case.call(device)
    leaky = case.partition == "leaky"
    actual = triton_launch.scores(call, leaky=leaky, reduced=reduced, tiling=tiling)
    reference = leaves(call)
    _, logits = expected_logits(reference)
    expected = {"scores": over_parents(logits, leaky) if reduced else logits}
    close({"scores": actual}, expected, 1e-5)
    grad = upstream(expected["scores"], 0).to(actual)
    result = triton_launch.scores_backward(
        call, actual, grad, leaky=leaky, reduced=reduced, tiling=tiling
    )
    close(named(result), gradients(expected, reference), 1e-4)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    "case",
    representative(
        [tensor for tensor in covering(weights=False) if tensor.partition != "given"][
            ::2
        ]
    ),
    ids=str,
)
@pytest.mark.usefixtures("poisoned")
def test_scores(case: Case, reduced: bool, device: str) -> None:
    check_scores(case, device, reduced)


@pytest.mark.thorough
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.usefixtures("poisoned")
def test_scores_of_windows_in_blocks(reduced: bool, device: str) -> None:
    case = Case(
        partition="leaky", windows=True, coordinates=True, sizes=(1, 3, 2, 2, 1)
    )
    check_scores(case, device, reduced, Tiling(parents=2, splits=2))


@pytest.mark.thorough
@settings(max_examples=5, deadline=None)
@given(
    sizes=st.tuples(*(st.integers(1, high) for high in (3, 6, 4, 5, 5))),
    similarity=st.sampled_from(["none", "inner", "gaussian"]),
    partition=st.sampled_from(["own", "leaky", "given"]),
    flags=st.tuples(*[st.booleans()] * 5),
)
def test_random_shapes(
    sizes: Any, similarity: str, partition: str, flags: tuple[bool, ...]
) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    check_moments(Case(similarity, partition, *flags, sizes=sizes), device)


def test_an_empty_batch(device: str) -> None:
    call = Case(scatter=True).call(device)
    empty = call._replace(
        children=call.children[:0],
        similarity=tuple(field[:0] for field in call.similarity),
    )
    mass, total, scatter, _ = triton_launch.moments(
        empty, leaky=False, hard=False, scatter=True
    )
    assert (mass.shape, total.shape) == ((0, 3), (0, 3, 9))
    grads = triton_launch.moments_backward(
        empty, total, mass, total, scatter, leaky=False, hard=False
    )
    assert (grads.transforms == 0).all()


@pytest.mark.thorough
@pytest.mark.usefixtures("poisoned")
@pytest.mark.filterwarnings(
    "ignore:All-NaN slice encountered:RuntimeWarning"
)  # NumPy's, which interprets
def test_what_every_backend_does(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest problem, and all that is empty; the cases above have the sizes."""
    monkeypatch.setattr("torchcaps.testing.backends.PROBLEMS", PROBLEMS[:1])
    assert check_backend(BACKENDS["triton"], device=device)


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that an operation gave."""

    numbers = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if (
            isinstance(out, Tensor) and out.dtype != torch.uint8
        ):  # bytes: copies of the interpreter
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.thorough
@pytest.mark.parametrize("tiling", [None, Tiling(parents=2)], ids=["whole", "blocks"])
def test_nothing_grows_with_children_times_parents(
    tiling: Tiling | None, device: str
) -> None:
    B = 8
    I = 12
    J = 4
    M = 1
    P = 2
    D = 2
    call = Case(sizes=(B, J, M, P, D)).call(device)
    call = call._replace(
        children=torch.randn(B, I, M, P, device=device),
        transforms=torch.randn(I, J, P, D, device=device),
    )
    with Largest() as largest:
        mass, total, scatter, _ = triton_launch.moments(
            call, leaky=False, hard=False, scatter=True, tiling=tiling
        )
        triton_launch.moments_backward(
            call, total, mass, total, scatter, leaky=False, hard=False, tiling=tiling
        )
    assert 0 < largest.numbers < B * I * J


ALONE = """
import torch
from torchcaps.ops.fused import Call, triton_launch
call = Call(torch.ones(1, 2, 1, 2), torch.ones(2, 2, 2, 2))
for run in (triton_launch.prepare, lambda: triton_launch.moments(call, leaky=False, hard=False, scatter=False)):
    try:
        run()
    except RuntimeError as error:
        print(error)
"""


def without_interpreter(program: str) -> str:
    """What a Python process prints that has neither a GPU nor the interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.thorough
def test_says_what_is_missing() -> None:
    output = without_interpreter(ALONE)
    assert output.count("TRITON_INTERPRET=1") == 2
    assert "cpu" in output


DRIVER = """
import re, subprocess, tempfile, torch, triton
from pathlib import Path
from triton.backends.compiler import GPUTarget
from torchcaps.ops.fused import triton_launch

class Driver:
    get_current_target = lambda self: GPUTarget("cuda", CAPABILITY, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0

def compiled(self, *arguments, grid, warmup, run=triton.JITFunction.run, **options):
    kernel = run(self, *arguments, grid=grid, warmup=True, **options)
    kernel = kernel.result() if hasattr(kernel, "result") else kernel
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(kernel.asm["cubin"])
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    lanes = 32 * options["num_warps"]
    kind = "matrices" if getattr(arguments[-1], "M", 1) > 1 else "vectors"
    sizes = re.findall("(?:REG|STACK|SHARED|LOCAL):([0-9]+)", usage)
    print(self.fn.__name__, kind, lanes, *sizes)

triton.runtime.driver.set_active(Driver())
triton.JITFunction.run = compiled
triton_launch.check_device = lambda tensor: None
triton_launch.processors = lambda place: 132
"""

COMPILE = """
from torchcaps.ops import Windows
from torchcaps.ops.fused.call import Agreement, EMOptions
from torchcaps.ops.fused import Call, triton_layers

def step(call, scatter, **options):
    mass, total, second, _ = triton_launch.moments(call, hard=False, scatter=scatter, **options)
    triton_launch.moments_backward(call, total, mass, total, second, hard=False, **options)
    partition = triton_launch.scores(call, reduced=True, **options)
    triton_launch.scores_backward(call, partition, partition, reduced=True, **options)

settings = Agreement(steps=3, constant=1.0, accumulate=True, leaky=False)
mixture = EMOptions((0.5, 1.0), (1.0,), 5e-4, 1.0, 1.0, True, 0.0)

def agree(votes):
    agreed = triton_layers.agreement(votes, None, settings)
    triton_layers.agreement_backward(votes, None, settings, agreed, agreed.pose, None)

def mix(votes, seen):
    beta = torch.zeros(votes.transforms.shape[1])
    mixed = triton_layers.mixture(votes, seen, beta, beta, mixture)
    upstream = [mixed.mean, mixed.logit, None, None, None]
    triton_layers.mixture_backward(votes, seen, beta, mixed, upstream, mixture)

def single_steps(votes, rows, J, H):
    field = torch.zeros(rows, J, H)
    for similarity in ((field,), (field, field, field[..., 0].contiguous())):
        call = votes._replace(similarity=similarity)
        step(call, len(similarity) == 3, leaky=len(similarity) == 1)
        step(call._replace(log_partition=votes.weights), len(similarity) == 3, leaky=False)

def layer(M, P, D, types, parents):
    # windows of 3 x 3 children of an image of 14 x 14
    windows, here = Windows((14, 14), (3, 3), (2, 2), (0, 0)), torch.device("cpu")
    sites, seen = windows.children(types, here), windows.seen(types, here)
    G, I = 14 * 14 * types, 9 * types
    children, transforms = torch.zeros(1, G, M, P), torch.zeros(I, parents, P, D)
    return Call(children, transforms, None, torch.zeros(1, G), sites=sites), seen

conv, seen = layer(4, 4, 4, 32, 32)  # ConvCaps1
single_steps(conv, 36, 32, 16)
mix(conv, seen)
small, seen = layer(4, 4, 4, 8, 16)  # MatrixCapsNet 64-8-16
mix(small, seen)
agree(small._replace(weights=None))
mix(layer(4, 4, 4, 16, 5)[0], None)  # its classes
mix(*layer(1, 8, 16, 8, 16))  # a convolution with vectors
digits = Call(torch.zeros(128, 1152, 1, 8), torch.zeros(1152, 10, 8, 16))
agree(digits)
single_steps(digits._replace(weights=torch.zeros(128, 1152)), 128, 10, 16)
"""

NAMES = {
    *("moments_kernel", "scores_kernel", "moments_backward_kernel"),
    *("scores_backward_kernel", "merge_kernel", "mean_grads_kernel", "combine_kernel"),
    *("agreed_kernel", "agreed_backward_kernel", "agreement_backward_kernel"),
    *("mixed_kernel", "mixed_backward_kernel"),
}
WARPS = {
    ("scores_kernel", "matrices"): 20,
    ("scores_kernel", "vectors"): 12,
    ("mean_grads_kernel", "matrices"): 12,
    ("scores_backward_kernel", "matrices"): 12,
    ("agreement_backward_kernel", "matrices"): 12,
}
"""How many warps of 64 a processor runs at once, at least: kernels that are not here
keep the fields of two steps, or of two rows, in registers, and run 8.
"""


def usages_of(program: str, capability: int) -> list[tuple[Any, ...]]:
    """The kernels that a program compiles with :data:`DRIVER`: name, kind, lanes,
    registers of a lane, bytes of stack, shared and local memory.
    """
    backend = pytest.importorskip("triton.backends.nvidia")
    if not (Path(backend.__file__).parent / "bin" / "ptxas").exists():
        pytest.skip("this Triton comes without ptxas")
    driver = DRIVER.replace("CAPABILITY", str(capability))
    lines = without_interpreter(driver + program).splitlines()
    return [
        (kernel, kind, *map(int, usage))
        for kernel, kind, *usage in map(str.split, lines)
    ]


def warps_at_once(lanes: int, registers: int, shared: int) -> int:
    """How many warps one processor of an H100 runs at once.

    Args:
        lanes: lanes of a program, 32 a warp.
        registers: registers of a lane. A processor has 65,536, and gives them to a
            warp in units of 256.
        shared: bytes of shared memory of a program. A processor has 227 KiB, and takes
            one for itself.
    """
    warps = lanes // 32
    by_registers = 2**16 // (-(-registers * 32 // 256) * 256) // warps
    return warps * min(by_registers, 64 // warps, 32, 227 * 2**10 // (shared + 2**10))


def test_warps_at_once() -> None:
    """As NVIDIA's occupancy calculator has it for compute capability 9.0."""
    assert warps_at_once(128, 128, 1024) == 16
    assert warps_at_once(128, 129, 1024) == 12
    assert warps_at_once(32, 255, 1024) == 8
    assert warps_at_once(32, 16, 0) == 32
    assert warps_at_once(256, 32, 100 * 2**10) == 16


@pytest.mark.thorough
def test_compiles_for_a_gpu_without_spilling_registers() -> None:
    """Every kind of tile, with the layers of docs/speed.md, for compute capability 9.0,
    with no GPU needed.
    """
    usages = usages_of(COMPILE, 90)
    assert {kernel for kernel, *_ in usages} == NAMES
    for line in usages:
        kernel, kind, lanes, registers, stack, shared, local = line
        assert stack == local == 0, line
        least = WARPS.get((kernel, kind), 8)
        assert warps_at_once(lanes, registers, shared) >= least, line


@pytest.mark.thorough
@pytest.mark.parametrize(
    "routing",
    [
        "dynamic",
        "em",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("kmeans", "euclidean")
        ),
    ],
)
def test_layers(routing: str, device: str) -> None:
    """A convolutional and a class layer on this backend, values and gradients, through
    the operators.
    """
    torch.manual_seed(0)
    conv = CapsConv2d(
        2, 3, (2, 2), (2, 2), 3, 2, padding=1, routing=create_routing(routing, steps=2)
    ).to(device)
    classes = ClassCaps(
        3, 2, (2, 2), (2, 2), routing=create_routing(routing, steps=2)
    ).to(device)
    children = Capsules(
        torch.randn(1, 2, 3, 2, 2, 2, device=device),
        torch.rand(1, 2, 3, 2, device=device),
    )
    results = {}
    for backend in ("naive", "triton"):
        with use_backend(backend):
            parents = classes(conv(children))
        weights = [*conv.parameters(), *classes.parameters()]
        loss = parents.pose.square().sum() + parents.activation.square().sum()
        gradients = torch.autograd.grad(loss, weights, materialize_grads=True)
        results[backend] = {"pose": parents.pose, "activation": parents.activation}
        results[backend] |= {
            f"d{number}": gradient for number, gradient in enumerate(gradients)
        }
    close(results["triton"], results["naive"], 1e-3)
