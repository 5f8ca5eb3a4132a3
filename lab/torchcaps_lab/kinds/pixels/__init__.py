"""Pictures whose pixels have classes."""

from torchcaps_lab.kinds.pixels.mask_set import NO_CLASS, Cuts, MaskSet
from torchcaps_lab.kinds.pixels.masks import Masks
from torchcaps_lab.kinds.pixels.pictures import Segments
from torchcaps_lab.kinds.pixels.scenes import ScenePixels
from torchcaps_lab.kinds.pixels.task import Segmentation, dice_loss

__all__ = ["Masks"]
