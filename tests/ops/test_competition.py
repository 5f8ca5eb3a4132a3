"""Who competes for a child, each against its own loop."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.random_numbers import normal
from torchcaps.ops import (
    PARENTS,
    Competition,
    Gaussian,
    Given,
    GridWide,
    InnerProduct,
    Similarity,
    Votes,
    Windows,
    axes,
)

B = 3
I = 7
J = 4
P = 2
D = 3
EACH = pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
OPEN = pytest.mark.parametrize("backend", ["naive", "chunked"])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 5 * J * D)


def votes(backend: str | None = None, competition: Competition = PARENTS) -> Votes:
    return Votes(
        normal(B, I, P, seed=1),
        normal(I, J, P, D, seed=2),
        competition=competition,
        backend=backend,
    )


@dataclass(frozen=True)
class City(Similarity):
    centre: Tensor = axes("BJH")

    def logits(self, votes: Tensor) -> Tensor:
        return -(votes - self.centre[:, None]).abs().sum(-1)


SIMILARITIES: dict[str, Similarity | None] = {
    "uniform": None,
    "inner": InnerProduct(normal(B, J, D, seed=3)),
    "gaussian": Gaussian(
        normal(B, J, D, seed=3), normal(B, J, D, seed=4).exp(), normal(B, J, seed=5)
    ),
    "given": Given(normal(I, J, seed=6)),
    "own": City(normal(B, J, D, seed=3)),
}
ALL = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)


def logits_of(similarity: Similarity | None) -> Tensor:
    return (
        torch.zeros(B, I, J).double()
        if similarity is None
        else similarity.logits(votes().dense())
    )


@EACH
@pytest.mark.parametrize("masked", [False, True])
def test_the_sum_under_fixed_shares(backend: str, masked: bool) -> None:
    """Efficient-CapsNet: the prior behind the softmax need not be positive or add up to
    1. Children that are not there have no share.
    """
    shares = normal(I, J)
    mask = torch.arange(I) < torch.tensor([[7], [4], [0]])
    new_votes = Votes(
        normal(B, I, P, seed=1),
        normal(I, J, P, D, seed=2),
        normal(I, D, seed=3),
        backend=backend,
        mask=mask if masked else None,
    )
    V = new_votes.dense()
    expected = torch.zeros(B, J, D).double()
    for n, i, j in itertools.product(range(B), range(I), range(J)):
        if mask[n, i] or not masked:
            expected[n, j] += shares[i, j] * V[n, i, j]
    torch.testing.assert_close(
        new_votes.total(shares), expected, rtol=1e-10, atol=1e-12
    )


def test_fixed_shares_of_other_pairs() -> None:
    with pytest.raises(ValueError, match=r"shares must be \(I, J\) = \(7, 4\), got"):
        votes().total(torch.ones(J, I))


class TestHardBesideALeak:
    @OPEN
    def test_what_fits_nobody_goes_to_nobody(self, backend: str) -> None:
        similarity = SIMILARITIES["gaussian"]
        logits = logits_of(similarity)
        competition = Competition(leaky=True, hard=True)
        assignment = votes(backend, competition).assignment(similarity)
        for n, i in itertools.product(range(B), range(I)):
            best = int(logits[n, i].argmax())
            expected = [float(j == best and logits[n, i, j] >= 0) for j in range(J)]
            assert assignment[n, i].tolist() == expected
        assert 0 < assignment.sum() < B * I  # both happen


class TestRestricted:
    def test_changes_what_is_named_and_nothing_else(self) -> None:
        new_votes = votes(competition=Competition(leaky=True))
        hard = new_votes.restricted(hard=True)
        assert hard.competition.leaky
        assert hard.competition.hard
        assert not new_votes.competition.hard

    def test_an_earlier_leak_keeps_its_share(self) -> None:
        similarity = SIMILARITIES["gaussian"]
        assignment = (
            votes().restricted(leaky=True).restricted(hard=True).assignment(similarity)
        )
        assert assignment.sum() < B * I

    def test_a_name_that_is_none(self) -> None:
        with pytest.raises(TypeError, match="warm"):
            votes().restricted(warm=True)

    @EACH
    def test_votes_are_formed_once(self, backend: str) -> None:
        new_votes = votes(backend)
        assert new_votes.restricted(leaky=True).source is new_votes.source


@dataclass(frozen=True)
class Doubled(Competition):
    factor: Tensor = axes("J")

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        return logits.softmax(-1) * self.factor


class TestOwn:
    @OPEN
    @ALL
    def test_takes_the_place_of_the_softmax(
        self, backend: str, similarity: Similarity | None
    ) -> None:
        factor = normal(J).exp()
        new_votes = votes(backend, Doubled(factor))
        expected = logits_of(similarity).softmax(-1) * factor
        torch.testing.assert_close(
            new_votes.assignment(similarity), expected, rtol=1e-10, atol=1e-12
        )
        torch.testing.assert_close(
            new_votes.moments(similarity).mass,
            expected.sum(1),
            rtol=1e-10,
            atol=1e-12,
        )

    @OPEN
    def test_its_tensors_are_learned(self, backend: str) -> None:
        def objective(factor: Tensor) -> Tensor:
            new_votes = votes(backend, Doubled(factor))
            return new_votes.moments(SIMILARITIES["own"]).sum.sin().sum()

        assert torch.autograd.gradcheck(objective, normal(J).exp().requires_grad_())

    def test_its_tensors_fit_the_votes(self) -> None:
        with pytest.raises(ValueError, match=r"factor of Doubled must be \(J = 4\)"):
            votes(competition=Doubled(torch.ones(I)))

    @pytest.mark.parametrize("option", [{"hard": True}, {"leaky": True}])
    def test_alone(self, option: dict[str, bool]) -> None:
        with pytest.raises(ValueError, match="Doubled replaces the softmax"):
            Doubled(torch.ones(J), **option)

    def test_is_of_one_window(self) -> None:
        windows = Windows((3, 3), (2, 2), (1, 1), (0, 0))
        sites = windows.children(1, torch.device("cpu"))
        new_votes = Votes(
            torch.ones(2, 9, P),
            torch.ones(4, J, P, D),
            competition=GridWide(windows=windows, types=1),
            sites=sites,
        )
        with pytest.raises(
            ValueError, match="Doubled is of one window only: use competition='window'"
        ):
            new_votes.under(Doubled(torch.ones(J)))


@OPEN
@ALL
@pytest.mark.parametrize("masked", [False, True])
def test_children_that_compete(
    backend: str, similarity: Similarity | None, masked: bool
) -> None:
    mask = torch.arange(I) < torch.tensor([[7], [4], [0]])
    if not masked:
        mask = torch.ones_like(mask)
    new_votes = Votes(
        normal(B, I, P, seed=1),
        normal(I, J, P, D, seed=2),
        backend=backend,
        mask=mask if masked else None,
    ).over_children()
    logits = torch.zeros(B, I, J).double()
    if similarity is not None:
        logits = similarity.logits(new_votes.dense())
    e = logits.exp() * mask[..., None]
    expected = e / e.sum(1, keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(
        new_votes.assignment(similarity), expected, rtol=1e-10, atol=1e-12
    )
    torch.testing.assert_close(
        new_votes.moments(similarity).mass, expected.sum(1), rtol=1e-10, atol=1e-12
    )
