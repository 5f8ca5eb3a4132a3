"""The costs of EM routing: how dear it is to describe the votes by each parent, and the
logits of the activations.
"""

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchcaps.routing.em import EMRouting

EPSILON = torch.finfo(torch.float32).eps
"""In every dtype: with another bound in float64 the same weights would be another
network.
"""

RESOLVED = 5e-5
"""The largest share of standardised costs that may be rounding. Activations of networks
are then off by less than 1e-4, and costs that differ by a four-hundredth of their terms,
as where something was learned, are as they were.
"""


class Rounding(NamedTuple):
    """An estimate of what the rounding of float32 is in standardised costs.

    Args:
        share: the rounding of the costs as they were, as a share of their deviation,
            (B, 1).
        logit: the rounding of the logits of the activations, which these costs enter,
            (B, 1).
    """

    share: Tensor
    logit: Tensor


class Costs(NamedTuple):
    r"""The costs of the parents in every step, and with them the logits of their
    activations.

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
        >>> from torchcaps.routing.em_costs import Costs
        >>> zeros = torch.zeros(3)
        >>> costs = Costs.of(zeros, zeros, 16, tc.routing.EMRouting())
        >>> costs.logits(torch.ones(2, 3), torch.full((2, 3), 0.5), 1.0, None)[0]
        tensor([[-0.2500, -0.2500, -0.2500],
                [-0.2500, -0.2500, -0.2500]])
    """

    child: Tensor
    activation: Tensor
    scale: float
    terms: Tensor | None
    floor: float

    @classmethod
    def of(
        cls, beta_u: Tensor, beta_a: Tensor, size: int, settings: "EMRouting"
    ) -> "Costs":
        """Compute what is the same in all steps, of parents with poses of ``size``
        numbers: H.
        """
        scale = settings.cost_scale
        terms = None
        if settings.standardise:
            # A variance is off by a share of it, so its logarithm by a share of 1.
            terms = abs(scale) * size * (beta_u.detach().abs() + 0.5)
        child = scale * size * beta_u
        activation = settings.activation_scale * beta_a
        return cls(child, activation, scale, terms, settings.cost_floor)

    def logits(
        self,
        mass: Tensor,
        log_determinant: Tensor,
        inverse_temperature: float,
        before: Rounding | None,
    ) -> tuple[Tensor, Rounding | None]:
        """Return the logits of the activations, (B, J), and the rounding of
        standardised costs.

        Args:
            mass: N, (B, J).
            log_determinant: the log determinant of the covariances, (B, J).
            inverse_temperature: lambda.
            before: the rounding of the step before; None in the first one.
        """
        half = self.scale / 2
        cost = torch.add(self.child, log_determinant, alpha=half) * mass
        rounding = None
        if self.terms is not None:
            # Not |cost|, whose terms may cancel.
            logarithm = log_determinant.detach().abs()
            terms = torch.add(self.terms, logarithm, alpha=abs(half)) * mass.detach()
            cost, rounding = standardised(
                cost, terms, self.floor, before, abs(inverse_temperature)
            )
        activation = inverse_temperature * self.activation
        return torch.sub(activation, cost, alpha=inverse_temperature), rounding


def standardised(
    cost: Tensor,
    terms: Tensor,
    floor: float = 0.0,
    before: Rounding | None = None,
    inverse_temperature: float = 1.0,
) -> tuple[Tensor, Rounding]:
    r"""Standardise costs over the parents, as far as they differ by more than rounding.

    .. math::
        z_j = \frac{c_j - \bar c}{\max(\sigma, \rho / \tau)}, \quad
        \sigma^2 = \operatorname{var} c + (f \operatorname{mean} |c|)^2 + 10^{-8}, \quad
        \rho = \epsilon \operatorname{mean} t + \min(q \sigma, e \operatorname{mean} t)

    Before a training the costs of the parents may differ by a millionth of their size.
    Divided by that deviation, what float32 rounds, :math:`\epsilon`, would be a tenth
    of the result. So the rounding :math:`\rho` is estimated, and :math:`\tau` = 5e-5 is
    the most that it may be of z. It is that of the sums, and that of the step before:
    at most its share q of the deviation there, because steps pass on what parents
    differ by together with its error, and at most what its error e of the logits makes
    of the masses.

    Args:
        cost: c, (B, J).
        terms: t, the size of the numbers that costs were added up from, (B, J), without
            gradient.
        floor: f.
        before: the rounding of the step before, of which q and e are; None in the first
            step.
        inverse_temperature: that with which z enters the logits.

    Returns:
        z, of mean 0 and of deviation 1 or less; and its rounding.
    """
    # Centred first: where costs differ little, gradients too would be rounding.
    centred = cost - cost.mean(-1, keepdim=True)
    square = centred.square().mean(-1, keepdim=True) + 1e-8
    if floor:
        square = square + (floor * cost.abs().mean(-1, keepdim=True)).square()
    deviation = square.sqrt()
    spread = deviation.detach()
    size = terms.mean(-1, keepdim=True)
    amount = EPSILON * size
    if before is not None:
        amount = amount + torch.minimum(before.share * spread, before.logit * size)
    divisor = deviation.clamp(min=amount / RESOLVED)
    logit = inverse_temperature * (amount / divisor.detach())
    return centred / divisor, Rounding(amount / spread, logit)
