"""Derivatives beyond one backward pass: the right ones on every backend, or an error
that names the way out.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import torchcaps as tc
from torchcaps.ops import (
    BACKENDS,
    Gaussian,
    Given,
    InnerProduct,
    Similarity,
    Votes,
    use_backend,
)
from torchcaps.testing.backends import Cauchy

N = 2
G = 4
J = 3
M = 2
P = 2
D = 2
H = M * D

SIMILARITIES: dict[str, Callable[[Tensor], Similarity | None]] = {
    "uniform": lambda parents: None,
    "inner": InnerProduct,
    "gaussian": lambda parents: Gaussian(parents, parents.exp(), parents.sum(-1)),
    "given": lambda parents: Given(parents.mT),
    "own": lambda parents: Cauchy(
        parents, parents[0, :, 0].expand(G, J), parents[0, :, 0]
    ),
}
CALLS = [
    (backend, similarity)
    for backend in ("chunked", "native")  # triton shares all of it with native
    for similarity in SIMILARITIES
    if similarity not in ("own", "given") or backend == "chunked"
]
every_backend = pytest.mark.parametrize("backend", sorted(BACKENDS))
without_votes = pytest.mark.parametrize("backend", sorted(set(BACKENDS) - {"naive"}))
Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def triton_is_there(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 30)
    if (
        "backend" in request.fixturenames
        and request.getfixturevalue("backend") == "triton"
    ):
        pytest.importorskip("triton")


def leaves() -> dict[str, Tensor]:
    shapes = {
        "children": (N, G, M, P),
        "transforms": (G, J, P, D),
        "weights": (N, G),
        "parents": (N, J, H),
    }
    generator = torch.Generator().manual_seed(0)
    numbers = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    return {name: tensor.div(2).requires_grad_() for name, tensor in numbers.items()}


def objective(
    backend: str | None, similarity: str, scatter: bool = True, windows: bool = False
) -> Function:
    """A number that depends on all that went in, and on nothing linearly."""

    def call(
        children: Tensor, transforms: Tensor, weights: Tensor, parents: Tensor
    ) -> Tensor:
        sites = torch.arange(G, dtype=torch.int32)[None] if windows else None
        votes = Votes(children, transforms, backend=backend, sites=sites)
        compared = SIMILARITIES[similarity](parents)
        weights = weights.sigmoid() + children.square().mean(
            (2, 3)
        )  # arguments of moments that depend on each other
        mass, total, second = votes.moments(compared, weights, scatter=scatter)
        parts = [
            mass,
            total,
            votes.assignment(compared),
            *([] if second is None else [second]),
        ]
        if compared is not None:
            parts.append(votes.source.log_partition(compared, True))
        return torch.cat([part.flatten() for part in parts]).square().sum()

    return call


def derivatives(function: Function) -> list[Tensor]:
    """The gradients, those of a penalty on them, and those of a penalty on these."""
    derivatives_so_far = []
    inputs = list(leaves().values())
    value = function(*inputs)
    for create_graph in (True, True, False):
        gradients = torch.autograd.grad(
            value, inputs, create_graph=create_graph, materialize_grads=True
        )
        derivatives_so_far += gradients
        if create_graph:
            value = (
                torch.cat([gradient.flatten() for gradient in gradients]).sin().sum()
            )
    return derivatives_so_far


@pytest.mark.parametrize(("backend", "similarity"), CALLS)
@pytest.mark.parametrize(
    "options",
    [(False, False), (True, False), (True, True)],
    ids=["", "scatter", "windows"],
)
def test_second_and_third_derivatives(
    backend: str, similarity: str, options: tuple[bool, bool]
) -> None:
    actual = derivatives(objective(backend, similarity, *options))
    expected = derivatives(objective("naive", similarity, *options))
    for value, expected_value in zip(actual, expected, strict=True):
        torch.testing.assert_close(value, expected_value, rtol=1e-6, atol=1e-8)
    assert expected[-4].abs().sum() > 0.01


def test_a_penalty_on_a_gradient_of_ones() -> None:
    """The defect: where the upstream gradient was a constant, the gradient carried no
    graph, and nobody said so.
    """
    children, transforms, *_ = leaves().values()
    total = (
        Votes(children, transforms, backend="chunked")
        .moments(InnerProduct(leaves()["parents"]))
        .sum.sum()
    )
    (gradient,) = torch.autograd.grad(total, children, create_graph=True)
    assert gradient.requires_grad
    assert torch.autograd.grad(gradient.square().sum(), children)[0].abs().sum() > 0.01


TRANSFORMS: dict[str, Callable[[Function, Tensor], Tensor]] = {
    "jvp": lambda function, x: torch.func.jvp(function, (x,), (x.cos(),))[1],
    "grad": lambda function, x: torch.func.grad(function)(x),
    "jacrev": lambda function, x: torch.func.jacrev(function)(x),
    "jacfwd": lambda function, x: torch.func.jacfwd(function)(x),
    "hessian": lambda function, x: torch.func.hessian(function)(x),
    "vmap": lambda function, x: torch.func.vmap(function)(torch.stack([x, x.cos()])),
    "vmap of grad": lambda function, x: torch.func.vmap(torch.func.grad(function))(
        torch.stack([x, x.cos()])
    ),
}


def dual_numbers(
    function: Function, primals: tuple[Tensor], tangents: tuple[Tensor]
) -> None:
    with forward_ad.dual_level():
        function(forward_ad.make_dual(primals[0], tangents[0]))


def of_children(backend: str | None) -> Function:
    _, transforms, weights, parents = leaves().values()
    call = objective(backend, "gaussian")
    return lambda children: call(
        children, transforms.detach(), weights.detach(), parents.detach()
    )


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, of the way that it loads formulas
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
class TestTransforms:
    def test_the_choice_is_right(
        self,
        transform: Callable[[Function, Tensor], Tensor],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        x = leaves()["children"].detach()
        expected = transform(of_children("naive"), x)
        monkeypatch.setattr("torchcaps.ops.plan.FEW", {"cpu": 0})  # native otherwise
        torch.testing.assert_close(transform(of_children(None), x), expected)

    @without_votes
    def test_a_backend_asked_for_names_the_way_out(
        self, transform: Callable[[Function, Tensor], Tensor], backend: str
    ) -> None:
        with pytest.raises(
            ValueError,
            match=(
                f"backend '{backend}' cannot.*forward-mode.*torch.func.*backend='naive'"
            ),
        ):
            transform(of_children(backend), leaves()["children"].detach())


@pytest.mark.parametrize("operator", ["moments", "scores"])
@pytest.mark.parametrize(
    "forward_mode", [torch.func.jvp, dual_numbers], ids=["jvp", "dual numbers"]
)
def test_an_operator_called_by_name_gives_no_zeros(
    forward_mode: Callable[..., object], operator: str
) -> None:
    inputs = leaves()
    x, transforms, parents = (
        inputs[name].detach() for name in ("children", "transforms", "parents")
    )
    options = (False, False, True) if operator == "moments" else (False, True)
    call = getattr(torch.ops.torchcaps, operator)

    def function(children: Tensor) -> object:
        return call(
            children, transforms, None, None, None, None, [parents], "native", *options
        )

    with pytest.raises(
        RuntimeError,
        match=f"torchcaps::{operator} has no forward-mode .* backend='naive'",
    ):
        forward_mode(function, (x,), (x.cos(),))


def test_the_operators_of_gradients_say_that_they_have_none() -> None:
    x, transforms, *_ = leaves().values()
    mass = torch.ones(N, J, dtype=torch.float64)
    total = torch.ones(N, J, H, dtype=torch.float64)
    call = (
        x,
        transforms,
        None,
        None,
        None,
        None,
        [],
        "native",
        False,
        False,
        total,
        mass,
        total,
        None,
    )
    gradient, *_ = torch.ops.torchcaps.moments_backward(*call)
    with pytest.raises(
        RuntimeError,
        match=r"torchcaps::moments_backward.* not written.* backend='naive'",
    ):
        gradient.sum().backward()


@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dual_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    x = leaves()["children"].detach()
    expected = torch.func.jvp(of_children("naive"), (x,), (x.cos(),))[1]
    monkeypatch.setattr("torchcaps.ops.plan.FEW", {"cpu": 0})
    with forward_ad.dual_level():
        votes = Votes(forward_ad.make_dual(x, x.cos()), leaves()["transforms"])
        assert votes.choose_backend().backend == "naive"
        assert "forward-mode" in votes.choose_backend().reason
        value = of_children(None)(forward_ad.make_dual(x, x.cos()))
        torch.testing.assert_close(forward_ad.unpack_dual(value).tangent, expected)
    assert Votes(x, leaves()["transforms"]).choose_backend().backend == "native"


@pytest.mark.parametrize(
    ("backend", "similarity"),
    [
        *CALLS,
        ("naive", "inner"),
        pytest.param("triton", "gaussian", marks=pytest.mark.thorough),
    ],
)
def test_checkpoints(backend: str, similarity: str) -> None:
    def gradients(call: Function) -> tuple[Tensor, ...]:
        inputs = list(leaves().values())
        return torch.autograd.grad(call(*inputs), inputs, materialize_grads=True)

    call = objective(backend, similarity)
    plain = gradients(call)
    saved = gradients(lambda *given: checkpoint(call, *given, use_reentrant=False))
    for first, second in zip(saved, plain, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop because we have not yet implemented the "
    "batching rule"
)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("backend", "similarity"), CALLS)
def test_several_gradients_at_once(backend: str, similarity: str, again: bool) -> None:
    """``is_grads_batched``, which is ``vectorize`` of ``torch.autograd.functional``,
    and a vmap of a backward pass.
    """
    inputs = list(leaves().values())
    value = objective(backend, similarity)(*inputs)
    factors = torch.tensor([1.0, -2.0], dtype=torch.float64)

    def gradients(factor: Tensor, batched: bool = False) -> tuple[Tensor, ...]:
        options = {
            "retain_graph": True,
            "create_graph": again,
            "is_grads_batched": batched,
        }
        of_inputs = torch.autograd.grad(
            value,
            inputs,
            factor,
            materialize_grads=not batched,
            allow_unused=True,
            **options,
        )
        return tuple(tensor for tensor in of_inputs if tensor is not None)

    expected = [tensor for tensor in gradients(factors[0]) if tensor.any()]
    for actual in (gradients(factors, True), torch.func.vmap(gradients)(factors)):
        actual = [tensor for tensor in actual if tensor.any()]
        torch.testing.assert_close(
            actual, [torch.stack([tensor, -2 * tensor]) for tensor in expected]
        )


def test_vectorized_second_derivatives_of_a_layer() -> None:
    layer = tc.CapsLinear(40, 3, 2, 3).double()
    parts = torch.randn(4, 40, 2, dtype=torch.float64).split([1, 39], 1)

    def objective(first: Tensor) -> Tensor:
        return (
            layer(torch.cat([first.expand(4, 1, 2), parts[1]], 1)).pose.square().sum()
        )

    hessian = torch.autograd.functional.hessian(objective, parts[0][0], vectorize=True)
    torch.testing.assert_close(
        hessian, torch.autograd.functional.hessian(objective, parts[0][0])
    )


@every_backend
def test_meta_tensors_have_the_right_shapes(backend: str) -> None:
    layers = [
        tc.CapsLinear(6, 3, (2, 4), (2, 5)),
        tc.CapsLinear(
            6,
            3,
            (2, 4),
            (2, 5),
            transforms="shared",
            routing=tc.create_routing("kmeans"),
        ),
        tc.CapsLinear(6, 3, (2, 4), (2, 5), routing=tc.create_routing("em")),
    ]
    for layer in layers:
        with use_backend(backend):
            expected = layer(torch.randn(7, 6, 2, 4))
            parents = layer.to("meta")(
                torch.empty(7, 6, 2, 4, device="meta", requires_grad=True)
            )
        assert parents.pose.is_meta
        assert (parents.pose.shape, parents.activation.shape) == (
            expected.pose.shape,
            expected.activation.shape,
        )
        parents.pose.sum().backward()
        assert all(
            parameter.grad is not None
            for parameter in layer.parameters()
            if parameter.ndim == 4
        )
    convolution = tc.CapsConv2d(
        2,
        3,
        (2, 2),
        (2, 2),
        3,
        padding=1,
        residual=True,
    ).to("meta")
    children = tc.Capsules(
        torch.empty(2, 4, 4, 2, 2, 2, device="meta"),
        torch.empty(2, 4, 4, 2, device="meta"),
    )
    with use_backend(backend):
        assert convolution(children).pose.shape == (2, 4, 4, 3, 2, 2)
