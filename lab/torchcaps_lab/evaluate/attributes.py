"""What can be measured of a bright figure on a dark ground, which number of a pose
moves it, and what reads it.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchcaps.optional_imports import needing

MEASURES = ("slant", "width", "height", "weight", "left-right", "up-down")
"""The columns of :func:`shape_moments`."""


_NOTICED = (8.0, 0.12, 0.10, 0.20, 0.03, 0.03)
"""The smallest change of each that a person notices: in degrees, in shares of what it
was, in shares of the image.
"""


_SHARES = ("width", "height", "weight")
"""Those whose changes are shares of what they were."""


def shape_moments(images: Tensor) -> Tensor:
    r"""Slant, width, height, weight and place of the figure in each image.

    With g the grey values and :math:`\mu_{pq} = \sum (x - \bar x)^p (y - \bar y)^q g /
    \sum g`,

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
        raise ValueError(
            f"images must be (B, C, H, W), got shape {tuple(images.shape)}"
        )
    grey = images.double().mean(1)
    _, H, W = grey.shape
    mass = grey.sum((1, 2))
    y = torch.arange(H, dtype=grey.dtype, device=grey.device)[:, None] + 0.5
    x = torch.arange(W, dtype=grey.dtype, device=grey.device) + 0.5
    share = grey / mass[:, None, None]
    x_mean = (share * x).sum((1, 2))
    y_mean = (share * y).sum((1, 2))
    right = x - x_mean[:, None, None]
    down = y - y_mean[:, None, None]
    xx, yy, xy = (
        (share * product).sum((1, 2)) for product in (right**2, down**2, right * down)
    )
    slant = torch.rad2deg(torch.atan2(-xy, yy))
    width = (xx - xy**2 / yy).clamp_min(0).sqrt()
    height = yy.sqrt()
    columns = torch.stack(
        [slant, width, height, mass / height, x_mean / W, y_mean / H], 1
    )
    return columns.masked_fill(~columns.isfinite().all(1, keepdim=True), torch.nan)


def pose_tells(sweep: Tensor) -> tuple[str, ...]:
    """What each number of a pose changes most of the shape that is drawn, in words:
    ``slant +12°``, ``width -20 %``.

    The change is that from the first image of the sweep to the last, in terms of how
    much of it a person notices. It must be steady: what the middle image shows lies
    between the two, not close to either.

    Args:
        sweep: (D, V, C, H, W), a row of V images for each number, the number rising.

    Returns:
        D texts; an empty one where nothing that :func:`shape_moments` measures changes
        noticeably and steadily.
    """
    places = (0, sweep.shape[1] // 2, -1)
    return tuple(
        map(
            _most_changed,
            *(shape_moments(sweep[:, place]).tolist() for place in places),
        )
    )


def _most_changed(first: list[float], middle: list[float], last: list[float]) -> str:
    """In words, what changed most over three rows of measures, and steadily; empty if
    nothing did.
    """
    if not all(map(math.isfinite, (*first, *middle, *last))):
        return ""
    text, most = "", 1.0
    for name, noticed, before, between, after in zip(
        MEASURES, _NOTICED, first, middle, last, strict=True
    ):
        change = after - before
        steady = change and 0.15 <= (between - before) / change <= 0.85
        share = change if name not in _SHARES else 2 * change / (before + after)
        if steady and abs(share) / noticed >= most:
            most = abs(share) / noticed
            if name == "slant":
                text = f"{name} {share:+.0f}°"
            else:
                text = f"{name} {share:+.0%}"
    return text


ATTRIBUTES = ("slant", "thickness", "aspect", "size")
"""What :func:`attributes` measures, in the order of its columns."""


_ENLARGED = 4


_DARK = 0.02
"""In an image that is brighter nowhere there is no figure."""


def attributes(images: Tensor) -> Tensor:
    """Measure slant, thickness, aspect and size of the bright figure on the dark ground
    of each image.

    ============= ==================================================================================================
    ``slant``     in degrees, how far the figure leans to the right, by the moments of its grey values: see
                  :func:`~torchcaps_lab.evaluate.shape_moments`
    ``thickness`` in pixels: twice the mean distance from the skeleton of the figure to its edge
    ``aspect``    width of the figure's bounding box over its height
    ``size``      in pixels: the root of that box's area
    ============= ==================================================================================================

    The last three are of the pixels above half of the brightest one, in the image
    enlarged four times (scikit-image's ``rescale`` and ``skeletonize``; the distances
    are those that its ``medial_axis`` gives, from SciPy in a fortieth of the time).

    Args:
        images: (B, C, H, W) in [0, 1]; channels are averaged.

    Returns:
        float64 (B, 4); NaN for an image without a figure.

    Raises:
        ModuleNotFoundError: if scikit-image is not installed; it names the extra.
        ValueError: if ``images`` have another number of axes.
    """
    if images.ndim != 4:
        raise ValueError(
            f"images must be (B, C, H, W), got shape {tuple(images.shape)}"
        )
    images = images.detach().cpu()
    rows = zip(
        shape_moments(images)[:, 0].tolist(),
        images.double().mean(1).numpy(),
        strict=True,
    )
    measured = [_measured(slant, image) for slant, image in rows]
    return torch.tensor(measured, dtype=torch.float64).reshape(-1, len(ATTRIBUTES))


def _measured(slant: float, image: np.ndarray) -> tuple[float, ...]:
    """The attributes of one image (H, W) whose slant is known."""
    with needing("attributes", "torchcaps-lab[poses]"):
        from scipy import ndimage
        from skimage import measure, morphology, transform
    if not image.max() > _DARK:  # NaN included
        return (math.nan,) * len(ATTRIBUTES)
    enlarged = transform.rescale(image, _ENLARGED, order=1, mode="constant")
    figure = enlarged > enlarged.max() / 2
    distance = ndimage.distance_transform_edt(figure)
    thickness = 2 * distance[morphology.skeletonize(figure)].mean() / _ENLARGED
    top, left, bottom, right = measure.regionprops(figure.astype(int))[0].bbox
    height = (bottom - top) / _ENLARGED
    width = (right - left) / _ENLARGED
    return slant, float(thickness), width / height, math.sqrt(width * height)


@dataclass(frozen=True, eq=False)
class Readout:
    r"""Attributes as linear functions of the pose, :math:`\hat y = v W + b`, fitted by
    least squares.

    Attributes:
        weight: W, (D, A).
        bias: b, (A,).
        explained: R² of each attribute on poses that the fit did not see, (A,).
        alone: R² of each dimension alone on those, its squared correlation with each
            attribute, (D, A).
        covariance: the covariance of the poses within their classes, (D, D).

    Example:
        >>> from torchcaps_lab.evaluate import fit_readout
        >>> poses = torch.randn(200, 4, dtype=torch.float64)
        >>> slant = (
        ...     poses @ torch.tensor([[0.0], [2.0], [0.0], [0.0]], dtype=torch.float64)
        ...     + 1
        ... )
        >>> readout = fit_readout(poses, slant, labels=torch.zeros(200))
        >>> readout.weight.round(decimals=3).abs().flatten().tolist()
        [0.0, 2.0, 0.0, 0.0]
        >>> upright = readout.moved(poses, torch.zeros(200, 1))
        >>> bool((readout(upright).abs() < 1e-6).all())
        True
    """

    weight: Tensor
    bias: Tensor
    explained: Tensor
    alone: Tensor
    covariance: Tensor

    def __call__(self, poses: Tensor) -> Tensor:
        """The attributes of poses (B, *pose), (B, A)."""
        return poses.flatten(1).to(self.weight) @ self.weight + self.bias

    def moved(self, poses: Tensor, values: Tensor) -> Tensor:
        r"""Move poses so that these attributes are read from them.

        .. math:: v' = v + (y - \hat y) (W^T \Sigma W)^{-1} W^T \Sigma

        the smallest change as the poses of a class vary, with their covariance
        :math:`\Sigma`.

        Args:
            poses: (B, *pose).
            values: y, (B, A).
        """
        reach = self.covariance @ self.weight  # [D, A]
        change = (
            (values.to(self.weight) - self(poses))
            @ torch.linalg.pinv(self.weight.T @ reach)
            @ reach.T
        )
        return poses + change.to(poses).reshape(poses.shape)


def fit_readout(poses: Tensor, values: Tensor, labels: Tensor) -> Readout:
    """Fit a :class:`Readout` to three of each four images, and test it on the fourth.

    Args:
        poses: the poses of one class of each image, (B, *pose).
        values: attributes of the images, (B, A); rows that are not finite are left out.
        labels: classes of the poses, (B,).

    Raises:
        ValueError: if the shapes do not fit, or there are fewer than two images for
            each number of a pose.
    """
    pose = poses.detach().cpu().flatten(1).double()
    if values.ndim != 2 or not len(pose) == len(values) == len(labels):
        raise ValueError(
            "poses, values (B, A) and labels must be as many, got "
            f"{tuple(poses.shape)}, {tuple(values.shape)} and "
            f"{tuple(labels.shape)}"
        )
    measured = values.isfinite().all(1).cpu()
    pose = pose[measured]
    values = values.cpu().double()[measured]
    labels = labels.cpu()[measured]
    if len(pose) < 2 * pose.shape[1]:
        raise ValueError(
            f"a read-out of {pose.shape[1]} numbers needs at least "
            f"{2 * pose.shape[1]} images that can be measured, "
            f"got {len(pose)}"
        )
    test = torch.arange(len(pose)) % 4 == 3
    design = torch.cat([pose, pose.new_ones(len(pose), 1)], 1)
    # By gelsd: poses may have dimensions that never move.
    solution = torch.linalg.lstsq(design[~test], values[~test], driver="gelsd").solution
    residual = (values - design @ solution)[test].square().sum(0)
    spread = (values[test] - values[test].mean(0)).square().sum(0)
    within = pose.clone()
    for label in labels.unique():
        within[labels == label] -= within[labels == label].mean(0)
    return Readout(
        solution[:-1],
        solution[-1],
        1 - residual / spread.clamp_min(1e-12),
        _correlation(pose[test], values[test]).square(),
        within.T @ within / len(within),
    )


def _correlation(left: Tensor, right: Tensor) -> Tensor:
    """Correlate each column of (B, M) with each of (B, N), (M, N); 0 where one never
    changes.
    """
    left = left - left.mean(0)
    right = right - right.mean(0)
    scale = torch.outer(left.norm(dim=0), right.norm(dim=0))
    return torch.where(scale > 1e-12, left.T @ right / scale.clamp_min(1e-12), 0.0)
