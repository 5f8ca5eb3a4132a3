"""Options of a training, for tests."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from torchcaps_lab.cli.train import train_parser
from torchcaps_lab.training.command_line import TrainingOptions, training_options


def made(values: Mapping[str, Any]) -> SimpleNamespace:
    """The objects that options in a file describe, by the names of the options."""
    return SimpleNamespace(
        **{
            name: option
            for group in training_options(values).make()
            for name, option in vars(group).items()
        }
    )


def typed(*words: str) -> TrainingOptions:
    """Options on a command line."""
    return training_options(train_parser().tree(words))
