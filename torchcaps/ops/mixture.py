"""All steps of EM routing in plain PyTorch."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.numerics import Costs, Rounding
from torchcaps.ops.backend import Mixture, Moments, m_step
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
        moments: the moments of the votes under a similarity, with the scatter.
        mixture: the settings.
        beta_u: (J,).
        beta_a: (J,).
    """
    similarity: Gaussian | None = None
    rounding: Rounding | None = None
    costs: Costs | None = None
    for step, temperature in enumerate(mixture.temperatures):
        sums = moments(similarity)
        if costs is None:
            costs = Costs.of(beta_u, beta_a, sums.sum.shape[-1], mixture)
        gaussians, logit, rounding = m_step(
            sums, costs, temperature, mixture.floor, rounding
        )
        if step < mixture.steps - 1:
            mean, _, precision, log_determinant = gaussians
            sharpness = mixture.sharpness[step]
            log_weight = logsigmoid(logit) - 0.5 * sharpness * log_determinant
            similarity = Gaussian(mean, sharpness * precision, log_weight)
    return gaussians.mean, logit, similarity
