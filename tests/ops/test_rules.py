"""Sharpness, priors, weights of pairs and other maps, each against its own loop."""

import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from torchcaps.ops import (
    AssignmentMap,
    Gaussian,
    Given,
    GridWide,
    InnerProduct,
    Normaliser,
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
BY_ROW = pytest.mark.parametrize("by_row", [False, True], ids=["IJ", "BIJ"])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 5 * J * D)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def votes(backend: str | None = None, normaliser: Normaliser | None = None) -> Votes:
    return Votes(
        normal(B, I, P, seed=1),
        normal(I, J, P, D, seed=2),
        normaliser=normaliser,
        backend=backend,
    )


def pairs(by_row: bool, seed: int = 0) -> Tensor:
    return normal(*((B, I, J) if by_row else (I, J)), seed=seed)


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


class TestSharpness:
    @EACH
    @pytest.mark.parametrize("name", SIMILARITIES)
    @pytest.mark.parametrize(
        "sharpness",
        [1 / 16, torch.tensor(0.3).double(), normal(J).exp()],
        ids=["1/16", "0d", "J"],
    )
    def test_multiplies_the_similarity(
        self, backend: str, name: str, sharpness: float | Tensor
    ) -> None:
        if backend == "native" and name in ("given", "own"):
            return
        similarity = SIMILARITIES[name]
        sharp = votes(backend, Normaliser(sharpness=sharpness))
        expected = (logits_of(similarity) * sharpness).softmax(-1)
        torch.testing.assert_close(
            sharp.assignment(similarity), expected, rtol=1e-10, atol=1e-12
        )
        total = torch.einsum("bij,bijh->bjh", expected, votes().dense())
        torch.testing.assert_close(
            sharp.moments(similarity).sum, total, rtol=1e-10, atol=1e-12
        )

    @EACH
    @pytest.mark.parametrize("name", ["inner", "gaussian"])
    def test_of_each_parent_is_learned(self, backend: str, name: str) -> None:
        def objective(backend: str, sharpness: Tensor) -> Tensor:
            moments = votes(backend, Normaliser(sharpness=sharpness)).moments(
                SIMILARITIES[name], scatter=True
            )
            return (moments.scatter * normal(B, J, D)).sum()

        assert torch.autograd.gradcheck(
            lambda s: objective(backend, s), normal(J).exp().requires_grad_()
        )

    @OPEN
    def test_of_an_own_similarity_is_learned(self, backend: str) -> None:
        def objective(sharpness: Tensor) -> Tensor:
            moments = votes(backend, Normaliser(sharpness=sharpness)).moments(
                SIMILARITIES["own"]
            )
            return (moments.sum * normal(B, J, D)).sum()

        assert torch.autograd.gradcheck(objective, normal(J).exp().requires_grad_())

    @EACH
    def test_one_changes_no_digit(self, backend: str) -> None:
        similarity = SIMILARITIES["gaussian"]
        plain = votes(backend)
        sharpened = votes(backend, Normaliser(sharpness=1.0))
        assert torch.equal(
            plain.moments(similarity).sum, sharpened.moments(similarity).sum
        )

    def test_the_orphan_stays_where_it_is(self) -> None:
        similarity = SIMILARITIES["inner"]
        sharp = votes(normaliser=Normaliser(orphan=True, sharpness=3.0))
        e = (3 * logits_of(similarity)).exp()
        torch.testing.assert_close(
            sharp.assignment(similarity), e / (e.sum(-1, keepdim=True) + 1)
        )


class TestPriors:
    @OPEN
    @BY_ROW
    @ALL
    @pytest.mark.parametrize("orphan", [False, True], ids=["closed", "orphan"])
    def test_inside_the_softmax(
        self, backend: str, by_row: bool, similarity: Similarity | None, orphan: bool
    ) -> None:
        prior = pairs(by_row)
        e = (logits_of(similarity) * 0.5 + prior).exp()
        expected = e / (e.sum(-1, keepdim=True) + orphan)
        new_votes = votes(
            backend, Normaliser(orphan=orphan, prior=prior, sharpness=0.5)
        )
        if similarity is None:
            expected = prior.exp() / (prior.exp().sum(-1, keepdim=True) + orphan)
            expected = expected.expand(B, I, J)
        torch.testing.assert_close(
            new_votes.assignment(similarity), expected, rtol=1e-10, atol=1e-12
        )
        total = torch.einsum("bij,bijh->bjh", expected, votes().dense())
        torch.testing.assert_close(
            new_votes.moments(similarity).sum, total, rtol=1e-10, atol=1e-12
        )

    @OPEN
    @ALL
    def test_minus_infinity_takes_a_pair_out(
        self, backend: str, similarity: Similarity | None
    ) -> None:
        prior = torch.zeros(I, J).double()
        prior[2, 1] = prior[5, 3] = -torch.inf
        new_votes = votes(backend, Normaliser(prior=prior))
        assignment = new_votes.assignment(similarity)
        assert not assignment[:, 2, 1].any()
        assert not assignment[:, 5, 3].any()
        torch.testing.assert_close(assignment.sum(-1), torch.ones(B, I).double())

    @OPEN
    @BY_ROW
    def test_behind_the_softmax(self, backend: str, by_row: bool) -> None:
        """Efficient-CapsNet: s_j = sum_i (c + b)_ij V_ij, where c + b need not be
        positive or add up to 1.
        """
        b = pairs(by_row)
        V = votes().dense()
        agreement = V.sum(1) / D**0.5
        c = torch.einsum("bijh,bjh->bij", V, agreement).softmax(-1)
        expected = torch.zeros(B, J, D).double()
        for n, i, j in itertools.product(range(B), range(I), range(J)):
            expected[n, j] += (c[n, i, j] + (b[n, i, j] if by_row else b[i, j])) * V[
                n, i, j
            ]
        new_votes = votes(backend, Normaliser(offset=b))
        torch.testing.assert_close(
            new_votes.moments(InnerProduct(agreement)).sum,
            expected,
            rtol=1e-10,
            atol=1e-12,
        )
        torch.testing.assert_close(
            new_votes.assignment(InnerProduct(agreement)), c, rtol=1e-10, atol=1e-12
        )


class TestPairWeights:
    @OPEN
    @BY_ROW
    @ALL
    def test_credit_for_use_and_ignorance(
        self, backend: str, by_row: bool, similarity: Similarity | None
    ) -> None:
        """Heinsen 2019: a_out = sum_i (beta_use U - beta_ign (f - U)) with U = f R."""
        use = pairs(by_row, 7)
        ignore = pairs(by_row, 8)
        f = normal(B, I).sigmoid()
        U = f[..., None] * logits_of(similarity).softmax(-1)
        expected = (use * U - ignore * (f[..., None] - U)).sum(1)
        new_votes = votes(backend, Normaliser(scale=use + ignore, offset=-ignore))
        assert expected.min() < 0 < expected.max()
        torch.testing.assert_close(
            new_votes.moments(similarity, f).mass, expected, rtol=1e-10, atol=1e-12
        )

    def test_shapes(self) -> None:
        for name in ("scale", "offset"):
            with pytest.raises(
                ValueError,
                match=rf"{name} of Rule must be \(I = 7, J = 4\), got shape \(4, 7\)",
            ):
                votes(normaliser=Normaliser(**{name: torch.ones(J, I)})).moments()


class TestHardBesideAnOrphan:
    @OPEN
    def test_what_fits_nobody_goes_to_nobody(self, backend: str) -> None:
        similarity = SIMILARITIES["gaussian"]
        logits = logits_of(similarity)
        assignment = votes(backend, Normaliser(orphan=True, hard=True)).assignment(
            similarity
        )
        for n, i in itertools.product(range(B), range(I)):
            best = int(logits[n, i].argmax())
            expected = [float(j == best and logits[n, i, j] >= 0) for j in range(J)]
            assert assignment[n, i].tolist() == expected
        assert 0 < assignment.sum() < B * I  # both happen

    def test_is_the_limit_of_the_soft_one(self) -> None:
        similarity = SIMILARITIES["gaussian"]
        hard = votes(normaliser=Normaliser(orphan=True, hard=True)).assignment(
            similarity
        )
        soft = votes(normaliser=Normaliser(orphan=True, sharpness=1e6)).assignment(
            similarity
        )
        torch.testing.assert_close(soft, hard, rtol=0, atol=1e-6)


class TestRestricted:
    def test_changes_what_is_named_and_nothing_else(self) -> None:
        prior = normal(I, J)
        new_votes = votes(
            normaliser=Normaliser(orphan=True, prior=prior, sharpness=2.0)
        )
        hard = new_votes.restricted(hard=True)
        assert hard.normaliser.orphan
        assert hard.normaliser.hard
        assert hard.normaliser.prior is prior
        assert hard.normaliser.sharpness == 2.0
        assert hard.restricted(hard=False).restricted(sharpness=1.0).normaliser.orphan
        assert not new_votes.normaliser.hard

    def test_an_earlier_orphan_keeps_its_share(self) -> None:
        """It was dropped when hard was asked for."""
        similarity = SIMILARITIES["gaussian"]
        assignment = (
            votes().restricted(orphan=True).restricted(hard=True).assignment(similarity)
        )
        assert assignment.sum() < B * I

    def test_a_name_that_is_none(self) -> None:
        with pytest.raises(TypeError, match="warm"):
            votes().restricted(warm=True)

    @pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
    def test_votes_are_formed_once(self, backend: str) -> None:
        new_votes = votes(backend)
        assert new_votes.restricted(orphan=True).source is new_votes.source
        assert (
            new_votes.restricted(sharpness=2.0).restricted(orphan=True).source
            is new_votes.source
        )


@dataclass(frozen=True)
class Doubled(AssignmentMap):
    factor: Tensor = axes("J")

    def assignment(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) * self.factor


class TestMapping:
    @OPEN
    @ALL
    def test_takes_the_place_of_the_softmax(
        self, backend: str, similarity: Similarity | None
    ) -> None:
        factor = normal(J).exp()
        new_votes = votes(
            backend,
            Normaliser(
                mapping=Doubled(factor), sharpness=0.5, offset=torch.ones(I, J).double()
            ),
        )
        expected = (logits_of(similarity) * 0.5).softmax(-1) * factor
        torch.testing.assert_close(
            new_votes.assignment(similarity), expected, rtol=1e-10, atol=1e-12
        )
        mass = (expected + 1).sum(1)
        torch.testing.assert_close(
            new_votes.moments(similarity).mass, mass, rtol=1e-10, atol=1e-12
        )

    def test_no_map(self) -> None:
        with pytest.raises(
            TypeError, match="mapping must be None or an AssignmentMap, got 3"
        ):
            Normaliser(mapping=3)

    @pytest.mark.parametrize("rule", [{"hard": True}, {"orphan": True}])
    def test_alone(self, rule: dict[str, bool]) -> None:
        with pytest.raises(
            ValueError, match="a mapping takes the place of the softmax"
        ):
            Normaliser(mapping=Doubled(torch.ones(J)), **rule)

    def test_is_of_one_window(self) -> None:
        windows = Windows(
            (3, 3),
            (2, 2),
            (1, 1),
            (0, 0),
            (1, 1),
        )
        sites = windows.children(1, torch.device("cpu"))
        normaliser = GridWide(windows=windows, types=1, mapping=Doubled(torch.ones(J)))
        new_votes = Votes(
            torch.ones(2, 9, P),
            torch.ones(4, J, P, D),
            normaliser=normaliser,
            sites=sites,
        )
        with pytest.raises(
            ValueError, match="Doubled is of one window only: use competition='window'"
        ):
            new_votes.moments()


class TestOverTheImage:
    """The parents of all windows compete: similarities are adjusted before, pairs
    weighted behind.
    """

    windows = Windows(
        (3, 3),
        (2, 2),
        (1, 1),
        (0, 0),
        (1, 1),
    )

    def made(self, backend: str, **settings: Tensor | float) -> Votes:
        sites = self.windows.children(1, torch.device("cpu"))
        normaliser = GridWide(windows=self.windows, types=1, **settings)
        return Votes(
            normal(2, 9, P),
            normal(4, J, P, D),
            normaliser=normaliser,
            sites=sites,
            backend=backend,
        )

    @OPEN
    def test_prior_sharpness_and_pair_weights(self, backend: str) -> None:
        prior = normal(4, J, seed=1)
        scale = normal(4, J, seed=2)
        offset = normal(8, 4, J, seed=3)
        new_votes = self.made(
            backend, prior=prior, sharpness=0.5, scale=scale, offset=offset
        )
        similarity = InnerProduct(normal(8, J, D))
        logits = 0.5 * similarity.logits(new_votes.dense()) + prior
        sites = self.windows.children(1, torch.device("cpu"))
        total = torch.zeros(2, 9).double()
        for n, w, i in itertools.product(range(2), range(4), range(4)):
            total[n, sites[w, i]] += logits[n * 4 + w, i].exp().sum()
        partition = total[:, sites.long()].flatten(0, 1)
        expected = logits.exp() / partition[..., None]
        torch.testing.assert_close(
            new_votes.assignment(similarity), expected, rtol=1e-10, atol=1e-12
        )
        mass = (scale * expected + offset).sum(1)
        torch.testing.assert_close(
            new_votes.moments(similarity).mass, mass, rtol=1e-10, atol=1e-12
        )


@pytest.mark.parametrize("name", ["prior", "scale", "offset"])
def test_weights_of_pairs_are_tensors(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be None or a tensor, got 'none'"):
        Normaliser(**{name: "none"})


@pytest.mark.parametrize("sharpness", ["x", None, float("nan")])
def test_sharpness_is_a_number(sharpness: object) -> None:
    with pytest.raises(ValueError, match="sharpness must be finite"):
        Normaliser(sharpness=sharpness)
