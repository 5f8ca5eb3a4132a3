"""The folder of a run."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torchcaps.whole import (
    LARGEST_NOTE,
    RUN_FILE,
    UNFINISHED,
    check_writable,
    folder_instead,
    owned,
    read_json,
    read_text,
    seen_from,
    sweep,
    write_whole,
)

_LOCK = ".lock"
_WRITTEN = (
    _LOCK,
    RUN_FILE,
    "data.json",
    "metrics.csv",
    "summary.json",
    "checkpoints",
    "model",
    "report",
    "tensorboard",
)
"""All that a training writes into the folder of a run, or deletes there."""


@dataclass(frozen=True)
class RunFolder:
    """The files of a run.

    Args:
        path: the folder.
        option: the option that chooses the folder, for messages: ``run`` in Python.

    Example:
        >>> from pathlib import Path
        >>> from torchcaps_lab.run_folder import RunFolder
        >>> RunFolder(Path("runs/digits")).summary.name
        'summary.json'
    """

    path: Path
    option: str = "--run"

    @property
    def config(self) -> Path:
        """All options of the training."""
        return self.path / RUN_FILE

    @property
    def summary(self) -> Path:
        """The results, written at the end."""
        return self.path / "summary.json"

    @property
    def metrics(self) -> Path:
        """One row for each epoch."""
        return self.path / "metrics.csv"

    @property
    def model(self) -> Path:
        """The trained network, as :func:`~torchcaps.models.load_pretrained` reads
        it.
        """
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def record(self) -> Path:
        """The manifest of the images, if they are files."""
        return self.path / "data.json"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary in one step, with null for values that are not finite; a
        folder that has one holds a finished run.
        """
        from torchcaps.spec import jsonable

        write_whole(self.summary, json.dumps(jsonable(summary), indent=2) + "\n")

    @contextmanager
    def opened(
        self, config: str, resumed: bool, begin: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Lock the folder for this process while it trains; the lock of a process that
        died is released.

        Args:
            config: YAML of all options, written into a new folder.
            resumed: whether this continues an earlier run.
            begin: called in a new folder before the options are written, so that a
                folder with options is complete.

        Raises:
            BlockingIOError: if another process trains in it.
            FileExistsError: if another process began a run in it in the meantime.
            ValueError: if a link in it leads out of it.
        """
        for name in _WRITTEN:
            owned(self.path, name)
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / _LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout as error:
            raise BlockingIOError(
                f"another process trains in {self.path}: wait for it, or choose "
                f"another {self.option}"
            ) from error
        try:
            if self.config.exists() != resumed:
                raise FileExistsError(
                    f"another process has begun a run in {self.path}: choose another "
                    f"{self.option}"
                )
            sweep(self.path)
            if not resumed:
                if begin is not None:
                    begin()
                write_whole(self.config, config)
            yield
        finally:
            lock.release()

    def unused(self) -> "RunFolder":
        """Return the folder, if it is new or empty.

        Raises:
            FileExistsError: if it is not empty.
            PermissionError: if nothing can be written there.
        """
        if self.path.exists() and (
            not self.path.is_dir() or any(map(_counts, self.path.iterdir()))
        ):
            going_on = ""
            if self.config.is_file():
                resume = f"--resume {self.path}"
                if self.option == "run":
                    resume = "resume=True"
                going_on = f", or continue it with {resume}"
            state = "is not a folder"
            if self.path.is_dir():
                state = "exists already and is not empty"
            raise FileExistsError(
                f"{self.path} {state}: choose another {self.option}{going_on}"
            )
        check_writable(self.path, f"choose another {self.option}")
        return self

    def existing(self) -> "RunFolder":
        """Return the folder, if it is that of a run.

        Raises:
            FileNotFoundError: if it is not that of a run.
            PermissionError: if nothing can be written there.
        """
        if not self.path.exists():
            raise FileNotFoundError(
                f"{self.path} is not the folder of a run: it does not exist"
                f"{seen_from(self.path)}"
            )
        if self.path.is_file():
            raise FileNotFoundError(folder_instead(self.path))
        if not self.config.is_file():
            raise FileNotFoundError(
                f"{self.path} is not the folder of a run: it holds no "
                f"{self.config.name}"
            )
        check_writable(self.path, f"choose another {self.option}")
        return self


def _counts(path: Path) -> bool:
    """Whether a file shows that a run was begun, unlike a lock, a manifest or an
    unfinished file.
    """
    return path.name not in (
        _LOCK,
        RunFolder(path.parent).record.name,
    ) and not path.name.endswith(UNFINISHED)


def read_summary(folder: RunFolder) -> dict[str, Any]:
    """Return the summary of a finished run.

    Raises:
        ValueError: if the file is damaged.
    """
    summary: dict[str, Any] = read_json(folder.summary, LARGEST_NOTE)
    return summary


def read_metrics(folder: RunFolder) -> list[dict[str, float]]:
    """Return what was measured in each epoch of a run, by name.

    Raises:
        ValueError: if the file is damaged.
    """
    text = read_text(folder.metrics, LARGEST_NOTE)
    try:
        return [
            {name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(text.splitlines())
        ]
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{folder.metrics} is damaged: {error}") from error


def is_first_process() -> bool:
    """Whether this is not one of the processes that Lightning, torchrun or Slurm
    started beside the first.
    """
    return all(
        int(os.environ.get(name, 0)) == 0
        for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID")
    )
