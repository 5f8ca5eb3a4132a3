"""Batch normalisation whose running values are right from the first steps on."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class EarlyBatchNorm2d(nn.BatchNorm2d):
    r"""Batch normalisation of maps (B, C, H, W) with running values that follow early.

    .. math::
        \bar x_n = (1 - m_n) \bar x_{n-1} + m_n x_n, \quad
        m_n = \max\big(m, \tfrac{10}{9 + n}\big)

    The first batch replaces the values that ``torch.nn.BatchNorm2d`` starts from, and
    those of a training that still changes fast are forgotten: after n steps the mean
    is of about the last tenth of them, until that is 1 / m. With the momentum m = 0.01
    of the published networks, torch's keeps 0.6 of its start after 50 steps, and a
    network that has learned in training mode guesses in evaluation mode.

    The state is that of ``torch.nn.BatchNorm2d``; values that were loaded with a count
    of batches go on from there.

    Args:
        num_features: C.
        eps: added to the variances.
        momentum: m, the share of a batch in the end.

    Example:
        >>> norm = EarlyBatchNorm2d(3, momentum=0.01)
        >>> images = torch.rand(8, 3, 4, 4)
        >>> trained = norm(images)
        >>> torch.allclose(norm.eval()(images), trained, atol=0.02)
        True
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """The same shape, normalised."""
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        mean = torch.zeros_like(self.running_mean)
        variance = torch.zeros_like(self.running_var)
        # With momentum 1 these become the values of the batch.
        normalised = functional.batch_norm(
            input, mean, variance, self.weight, self.bias, True, 1.0, self.eps
        )
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = (10 / (9 + self.num_batches_tracked)).clamp(
                min=self.momentum or 0.0
            )
            self.running_mean.lerp_(mean, share.to(mean.dtype))
            self.running_var.lerp_(variance, share.to(mean.dtype))
        return normalised
