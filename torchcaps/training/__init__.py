"""Training: the Lightning module, what it logs, and a run in a folder that can be killed and resumed."""

from torchcaps.training.callbacks import History, RoutingHealth, StopAt, TrainingDiverged
from torchcaps.training.fit import fit, quiet_lightning
from torchcaps.training.folder import RunFolder, read_summary
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
from torchcaps.training.record import RECORD, follow_record, images_apart, write_record
from torchcaps.training.run import circumstances, is_first_process, train, train_parsed, train_parser
from torchcaps.training.speed import Speed

__all__ = [
    "RECORD",
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
    "follow_record",
    "images_apart",
    "is_first_process",
    "quiet_lightning",
    "read_summary",
    "train",
    "train_loader",
    "train_parsed",
    "train_parser",
    "write_record",
]
