"""What can be measured of a drawn figure with scikit-image: slant, thickness of its strokes, shape and size."""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchcaps.report.shapes import shape_moments

if TYPE_CHECKING:
    import numpy as np

ATTRIBUTES = ("slant", "thickness", "aspect", "size")
"""What :func:`attributes` measures, in the order of its columns."""

_ENLARGED = 4

_DARK = 0.02
"""In an image that is brighter nowhere there is no figure."""


def attributes(images: Tensor, threshold: float = 0.5) -> Tensor:
    r"""Slant, thickness, aspect and size of the bright figure on the dark ground of each image.

    ============= ==================================================================================================
    ``slant``     in degrees, how far the figure leans to the right, by the moments of its grey values: see
                  :func:`~torchcaps.report.shape_moments`
    ``thickness`` in pixels: twice the mean distance from the skeleton of the figure to its edge
    ``aspect``    width of the figure's bounding box over its height
    ``size``      in pixels: the root of that box's area
    ============= ==================================================================================================

    The last three are of the pixels above ``threshold`` times the brightest one, in the image enlarged four times
    (scikit-image's ``rescale`` and ``skeletonize``; the distances are those that its ``medial_axis`` gives, from SciPy
    in a fortieth of the time).

    Args:
        images: (B, C, H, W) in [0, 1]; channels are averaged.
        threshold: share of the brightest grey value from which on a pixel belongs to the figure.

    Returns:
        float64 (B, 4); NaN for an image without a figure.

    Raises:
        ModuleNotFoundError: if scikit-image is not installed; it names the extra.
        ValueError: if ``images`` have another number of axes, or ``threshold`` is not between 0 and 1.
    """
    if images.ndim != 4:
        raise ValueError(f"images must be (B, C, H, W), got shape {tuple(images.shape)}")
    if not 0 < threshold < 1:
        raise ValueError(f"threshold must lie between 0 and 1, got {threshold}")
    images = images.detach().cpu()
    rows = zip(shape_moments(images)[:, 0].tolist(), images.double().mean(1).numpy(), strict=True)
    measured = [_measured(slant, image, threshold) for slant, image in rows]
    return torch.tensor(measured, dtype=torch.float64).reshape(-1, len(ATTRIBUTES))


def _measured(slant: float, image: "np.ndarray", threshold: float) -> tuple[float, ...]:
    """The attributes of one image (H, W) whose slant is known."""
    ndimage, measure, morphology, transform = _scikit_image()
    if not image.max() > _DARK:  # NaN included
        return (math.nan,) * len(ATTRIBUTES)
    enlarged = transform.rescale(image, _ENLARGED, order=1, mode="constant")
    figure = enlarged > threshold * enlarged.max()
    distance = ndimage.distance_transform_edt(figure)
    thickness = 2 * distance[morphology.skeletonize(figure)].mean() / _ENLARGED
    top, left, bottom, right = measure.regionprops(figure.astype(int))[0].bbox
    height, width = (bottom - top) / _ENLARGED, (right - left) / _ENLARGED
    return slant, float(thickness), width / height, math.sqrt(width * height)


def _scikit_image() -> tuple[Any, ...]:
    try:
        from scipy import ndimage
        from skimage import measure, morphology, transform
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "attributes are measured by scikit-image, which is not installed: pip install 'torchcaps[poses]'",
            name="skimage",
        ) from error
    return ndimage, measure, morphology, transform
