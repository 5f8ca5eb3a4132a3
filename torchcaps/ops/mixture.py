"""EM routing: the costs of its parents, and all steps in plain PyTorch."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.numerics import Rounding, standardised
from torchcaps.ops.backend import Gaussians, Mixture, Moments, mean_of, variance_of
from torchcaps.ops.similarity import Gaussian


class Costs(NamedTuple):
    r"""What the costs of the parents are in every step, and with them the logits of
    their activations.

    .. math::
        c_j = s \Big(H \beta_u + \tfrac12 \log \det \Sigma_j\Big) N_j, \quad
        \operatorname{logit} a_j = \lambda (b \beta_a - c_j)

    Args:
        child: of one child, without the determinant, (J,): :math:`s H \beta_u`.
        activation: :math:`b \beta_a`, (J,).
        scale: s.
        terms: for standardised costs, how large the terms of one child are without the
            determinant, (J,), without gradient; None leaves costs as they are.
        floor: the floor of standardised costs, see :func:`standardised`.

    Example:
        >>> zeros = torch.zeros(3)
        >>> costs = Costs.of(zeros, zeros, size=16)
        >>> costs.logits(torch.ones(2, 3), torch.full((2, 3), 0.5), 1.0)[0]
        tensor([[-0.2500, -0.2500, -0.2500],
                [-0.2500, -0.2500, -0.2500]])
    """

    child: Tensor
    activation: Tensor
    scale: float = 1.0
    terms: Tensor | None = None
    floor: float = 0.0

    @classmethod
    def of(
        cls,
        beta_u: Tensor,
        beta_a: Tensor,
        size: int,
        *,
        scale: float = 1.0,
        activation_scale: float = 1.0,
        standardise: bool = False,
        floor: float = 0.0,
    ) -> "Costs":
        """Compute the costs of parents with poses of ``size`` numbers: H."""
        terms = None
        if standardise:
            # A variance is off by a share of it, so its logarithm by a share of 1.
            terms = abs(scale) * size * (beta_u.detach().abs() + 0.5)
        child = scale * size * beta_u
        return cls(child, activation_scale * beta_a, scale, terms, floor)

    def logits(
        self,
        mass: Tensor,
        log_determinant: Tensor,
        temperature: float,
        before: Rounding | None = None,
    ) -> tuple[Tensor, Rounding | None]:
        """Return the logits of the activations, (B, J), and the rounding of
        standardised costs.

        Args:
            mass: N, (B, J).
            log_determinant: the log determinant of the covariances, (B, J).
            temperature: the inverse one, lambda.
            before: the rounding of the step before; None in the first one.
        """
        half = self.scale / 2
        cost = torch.add(self.child, log_determinant, alpha=half) * mass
        rounding = None
        if self.terms is not None:
            # Not |cost|, whose terms may cancel.
            logarithm = log_determinant.detach().abs()
            terms = torch.add(self.terms, logarithm, alpha=abs(half)) * mass.detach()
            cost, rounding = standardised(cost, terms, self.floor, before)
            rounding = rounding._replace(temperature=abs(temperature))
        activation = temperature * self.activation
        return torch.sub(activation, cost, alpha=temperature), rounding


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
        variance = variance_of(sums) + mixture.floor
        mean, _, precision, log_determinant = Gaussians.of(mean_of(sums), variance)
        if costs is None:
            costs = Costs.of(
                beta_u,
                beta_a,
                mean.shape[-1],
                scale=mixture.scale,
                activation_scale=mixture.activation_scale,
                standardise=mixture.standardise,
                floor=mixture.cost_floor,
            )
        mass = sums.mass * mixture.mass_factor
        logit, rounding = costs.logits(mass, log_determinant, temperature, rounding)
        if step < mixture.steps - 1:
            sharpness = mixture.sharpness[step]
            log_weight = logsigmoid(logit) - 0.5 * sharpness * log_determinant
            similarity = Gaussian(mean, sharpness * precision, log_weight)
    return mean, logit, similarity
