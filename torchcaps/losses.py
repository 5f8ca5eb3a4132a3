"""Losses on class activations and on reconstructions."""

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.numerics import (
    Finite,
    Positive,
    Progress,
    Ramp,
    check_choice,
    class_mask,
    compute_dtype,
    real_dtype,
)
from torchcaps.spec import Registry, SuggestsNames, settings

Weighting = Literal["paper", "released"]
Schedule = Literal["linear", "stepped", "sigmoid", "constant"]
Reduction = Literal["mean", "sum"]


def _checked(activation: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The activations in float32 at least, and the target, labels (B,) or a mask (B,
    E), as a mask.
    """
    real_dtype("activation", activation)
    activation = activation.to(compute_dtype(activation))
    if activation.ndim != 2:
        raise ValueError(
            f"activation must be (B, E), got shape {tuple(activation.shape)}"
        )
    mask = class_mask(activation, target)
    # A mask looks like activations, and Keras takes it first.
    if mask.requires_grad and not activation.requires_grad:
        raise ValueError(
            "activation comes before target: the second has a gradient, the first none"
        )
    return activation, mask


def _weighted(losses: Tensor, mask: Tensor, weight: Tensor | None) -> Tensor:
    """The losses (B,), each times the mean weight of the classes of its image, which
    are in the mask (B, E).
    """
    if weight is None:
        return losses
    if (weight := torch.as_tensor(weight)).shape != mask.shape[1:]:
        raise ValueError(
            f"weight must be ({mask.shape[1]},), one for each class, got "
            f"{tuple(weight.shape)}"
        )
    count = mask.sum(1)
    # No product of matrices, which autocast would round.
    mean = (mask * weight.to(mask)).sum(1) / count.clamp_min(
        torch.finfo(mask.dtype).tiny
    )
    return losses * torch.where(count > 0, mean, 1)


def margin_loss(
    activation: Tensor,
    target: Tensor,
    present: float = 0.9,
    absent: float = 0.1,
    down_weight: float = 0.5,
    weighting: Weighting = "paper",
    weight: Tensor | None = None,
) -> Tensor:
    r"""Return the margin loss on the lengths of class capsules; several classes may be
    present at once.

    .. math::
        L = \sum_k T_k \max(0, m^+ - a_k)^2 + \lambda (1 - T_k) \max(0, a_k - m^-)^2

    averaged over the batch. The released code halves it and averages over the E classes
    instead of adding them up, so that the same reconstruction loss weighs 2 E times
    more beside it (20 times for ten classes).

    Args:
        activation: (B, E).
        target: labels (B,), or a mask (B, E) of the classes that are present.
        present: :math:`m^+`.
        absent: :math:`m^-`.
        down_weight: :math:`\lambda` (0.5; Su: 0.25).
        weighting: ``"paper"``, or ``"released"`` for that of the code.
        weight: the weight of the classes, (E,): each image counts by the mean weight of
            its classes; default: all 1.

    Raises:
        TypeError: if the activation or the target is not a tensor.
        ValueError: if shapes do not fit, a label or the mask is out of range, or there
            is no such weighting. The numbers of a mask are checked on a CPU only.

    Source: Sabour, Frosst & Hinton 2017, equation 4; the code released with it.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    activation, mask = _checked(activation, target)
    missed = mask * (present - activation).relu().square()
    invented = (activation - absent).relu().square()
    loss = torch.addcmul(missed, 1 - mask, invented, value=down_weight)
    losses = loss.sum(1) if weighting == "paper" else loss.mean(1) / 2
    return _weighted(losses, mask, weight).mean()


class ActivationLoss(SuggestsNames, nn.Module, ABC):
    """Base of the losses on class activations, which ``--loss`` of the command line
    takes.
    """

    shares: ClassVar[bool] = False
    """Whether a mask (B, E) must hold probabilities of the classes, which add up to 1.
    """

    weighs: ClassVar[bool] = False
    """Whether :meth:`forward` weights each image by the mean of its classes in
    ``class_weights``.
    """

    class_weights: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("class_weights", None, persistent=False)

    def weigh(self, weights: Tensor) -> None:
        """Weight each image by its classes from now on.

        Args:
            weights: the weights of the classes, (E,).

        Raises:
            ValueError: if the loss does not support weights.
        """
        if not self.weighs:
            raise ValueError(
                f"class_weights are not supported by {type(self).__name__}: choose "
                "another loss"
            )
        self.class_weights = weights

    @abstractmethod
    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar, of activations (B, E) and labels (B,) or a mask
        (B, E).
        """

    def probabilities(self, activation: Tensor) -> Tensor:
        """Return the probabilities of activations (B, E, ...) under this loss: their
        shares of the sum, unless it has a softmax.
        """
        return activation / activation.sum(1, keepdim=True).clamp_min(1e-12)

    def advance(self, epoch: int, epochs: int, step: int) -> None:
        """Tell the loss how far training has come, before each step; most losses
        ignore it.

        Args:
            epoch: the present one, from 0.
            epochs: the number of all.
            step: steps so far, over all epochs.
        """


LOSSES = Registry("loss", ActivationLoss)
"""The losses on class activations by the names of their classes, for ``--loss``."""


@settings
class MarginLoss(ActivationLoss):
    """Module form of :func:`margin_loss`.

    Args:
        present: length that a present class should exceed.
        absent: length that an absent class should stay below.
        down_weight: weight of the absent classes.
        weighting: ``paper``, or ``released`` for that of the code, beside which
            reconstruction weighs 2 E times more.

    Raises:
        ValueError: if a number is not finite, or there is no such weighting.

    Example:
        >>> loss = tc.MarginLoss()
        >>> loss(
        ...     torch.tensor([[0.9, 0.1, 0.4]]), torch.tensor([0])
        ... )  # half the square of 0.4 - 0.1
        tensor(0.0450)
    """

    weighs: ClassVar[bool] = True

    present: Finite = 0.9
    absent: Finite = 0.1
    down_weight: Finite = 0.5
    weighting: Weighting = "paper"

    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        margins = self.present, self.absent, self.down_weight, self.weighting
        return margin_loss(activation, target, *margins, weight=self.class_weights)


def length_cross_entropy(
    activation: Tensor,
    target: Tensor,
    inverse_temperature: float = 10.0,
    weight: Tensor | None = None,
) -> Tensor:
    r"""Return the cross-entropy of :math:`\operatorname{softmax}(\lambda a)`.

    Args:
        activation: (B, E).
        target: labels (B,), or probabilities (B, E).
        inverse_temperature: :math:`\lambda`; for lengths, which lie in [0, 1], a
            softmax with 1 stays close to uniform.
        weight: see :func:`margin_loss`.

    Raises:
        TypeError: if the activation or the target is not a tensor.
        ValueError: if shapes do not fit, or a label or the mask is out of range, as in
            :func:`margin_loss`.
    """
    activation, mask = _checked(activation, target)
    losses = F.cross_entropy(inverse_temperature * activation, mask, reduction="none")
    return _weighted(losses, mask, weight).mean()


@settings
class LengthCrossEntropy(ActivationLoss):
    """Module form of :func:`length_cross_entropy`.

    Args:
        inverse_temperature: factor of the lengths before the softmax.

    Raises:
        ValueError: if it is not finite.

    Example:
        >>> loss = tc.LengthCrossEntropy()
        >>> loss(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 1])).shape
        torch.Size([])
    """

    shares: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    inverse_temperature: Finite = 10.0

    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        return length_cross_entropy(
            activation, target, self.inverse_temperature, self.class_weights
        )

    def probabilities(self, activation: Tensor) -> Tensor:
        """Return the softmax of the scaled lengths."""
        return (self.inverse_temperature * activation).softmax(1)


def negative_log_likelihood(
    activation: Tensor, target: Tensor, weight: Tensor | None = None
) -> Tensor:
    r"""Return the cross-entropy of activations that are shares of a whole, :math:`-\log
    (a_t / \sum_j a_j)`.

    For a network whose activations come from a softmax this is the usual cross-entropy.

    Args:
        activation: (B, E), 0 or more.
        target: labels (B,), or probabilities (B, E).
        weight: see :func:`margin_loss`.

    Raises:
        TypeError: if the activation or the target is not a tensor.
        ValueError: if shapes do not fit, or a label or the mask is out of range, as in
            :func:`margin_loss`.
    """
    activation, mask = _checked(activation, target)
    logs = activation.clamp_min(torch.finfo(activation.dtype).tiny).log()
    losses = F.cross_entropy(logs, mask, reduction="none")
    return _weighted(losses, mask, weight).mean()


class NegativeLogLikelihood(ActivationLoss):
    """Module form of :func:`negative_log_likelihood`.

    Example:
        >>> loss = tc.NegativeLogLikelihood()
        >>> loss(
        ...     torch.tensor([[0.25, 0.75]]), torch.tensor([1])
        ... )  # minus the logarithm of 0.75
        tensor(0.2877)
    """

    shares: ClassVar[bool] = True
    weighs: ClassVar[bool] = True

    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        return negative_log_likelihood(activation, target, self.class_weights)


def reconstruction_loss(reconstruction: Tensor, images: Tensor) -> Tensor:
    """Return the sum of squared errors of each image, averaged over the batch.

    The paper adds 0.0005 times this to the margin loss; so does its code, whose margin
    loss is 2 E times smaller: see ``weighting`` of :func:`margin_loss`.

    Args:
        reconstruction: (B, C, H, W).
        images: (B, C, H, W), in the range of the reconstruction, which is [0, 1] for
            the decoders of this package.

    Raises:
        TypeError: if one is not a tensor.
        ValueError: if the shapes differ, one is complex, or the images are integers, such
            as bytes.

    Source: Sabour, Frosst & Hinton 2017, section 4.1.
    """
    real_dtype("reconstruction", reconstruction)
    real_dtype("images", images)
    if reconstruction.shape != images.shape:
        raise ValueError(
            "reconstruction and images must have one shape, got "
            f"{tuple(reconstruction.shape)} and {tuple(images.shape)}"
        )
    if not images.is_floating_point():
        raise ValueError(
            "images must be floating point in the range of the reconstruction, such as "
            f"bytes / 255, got {images.dtype}"
        )
    dtype = compute_dtype(reconstruction)
    return F.mse_loss(
        reconstruction.to(dtype), images.to(dtype), reduction="sum"
    ) / len(images)


@settings
class ReconstructionLoss(SuggestsNames, nn.Module):
    """Module form of :func:`reconstruction_loss`, weighted.

    Args:
        weight: the weight of the sum of squared errors.

    Raises:
        ValueError: if it is not finite.

    Example:
        >>> loss = tc.ReconstructionLoss(weight=0.0005)
        >>> loss(torch.rand(4, 1, 28, 28), torch.rand(4, 1, 28, 28)).shape
        torch.Size([])
    """

    weight: Finite = 0.0005

    def forward(self, reconstruction: Tensor, images: Tensor) -> Tensor:
        """Return the weighted loss, a scalar."""
        return self.weight * reconstruction_loss(reconstruction, images)


def spread_loss(
    activation: Tensor,
    target: Tensor,
    margin: float = 0.9,
    weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""Return the spread loss, which makes the true class more active than every other
    class by a margin.

    .. math:: L = \sum_{i \ne t} \max(0, m - (a_t - a_i))^2

    averaged over the batch. The released code averages over the classes too: its loss
    is 1 / E of this one, which matters beside other terms and weight decay.

    Args:
        activation: (B, E).
        target: labels (B,).
        margin: m.
        weight: see :func:`margin_loss`.
        reduction: over the batch: ``"mean"``, or ``"sum"`` as in a port, whose loss is
            B times this one.

    Raises:
        TypeError: if the activation or the target is not a tensor.
        ValueError: if shapes do not fit, the target is not labels, a label is out of
            range, or there is no such reduction.

    Source: Hinton, Sabour & Frosst 2018, equation 3.
    """
    check_choice("reduction", reduction, get_args(Reduction))
    activation, mask = _checked(activation, target)
    if mask.shape == target.shape:
        raise ValueError(
            "target must be labels (B,): spread loss has one true class for each "
            f"image, got shape {tuple(target.shape)}"
        )
    true = (activation * mask).sum(1, keepdim=True)
    losses = ((1 - mask) * (margin - (true - activation)).relu().square()).sum(1)
    losses = _weighted(losses, mask, weight)
    return losses.sum() if reduction == "sum" else losses.mean()


@settings
class SpreadLoss(ActivationLoss):
    r"""Module form of :func:`spread_loss`, with a margin that grows in training so that
    few capsules die early.

    ============ ===============================================================
    schedule     margin
    ============ ===============================================================
    ``linear``   from ``start`` to ``end`` over the epochs, then ``end``
    ``stepped``  ``start``, and 0.1 more each epoch, up to ``end``
    ``sigmoid``  ``start + (end + 0.09 - start) sigmoid(min(10, step / period - 4))``,
                 as in the released code
    ``constant`` ``end``
    ============ ===============================================================

    Args:
        start: first margin.
        end: last margin.
        schedule: a row of the table.
        period: the period of the sigmoid, in steps.
        reduction: over the batch: ``mean``, or ``sum``, beside which other terms of the
            loss weigh B times less.

    Raises:
        ValueError: if a number is not finite, the period is not above 0, or there is no
            such schedule.

    Source: Hinton, Sabour & Frosst 2018, section 4.1; the code released with it.

    Example:
        >>> loss = tc.SpreadLoss(start=0.2, end=0.9)
        >>> loss.advance(
        ...     epoch=9, epochs=10, step=1000
        ... )  # the margin grows as training goes on
        >>> loss(torch.tensor([[0.9, 0.1, 0.4]]), torch.tensor([0])).shape
        torch.Size([])
    """

    weighs: ClassVar[bool] = True

    start: Finite = 0.2
    end: Finite = 0.9
    schedule: Schedule = "linear"
    period: Positive = 50000.0
    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        self.margin = self.end
        self.advance(0, 1, 0)

    def advance(self, epoch: int, epochs: int, step: int) -> None:
        """Set the margin for the next step."""
        if self.schedule == "linear":
            self.margin = Ramp(self.start, self.end).at(Progress(epoch, epochs, step))
        elif self.schedule == "stepped":
            self.margin = min(self.start + 0.1 * epoch, self.end)
        elif self.schedule == "sigmoid":
            rise = 1 / (1 + math.exp(-min(10.0, step / self.period - 4)))
            self.margin = self.start + (self.end + 0.09 - self.start) * rise

    def forward(self, activation: Tensor, target: Tensor) -> Tensor:
        """Return the loss at the current margin, a scalar."""
        return spread_loss(
            activation, target, self.margin, self.class_weights, self.reduction
        )
