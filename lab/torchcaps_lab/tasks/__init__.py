"""Tasks, what a network is for: its loss, measures, evaluation and answers."""

from typing import Any

from torchcaps.models import box_iou
from torchcaps_lab.kinds import public
from torchcaps_lab.tasks.base import (
    Answer,
    Criteria,
    Examination,
    Forward,
    Measure,
    Task,
    as_task,
    create_task,
    list_tasks,
    register_task,
)
from torchcaps_lab.tasks.classification import Classification
from torchcaps_lab.tasks.several_labels import SeveralLabels
from torchcaps_lab.tasks.things import (
    Looked,
    look_for_things,
    mean_average_precision,
    true_things,
)

__all__ = [
    "Classification",
    "SeveralLabels",
    "Task",
    "box_iou",
    "look_for_things",
    "register_task",
]


def __getattr__(name: str) -> Any:
    """Tasks of the kinds of input."""
    return public(name, __name__)
