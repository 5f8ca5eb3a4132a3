"""Tells arrays of examples and their labels from pairs of them."""

from typing import Any


def is_two_arrays(value: Any) -> bool:
    """Whether something is examples and their labels, and not a sequence of two pairs.

    Args:
        value: anything that may be data.
    """
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    inputs, labels = value
    several = hasattr(labels, "ndim") or isinstance(labels, list | tuple)
    if hasattr(inputs, "ndim"):
        return several and getattr(labels, "ndim", 1) > 0
    return (
        isinstance(inputs, list)
        and several
        and bool(inputs)
        and all(hasattr(part, "shape") for part in inputs)
    )
