"""Compares a backend with the readable reference."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.ops import (
    Competition,
    Gaussian,
    Given,
    InnerProduct,
    OverChildren,
    Similarity,
    VoteSource,
    axes,
)
from torchcaps.ops.naive import NaiveVotes
from torchcaps.ops.windows import in_windows
from torchcaps.testing.compare import TOLERANCE, assert_same, with_gradients


@dataclass(frozen=True)
class Cauchy(Similarity):
    r"""A similarity that no kernel knows, :math:`k_j p_{ij} - \log(1 + |V_{ij} -
    c_j|^2)`, of all layouts.
    """

    centre: Tensor = axes("BJH")
    peak: Tensor = axes("IJ", "BIJ")
    steepness: Tensor = axes("J")

    def logits(self, votes: Tensor) -> Tensor:
        """Return the logits (B, I, J) of votes (B, I, J, H)."""
        distance = (votes - self.centre[:, None]).square().sum(-1)
        return self.peak * self.steepness - distance.log1p()


@dataclass(frozen=True)
class Doubtful(Competition):
    """A competition that no kernel knows: a softmax times a factor for each parent,
    (J,).
    """

    belief: Tensor = axes("J")

    def shares(self, logits: Tensor, log_partition: Tensor | None = None) -> Tensor:
        """Return the assignments (B, I, J) of logits (B, I, J)."""
        return logits.softmax(-1) * self.belief


@dataclass(frozen=True)
class Problem:
    """The sizes of a call, and which optional inputs it has."""

    rows: int
    children: int
    parents: int
    in_pose: tuple[int, int]
    parent_dim: int
    shared: bool = False
    coordinates: bool = False
    weights: bool = False
    windows: bool = False

    def tensors(self, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        """Return leaf tensors for all inputs of a call, the same for all dtypes except
        for rounding.
        """
        B, I, J, (M, P), D = (
            self.rows,
            self.children,
            self.parents,
            self.in_pose,
            self.parent_dim,
        )
        H = M * D
        N = B // 2 if self.windows else B
        G = I + 2 if self.windows else I
        shapes = {
            "children": (N, G, M, P),
            "transforms": (1 if self.shared else I, J, P, D),
            "coordinates": (I, H),
            "weights": (N, G),
            "log_partition": (N, G),
            "parent_partition": (B, 1, J),
            "parents": (B, J, H),
            "precision": (B, J, H),
            "log_weight": (B, J),
            "pairs": (I, J),
            "row_pairs": (B, I, J),
            "by_parent": (J,),
        }
        generator = torch.Generator().manual_seed(0)
        numbers = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, shape in shapes.items()
        }
        numbers["weights"] = numbers["weights"].sigmoid()
        numbers["precision"] = numbers["precision"].exp()
        return {
            name: tensor.float().to(device, dtype).requires_grad_()
            for name, tensor in numbers.items()
        }

    def sites(self, device: torch.device) -> Tensor | None:
        """Return indices of the children of two windows, which share all but two; None
        for one window.
        """
        if not self.windows:
            return None
        return torch.stack(
            [torch.arange(self.children), torch.arange(self.children) + 2]
        ).to(device, torch.int32)


PROBLEMS = (
    Problem(2, 3, 4, (1, 3), 2),
    Problem(1, 1, 1, (1, 1), 1, weights=True),
    Problem(3, 7, 5, (2, 3), 2, shared=True, coordinates=True, weights=True),
    Problem(5, 33, 3, (3, 2), 3, coordinates=True, weights=True),
    Problem(4, 17, 2, (1, 5), 7, shared=True, weights=True),
    Problem(6, 9, 4, (2, 3), 3, weights=True, windows=True),
)

EMPTY = tuple(
    Problem(*sizes, coordinates=True, weights=True, windows=windows)
    for windows in (False, True)
    for sizes in (
        (0, 3, 4, (1, 3), 2),
        (2, 0, 4, (1, 3), 2),
        (2, 3, 0, (1, 3), 2),
        (2, 3, 4, (0, 3), 2),
        (2, 3, 4, (1, 0), 2),
        (2, 3, 4, (1, 3), 0),
    )
)
"""No rows, no children, no parents, no rows of poses, child poses or parent poses
without numbers; in windows too.
"""


Tensors = dict[str, Tensor]

SIMILARITIES: dict[str, Callable[[Tensors], Similarity | None]] = {
    "uniform logits": lambda t: None,
    "an inner product": lambda t: InnerProduct(t["parents"]),
    "a Gaussian": lambda t: Gaussian(t["parents"], t["precision"], t["log_weight"]),
    "given logits (I, J)": lambda t: Given(t["pairs"]),
    "given logits (B, I, J)": lambda t: Given(t["row_pairs"]),
    "a similarity of one's own": lambda t: Cauchy(
        t["parents"], t["pairs"], t["by_parent"]
    ),
    "one's own of each row": lambda t: Cauchy(
        t["parents"], t["row_pairs"], t["by_parent"]
    ),
}


class Competing(NamedTuple):
    """Who competes in a call: a competition, and what its log-partition gave."""

    competition: Competition
    log_partition: Tensor | None = None


COMPETITIONS: dict[str, Callable[[Tensors], Competing]] = {
    "a softmax": lambda t: Competing(Competition()),
    "a softmax with a leak": lambda t: Competing(Competition(leaky=True)),
    "hard assignments": lambda t: Competing(Competition(hard=True)),
    "hard assignments beside a leak": lambda t: Competing(
        Competition(leaky=True, hard=True)
    ),
    "a given log-partition": lambda t: Competing(Competition(), t["log_partition"] + 2),
    "a given log-partition with a leak": lambda t: Competing(
        Competition(leaky=True), t["log_partition"] + 2
    ),
    "a competition of one's own": lambda t: Competing(
        Doubtful(t["by_parent"].square())
    ),
    "children that compete": lambda t: Competing(
        OverChildren(), t["parent_partition"] + 2
    ),
}


def check_backend(
    backend: type[VoteSource],
    *,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
) -> int:
    """Assert that a backend agrees with ``naive``, forward and backward, in everything
    that it supports.

    Compared are moments with and without the scatter, logits and log-partitions, for
    all similarities and competitions, odd sizes, shared transforms, coordinates, weights and
    windows; empty axes; and with a softmax also a child whose pose is NaN.

    Args:
        backend: a :class:`~torchcaps.ops.VoteSource`.
        dtype: the dtype of the inputs; the reference is float64.
        device: the device to run the backend on.

    Returns:
        How many pairs of a similarity and a competition were compared, at most 56 for each of
        six shapes.

    Raises:
        AssertionError: if something differs; says what, by how much, and in which call.
    """
    compared = 0
    for problem in PROBLEMS:
        reference = problem.tensors(torch.float64, torch.device("cpu"))
        tensors = problem.tensors(dtype, torch.device(device))
        for (name, similarity), (manner, competing) in product(
            SIMILARITIES.items(), COMPETITIONS.items()
        ):
            trouble = backend.supports(
                similarity(tensors), competing(tensors).competition
            )
            if not isinstance(trouble, str):
                raise AssertionError(
                    f"{backend.__name__}.supports must return a str, got {trouble!r}"
                )
            if trouble:
                continue
            compared += 1
            try:
                actual = _results(
                    backend, problem, tensors, similarity(tensors), competing(tensors)
                )
                expected = _results(
                    NaiveVotes,
                    problem,
                    reference,
                    similarity(reference),
                    competing(reference),
                )
                assert_same(actual, expected, TOLERANCE[dtype])
            except AssertionError as error:
                raise AssertionError(
                    f"{backend.__name__} differs from naive for {name} under "
                    f"{manner}: {error}; {problem}"
                ) from None
    if not compared:
        raise AssertionError(
            f"{backend.__name__} supports nothing: supports(...) never returns an "
            "empty string"
        )
    _check_edges(backend, dtype, torch.device(device))
    return compared


EDGES = ("a softmax", "hard assignments", "a given log-partition")
"""Under which empty axes are checked."""


def _check_edges(
    backend: type[VoteSource], dtype: torch.dtype, device: torch.device
) -> None:
    """Assert that results with empty axes, and where NaN appears, are those of
    ``naive``.
    """
    hurt = PROBLEMS[0]
    for (name, similarity), manner, problem in product(
        SIMILARITIES.items(), EDGES, (hurt, *EMPTY)
    ):
        tensors = problem.tensors(dtype, device)
        compared = similarity(tensors)
        competing = COMPETITIONS[manner](tensors)
        if backend.supports(compared, competing.competition) or (
            problem is hurt and manner != "a softmax"
        ):
            continue
        if competing.competition.hard and not problem.parents:
            # No parent takes all of the child.
            continue
        try:
            if problem is hurt:
                _expect_nan(backend, tensors, compared, competing)
            else:
                actual = _results(backend, problem, tensors, compared, competing)
                expected = _results(NaiveVotes, problem, tensors, compared, competing)
                finite = [
                    field
                    for field, tensor in expected.items()
                    if not torch.equal(actual[field], tensor)
                ]
                assert_same(
                    actual,
                    {field: expected[field] for field in finite},
                    TOLERANCE[dtype],
                )
        except Exception as error:
            raise AssertionError(
                f"{backend.__name__} fails for {name} under {manner}, {problem}: "
                f"{error}"
            ) from error


def _expect_nan(
    backend: type[VoteSource],
    tensors: Tensors,
    similarity: Similarity | None,
    competing: Competing,
) -> None:
    with torch.no_grad():
        tensors["children"][0, 0] = torch.nan
    actual = _outputs(backend, PROBLEMS[0], tensors, similarity, competing)
    for name, tensor in _outputs(
        NaiveVotes, PROBLEMS[0], tensors, similarity, competing
    ).items():
        hidden = int((tensor.isnan() & ~actual[name].isnan()).sum())
        if hidden:
            raise AssertionError(
                f"{name} hides NaN of a child's pose in {hidden} places"
            )


def _results(
    backend: type[VoteSource],
    problem: Problem,
    tensors: Tensors,
    similarity: Similarity | None,
    competing: Competing,
) -> dict[str, Tensor]:
    """All results of a backend for a call, and the gradients of all inputs, on the
    CPU.
    """
    outputs = _outputs(backend, problem, tensors, similarity, competing)
    results = with_gradients(outputs, tensors, seed=1)
    return {name: tensor.detach().cpu() for name, tensor in results.items()}


def _outputs(
    backend: type[VoteSource],
    problem: Problem,
    tensors: Tensors,
    similarity: Similarity | None,
    competing: Competing,
) -> dict[str, Tensor]:
    """Moments with and without the scatter, logits, and log-partitions."""
    children, transforms = tensors["children"], tensors["transforms"]
    sites = problem.sites(children.device)
    coordinates = tensors["coordinates"] if problem.coordinates else None
    weights = tensors["weights"] if problem.weights else None
    competition, log_partition = competing
    if backend.indexed:
        source = backend(children, transforms, coordinates, sites)
    else:
        source = backend(in_windows(children, sites), transforms, coordinates)
        weights = None if weights is None else in_windows(weights, sites)
        if log_partition is not None and log_partition.ndim == 2:
            log_partition = in_windows(log_partition, sites)
    moments, with_scatter = (
        source.moments(similarity, weights, competition, log_partition, scatter)
        for scatter in (False, True)
    )
    assert with_scatter.scatter is not None
    return {
        "mass": moments.mass,
        "sum": moments.sum,
        "mass beside a scatter": with_scatter.mass,
        "sum beside a scatter": with_scatter.sum,
        "scatter": with_scatter.scatter,
        "logits": source.logits(similarity),
        "log_partition": source.log_partition(similarity, competition.leaky),
    }
