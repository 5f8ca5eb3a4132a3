"""Folded routing in Triton, against stored votes in float64: on a GPU, or in Triton's
interpreter.
"""

import os
from typing import Any

import pytest
import torch

if (
    not torch.cuda.is_available()
):  # before anything imports triton, as torch._dynamo does
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from test_folded import GIVEN, SIZES, Problem, assert_alike, routing_of, seen
from test_triton_kernels import Largest, usages_of, warps_at_once

import torchcaps as tc
from torchcaps.ops import InnerProduct
from torchcaps.ops.fused import triton_folded

THOROUGH = pytest.mark.thorough
SLOW = pytest.mark.slow
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES |= {
    "one type": (2, 6, 1, 1, 4, 3, 3),
    "few": (2, 5, 2, 1, 4, 3, 3),
    "blocks of parents": (1, 5, 1, 1, 100, 17, 3),
    "many parents": (1, 3, 2, 1, 4, 70, 2),
    "many places": (1, 70, 1, 1, 3, 2, 4),
}
MOMENTS = [(size, given) for size in SIZES if size != "matrices" for given in GIVEN]
ALWAYS = {
    ("few", ("bias", "weights")),
    ("blocks of parents", ("coordinates", "mask", "evidence")),
}


@pytest.mark.parametrize(
    ("size", "given"),
    [pytest.param(*case, marks=() if case in ALWAYS else THOROUGH) for case in MOMENTS],
)
@pytest.mark.usefixtures("poisoned")
def test_moments_are_those_of_stored_votes(size: str, given: tuple[str, ...]) -> None:
    problem = Problem(size, *given)
    results = {}
    for backend, dtype in (("naive", torch.float64), ("triton", torch.float32)):
        votes = problem.votes(backend, dtype).restricted(leaky="bias" in given)
        B, _, J, H = votes.shape
        alpha = torch.linspace(-1, 1, B * J * H).view(B, J, H).sin()
        similarity = InnerProduct(alpha.to(votes.children))
        weights = problem.leaves.get("weights")
        if weights is not None:
            weights = weights.to(votes.children)
        results[backend] = []
        for compared in (None, similarity):
            moments = votes.moments(compared, weights)
            results[backend] += [moments.mass, moments.sum]
        results[backend] += problem.gradients(list(results[backend]), torch.float64)
    assert_alike(results["triton"], results["naive"], 1e-5)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("kmeans, learned", ("evidence", "coordinates")),
        *(
            pytest.param(name, given, marks=THOROUGH)
            for name, given in (
                ("attention", ("bias",)),
                ("dynamic", ("evidence",)),
                ("dynamic", ("bias", "coordinates")),
            )
        ),
    ],
)
def test_routings_are_those_of_stored_votes(
    name: str, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchcaps.routing.fast.agreement._MANY", 0)
    problem = Problem("few", *given)
    results = {}
    for backend, dtype in (("naive", torch.float64), ("triton", torch.float32)):
        routing = routing_of(name, problem).to(dtype)
        results[backend] = seen(routing(problem.votes(backend, dtype)))
        results[backend] += problem.gradients(list(results[backend]), torch.float64)
    assert_alike(results["triton"], results["naive"], 1e-4)


@pytest.mark.thorough
def test_second_derivatives() -> None:
    problem = Problem("usual", "evidence", "bias")
    results = {}
    for backend, dtype in (("naive", torch.float64), ("triton", torch.float32)):
        routing = routing_of("kmeans", problem).to(dtype)
        pose = routing(problem.votes(backend, dtype)).pose
        leaves = list(problem.leaves.values())
        first = torch.autograd.grad(pose.square().sum(), leaves, create_graph=True)
        results[backend] = problem.gradients(list(first), torch.float64)
    assert_alike(results["triton"], results["naive"], 1e-3)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_absent_child_is_not_read_and_nan_stays_in_its_example() -> None:
    problem = Problem("one type", "mask")
    routing = routing_of("kmeans, learned", problem).float()
    expected = routing(problem.votes("triton", torch.float32)).pose
    absent = ~problem.mask
    with torch.no_grad():
        problem.leaves["children"][absent] = torch.nan
    assert routing(problem.votes("triton", torch.float32)).pose.equal(expected)
    with torch.no_grad():
        problem.leaves["children"][0, (~absent[0]).nonzero()[0]] = torch.nan
    pose = routing(problem.votes("triton", torch.float32)).pose
    assert pose[0].isnan().all()
    assert pose[1].equal(expected[1])


@pytest.mark.parametrize("slots", [5, pytest.param(33, marks=THOROUGH)])
def test_slots_normalise_without_a_copy(slots: int) -> None:
    results = {}
    features = torch.randn(2, 21, 12, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 21) < 0.8
    for name, dtype in (("naive", torch.float64), ("triton", torch.float32)):
        torch.manual_seed(1)
        routing = tc.create_routing("slots", steps=2)
        layer = tc.Slots(slots, dim=10, features=12, routing=routing).double().eval()
        torch.nn.init.normal_(layer.routing.norm_child.weight)
        torch.nn.init.normal_(layer.routing.norm_child.bias)
        layer = layer.to(DEVICE, dtype)
        with tc.ops.use_backend(name):
            answer = layer(features.to(DEVICE, dtype), mask.to(DEVICE))
        total = answer.pose.sin().sum() + answer.activation.square().sum()
        inputs = [features, *layer.parameters()]
        grads = torch.autograd.grad(total, inputs, allow_unused=True)
        present = [grad.flatten().double().cpu() for grad in grads if grad is not None]
        results[name] = [answer.pose, answer.activation, torch.cat(present)]
    expected = [result.cpu() for result in results["naive"]]
    assert_alike(results["triton"], expected, 1e-5)


def operands(dtype: torch.dtype, places: int = 5) -> list[Any]:
    """The arguments of the operator, with poses of that dtype."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE)

    numbers = torch.cat([torch.ones(1, places), torch.rand(1, places)]).to(DEVICE)
    poses, query = normal(1, places, 2, 6), normal(9, 1, 2, 8).permute(1, 2, 0, 3)
    weights = normal(1, places, 2).sigmoid()
    return [poses.to(dtype), numbers, weights, query, True, 1e-5]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_it_is(dtype: torch.dtype) -> None:
    poses, *others = operands(dtype)
    results = []
    for field in (poses, poses.float()):
        field.requires_grad_()
        sums, _ = torch.ops.torchcaps.pooled(field, *others)
        assert sums.dtype == torch.float32
        (grad,) = torch.autograd.grad(sums.sin().sum(), field)
        assert grad.dtype == field.dtype
        results.append((sums, grad))
    (sums, grad), (expected, exact) = results
    assert sums.equal(expected)
    torch.testing.assert_close(grad.float(), exact, rtol=1e-2, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [(), (17, 100)], ids=["one block", "blocks"])
def test_compilers_know_the_operator(size: tuple[int, ...]) -> None:
    arguments = operands(torch.float32)
    if size:
        J, Q = size
        arguments[0] = torch.randn(1, 5, 2, Q, device=DEVICE)
        arguments[3] = torch.randn(1, 2, J, Q + 2, device=DEVICE)
    for place in (0, 2, 3):
        arguments[place].requires_grad_()
    torch.library.opcheck(triton_folded._run_pooled, tuple(arguments))


@pytest.mark.thorough
def test_a_head_compiles_in_one_piece() -> None:
    torch.manual_seed(0)
    head = tc.ClassCaps(3, 4, 6, 5, routing=tc.create_routing("kmeans")).to(DEVICE)
    children = tc.Capsules(torch.randn(2, 2, 3, 3, 6), torch.rand(2, 2, 3, 3))
    children = tc.Capsules(*(field.to(DEVICE) for field in children))
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    with tc.use_backend("triton"):
        torch.testing.assert_close(compiled(children), head(children))


def test_nothing_grows_with_children_times_parents() -> None:
    places = 200
    poses, numbers, weights, query, *options = operands(torch.float32, places)
    poses.requires_grad_()
    with Largest() as largest:
        sums, _ = torch.ops.torchcaps.pooled(poses, numbers, weights, query, *options)
        sums.sum().backward()
    pairs = 2 * places * query.shape[2]
    assert largest.numbers == poses.numel() < pairs


COMPILE = """
from torchcaps.ops.fused import triton_pooled

def step(B, N, T, Q, J, E=1, weights=False, epsilon=None, leaky=False, dtype=torch.float32):
    places = torch.zeros(E, N) if E > 1 else None
    weights = torch.zeros(B, N, T) if weights else None
    poses, query = torch.zeros(B, N, T, Q, dtype=dtype), torch.zeros(B, T, J, Q + E)
    pooling = triton_pooled.Pooling(poses, places, weights, query, leaky, epsilon)
    sums, partition = triton_pooled.pooled(pooling)
    triton_pooled.pooled_backward(pooling, partition, sums)

step(128, 49, 32, 8, 10, 3, True)
step(8, 196, 32, 8, 100, leaky=True, dtype=torch.bfloat16)
step(64, 1024, 1, 64, 7, epsilon=1e-5)
step(64, 196, 1, 128, 24, epsilon=1e-5)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("capability", [90, pytest.param(80, marks=SLOW)])
def test_compiles_for_a_gpu_without_spilling_registers(capability: int) -> None:
    """Heads and slots as they are trained, with no GPU needed."""
    usages = usages_of(COMPILE, capability)
    assert {kernel for kernel, *_ in usages} == {
        *("partition_kernel", "sums_kernel"),
        *("children_backward_kernel", "backward_kernel"),
    }
    for line in usages:
        _, _, lanes, registers, stack, shared, local = line
        # ptxas spills up to eight registers to run two programs at once.
        assert stack <= 32, line
        assert local == 0, line
        assert warps_at_once(lanes, registers, shared) >= 8, line
