"""Votes that lie on their mean: float32 gradients are as good on every backend as those
of stored votes.

One child, or copies of one, lie on the mean of each parent, and the variance is the
floor. In the gradients the deviations, which rounding makes of votes and mean, are then
multiplied by large precisions, and must cancel again.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps.ops import Gaussian, Moments, Votes, use_backend
from torchcaps.ops.fused import why_not
from torchcaps.routing import (
    EMRouting,
    EuclideanKMeansRouting,
    Heinsen2019Routing,
    PrototypeRouting,
    Routing,
    VariationalBayesRouting,
)

B = 4
J = 10
P = 8
D = 16

BACKENDS = [
    "chunked",
    pytest.param(
        "native",
        marks=pytest.mark.skipif(bool(why_not("native")), reason="no C++ kernels here"),
    ),
    pytest.param(
        "triton",
        marks=[
            pytest.mark.thorough,
            pytest.mark.skipif(bool(why_not("triton")), reason="no Triton here"),
        ],
    ),
]
ROUTINGS: dict[str, Callable[[], Routing]] = {
    "em": lambda: EMRouting(inverse_temperature=1.0),
    "euclidean": EuclideanKMeansRouting,
    "heinsen_2019": Heinsen2019Routing,
    "prototypes": PrototypeRouting,
    "variational_bayes": VariationalBayesRouting,
}


def poses(children: int, rows: int, offset: float) -> Tensor:
    child = (
        torch.randn(B, 1, rows, P, generator=torch.manual_seed(0), dtype=torch.float64)
        + offset
    )
    return child.float().double().repeat(1, children, 1, 1)


def gradients(
    loss: Callable[..., tuple[Tensor, ...]], leaves: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The outputs and, under fixed upstream gradients, the gradients of the leaves, in
    float64.
    """
    outputs = loss(**leaves)
    generator = torch.manual_seed(1)
    total = sum(
        (
            output
            * torch.randn(output.shape, generator=generator, dtype=torch.float64).to(
                output
            )
        ).sum()
        for output in outputs
    )
    assert isinstance(total, Tensor)
    gradients_of_leaves = torch.autograd.grad(total, list(leaves.values()))
    return {
        name: tensor.detach().double()
        for name, tensor in zip(
            [*map(str, range(len(outputs))), *leaves],
            [*outputs, *gradients_of_leaves],
            strict=True,
        )
    }


def errors(actual: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: (actual[name] - right[name]).square().mean().sqrt() for name in right}


def as_good(run: Callable[[str, torch.dtype], dict[str, Tensor]], backend: str) -> None:
    """The errors in float32 are those of stored votes, but for a factor, or for a few
    roundings of the result.
    """
    right = run("naive", torch.float64)
    allowed = errors(run("naive", torch.float32), right)
    actual = errors(run(backend, torch.float32), right)
    for name, tensor in right.items():
        rounding = 3e-6 * tensor.square().mean().sqrt().clamp(min=1e-3)
        assert actual[name] <= 10 * allowed[name] + rounding, (
            f"{name}: {actual[name]:.1e}, stored {allowed[name]:.1e}"
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("offset", [0, 10])
@pytest.mark.parametrize(("children", "rows"), [(1, 1), (1, 4), (2, 4)])
@pytest.mark.parametrize("name", ROUTINGS)
def test_routings(
    name: str, children: int, rows: int, offset: float, backend: str
) -> None:
    def run(backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
        torch.manual_seed(0)
        layer = tc.CapsLinear(
            children, J, (rows, P), (rows, D), routing=ROUTINGS[name]()
        )
        layer.requires_grad_(False).to(dtype)
        start = {
            "pose": poses(children, rows, offset),
            "activation": torch.full((B, children), 0.75, dtype=torch.float64),
            "weight": layer.weight[:1].repeat(children, 1, 1, 1),
        }

        def loss(
            pose: Tensor, activation: Tensor, weight: Tensor
        ) -> tuple[Tensor, ...]:
            with use_backend(backend):
                out = torch.func.functional_call(
                    layer, {"weight": weight}, (tc.Capsules(pose, activation),)
                )
            return out.pose, out.activation

        return gradients(
            loss,
            {key: tensor.to(dtype).requires_grad_() for key, tensor in start.items()},
        )

    as_good(run, backend)


def fit(moments: Moments) -> "Own":
    mean, variance = moments.mean, moments.variance + 5e-4
    return Own.likelihood(mean, variance, torch.zeros_like(moments.mass))


@dataclass(frozen=True, eq=False)
class Own(Gaussian):
    """Under another name, so that no tiles are written for it."""


@pytest.mark.parametrize("offset", [0, 10])
@pytest.mark.parametrize("children", [1, 2])
def test_similarities_of_ones_own(children: int, offset: float) -> None:
    transforms = torch.randn(1, J, P, D, generator=torch.manual_seed(2)).repeat(
        children, 1, 1, 1
    )

    def run(backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
        def loss(pose: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            votes = Votes(pose, weight, backend=backend)
            fitted = fit(votes.moments(scatter=True))
            fitted = fit(votes.moments(fitted, scatter=True))
            return fitted.mean, fitted.log_weight

        start = {"pose": poses(children, 4, offset), "weight": transforms}
        return gradients(
            loss,
            {key: tensor.to(dtype).requires_grad_() for key, tensor in start.items()},
        )

    as_good(run, "chunked")
