"""Small trainings and what they leave, for tests."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps import create_model
from torchcaps.losses import MarginLoss
from torchcaps_lab.cli import main
from torchcaps_lab.data import Digits
from torchcaps_lab.options.declarations import TrainerOptions
from torchcaps_lab.training.learner import Learner
from torchcaps_lab.training.options import Optimisation

CPU = TrainerOptions(accelerator="cpu")
FEW = Digits().train.subset(torch.arange(64))
TINY: dict[str, Any] = {
    "channels": 4,
    "types": 2,
    "decoder_hidden": None,
}
TRAIN = [
    *(
        "train",
        "--data",
        "Digits",
        "--model",
        "capsnet_digits",
        "--epochs",
        "1",
        "--report",
        "false",
    ),
    *(
        "--model_args",
        "{channels: 4, types: 2, decoder_hidden: null}",
        "--trainer.accelerator",
        "cpu",
    ),
]
"""A command line that wants a folder for the run."""


def learner(
    loss: nn.Module | None = None, lr: float = 1e-3, **arguments: Any
) -> Learner:
    """A network for digits with weights that are the same each time, and Adam."""
    torch.manual_seed(0)
    model = create_model("capsnet_digits", **{**TINY, **arguments})
    return Learner(
        model,
        Optimisation(
            loss=loss or MarginLoss(), optimizer=partial(torch.optim.Adam, lr=lr)
        ),
    )


def status(*arguments: str) -> int:
    """The exit status of a command, whichever way it ends."""
    try:
        return main(arguments)
    except SystemExit as stop:
        return int(stop.code or 0)


def rows(run: Path) -> list[dict[str, float]]:
    """The metrics of each epoch but the seconds."""
    with (run / "metrics.csv").open(newline="") as file:
        return [
            {name: float(value) for name, value in row.items() if name != "seconds"}
            for row in csv.DictReader(file)
        ]


def summary(run: Path) -> dict[str, Any]:
    """What a run has written at its end."""
    return json.loads((run / "summary.json").read_text())
