"""Schedulers of the learning rate that must know how long the training is."""

import csv
from pathlib import Path

import pytest
import torch

from torchcaps.cli import main

EPOCHS, STEPS = 3, 10
TRAIN = ["train", "--data", "Digits", "--model", "capsnet_digits", "--epochs", str(EPOCHS), "--report", "false"]
SMALL = ["--model_args", "{channels: 8, types: 2, decoder_hidden: [16], stem: [4]}", "--trainer.accelerator", "cpu"]
FEW = ["--trainer.extra", f"{{limit_train_batches: {STEPS}}}"]
CYCLE = ["--scheduler", "OneCycleLR", "--scheduler.max_lr", "0.01"]


def trained(run: Path, *options: str) -> list[float]:
    """The learning rate after each epoch."""
    assert main([*TRAIN, *SMALL, *FEW, *CYCLE, *options, "--run", str(run)]) == 0
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["learning_rate"]) for row in csv.DictReader(file)]


def cycle(total: int) -> list[float]:
    """The learning rate after each epoch but the last, when the cycle is over."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=total)
    rates = []
    for _ in range(STEPS * (EPOCHS - 1)):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    return rates[STEPS - 1 :: STEPS]


def test_one_cycle_spans_all_steps_of_the_training(tmp_path: Path) -> None:
    rates = trained(tmp_path / "run")
    assert rates[:-1] == pytest.approx(cycle(EPOCHS * STEPS), rel=1e-12)
    assert rates[-1] < 1e-4


def test_a_number_of_steps_that_was_given_holds(tmp_path: Path) -> None:
    rates = trained(tmp_path / "run", "--scheduler.total_steps", "1000", "--scheduler_interval", "step")
    assert rates[:-1] == pytest.approx(cycle(1000), rel=1e-12)
