"""What the readers of weights have in common."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from torchcaps.models.network import Network


class Converted(NamedTuple):
    """What a file of weights is made into.

    Args:
        network: freshly initialised.
        weights: its whole state, by the names of this package.
        extra: what is saved with it: the names of the classes, how images are prepared, where the weights come from.
    """

    network: Network
    weights: Mapping[str, Tensor]
    extra: Mapping[str, Any]


SMALLNORB: dict[str, Any] = {
    "classes": ["animal", "human", "airplane", "truck", "car"],
    "raw_image_shape": [2, 96, 96],
    "task": {"name": "classification"},
}
"""What is kept with a network that was trained on smallNORB."""


def check_names(file: Path, found: set[str], expected: set[str]) -> None:
    """Raises a ``ValueError`` that names some of what is missing, or is there and should not be."""
    for names, what in ((expected - found, "lacks"), (found - expected, "holds, besides,")):
        if names:
            shown = ", ".join(sorted(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise ValueError(f"{file} is not the network that it seems to be: it {what} {shown}")
