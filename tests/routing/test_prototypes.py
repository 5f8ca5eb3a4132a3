"""Prototype routing against its equations, and the subspace that its children share."""

import torch
from by_the_book import B, D, H, I, J, KernelEquations, M, P, normal, routed_with
from torch import Tensor

from torchcaps import CapsLinear
from torchcaps.ops import Votes
from torchcaps.routing import LayerShape, PrototypeRouting, Routed

PROTOTYPES = normal(J, H, seed=3)


def route(votes: Votes, a: Tensor, prototypes: Tensor) -> Routed:
    return routed_with(PrototypeRouting(), votes, a, prototypes=prototypes)


def book(V: Tensor, a: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    R = (-((V - prototypes) ** 2).sum(-1) / V.shape[-1] ** 0.5).softmax(2)
    used = a[..., None] * R
    return (
        (used[..., None] * V).sum(1) / used.sum(1)[..., None],
        used.sum(1) / a.sum(1, keepdim=True),
        R,
    )


class TestEquations(KernelEquations):
    route = staticmethod(route)
    book = staticmethod(book)
    parameters = (PROTOTYPES,)


def test_one_transform_for_all() -> None:
    layer = CapsLinear(
        None, J, (M, P), (M, D), transforms="subspace", routing=PrototypeRouting()
    ).double()
    assert layer.weight.shape == (1, 1, P, D)
    assert layer.routing.prototypes.shape == (J, H)
    children = normal(B, I, M, P)
    votes = layer.votes(children).dense()
    expected = (children @ layer.weight[0, 0]).flatten(2)
    torch.testing.assert_close(votes, expected[:, :, None].expand(-1, -1, J, -1))
    layer(children).pose.sum().backward()
    assert layer.weight.grad.any()
    assert layer(normal(B, 2 * I, M, P)).pose.shape == (B, J, M, D)


def test_activations_are_shares() -> None:
    routing = (
        PrototypeRouting()
        .bind(
            LayerShape(
                I,
                J,
                (M, P),
                (M, D),
            )
        )
        .double()
    )
    routed = routing(
        Votes(normal(B, I, M, P), normal(I, J, P, D, seed=1)), normal(B, I).sigmoid()
    )
    torch.testing.assert_close(routed.activation.sum(-1), torch.ones(B).double())
