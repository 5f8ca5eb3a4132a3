"""Training: the Lightning module, its logs, and runs in folders, which can be killed
and resumed.
"""

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcaps_lab.training.callbacks import History, RoutingHealth, StopAt
    from torchcaps_lab.training.command_line import TrainingOptions, training_options
    from torchcaps_lab.training.diverged import TrainingDiverged
    from torchcaps_lab.training.fitting import fit, quiet_lightning
    from torchcaps_lab.training.folder import RunFolder, is_first_process, read_summary
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
    from torchcaps_lab.training.reading import read_options
    from torchcaps_lab.training.record import follow_record, images_apart, write_record
    from torchcaps_lab.training.run import circumstances, machine, train, train_with
    from torchcaps_lab.training.speed import Speed


class _Torchvision(MetaPathFinder):
    """Declares torchvision's operators when it is imported, as Lightning's torchmetrics
    does wherever it is there.
    """

    def find_spec(self, name: str, *more: Any) -> None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            from torchcaps.models.installed import declare_torchvision

            declare_torchvision()


sys.meta_path.insert(0, _Torchvision())

__all__ = [
    "RunFolder",
    "machine",
    "quiet_lightning",
    "read_options",
    "read_summary",
    "train",
    "train_with",
    "training_options",
]

_PARTS = (
    "Caller",
    "History",
    "Learner",
    "Loaders",
    "Optimisation",
    "OptimizerFactory",
    "RoutingHealth",
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
    "train_loader",
    "write_record",
)
"""What other rooms and tests use of it, which is not public."""

_MODULES = (
    "folder",
    "reading",
    "speed",
    "options",
    "command_line",
    "record",
    "diverged",
    "loaders",
    "learner",
    "callbacks",
    "fitting",
    "run",
)
"""In the order in which they are searched: from the third on they import torch, from
the eighth on Lightning.
"""


def __getattr__(name: str) -> Any:
    """Imports what is asked for, when it is: reading a run, or options, need not wait
    for torch and Lightning.
    """
    if name in __all__ or name in _PARTS:
        modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
        return next(
            getattr(module, name) for module in modules if hasattr(module, name)
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
