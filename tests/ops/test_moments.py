"""What the moments are, from their definition, whichever backend makes them."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_cases import Case, all_cases, close
from torch import Tensor

from torchcaps.ops import (
    PARENTS,
    Competition,
    Gaussian,
    InnerProduct,
    Similarity,
    Votes,
    VoteSource,
)
from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.evidence import EvidentVotes
from torchcaps.ops.fused import NativeVotes
from torchcaps.ops.naive import NaiveVotes

BACKENDS = pytest.mark.parametrize(
    "backend",
    [NaiveVotes, ChunkedVotes, NativeVotes],
    ids=["naive", "chunked", "native"],
)

CPU_TILE = "torchcaps.ops.chunked.tiles.CPU_TILE"


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CPU_TILE, 30)


def by_definition(case: Case, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Loops over the equations of design section 2."""
    given = {name: tensor.detach().numpy() for name, tensor in inputs.items()}
    B = case.batch
    I = case.children
    J = case.parents
    H = case.rows * case.parent_dim
    votes = np.zeros((B, I, J, H))
    logits = np.zeros((B, I, J))
    for b, i, j in np.ndindex(B, I, J):
        vote = (
            given["children"][b, i] @ given["transforms"][0 if case.shared else i, j]
        ).reshape(H)
        votes[b, i, j] = vote + given["coordinates"][i] if case.coordinates else vote
        if case.similarity == "inner":
            logits[b, i, j] = given["alpha"][b, j] @ votes[b, i, j]
        if case.similarity == "gaussian":
            deviation = votes[b, i, j] - given["mean"][b, j]
            logits[b, i, j] = (
                given["log_weight"][b, j]
                - (given["precision"][b, j] * deviation**2).sum() / 2
            )
    share = np.exp(logits)
    if case.partition == "given":
        share /= np.exp(given["log_partition"])[..., None]
    else:
        share /= share.sum(-1, keepdims=True) + (1 if case.partition == "leaky" else 0)
    if case.weights:
        share *= given["weights"][..., None]
    mass = share.sum(1)
    total = (share[..., None] * votes).sum(1)
    moments = {"mass": mass, "sum": total}
    if case.scatter:
        centred = votes - (total / mass[..., None])[:, None]
        moments["scatter"] = (share[..., None] * centred**2).sum(1)
    return {name: torch.from_numpy(moment) for name, moment in moments.items()}


@BACKENDS
@pytest.mark.parametrize("case", all_cases(weights=True))
def test_definition(case: Case, backend: Callable[..., VoteSource]) -> None:
    inputs = case.inputs()
    moments = case.moments(backend, inputs)._asdict()
    close(
        {name: m for name, m in moments.items() if m is not None},
        by_definition(case, inputs),
        1e-12,
    )


@BACKENDS
def test_mean_and_variance_of_a_parent_without_mass_are_zero(
    backend: Callable[..., VoteSource],
) -> None:
    case = Case("gaussian", weights=True, scatter=True)
    inputs = case.inputs()
    inputs["weights"] = torch.zeros_like(inputs["weights"], requires_grad=True)
    moments = case.moments(backend, inputs)
    assert (moments.mass == 0).all()
    assert (moments.mean == 0).all()
    assert (moments.variance == 0).all()
    gradients = torch.autograd.grad(
        (moments.mean + moments.variance).sum(), [inputs["children"], inputs["weights"]]
    )
    assert not any(gradient.any() for gradient in gradients)


def test_variance_needs_a_scatter() -> None:
    case = Case("gaussian")
    with pytest.raises(ValueError, match="scatter=True"):
        _ = case.moments(NaiveVotes, case.inputs()).variance


@BACKENDS
def test_hard_assignment_is_the_argmax_and_the_lowest_index_wins(
    backend: Callable[..., VoteSource],
) -> None:
    children = torch.tensor(
        [[[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 0.0]]]]
    )  # [1, 3, 1, 2]
    alpha = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])
    source = backend(children, torch.eye(2).expand(1, 2, 2, 2))
    assignment = Competition(hard=True).shares(source.logits(InnerProduct(alpha)))
    assert assignment.tolist() == [
        [[1, 0], [0, 1], [1, 0]]
    ]  # the third child is at a tie


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(["uniform", "inner", "gaussian"]),
    st.booleans(),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(["naive", "chunked"]),
)
def test_each_child_is_assigned_once(
    similarity: str, shared: bool, children: int, parents: int, backend: str
) -> None:
    case = Case(
        similarity, shared, children=children, parents=parents, coordinates=True
    )
    inputs = case.inputs()
    fields = [
        inputs[name]
        for name in ("alpha", "mean", "precision", "log_weight")
        if name in inputs
    ]
    parameters = (
        {"inner": InnerProduct, "gaussian": Gaussian}[similarity](*fields)
        if fields
        else None
    )
    votes = Votes(
        inputs["children"], inputs["transforms"], inputs["coordinates"], backend=backend
    )
    ones = torch.ones(2, children, dtype=torch.float64)
    torch.testing.assert_close(
        votes.assignment(parameters).sum(-1), ones, rtol=0, atol=1e-12
    )
    leaky = votes.restricted(leaky=True)
    assigned = leaky.assignment(parameters).sum(-1)
    leak = (-leaky.source.log_partition(parameters, leaky=True)).exp()  # exp(0 - Z)
    assert (assigned < 1).all()
    assert (leak > 0).all()
    torch.testing.assert_close(assigned + leak, ones, rtol=0, atol=1e-12)


@BACKENDS
def test_a_given_log_partition_that_is_the_own_one_changes_nothing(
    backend: Callable[..., VoteSource],
) -> None:
    for leaky in (False, True):
        case = Case(
            "gaussian",
            coordinates=True,
            partition="leaky" if leaky else "soft",
            scatter=True,
        )
        inputs = case.inputs()
        source = backend(
            inputs["children"], inputs["transforms"], inputs["coordinates"]
        )
        similarity = Gaussian(inputs["mean"], inputs["precision"], inputs["log_weight"])
        partition = source.log_partition(similarity, leaky)
        same = source.moments(similarity, None, PARENTS, partition, True)
        close(same._asdict(), case.moments(backend, inputs)._asdict(), 1e-12)


@pytest.mark.parametrize("spread", ["uniform", "gaussian"])
@pytest.mark.parametrize(
    "tile",
    [None, 16 * 12, 100 * 12, 10**6],
    ids=["naive", "tiles16", "tiles100", "tile"],
)
def test_scatter_far_from_zero_does_not_cancel(
    tile: int | None, spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean 100, deviation 0.01: E[V^2] - E[V]^2 has nothing left of the variance in
    float32.
    """
    generator = torch.Generator().manual_seed(0)
    children = 100 + 0.01 * torch.randn(2, 301, 1, 3, generator=generator)
    transforms = torch.eye(3).expand(
        1, 4, 3, 3
    )  # each vote is the child's pose to the last bit
    reference = children.double().numpy()[:, :, 0, None]  # [B, I, 1, H]
    share = np.full((2, 301, 4), 0.25)
    similarity = None
    if spread == "gaussian":
        mean = 100 + 0.01 * torch.randn(2, 4, 3, generator=generator)
        precision = torch.full_like(mean, 1e4)
        similarity = Gaussian(mean, precision, torch.zeros(2, 4))
        distance = (reference - mean.double().numpy()[:, None]) ** 2
        share = np.exp(-0.5e4 * distance.sum(-1))
        share /= share.sum(-1, keepdims=True)
    mass = share.sum(1)[..., None]
    expected_mean = (share[..., None] * reference).sum(1) / mass
    expected_variance = (
        share[..., None] * (reference - expected_mean[:, None]) ** 2
    ).sum(1) / mass

    monkeypatch.setattr(CPU_TILE, tile)
    backend = NaiveVotes if tile is None else ChunkedVotes
    moments = backend(children, transforms).moments(
        similarity, None, PARENTS, None, True
    )
    assert moments.sum.dtype == torch.float32
    np.testing.assert_allclose(moments.mean.double(), expected_mean, rtol=1e-4)
    np.testing.assert_allclose(moments.variance.double(), expected_variance, rtol=1e-4)


class Shifted(Competition):
    """Another competition: everything else that competes for a child weighs as much as the
    parents here.
    """

    def log_partition(
        self, source: VoteSource, similarity: Similarity | None
    ) -> Tensor:
        return source.log_partition(similarity, self.leaky) + np.log(2)


@pytest.mark.parametrize("backend", ["naive", "chunked"])
def test_others_can_be_counted_in(backend: str) -> None:
    inputs = Case().inputs()
    votes = Votes(inputs["children"], inputs["transforms"], backend=backend)
    halved = Votes(
        inputs["children"], inputs["transforms"], competition=Shifted(), backend=backend
    )
    for similarity in (None, InnerProduct(inputs["alpha"])):
        torch.testing.assert_close(
            2 * halved.assignment(similarity), votes.assignment(similarity)
        )
        torch.testing.assert_close(
            2 * halved.moments(similarity).sum, votes.moments(similarity).sum
        )


@pytest.fixture(params=["naive", "chunked"])
def votes(request: pytest.FixtureRequest) -> Iterator[Votes]:
    inputs = Case(rows=3, coordinates=True).inputs()
    return Votes(
        inputs["children"],
        inputs["transforms"],
        inputs["coordinates"],
        backend=request.param,
    )


def test_dense_votes_are_the_votes(votes: Votes) -> None:
    dense = votes.dense()
    assert dense.shape == votes.shape == (2, 3, 4, 6)
    b, i, j = 1, 2, 3
    expected = (
        votes.children[b, i] @ votes.transforms[i, j]
    ).flatten() + votes.coordinates[i]
    torch.testing.assert_close(dense[b, i, j], expected)


def test_a_first_look_without_gradient_does_not_take_the_gradient_away(
    votes: Votes,
) -> None:
    with torch.no_grad():
        votes.assignment()
    assert votes.moments(scatter=True).sum.requires_grad


def test_half_precision_is_computed_in_float32() -> None:
    case = Case("gaussian", coordinates=True, weights=True, scatter=True, children=5)
    expected = by_definition(
        case, {name: t.bfloat16().double() for name, t in case.inputs().items()}
    )
    half = {name: tensor.detach().bfloat16() for name, tensor in case.inputs().items()}
    similarity = Gaussian(
        half["mean"].float(), half["precision"].float(), half["log_weight"].float()
    )
    for backend in ("naive", "chunked"):
        votes = Votes(
            half["children"], half["transforms"], half["coordinates"], backend=backend
        )
        moments = votes.moments(similarity, half["weights"], scatter=True)
        assert {moments.mass.dtype, moments.sum.dtype, moments.scatter.dtype} == {
            torch.float32
        }
        close(moments._asdict(), expected, 1e-5)
        with torch.autocast("cpu", torch.bfloat16):
            votes = Votes(
                half["children"].float(),
                half["transforms"].float(),
                half["coordinates"],
                backend=backend,
            )
            close(
                votes.moments(similarity, half["weights"], scatter=True)._asdict(),
                expected,
                1e-5,
            )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"alike": 7}, ValueError, "for 7 parents alike, got shape"),
        ({"alike": "x"}, ValueError, "for x parents alike, got shape"),
        ({"epsilon": -1.0}, ValueError, "epsilon must be at least 0"),
    ],
)
def test_settings_that_do_not_fit(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5), **arguments)


def test_biases_and_shares_that_do_not_fit() -> None:
    votes: Any = Votes(torch.randn(2, 6, 4), torch.randn(6, 3, 4, 5))
    with pytest.raises(ValueError, match="bias must be real"):
        votes.with_bias(torch.zeros(1, 3, 5, dtype=torch.cfloat))
    with pytest.raises(TypeError, match="bias must be a tensor, got list"):
        votes.with_bias([1])
    with pytest.raises(TypeError, match="shares must be a tensor, got list"):
        votes.total([1])
    with pytest.raises(ValueError, match=r"T 1 or a divisor of 6, got shape \(0,"):
        EvidentVotes(votes, torch.randn(0, 3, 4), torch.zeros(0, 3))
