"""What the training of a row costs, as a rehearsal of a few steps measured it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from recipes.kit.lab import PresetName
from torchcaps.whole import LARGEST_NOTE, read_json, write_whole


class Key(NamedTuple):
    """What is estimated.

    Args:
        recipe: the name of the recipe.
        preset: the preset.
        row: the row.
        device: the kind of device, such as ``cpu`` or ``cuda``.
    """

    recipe: str
    preset: PresetName
    row: str
    device: str


ESTIMATES = "estimates.json"
"""The file of the estimates, beside the results."""


@dataclass(frozen=True)
class Estimate:
    """The cost of training one row with one seed.

    Args:
        steps: the steps of the whole training.
        seconds: the median seconds of a step; on a CPU, those of all its cores.
        hardware: the device that the steps were timed on.
    """

    steps: int
    seconds: float
    hardware: str

    @property
    def hours(self) -> float:
        """The hours of the training, on a CPU core-hours."""
        return self.steps * self.seconds / 3600

    def __str__(self) -> str:
        hours = self.hours
        cost = f"{hours:.0f} h" if hours >= 1 else f"{60 * hours:.0f} min"
        return f"{cost} on {self.hardware}"


def read_estimates(results: Path) -> dict[Key, Estimate]:
    """The estimates in a folder of results."""
    path = results / ESTIMATES
    if not path.is_file():
        return {}
    rows = read_json(path, LARGEST_NOTE, list)
    return {
        Key(*[row.pop(name) for name in Key._fields]): Estimate(**row) for row in rows
    }


def write_estimates(results: Path, estimates: Mapping[Key, Estimate]) -> None:
    """Write them, one a line."""
    lines = [
        json.dumps({**key._asdict(), **asdict(estimate)})
        for key, estimate in sorted(estimates.items())
    ]
    results.mkdir(parents=True, exist_ok=True)
    write_whole(results / ESTIMATES, "[\n" + ",\n".join(lines) + "\n]\n")
