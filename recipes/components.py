"""A threshold and connected components, the answer to which pixels belong together that
learns nothing.
"""

from typing import Any

import numpy as np
import torch
from skimage.filters import threshold_otsu
from skimage.measure import label as connected
from torch import Tensor
from torch.nn.functional import one_hot

from torchcaps.models import ImageClassifier, Prediction

OTSU = "Otsu's threshold and connected components"


def of_masks(images: Tensor, masks: Tensor) -> Prediction:
    """An answer of masks (B, J, H, W), each drawn in its mean colour."""
    pixels = masks.flatten(2)
    colours = pixels @ images.flatten(2).mT / pixels.sum(2, keepdim=True).clamp(1)
    drawn = torch.einsum("bjc,bjhw->bchw", colours, masks)
    return Prediction(pixels.amax(2), None, drawn, masks=masks)


_LEAST_COMPONENT = 15
"""Pixels. Smaller regions are taken for the ground."""


class Components(ImageClassifier):
    """Takes each connected region of pixels of objects for an object; the first slot is
    the ground.

    Args:
        image_shape: (C, H, W).
        slots: their number. The largest regions get one.
    """

    def inside(self, images: Tensor) -> Tensor:
        """Which pixels are of an object, bool (B, H, W)."""
        raise NotImplementedError

    def forward(self, images: Tensor, target: Tensor | None = None) -> Prediction:
        """The regions as masks, each drawn in its mean colour."""
        regions = [
            _largest(connected(inside), self.classes - 1)
            for inside in self.inside(images).cpu().numpy()
        ]
        masks = one_hot(torch.stack(regions).to(images.device), self.classes)
        return of_masks(images, masks.movedim(-1, 1).to(images))


def _largest(regions: Any, most: int) -> Tensor:
    """Regions numbered from 1 by size, so many of them; 0 for all others."""
    sizes = np.bincount(regions.ravel())
    sizes[0] = 0
    chosen = (-sizes).argsort(kind="stable")[:most]
    chosen = chosen[sizes[chosen] >= _LEAST_COMPONENT]
    numbers = np.zeros(len(sizes), np.int64)
    numbers[chosen] = np.arange(1, len(chosen) + 1)
    return torch.from_numpy(numbers[regions])


class Otsu(Components):
    """Pixels are of objects if their colour is further from that of the ground than
    Otsu's threshold of these distances. The colour of the ground is the median of the
    image.
    """

    def inside(self, images: Tensor) -> Tensor:
        """Which pixels are of an object, bool (B, H, W)."""
        ground = images.flatten(2).median(2).values[..., None, None]
        distance = (images - ground).norm(dim=1)
        thresholds = [threshold_otsu(image.cpu().numpy()) for image in distance]
        return distance > distance.new_tensor(thresholds)[:, None, None]
