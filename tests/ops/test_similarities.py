"""Similarities of one's own, and what happens to what is none."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from ops_cases import close
from torch import Tensor

from torchcaps.ops import (
    Competition,
    Distance,
    Gaussian,
    Given,
    InnerProduct,
    Similarity,
    Votes,
    axes,
)
from torchcaps.ops.plan import BACKENDS, FEW_TILES
from torchcaps.routing import MaxMin

B = 3
I = 7
J = 4
P = 2
D = 3
OPEN = pytest.mark.parametrize("backend", ["naive", "chunked"])


@dataclass(frozen=True)
class City(Similarity):
    """Distances along the axes, how much each pair likes each other, and a steepness of
    each parent.
    """

    centre: Tensor = axes("BJH")
    liking: Tensor = axes("IJ", "BIJ")
    steepness: Tensor = axes("J")

    def logits(self, votes: Tensor) -> Tensor:
        return self.liking - self.steepness * (votes - self.centre[:, None]).abs().sum(
            -1
        )


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 5 * J * D)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def inputs(by_row: bool = True, shared: bool = False) -> dict[str, Tensor]:
    return {
        "children": normal(B, I, P, seed=1),
        "transforms": normal(1 if shared else I, J, P, D, seed=2),
        "coordinates": normal(I, D, seed=3),
        "weights": normal(B, I, seed=4),
        "centre": normal(B, J, D, seed=5),
        "liking": normal(*((B, I, J) if by_row else (I, J)), seed=6),
        "steepness": normal(J, seed=7),
    }


def results(backend: str, given: dict[str, Tensor], scatter: bool) -> dict[str, Tensor]:
    votes = Votes(
        given["children"], given["transforms"], given["coordinates"], backend=backend
    )
    similarity = City(given["centre"], given["liking"], given["steepness"])
    moments = votes.moments(similarity, given["weights"].sigmoid(), scatter=scatter)
    return {**moments._asdict(), "assignment": votes.assignment(similarity)}


def by_definition(given: dict[str, Tensor], scatter: bool) -> dict[str, Tensor]:
    """Loops over all pairs."""
    mass = torch.zeros(B, J).double()
    total = torch.zeros(B, J, D).double()
    second = torch.zeros(B, J, D).double()
    assignment = torch.zeros(B, I, J).double()
    votes = torch.zeros(B, I, J, D).double()
    for b, i in itertools.product(range(B), range(I)):
        logits = []
        for j in range(J):
            W = given["transforms"][i if len(given["transforms"]) > 1 else 0, j]
            votes[b, i, j] = given["children"][b, i] @ W + given["coordinates"][i]
            distance = (votes[b, i, j] - given["centre"][b, j]).abs().sum()
            liking = (
                given["liking"][b, i, j]
                if given["liking"].ndim == 3
                else given["liking"][i, j]
            )
            logits.append(liking - given["steepness"][j] * distance)
        e = torch.stack(logits).exp()
        assignment[b, i] = e / e.sum()
        share = assignment[b, i] * given["weights"][b, i].sigmoid()
        mass[b] += share
        total[b] += share[:, None] * votes[b, i]
    shares = assignment * given["weights"].sigmoid()[..., None]
    second = (
        shares[..., None] * (votes - (total / mass[..., None])[:, None]).square()
    ).sum(1)
    return {"mass": mass, "sum": total, "assignment": assignment} | (
        {"scatter": second} if scatter else {}
    )


@pytest.mark.parametrize("scatter", [False, True], ids=["sum", "scatter"])
@pytest.mark.parametrize("shared", [False, True], ids=["full", "shared"])
@pytest.mark.parametrize("by_row", [False, True], ids=["IJ", "BIJ"])
class TestOnesOwn:
    @OPEN
    def test_definition(
        self, backend: str, by_row: bool, shared: bool, scatter: bool
    ) -> None:
        given = {
            name: tensor.detach() for name, tensor in inputs(by_row, shared).items()
        }
        actual = results(backend, given, scatter)
        expected = by_definition(given, scatter)
        close({name: actual[name] for name in expected}, expected, 1e-12)


@OPEN
def test_only_some_tensors_learn(backend: str) -> None:
    given = inputs()
    fixed = {name: tensor.detach() for name, tensor in given.items()}
    liking = given["liking"]
    votes = Votes(fixed["children"], fixed["transforms"], backend=backend)
    similarity = City(fixed["centre"], liking, fixed["steepness"])
    (alone,) = torch.autograd.grad(
        votes.moments(similarity, scatter=True).scatter.square().sum(), liking
    )
    votes = Votes(given["children"], given["transforms"], backend="naive")
    similarity = City(given["centre"], liking, given["steepness"])
    (beside,) = torch.autograd.grad(
        votes.moments(similarity, scatter=True).scatter.square().sum(), liking
    )
    close({"liking": alone}, {"liking": beside}, 1e-10)
    assert not votes.moments(City(*fixed_three(fixed))).sum.isnan().any()


def fixed_three(fixed: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return fixed["centre"], fixed["liking"], fixed["steepness"]


class Lookalike(NamedTuple):
    """One field, as an inner product has, and no Similarity."""

    alpha: Tensor


class TestWhatIsNone:
    @pytest.mark.parametrize("backend", [None, "naive", "chunked", "native"])
    @pytest.mark.parametrize("large", [False, True])
    @pytest.mark.parametrize("call", ["moments", "assignment"])
    def test_is_refused_by_all(
        self, backend: str | None, large: bool, call: str
    ) -> None:
        votes = Votes(
            torch.ones(FEW_TILES if large else 2, I, P),
            torch.ones(I, J, P, D),
            backend=backend,
        )
        unknown = Lookalike(torch.ones(votes.shape[0], J, D))
        with pytest.raises(
            TypeError,
            match=r"must be None or a torchcaps\.ops\.Similarity, got Lookalike",
        ):
            getattr(votes, call)(unknown)

    def test_a_tensor(self) -> None:
        with pytest.raises(TypeError, match="got Tensor"):
            Votes(torch.ones(2, I, P), torch.ones(I, J, P, D)).moments(
                torch.ones(2, J, D)
            )

    @pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
    @pytest.mark.parametrize(
        ("similarity", "message"),
        [
            (
                InnerProduct(torch.ones(1, J, D)),
                r"alpha of InnerProduct must be \(B = 3, J = 4, H = 3\), got .*1, 4, 3",
            ),
            (
                InnerProduct(torch.ones(B, J, D + 1)),
                r"alpha of InnerProduct must be .*H = 3\), got .*3, 4, 4",
            ),
            (
                InnerProduct(torch.ones(J, D)),
                r"alpha of InnerProduct must be \(B, J, H\), got shape \(4, 3\)",
            ),
            (
                Gaussian(
                    torch.ones(B, J, D), torch.ones(B, J, D), torch.ones(B, J + 1)
                ),
                r"log_weight of Gaussian must be \(B = 3, J = 4\), got shape \(3, 5\)",
            ),
            (
                Given(torch.ones(I + 1, J)),
                r"values of Given must be \(I = 7, J = 4\), got shape \(8, 4\)",
            ),
            (
                Given(torch.ones(J)),
                r"values of Given must be \(I, J\) or \(B, I, J\), got shape \(4,\)",
            ),
        ],
    )
    def test_shapes(self, backend: str, similarity: Similarity, message: str) -> None:
        votes = Votes(torch.ones(B, I, P), torch.ones(I, J, P, D), backend=backend)
        with pytest.raises(ValueError, match=message):
            votes.moments(similarity)

    @pytest.mark.parametrize("backend", ["naive", "chunked", "native"])
    def test_no_tensor(self, backend: str) -> None:
        votes = Votes(torch.ones(B, I, P), torch.ones(I, J, P, D), backend=backend)
        with pytest.raises(
            TypeError, match="alpha of InnerProduct must be a tensor, got float"
        ):
            votes.moments(InnerProduct(2.0))

    def test_a_tensor_without_axes(self) -> None:
        @dataclass(frozen=True)
        class Forgetful(Similarity):
            centre: Tensor

            def logits(self, votes: Tensor) -> Tensor:
                return votes.sum(-1)

        with pytest.raises(
            TypeError,
            match="Forgetful holds a tensor without axes: write `centre: Tensor = axes",
        ):
            Votes(torch.ones(B, I, P), torch.ones(I, J, P, D)).moments(
                Forgetful(torch.ones(B, J, D))
            )


class TestGiven:
    @OPEN
    @pytest.mark.parametrize("by_row", [False, True])
    def test_logits_are_what_is_given(self, backend: str, by_row: bool) -> None:
        logits = normal(*((B, I, J) if by_row else (I, J)))
        votes = Votes(normal(B, I, P), normal(I, J, P, D), backend=backend)
        expected = logits.softmax(-1).expand(B, I, J)
        torch.testing.assert_close(
            votes.assignment(Given(logits)), expected, rtol=0, atol=1e-14
        )
        total = torch.einsum("bij,bijh->bjh", expected, votes.dense())
        torch.testing.assert_close(
            votes.moments(Given(logits)).sum, total, rtol=1e-12, atol=1e-12
        )


class TestPrecision:
    @OPEN
    def test_half_tensors_are_widened_first(self, backend: str) -> None:
        """The softmax and the sums are of float32, whatever the similarity's tensors
        are.
        """
        logits = normal(I, J).bfloat16()
        votes = Votes(
            normal(B, I, P).float(), normal(I, J, P, D).float(), backend=backend
        )
        assignment = votes.assignment(Given(logits))
        assert assignment.dtype == torch.float32
        assert torch.equal(assignment, logits.float().softmax(-1).expand(B, I, J))


class TestWhoDoesIt:
    large = Votes(torch.zeros(FEW_TILES, I, P), torch.zeros(I, J, P, D))
    rows = large.shape[0]

    def own(self) -> Similarity:
        return City(torch.zeros(self.rows, J, D), torch.zeros(I, J), torch.ones(J))

    def test_falls_back_for_that_call_alone(self) -> None:
        known = InnerProduct(torch.zeros(self.rows, J, D))
        assert self.large.choose_backend().backend == "native"
        assert self.large.choose_backend(known).backend == "native"
        choice = self.large.choose_backend(self.own())
        assert choice.backend == "chunked"
        assert choice.reason == (
            "native cannot do this call: the kernels have inner products and "
            "Gaussians, not City"
        )
        assert self.large.choose_backend(known).backend == "native"

    def test_the_call_goes_where_the_choice_says(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        called = []
        for name, backend in BACKENDS.items():
            moments = backend.moments
            monkeypatch.setattr(
                backend,
                "moments",
                lambda *a, name=name, whole=moments: called.append(name) or whole(*a),
            )
        monkeypatch.setattr("torchcaps.ops.chunked.tiles.CPU_TILE", 2**19)
        few = Votes(torch.zeros(2, I, P), torch.zeros(I, J, P, D))
        few.moments(City(torch.zeros(2, J, D), torch.zeros(I, J), torch.ones(J)))
        self.large.moments(InnerProduct(torch.zeros(self.rows, J, D)))
        self.large.moments(self.own())
        assert called == ["naive", "native", "chunked"]

    @pytest.mark.parametrize(
        ("competition", "words"),
        [
            (Competition(hard=True, leaky=True), "hard assignments beside a leak"),
            (MaxMin(), "MaxMin"),
        ],
    )
    def test_a_competition_that_the_kernels_have_not(
        self, competition: Competition, words: str
    ) -> None:
        choice = self.large.under(competition).choose_backend()
        assert choice.backend == "chunked"
        assert "native cannot do this call: the kernels" in choice.reason
        assert words in choice.reason

    def test_who_was_asked_for_by_name_does_it_or_says_no(self) -> None:
        forced = Votes(torch.zeros(2, I, P), torch.zeros(I, J, P, D), backend="native")
        individual = City(torch.zeros(2, J, D), torch.zeros(I, J), torch.ones(J))
        message = (
            "backend 'native' cannot do City: the kernels have inner products and "
            "Gaussians, not City"
        )
        for call in (
            forced.moments,
            forced.assignment,
            lambda own: forced.choose_backend(own),
        ):
            with pytest.raises(ValueError, match=message):
                call(individual)
        with pytest.raises(
            ValueError,
            match=r"backend 'native' cannot do uniform logits: .* not MaxMin",
        ):
            forced.under(MaxMin()).moments()

    @pytest.mark.parametrize("name", BACKENDS)
    def test_every_backend_answers(self, name: str) -> None:
        known = [None, InnerProduct(torch.ones(1, 1, 1))]
        supports: Callable[..., str] = BACKENDS[name].supports
        assert [supports(similarity, Competition()) for similarity in known] == ["", ""]


@OPEN
def test_a_vote_that_is_the_centre_but_for_rounding_has_no_gradient(
    backend: str,
) -> None:
    children = torch.rand(1, 2, D, dtype=torch.float64, requires_grad=True)
    votes = Votes(children, torch.eye(D).double().expand(1, 1, D, D), backend=backend)
    centre = children.detach()[:, :1] * (1 + 1e-15)
    (gradient,) = torch.autograd.grad(votes.logits(Distance(centre)).sum(), children)
    assert not gradient[0, 0].any()
    assert gradient[0, 1].norm() == pytest.approx(1)
