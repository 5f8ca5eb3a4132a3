"""EM routing, step by step in plain PyTorch."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.numerics import Rounding, standardised
from torchcaps.ops.backend import Gaussians, Mixture, Moments, mean_of, variance_of
from torchcaps.ops.similarity import Gaussian


def step_by_step(
    moments: Callable[[Gaussian | None], Moments],
    mixture: Mixture,
    beta_u: Tensor,
    beta_a: Tensor,
) -> tuple[Tensor, Tensor, Gaussian | None]:
    """The means (B, J, H) and the logits of the activations (B, J) after all steps, and
    what the last step compared the votes with.

    Args:
        moments: of the votes under a similarity, with the scatter.
        mixture: the settings.
        beta_u: (J,).
        beta_a: (J,).
    """
    similarity: Gaussian | None = None
    rounding: Rounding | None = None
    for step, temperature in enumerate(mixture.temperatures):
        sums = moments(similarity)
        variance = variance_of(sums) + mixture.floor
        mean, _, precision, log_determinant = Gaussians.of(mean_of(sums), variance)
        size = mean.shape[-1]
        scale = mixture.scale
        mass = sums.mass * mixture.mass_factor
        cost = torch.add(scale * size * beta_u, log_determinant, alpha=scale / 2) * mass
        if mixture.standardise:
            each = size * beta_u.abs() + (size + log_determinant.abs()) / 2
            terms = (abs(scale) * each * mass).detach()
            cost, rounding = standardised(cost, terms, mixture.cost_floor, rounding)
            rounding = rounding._replace(logit=abs(temperature) * rounding.logit)
        logit = temperature * (mixture.activation_scale * beta_a - cost)
        if step < mixture.steps - 1:
            sharpness = mixture.sharpness[step]
            log_weight = logsigmoid(logit) - 0.5 * sharpness * log_determinant
            similarity = Gaussian(mean, sharpness * precision, log_weight)
    return mean, logit, similarity
