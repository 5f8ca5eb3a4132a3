"""Means of votes at parents that take next to nothing of them, by the same equations in
a wider dtype.
"""

import math
from collections.abc import Callable

import pytest
import torch
from by_the_book import routed_with
from torch import Tensor, nn

from torchcaps import CapsLinear, Capsules
from torchcaps.ops import Votes
from torchcaps.routing import (
    EuclideanKMeansRouting,
    HardKMeansRouting,
    PrototypeRouting,
    Routed,
    SelfRouting,
    create_routing,
)

Function = Callable[[Votes, Tensor | None, float], Routed]

# One number a vote: two children near 5, and parents at 5 and so far off that it takes
# that share of the second child.
CHILDREN = torch.tensor([[[5.0], [5.5]]])
ACTIVATIONS = torch.tensor([[0.5, 0.25]])
TRANSFORMS = torch.ones(2, 2, 1, 1)


def centres(votes: Votes, share: float) -> Tensor:
    return votes.children.new_tensor([[5.0], [5.5 + math.sqrt(0.25 - math.log(share))]])


def euclidean(votes: Votes, weights: Tensor | None, share: float) -> Routed:
    begin = centres(votes, share)[None]
    before = Routed(begin, begin[..., 0], votes, None)
    return EuclideanKMeansRouting(steps=1)(votes, weights, initial=before)


def prototypes(votes: Votes, weights: Tensor | None, share: float) -> Routed:
    return routed_with(
        PrototypeRouting(1.0), votes, weights, prototypes=centres(votes, share)
    )


def own_choice(votes: Votes, weights: Tensor | None, share: float) -> Routed:
    bias = votes.children.new_tensor(
        [[0.0, math.log(share) - 0.5], [0.0, math.log(share)]]
    )
    weight = bias.new_zeros(2, 2, 1)
    return routed_with(SelfRouting(), votes, weights, weight=weight, bias=bias)


ROUTES = pytest.mark.parametrize("route", [euclidean, prototypes, own_choice])
BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "auto"])


def pose_and_gradients(
    route: Function,
    share: float,
    dtype: torch.dtype,
    backend: str,
    weighted: bool = True,
) -> list[Tensor]:
    """The pose of the far parent, its gradients, and theirs."""
    inputs = [
        tensor.to(dtype).requires_grad_()
        for tensor in (CHILDREN, TRANSFORMS, ACTIVATIONS)
    ]
    votes = Votes(*inputs[:2], backend=backend)
    pose = route(votes, inputs[2] if weighted else None, share).pose[0, 1, 0]
    inputs = inputs[: 3 if weighted else 2]
    first = torch.autograd.grad(pose, inputs, create_graph=True)
    second = torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs)
    return [pose, *first, *second]


@ROUTES
@BACKENDS
@pytest.mark.parametrize("share", [1e-10, 1e-20, 5e-28])
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
def test_float32_is_float64(
    route: Function, backend: str, share: float, weighted: bool
) -> None:
    single, double = (
        pose_and_gradients(route, share, dtype, backend, weighted)
        for dtype in (torch.float32, torch.float64)
    )
    for number, (actual, expected) in enumerate(
        zip(single, double, strict=True)
    ):  # a logit of -80 has an error of 1e-5
        order = 0 if number == 0 else 1 if number <= len(single) // 2 else 2
        assert (actual - expected).abs().max() <= (1e-6, 1e-3, 5e-2)[
            order
        ] * expected.abs().max()


@ROUTES
@BACKENDS
@pytest.mark.parametrize("share", [1e-32, 1e-60])
def test_shares_that_underflow(route: Function, backend: str, share: float) -> None:
    pose, *grads = pose_and_gradients(route, share, torch.float32, backend)
    if route is euclidean:
        assert pose == centres(Votes(CHILDREN, TRANSFORMS), share)[1]
        assert not any(grad.any() for grad in grads)
    else:
        assert abs(pose) < 0.01
        assert all(grad.isfinite().all() for grad in grads)


@ROUTES
@pytest.mark.parametrize("scale", [1e-22, 1e20])
def test_no_scale_of_the_activations_matters(route: Function, scale: float) -> None:
    votes = Votes(CHILDREN, TRANSFORMS)
    expected, routed = (
        route(votes, ACTIVATIONS * factor, 1e-5) for factor in (1, scale)
    )
    torch.testing.assert_close(routed.pose, expected.pose)
    torch.testing.assert_close(routed.activation, expected.activation)


def test_hard_means_of_faint_children() -> None:
    votes = Votes(CHILDREN, TRANSFORMS)
    routing = HardKMeansRouting().eval()
    expected, routed = (routing(votes, ACTIVATIONS * factor) for factor in (1, 1e-25))
    torch.testing.assert_close(routed.pose, expected.pose)


@pytest.mark.parametrize("name", ["self_routing", "prototypes"])
def test_layers_whose_children_are_all_off_have_no_gradient(name: str) -> None:
    routing = create_routing(name)
    layers = nn.Sequential(
        *(
            CapsLinear(None, 3, 4, 4, transforms="shared", routing=routing)
            for _ in range(3)
        )
    )
    out = layers(
        Capsules(torch.ones(2, 5, 4), torch.tensor([[1.0], [0.0]]).expand(2, 5))
    )
    assert not out.activation[1].any()
    gradients = torch.autograd.grad(
        out.activation[:, 0].sum() + out.pose.sum(), list(layers.parameters())
    )
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("name", ["mean", "euclidean", "prototypes", "em"])
def test_a_pose_of_children_that_are_all_off_has_no_gradient(
    name: str, backend: str
) -> None:
    layer = CapsLinear(5, 3, 4, 4, routing=create_routing(name), backend=backend)
    activation = torch.tensor([[1.0], [0.0]]).repeat(1, 5).requires_grad_()
    pose = layer(Capsules(torch.ones(2, 5, 4), activation)).pose
    (gradient,) = torch.autograd.grad(pose.square().sum() + pose.sum(), activation)
    assert gradient[0].any()
    assert not gradient[1].any()
