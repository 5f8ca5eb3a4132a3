"""Heinsen's routing of 2019 against the equations of its paper."""

from functools import partial

import pytest
import torch
from by_the_book import (
    B,
    D,
    H,
    I,
    J,
    M,
    P,
    check_equations,
    normal,
    problem,
    routed_with,
)
from torch import Tensor

from torchcaps import CapsLinear
from torchcaps.ops import Votes
from torchcaps.routing import (
    Heinsen2019Routing,
    LayerShape,
    Routed,
)

EACH = normal(I, J, seed=3), normal(I, J, seed=4), normal(I, J, H, seed=5)
SHARED = normal(1, J, seed=3), normal(1, J, seed=4), normal(1, J, H, seed=5)
parameters = pytest.mark.parametrize(
    "parameters", [EACH, SHARED], ids=["each", "shared"]
)
models = pytest.mark.parametrize("model", ["gaussian", "kmeans"])


def route(
    votes: Votes,
    a: Tensor,
    use: Tensor,
    ignore: Tensor,
    bias: Tensor,
    model: str = "gaussian",
) -> Routed:
    routing = Heinsen2019Routing(model=model, logits=True)
    return routed_with(routing, votes, a, benefit=use, cost=ignore, bias=bias)


def book(
    V: Tensor, a: Tensor, use: Tensor, ignore: Tensor, bias: Tensor, model: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Algorithm 1; activations are logits."""
    V = V + bias
    f = a.sigmoid()[..., None]
    R = torch.full(V.shape[:3], 1 / V.shape[2], dtype=V.dtype)
    a_out = mu = s2 = V.new_zeros(())
    for step in range(3):
        if step > 0:
            distance = (V - mu[:, None]) ** 2
            if model == "gaussian":
                log_p = (
                    -(distance / (2 * s2[:, None])).sum(-1)
                    - s2.sqrt().log().sum(-1)[:, None]
                )
            else:
                log_p = (-distance.sum(-1)).log_softmax(-1)
            R = (a_out.sigmoid().log()[:, None] + log_p).softmax(-1)
        used = f * R
        a_out = (use * used).sum(1) - (ignore * (f - used)).sum(1)
        divisor = used.sum(1)[..., None] + 1e-5
        mu = (used[..., None] * V).sum(1) / divisor
        s2 = (used[..., None] * (V - mu[:, None]) ** 2).sum(1) / divisor + 1e-5
    return mu, a_out, R


@models
@parameters
@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
def test_equations(backend: str, parameters: tuple[Tensor, ...], model: str) -> None:
    check_equations(
        partial(route, model=model), partial(book, model=model), parameters, backend
    )


def test_probabilities_are_the_sigmoids_of_the_logits() -> None:
    children, transforms, a = problem()
    votes = Votes(children, transforms)
    parameters = dict(zip(("benefit", "cost", "bias"), EACH, strict=True))
    of_logits = Heinsen2019Routing(logits=True)
    logits = routed_with(of_logits, votes, a.logit(), **parameters)
    routed = routed_with(Heinsen2019Routing(), votes, a, **parameters)
    torch.testing.assert_close(routed.activation, logits.activation.sigmoid())
    torch.testing.assert_close(routed.pose, logits.pose)


def test_shared_parameters_are_tied_ones() -> None:
    children, transforms, a = problem(shared=True)
    votes = Votes(children, transforms)
    use, ignore, bias = SHARED
    routed = route(votes, a, use, ignore, bias)
    expected = route(
        votes, a, use.expand(I, J), ignore.expand(I, J), bias.expand(I, J, H)
    )
    torch.testing.assert_close(routed[:2], expected[:2])


def test_any_number_of_parents() -> None:
    """The symmetry is broken by a learned pose times -1 to 1; the transforms are shared
    by all parents.
    """
    routing = (
        Heinsen2019Routing(any_parents=True)
        .bind(LayerShape(None, J, (M, P), (M, D)))
        .double()
    )
    with torch.no_grad():
        for parameter in routing.parameters():
            parameter.copy_(normal(*parameter.shape, seed=6))
    children, _, a = problem()
    transform = normal(1, 1, P, D, seed=1)
    for parents in (1, 2, 7):
        routed = routing(Votes(children, transform.expand(1, parents, P, D)), a)
        bias = (
            routing.bias
            + torch.linspace(-1, 1, parents).double()[:, None] * routing.spread
        )
        V = (
            torch.einsum("bimp,pd->bimd", children, transform[0, 0])
            .flatten(2)[:, :, None]
            .expand(-1, -1, parents, -1)
        )
        mu, score, _ = book(
            V, a.logit(), routing.benefit, routing.cost, bias, "gaussian"
        )
        torch.testing.assert_close(routed.pose, mu)
        torch.testing.assert_close(routed.activation, score.sigmoid())


def test_parameters_of_the_authors_layers() -> None:
    """smallNORB's two: any number of 4 x 4 children to 64, and 64 to 5."""
    routing = Heinsen2019Routing()
    shared = sum(
        parameter.numel()
        for parameter in routing.bind(LayerShape(None, 64, (4, 4), (4, 4))).parameters()
    )
    each = sum(
        parameter.numel()
        for parameter in routing.bind(LayerShape(64, 5, (4, 4), (4, 4))).parameters()
    )
    assert (shared + 64 * 16, each + 64 * 5 * 16) == (64 * 34, 64 * 5 * 34)


def test_a_layer_whose_parents_share_their_transforms_takes_any_number_of_them() -> (
    None
):
    layer = CapsLinear(
        None,
        J,
        (M, P),
        (M, D),
        transforms="subspace",
        routing=Heinsen2019Routing(any_parents=True),
    )
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    for parents in (J, 2, 9):
        layer.out_capsules = parents
        assert layer(normal(B, I, M, P).float()).pose.shape == (B, parents, M, D)
    assert sum(parameter.numel() for parameter in layer.parameters()) == parameters
