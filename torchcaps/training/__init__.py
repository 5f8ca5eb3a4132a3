"""Training: the Lightning module, what it logs, and a run in a folder that can be killed and resumed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torchcaps.training.folder import RunFolder, read_summary

if TYPE_CHECKING:
    from torchcaps.training.callbacks import History, RoutingHealth, StopAt, TrainingDiverged
    from torchcaps.training.fitting import fit, quiet_lightning
    from torchcaps.training.learner import Learner
    from torchcaps.training.loaders import Loaders, evaluation_loader, train_loader
    from torchcaps.training.options import (
        Caller,
        Optimisation,
        OptimizerFactory,
        Running,
        Schedule,
        SchedulerFactory,
        Subject,
        TrainerOptions,
    )
    from torchcaps.training.run import circumstances, is_first_process, train, train_parsed, train_parser
    from torchcaps.training.speed import Speed

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
    "circumstances",
    "evaluation_loader",
    "fit",
    "is_first_process",
    "quiet_lightning",
    "read_summary",
    "train",
    "train_loader",
    "train_parsed",
    "train_parser",
]

_MODULES = ("callbacks", "fitting", "learner", "loaders", "options", "run", "speed")


def __getattr__(name: str) -> Any:
    """What needs Lightning is imported when it is first asked for: whoever looks at a run does without."""
    if name in __all__:
        modules = [import_module(f"{__name__}.{module}") for module in _MODULES]
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
