r"""From a Gaussian mixture to EM routing in four steps, each a runnable iteration that
adds one thing.

Every function makes one iteration: from the parents of the one before, or None before
the first (uniform assignment), to new ones. All share the E-step and the centres,

.. math::
    R_{ij} = \operatorname{softmax}_j \big( \log \pi_j + \log \mathcal N(V_{ij}; \mu_j, \sigma_j^2) \big), \quad
    r_{ij} = \frac{w_i R_{ij}}{\sum_i w_i R_{ij}}, \quad
    \mu_j = \sum_i r_{ij} V_{ij}, \quad
    \sigma_j^2 = \sum_i r_{ij} (V_{ij} - \mu_j)^2 + \text{floor}

and differ in the weight :math:`w_i` of a child and in the prior :math:`\pi_j` that the
next E-step takes:

==================== =========== ==================================================================================
iteration            weights     prior of the next E-step
==================== =========== ==================================================================================
mixture_step         1           :math:`\pi_j = \frac1n \sum_i R_{ij}`
activation_step      1           :math:`a_j = \operatorname{sigmoid} \lambda \big( \beta_a - \sum_h (\beta_u +
                                 \log \sigma_{jh}) \sum_i r_{ij} \big)`, where the last
                                 sum is 1
weighted_step        :math:`a_i` the same
em_step              :math:`a_i` :math:`a_j = \operatorname{sigmoid} \lambda \big( \beta_a - \sum_h (\beta_u +
                                 \log \sigma_{jh}) \sum_i a_i R_{ij} \big)`
==================== =========== ==================================================================================

The bracket is what it costs parent j to describe its votes: the mean negative log
density
:math:`-\sum_i r_{ij} \log \mathcal N(V_{ijh}; \mu_{jh}, \sigma_{jh}^2) = \log
\sigma_{jh} + \frac{1 + \log 2\pi}{2}`, with a learned constant. Under normalised shares
:math:`r_{ij}` it does not matter how many children stand behind a parent;
:func:`em_step` counts them.

The votes are whatever :class:`~torchcaps.ops.Votes` holds: with
:func:`~torchcaps.mixture.point_votes` the points themselves, as in a clustering; with a
transform for each child and parent, :math:`V_{ij} = u_i W_{ij}`, :func:`em_step` is EM
routing, :class:`torchcaps.routing.EMRouting`.

Source: the derivation after Su 2018 (kexue.fm/archives/5155); Hinton, Sabour & Frosst
2018, Procedure 1.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import logsigmoid

from torchcaps.numerics import FloorOrNone
from torchcaps.ops import Gaussian, Moments, Votes
from torchcaps.spec import check


class Parents(NamedTuple):
    """What an iteration estimates.

    Args:
        mean: mu, (B, J, H).
        variance: sigma^2, floor included, (B, J, H).
        log_prior: log pi or log a, (B, J).
    """

    mean: Tensor
    variance: Tensor
    log_prior: Tensor


class Costs(NamedTuple):
    """The parameters of the activation.

    Args:
        beta_u: cost of one number of a vote, (J,).
        beta_a: what a parent may cost before it is more off than on, (J,).
        inverse_temperature: lambda, more than 0.
    """

    beta_u: Tensor
    beta_a: Tensor
    inverse_temperature: float


def mixture_similarity(parents: Parents) -> Gaussian:
    r"""The E-step's :math:`\log \pi_j + \log \mathcal N(V_{ij}; \mu_j, \sigma_j^2)`,
    but for a constant.
    """
    return Gaussian.likelihood(*parents)


def _moments(votes: Votes, parents: Parents | None, weights: Tensor | None) -> Moments:
    return votes.moments(
        None if parents is None else mixture_similarity(parents), weights, scatter=True
    )


def _variance(moments: Moments, floor: float) -> Tensor:
    """With its floor."""
    check(FloorOrNone, floor, "floor")
    return moments.variance + floor


def _log_activation(mass: Tensor | float, variance: Tensor, costs: Costs) -> Tensor:
    """The activation's logarithm from the cost of each number, ``(beta_u + log sigma) *
    mass``.
    """
    cost = ((costs.beta_u[:, None] + variance.log() / 2).sum(-1)) * mass
    return logsigmoid(costs.inverse_temperature * (costs.beta_a - cost))


def mixture_step(
    votes: Votes, parents: Parents | None = None, *, floor: float = 5e-4
) -> Parents:
    r"""EM for a mixture of diagonal Gaussians: the prior is the mixing weight,
    :math:`\pi_j = \frac1n \sum_i R_{ij}`.

    Args:
        votes: the votes of I children for J parents.
        parents: the parents of the iteration before; None for uniform R.
        floor: added to the variances, at least 0.
    """
    moments = _moments(votes, parents, None)
    return Parents(
        moments.mean, _variance(moments, floor), (moments.mass / votes.shape[1]).log()
    )


def activation_step(
    votes: Votes, parents: Parents | None, costs: Costs, *, floor: float = 5e-4
) -> Parents:
    r"""The prior becomes an activation: mixing weights sum to 1, but several parents
    can be there, or none.

    .. math:: a_j = \operatorname{sigmoid} \lambda \Big( \beta_a - \sum_h (\beta_u + \log \sigma_{jh}) \Big)

    A parent is there if its votes agree (:math:`\sigma` is small).

    Args:
        votes: the votes of I children for J parents.
        parents: the parents of the iteration before; None for uniform R.
        costs: the costs of the activation.
        floor: added to the variances, at least 0.
    """
    return weighted_step(votes, parents, None, costs, floor=floor)


def weighted_step(
    votes: Votes,
    parents: Parents | None,
    weights: Tensor | None,
    costs: Costs,
    *,
    floor: float = 5e-4,
) -> Parents:
    r"""Children that are not there do not count: :math:`r_{ij} = a_i R_{ij} / \sum_i
    a_i R_{ij}`.

    Args:
        votes: the votes of I children for J parents.
        parents: the parents of the iteration before; None for uniform R.
        weights: the child activations, (N, G), from 0 to 1, or None for ones.
        costs: the costs of the activation.
        floor: added to the variances, at least 0.
    """
    moments = _moments(votes, parents, weights)
    variance = _variance(moments, floor)
    return Parents(moments.mean, variance, _log_activation(1.0, variance, costs))


def em_step(
    votes: Votes,
    parents: Parents | None,
    weights: Tensor | None,
    costs: Costs,
    *,
    floor: float = 5e-4,
) -> Parents:
    r"""The cost is that of all votes and not of the average one: times the mass
    :math:`N_j = \sum_i a_i R_{ij}`.

    .. math:: a_j = \operatorname{sigmoid} \lambda \Big( \beta_a - N_j \sum_h (\beta_u + \log \sigma_{jh}) \Big)

    Args:
        votes: the votes of I children for J parents.
        parents: the parents of the iteration before; None for uniform R.
        weights: the child activations, (N, G), from 0 to 1, or None for ones.
        costs: the costs of the activation.
        floor: added to the variances, at least 0.
    """
    moments = _moments(votes, parents, weights)
    variance = _variance(moments, floor)
    return Parents(
        moments.mean, variance, _log_activation(moments.mass, variance, costs)
    )
