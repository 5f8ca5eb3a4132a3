"""Examples and their labels that a program has: in two arguments, two arrays, or pairs."""

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


def inputs_and_labels(data: Any, labels: Any, kind: str) -> tuple[Any, Any]:
    """Return examples, and the label of each.

    Args:
        data: the examples, or two arrays, or pairs of an example and a label.
        labels: the labels beside the examples; None if there are none.
        kind: what the examples are, for messages.

    Raises:
        ValueError: there are no labels.
    """
    if labels is not None:
        return data, labels
    if is_two_arrays(data):
        inputs, beside = data
        return inputs, beside
    if not isinstance(data, list | tuple) or not all(map(is_pair, data)):
        raise ValueError(
            f"the labels are missing: torchcaps.train({kind}, labels, kind={kind!r}), "
            f"got a {type(data).__name__} alone"
        )
    return [example for example, _ in data], [label for _, label in data]


def is_pair(value: Any) -> bool:
    """Whether something is a pair, such as of an example and its label."""
    return isinstance(value, list | tuple) and len(value) == 2
