"""The pixels of scenes of digits, with the class of each."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torchcaps_lab.data.boxes import INK
from torchcaps_lab.data.examples import Batch, Examples
from torchcaps_lab.kinds.images.made.base import Part
from torchcaps_lab.kinds.scenes.made import DigitScenes, Scenery


@dataclass(frozen=True)
class _Pixels(Scenery):
    """Scenes whose labels are the digit that each pixel belongs to, from 1; 0 for
    none.
    """

    def __call__(self, batch: Batch, epoch: int, seed: int) -> Batch:
        scenes = super().__call__(batch, epoch, seed)
        assert scenes.parts is not None
        ink, topmost = scenes.parts.pictures.amax(2).max(1)  # [B, H, W]
        labels = 1 + scenes.parts.labels.gather(1, topmost.flatten(1)).view_as(topmost)
        return scenes._replace(labels=labels * (ink >= INK), parts=None)


class ScenePixels(DigitScenes):
    """Scenes of digits among clutter, with the class of each pixel: nothing, or the
    digit that it is ink of.

    The arguments are those of :class:`DigitScenes`.

    Example:
        >>> from torchcaps_lab.data import Digits, ScenePixels
        >>> scenes = ScenePixels(Digits(), canvas=(48, 48), most=2, clutter=2)
        >>> scenes.test.__getitems__([0, 1]).labels.shape, scenes.classes[:2]
        (torch.Size([2, 48, 48]), ('nothing', '0'))
    """

    task: ClassVar[Any] = {"name": "segmentation"}
    gives = "pixels"
    reads = "pixels"
    model = "segcaps"
    scenery = _Pixels

    def made(self, images: Examples, part: Part) -> Examples:
        """Each digit in a scene, as :class:`DigitScenes` makes it."""
        scenes = super().made(images, part)
        return replace(scenes, classes=("nothing", *scenes.classes))
