"""What the readers of weights have in common."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from torchcaps.models.network import Network
from torchcaps.models.outline import outlined


class Stored(NamedTuple):
    """A tensor of a file as the file states it; its numbers were not read.

    Args:
        name: there.
        shape: there; the file has room for so many numbers.
        dtype: as text.
        layout: the view of this package's tensor that has its axes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: Callable[[Tensor], Tensor] = Tensor.detach


class Converted(NamedTuple):
    """What a file of weights is made into.

    Args:
        make: gives the network, freshly initialised.
        weights: what the file states about the network's tensors, by the names of this
            package.
        read: gives the numbers, by the names of the file; they may be read once all
            shapes were compared.
        extra: what is saved with it: the names of the classes, how images are prepared,
            where the weights come from.
    """

    make: Callable[[], Network]
    weights: Mapping[str, Stored]
    read: Callable[[], Mapping[str, Tensor]]
    extra: Mapping[str, Any]


COUNTER = "num_batches_tracked"
"""Of a normalisation; it takes no part in what a trained network computes."""

TRAINED = 10_000
"""The batches that a file without that number is taken to have seen: its running values
are those of a long training, from which further training goes on.
"""


def of_smallnorb(preprocess: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept with a network that was trained on smallNORB, whose images were
    prepared so.
    """
    return {
        "classes": ["animal", "human", "airplane", "truck", "car"],
        "task": {"name": "classification"},
        "reader": {
            "name": "images",
            "image_shape": [2, 96, 96],
            "preprocess": dict(preprocess),
        },
    }


def outline(file: Path, make: Callable[[], Network]) -> dict[str, Tensor]:
    """The state of a network without memory for its numbers; a ``ValueError`` if there
    is none of such sizes.
    """
    try:
        return outlined(make).state_dict()
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{file} states sizes that no network has: {error}") from error


def check_names(file: Path, names_in_file: set[str], expected: set[str]) -> None:
    """Raises a ``ValueError`` that names some of what is missing, or is there and
    should not be.
    """
    for names, problem in (
        (expected - names_in_file, "lacks"),
        (names_in_file - expected, "holds, besides,"),
    ):
        if names:
            shown = ", ".join(sorted(names)[:4]) + (
                f" and {len(names) - 4} more" if len(names) > 4 else ""
            )
            raise ValueError(
                f"{file} is not the network that it seems to be: it {problem} {shown}"
            )
