"""What can be measured of a bright figure on a dark ground by its moments, and which number of a pose moves it."""

import math

import torch
from torch import Tensor

MEASURES = ("slant", "width", "height", "weight", "left-right", "up-down")
"""The columns of :func:`shape_moments`."""

_NOTICED = (8.0, 0.12, 0.10, 0.20, 0.03, 0.03)
"""The smallest change of each that a person notices: in degrees, in shares of what it was, in shares of the image."""

_SHARES = ("width", "height", "weight")
"""Those whose changes are shares of what they were."""


def shape_moments(images: Tensor) -> Tensor:
    r"""Slant, width, height, weight and place of the figure in each image.

    With g the grey values and :math:`\mu_{pq} = \sum (x - \bar x)^p (y - \bar y)^q g / \sum g`,

    ============== ==================================================================================
    ``slant``      :math:`\arctan(-\mu_{11} / \mu_{02})` in degrees: how far it leans to the right
    ``width``      :math:`\sqrt{\mu_{20} - \mu_{11}^2 / \mu_{02}}` in pixels: once it stands upright
    ``height``     :math:`\sqrt{\mu_{02}}` in pixels
    ``weight``     :math:`\sum g / \sqrt{\mu_{02}}`: the ink of a figure of this height
    ``left-right`` :math:`\bar x` as a share of the width of the image
    ``up-down``    :math:`\bar y` as a share of its height
    ============== ==================================================================================

    Args:
        images: (B, C, H, W) in [0, 1]; channels are averaged.

    Returns:
        (B, 6); NaN for an image without a figure.

    Raises:
        ValueError: if ``images`` have another number of axes.

    Source: the slant is that of MNIST's deslanting, LeCun et al. 1998, section III.A.
    """
    if images.ndim != 4:
        raise ValueError(f"images must be (B, C, H, W), got shape {tuple(images.shape)}")
    grey = images.double().mean(1)
    _, H, W = grey.shape
    mass = grey.sum((1, 2))
    y = torch.arange(H, dtype=grey.dtype, device=grey.device)[:, None] + 0.5
    x = torch.arange(W, dtype=grey.dtype, device=grey.device) + 0.5
    share = grey / mass[:, None, None]
    x_mean, y_mean = (share * x).sum((1, 2)), (share * y).sum((1, 2))
    right, down = x - x_mean[:, None, None], y - y_mean[:, None, None]
    xx, yy, xy = ((share * product).sum((1, 2)) for product in (right**2, down**2, right * down))
    slant = torch.rad2deg(torch.atan2(-xy, yy))
    width, height = (xx - xy**2 / yy).clamp_min(0).sqrt(), yy.sqrt()
    columns = torch.stack([slant, width, height, mass / height, x_mean / W, y_mean / H], 1)
    return columns.masked_fill(~columns.isfinite().all(1, keepdim=True), torch.nan)


def pose_tells(sweep: Tensor) -> tuple[str, ...]:
    """What each number of a pose changes most of the shape that is drawn, in words: ``slant +12°``, ``width -20 %``.

    The change is that from the first image of the sweep to the last, in terms of how much of it a person notices. It
    must be steady: what the middle image shows lies between the two, not close to either.

    Args:
        sweep: (D, V, C, H, W), a row of V images for each number, the number rising.

    Returns:
        D texts; an empty one where nothing that :func:`shape_moments` measures changes noticeably and steadily.
    """
    places = (0, sweep.shape[1] // 2, -1)
    return tuple(map(_most_changed, *(shape_moments(sweep[:, place]).tolist() for place in places)))


def _most_changed(first: list[float], middle: list[float], last: list[float]) -> str:
    """In words, what changed most over three rows of measures, and steadily; empty if nothing did."""
    if not all(map(math.isfinite, (*first, *middle, *last))):
        return ""
    text, most = "", 1.0
    for name, noticed, *values in zip(MEASURES, _NOTICED, first, middle, last, strict=True):
        whole = values[2] - values[0]
        steady = whole and 0.15 <= (values[1] - values[0]) / whole <= 0.85
        share = whole if name not in _SHARES else 2 * whole / (values[0] + values[2])
        if steady and abs(share) / noticed >= most:
            most = abs(share) / noticed
            text = f"{name} {share:+.0f}°" if name == "slant" else f"{name} {share:+.0%}"
    return text
