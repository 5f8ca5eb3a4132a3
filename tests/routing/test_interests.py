"""Routing of interests against the equations of the papers, step by step, and of code
that is in use.
"""

from typing import Any

import pytest
import torch
from by_the_book import normal

from torchcaps import CapsConv1d, CapsLinear, Capsules
from torchcaps.ops import Votes
from torchcaps.routing import (
    InterestRouting,
    interests_of,
    label_aware,
)

B = 3
I = 7
J = 4
D = 5
ITEMS = normal(B, I, D)
W = normal(1, 1, D, D, seed=1)
START = normal(J, D, seed=2)
THERE = torch.arange(I) < torch.tensor([[7], [4], [1]])  # lengths of histories
PAIRS = THERE[..., None] & interests_of(THERE.sum(1), J)[:, None]


def votes() -> Votes:
    return Votes(ITEMS[:, :, None], W.expand(-1, J, -1, -1), mask=THERE)


def started(start: torch.Tensor = START, **arguments: Any) -> InterestRouting:
    """A routing that starts from these parents, (J, D)."""
    routing = InterestRouting(**arguments)
    routing.start = torch.nn.Parameter(start)
    return routing


def squashed(s: torch.Tensor) -> torch.Tensor:
    n = s.norm(dim=-1, keepdim=True)
    return s * n / (1 + n**2)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_the_papers_algorithm(steps: int) -> None:
    hat = ITEMS @ W[0, 0]
    b = hat @ START.mT
    for _ in range(steps):
        w = b.masked_fill(~PAIRS, -1e30).softmax(2) * THERE[..., None]
        u = squashed(torch.einsum("bij,bid->bjd", w, hat))
        b = b + torch.einsum("bjd,bid->bij", u, hat)
    routed = started(steps=steps).route(votes(), None, PAIRS)
    torch.testing.assert_close(routed.pose, u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_the_form_in_use(steps: int) -> None:
    def unit(x: torch.Tensor) -> torch.Tensor:
        return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-30)

    votes_of_items = ITEMS @ W[0, 0]
    logits = votes_of_items @ START.mT
    hat = unit(votes_of_items)
    for _ in range(steps):
        logits = logits.masked_fill(~PAIRS, -1e30).softmax(2) * THERE[..., None]
        u = unit(squashed(torch.einsum("bij,bid->bjd", logits, hat)))
        logits = logits + 0.5 * torch.einsum("bjd,bid->bij", u, hat)
    routing = started(steps=steps, sharpness=0.5, form="released")
    routed = routing.route(votes(), None, PAIRS)
    torch.testing.assert_close(routed.pose, u, rtol=0, atol=1e-12)


def test_uniform_logits_keep_all_parents_equal() -> None:
    pose = started(torch.zeros_like(START), steps=4).route(votes(), None).pose
    torch.testing.assert_close(pose, pose[:, :1].expand_as(pose))
    pose = started(steps=4).route(votes(), None).pose
    assert (pose[0, 0] - pose[0, 1]).norm() > 0.01


def test_a_layer_with_padding_and_fewer_interests() -> None:
    layer = CapsLinear(
        None, J, D, D, transforms="subspace", routing=InterestRouting()
    ).double()
    parents = layer(Capsules(ITEMS, torch.ones(B, I).double()), PAIRS)
    assert (parents.activation > 0).tolist() == interests_of(THERE.sum(1), J).tolist()
    padded = torch.cat([ITEMS, torch.full((B, 2, D), torch.nan)], 1)
    more = torch.cat([PAIRS, torch.zeros(B, 2, J).bool()], 1)
    torch.testing.assert_close(
        layer(Capsules(padded, torch.ones(B, I + 2).double()), more).pose, parents.pose
    )
    parents.pose.sum().backward()
    assert isinstance(layer.routing, InterestRouting)
    assert layer.routing.start.grad.isfinite().all()
    assert layer.routing.start.grad.any()


def test_votes_that_are_to_be_of_length_1_are_the_same_for_all_parents() -> None:
    routing = InterestRouting(form="released")
    CapsLinear(None, J, D, D, transforms="subspace", routing=routing)
    for make in (
        lambda: CapsLinear(I, J, D, D, routing=routing),
        lambda: CapsLinear(
            None, J, D, D, transforms="subspace", routing=routing, vote_bias=True
        ),
        lambda: CapsConv1d(2, J, D, D, 2, routing=routing),
    ):
        with pytest.raises(ValueError, match="form must be 'paper'"):
            make()


def test_how_many_interests() -> None:
    counts = interests_of(torch.tensor([0, 1, 2, 3, 4, 5, 100]), 4).sum(1)
    assert counts.tolist() == [1, 1, 1, 2, 2, 3, 4]


def test_what_interests_say_of_one_thing() -> None:
    interests = normal(B, J, D)
    label = normal(B, D, seed=5)
    torch.testing.assert_close(label_aware(interests, label, 0.0), interests.mean(1))
    best = (interests @ label[..., None])[..., 0].argmax(1)
    torch.testing.assert_close(
        label_aware(interests, label, torch.inf), interests[range(B), best]
    )
    torch.testing.assert_close(
        label_aware(interests, label, 1e4), interests[range(B), best]
    )


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("scale", [1e-15, 1e-9, 1e9])
def test_released_parents_have_length_1(size: int, scale: float) -> None:
    """Of votes of any scale, in float32 as in float64."""
    start = normal(J, size, seed=2)
    items = normal(B, I, D)
    transforms = normal(1, 1, D, size, seed=1).expand(-1, J, -1, -1)
    exact = started(start, form="released").route(
        Votes(items[:, :, None], transforms), None
    )
    for dtype in (torch.float32, torch.float64):
        votes = Votes((scale * items[:, :, None]).to(dtype), transforms.to(dtype))
        routed = started((start / scale).to(dtype), form="released").route(votes, None)
        torch.testing.assert_close(routed.activation, torch.ones(B, J, dtype=dtype))
        torch.testing.assert_close(
            routed.pose.double(), exact.pose, rtol=1e-3, atol=1e-4
        )


def test_released_parents_of_nothing_have_no_gradient() -> None:
    """The direction of a vote of 0, as of an item that pads a history, has none."""
    items = ITEMS.float()
    items[1] = 0
    items[2, 0] = 0
    items.requires_grad_()
    there = torch.ones(B, I).index_fill(0, torch.tensor([0]), 0).requires_grad_()
    children = items[:, :, None]
    routing = started(START.float(), form="released")
    routed = routing.route(Votes(children, W.float().expand(-1, J, -1, -1)), there)
    assert not routed.pose[:2].any()
    routed.pose.sum().backward()
    assert not items.grad[items.detach() == 0].any()
    assert not there.grad[:2].any()
    assert items.grad.abs().max() < 100
