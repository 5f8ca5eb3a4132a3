"""What Su's "A Feast of Capsules" tried beside: a softmax over the children, a squash
whose constant is learned.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from by_the_book import (
    B,
    H,
    I,
    J,
    check_equations,
    dynamic_routing,
    inner_product_kmeans_routing,
    normal,
    problem,
    routed_with,
)
from torch import Tensor

from torchcaps import CapsConv2d, create_routing
from torchcaps.ops import Votes
from torchcaps.routing import Routed
from torchcaps.squashing import squash

EXACT = {"rtol": 1e-12, "atol": 1e-12}
ROUTES = pytest.mark.parametrize(
    "route", [dynamic_routing, inner_product_kmeans_routing]
)
NAMES = pytest.mark.parametrize("name", ["dynamic", "kmeans"])
STEPS = pytest.mark.parametrize("steps", [1, 2, 3])


def book(
    V: Tensor,
    a: Tensor,
    *,
    kmeans: bool,
    steps: int,
    axis: int,
    shorten: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Both algorithms, with a softmax over the children (axis 1) or the parents (axis
    2), for stored votes.
    """
    logits = torch.zeros(V.shape[:3], dtype=V.dtype)
    v = V
    c = V
    for _ in range(steps):
        c = logits.softmax(axis)
        s = (c[..., None] * V).sum(1)
        v = shorten(s)
        compared = s / s.norm(dim=-1, keepdim=True) if kmeans else v
        agreement = (V * compared[:, None]).sum(-1)
        logits = agreement if kmeans else logits + agreement
    return v, v.norm(dim=-1), c


@ROUTES
@STEPS
@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_a_softmax_over_the_children(route: Callable, steps: int, backend: str) -> None:
    settings = {"kmeans": route is inner_product_kmeans_routing, "steps": steps}
    page = partial(book, axis=1, shorten=partial(squash, kind="half"), **settings)

    def called(votes: Votes, a: Tensor) -> Routed:
        return route(votes, steps=steps, softmax="children", squash="half")

    check_equations(called, page, (), backend)


@ROUTES
@STEPS
def test_the_shares_of_a_parent_add_up_to_one_whichever_children_are_there(
    route: Callable, steps: int
) -> None:
    children, transforms, _ = problem()
    mask = torch.ones(B, I, dtype=torch.bool)
    mask[0, 2:] = False
    children[0, 2:] = torch.nan
    routed = route(
        Votes(children, transforms, mask=mask),
        steps=steps,
        softmax="children",
        squash="none",
    )
    torch.testing.assert_close(
        routed.assignment.sum(1), torch.ones(B, J, dtype=torch.float64), **EXACT
    )
    assert not routed.assignment[0, 2:].any()
    alone = route(
        Votes(children[:1, :2], transforms[:2]),
        steps=steps,
        softmax="children",
        squash="none",
    )
    torch.testing.assert_close(routed.pose[:1], alone.pose, **EXACT)


@ROUTES
def test_a_parent_is_no_longer_than_its_longest_vote(route: Callable) -> None:
    votes = Votes(*problem()[:2])
    pose = route(votes, softmax="children", squash="none").pose
    assert (pose.norm(dim=-1) <= votes.dense().norm(dim=-1).amax(1)).all()
    assert not (
        route(votes, squash="none").pose.norm(dim=-1)
        <= votes.dense().norm(dim=-1).amax(1)
    ).all()


@ROUTES
def test_all_children_twice_change_nothing(route: Callable) -> None:
    children, transforms, _ = problem()
    once, twice = (
        route(
            Votes(children.repeat(1, times, 1, 1), transforms.repeat(times, 1, 1, 1)),
            softmax="children",
        )
        for times in (1, 2)
    )
    torch.testing.assert_close(once.pose, twice.pose, **EXACT)
    torch.testing.assert_close(once.assignment, 2 * twice.assignment[:, :I], **EXACT)


@ROUTES
@STEPS
@pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
def test_a_learned_constant(route: Callable, steps: int, backend: str) -> None:
    """The constant is a parameter of the book, too: its gradient is compared with the
    others.
    """

    def page(
        V: Tensor, a: Tensor, log_constant: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        def shorten(s: Tensor) -> Tensor:
            n = s.norm(dim=-1, keepdim=True)
            return n * s / (log_constant.exp() + n**2)

        return book(
            V,
            a,
            kmeans=route is inner_product_kmeans_routing,
            steps=steps,
            axis=2,
            shorten=shorten,
        )

    def called(votes: Votes, a: Tensor, log_constant: Tensor) -> Routed:
        name = "kmeans" if route is inner_product_kmeans_routing else "dynamic"
        routing = create_routing(name, steps=steps, squash="learned").bind(J, H)
        constant = {"learned_squash.log_constant": log_constant}
        return routed_with(routing, votes, **constant)

    check_equations(called, page, [normal(seed=3)], backend)


@pytest.mark.parametrize(
    ("name", "default"), [("dynamic", "sabour"), ("kmeans", "half")]
)
def test_it_starts_as_the_default_squash(name: str, default: str) -> None:
    votes = Votes(*problem()[:2])
    learned, plain = (
        create_routing(name, squash=squash).bind(J, H)
        for squash in ("learned", default)
    )
    torch.testing.assert_close(
        learned(votes).pose, plain(votes).pose, rtol=1e-6, atol=0
    )
    ((label, _),) = learned.named_parameters()
    assert label == "learned_squash.log_constant"


@NAMES
def test_a_learned_squash_belongs_to_a_layer(name: str) -> None:
    with pytest.raises(RuntimeError, match="has no parameters yet"):
        create_routing(name, squash="learned")(Votes(*problem()[:2]))


def test_what_only_makes_sense_where_parents_compete() -> None:
    for name, other in (
        ("dynamic", {"leaky": True}),
        ("kmeans", {"assignment": "straight_through"}),
    ):
        with pytest.raises(
            ValueError,
            match=r"softmax must be over 'parents' with (leaky|straight_through)",
        ):
            create_routing(name, softmax="children", **other)
    with pytest.raises(ValueError, match="competition must be 'window'"):
        CapsConv2d(
            2,
            3,
            4,
            4,
            3,
            routing=create_routing("kmeans", softmax="children"),
            competition="image",
        )
