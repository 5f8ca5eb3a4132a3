"""Nothing is silently wrong: what does not fit is refused by name, and every backend
says the same at the edges.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import torchcaps as tc
from torchcaps.ops import (
    BACKENDS,
    Competition,
    Gaussian,
    InnerProduct,
    Moments,
    Similarity,
    Votes,
    VoteSource,
)

N = 2
G = 5
J = 3
M = 2
P = 3
D = 2
H = M * D

every_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def triton_is_there(request: pytest.FixtureRequest) -> None:
    if (
        "backend" in request.fixturenames
        and request.getfixturevalue("backend") == "triton"
    ):
        pytest.importorskip("triton")


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    ).to(dtype)


def fields(**changes: Any) -> dict[str, Any]:
    """What makes votes, and what they are asked with."""
    inputs = {
        "children": random(N, G, M, P),
        "transforms": random(G, J, P, D),
        "coordinates": random(G, H),
        "sites": None,
        "weights": random(N, G).sigmoid(),
        "log_partition": None,
        "similarity": Gaussian(random(N, J, H), random(N, J, H).exp(), random(N, J)),
    }
    return inputs | changes


@dataclass(frozen=True, eq=False)
class Given(Competition):
    """A stranger's competition."""

    value: Callable[[], Tensor | None]

    def log_partition(
        self, source: VoteSource, similarity: Similarity | None
    ) -> Tensor | None:
        return self.value()


def moments(
    backend: str | None, given: dict[str, Any], scatter: bool = True
) -> Moments:
    votes = Votes(
        *(given[name] for name in ("children", "transforms", "coordinates")),
        competition=Given(lambda: given["log_partition"]),
        backend=backend,
        sites=given["sites"],
    )
    return votes.moments(given["similarity"], given["weights"], scatter=scatter)


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "weights of other children": (
        {"weights": random(N, 3)},
        r"weights must be \(N, G\) = \(2, 5\), got shape \(2, 3\)",
    ),
    "weights of one row": (
        {"weights": random(G)},
        r"weights must be \(N, G\) = \(2, 5\), got shape \(5,\)",
    ),
    "complex weights": (
        {"weights": random(N, G) * 1j},
        r"weights must be real, got torch.complex128",
    ),
    "weights elsewhere": (
        {"weights": random(N, G).to("meta")},
        r"weights must be on cpu.*got meta",
    ),
    "a log-partition of other children": (
        {"log_partition": random(N, 3)},
        r"log_partition must be \(N, G\) = \(2, 5\), got shape \(2, 3\)",
    ),
    "a complex log-partition": (
        {"log_partition": random(N, G) * 1j},
        "log_partition must be real",
    ),
    "a log-partition elsewhere": (
        {"log_partition": random(N, G).to("meta")},
        "log_partition must be on cpu.*got meta",
    ),
    "a complex similarity": (
        {"similarity": InnerProduct(random(N, J, H) * 1j)},
        "alpha of InnerProduct must be real",
    ),
    "a similarity elsewhere": (
        {"similarity": InnerProduct(random(N, J, H).to("meta"))},
        "alpha of InnerProduct must be on cpu, where the children are, got meta",
    ),
    "a similarity of other rows": (
        {"similarity": InnerProduct(random(1, J, H))},
        r"alpha of InnerProduct must be \(B = 2, J = 3, H = 4\), got shape \(1, 3, 4\)",
    ),
    "complex children": (
        {"children": random(N, G, M, P) * 1j},
        "children must be real, got torch.complex128",
    ),
    "complex transforms": (
        {"transforms": random(G, J, P, D) * 1j},
        "transforms must be real",
    ),
    "transforms elsewhere": (
        {"transforms": random(G, J, P, D).to("meta")},
        "transforms must be on cpu.*got meta",
    ),
    "complex coordinates": (
        {"coordinates": random(G, H) * 1j},
        "coordinates must be real",
    ),
    "coordinates elsewhere": (
        {"coordinates": random(G, H).to("meta")},
        "coordinates must be on cpu.*got meta",
    ),
    "sites behind the children": (
        {"sites": torch.tensor([[0, 1, 2, 3, 5]], dtype=torch.int32)},
        "sites must be from 0 to 4, got 0 to 5",
    ),
    "sites before the children": (
        {"sites": torch.tensor([[0, 1, 2, 3, -1]], dtype=torch.int32)},
        "sites must be from 0 to 4, got -1 to 3",
    ),
    "wide sites": (
        {"sites": torch.arange(5)[None]},
        r"sites must be int32 \(W, I\), got torch.int64",
    ),
}


@every_backend
@pytest.mark.parametrize(("changes", "message"), OTHERS.values(), ids=OTHERS)
def test_what_does_not_fit_is_refused_by_name(
    backend: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        moments(backend, fields(**changes))


NO_TENSORS: dict[str, tuple[dict[str, Any], str]] = {
    name: ({name: kind}, f"{name} must be a tensor, got {type(kind).__name__}")
    for name, kind in {
        "children": [[[1.0]]],
        "transforms": random(G, J, P, D).numpy(),
        "coordinates": [1.0],
        "sites": [[0, 1, 2, 3, 4]],
        "mask": [True],
    }.items()
}
NO_TENSORS["competition"] = (
    {"competition": "softmax"},
    "competition must be a torchcaps.ops.Competition, got 'softmax'",
)


@pytest.mark.parametrize(("changes", "message"), NO_TENSORS.values(), ids=NO_TENSORS)
def test_lists_arrays_and_names_are_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    """They ended in AttributeErrors."""
    with pytest.raises(TypeError, match=message):
        Votes(
            **{
                "children": random(N, G, M, P),
                "transforms": random(G, J, P, D),
                **changes,
            }
        )


def test_weights_and_competitions_are_refused_by_name() -> None:
    votes = Votes(random(N, G, M, P), random(G, J, P, D))
    with pytest.raises(TypeError, match="weights must be a tensor, got list"):
        votes.moments(weights=[1.0])
    with pytest.raises(
        TypeError,
        match=r"competition must be a torchcaps\.ops\.Competition, got 'softmax'",
    ):
        votes.under("softmax")


def test_sites_that_were_written_to_are_looked_at_again() -> None:
    sites = torch.arange(G, dtype=torch.int32)[None]
    moments("native", fields(sites=sites))
    sites[0, 0] = 2**30
    with pytest.raises(
        ValueError, match="sites must be from 0 to 4, got 1 to 1073741824"
    ):
        moments("native", fields(sites=sites))


def test_sites_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = Tensor.aminmax
    monkeypatch.setattr(
        Tensor, "aminmax", lambda tensor: looks.append(1) or look(tensor)
    )
    sites = torch.arange(G, dtype=torch.int32)[None]
    for _ in range(3):
        moments("native", fields(sites=sites))
    assert len(looks) == 1


@every_backend
def test_other_dtypes_are_converted(backend: str) -> None:
    """What a routing under autocast makes: bfloat16 similarities, weights and
    log-partitions beside float32 children.
    """
    half = {name: fields()[name].bfloat16() for name in ("weights", "coordinates")}
    half["log_partition"] = 2 + random(N, G).bfloat16()
    single = {name: fields()[name].float() for name in ("children", "transforms")}
    similarity = fields()["similarity"].map(lambda tensor, _: tensor.bfloat16())
    mixed = moments(backend, fields(**half, **single, similarity=similarity))
    wide = {name: tensor.double() for name, tensor in (half | single).items()}
    expected = moments(
        "naive",
        fields(**wide, similarity=similarity.map(lambda tensor, _: tensor.double())),
    )
    for value, expected_value in zip(mixed, expected, strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), expected_value, rtol=1e-4, atol=1e-4)


def operator_arguments(**changes: Any) -> list[Any]:
    """Arguments of ``torch.ops.torchcaps.moments``."""
    inputs = (
        fields(
            log_partition=random(N, G), sites=torch.arange(G, dtype=torch.int32)[None]
        )
        | changes
    )
    names = (
        "children",
        "transforms",
        "coordinates",
        "weights",
        "log_partition",
        "sites",
    )
    return [
        *(inputs[name] for name in names),
        list(inputs["similarity"].tensors),
        "native",
    ]


WRONG: dict[str, Any] = {
    "children": random(N, G, M, P).half(),
    "transforms": random(G, J, P, D).float(),
    "coordinates": random(G - 1, H),
    "weights": random(N, G).bfloat16(),
    "log_partition": random(N),
    "sites": torch.arange(G)[None],
    "similarity": Gaussian(random(N, J, H), random(1, J, H), random(N, J)),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_operators_read_only_what_they_were_given(name: str) -> None:
    arguments = operator_arguments(**{name: WRONG[name]})
    with pytest.raises(ValueError, match=f"^{name}.* must be"):
        torch.ops.torchcaps.moments(*arguments, False, False, True)
    with pytest.raises(ValueError, match=f"^{name}.* must be"):
        torch.ops.torchcaps.scores(*arguments, False, False)


def test_the_operators_refuse_sites_outside_and_gradients_that_do_not_fit() -> None:
    for site in (-1, G):
        outside = operator_arguments(
            sites=torch.tensor([[0, 1, 2, 3, site]], dtype=torch.int32)
        )
        with pytest.raises(IndexError, match="sites must be from 0 to 4"):
            torch.ops.torchcaps.moments(*outside, False, False, True)
    arguments = operator_arguments()
    mean = random(N, J, H)
    with pytest.raises(ValueError, match="grad_mass must be"):
        torch.ops.torchcaps.moments_backward(
            *arguments, False, False, mean, mean, mean, mean
        )
    with pytest.raises(ValueError, match="grad must be"):
        torch.ops.torchcaps.scores_backward(
            *arguments, False, True, random(N, G), random(N, G - 1)
        )


def test_nan_of_one_parent_is_seen_by_all_that_compete_with_it() -> None:
    """Windows beside each other share children: a log-partition that hides NaN leaves
    shares of more than the whole.
    """
    windows = tc.ops.Windows(
        (1, 3),
        (1, 2),
        (1, 1),
        (0, 0),
    )
    sites = windows.children(1, torch.device("cpu"))
    children = random(1, 3, 1, 2)
    parents = random(2, 2, 2)
    parents[0, 0] = torch.nan
    votes = Votes(
        children,
        random(2, 2, 2, 2),
        competition=tc.ops.GridWide(windows=windows),
        sites=sites,
    )
    assignment = votes.assignment(InnerProduct(parents))
    assert (
        assignment[1, 0].isnan().all()
    )  # the child in the middle, which both windows see
    assert assignment[1, 1].isfinite().all()


def test_exponentials_are_the_same_on_every_backend() -> None:
    """Under a log-partition that is given, a share is exp(l - Z), up to where float32
    ends, and infinite beyond.
    """
    heights = torch.cat(
        [
            torch.linspace(-110, 91, 4021),
            torch.tensor([88.7228, 88.7229, torch.inf, -torch.inf]),
        ]
    )
    children = torch.ones(len(heights), 1, 1)
    for sites in (None, torch.zeros(1, 1, dtype=torch.int32)):
        for backend in ("chunked", "native"):
            votes = Votes(
                children,
                torch.ones(1, 1, 1, 1),
                None,
                Given(lambda: -heights[:, None]),
                backend=backend,
                sites=sites,
            )
            mass = votes.moments(
                InnerProduct(torch.zeros(len(heights), 1, 1)), scatter=True
            ).mass[:, 0]
            small = heights < -87  # numbers that are hardly there
            torch.testing.assert_close(
                mass[~small], heights[~small].exp(), rtol=1e-6, atol=0
            )
            assert mass[small].max() < 2e-38
