"""Variational Bayes routing (Ribeiro, Leontidis & Kollias 2020): a mixture with
Normal-Wishart priors.
"""

import math

import torch
from torch import Tensor, nn

from torchcaps.ops import PARENTS, Gaussian, Moments, Votes
from torchcaps.ops.backend import mean_of
from torchcaps.routing.base import (
    LayerShape,
    Routed,
    Routing,
    Steps,
    check_parents,
    register_routing,
)
from torchcaps.routing.batch_norm import BatchStandard
from torchcaps.spec import settings


@register_routing("variational_bayes")
@settings
class VariationalBayesRouting(Routing):
    r"""Expectation and maximisation with distributions of the parents in place of point
    estimates.

    .. math::
        r_{ij} = a_i R_{ij}, \quad N_j = \sum_i r_{ij}, \quad \bar V_j = \frac{1}{N_j} \sum_i r_{ij} V_{ij}, \quad
        \alpha_j = \kappa_j = 1 + N_j, \quad \nu_j = H + 1 + N_j, \quad m_j = \frac{N_j}{\kappa_j} \bar V_j

        \Psi^{-1}_j = 1 + \sum_i r_{ij} (V_{ij} - \bar V_j)^2 + \frac{N_j}{\kappa_j} \bar V_j^2

        E \ln \pi_j = \psi(\alpha_j) - \psi \Big( \sum_j \alpha_j \Big), \quad
        E \ln \Lambda_j = \sum_{k < H} \psi \Big( \frac{\nu_j - k}{2} \Big) + H \ln 2 - \sum_h \ln \Psi^{-1}_{jh}

        \ln p_{ij} = E \ln \pi_j + \frac{E \ln \Lambda_j}{2} - \frac{H}{2} \ln 2 \pi - \frac12 \Big( \frac{H}{\kappa_j}
        + \nu_j \sum_h \Psi_{jh} (V_{ijh} - m_{jh})^2 \Big), \quad R_{ij} = \frac{p_{ij}}{\sum_j p_{ij}}

        a_j = \sigma \Big( \operatorname{BN} \Big( \beta_a - e^{E \ln \pi_j} \Big( \frac{H}{2} \ln 2 \pi e
        - \frac{E \ln \Lambda_j}{2} \Big) - \beta_u \Big) \Big), \quad \text{pose} = \operatorname{BN}(m_j)

    from R = 1 / J. :math:`\psi` is the digamma function. The betas start at 0. In a
    convolution :math:`p_{ij}` is normalised over the parents of all windows that see
    the child, as in the paper, where its competition is the ``"image"``, but starts at
    1 / J in each window, as in the authors' code; the sum over j of :math:`\alpha_j` is
    over the types of one position. All is computed in log space: the authors' code
    forms :math:`p_{ij}`, which underflows. Runs on all backends; only ``naive`` stores
    the votes.

    Each batch normalisation BN has one mean and one variance for each parent type, over
    the batch, the positions and, for poses, their numbers. In training an example
    therefore depends on its batch; a batch with one number a type is normalised with
    the running values.

    Args:
        steps: how many times the parents are estimated.

    Source: Ribeiro, Leontidis & Kollias 2020, "Capsule Routing via Variational Bayes",
    Algorithm 1; the code released with it.

    Example:
        >>> layer = tc.CapsLinear(
        ...     32, 10, (4, 4), (4, 4), routing=tc.routing.VariationalBayesRouting()
        ... )
        >>> layer(tc.Capsules(torch.randn(4, 32, 4, 4), torch.rand(4, 32))).pose.shape
        torch.Size([4, 10, 4, 4])
    """

    steps: Steps = 3

    def __post_init__(self) -> None:
        self.activation_norm: BatchStandard | None = None
        self.pose_norm: BatchStandard | None = None
        self.register_parameter("unit_cost", None)
        self.register_parameter("activation_cost", None)

    def make_parameters(self, shape: LayerShape) -> None:
        r"""Create :math:`\beta_u` and :math:`\beta_a` of each parent, (J,)."""
        self.unit_cost = nn.Parameter(torch.zeros(shape.parents))
        self.activation_cost = nn.Parameter(torch.zeros(shape.parents))
        self.activation_norm = BatchStandard(shape.parents)
        self.pose_norm = BatchStandard(shape.parents)

    def route(self, votes: Votes, activation: Tensor | None) -> Routed:
        """Route the votes; children are weighted by their activations."""
        check_parents(self, self.unit_cost, votes)
        similarity: Gaussian | None = None
        for _ in range(self.steps):
            # The first assignment is 1 / J, whatever competes afterwards.
            of_step = votes.under(PARENTS) if similarity is None else votes
            moments = of_step.moments(similarity, activation, scatter=True)
            parents = _Posterior(moments)
            last = similarity
            similarity = parents.similarity()
        cost = parents.log_share.exp() * parents.entropy() + self.unit_cost
        logit = self.activation_cost - cost
        pose = parents.mean
        if self.activation_norm is not None:
            logit = self.activation_norm(logit)
        if self.pose_norm is not None:
            pose = self.pose_norm(pose)
        assigned = votes.under(PARENTS) if last is None else votes
        return Routed(pose, logit.sigmoid(), assigned, last, logit)


class _Posterior:
    """The parents after one estimate, with all prior parameters 1 but for the degrees
    of freedom, H + 1.
    """

    def __init__(self, moments: Moments) -> None:
        assert moments.scatter is not None
        mass = moments.mass
        average = mean_of(moments)
        self.size = average.shape[-1]
        self.concentration = 1 + mass  # alpha, and kappa
        self.freedom = self.size + 1 + mass
        share = (mass / self.concentration)[..., None]
        self.mean = share * average
        self.inverse_scale = 1 + moments.scatter + share * average.square()
        self.log_share = (
            self.concentration.digamma()
            - self.concentration.sum(-1, keepdim=True).digamma()
        )
        below = torch.arange(self.size, dtype=mass.dtype, device=mass.device)
        log_determinant = ((self.freedom[..., None] - below) / 2).digamma().sum(
            -1
        ) + self.size * math.log(2)
        self.log_precision = log_determinant - self.inverse_scale.log().sum(-1)

    def similarity(self) -> Gaussian:
        """The logarithm of p of each vote."""
        constant = (
            self.log_share
            + (
                self.log_precision
                - self.size * (math.log(2 * math.pi) + 1 / self.concentration)
            )
            / 2
        )
        return Gaussian(
            self.mean, self.freedom[..., None] / self.inverse_scale, constant
        )

    def entropy(self) -> Tensor:
        """Compute the entropy of a Gaussian with the expected logarithm of the
        precision, (B, J).
        """
        return (self.size * math.log(2 * math.pi * math.e) - self.log_precision) / 2
