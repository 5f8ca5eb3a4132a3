"""Vector poses in C++: many rows and few, odd sizes, several threads, against the
readable reference.
"""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_cases import Case, close

import torchcaps as tc
from torchcaps.ops import InnerProduct, Votes
from torchcaps.ops.fused import Call, NativeVotes, passes
from torchcaps.ops.naive import NaiveVotes

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}

CASES = st.builds(
    Case,
    similarity=st.sampled_from(["uniform", "inner"]),
    shared=st.booleans(),
    coordinates=st.booleans(),
    weights=st.booleans(),
    partition=st.sampled_from(["soft", "leaky", "given"]),
    hard=st.booleans(),
    batch=st.integers(1, 40),
    children=st.integers(1, 40),
    parents=st.sampled_from([1, 2, 7, 16, 19]),
    child_dim=st.sampled_from([1, 3, 8, 11, 16, 32]),
    parent_dim=st.sampled_from([4, 8, 12, 16, 24, 32]),
).filter(lambda case: not case.hard or case.partition == "soft")
FEW = st.builds(
    Case,
    similarity=st.sampled_from(["uniform", "inner"]),
    weights=st.booleans(),
    partition=st.sampled_from(["soft", "leaky"]),
    batch=st.integers(1, 5),
    children=st.sampled_from([1, 31, 40]),
    parents=st.sampled_from([1, 10, 16, 19, 40]),
    child_dim=st.sampled_from([8, 16, 24]),
    parent_dim=st.sampled_from([8, 16, 48]),
)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """Memory that nobody has written holds NaN, and there are two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("dtype", "cases"),
    [
        pytest.param(torch.float64, CASES, id="float64-many"),
        pytest.param(torch.float32, FEW, id="float32-few", marks=pytest.mark.thorough),
        pytest.param(
            torch.float32, CASES, id="float32-many", marks=pytest.mark.thorough
        ),
        pytest.param(torch.float64, FEW, id="float64-few", marks=pytest.mark.thorough),
    ],
)
def test_any_shape(dtype: torch.dtype, cases: st.SearchStrategy[Case]) -> None:
    @settings(max_examples=15, derandomize=True, deadline=None, database=None)
    @given(cases)
    def check(case: Case) -> None:
        close(
            case.results(NativeVotes, case.inputs(dtype)),
            case.results(NaiveVotes, case.inputs()),
            TOLERANCE[dtype],
        )

    check()


@pytest.mark.parametrize("batch", [1, 3, 33])
def test_a_row_spoils_no_other(batch: int) -> None:
    """NaN and infinity in one image stay there."""
    torch.manual_seed(0)
    children = torch.randn(batch + 1, 33, 8)
    transforms = torch.randn(33, 5, 8, 16)
    alpha = torch.randn(batch + 1, 5, 16)
    clean = Votes(children[:batch], transforms, backend="native").moments(
        InnerProduct(alpha[:batch])
    )
    children[batch, 4], children[batch, 7] = torch.nan, torch.inf
    spoilt = Votes(children, transforms, backend="native").moments(InnerProduct(alpha))
    torch.testing.assert_close(spoilt.sum[:batch], clean.sum, rtol=1e-5, atol=1e-5)
    assert spoilt.sum[batch].isnan().all()


@pytest.mark.parametrize("batch", [1, 20])
def test_threads_give_the_same_bits_every_time(batch: int) -> None:
    torch.manual_seed(0)
    leaves = [
        torch.randn(batch, 64, 8),
        torch.randn(64, 5, 8, 16),
        torch.randn(batch, 5, 16),
    ]

    def results() -> list[torch.Tensor]:
        children, transforms, alpha = (leaf.clone().requires_grad_() for leaf in leaves)
        moments = Votes(children, transforms, backend="native").moments(
            InnerProduct(alpha)
        )
        return [
            moments.sum,
            *torch.autograd.grad(
                moments.sum.square().sum(), (children, transforms, alpha)
            ),
        ]

    for first, second in zip(results(), results(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("batch", "children", "parents"), [(0, 3, 4), (2, 0, 4), (2, 3, 0)]
)
def test_nothing_has_zeros(batch: int, children: int, parents: int) -> None:
    alpha = torch.ones(batch, parents, 16)
    poses = torch.ones(batch, children, 1, 8)
    transforms = torch.ones(children, parents, 8, 16)
    call = Call(poses, transforms, similarity=(alpha,))
    mass = torch.ones(batch, parents)
    sums, total, *_ = passes.moments(call, leaky=False, hard=False, scatter=False)
    assert not sums.any()
    assert not total.any()
    for grad in passes.moments_backward(
        call, alpha, mass, alpha, None, leaky=False, hard=False
    ).flat():
        assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("pose", [8, 16])
def test_windows_share_children(pose: int) -> None:
    """A convolution whose windows overlap, all steps, forward and backward."""
    torch.manual_seed(0)
    layer = tc.CapsConv2d(
        3, 5, pose, 16, 3, 2, routing=tc.routing.DynamicRouting()
    ).double()
    children = torch.randn(3, 7, 7, 3, pose, dtype=torch.float64)

    def results(backend: str) -> dict[str, torch.Tensor]:
        leaf = children.clone().requires_grad_()
        with tc.use_backend(backend):
            out = layer(tc.Capsules(leaf, tc.length(leaf)))
            grads = torch.autograd.grad(
                out.pose.square().sum() + out.activation.sum(),
                (leaf, *layer.parameters()),
            )
        return {
            "pose": out.pose.detach(),
            **{f"gradient {n}": grad for n, grad in enumerate(grads)},
        }

    close(results("native"), results("naive"), 1e-9)


def test_numbers_below_the_normal_ones_are_0_in_the_kernels_alone() -> None:
    votes = Votes(torch.randn(64, 40, 4, 4), torch.randn(40, 8, 4, 4), backend="native")
    assert (
        votes.moments(weights=torch.full((64, 40), 1e-40), scatter=True).mass == 0
    ).all()
    everywhere = torch.full((2**20,), 1e-40)  # work for all threads
    assert (everywhere * 0.5 > 0).all()


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(),
    reason="this system does not say how much memory is taken",
)
@pytest.mark.parametrize("rows", [5, 20], ids=["one thread", "two threads"])
def test_where_memory_ends_there_is_an_error_and_not_the_end(rows: int) -> None:
    parents = (
        2**15
    )  # the kernel has eight blocks of vectors for their sums, 128 MiB with AVX-512
    votes = Votes(
        torch.ones(rows, 2, 1), torch.ones(2, parents, 1, 8), backend="native"
    )
    similarity = InnerProduct(torch.ones(rows, parents, 8))
    few = torch.ones(rows, 2, 8)
    Votes(torch.ones(rows, 2, 1), torch.ones(2, 2, 1, 8), backend="native").moments(
        InnerProduct(few)
    )  # starts the threads
    page = resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * page
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**25, before[1]))
    try:
        with pytest.raises(
            MemoryError, match=rf"votes \(B, I, J, H\) = \({rows}, 2, 32768, 8\)"
        ):
            votes.moments(similarity)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
