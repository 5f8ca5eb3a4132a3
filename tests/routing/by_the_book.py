"""A routing beside its paper's equations: in numpy for one example, and in torch on stored votes for gradients."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import Routed

Array = NDArray[np.float64]
B, I, J, M, P, D = 3, 5, 4, 2, 3, 2
H = M * D

Route = Callable[..., Routed]
"""From votes, child activations (B, I) and parameters."""

Book = Callable[..., tuple[Array, Array, Array]]
"""From votes (I, J, H), child activations (I,) and parameters to poses (J, H), activations (J,) and R (I, J)."""

Differentiable = Callable[..., tuple[Tensor, Tensor]]
"""From votes (B, I, J, H), child activations (B, I) and parameters to poses (B, J, H) and activations (B, J)."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers, always the same for one shape and seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(shared: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Children (B, I, M, P), transforms and child activations (B, I)."""
    return normal(B, I, M, P), normal(1 if shared else I, J, P, D, seed=1), normal(B, I, seed=2).sigmoid()


def check_equations(
    route: Route, book: Book, parameters: Sequence[Tensor] = (), backend: str = "naive", shared: bool = False
) -> None:
    """Asserts that poses, activations and assignments are those of the book, to 1e-10."""
    children, transforms, activation = problem(shared)
    votes = Votes(children, transforms, backend=backend)
    routed = route(votes, activation, *parameters)
    numbers = [parameter.numpy() for parameter in parameters]
    stored = votes.dense().numpy()
    pages = [book(stored[b], activation[b].numpy(), *numbers) for b in range(B)]
    results = routed.pose, routed.activation, routed.assignment
    for found, expected in zip(results, zip(*pages, strict=True), strict=True):
        torch.testing.assert_close(found, torch.from_numpy(np.stack(expected)), rtol=1e-10, atol=1e-12)


def check_gradients(
    route: Route, book: Differentiable, parameters: Sequence[Tensor] = (), backend: str = "naive", shared: bool = False
) -> None:
    """Asserts that the gradients of all that goes in are those that autograd finds for the book, to 1e-8."""
    tensors = [*problem(shared), *parameters]
    upstream = normal(B, J, H, seed=8), normal(B, J, seed=9)
    results = []
    for by_the_book in (False, True):
        children, transforms, *rest = leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        if by_the_book:
            votes = torch.einsum("bimp,ijpd->bijmd", children, transforms.expand(I, -1, -1, -1)).flatten(3)
            parents = book(votes, *rest)
        else:
            parents = route(Votes(children, transforms, backend=backend), *rest)[:2]
        gradients = torch.autograd.grad(parents, leaves, upstream, materialize_grads=True)
        results.append([*parents, *gradients])
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-10)


class Equations:
    """Both for one routing: a subclass names it, its pages, and the parameters that they take."""

    route: Route
    book: Book
    differentiable: Differentiable
    parameters: Sequence[Tensor] = ()

    @pytest.fixture(params=["naive", "chunked"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return request.param

    def test_equations(self, backend: str) -> None:
        check_equations(self.route, self.book, self.parameters, backend)

    @pytest.mark.parametrize("shared", [False, True], ids=["full", "shared"])
    def test_gradients(self, backend: str, shared: bool) -> None:
        check_gradients(self.route, self.differentiable, self.parameters, backend, shared)


class KernelEquations(Equations):
    """And where there are kernels for it."""

    @pytest.fixture(params=["naive", "chunked", "native"])
    def backend(self, request: pytest.FixtureRequest) -> str:
        return request.param
