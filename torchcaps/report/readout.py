"""What the dimensions of a pose tell about attributes of the image: a linear read-out."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Readout:
    r"""Attributes as linear functions of the pose, :math:`\hat y = v W + b`, fitted by least squares.

    Attributes:
        weight: W, (D, A).
        bias: b, (A,).
        explained: R² of each attribute on poses that the fit did not see, (A,).
        alone: R² of each dimension alone on those, its squared correlation with each attribute, (D, A).
        covariance: of the poses within their classes, (D, D).

    Example:
        >>> from torchcaps.report import fit_readout
        >>> poses = torch.randn(200, 4, dtype=torch.float64)
        >>> slant = poses @ torch.tensor([[0.0], [2.0], [0.0], [0.0]], dtype=torch.float64) + 1
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
        r"""The poses, moved so that these attributes are read from them.

        .. math:: v' = v + (y - \hat y) (W^T \Sigma W)^{-1} W^T \Sigma

        the smallest change as the poses of a class vary, with their covariance :math:`\Sigma`.

        Args:
            poses: (B, *pose).
            values: y, (B, A).
        """
        reach = self.covariance @ self.weight  # [D, A]
        change = (values.to(self.weight) - self(poses)) @ torch.linalg.pinv(self.weight.T @ reach) @ reach.T
        return poses + change.to(poses).reshape(poses.shape)


def fit_readout(poses: Tensor, values: Tensor, labels: Tensor) -> Readout:
    """Fits a :class:`Readout` to three of each four images, and tests it on the fourth.

    Args:
        poses: of one class of each image, (B, *pose).
        values: attributes of the images, (B, A); rows that are not finite are left out.
        labels: classes of the poses, (B,).

    Raises:
        ValueError: if the shapes do not fit, or there are fewer than two images for each number of a pose.
    """
    pose = poses.detach().cpu().flatten(1).double()
    if values.ndim != 2 or not len(pose) == len(values) == len(labels):
        raise ValueError(
            f"poses, values (B, A) and labels must be as many, got {tuple(poses.shape)}, {tuple(values.shape)} and "
            f"{tuple(labels.shape)}"
        )
    there = values.isfinite().all(1).cpu()
    pose, values, labels = pose[there], values.cpu().double()[there], labels.cpu()[there]
    if len(pose) < 2 * pose.shape[1]:
        raise ValueError(
            f"a read-out of {pose.shape[1]} numbers needs at least {2 * pose.shape[1]} images that can be measured, "
            f"got {len(pose)}"
        )
    test = torch.arange(len(pose)) % 4 == 3
    design = torch.cat([pose, pose.new_ones(len(pose), 1)], 1)
    # By gelsd: poses may have dimensions that never move.
    solution = torch.linalg.lstsq(design[~test], values[~test], driver="gelsd").solution
    rest = (values - design @ solution)[test].square().sum(0)
    spread = (values[test] - values[test].mean(0)).square().sum(0)
    within = pose.clone()
    for label in labels.unique():
        within[labels == label] -= within[labels == label].mean(0)
    return Readout(
        solution[:-1],
        solution[-1],
        1 - rest / spread.clamp_min(1e-12),
        _correlation(pose[test], values[test]).square(),
        within.T @ within / len(within),
    )


def _correlation(one: Tensor, other: Tensor) -> Tensor:
    """Of each column of (B, M) with each of (B, N), (M, N); 0 where one never changes."""
    one, other = one - one.mean(0), other - other.mean(0)
    scale = torch.outer(one.norm(dim=0), other.norm(dim=0))
    return torch.where(scale > 1e-12, one.T @ other / scale.clamp_min(1e-12), 0.0)
