"""EM routing (Hinton, Sabour & Frosst 2018): parents are Gaussians, routing fits the mixture."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from torchcaps.ops import Gaussian, Moments, Votes
from torchcaps.routing.base import Routed, Routing, check_steps, register_routing


class EMState(NamedTuple):
    """The parents after an M-step.

    Args:
        mean: (B, J, H).
        variance: (B, J, H), floor included.
        logit: of the activation, (B, J).
    """

    mean: Tensor
    variance: Tensor
    logit: Tensor


def em_m_step(
    moments: Moments, beta_u: Tensor, beta_a: Tensor, inverse_temperature: float, variance_floor: float
) -> EMState:
    r"""The M-step of Procedure 1.

    .. math::
        \mu_j = \frac{S_j}{N_j}, \quad \sigma_j^2 = \frac{Q_j}{N_j} + \text{floor}, \quad
        \text{cost}_{jh} = (\beta_u + \log \sigma_{jh}) N_j, \quad
        a_j = \operatorname{sigmoid}\Big(\lambda \big(\beta_a - \sum_h \text{cost}_{jh}\big)\Big)

    Args:
        moments: with the scatter.
        beta_u: cost of describing one unit of data without this parent, (J,).
        beta_a: cost of switching the parent on, (J,).
        inverse_temperature: lambda.
        variance_floor: added to the variance; a parent with one child would have none.
    """
    variance = moments.variance + variance_floor
    size = variance.shape[-1]
    cost = (size * beta_u + variance.log().sum(-1) / 2) * moments.mass
    return EMState(moments.mean, variance, inverse_temperature * (beta_a - cost))


def em_similarity(state: EMState) -> Gaussian:
    r"""The E-step's similarity: :math:`\log a_j + \log \mathcal N(V_{ij}; \mu_j, \sigma_j^2)`, but for a constant."""
    log_weight = logsigmoid(state.logit) - state.variance.log().sum(-1) / 2
    return Gaussian(state.mean, state.variance.reciprocal(), log_weight)


def em_routing(
    votes: Votes,
    weights: Tensor | None,
    beta_u: Tensor,
    beta_a: Tensor,
    inverse_temperatures: Sequence[float],
    *,
    variance_floor: float = 5e-4,
) -> Routed:
    r"""Routing by expectation maximisation: one M-step and one E-step for each inverse temperature.

    Args:
        votes: of I children for J parents.
        weights: child activations, (B, I), or None for ones.
        beta_u: (J,).
        beta_a: (J,).
        inverse_temperatures: lambda for each step.
        variance_floor: added to the variances.

    Source: Hinton, Sabour & Frosst 2018, "Matrix capsules with EM routing", Procedure 1.
    """
    check_steps(len(inverse_temperatures))
    similarity: Gaussian | None = None
    for step, inverse_temperature in enumerate(inverse_temperatures):
        moments = votes.moments(similarity, weights, scatter=True)
        state = em_m_step(moments, beta_u, beta_a, inverse_temperature, variance_floor)
        if step < len(inverse_temperatures) - 1:
            similarity = em_similarity(state)
    return Routed(state.mean, state.logit.sigmoid(), votes, similarity)


def inverse_temperature_schedule(steps: int, final: float = 0.01) -> list[float]:
    """Inverse temperature of each step, ``final * (1 - 0.95^(step + 1))``, as in the released code."""
    return [final * (1 - 0.95 ** (step + 1)) for step in range(steps)]


@register_routing("em")
class EMRouting(Routing):
    """Module form of :func:`em_routing`, with ``beta_u`` and ``beta_a`` for each parent.

    Args:
        steps: how many M-steps.
        variance_floor: added to the variances.
        final_inverse_temperature: of :func:`inverse_temperature_schedule`.
    """

    def __init__(self, steps: int = 3, variance_floor: float = 5e-4, final_inverse_temperature: float = 0.01) -> None:
        super().__init__()
        self.steps = check_steps(steps)
        self.variance_floor = variance_floor
        self.final_inverse_temperature = final_inverse_temperature
        self.register_parameter("beta_u", None)
        self.register_parameter("beta_a", None)

    def make_parameters(self, parents: int, size: int) -> None:
        """``beta_u`` and ``beta_a``, one of each a parent."""
        self.beta_u = nn.Parameter(torch.zeros(parents))
        self.beta_a = nn.Parameter(torch.zeros(parents))

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Routes; children are weighted by their activations."""
        if self.beta_u is None or self.beta_a is None:
            raise RuntimeError("this EMRouting has no parameters yet: give it to a layer or call .bind(parents, size)")
        return em_routing(
            votes,
            activation,
            self.beta_u,
            self.beta_a,
            inverse_temperature_schedule(self.steps, self.final_inverse_temperature),
            variance_floor=self.variance_floor,
        )
