"""Slot attention against the package slot-attention, and as the K-Means that it is
without its networks.
"""

from typing import Any

import pytest
import torch
from by_the_book import inner_product_kmeans_routing
from slot_attention import SlotAttention
from torch import Tensor

from tests.random_numbers import normal
from torchcaps.ops import Votes
from torchcaps.routing import (
    LayerShape,
    Routed,
    SlotAttentionRouting,
)
from torchcaps.squashing import length

B = 2
I = 40
J = 5
H = 8


def votes_of(children: Tensor, slots: int = J, **options: Any) -> Votes:
    transforms = children.new_zeros(1, 1, children.shape[-1], H)
    return Votes(children, transforms.expand(-1, slots, -1, -1), **options)


def bound(start: str = "normal", **settings: Any) -> SlotAttentionRouting:
    torch.manual_seed(1)
    routing = SlotAttentionRouting(start=start, **settings)
    layer: Any = routing.bind(LayerShape(None, J, (H,), (H,))).double()
    return layer


PAIRS = {
    "norm_input": "norm_child",
    "norm_slots": "norm_slot",
    "to_q": "to_query",
    "gru": "update.cell",
    "norm_pre_ff": "update.mlp.0",
    "mlp.0": "update.mlp.1",
    "mlp.2": "update.mlp.3",
}
"""Modules of the package and ours."""


def of_the_package(theirs: SlotAttention) -> SlotAttentionRouting:
    """Our routing with their weights."""
    ours = bound(hidden=theirs.mlp[0].out_features, bias=True, steps=theirs.iters)
    for name, mine in PAIRS.items():
        state = theirs.get_submodule(name).state_dict()
        ours.get_submodule(mine).load_state_dict(state)
    with torch.no_grad():
        for part in ("weight", "bias"):
            both = [getattr(theirs.to_k, part), getattr(theirs.to_v, part)]
            getattr(ours.to_key_value, part).copy_(torch.cat(both))
        ours.first.mean.copy_(theirs.slots_mu[0])
        ours.first.log_deviation.copy_(theirs.slots_logsigma[0])
    return ours


@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
@pytest.mark.parametrize("slots", [J, J + 2])
def test_values_and_gradients_are_those_of_the_package(
    slots: int, backend: str
) -> None:
    torch.manual_seed(2)
    theirs = SlotAttention(J, H, iters=3, hidden_dim=16).double()
    ours = of_the_package(theirs)
    children = normal(B, I, H).requires_grad_()
    upstream = normal(B, slots, H, seed=3)

    torch.manual_seed(4)
    expected = theirs(children, num_slots=slots)
    expected_gradient = torch.autograd.grad(
        (expected * upstream).sum(), [children, theirs.to_q.weight, theirs.slots_mu]
    )
    start = theirs.slots_mu + theirs.slots_logsigma.exp() * _drawn_with(4, slots)
    votes = votes_of(children, slots, backend=backend)
    initial = Routed(
        start.expand(B, -1, -1).detach(), length(start.expand(B, -1, -1)), votes, None
    )
    routed = ours(votes, initial=initial)
    gradient = torch.autograd.grad(
        (routed.pose * upstream).sum(), [children, ours.to_query.weight]
    )
    torch.testing.assert_close(routed.pose, expected, atol=1e-6, rtol=0)
    for mine, other in zip(gradient, expected_gradient, strict=False):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


def _drawn_with(seed: int, slots: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(B, slots, H, dtype=torch.float64)


def test_the_gradient_of_the_start_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(2)
    theirs = SlotAttention(J, H, iters=3, hidden_dim=16).double()
    ours = of_the_package(theirs)
    noise = normal(B, J, H, seed=5)
    monkeypatch.setattr(torch, "randn", lambda *shape, **kwargs: noise)
    children = normal(B, I, H)
    upstream = normal(B, J, H, seed=3)
    expected = torch.autograd.grad(
        (theirs(children) * upstream).sum(), [theirs.slots_mu, theirs.slots_logsigma]
    )
    routed = ours(votes_of(children))
    gradient = torch.autograd.grad(
        (routed.pose * upstream).sum(), [ours.first.mean, ours.first.log_deviation]
    )
    for mine, other in zip(gradient, expected, strict=True):
        torch.testing.assert_close(mine, other[0], atol=1e-6, rtol=0)


def plain(**settings: Any) -> SlotAttentionRouting:
    """Without GRU cell and MLP, and with projections that change nothing."""
    routing = bound(gru=False, hidden=0, **settings)
    with torch.no_grad():
        routing.to_key_value.weight.copy_(torch.eye(H).repeat(2, 1))
        routing.to_query.weight.copy_(torch.eye(H))
    return routing


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_without_networks_it_is_kmeans(steps: int) -> None:
    """The centre of normalised children has mean 0, so its normalisation is its
    direction times the root of H, which is what K-Means compares with.
    """
    children = normal(B, I, H)
    start = normal(B, J, H, seed=1)
    start = start - start.mean(-1, keepdim=True)
    votes = votes_of(children)
    initial = Routed(start, length(start), votes, None)
    routed = plain(steps=steps)(votes, initial=initial)
    normalised = torch.nn.functional.layer_norm(children, (H,))
    identity = torch.eye(H, dtype=torch.float64).expand(1, J, H, H)
    clustered = inner_product_kmeans_routing(
        Votes(normalised, identity), steps=steps, initial=initial
    )
    torch.testing.assert_close(
        routed.assignment, clustered.assignment, atol=1e-4, rtol=0
    )
    centre = torch.einsum("bij,bih->bjh", routed.assignment, normalised)
    mass = routed.assignment.sum(1)
    torch.testing.assert_close(routed.pose, centre / mass[..., None])
    torch.testing.assert_close(routed.activation, mass / I)


def test_any_number_of_slots_from_one_gaussian_and_the_first_ones_start_alike() -> None:
    routing = bound().eval()
    few = routing.first(1, 3, torch.float64)
    many = routing.first(1, 9, torch.float64)
    assert many.shape == (1, 9, H)
    torch.testing.assert_close(many[:, :3], few)


def test_training_draws_a_start_for_each_example_and_evaluation_none() -> None:
    children = normal(1, I, H).expand(2, -1, -1)
    routing = bound()
    first, second = routing(votes_of(children)).pose
    assert not torch.allclose(first, second)
    routing.eval()
    torch.testing.assert_close(*routing(votes_of(children)).pose)


def test_queries_are_for_as_many_slots_as_there_are() -> None:
    routing = bound("queries")
    with pytest.raises(ValueError, match=r"slots must be 5.*got 7.*start='normal'"):
        routing(votes_of(normal(B, I, H), 7))


def test_the_gradient_of_the_last_step_is_that_of_one_step_from_its_start() -> None:
    children = normal(B, I, H).requires_grad_()
    routing = bound("queries", steps=4, gradient="last")
    single = bound("queries", steps=1)
    before = bound("queries", steps=3)(votes_of(children))
    expected = single(
        votes_of(children), initial=before._replace(pose=before.pose.detach())
    )
    routed = routing(votes_of(children))
    torch.testing.assert_close(routed.pose, expected.pose)
    torch.testing.assert_close(
        *(
            torch.autograd.grad(tensor.pose.sum(), children)
            for tensor in (routed, expected)
        )
    )


def test_the_last_step_passes_its_gradient_on_to_the_queries() -> None:
    routing = bound("queries", steps=4, gradient="last")
    routing(votes_of(normal(B, I, H))).pose.sum().backward()
    assert routing.first.queries.grad.abs().sum() > 0


@pytest.mark.usefixtures("kernels")
def test_a_fused_backend_is_taken() -> None:
    votes = votes_of(torch.randn(B, 40960, H))
    routing: Any = SlotAttentionRouting().bind(LayerShape(None, J, (H,), (H,)))
    routed = routing(votes)
    assert routed.votes.choose_backend(routed.similarity).backend == "native"


def test_a_sum_is_the_mean_times_the_share_of_the_children() -> None:
    children, activation = normal(B, I, 1, H), normal(B, I).sigmoid()
    routing = bound(steps=1, aggregate="sum", gru=False, hidden=0).eval()
    routed = routing(votes_of(children), activation)
    normalised = routing.norm_child(children[:, :, 0])
    value = routing.to_key_value(normalised)[..., H:]
    taken = activation[..., None] * routed.assignment  # [B, I, J]
    whole = activation.sum(1)[:, None, None]
    torch.testing.assert_close(routed.pose, taken.mT @ value / whole)


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_a_projection_that_was_put_in_has_its_own_bias(backend: str) -> None:
    biased, plain = bound(bias=True), bound()
    plain.load_state_dict(biased.state_dict(), strict=False)
    plain.to_key_value, plain.to_query = biased.to_key_value, biased.to_query
    children = normal(B, I, H)
    results = (
        routing.eval()(votes_of(children, backend=backend)).pose
        for routing in (plain, biased)
    )
    torch.testing.assert_close(*results)


class Doubled(torch.nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("backend", ["naive", "chunked"])
@pytest.mark.parametrize("norm", [Doubled(H), torch.nn.RMSNorm(H)])
def test_a_normalisation_that_was_put_in_is_called(
    norm: torch.nn.Module, backend: str
) -> None:
    children = normal(B, I, H)
    other, without = bound().eval(), bound().eval()
    other.norm_child, without.norm_child = norm.double(), torch.nn.Identity()
    torch.testing.assert_close(
        other(votes_of(children, backend=backend)).pose,
        without(votes_of(norm(children), backend=backend)).pose,
    )
