"""Images with boxes around things."""

from torchcaps_lab.kinds.scenes.annotated import AnnotatedImages, AnnotatedSet
from torchcaps_lab.kinds.scenes.class_boxes import ClassBoxes
from torchcaps_lab.kinds.scenes.made import DigitScenes, Scenery
from torchcaps_lab.kinds.scenes.task import (
    Detection,
    average_precision,
    box_loss,
    owners,
    vote_loss,
)

__all__ = ["AnnotatedImages", "Scenery", "average_precision"]
