"""The folder of a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunFolder:
    """Where everything lies that a training leaves behind.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """All options of the training."""
        return self.path / "config.yaml"

    @property
    def summary(self) -> Path:
        """What came out, written at the end."""
        return self.path / "summary.json"

    @property
    def metrics(self) -> Path:
        """One row an epoch."""
        return self.path / "metrics.csv"

    @property
    def model(self) -> Path:
        """The trained network, as :func:`~torchcaps.models.load_pretrained` reads it."""
        return self.path / "model"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Writes the summary in one step: a folder that has one holds a finished run."""
        whole = self.summary.with_suffix(".tmp")
        whole.write_text(json.dumps(summary, indent=2) + "\n")
        whole.replace(self.summary)

    def unused(self) -> "RunFolder":
        """The folder, checked.

        Raises:
            FileExistsError: if there is something in it.
        """
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise FileExistsError(
                f"{self.path} exists already and is not empty: choose another --run, or continue it with "
                f"--resume {self.path}"
            )
        return self

    def existing(self) -> "RunFolder":
        """The folder, checked.

        Raises:
            FileNotFoundError: if it is not that of a run.
        """
        if not self.config.is_file():
            raise FileNotFoundError(f"{self.path} is not the folder of a run: it holds no {self.config.name}")
        return self


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """The summary of a finished run.

    Raises:
        ValueError: if the file is damaged.
    """
    try:
        return json.loads(folder.summary.read_text())
    except ValueError as error:
        raise ValueError(f"{folder.summary} is damaged: {error}") from error
