"""Training: the Lightning module, its logs, and runs in folders, which can be killed and resumed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchcaps.models.installed import declare_torchvision
from torchcaps_lab.training.diverged import TrainingDiverged
from torchcaps_lab.training.folder import RunFolder, is_first_process, read_summary
from torchcaps_lab.training.reading import read_options
from torchcaps_lab.training.record import follow_record, images_apart, write_record

if TYPE_CHECKING:
    from torchcaps_lab.training.callbacks import History, RoutingHealth, StopAt
    from torchcaps_lab.training.command_line import TrainingOptions, training_options
    from torchcaps_lab.training.fitting import fit, quiet_lightning
    from torchcaps_lab.training.learner import Learner
    from torchcaps_lab.training.loaders import Loaders, evaluation_loader, train_loader
    from torchcaps_lab.training.options import (
        Caller,
        Optimisation,
        OptimizerFactory,
        Running,
        Schedule,
        SchedulerFactory,
        Subject,
        TrainerOptions,
    )
    from torchcaps_lab.training.run import circumstances, train, train_with
    from torchcaps_lab.training.speed import Speed

declare_torchvision()  # Lightning's torchmetrics imports it wherever it is installed

__all__ = [
    "Caller",
    "History",
    "Learner",
    "Loaders",
    "Optimisation",
    "OptimizerFactory",
    "RoutingHealth",
    "RunFolder",
    "Running",
    "Schedule",
    "SchedulerFactory",
    "Speed",
    "StopAt",
    "Subject",
    "TrainerOptions",
    "TrainingDiverged",
    "TrainingOptions",
    "circumstances",
    "evaluation_loader",
    "fit",
    "follow_record",
    "images_apart",
    "is_first_process",
    "quiet_lightning",
    "read_options",
    "read_summary",
    "train",
    "train_loader",
    "train_with",
    "training_options",
    "write_record",
]

_MODULES = ("speed", "options", "command_line", "loaders", "learner", "callbacks", "fitting", "run")
"""In the order in which they are searched: from the fourth on they import Lightning, which takes seconds."""


def __getattr__(name: str) -> Any:
    """Imports what needs Lightning on first use: reading a run, or options, does not need it."""
    if name in __all__:
        modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
