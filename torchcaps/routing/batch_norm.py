"""Batch normalisation whose running values are right from the first steps on."""

from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.numerics import Floor, Share, can_be_kept
from torchcaps.spec import check


def early_share(batches: Tensor, momentum: float = 0.1) -> Tensor:
    r"""Return the share of the n-th batch in a running value that follows early,
    :math:`m_n = \max(m, \tfrac{10}{9 + n})`.

    The first batch replaces what the value starts from. After n batches it is a mean
    over about the last tenth of them, until that is 1 / m: those of a training that
    still changes fast are forgotten.

    Args:
        batches: n, at least 1, as a tensor of one number.
        momentum: m, the share in the end.

    Example:
        >>> from torchcaps.routing.batch_norm import early_share
        >>> early_share(torch.tensor([1, 11, 1_000]))
        tensor([1.0000, 0.5000, 0.1000])
    """
    return (10 / (9 + batches)).clamp(min=momentum)


_FOLLOWED = "batches_followed"
"""An attribute of the tensor that counts batches."""


class EarlyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Running values that follow early, of any number of axes."""

    # None once torch.func.replace_all_batch_norm_modules_ has taken them away.
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    @property
    def batches_followed(self) -> int:
        """How many batches ``num_batches_tracked`` counts, or fewer. To read that one
        would wait for a GPU.

        The number is kept with that tensor: another one in its place, as
        ``torch.func.functional_call`` puts there, has its own.
        """
        if self.num_batches_tracked is None:
            return 0
        followed: int = vars(self.num_batches_tracked).get(_FOLLOWED, 0)
        return followed

    @batches_followed.setter
    def batches_followed(self, count: int) -> None:
        if self.num_batches_tracked is not None:
            vars(self.num_batches_tracked)[_FOLLOWED] = count

    def reset_running_stats(self) -> None:
        """Start anew, with no batch."""
        super().reset_running_stats()
        self.batches_followed = 0

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        # On another device, the buffers are other tensors.
        count = self.batches_followed
        super()._apply(*arguments, **options)
        self.batches_followed = count
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        count: Any = state_dict.get(prefix + "num_batches_tracked")
        # On the device meta, and in a mode of fake tensors, there is no number to read.
        nowhere = count is None or count.is_meta or not can_be_kept()
        self.batches_followed = 0 if nowhere else int(count)

    def forward(self, input: Tensor) -> Tensor:
        """The same shape, normalised."""
        if not self.training or self.running_mean is None:
            return super().forward(input)
        self._check_input_dim(input)
        if not input.numel():
            # Without values that the running ones could follow.
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias
            )
        return self._by_the_batch(input, self.running_mean.dtype)

    def _by_the_batch(self, batch: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalise a batch with its own values, of this dtype, which the running ones
        follow.
        """
        momentum = self.momentum
        # A compiler would make a graph of every count.
        if momentum is not None and not torch.compiler.is_compiling():
            self.batches_followed += 1
            # The share is the momentum: PyTorch follows by that in one operation.
            steady = (9 + self.batches_followed) * momentum >= 10
            if steady and dtype == self.running_mean.dtype:
                self.num_batches_tracked.add_(1)
                return functional.batch_norm(
                    batch,
                    self.running_mean,
                    self.running_var,
                    self.weight,
                    self.bias,
                    True,
                    momentum,
                    self.eps,
                )
        features = len(self.running_mean)
        # With momentum 1 these become the values of the batch.
        mean, variance = self.running_mean.new_zeros(2, features, dtype=dtype)
        normalised = functional.batch_norm(
            batch, mean, variance, self.weight, self.bias, True, 1.0, self.eps
        )
        with torch.no_grad():
            batches = self.num_batches_tracked.add_(1)
            if momentum is None:
                share = 1 / batches
            else:
                share = early_share(batches, momentum)
            share = share.to(self.running_mean.dtype)
            self.running_mean.lerp_(mean.to(share.dtype), share)
            self.running_var.lerp_(variance.to(share.dtype), share)
        return normalised


class EarlyBatchNorm1d(EarlyBatchNorm, nn.BatchNorm1d):
    """Batch normalisation of (B, C) or (B, C, L) with running values that follow early:
    see :class:`EarlyBatchNorm2d`.
    """


class EarlyBatchNorm2d(EarlyBatchNorm, nn.BatchNorm2d):
    r"""Batch normalisation of maps (B, C, H, W) with running values that follow early.

    .. math::
        \bar x_n = (1 - m_n) \bar x_{n-1} + m_n x_n, \quad
        m_n = \max\big(m, \tfrac{10}{9 + n}\big)

    With the momentum m = 0.1 that is usual, ``torch.nn.BatchNorm2d`` keeps 0.6 of what
    its values start from after 5 steps, and with the 0.01 of some published networks
    after 50: a network that has learned in training mode guesses in evaluation mode.

    The state is that of ``torch.nn.BatchNorm2d``; values that were loaded with a count
    of batches go on from there.

    Args:
        num_features: C.
        eps: added to the variances.
        momentum: m, the share of a batch in the end; None for plain means over all
            batches, as ``torch.optim.swa_utils.update_bn`` sets it.

    Raises:
        ValueError: in training, if a feature has one number.

    Example:
        >>> from torchcaps.routing.batch_norm import EarlyBatchNorm2d
        >>> norm = EarlyBatchNorm2d(3, momentum=0.01)
        >>> images = torch.rand(8, 3, 4, 4)
        >>> trained = norm(images)
        >>> torch.allclose(norm.eval()(images), trained, atol=0.02)
        True
    """


class EarlyBatchNorm3d(EarlyBatchNorm, nn.BatchNorm3d):
    """Batch normalisation of volumes (B, C, D, H, W) with running values that follow
    early: see :class:`EarlyBatchNorm2d`.
    """


class BatchStandard(EarlyBatchNorm1d):
    """Batch normalisation over all axes but the second, without scale and shift, in the
    dtype of the input.

    In training, a batch with one number a feature is normalised with the running
    values; the base class raises an error.

    Args:
        features: the length of the axis.
        epsilon: added to the variance.
        momentum: share of a batch in the new running values, in the end.

    Raises:
        ValueError: if the momentum is not a share, or epsilon not a floor that float32
            holds; or for one number a feature without running values, which
            ``torch.func.replace_all_batch_norm_modules_`` takes away.
    """

    def __init__(
        self, features: int, epsilon: float = 1e-5, momentum: float = 0.1
    ) -> None:
        check(Share, momentum, "momentum")
        check(Floor, epsilon, "epsilon")
        super().__init__(features, eps=epsilon, momentum=momentum, affine=False)

    def forward(self, input: Tensor) -> Tensor:
        """Return the same shape, standardised."""
        if self.running_mean is None:
            if 0 < input.numel() <= self.num_features:
                raise ValueError(
                    "without running values, each feature is normalised by its numbers "
                    "in the batch: these must be at least two, got one, in "
                    f"{tuple(input.shape)}. Give more examples"
                )
            return functional.batch_norm(input, None, None, training=True, eps=self.eps)
        many = self.training
        # In a statement: where a compiler leaves sizes open it decides here.
        if input.numel() <= self.num_features:
            many = False
        if many:
            return self._by_the_batch(input, input.dtype)
        return functional.batch_norm(
            input, self.running_mean.to(input), self.running_var.to(input), eps=self.eps
        )
