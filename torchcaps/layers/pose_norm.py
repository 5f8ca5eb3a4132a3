"""Poses that keep their scale from layer to layer."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from torchcaps.layers.pose import Pose, pose_shape
from torchcaps.numerics import (
    Floor,
    as_constants,
    check_choice,
    check_size,
    compute_dtype,
    full_precision,
    real_dtype,
)
from torchcaps.routing.batch_norm import BatchStandard, early_share
from torchcaps.spec import SuggestsNames, check

PoseScale = Literal["element", "type"]


class PoseNorm(SuggestsNames, nn.Module):
    r"""Normalise the poses of capsules over the batch, as batch normalisation does
    channels.

    A parent is the mean of many votes that agree on little at first, so poses fade from
    layer to layer (in ``matrixcapsnet_small`` their standard deviation is 0.24, then
    0.058, then 0.008), until the floor of the variances and the coordinates drown them.

    =========== ================================================== ====================================================
    kind        :math:`M'` of type t                               :math:`M \to T M` for orthogonal T
    =========== ================================================== ====================================================
    ``element`` :math:`(M_{thd} - \mu_{thd}) / \sigma_{thd}`         is lost: each element has its own mean and scale
    ``type``    :math:`M_t / \sqrt{\overline{M_{t}^2}}`             is kept: one scale a type, and no shift
    =========== ================================================== ====================================================

    Means are over the batch, all positions and (``type``) the elements of a pose.
    Training uses those of the batch (``element``: of a batch with more than one
    position) and keeps running means of them for evaluation, which follow early
    (:func:`~torchcaps.routing.batch_norm.early_share`). Nothing is learned: the
    transforms of the next layer can scale as they need.

    Args:
        types: number of types of capsules.
        pose: D for vectors, (M, D) for matrices.
        kind: a row of the table.
        eps: added to the variance, or the mean square.

    Shape:
        Poses (B, *sites, types, *pose) to the same shape and dtype (integers: the
        default dtype); computed in float32 at least.

    Raises:
        TypeError: if the poses are not a tensor.
        ValueError: if there is no such kind, an argument is out of its range, or the
            poses do not fit.

    Source: ``element``: Ioffe & Szegedy 2015, for poses as in Ribeiro et al. 2020
    ("Capsule routing via variational Bayes"), which has one mean and scale a type.

    Example:
        >>> norm = tc.layers.PoseNorm(types=8, pose=(4, 4))
        >>> norm(100 * torch.randn(4, 6, 6, 8, 4, 4)).std().round()
        tensor(1.)
    """

    mean_square: Tensor
    batches: Tensor

    def __init__(
        self, types: int, pose: Pose, kind: PoseScale = "element", eps: float = 1e-5
    ) -> None:
        super().__init__()
        check_choice("kind", kind, get_args(PoseScale))
        check_size(types=types)
        check(Floor, eps, "eps")
        self.types, self.pose, self.kind = types, pose_shape("pose", pose), kind
        self.eps = eps
        # Not BatchStandard: sync_batchnorm puts a class of its own in its place.
        self.norm: nn.modules.batchnorm._BatchNorm | None = None
        if kind == "element":
            self.norm = BatchStandard(types * math.prod(self.pose), epsilon=eps)
        else:
            self.register_buffer("mean_square", torch.ones(types))
            self.register_buffer("batches", torch.zeros(()))

    def forward(self, pose: Tensor) -> Tensor:
        """Normalise the poses."""
        dtype = real_dtype("poses", pose)
        if pose.ndim < 2 + len(self.pose) or pose.shape[-1 - len(self.pose) :] != (
            self.types,
            *self.pose,
        ):
            expected = ", ".join(map(str, (self.types, *self.pose)))
            raise ValueError(
                f"poses must be (B, *sites, {expected}), got shape {tuple(pose.shape)}"
            )
        wide = pose.to(compute_dtype(pose))
        # [all sites, types, H]
        flat = wide.flatten(-len(self.pose)).flatten(0, -3)
        with full_precision(pose):
            if self.norm is not None:
                normal = self.norm(flat.flatten(1)).view_as(flat)
            else:
                scale = (self._mean_square(flat).to(flat) + self.eps).rsqrt()
                normal = flat * scale[:, None]
        return normal.view(pose.shape).to(dtype)

    def _mean_square(self, flat: Tensor) -> Tensor:
        # An empty batch has no mean.
        if not self.training or not flat.numel():
            return self.mean_square
        mean_square = flat.square().mean((0, 2))
        _follow(self, mean_square)
        return mean_square

    def extra_repr(self) -> str:
        """Return types, pose and kind."""
        return f"{self.types}, {self.pose}, kind={self.kind!r}"


def norm_of(types: int, pose: Pose, pose_norm: PoseScale | None) -> PoseNorm | None:
    """Return the normalisation of a layer with this argument ``pose_norm``, None for
    None.

    Raises:
        ValueError: if there is no such kind.
    """
    if pose_norm is None:
        return None
    check_choice("pose_norm", pose_norm, get_args(PoseScale))
    return PoseNorm(types, pose, pose_norm)


class PoseMagnitude(SuggestsNames, nn.Module):
    r"""The magnitude of poses, :math:`\sqrt{\overline{M^2}}` over all of their numbers:
    a scalar without gradient.

    In training it is that of the batch, in evaluation a running one, which follows early
    (:func:`~torchcaps.routing.batch_norm.early_share`). An orthogonal change of
    viewpoint leaves it as it is.

    Example:
        >>> magnitude = tc.layers.PoseMagnitude()
        >>> magnitude(2 * torch.ones(4, 10, 16))
        tensor(2.)
    """

    mean_square: Tensor
    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean_square", torch.ones(()))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, pose: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the magnitude, float32 at least.

        Args:
            pose: (B, *sites, *pose), 0 for capsules that are not there.
            mask: bool (B, *sites), False for these.
        """
        with as_constants():
            return self._magnitude(pose, mask)

    def _magnitude(self, pose: Tensor, mask: Tensor | None) -> Tensor:
        if not self.training or not pose.numel():
            return self.mean_square.to(compute_dtype(pose)).sqrt()
        square = pose.to(compute_dtype(pose)).square()
        numbers: Tensor | int = square.numel()
        if mask is not None:
            numbers = mask.sum().clamp(min=1) * (square.numel() // mask.numel())
        mean_square = square.sum() / numbers
        _follow(self, mean_square)
        return mean_square.sqrt()


def _follow(norm: PoseNorm | PoseMagnitude, mean_square: Tensor) -> None:
    """Let the running mean square follow that of another batch."""
    with as_constants():
        norm.batches += 1
        share = early_share(norm.batches)
        norm.mean_square.lerp_(mean_square.to(share.dtype), share)
