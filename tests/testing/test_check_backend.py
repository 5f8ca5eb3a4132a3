"""Every backend is what naive is; one that is not is told from one that is."""

from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor

from torchcaps.ops import BACKENDS, Competition, Moments, VoteSource
from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.naive import NaiveVotes
from torchcaps.testing import check_backend
from torchcaps.testing.backends import COMPETITIONS, PROBLEMS, SIMILARITIES

ALL = len(PROBLEMS) * len(SIMILARITIES) * len(COMPETITIONS)


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("native", 2**19),
        *(
            pytest.param(*more, marks=pytest.mark.thorough)
            for more in (("naive", 2**19), ("chunked", 2**19), ("chunked", 400))
        ),
    ],
)
@pytest.mark.usefixtures("poisoned")
def test_every_backend(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", tile)
    compared = check_backend(BACKENDS[name])
    assert compared == (len(PROBLEMS) * 3 * 5 if name == "native" else ALL)


@pytest.mark.parametrize(
    "name", [pytest.param("chunked", marks=pytest.mark.thorough), "native"]
)
def test_float32(name: str) -> None:
    check_backend(BACKENDS[name], dtype=torch.float32)


@pytest.fixture
def one_competition(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broken here is looked for behind all similarities and competitions."""
    monkeypatch.setattr(
        "torchcaps.testing.backends.COMPETITIONS",
        {"a softmax": COMPETITIONS["a softmax"]},
    )
    monkeypatch.setattr("torchcaps.testing.backends.EDGES", ("a softmax",))


def with_moments(
    change: Callable[[NaiveVotes, Moments, Competition], Moments],
) -> type[NaiveVotes]:
    """The reference, but that its moments are changed."""

    class Changed(NaiveVotes):
        def moments(self, *call: Any) -> Moments:
            return change(self, super().moments(*call), call[2])

    return Changed


class Still(NaiveVotes):
    def moments(self, similarity: Any, weights: Tensor | None, *rest: Any) -> Moments:
        return super().moments(
            similarity, None if weights is None else weights.detach(), *rest
        )


class Boastful(ChunkedVotes):
    """The defect that this contract is there for: a backend that takes every similarity
    for one that it knows.
    """

    def moments(self, similarity: Any, *rest: Any) -> Moments:
        known = (
            similarity
            if type(similarity).__name__ in ("InnerProduct", "Gaussian")
            else None
        )
        return super().moments(known, *rest)


class Modest(NaiveVotes):
    supports = classmethod(lambda *_: "not today")


class Curt(NaiveVotes):
    supports = classmethod(lambda *_: True)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            with_moments(
                lambda votes, moments, rule: moments._replace(
                    mass=moments.mass * (1 + 1e-6 * rule.leaky)
                )
            ),
            r"Changed differs from naive for .* with a leak: mass is off by 1e-06",
        ),
        (Still, "the gradient of weights is off"),
        (
            Boastful,
            r"Boastful differs from naive for given logits \(I, J\) under a soft",
        ),
        (Modest, "Modest supports nothing"),
        (Curt, r"Curt\.supports must return a str, got True"),
    ],
    ids=[
        "wrong by a little",
        "a gradient is missing",
        "says yes",
        "says no",
        "answers in no words",
    ],
)
def test_what_is_broken_is_told(broken: type[VoteSource], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_backend(broken)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (
            with_moments(
                lambda votes, moments, _: moments._replace(
                    mass=moments.mass + (votes.children.shape[1] == 0)
                )
            ),
            r"Changed fails for .*children=0.*: mass is off",
        ),
        (
            with_moments(
                lambda votes, moments, _: moments._replace(sum=moments.sum.nan_to_num())
            ),
            r"Changed fails for .*sum hides NaN of a child's pose in",
        ),
    ],
    ids=[
        "memory that nobody wrote to",
        "NaN is hidden",
    ],
)
@pytest.mark.usefixtures("one_competition")
def test_what_is_broken_behind_the_competitions_is_told(
    broken: type[VoteSource], words: str
) -> None:
    test_what_is_broken_is_told(broken, words)


@pytest.mark.parametrize(
    ("method", "name"), [("logits", "mass"), ("log_partition", "log_partition")]
)
def test_nan(method: str, name: str) -> None:
    def spoiled(self: VoteSource, *args: object) -> Tensor:
        return getattr(NaiveVotes, method)(self, *args) * torch.nan

    made = type("Spoiled", (NaiveVotes,), {method: partialmethod(spoiled)})
    with pytest.raises(AssertionError, match=f"{name} is off by nan"):
        check_backend(made)
