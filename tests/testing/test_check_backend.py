"""Every backend is what naive is; one that is not is told from one that is."""

from functools import partialmethod

import pytest
import torch
from torch import Tensor

from torchcaps.ops import BACKENDS, Agreement, Gaussians, Moments, Rule, Similarity, VoteSource
from torchcaps.ops.agreement import step_by_step
from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.naive import NaiveVotes
from torchcaps.testing import check_backend
from torchcaps.testing.backends import PROBLEMS, RULES, SIMILARITIES

ALL = len(PROBLEMS) * len(SIMILARITIES) * len(RULES)


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("chunked", 2**19),
        ("native", 2**19),
        pytest.param("naive", 2**19, marks=pytest.mark.thorough),
        pytest.param("chunked", 400, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.usefixtures("poisoned")
def test_every_backend(name: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", tile)
    compared = check_backend(BACKENDS[name])
    assert compared == (len(PROBLEMS) * 3 * 4 if name == "native" else ALL)


@pytest.mark.parametrize("name", [pytest.param("chunked", marks=pytest.mark.thorough), "native"])
def test_float32(name: str) -> None:
    check_backend(BACKENDS[name], dtype=torch.float32)


@pytest.fixture
def one_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is broken here is looked for behind all similarities and rules."""
    monkeypatch.setattr("torchcaps.testing.backends.RULES", {"a softmax": RULES["a softmax"]})
    monkeypatch.setattr("torchcaps.testing.backends.EDGE_RULES", ("a softmax",))


class TestBroken:
    def test_wrong_by_a_little(self) -> None:
        class Off(NaiveVotes):
            def moments(
                self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool
            ) -> Moments:
                moments = super().moments(similarity, weights, rule, scatter)
                return moments._replace(mass=moments.mass * (1 + 1e-6 * rule.orphan))

        with pytest.raises(AssertionError, match=r"Off differs from naive for .* with an orphan: mass is off by 1e-06"):
            check_backend(Off)

    def test_a_gradient_is_missing(self) -> None:
        class Still(NaiveVotes):
            def moments(
                self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool
            ) -> Moments:
                return super().moments(similarity, None if weights is None else weights.detach(), rule, scatter)

        with pytest.raises(AssertionError, match="the gradient of weights is off"):
            check_backend(Still)

    @pytest.mark.usefixtures("one_rule")
    def test_gaussians_are_off(self) -> None:
        class Low(NaiveVotes):
            def gaussians(self, moments: Moments, floor: float) -> Gaussians:
                return super().gaussians(moments, floor * 1.01)

        with pytest.raises(AssertionError, match=r"Low fails for the Gaussians of moments.*variance is off"):
            check_backend(Low)

    @pytest.mark.usefixtures("one_rule")
    def test_memory_that_nobody_wrote_to(self) -> None:
        class Careless(NaiveVotes):
            def moments(
                self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool
            ) -> Moments:
                moments = super().moments(similarity, weights, rule, scatter)
                return moments._replace(mass=moments.mass + (self.children.shape[1] == 0))

        with pytest.raises(AssertionError, match=r"Careless fails for .*children=0.*: mass is off"):
            check_backend(Careless)

    @pytest.mark.usefixtures("one_rule")
    def test_nan_is_hidden(self) -> None:
        class Polite(NaiveVotes):
            def moments(
                self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool
            ) -> Moments:
                moments = super().moments(similarity, weights, rule, scatter)
                return moments._replace(sum=moments.sum.nan_to_num())

        with pytest.raises(AssertionError, match=r"Polite fails for .*sum hides NaN of a child's pose in"):
            check_backend(Polite)

    @pytest.mark.usefixtures("one_rule")
    def test_a_step_of_agreement_is_left_out(self) -> None:
        class Hasty(NaiveVotes):
            def agree(self, agreement: Agreement, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
                rule = Rule(agreement.orphan)
                return step_by_step(
                    lambda one: self.moments(one, None, rule, False).sum, agreement._replace(steps=2), bias
                )

        with pytest.raises(AssertionError, match=r"Hasty fails for Agreement\(steps=3.*poses is off"):
            check_backend(Hasty)

    def test_says_yes_to_everything(self) -> None:
        """The defect that this contract is there for: a backend that takes every similarity for one that it knows."""

        class Boastful(ChunkedVotes):
            def moments(
                self, similarity: Similarity | None, weights: Tensor | None, rule: Rule, scatter: bool
            ) -> Moments:
                known = similarity if type(similarity).__name__ in ("InnerProduct", "Gaussian") else None
                return super().moments(known, weights, rule, scatter)

        with pytest.raises(AssertionError, match=r"Boastful differs from naive for given logits \(I, J\) under a soft"):
            check_backend(Boastful)

    def test_says_no_to_everything(self) -> None:
        class Modest(NaiveVotes):
            @classmethod
            def supports(cls, similarity: Similarity | None, rule: Rule) -> str:
                return "not today"

        with pytest.raises(AssertionError, match="Modest supports nothing"):
            check_backend(Modest)

    def test_answers_in_no_words(self) -> None:
        class Curt(NaiveVotes):
            @classmethod
            def supports(cls, similarity: Similarity | None, rule: Rule) -> str:
                return True

        with pytest.raises(AssertionError, match=r"Curt\.supports must return a str, got True"):
            check_backend(Curt)

    @pytest.mark.parametrize(("method", "name"), [("assignment", "mass"), ("log_partition", "log_partition")])
    def test_nan(self, method: str, name: str) -> None:
        def spoiled(self: VoteSource, *args: object) -> Tensor:
            return getattr(NaiveVotes, method)(self, *args) * torch.nan

        made = type("Spoiled", (NaiveVotes,), {method: partialmethod(spoiled)})
        with pytest.raises(AssertionError, match=f"{name} is off by nan"):
            check_backend(made)
