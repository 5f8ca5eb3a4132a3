"""All steps of a routing in Triton against the same steps from stored votes in
float64.
"""

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

if (
    not torch.cuda.is_available()
):  # before anything imports triton, as torch._dynamo does
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from ops_cases import close

from tests.routing.by_the_book import dynamic_routing
from torchcaps import CapsConv2d, CapsLinear, Capsules, Votes, use_backend
from torchcaps.ops import PARENTS, GridWide, InnerProduct, Windows
from torchcaps.ops.fused import Call, triton_layers
from torchcaps.ops.fused.call import Agreement, EMOptions
from torchcaps.routing import (
    DynamicRouting,
    EMRouting,
)

THOROUGH = pytest.mark.thorough
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WINDOWS = Windows(
    (5, 4),
    (3, 2),
    (1, 2),
    (0, 0),
)
TYPES = 2


@dataclass(frozen=True)
class Sizes:
    """Of one layer, and what its votes have."""

    N: int = 3
    I: int = 5
    J: int = 3
    M: int = 1
    P: int = 4
    D: int = 5
    windows: bool = False
    shared: bool = False
    coordinates: bool = False
    weights: bool = False

    def call(self, dtype: torch.dtype = torch.float32) -> Call:
        """Random votes."""
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(DEVICE, dtype)

        sites = None
        G = self.I
        I = self.I
        if self.windows:
            sites = WINDOWS.children(TYPES, torch.device(DEVICE))
            G = WINDOWS.padded * TYPES
            I = sites.shape[1]
        return Call(
            normal(self.N, G, self.M, self.P),
            normal(1 if self.shared else I, self.J, self.P, self.D),
            normal(I, self.M * self.D) if self.coordinates else None,
            normal(self.N, G).sigmoid() if self.weights else None,
            sites=sites,
        )


def leaf(tensor: Tensor | None) -> Tensor | None:
    """The same numbers in float64 with gradients."""
    return None if tensor is None else tensor.double().requires_grad_()


def random_like(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Fixed gradients for outputs."""
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(tensor.shape, generator=generator).to(tensor.device, dtype)
        for tensor in tensors
    ]


def named(tensors: Any) -> dict[str, Tensor]:
    """By number, without those that are not there."""
    there = [tensor for tensor in tensors if tensor is not None]
    return {f"tensor{number}": tensor for number, tensor in enumerate(there)}


AGREEMENT = [
    (Sizes(), {}),
    *(
        pytest.param(sizes, options, marks=THOROUGH)
        for sizes, options in (
            (Sizes(), {"steps": 1}),
            (Sizes(), {"steps": 2, "accumulate": False, "leaky": True}),
            (Sizes(J=7, P=3, D=9), {"steps": 5}),
            (Sizes(M=2, D=3, windows=True, coordinates=True), {"leaky": True}),
            (Sizes(shared=True), {"steps": 4, "accumulate": False}),
        )
    ),
]


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=THOROUGH)], ids=str
)
@pytest.mark.parametrize(("sizes", "options"), AGREEMENT, ids=str)
@pytest.mark.usefixtures("poisoned")
def test_agreement(sizes: Sizes, options: dict[str, Any], dtype: torch.dtype) -> None:
    options = {"steps": 3, "accumulate": True, "leaky": False, **options}
    settings = Agreement(constant=1.0, **options)
    call = sizes.call(dtype)
    shape = sizes.J, sizes.M * sizes.D
    bias = torch.linspace(-1, 1, shape[0] * shape[1], dtype=dtype, device=DEVICE)
    bias = bias.view(shape)
    actual = triton_layers.agreement(call, bias, settings)

    leaves = [leaf(tensor) for tensor in (*call[:3], bias)]
    votes = Votes(*leaves[:3], backend="naive", sites=call.sites)
    routed = dynamic_routing(votes, bias=leaves[3], **options)
    outputs = [routed.pose]
    if isinstance(routed.similarity, InnerProduct):
        outputs.append(routed.similarity.alpha)
        close({"alpha": actual.alphas[-1].mT}, {"alpha": outputs[1]}, 1e-5)
    close({"pose": actual.pose}, {"pose": routed.pose}, 1e-5)

    upstream = random_like(outputs, dtype)
    there = [tensor for tensor in leaves if tensor is not None]
    expected = torch.autograd.grad(
        outputs, there, [tensor.double() for tensor in upstream]
    )
    alpha = upstream[1].mT.contiguous() if len(upstream) > 1 else None
    grads = triton_layers.agreement_backward(
        call, bias, settings, actual, upstream[0], alpha
    )
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    close(named(grads), named(expected), tolerance)


MIXTURE = [
    (
        Sizes(N=2, J=4, M=2, P=3, D=3, windows=True, weights=True),
        {"standardise": True, "steps": 2},
    ),
    *(
        pytest.param(sizes, options, marks=THOROUGH)
        for sizes, options in (
            (Sizes(weights=True), {}),
            (Sizes(weights=True), {"steps": 1}),
            (Sizes(J=7, P=3, D=9), {"cost_floor": 0.3, "standardise": True}),
            (Sizes(coordinates=True), {"mass_scale": 3.0, "cost_scale": 0.5}),
            (Sizes(J=4, windows=True, weights=True), {"standardise": True}),
            (Sizes(windows=True), {"steps": 2}),
            (Sizes(M=2, windows=True, shared=True, coordinates=True), {}),
        )
    ),
]


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=THOROUGH)], ids=str
)
@pytest.mark.parametrize(("sizes", "options"), MIXTURE, ids=str)
@pytest.mark.usefixtures("poisoned")
def test_mixture(sizes: Sizes, options: dict[str, Any], dtype: torch.dtype) -> None:
    options = dict(options)
    steps = options.pop("steps", 3)
    call = sizes.call(dtype)
    lambdas = tuple(0.5 + 0.3 * step for step in range(steps))
    sharpness = tuple(0.7 + 0.1 * step for step in range(steps - 1))
    routing = EMRouting(
        steps, lambda step, _: lambdas[step], 1.0, sharpness=sharpness, **options
    )
    costs = torch.linspace(-0.1, 0.2, 2 * sizes.J, dtype=dtype, device=DEVICE)
    costs = costs.view(2, -1)
    I = call.sites.shape[1] if call.sites is not None else sizes.I
    scale = routing.cost_scale
    if routing.mass_scale is not None:
        scale = scale * routing.mass_scale * sizes.J / I
    mixture = EMOptions(
        lambdas,
        sharpness,
        routing.variance_floor,
        scale,
        routing.activation_scale,
        routing.standardise,
        routing.cost_floor,
    )
    competition = PARENTS
    seen = None
    if sizes.windows:
        competition = GridWide(windows=WINDOWS, types=TYPES)
        seen = competition.seen(torch.device(DEVICE))
    actual = triton_layers.mixture(call, seen, *costs, mixture)

    leaves = [leaf(tensor) for tensor in (*call[:4], *costs)]
    votes = Votes(*leaves[:3], competition, backend="naive", sites=call.sites)
    weights, beta_u, beta_a = leaves[3:]
    routed = torch.func.functional_call(
        routing, {"unit_cost": beta_u, "activation_cost": beta_a}, (votes, weights)
    )
    close({"mean": actual.mean}, {"mean": routed.pose}, 1e-5)
    assert routed.logit is not None
    close({"logit": actual.logit}, {"logit": routed.logit}, 1e-5)

    last = () if routed.similarity is None else routed.similarity.tensors
    outputs = [routed.pose, routed.logit, *last]
    upstream = random_like(outputs, dtype)
    there = [tensor for tensor in leaves if tensor is not None]
    expected = torch.autograd.grad(
        outputs, there, [tensor.double() for tensor in upstream]
    )
    upstream = (*upstream, None, None, None)[:5]
    grads = triton_layers.mixture_backward(
        call, seen, costs[0], actual, upstream, mixture
    )
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    close(named(grads), named(expected), tolerance)


def test_where_a_child_is_seen_is_where_the_windows_have_it() -> None:
    """Every place of every window is found again, and nothing else."""
    device = torch.device("cpu")
    for windows in (
        WINDOWS,
        Windows((7,), (3,), (2,), (1,)),
        Windows(
            (4, 3, 5),
            (2, 1, 3),
            (1, 2, 2),
            (1, 0, 1),
        ),
    ):
        children = windows.children(TYPES, device).flatten()
        seen = windows.seen(TYPES, device)
        assert len(seen) == windows.padded * TYPES
        for child, places in enumerate(seen):
            places = places[places >= 0]
            assert (children[places] == child).all()
            assert len(places) == (children == child).sum()


@THOROUGH
@pytest.mark.parametrize("steps", [1, 3])
def test_gradients_that_are_differentiated_again(steps: int) -> None:
    """Through the operators, as layers call them; what the last step compared with,
    too.
    """
    torch.manual_seed(0)
    double = {"dtype": torch.float64, "device": DEVICE}
    routing = EMRouting.preset("standardised", steps=steps)
    conv = CapsConv2d(
        2,
        3,
        (2, 2),
        (2, 2),
        3,
        2,
        routing=routing,
    ).to(**double)
    linear = CapsLinear(6, 3, 4, 5, routing=DynamicRouting(steps=steps, bias=True))
    linear = linear.to(**double)
    grid = torch.randn(1, 5, 5, 2, 2, 2, **double, requires_grad=True)
    vectors = torch.randn(3, 6, 4, **double, requires_grad=True)
    leaves = [*conv.parameters(), *linear.parameters(), grid, vectors]
    results = {}
    for backend in ("naive", "triton"):
        with use_backend(backend):
            parents = conv(Capsules(grid, torch.ones(grid.shape[:4], **double)))
            routed = linear.route(Capsules(vectors, torch.ones(3, 6, **double)))
            shares = routed.assignment
        objective = parents.pose.square().sum() + parents.activation.sum()
        objective = objective + routed.pose.pow(3).sum() + shares.square().sum()
        first = torch.autograd.grad(objective, leaves, create_graph=True)
        again = sum(gradient.square().sum() for gradient in first)
        second = torch.autograd.grad(again, leaves)
        results[backend] = named([parents.pose, parents.activation, *first, *second])
    close(results["triton"], results["naive"], 1e-9)


@pytest.mark.parametrize("routing", ["em", "dynamic"])
def test_a_checkpoint_gives_saved_tensors_out_once(routing: str) -> None:
    layer = CapsLinear(6, 3, (2, 2), (2, 2), routing=routing).to(DEVICE)
    pose = torch.randn(2, 6, 2, 2, device=DEVICE, requires_grad=True)
    with use_backend("triton"):
        expected = torch.autograd.grad(layer(pose).pose.square().sum(), pose)
        parents = checkpoint(layer, pose, use_reentrant=False)
        actual = torch.autograd.grad(parents.pose.square().sum(), pose)
    torch.testing.assert_close(actual, expected)


@THOROUGH
def test_evidence_is_not_passed_over() -> None:
    """All steps at once would route the votes alone."""
    routing = EMRouting.preset("soft", evidence=True)
    layer = CapsLinear(6, 3, (2, 2), (2, 2), routing=routing).to(DEVICE)
    children = Capsules(
        torch.randn(2, 6, 2, 2, device=DEVICE), torch.ones(2, 6, device=DEVICE)
    )
    parents = []
    for backend in ("naive", "triton"):
        with use_backend(backend):
            parents.append(layer(children)._asdict())
    close(parents[1], parents[0], 1e-4)
