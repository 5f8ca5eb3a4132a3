"""Checks for your own classes: they raise an AssertionError that says what is off, and
by how much.
"""

from torchcaps.testing.backends import check_backend
from torchcaps.testing.equivariance import (
    assert_equivariant,
    orthogonal,
    signed_permutation,
)
from torchcaps.testing.layers import check_layer
from torchcaps.testing.models import check_model
from torchcaps.testing.routings import check_routing

__all__ = [
    "assert_equivariant",
    "check_backend",
    "check_layer",
    "check_model",
    "check_routing",
    "orthogonal",
]
