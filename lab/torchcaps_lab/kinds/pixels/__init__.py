"""Pictures whose pixels have classes."""

from torchcaps_lab.kinds.pixels.masks import NO_CLASS, Cuts, Masks, MaskSet, ScenePixels
from torchcaps_lab.kinds.pixels.pictures import Segments
from torchcaps_lab.kinds.pixels.task import Segmentation, dice_loss

__all__ = ["Masks"]
