"""Heinsen's routing of 2022 against the equations of its paper."""

import pickle
from collections.abc import Callable

import pytest
import torch
from by_the_book import normal
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from torchcaps import CapsConv2d, CapsLinear, Capsules, ClassCaps
from torchcaps.ops import Votes
from torchcaps.routing import (
    Heinsen2022Routing,
    LayerShape,
    Routed,
    VectorWeights,
)

B = 2
I = 5
J = 3
d = 4
D = 6


def weights(children: int, D: int = D, J: int = J) -> VectorWeights:
    shapes = (
        (children, d),
        (children,),
        (J, d),
        (d, D),
        (J, D),
        (D, d),
        (J, d),
        (J, d),
        *[(children, J)] * 4,
    )
    return VectorWeights(
        *(normal(*shape, seed=seed) for seed, shape in enumerate(shapes))
    )


def route(
    x: Tensor,
    w: VectorWeights,
    steps: int = 3,
    normalise: bool = True,
    mask: Tensor | None = None,
) -> Routed:
    J, D = w.vote_bias.shape
    votes = Votes(x, x.new_zeros(1, J, d, D))  # whose transforms are not used
    pairs = None if mask is None else mask.expand(len(x), -1, -1)
    routing = Heinsen2022Routing(steps, normalise)
    inputs = (votes, None), {"pairs": pairs}
    return torch.func.functional_call(routing, w._asdict(), *inputs)


def book(
    x: Tensor,
    w: VectorWeights,
    steps: int = 3,
    normalise: bool = True,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Algorithm 2 with stored votes: the parents and R; weights with I of 1 are for all
    children.
    """
    mask = x.new_ones(1, x.shape[1], len(w.vote)) if mask is None else mask.to(x.dtype)
    scaled = x / x.shape[1] ** 0.5
    f = ((scaled * w.presence).sum(-1) + w.presence_bias).sigmoid()[..., None] * mask
    V = torch.einsum("bid,jd,de->bije", scaled, w.vote, w.vote_shared) + w.vote_bias
    R = (mask / mask.sum(-1, keepdim=True)).expand(len(x), -1, -1)
    y = x.new_zeros(())
    for step in range(steps):
        if step > 0:
            expected = (
                torch.einsum(
                    "bje,ed,jd->bjd", norm(y), w.prediction_shared, w.prediction
                )
                + w.prediction_bias
            )
            fit = (
                mask
                * (
                    torch.einsum("bid,bjd->bij", x, expected) * w.score + w.score_bias
                ).sigmoid()
            )
            R = fit / fit.sum(-1, keepdim=True)
        phi = w.benefit * f * R - w.cost * (f - f * R)
        y = (phi[..., None] * V).sum(1)
    return (norm(y) if normalise else y), R


def norm(y: Tensor) -> Tensor:
    if y.shape[-1] == 1:
        return y
    return (y - y.mean(-1, keepdim=True)) / (
        y.var(-1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()


@pytest.mark.parametrize("children", [I, 1], ids=["each", "shared"])
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("size", [D, 1])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_equations(
    children: int, steps: int, size: int, normalise: bool, masked: bool
) -> None:
    x = normal(B, I, d, seed=20)
    w = weights(children, size)
    mask = (
        (normal(I, J) > -0.7) | torch.eye(I, J, dtype=torch.bool).flip(0)
        if masked
        else None
    )
    mask = None if mask is None else mask | ~mask.any(1, keepdim=True)
    routed = route(x, w, steps, normalise, mask)
    expected = book(x, w, steps, normalise, mask)
    actual = routed.pose, routed.assignment
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("children", [I, 1], ids=["each", "shared"])
def test_gradients(children: int) -> None:
    upstream = normal(B, J, D, seed=30)
    results = []
    for by_the_book in (False, True):
        leaves = [
            tensor.clone().requires_grad_()
            for tensor in (normal(B, I, d, seed=20), *weights(children))
        ]
        x = leaves[0]
        w = VectorWeights(*leaves[1:])
        y = book(x, w)[0] if by_the_book else route(x, w).pose
        results.append([y, *torch.autograd.grad(y, leaves, upstream)])
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_child_without_parents_adds_nothing(steps: int) -> None:
    """Its number in I stays: the others are as large beside a child that nobody
    believes in, whose f is 0.
    """
    x = normal(B, I, d).requires_grad_()
    w = weights(I)
    mask = torch.ones(I, J, dtype=torch.bool)
    mask[2] = False
    y = route(x, w, steps, mask=mask).pose
    (gradient,) = torch.autograd.grad(y, x, normal(B, J, D))
    assert gradient.isfinite().all()
    assert not gradient[:, 2].any()
    unbelieved = w.presence_bias.clone()
    unbelieved[2] = -torch.inf
    expected = route(x, w._replace(presence_bias=unbelieved), steps).pose
    torch.testing.assert_close(y, expected, rtol=1e-11, atol=1e-13)


def own_parents() -> Tensor:
    """A mask (B, I, J) under which each child has a parent, and parents differ by child
    and example.
    """
    mask = normal(B, I, J, seed=7) > 0
    return mask | ~mask.any(-1, keepdim=True)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_mask_in_which_each_child_has_one_parent_decides_the_assignment(
    steps: int,
) -> None:
    parent = torch.arange(I) % J
    mask = torch.nn.functional.one_hot(parent, J).bool()
    layer = CapsLinear(I, J, d, D, routing=Heinsen2022Routing(steps)).double()
    routed = layer.route(normal(B, I, d), mask.expand(B, I, J))
    torch.testing.assert_close(
        routed.assignment, mask.double().expand(B, I, J), rtol=0, atol=0
    )


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("children", [I, None], ids=["each", "any number"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_layer_masks_pairs(children: int | None, backend: str, steps: int) -> None:
    """Children on two axes; forward, backward and the assignment, against the book."""
    torch.manual_seed(0)
    transforms = "full" if children else "shared"
    routing = Heinsen2022Routing(steps)
    mask = own_parents()
    layer = CapsLinear(
        children, J, d, D, transforms=transforms, routing=routing, backend=backend
    ).double()
    x = normal(B, I, d, seed=20).requires_grad_()
    sites = x.unflatten(1, (1, I))
    pose = layer(sites, mask[:, None]).pose
    w = layer.routing.weights(x)
    expected, R = book(x, w, steps, mask=mask)
    torch.testing.assert_close(pose, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        layer.route(sites, mask[:, None]).assignment, R, rtol=1e-10, atol=1e-12
    )
    leaves = [x, *layer.parameters()]
    upstream = normal(B, J, D, seed=30)
    gradients = torch.autograd.grad(
        pose,
        leaves,
        upstream,
        retain_graph=True,
        materialize_grads=True,
        allow_unused=True,
    )
    wanted = torch.autograd.grad(
        expected, leaves, upstream, materialize_grads=True, allow_unused=True
    )
    torch.testing.assert_close(gradients, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
def test_in_a_layer_a_child_without_parents_is_not_there(backend: str) -> None:
    layer = CapsLinear(
        None,
        J,
        d,
        D,
        transforms="shared",
        routing=Heinsen2022Routing(3),
        backend=backend,
    ).double()
    x = normal(B, I, d, seed=20)
    mask = own_parents()
    mask[:, 2] = False
    x[:, 2] = torch.nan
    x.requires_grad_()
    routed = layer.route(x, mask)
    present = torch.arange(I) != 2
    expected = layer.route(x[:, present], mask[:, present])
    torch.testing.assert_close(routed.pose, expected.pose, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(
        routed.assignment[:, present], expected.assignment, rtol=1e-11, atol=1e-13
    )
    assert not routed.assignment[:, 2].any()
    (gradient,) = torch.autograd.grad(routed.pose, x, normal(B, J, D))
    assert gradient.isfinite().all()
    assert not gradient[:, 2].any()


def test_masks_of_pairs_that_do_not_fit() -> None:
    x = normal(B, I, d).float()
    mask = torch.ones(B, I, J, dtype=torch.bool)
    layer = CapsLinear(I, J, d, D, routing=Heinsen2022Routing())
    with pytest.raises(
        ValueError, match=r"pairs must be bool \(2, 5, 3\), got torch.bool \(2, 5, 4\)"
    ):
        layer(x, mask.new_ones(B, I, 4))
    with pytest.raises(
        ValueError,
        match=r"pairs must be bool \(2, 5, 3\), got torch.float32 \(2, 5, 3\)",
    ):
        layer(x, mask.float())
    with pytest.raises(
        ValueError,
        match="DynamicRouting cannot leave out pairs: mask must be one value for each",
    ):
        CapsLinear(I, J, d, D)(x, mask)


def test_parameters() -> None:
    """Of the authors' EfficientVectorRouting(1152, 10, 8, 16), and with any number of
    children.
    """
    each = Heinsen2022Routing().bind(LayerShape(1152, 10, (8,), (16,)))
    of_children = 1152 * (8 + 1 + 4 * 10)
    shared = 10 * 8 + 8 * 16 + 10 * 16 + 16 * 8 + 2 * 10 * 8
    assert (
        sum(parameter.numel() for parameter in each.parameters())
        == of_children + shared
    )
    torch.manual_seed(0)
    any_number = Heinsen2022Routing().bind(LayerShape(None, 10, (8,), (16,)))
    assert sum(
        parameter.numel() for parameter in any_number.parameters()
    ) == 8 + 1 + 2 * 10 + shared + 2 * 10 * (8 + 1)
    assert abs(each.presence.std() - 2 / 8**0.5) < 0.02
    assert abs(each.benefit.std() - 1) < 0.02
    assert not each.score_bias.any()


def test_the_layer_has_no_transforms_of_its_own() -> None:
    grid = Capsules(torch.rand(B, 3, 3, 2, d), torch.rand(B, 3, 3, 2))
    for layer, children in (
        (CapsLinear(I, J, d, D, routing=Heinsen2022Routing()), normal(B, I, d).float()),
        (
            CapsLinear(
                None, J, d, D, transforms="shared", routing=Heinsen2022Routing()
            ),
            normal(B, I, d).float(),
        ),
        (CapsConv2d(2, J, d, D, 2, routing=Heinsen2022Routing()), grid),
        (ClassCaps(2, J, d, D, routing=Heinsen2022Routing()), grid),
    ):
        names = {name for name, _ in layer.named_parameters()}
        assert "weight" not in names
        assert "weight" not in layer.state_dict()
        layer(children).pose.sum().backward()
        layer.half().float()
        assert layer(children).pose.shape[-2:] == (J, D)


@pytest.mark.parametrize(
    ("layer", "sites"),
    [
        (lambda: CapsLinear(I, J, d, D, routing=Heinsen2022Routing()), (I,)),
        (lambda: CapsConv2d(I, J, d, D, 1, routing=Heinsen2022Routing()), (2, 2, I)),
        (lambda: ClassCaps(I, J, d, D, routing=Heinsen2022Routing()), (2, 2, I)),
    ],
    ids=["linear", "conv", "class"],
)
def test_built_without_memory(
    layer: Callable[[], nn.Module], sites: tuple[int, ...]
) -> None:
    full = layer()
    with torch.device("meta"):
        empty = layer()
    empty.load_state_dict(full.state_dict(), assign=True)
    children = Capsules(normal(B, *sites, d).float(), torch.ones(B, *sites))
    for loaded_layer in (empty, pickle.loads(pickle.dumps(empty)).to("cpu")):
        assert torch.equal(loaded_layer(children).pose, full(children).pose)


@pytest.mark.parametrize("competition", ["grid", "window"])
def test_assignments_are_read_whichever_backend_was_asked_for(competition: str) -> None:
    layer = CapsConv2d(
        2, J, d, D, 2, routing=Heinsen2022Routing(), competition=competition
    )
    children = Capsules(normal(B, 3, 3, 2, d).float(), torch.ones(B, 3, 3, 2))
    results = []
    for layer.backend in ("naive", "native"):
        routed = layer.route(children)
        results.append(routed.assignment)
        assert torch.equal(
            routed.votes.logits(routed.similarity), routed.similarity.values
        )
    torch.testing.assert_close(*results)


def test_a_class_has_a_score() -> None:
    layer = CapsLinear(I, J, d, 1, routing=Heinsen2022Routing()).double()
    parents = layer(normal(B, I, d))
    torch.testing.assert_close(parents.activation, parents.pose.squeeze(-1))


class Largest(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for output in out if isinstance(out, tuple) else (out,):
            if isinstance(output, Tensor):
                self.numbers = max(self.numbers, output.numel())
        return out


def test_nothing_is_as_large_as_the_votes() -> None:
    routing = Heinsen2022Routing(3).bind(LayerShape(64, J, (d,), (32,)))
    x = torch.randn(8, 64, d, requires_grad=True)
    votes = Votes(x, torch.zeros(1, J, d, 32))
    with Largest() as memory:
        routing(votes).pose.square().sum().backward()
    assert memory.numbers <= 8 * 64 * max(
        J, d
    )  # the votes have 8 * 64 * J * 32 numbers
