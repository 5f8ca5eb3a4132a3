"""Tasks, what a network is for: its loss, measures, evaluation and answers."""

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
from torchcaps_lab.tasks.detection import Detection, average_precision, box_iou, box_loss
from torchcaps_lab.tasks.segmentation import Segmentation, dice_loss
from torchcaps_lab.tasks.several_labels import SeveralLabels

__all__ = [
    "Answer",
    "Classification",
    "Criteria",
    "Detection",
    "Examination",
    "Forward",
    "Measure",
    "Segmentation",
    "SeveralLabels",
    "Task",
    "as_task",
    "average_precision",
    "box_iou",
    "box_loss",
    "create_task",
    "dice_loss",
    "list_tasks",
    "register_task",
]
