"""Pictures of objects without labels, which slots take apart."""

from torchcaps_lab.kinds.objects.measures import (
    adjusted_rand_index,
    best_overlap,
    foreground_rand_index,
)
from torchcaps_lab.kinds.objects.pictures import SlotMoves, SlotPictures
from torchcaps_lab.kinds.objects.sets import ObjectSet, PictureFolder, Shapes
from torchcaps_lab.kinds.objects.task import Objects

__all__: list[str] = []
