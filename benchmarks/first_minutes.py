"""How long a newcomer waits: processor seconds of commands, each in its own process, of
one version or of two.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import report

ROOT = Path(__file__).parent.parent
TRAINING = (
    "train",
    "--data",
    "ImageFolder",
    "--data.root",
    "photos",
    "--data.size",
    "28",
    "--model",
    "capsnet_small",
    "--batch_size",
    "32",
    "--epochs",
    "3",
    "--report",
    "false",
    "--trainer.accelerator",
    "cpu",
)
"""Options of the training that is timed."""


class Wait(NamedTuple):
    """A command, and the beginning of the line that ends the wait; without one its end
    does.
    """

    words: tuple[str, ...]
    until: str | None = None


WAITS = {
    "`torchcaps --help`": Wait(("--help",)),
    "`torchcaps train --help`": Wait(("train", "--help")),
    "a misspelt option: `train --epoch 3`": Wait(("train", "--epoch", "3")),
    "a missing folder: `train nowhere`": Wait(("train", "nowhere")),
    "a missing run: `evaluate nowhere`": Wait(("evaluate", "nowhere")),
    "`torchcaps models`": Wait(("models",)),
    "`torchcaps check photos`, 280 images": Wait(("check", "photos")),
    "`torchcaps predict`, 28 files": Wait(
        ("predict", "mnist/efficient_capsnet", "photos/0")
    ),
    "training: the first line": Wait(TRAINING, ""),
    "training: the first epoch of 5 steps": Wait(TRAINING, "epoch 1/"),
}
"""What is waited for, in photos of 28 x 28 pixels, made from the embedded digits."""


def seconds(wait: Wait, root: Path, folder: Path) -> float:
    """Processor seconds of a command of the version in ``root``, with those of its
    children.

    Raises:
        ValueError: if the line that is waited for does not come.
    """
    new = ("--run", f"run-{time.monotonic_ns()}") if wait.until is not None else ()
    path = os.pathsep.join([str(root), str(root / "lab")])
    # Python keeps what it compiled, as on a user's machine: the first round compiles,
    # the others do not.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": path}
    with subprocess.Popen(
        [sys.executable, "-m", "torchcaps_lab", *wait.words, *new],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines = []
        while line := process.stdout.readline():  # type: ignore[union-attr]
            lines.append(line)
            if wait.until is not None and line.startswith(wait.until):
                process.kill()
                break
        else:
            if wait.until is not None:
                raise ValueError(
                    f"{' '.join(wait.words)} did not say {wait.until!r}: "
                    f"{''.join(lines[-3:])}"
                )
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0  # it was waited for
    return usage.ru_utime + usage.ru_stime


def write_photos(folder: Path) -> None:
    """28 images of each of ten classes."""
    from PIL import Image

    from torchcaps_lab.data import Digits

    digits = Digits(validation=0).train
    for label in range(10):
        (folder / "photos" / str(label)).mkdir(parents=True)
        for place in (digits.labels == label).nonzero().flatten()[:28].tolist():
            picture = Image.fromarray(digits.inputs[place, 0].numpy()).resize((28, 28))
            picture.save(folder / "photos" / str(label) / f"{place}.png")


def run(options: argparse.Namespace, show: Callable[[str], None]) -> None:
    """Measures, and shows a table; versions take turns."""
    roots: Sequence[Path] = (
        [ROOT] if options.against is None else [options.against.resolve(), ROOT]
    )
    rows: dict[str, list[float]] = {}
    titles = ["processor seconds", "before", "now"]
    if len(roots) == 1:
        titles.remove("before")
    show(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_photos(folder)
        for title, wait in WAITS.items():
            measured: list[list[float]] = [[] for _ in roots]
            for _ in range(options.runs):
                for root, of_root in zip(roots, measured, strict=True):
                    of_root.append(seconds(wait, root, folder))
            rows[title] = [round(median(of_root), 2) for of_root in measured]
            cells = [title, *(f"{value:.2f}" for value in rows[title])]
            show(f"| {' | '.join(cells)} |")
    if options.out is not None:
        report.write_json(
            options.out,
            **report.environment("cpu", options.threads),
            processor_seconds=rows,
        )
