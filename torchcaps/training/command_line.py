"""The options of a training on the command line and in YAML. Reading them does not need Lightning."""

from collections.abc import Sequence
from typing import Any, get_type_hints

from torchcaps.training.options import Optimisation, Running, Schedule, Subject
from torchcaps.training.parser import OptionParser, TrustedConfigFile

GROUPS = (Subject, Optimisation, Schedule, Running)
"""The groups of options of a training, which are on one level on the command line and in YAML."""


def option_hints() -> dict[str, Any]:
    """The options of a training by name, with their type hints."""
    return {name: hint for group in GROUPS for name, hint in get_type_hints(group).items()} | {"run": str}


def train_parser(imported: Sequence[str] = ()) -> OptionParser:
    """The options of a training on the command line and in YAML, and the folder of the run as ``run``.

    Args:
        imported: the modules that were named on the command line, which files of options may use.
    """
    parser = OptionParser(
        prog="torchcaps train",
        description="Train a network. '--resume RUN' instead of '--run RUN' continues an interrupted run.",
    )
    parser.allowed, parser.imported = option_hints(), imported
    parser.add_argument("--config", action=TrustedConfigFile, help="YAML file with any of these options")
    parser.add_argument("--run", type=str, required=True, help="folder to write; must be new or empty")
    parser.add_argument(
        "--import", type=list[str], default=[], help="modules or .py files of your own to execute first"
    )
    for group in GROUPS:
        parser.add_class_arguments(group)
    parser.set_defaults(
        {
            "loss": {"class_path": "torchcaps.losses.MarginLoss"},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3}},
        }
    )
    return parser
