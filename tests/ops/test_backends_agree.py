"""Every backend against the readable reference where
tests/testing/test_check_backend.py has no case for it.
"""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_cases import Case, all_cases, close
from torch import Tensor

from torchcaps.ops.chunked import ChunkedVotes
from torchcaps.ops.chunked.tiles import tile_shape
from torchcaps.ops.fused import NativeVotes
from torchcaps.ops.naive import NaiveVotes

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
CPU_TILE = "torchcaps.ops.chunked.tiles.CPU_TILE"
TILES = (
    1,
    30,
    10**6,
)  # each child of each row of its own; a few children; everything at once
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])


def agree(case: Case, dtype: torch.dtype, tiles: tuple[int, ...]) -> None:
    """All backends agree with the reference in float64."""
    expected = case.results(NaiveVotes, case.inputs())
    inputs = case.inputs(dtype)
    if dtype != torch.float64:
        close(case.results(NaiveVotes, inputs), expected, TOLERANCE[dtype])
    for numbers in tiles:
        with patch(CPU_TILE, numbers):
            close(case.results(ChunkedVotes, inputs), expected, TOLERANCE[dtype])
    close(case.results(NativeVotes, inputs), expected, TOLERANCE[dtype])


def test_tiles_are_cut_as_intended() -> None:
    shapes = [
        tile_shape(batch=2, children=3, numbers=4 * 3, most=most) for most in TILES
    ]
    assert shapes == [(1, 1), (1, 2), (2, 3)]


OPTIONS = st.builds(
    Case,
    similarity=st.sampled_from(["uniform", "inner", "gaussian"]),
    shared=st.booleans(),
    rows=st.sampled_from([1, 2, 3, 4]),
    coordinates=st.booleans(),
    weights=st.booleans(),
    partition=st.sampled_from(["soft", "leaky", "given"]),
    scatter=st.booleans(),
    batch=st.integers(1, 5),
    children=st.integers(1, 37),
    parents=st.integers(1, 6),
    child_dim=st.integers(1, 7),
    parent_dim=st.integers(1, 7),
)


@DTYPES
def test_any_shape(dtype: torch.dtype) -> None:
    @settings(max_examples=40, derandomize=True, deadline=None, database=None)
    @given(OPTIONS, st.sampled_from([40, 300, 2000, 10**6]))
    def check(case: Case, numbers: int) -> None:
        agree(case, dtype, tiles=(numbers,))

    check()


def _transposed(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _strided(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor.detach() + 1], dim=-1)[..., 0]


def _offset(tensor: Tensor) -> Tensor:
    return torch.cat([tensor.detach(), tensor])[tensor.shape[0] :]


@patch(CPU_TILE, 30)
@pytest.mark.parametrize("view", [_transposed, _strided, _offset])
@pytest.mark.parametrize("case", all_cases(rows=3, weights=True, partition="given"))
def test_layout_in_memory_does_not_matter(case: Case, view: object) -> None:
    inputs = case.inputs()
    expected = case.results(NaiveVotes, inputs)
    for backend in (NaiveVotes, ChunkedVotes, NativeVotes):
        close(case.results(backend, inputs, view), expected, 1e-9)


@patch(CPU_TILE, 30)
@pytest.mark.parametrize(
    "case", all_cases(rows=1, coordinates=False, weights=True, partition="soft")
)
def test_expanded_weights(case: Case) -> None:
    inputs = case.inputs()
    complete = dict(inputs, weights=inputs["weights"][:, :1].expand(-1, case.children))
    for backend in (NaiveVotes, ChunkedVotes, NativeVotes):
        moments = case.moments(backend, complete)
        (gradient,) = torch.autograd.grad(moments.sum.square().sum(), inputs["weights"])
        same = dict(inputs, weights=inputs["weights"][:, :1].repeat(1, case.children))
        reference = case.moments(NaiveVotes, same)
        (expected,) = torch.autograd.grad(
            reference.sum.square().sum(), inputs["weights"]
        )
        close(
            {"sum": moments.sum, "dweights": gradient},
            {"sum": reference.sum, "dweights": expected},
            1e-9,
        )
