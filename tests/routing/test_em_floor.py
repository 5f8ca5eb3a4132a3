"""A variance floor relative to the votes: EM routing that no scale of the votes
changes.
"""

from typing import Any

import pytest
import torch
from by_the_book import normal
from torch import Tensor

from torchcaps import CapsConv2d, Capsules, ClassCaps
from torchcaps.ops import Votes
from torchcaps.routing import EM_PRESETS, EMRouting, EMSettings, Routed, em_routing
from torchcaps.testing import assert_equivariant, signed_permutation

BACKENDS = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
SCALES = pytest.mark.parametrize("scale", [1e-3, 1e3])
LAMBDAS = (0.05, 0.1, 0.15)


def feature_map(scale: float = 1.0, size: int = 5) -> Capsules:
    """A map with a corner where all children are off."""
    activation = normal(2, size, size, 3, seed=1).sigmoid()
    activation[:, :3, :3] = 0.0
    return Capsules(scale * normal(2, size, size, 3, 2, 3), activation)


def bound(name: str, **options: Any) -> EMRouting:
    return (
        EMRouting.preset(name, **{"relative_floor": 0.01, **options})
        .bind(4, 6)
        .double()
    )


class TestScale:
    """Poses are scaled, assignments and activations stay, to 1e-10."""

    def same(self, routed: Routed, expected: Routed, scale: float) -> None:
        torch.testing.assert_close(
            routed.assignment, expected.assignment, rtol=1e-10, atol=1e-10
        )
        torch.testing.assert_close(
            routed.activation, expected.activation, rtol=1e-10, atol=1e-10
        )
        torch.testing.assert_close(
            routed.pose / scale, expected.pose, rtol=1e-10, atol=1e-10
        )

    @SCALES
    @BACKENDS
    @pytest.mark.parametrize("preset", EM_PRESETS)
    def test_votes(self, preset: str, backend: str, scale: float) -> None:
        children = normal(2, 11, 2, 3)
        transforms = normal(11, 4, 3, 3, seed=1)
        activation = normal(2, 11).sigmoid()
        routing = bound(preset)
        expected = routing(Votes(children, transforms, backend=backend), activation)
        self.same(
            routing(Votes(children, scale * transforms, backend=backend), activation),
            expected,
            scale,
        )

    @SCALES
    @pytest.mark.parametrize("competition", ["image", "position", "window"])
    def test_convolution(self, competition: Any, scale: float) -> None:
        routing = EMRouting.preset("soft", relative_floor=0.01)
        layer = CapsConv2d(
            3, 4, (2, 3), (2, 3), 3, 2, 1, routing=routing, competition=competition
        ).double()
        (expected,), (routed,) = (
            layer.route(feature_map()),
            layer.route(feature_map(scale)),
        )
        self.same(routed, expected, scale)

    def test_nan_of_one_vote_leaves_its_example_without_a_unit(self) -> None:
        """In windows that do not see it, too: their floor would be another one without
        a word.
        """
        children = feature_map()
        children.pose[0, 4, 4] = torch.nan
        routing = EMRouting.preset("soft", relative_floor=0.01)
        layer = CapsConv2d(
            3, 4, (2, 3), (2, 3), 3, routing=routing, competition="window"
        ).double()
        activation = layer(children).activation
        assert activation[0].isnan().all()
        assert activation[1].isfinite().all()

    def test_an_absolute_floor_is_not_of_that_kind(self) -> None:
        children = normal(2, 11, 2, 3)
        transforms = normal(11, 4, 3, 3, seed=1)
        routing = bound("soft", relative_floor=0.0)
        large, small = (
            routing(Votes(children, scale * transforms)).assignment
            for scale in (1e3, 1e-3)
        )
        assert (large - small).abs().max() > 0.1


def spread_of_votes(V: Tensor, share: Tensor) -> Tensor:
    """The variance about each parent's mean of the votes (W, I, J, H) of one example;
    shares (W, I, J).
    """
    sum_of_squares = weight = torch.zeros((), dtype=V.dtype)
    for window in range(V.shape[0]):
        for parent in range(V.shape[2]):
            votes = V[window, :, parent]
            r = share[window, :, parent, None]
            if r.sum() > 0:
                mean = (r * votes).sum(0) / r.sum()
                sum_of_squares = sum_of_squares + (r * (votes - mean) ** 2).sum()
                weight = weight + r.sum() * votes.shape[-1]
    return sum_of_squares / weight


@BACKENDS
def test_it_is_as_if_the_votes_had_variance_1(backend: str) -> None:
    """Routing with an absolute floor of votes that were divided by their deviation,
    example by example.
    """
    children = normal(2, 11, 2, 3)
    transforms = normal(11, 4, 3, 3, seed=1)
    activation, beta_u, beta_a = normal(2, 11).sigmoid(), *normal(2, 4, seed=3)
    dense = Votes(children, transforms).dense()
    share = (activation / 4)[..., None].expand(2, 11, 4)
    deviation = torch.stack(
        [spread_of_votes(dense[b : b + 1], share[b : b + 1]).sqrt() for b in range(2)]
    )
    settings = {"mean_smoothing": 0.1, "cost_scale": 2.0}
    routed = em_routing(
        Votes(children, transforms, backend=backend),
        activation,
        beta_u,
        beta_a,
        LAMBDAS,
        EMSettings(**settings, relative_floor=0.2, variance_floor=7.0),
    )
    unit = Votes(children / deviation[:, None, None, None], transforms)
    expected = em_routing(
        unit,
        activation,
        beta_u,
        beta_a,
        LAMBDAS,
        EMSettings(**settings, variance_floor=0.2),
    )
    torch.testing.assert_close(
        routed.assignment, expected.assignment, rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(
        routed.activation, expected.activation, rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(
        routed.pose, expected.pose * deviation[:, None, None], rtol=1e-9, atol=1e-12
    )


def test_the_windows_of_an_example_have_one_floor() -> None:
    """And examples do not know of each other."""
    routing = EMRouting.preset("soft", relative_floor=0.3, steps=1)
    layer = CapsConv2d(
        3, 4, (2, 3), (2, 3), 3, routing=routing, competition="window"
    ).double()
    children = feature_map(size=4)  # the first of four windows has no active child
    children.pose[1] *= 5.0
    (routed,) = layer.route(children)
    dense = routed.votes.dense()
    share = routed.votes.gather(children.activation.flatten(1))[..., None] / 4
    for example in range(2):
        rows = slice(4 * example, 4 * example + 4)
        spread = spread_of_votes(dense[rows], share[rows].expand(-1, -1, 4))
        cost = torch.zeros(4, 4, dtype=torch.float64)
        for window, (votes, r) in enumerate(zip(dense[rows], share[rows], strict=True)):
            mass = r.sum()
            if mass > 0:
                mean = (r[..., None] * votes).sum(0) / mass
                variance = (r[..., None] * (votes - mean) ** 2).sum(
                    0
                ) / mass + 0.3 * spread
                cost[window] = (variance / spread).log().sum(-1) / 2 * mass
        # one step at lambda 1, both betas 0
        standard = (cost - cost.mean(1, keepdim=True)) / (
            cost.var(1, unbiased=False, keepdim=True) + 1e-8
        ).sqrt()
        torch.testing.assert_close(
            routed.activation[rows], (-standard).sigmoid(), rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("active", [0, 1], ids=["no child at all", "one child"])
@pytest.mark.parametrize("layer", ["conv", "class"])
def test_votes_that_do_not_spread(layer: str, active: int) -> None:
    """All is finite, gradients too."""
    routing = EMRouting.preset("soft", relative_floor=0.01)
    shared: dict[str, Any] = {"routing": routing}
    module = (
        CapsConv2d(3, 4, (2, 3), (2, 3), 3, 2, **shared)
        if layer == "conv"
        else ClassCaps(3, 4, (2, 3), (2, 3), coordinates=False, **shared)
    ).double()
    children = feature_map()
    children.activation.zero_()
    children.activation[:, 0, 0, :active] = 1.0
    tensors = [
        children.pose.requires_grad_(),
        children.activation.requires_grad_(),
        *module.parameters(),
    ]
    parents = module(Capsules(*tensors[:2]))
    gradients = torch.autograd.grad(
        parents.pose.square().sum() + parents.activation.sum(), tensors
    )
    assert all(tensor.isfinite().all() for tensor in (*parents, *gradients))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-2), (torch.float64, 1e-9)]
)
def test_rounding_is_no_spread(dtype: torch.dtype, tolerance: float) -> None:
    """The votes of the only child that is there are their own means, to the last bit or
    nearly so.
    """
    results = []
    for backend in ("naive", "chunked", "native"):
        children = normal(2, 20, 4, 4).to(dtype)
        transforms = normal(20, 4, 4, 4, seed=1).to(dtype).requires_grad_()
        activation = torch.zeros(2, 20, dtype=dtype)
        activation[:, 7] = 0.9
        routing = (
            EMRouting.preset("standardised", relative_floor=0.01).bind(4, 16).to(dtype)
        )
        routed = routing(Votes(children, transforms, backend=backend), activation)
        gradient = torch.autograd.grad(
            routed.activation.sum() + routed.pose.square().sum(), transforms
        )[0]
        results.append((routed.activation, gradient))
    for activation, gradient in results[1:]:
        torch.testing.assert_close(activation, results[0][0])
        assert (
            gradient - results[0][1]
        ).norm() < tolerance * gradient.norm()  # three sharp steps: rounding grows


def test_a_change_of_viewpoint_passes_through() -> None:
    layer = CapsConv2d(
        3,
        4,
        (2, 3),
        (2, 3),
        3,
        2,
        1,
        routing=EMRouting.preset("soft", relative_floor=0.1),
    ).double()
    assert_equivariant(
        layer, feature_map(), signed_permutation(2), atol=1e-9, rtol=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "f32"])
def test_precision(dtype: torch.dtype) -> None:
    """Votes of any scale in the range of float32."""
    torch.manual_seed(0)
    layer = CapsConv2d(
        3, 4, (2, 3), (2, 3), 3, routing=EMRouting.preset("soft", relative_floor=0.01)
    )
    results = []
    for scale in (1e-6, 1.0, 1e6):
        children = Capsules(*(field.to(dtype) for field in feature_map()))
        parents = layer.to(dtype)(children._replace(pose=children.pose * scale))
        parents.pose.sum().backward()
        assert layer.weight.grad.isfinite().all()
        results.append(parents.activation)
    torch.testing.assert_close(results[0], results[1], rtol=0.05, atol=0.02)
    torch.testing.assert_close(results[2], results[1], rtol=0.05, atol=0.02)
