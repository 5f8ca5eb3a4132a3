"""A routing beside its paper's equations, on stored votes, of which autograd finds the
gradients.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.random_numbers import normal
from torchcaps.ops import Votes
from torchcaps.routing import (
    DynamicRouting,
    EMRouting,
    InnerProductKMeansRouting,
    Routed,
    Routing,
)

B = 3
I = 5
J = 4
M = 2
P = 3
D = 2
H = M * D

Route = Callable[..., Routed]
"""From votes, child activations (B, I) and parameters."""

Book = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""From votes (B, I, J, H), child activations (B, I) and parameters to poses (B, J, H),
activations (B, J) and R.
"""


def problem(shared: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Children (B, I, M, P), transforms and child activations (B, I)."""
    return (
        normal(B, I, M, P),
        normal(1 if shared else I, J, P, D, seed=1),
        normal(B, I, seed=2).sigmoid(),
    )


def routed_with(
    routing: Routing, votes: Votes, activation: Tensor | None = None, **named: Tensor
) -> Routed:
    """The parents that a routing finds with these parameters in place of its own."""
    return torch.func.functional_call(routing, named, (votes, activation))


def em_routing(
    votes: Votes,
    activation: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    lambdas: Sequence[float],
    **options: Any,
) -> Routed:
    """The parents by EM with these parameters, and an inverse temperature for each
    step.
    """
    routing = EMRouting(len(lambdas), lambda step, steps: lambdas[step], 1.0, **options)
    return routed_with(
        routing, votes, activation, unit_cost=beta_u, activation_cost=beta_a
    )


def step_by_step(
    routing: Any,
    votes: Votes,
    activation: Tensor | None = None,
    initial: Routed | None = None,
    **named: Any,
) -> Routed:
    """The parents by the steps of a routing, and not by a function that makes all steps
    at once.

    Args:
        routing: the routing, with its settings.
        votes: the votes of I children for J parents.
        activation: the child activations.
        initial: parents to go on from.
        named: parameters of the routing.
    """
    for name, parameter in named.items():
        delattr(routing, name)
        setattr(routing, name, parameter)
    routed: Routed = routing.route(votes, activation, initial)
    return routed


def dynamic_routing(
    votes: Votes,
    activation: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    initial: Routed | None = None,
    **settings: Any,
) -> Routed:
    """The parents by dynamic routing with these settings, and a bias (J, H)."""
    routing = DynamicRouting(**settings)
    named = {} if bias is None else {"offset": bias}
    return step_by_step(routing, votes, activation, initial, **named)


def inner_product_kmeans_routing(
    votes: Votes,
    activation: Tensor | None = None,
    *,
    initial: Routed | None = None,
    **settings: Any,
) -> Routed:
    """The parents by K-Means with inner products, with these settings."""
    routing = InnerProductKMeansRouting(**settings)
    return step_by_step(routing, votes, activation, initial)


def check_equations(
    route: Route,
    book: Book,
    parameters: Sequence[Tensor] = (),
    backend: str = "naive",
    shared: bool = False,
) -> None:
    """Asserts that poses, activations, assignments, and the gradients of all that goes
    in, are those of the book.
    """
    tensors = [*problem(shared), *parameters]
    upstream = normal(B, J, H, seed=8), normal(B, J, seed=9)
    actual, expected = [], []
    for results in (actual, expected):
        children, transforms, *following = leaves = [
            tensor.clone().requires_grad_() for tensor in tensors
        ]
        if results is expected:
            votes = torch.einsum(
                "bimp,ijpd->bijmd", children, transforms.expand(I, -1, -1, -1)
            ).flatten(3)
            seen = book(votes, *following)
        else:
            routed = route(Votes(children, transforms, backend=backend), *following)
            seen = routed.pose, routed.activation, routed.assignment
        gradients = torch.autograd.grad(
            seen[:2], leaves, upstream, materialize_grads=True, allow_unused=True
        )
        results += [seen, gradients]
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


class Equations:
    """One routing by the book: a subclass names it, its page, and the parameters that
    they take.
    """

    route: Route
    book: Book
    parameters: Sequence[Tensor] = ()

    @pytest.fixture(params=["naive", "chunked"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.mark.parametrize("shared", [False, True], ids=["full", "shared"])
    def test_equations(self, backend: str, shared: bool) -> None:
        check_equations(self.route, self.book, self.parameters, backend, shared)


class KernelEquations(Equations):
    """And where there are kernels for it."""

    @pytest.fixture(params=["naive", "chunked", "native"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return request.param
