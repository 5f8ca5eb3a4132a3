"""Dynamic routing against the loop of the paper."""

from functools import partial

import pytest
import torch
from by_the_book import H, J, check_equations, dynamic_routing, normal, problem
from torch import Tensor

from torchcaps.ops import Votes
from torchcaps.routing import DynamicRouting, Routed
from torchcaps.squashing import squash

BIAS = normal(J, H, seed=3) / 1.5


def route(
    votes: Votes,
    a: Tensor,
    bias: Tensor | None = None,
    **settings: object,
) -> Routed:
    return dynamic_routing(votes, bias=bias, **settings)


def book(
    V: Tensor,
    a: Tensor,
    bias: Tensor | float = 0.0,
    *,
    steps: int,
    accumulate: bool,
    leaky: bool,
    gradient: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sabour et al. 2017, Procedure 1; under "last", the poses v of all steps but the
    last are constants.
    """
    b = torch.zeros(V.shape[:3], dtype=V.dtype)
    v = V.new_zeros(())
    c = V
    for _ in range(steps):
        v = v.detach() if gradient == "last" else v
        agreement = (V * v[:, None]).sum(-1) if v.ndim else b
        b = b + agreement if accumulate else agreement
        c = b.exp() / (b.exp().sum(2, keepdim=True) + leaky)
        s = (c[..., None] * V).sum(1) + bias
        n = s.norm(dim=-1, keepdim=True)
        v = n**2 / (1 + n**2) * s / n
    return v, v.norm(dim=-1), c


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize("accumulate", [True, False], ids=["accumulate", "last-logit"])
@pytest.mark.parametrize("leaky", [False, True], ids=["parents", "leaky"])
@pytest.mark.parametrize("parameters", [(), (BIAS,)], ids=["plain", "bias"])
@pytest.mark.parametrize("gradient", ["all", "last"])
def test_equations(
    backend: str,
    steps: int,
    accumulate: bool,
    leaky: bool,
    parameters: tuple[Tensor, ...],
    gradient: str,
) -> None:
    settings = {
        "steps": steps,
        "accumulate": accumulate,
        "leaky": leaky,
        "gradient": gradient,
    }
    check_equations(
        partial(route, **settings), partial(book, **settings), parameters, backend
    )


def test_last_gradient_is_another_one() -> None:
    children, transforms, _ = problem()
    children.requires_grad_()
    both = (
        dynamic_routing(Votes(children, transforms), gradient=gradient).pose
        for gradient in ("all", "last")
    )
    assert not torch.allclose(
        *(torch.autograd.grad(pose.square().sum(), children)[0] for pose in both),
        rtol=1e-3,
    )


def test_squash_kind() -> None:
    votes = Votes(*problem()[:2])
    expected = squash(votes.dense().sum(1) / J, "tanh")
    pose = dynamic_routing(votes, steps=1, squash="tanh").pose
    torch.testing.assert_close(pose, expected, rtol=1e-12, atol=1e-12)


def test_bias_starts_at_a_tenth_for_each_number_of_each_parent() -> None:
    assert torch.equal(
        DynamicRouting(bias=True).bind(3, 4).offset, torch.full((3, 4), 0.1)
    )
