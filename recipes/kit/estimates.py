"""What the training of a row costs, as a rehearsal of a few steps measured it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from recipes.kit.lab import PresetName
from torchcaps.whole import LARGEST_NOTE, read_json, write_whole

Key = tuple[str, PresetName, str]
"""A recipe, a preset and a row."""

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


def read_estimates(results: Path) -> dict[Key, Estimate]:
    """The estimates in a folder of results, by recipe, preset and row."""
    path = results / ESTIMATES
    if not path.is_file():
        return {}
    rows = read_json(path, LARGEST_NOTE, list)
    return {
        (row.pop("recipe"), row.pop("preset"), row.pop("row")): Estimate(**row)
        for row in rows
    }


def write_estimates(results: Path, estimates: Mapping[Key, Estimate]) -> None:
    """Write them, one a line."""
    lines = [
        json.dumps({"recipe": recipe, "preset": preset, "row": row, **asdict(estimate)})
        for (recipe, preset, row), estimate in sorted(estimates.items())
    ]
    results.mkdir(parents=True, exist_ok=True)
    write_whole(results / ESTIMATES, "[\n" + ",\n".join(lines) + "\n]\n")
