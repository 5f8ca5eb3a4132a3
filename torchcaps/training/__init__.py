"""Training: the Lightning module, what it logs, and a run in a folder that can be killed and resumed."""

from torchcaps.training.callbacks import History, RoutingHealth, StopAt
from torchcaps.training.diverged import TrainingDiverged
from torchcaps.training.fit import fit, quiet_lightning
from torchcaps.training.folder import RunFolder, is_first_process, read_summary
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
from torchcaps.training.record import follow_record, images_apart, write_record
from torchcaps.training.run import circumstances, option_hints, train, train_parsed, train_parser
from torchcaps.training.speed import Speed
from torchcaps.training.trust import UntrustedOptions, read_options

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
    "UntrustedOptions",
    "circumstances",
    "evaluation_loader",
    "fit",
    "follow_record",
    "images_apart",
    "is_first_process",
    "option_hints",
    "quiet_lightning",
    "read_options",
    "read_summary",
    "train",
    "train_loader",
    "train_parsed",
    "train_parser",
    "write_record",
]
